//! A controller's process: the real ledger and the real leader's duties, moved as the pump moves
//! them, and a proposer that stamps and parks as the real one does.

use crate::client::{Answer, Waiter};
use crate::invariants::Happening;
use crate::log::Entry;
use crate::network::Down;
use crate::truth::Reign;
use crate::world::{Event, World, local};
use docket_core::leader::{Action, Event as Leads, Leader, LeaderConfig, SessionId};
use docket_core::ledger::Ledger;
use proto::mutants::Mutant;
use proto::v1::{self, command::Kind};
use std::collections::VecDeque;

/// Time between two ticks of the leader's duties, ms.
pub(crate) const TICK_MS: u64 = 100;

/// Proposals in flight, as in the real proposer.
const IN_FLIGHT_MAX: usize = 2;

/// Snapshots that are kept.
const SNAPSHOTS_MAX: usize = 2;

/// One controller.
pub(crate) struct Controller {
    pub up: bool,
    pub frozen: bool,
    /// Since when, if so.
    pub frozen_ms: u64,
    pub life: u64,
    pub started_ms: u64,
    pub inbox: Vec<Event>,
    pub ledger: Ledger,
    pub leader: Leader,
    /// Committed entries that it applied.
    pub applied: usize,
    /// The term that raft says it leads, as far as it knows.
    pub leads: Option<u64>,
    pub wall_skew_ms: i64,
    /// How its clocks differ from real time, in 10,000.
    pub rate: i64,
    /// Added to each apply: a slow disk or a busy thread.
    pub apply_delay_ms: u64,
    pub proposer: Proposer,
    /// Images on its disk, with the number of entries in them.
    snapshots: Vec<(usize, Vec<Vec<u8>>)>,
}

#[derive(Default)]
pub(crate) struct Proposer {
    own: VecDeque<v1::Command>,
    queue: VecDeque<(v1::Command, Vec<v1::Blob>, Waiter)>,
    /// The term in which commands are taken, its led time, and when that was, ms.
    pub serving: Option<(u64, u64, u64)>,
    in_flight: usize,
    /// Proposed to a log that takes nothing from it any more.
    swallowed: Vec<Waiter>,
}

impl Controller {
    pub fn new() -> Controller {
        Controller {
            up: false,
            frozen: false,
            frozen_ms: 0,
            life: 0,
            started_ms: 0,
            inbox: Vec::new(),
            ledger: Ledger::new(),
            leader: new_leader(),
            applied: 0,
            leads: None,
            wall_skew_ms: 0,
            rate: 0,
            apply_delay_ms: 0,
            proposer: Proposer::default(),
            snapshots: Vec::new(),
        }
    }
}

fn new_leader() -> Leader {
    Leader::new(LeaderConfig { tick_ms: TICK_MS, ..LeaderConfig::default() })
}

impl World {
    pub(crate) fn controller_start(&mut self, c: usize) {
        if self.controllers[c].up {
            return;
        }
        let from_image = self.rng.permille(700);
        let (now, newest) = (self.now, self.controllers[c].snapshots.last().cloned());
        let controller = &mut self.controllers[c];
        controller.up = true;
        controller.life += 1;
        (controller.started_ms, controller.frozen, controller.leads) = (now, false, None);
        controller.inbox.clear();
        controller.leader = new_leader();
        controller.proposer = Proposer::default();
        (controller.ledger, controller.applied) = (Ledger::new(), 0);
        if let Some((applied, chunks)) = newest.filter(|_| from_image) {
            match Ledger::thaw(chunks.into_iter()) {
                Ok(ledger) => (controller.ledger, controller.applied) = (ledger, applied),
                Err(error) => self.fail("replicas", format!("an image cannot be read: {error}")),
            }
        }
        let life = self.controllers[c].life;
        self.trace.note(now, || format!("controller {c} starts, life {life}"));
        while self.controllers[c].applied < self.log.entries.len() && !self.failed() {
            self.apply_next(c);
        }
        self.at(TICK_MS, Event::LeaderTick { controller: c, life });
        self.tell(&Happening::Restarted { controller: c });
        if self.log.leader.is_none() {
            let delay = self.rng.range(50, 1_500);
            self.at(delay, Event::Elect);
        }
    }

    pub(crate) fn controller_crash(&mut self, c: usize) {
        if !self.controllers[c].up {
            return;
        }
        self.trace.note(self.now, || format!("controller {c} dies"));
        let controller = &mut self.controllers[c];
        (controller.up, controller.frozen, controller.leads) = (false, false, None);
        controller.inbox.clear();
        controller.proposer = Proposer::default();
        controller.leader = new_leader();
        self.controller_drops_all(c);
        self.raft_loses(c);
    }

    /// The log has no leader until the next election, if this was it.
    pub(crate) fn raft_loses(&mut self, c: usize) {
        if self.log.leader == Some(c) {
            self.log.leader = None;
            self.truth.reign = None;
            let delay = self.rng.range(100, 2_000);
            self.at(delay, Event::Elect);
        }
    }

    /// Some controller that runs becomes the leader of the next term.
    pub(crate) fn elect(&mut self) {
        if self.log.leader.is_some() {
            return;
        }
        let able: Vec<usize> = (0..self.controllers.len())
            .filter(|c| self.controllers[*c].up && !self.controllers[*c].frozen)
            .filter(|c| !self.isolated.contains(c))
            .collect();
        let Some(c) = self.rng.pick(&able) else {
            return self.at(500, Event::Elect);
        };
        // What reached a majority before stays; the rest is gone.
        let kept = self.rng.below(self.log.pending.len() as u64 + 1);
        for _ in 0..kept {
            self.commit();
        }
        self.drop_pending();
        let term = self.log.term + self.rng.range(1, 2);
        self.log.begin_term(term, c);
        self.truth.reign = None;
        self.trace.note(self.now, || format!("controller {c} leads term {term}"));
        for old in 0..self.controllers.len() {
            // One that is cut off goes on to believe that it leads (openraft, CheckQuorum).
            if old != c && !self.isolated.contains(&old) {
                self.hears_of_another(old);
            }
        }
        // The pump and the proposer hear of it apart.
        let (life, delay) = (self.controllers[c].life, self.rng.skewed(50));
        self.heard_role(c, delay, Some(term));
        let delay = self.rng.skewed(50);
        self.at(delay, Event::Begin { controller: c, life, term });
    }

    fn hears_of_another(&mut self, old: usize) {
        if self.controllers[old].leads.is_some() {
            let delay = self.rng.skewed(3_000);
            self.heard_role(old, delay, None);
        }
    }

    /// It reaches the other controllers again, and hears who leads.
    pub(crate) fn rejoined(&mut self, c: usize) {
        if self.isolated.remove(&c) && self.log.leader != Some(c) {
            self.hears_of_another(c);
        }
    }

    fn heard_role(&mut self, c: usize, delay: u64, leads: Option<u64>) {
        let life = self.controllers[c].life;
        self.at(delay, Event::Role { controller: c, life, leads });
    }

    fn drop_pending(&mut self) {
        for entry in std::mem::take(&mut self.log.pending) {
            let (c, life) = entry.proposer;
            if self.controllers[c].up && self.controllers[c].life == life {
                self.controllers[c].proposer.swallowed.extend(entry.waiters.into_iter().flatten());
            }
        }
    }

    /// The pump hears where it stands in raft.
    pub(crate) fn role(&mut self, c: usize, leads: Option<u64>) {
        let stale = match leads {
            Some(term) => term < self.log.term,
            None => self.log.leader == Some(c),
        };
        if self.controllers[c].leads == leads || stale {
            return;
        }
        if self.controllers[c].leads.is_some() {
            self.leader_step(c, Leads::Deposed);
            self.controllers[c].proposer.own.clear();
        }
        self.controllers[c].leads = leads;
        if let Some(term) = leads {
            self.leader_step(c, Leads::Elected { term });
        } else {
            let proposer = std::mem::take(&mut self.controllers[c].proposer);
            let parked = proposer.swallowed.into_iter().map(|waiter| (waiter, Answer::Unknown));
            let queued =
                proposer.queue.into_iter().map(|(_, _, waiter)| (waiter, Answer::NotLeader));
            for (waiter, answer) in parked.chain(queued).collect::<Vec<_>>() {
                self.answer(waiter, answer);
            }
        }
    }

    /// The proposer hears that it leads: the first entry of the term.
    pub(crate) fn begin(&mut self, c: usize, term: u64) {
        if self.mutant_serves_early(c, term) {
            return;
        }
        let controller = &mut self.controllers[c];
        if !Mutant::ClaimBeforeTerm.active() {
            controller.proposer.serving = None;
            controller.proposer.in_flight = 0;
        }
        let mut commands =
            vec![command(Kind::Term(v1::TermCommand { leader: c as u64 + 1, term }))];
        if controller.ledger.cluster_id().is_empty() {
            commands.push(command(Kind::Configure(v1::ConfigureCommand {
                policy: Some(self.plan.policy.clone()),
                cluster_id: Some("sim".to_owned()),
                ..Default::default()
            })));
        }
        let led_ms = controller.ledger.led();
        let waiters = commands.iter().map(|_| None).collect();
        let proposal = self.stamped(c, led_ms, Vec::new(), commands);
        self.propose(c, term, proposal, waiters, true);
    }

    fn stamped(
        &self,
        c: usize,
        led_ms: u64,
        blobs: Vec<v1::Blob>,
        commands: Vec<v1::Command>,
    ) -> v1::Proposal {
        let wall_ms = self.wall(self.controllers[c].wall_skew_ms, self.now);
        v1::Proposal { level: proto::LEVEL, wall_ms, led_ms, blobs, commands }
    }

    fn propose(
        &mut self,
        c: usize,
        term: u64,
        proposal: v1::Proposal,
        waiters: Vec<Option<Waiter>>,
        begins: bool,
    ) {
        let life = self.controllers[c].life;
        if self.log.leader != Some(c) || self.log.term != term {
            let lost = waiters.into_iter().flatten();
            return self.controllers[c].proposer.swallowed.extend(lost);
        }
        let (proposer, applied) = ((c, life), None);
        let stamped_ms = self.now;
        let entry =
            Entry { index: 0, term, stamped_ms, proposal, proposer, waiters, begins, applied };
        self.log.pending.push_back(entry);
        let delay = self.rng.skewed(self.plan.commit_max_ms);
        self.log.busy_until_ms = self.log.busy_until_ms.max(self.now + delay);
        let at = self.log.busy_until_ms;
        self.queue.push(at, Event::Commit { term });
    }

    /// A majority has it.
    pub(crate) fn commit(&mut self) {
        if !self.log.commit() {
            return;
        }
        for c in 0..self.controllers.len() {
            let controller = &self.controllers[c];
            if controller.up {
                let (life, slow) = (controller.life, controller.apply_delay_ms);
                let follows = if controller.leads.is_none() { 100 } else { 5 };
                let delay = self.rng.skewed(follows) + self.rng.below(slow + 1);
                self.at(delay, Event::Apply { controller: c, life });
            }
        }
    }

    pub(crate) fn apply_next(&mut self, c: usize) {
        let at = self.controllers[c].applied;
        if at >= self.log.entries.len() {
            return;
        }
        let controller = &mut self.controllers[c];
        let entry = &mut self.log.entries[at];
        let applied = controller.ledger.apply(entry.index, &entry.proposal);
        controller.applied += 1;
        let first = entry.applied.is_none();
        if first {
            entry.applied = Some(applied.clone());
        } else if entry.applied.as_ref() != Some(&applied) {
            let index = entry.index;
            let what = format!("controller {c} did otherwise at entry {index}: {applied:?}");
            return self.fail("replicas", what);
        }
        if first {
            self.judge_entry(c, at);
        }
        let (commands, index) =
            (self.log.entries[at].proposal.commands.clone(), self.log.entries[at].index);
        self.leader_step(c, Leads::Applied { index, commands: &commands, applied: &applied });
        self.answer_waiters(c, at, &applied);
        self.maybe_snapshot(c);
        self.pump_proposer(c);
    }

    fn answer_waiters(&mut self, c: usize, at: usize, applied: &docket_core::ledger::Applied) {
        let entry = &mut self.log.entries[at];
        if entry.proposer != (c, self.controllers[c].life) {
            return;
        }
        let (term, begins, index) = (entry.term, entry.begins, entry.index);
        let waiters = std::mem::take(&mut entry.waiters);
        let (now, proposer) = (self.now, &mut self.controllers[c].proposer);
        if begins {
            if self.log.leader == Some(c) && self.log.term == term {
                let led_ms = self.controllers[c].ledger.led();
                self.controllers[c].proposer.serving = Some((term, led_ms, now));
                self.truth.reign_begins(Reign { controller: c, begun_ms: now, led_ms });
            }
        } else {
            proposer.in_flight = proposer.in_flight.saturating_sub(1);
        }
        for (waiter, outcome) in waiters.into_iter().zip(&applied.outcomes) {
            if let Some(waiter) = waiter {
                self.answer(waiter, Answer::Applied { outcome: outcome.clone(), index });
            }
        }
    }

    fn maybe_snapshot(&mut self, c: usize) {
        if !self.rng.permille(8) {
            return;
        }
        let controller = &mut self.controllers[c];
        let chunks: Vec<Vec<u8>> = controller.ledger.freeze().chunks().collect();
        controller.snapshots.push((controller.applied, chunks));
        if controller.snapshots.len() > SNAPSHOTS_MAX {
            controller.snapshots.remove(0);
        }
    }

    /// One event for the leader's duties, and what they want done.
    pub(crate) fn leader_step(&mut self, c: usize, event: Leads<'_>) {
        let controller = &mut self.controllers[c];
        if !controller.up {
            return;
        }
        let now = local(controller.rate, self.now - controller.started_ms);
        let actions = controller.leader.step(&controller.ledger, now, event);
        for action in actions {
            match action {
                Action::Propose(command) => {
                    self.trace.note(self.now, || format!("c{c} proposes {}", words(&command)));
                    self.tell(&Happening::Proposed { controller: c, command: &command });
                    self.mutant_sends_early(c, &command);
                    self.controllers[c].proposer.own.push_back(command);
                }
                Action::Send { session: SessionId(conn), message } => {
                    self.send_down(conn, Down::Message(Box::new(message)));
                }
                Action::Close { session: SessionId(conn) } => self.controller_closes(conn),
                Action::Confirm { round } => {
                    let (life, delay) = (self.controllers[c].life, self.rng.skewed(50));
                    self.at(delay, Event::Confirm { controller: c, life, round });
                }
            }
        }
        self.pump_proposer(c);
    }

    /// A majority is asked who leads: only the log's leader, in reach of the others, is told so.
    pub(crate) fn confirm(&mut self, c: usize, round: u64) {
        if self.log.leader == Some(c) && !self.isolated.contains(&c) {
            self.leader_step(c, Leads::Confirmed { round });
        }
    }

    pub(crate) fn leader_tick(&mut self, c: usize) {
        let life = self.controllers[c].life;
        self.at(TICK_MS, Event::LeaderTick { controller: c, life });
        let wall_ms = self.wall(self.controllers[c].wall_skew_ms, self.now);
        self.leader_step(c, Leads::Tick { wall_ms });
    }

    /// A client's command arrives; its answer comes when it is applied, or never.
    pub(crate) fn enqueue(
        &mut self,
        c: usize,
        command: v1::Command,
        blobs: Vec<v1::Blob>,
        waiter: Waiter,
    ) {
        if self.controllers[c].leads.is_none() {
            return self.answer(waiter, Answer::NotLeader);
        }
        self.controllers[c].proposer.queue.push_back((command, blobs, waiter));
        self.pump_proposer(c);
    }

    /// A command that nobody waits for.
    pub(crate) fn vouch(&mut self, c: usize, command: v1::Command) {
        self.controllers[c].proposer.own.push_back(command);
        self.pump_proposer(c);
    }

    fn pump_proposer(&mut self, c: usize) {
        loop {
            let most = if self.rng.permille(300) { 1 } else { 32 };
            let (now, rate) = (self.now, self.controllers[c].rate);
            let proposer = &mut self.controllers[c].proposer;
            let Some((term, led_ms, since)) = proposer.serving else { return };
            let empty = proposer.own.is_empty() && proposer.queue.is_empty();
            if empty || proposer.in_flight >= IN_FLIGHT_MAX {
                return;
            }
            proposer.in_flight += 1;
            let (mut commands, mut blobs, mut waiters) =
                (Vec::new(), Vec::<v1::Blob>::new(), Vec::new());
            while commands.len() < most {
                if let Some(command) = proposer.own.pop_front() {
                    commands.push(command);
                    waiters.push(None);
                } else if let Some((command, more, waiter)) = proposer.queue.pop_front() {
                    commands.push(command);
                    waiters.push(Some(waiter));
                    for blob in more {
                        if !blobs.iter().any(|known| known.hash == blob.hash) {
                            blobs.push(blob);
                        }
                    }
                } else {
                    break;
                }
            }
            let proposal = self.stamped(c, led_ms + local(rate, now - since), blobs, commands);
            self.propose(c, term, proposal, waiters, false);
        }
    }
}

fn command(kind: Kind) -> v1::Command {
    v1::Command { kind: Some(kind) }
}

fn words(command: &v1::Command) -> String {
    match &command.kind {
        Some(Kind::Facts(f)) => {
            let (from, to) = f.facts.as_ref().map_or((0, 0), |facts| (facts.from, facts.to));
            format!("facts {from}..={to} of {}", f.agent_id)
        }
        Some(Kind::Assign(a)) => format!("assign {:?} to {}", a.attempt, a.agent_id),
        Some(Kind::AgentUp(up)) => up
            .join
            .as_ref()
            .map_or_else(String::new, |j| format!("up {} {}", j.agent_id, j.incarnation)),
        Some(Kind::Manifest(m)) => format!("manifest of {}, {} items", m.agent_id, m.items.len()),
        other => format!("{other:?}"),
    }
}
