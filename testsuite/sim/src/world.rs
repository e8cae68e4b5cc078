//! The world of one seed: everything that lives in it, virtual time, and the loop.

use crate::agent::Node;
use crate::client::{Answer, Client};
use crate::controller::Controller;
use crate::invariants::{Happening, Invariants};
use crate::log::Log;
use crate::network::{Conn, Link};
use crate::plan::Plan;
use crate::process::Key;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::{Trace, Tracing};
use crate::trim::Case;
use crate::truth::Truth;
use std::collections::{BTreeMap, BTreeSet};
use worker_agent_core::SessionNo;

/// UTC of virtual time 0, ms.
const EPOCH_MS: u64 = 1_800_000_000_000;

/// Events of one run at most: past it something spins.
const EVENTS_MAX: u64 = 3_000_000;

/// Time between two looks of the invariants at everything, ms.
const AUDIT_MS: u64 = 500;

/// What happens next, somewhere.
#[derive(Debug)]
pub(crate) enum Event {
    Up { conn: u64 },
    Down { conn: u64 },
    Reset { conn: u64 },
    LinkHeals { node: usize, controller: usize, serial: u64 },
    LinkCut { node: usize, controller: usize, for_ms: u64 },
    LateEcho { node: usize, step: u8 },
    Dialled { node: usize, life: u64, no: SessionNo, controller: usize },
    DialFailed { node: usize, life: u64, no: SessionNo },
    AgentStart { node: usize },
    AgentTick { node: usize, life: u64, at: u64 },
    AgentThaw { node: usize, life: u64 },
    LookedUp { node: usize, life: u64, uid: u32 },
    NotSaved { node: usize, life: u64 },
    KeeperDial { node: usize, life: u64 },
    KeeperGone { node: usize, life: u64, epoch: u64 },
    ToKeeper { node: usize, epoch: u64 },
    FromKeeper { node: usize, epoch: u64 },
    KeeperStart { node: usize },
    KeeperThaw { node: usize },
    KeeperRoom { node: usize },
    KeeperSync { node: usize, life: u64 },
    Spawn { node: usize, life: u64, key: Key },
    MainEnds { process: usize, serial: u64 },
    LimitReached { process: usize },
    FenceReached { process: usize },
    Signalled { process: usize, signal: u32 },
    Reaped { node: usize, life: u64, process: usize },
    TreeEmpty { process: usize },
    Emptied { node: usize, life: u64, process: usize },
    NodeBoot { node: usize },
    NodeFalls { node: usize },
    LeaderTick { controller: usize, life: u64 },
    Apply { controller: usize, life: u64 },
    Commit { term: u64 },
    Elect,
    Role { controller: usize, life: u64, leads: Option<u64> },
    Begin { controller: usize, life: u64, term: u64 },
    Confirm { controller: usize, life: u64, round: u64 },
    Rejoined { controller: usize },
    ApplyEases { controller: usize },
    ControllerStart { controller: usize },
    ControllerThaw { controller: usize },
    Op { op: usize },
    OpTimeout { op: usize, tries: u64 },
    Request { op: usize, controller: usize },
    Answered { op: usize, answer: Box<Answer> },
    Chaos,
    Calm,
    ChaosAgain,
    Probe,
    Audit,
}

/// What stands still when it is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    Agent(usize),
    Keeper(usize),
    Controller(usize),
}

/// A broken property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Its name in the table of `invariants`.
    pub property: &'static str,
    /// What was seen.
    pub what: String,
    /// When, in virtual ms.
    pub at_ms: u64,
}

/// How a run went.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The first broken property, if one was.
    pub violation: Option<Violation>,
    /// The lines, if they were to be kept.
    pub trace: String,
    /// Events handled.
    pub events: u64,
    /// Virtual time passed, ms.
    pub virtual_ms: u64,
    /// Jobs acknowledged.
    pub jobs: u64,
    /// Faults that struck or were left out.
    pub strikes: u64,
    /// How often each kind of end and each cause came up: a run that reaches nothing proves nothing.
    pub seen: BTreeMap<String, u64>,
}

/// One run.
pub(crate) struct World {
    pub now: u64,
    pub rng: Rng,
    pub queue: Queue<Event>,
    pub plan: Plan,
    pub seed: u64,
    /// Faults so far.
    pub strikes: u64,
    pub log: Log,
    pub controllers: Vec<Controller>,
    /// Cut off from the other controllers.
    pub isolated: BTreeSet<usize>,
    /// Until then no fault interrupts one that takes several steps.
    pub scene_until_ms: u64,
    pub nodes: Vec<Node>,
    pub links: Vec<Vec<Link>>,
    pub conns: BTreeMap<u64, Conn>,
    pub next_conn: u64,
    pub client: Client,
    pub truth: Truth,
    pub trace: Trace,
    invariants: Invariants,
    violation: Option<Violation>,
    over: bool,
}

/// Runs one seed.
pub fn run(seed: u64, tracing: Tracing) -> Report {
    run_case(&Case { seed, ..Case::default() }, tracing)
}

/// Runs one seed, perhaps with less than its plan says, perhaps with a bug switched on.
pub fn run_case(case: &Case, tracing: Tracing) -> Report {
    #[cfg(feature = "mutants")]
    proto::mutants::choose(case.mutant.and_then(proto::mutants::Mutant::of_number));
    let mut world = World::new(case, tracing);
    let mut events = 0;
    while !world.over && !world.failed() {
        let Some((at, event)) = world.queue.pop() else { break };
        world.now = at;
        world.handle(event);
        events += 1;
        if events > EVENTS_MAX {
            world.fail("served", format!("{EVENTS_MAX} events and no end: something spins"));
        }
    }
    Report {
        seen: world.seen(),
        violation: world.violation,
        trace: world.trace.into_text(),
        events,
        virtual_ms: world.now,
        jobs: world.truth.acked.len() as u64,
        strikes: world.strikes,
    }
}

/// What a clock of that rate shows of a stretch of real time: off by so many in 10,000.
pub(crate) fn local(rate: i64, real_ms: u64) -> u64 {
    real_ms.saturating_add_signed((real_ms as i64).saturating_mul(rate) / 10_000)
}

/// The real stretch after which a clock of that rate shows this one, rounded up.
pub(crate) fn real(rate: i64, local_ms: u64) -> u64 {
    (local_ms.saturating_mul(10_000) / 10_000_u64.saturating_add_signed(rate)).saturating_add(1)
}

/// Clocks are off by less than this, in 10,000: two of them by less than 1 % (design 3).
const RATE_MAX: u64 = 45;

impl World {
    fn new(case: &Case, tracing: Tracing) -> World {
        let seed = case.seed;
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng, &case.trim);
        let mut trace = Trace::new(tracing);
        trace.note(0, || format!("seed {seed}: {plan:#?}"));
        let nodes: Vec<Node> = (0..plan.nodes).map(|n| Node::new(n, &mut rng)).collect();
        let mut world = World {
            now: 0,
            queue: Queue::new(seed),
            log: Log::default(),
            controllers: (0..plan.controllers).map(|_| Controller::new()).collect(),
            isolated: BTreeSet::new(),
            scene_until_ms: 0,
            links: vec![vec![Link::default(); plan.controllers]; plan.nodes],
            nodes,
            conns: BTreeMap::new(),
            next_conn: 0,
            client: Client::default(),
            truth: Truth::default(),
            trace,
            invariants: Invariants::all(),
            violation: None,
            over: false,
            seed,
            strikes: 0,
            plan,
            rng,
        };
        let rate = |rng: &mut Rng| rng.below(2 * RATE_MAX) as i64 - RATE_MAX as i64;
        for n in 0..world.nodes.len() {
            world.nodes[n].rate = rate(&mut world.rng);
        }
        for c in 0..world.controllers.len() {
            world.controllers[c].rate = rate(&mut world.rng);
        }
        world.begin_all();
        world
    }

    fn begin_all(&mut self) {
        for controller in 0..self.controllers.len() {
            self.at(0, Event::ControllerStart { controller });
        }
        for node in 0..self.nodes.len() {
            self.at(1, Event::KeeperStart { node });
            self.at(2, Event::AgentStart { node });
        }
        self.plan_requests();
        let [first, second] = self.plan.chaos_ms;
        self.at(3_000, Event::Chaos);
        self.at(first, Event::Calm);
        if self.rng.permille(300) && self.plan.trim.calm_after.is_none() {
            let again = first + self.plan.rejoin_ms() + 5_000;
            self.at(again, Event::ChaosAgain);
            self.at(again + second, Event::Calm);
        }
        self.at(AUDIT_MS, Event::Audit);
    }

    pub fn at(&mut self, delay_ms: u64, event: Event) {
        self.queue.push(self.now + delay_ms, event);
    }

    pub fn latency(&mut self) -> u64 {
        self.rng.skewed(self.plan.net_max_ms)
    }

    /// UTC as a clock with that skew shows it.
    pub fn wall(&self, skew_ms: i64, at_ms: u64) -> u64 {
        (EPOCH_MS + at_ms).saturating_add_signed(skew_ms)
    }

    pub fn failed(&self) -> bool {
        self.violation.is_some()
    }

    pub fn fail(&mut self, property: &'static str, what: String) {
        if self.violation.is_none() {
            self.trace.note(self.now, || format!("VIOLATION of {property}: {what}"));
            self.violation = Some(Violation { property, what, at_ms: self.now });
        }
    }

    /// Tells the invariants what happened.
    pub fn tell(&mut self, happening: &Happening<'_>) {
        self.judge(|invariants, world| invariants.happened(world, happening));
    }

    /// An entry was applied for the first time, by that controller.
    pub fn judge_entry(&mut self, controller: usize, at: usize) {
        self.judge(|invariants, world| invariants.applied(world, controller, at));
    }

    fn judge(
        &mut self,
        look: impl FnOnce(&mut Invariants, &World) -> Result<(), (&'static str, String)>,
    ) {
        let mut invariants = std::mem::take(&mut self.invariants);
        let verdict = look(&mut invariants, self);
        self.invariants = invariants;
        if let Err((property, what)) = verdict {
            self.fail(property, what);
        }
    }

    fn owner(&self, event: &Event) -> Owner {
        match event {
            Event::Down { conn } => {
                self.conns.get(conn).map_or(Owner::Nobody, |conn| Owner::Agent(conn.node))
            }
            Event::Up { conn } | Event::Reset { conn } => {
                self.conns.get(conn).map_or(Owner::Nobody, |c| Owner::Controller(c.controller))
            }
            Event::Dialled { node, .. }
            | Event::DialFailed { node, .. }
            | Event::AgentTick { node, .. }
            | Event::LookedUp { node, .. }
            | Event::NotSaved { node, .. }
            | Event::KeeperDial { node, .. }
            | Event::KeeperGone { node, .. }
            | Event::FromKeeper { node, .. } => Owner::Agent(*node),
            Event::ToKeeper { node, .. }
            | Event::KeeperSync { node, .. }
            | Event::Spawn { node, .. }
            | Event::Reaped { node, .. }
            | Event::Emptied { node, .. } => Owner::Keeper(*node),
            Event::LeaderTick { controller, .. }
            | Event::Apply { controller, .. }
            | Event::Role { controller, .. }
            | Event::Begin { controller, .. }
            | Event::Confirm { controller, .. }
            | Event::Request { controller, .. } => Owner::Controller(*controller),
            Event::Commit { .. } => self.log.leader.map_or(Owner::Nobody, Owner::Controller),
            _ => Owner::Nobody,
        }
    }

    /// Of a process that does not exist any more, or a connection that was replaced.
    fn void(&self, event: &Event) -> bool {
        match event {
            Event::Dialled { node, life, .. }
            | Event::DialFailed { node, life, .. }
            | Event::AgentTick { node, life, .. }
            | Event::LookedUp { node, life, .. }
            | Event::NotSaved { node, life }
            | Event::AgentThaw { node, life }
            | Event::KeeperDial { node, life } => {
                self.nodes[*node].life != *life || !self.nodes[*node].agent_up()
            }
            Event::KeeperGone { node, life, epoch } => {
                let node = &self.nodes[*node];
                node.life != *life || node.epoch != *epoch || !node.agent_up()
            }
            Event::ToKeeper { node, epoch } => {
                self.nodes[*node].epoch != *epoch || !self.nodes[*node].keeper.up
            }
            Event::FromKeeper { node, epoch } => {
                self.nodes[*node].epoch != *epoch || !self.nodes[*node].agent_up()
            }
            Event::KeeperSync { node, life }
            | Event::Spawn { node, life, .. }
            | Event::Reaped { node, life, .. }
            | Event::Emptied { node, life, .. } => {
                self.nodes[*node].keeper.life != *life || !self.nodes[*node].keeper.up
            }
            Event::LeaderTick { controller, life }
            | Event::Apply { controller, life }
            | Event::Role { controller, life, .. }
            | Event::Begin { controller, life, .. }
            | Event::Confirm { controller, life, .. } => {
                self.controllers[*controller].life != *life || !self.controllers[*controller].up
            }
            Event::Commit { term } => self.log.term != *term || self.log.leader.is_none(),
            _ => false,
        }
    }

    fn handle(&mut self, event: Event) {
        if self.void(&event) {
            return;
        }
        match self.owner(&event) {
            _ if self.held_on_the_way(&event) => {}
            Owner::Agent(n) if self.nodes[n].frozen => self.nodes[n].inbox.push(event),
            Owner::Keeper(n) if self.nodes[n].keeper.frozen => {
                self.nodes[n].keeper.inbox.push(event);
            }
            Owner::Controller(c) if self.controllers[c].frozen => {
                self.controllers[c].inbox.push(event);
            }
            _ => self.go(event),
        }
    }

    fn go(&mut self, event: Event) {
        match event {
            Event::Up { conn } => self.up_arrives(conn),
            Event::Down { conn } => self.down_arrives(conn),
            Event::Reset { conn } => self.reset(conn),
            Event::LinkHeals { node, controller, serial } => {
                self.link_heals(node, controller, serial);
            }
            Event::LinkCut { node, controller, for_ms } => {
                if self.truth.calm_ms.is_none() {
                    self.cut(node, controller, true, true, for_ms);
                    self.links[node][controller].resets = true;
                }
            }
            Event::LateEcho { node, step } => self.late_echo(node, step),
            Event::LeaderTick { controller, .. } => self.leader_tick(controller),
            Event::Apply { controller, .. } => self.apply_next(controller),
            Event::Commit { .. } => self.commit(),
            Event::Elect => self.elect(),
            Event::Role { controller, leads, .. } => self.role(controller, leads),
            Event::Begin { controller, term, .. } => self.begin(controller, term),
            Event::Confirm { controller, round, .. } => self.confirm(controller, round),
            Event::Rejoined { controller } => self.rejoined(controller),
            Event::ApplyEases { controller } => self.controllers[controller].apply_delay_ms = 0,
            Event::ControllerStart { controller } => self.controller_start(controller),
            Event::ControllerThaw { controller } => self.controller_thaw(controller),
            Event::Op { op } => self.op(op),
            Event::OpTimeout { op, tries } => self.op_timeout(op, tries),
            Event::Request { op, controller } => self.request(op, controller),
            Event::Answered { op, answer } => self.answered(op, *answer),
            Event::Chaos => self.chaos(),
            Event::Calm => self.calm(),
            Event::ChaosAgain => {
                self.truth.calm_ms = None;
                self.chaos();
            }
            Event::Probe => self.probe(),
            Event::Audit => self.audit(),
            node => self.go_on_node(node),
        }
    }

    fn go_on_node(&mut self, event: Event) {
        use worker_agent_core::Event as Heard;
        match event {
            Event::Dialled { node, no, controller, .. } => self.dialled(node, no, controller),
            Event::DialFailed { node, no, .. } => self.dial_failed(node, no),
            Event::AgentStart { node } => self.agent_start(node),
            Event::AgentTick { node, at, .. } => self.agent_tick(node, at),
            Event::AgentThaw { node, life } => self.agent_thaw(node, life),
            Event::LookedUp { node, uid, .. } => self.looked_up(node, uid),
            Event::NotSaved { node, .. } => {
                self.agent_step(node, Heard::NotSaved { why: "disk".to_owned() });
            }
            Event::KeeperDial { node, .. } => self.keeper_dial(node),
            Event::KeeperGone { node, .. } => self.keeper_gone(node),
            Event::ToKeeper { node, .. } => {
                if let Some(request) = self.nodes[node].to_keeper.pop_front() {
                    self.keeper_request(node, request);
                }
            }
            Event::FromKeeper { node, .. } => {
                if let Some(event) = self.nodes[node].from_keeper.pop_front() {
                    self.agent_step(node, Heard::FromKeeper(event));
                }
            }
            Event::KeeperStart { node } => self.keeper_start(node),
            Event::KeeperThaw { node } => self.keeper_thaw(node),
            Event::KeeperRoom { node } => self.keeper_room(node),
            Event::KeeperSync { node, .. } => self.keeper_sync(node),
            Event::Spawn { node, key, .. } => self.spawn(node, key),
            Event::MainEnds { process, serial } => {
                let found = &self.truth.processes[process];
                if found.serial == serial {
                    let status = self.plan.jobs[found.job].status;
                    self.main_ends(process, status);
                }
            }
            Event::LimitReached { process } => self.limit_reached(process),
            Event::FenceReached { process } => self.fence_reached(process),
            Event::Signalled { process, signal } => self.main_ends(process, signal),
            Event::Reaped { node, process, .. } => self.reaped(node, process),
            Event::TreeEmpty { process } => self.tree_empty(process),
            Event::Emptied { node, process, .. } => self.keeper_closes(node, process),
            Event::NodeBoot { node } => self.node_boot(node),
            Event::NodeFalls { node } => self.node_falls(node),
            other => self.fail("served", format!("nobody takes {other:?}")),
        }
    }

    pub fn controller_thaw(&mut self, c: usize) {
        if !std::mem::take(&mut self.controllers[c].frozen) {
            return;
        }
        self.trace.note(self.now, || format!("controller {c} goes on"));
        self.truth.stalled_ms = self.truth.stalled_ms.max(self.now);
        self.truth.stalls.push((c, self.controllers[c].frozen_ms, self.now));
        let inbox = std::mem::take(&mut self.controllers[c].inbox);
        self.replay(inbox);
    }

    pub fn agent_thaw(&mut self, n: usize, life: u64) {
        if self.nodes[n].life == life && std::mem::take(&mut self.nodes[n].frozen) {
            let inbox = std::mem::take(&mut self.nodes[n].inbox);
            self.replay(inbox);
        }
    }

    pub fn keeper_thaw(&mut self, n: usize) {
        if std::mem::take(&mut self.nodes[n].keeper.frozen) {
            let inbox = std::mem::take(&mut self.nodes[n].keeper.inbox);
            self.replay(inbox);
        }
    }

    /// What came while it stood still, in the order in which it came.
    fn replay(&mut self, inbox: Vec<Event>) {
        for event in inbox {
            self.handle(event);
        }
    }

    fn audit(&mut self) {
        self.at(AUDIT_MS, Event::Audit);
        self.judge(|invariants, world| invariants.audit(world));
        let Some(calm) = self.truth.calm_ms else { return };
        let late = self.now > calm + self.plan.settle_ms();
        if (self.settled() && self.now > calm + 5_000) || late {
            self.over = true;
            self.judge(|invariants, world| invariants.end(world));
        }
    }

    /// The ledger that has applied the most, if it runs and nobody was ever ahead of it.
    pub fn front(&self) -> Option<&docket_core::ledger::Ledger> {
        let first = self.log.entries.partition_point(|entry| entry.applied.is_some());
        self.controllers.iter().find(|c| c.up && c.applied == first).map(|c| &c.ledger)
    }

    fn seen(&self) -> BTreeMap<String, u64> {
        let mut seen = BTreeMap::new();
        let Some(ledger) = self.front() else { return seen };
        let mut count = |what: String| *seen.entry(what).or_default() += 1;
        for job in ledger.jobs_newest_first(None) {
            job.causes()
                .iter()
                .for_each(|cause| count(format!("cause {}", first_word(&cause.what))));
            let Some(ended) = job.state().ended() else { continue };
            count(format!("end {}", first_word(&ended.reason)));
            if let Some(late) = &ended.late {
                count(format!("late {}", first_word(&late.reason)));
            }
        }
        let counters = ledger.counters();
        for (name, n) in [
            ("fact after the end", counters.after_end),
            ("fact repeated", counters.repeated),
            ("fact of another attempt", counters.other_attempt),
            ("fact of the wrong agent", counters.wrong_agent),
            ("fact put off", counters.deferred),
        ] {
            if n > 0 {
                seen.insert(name.to_owned(), n);
            }
        }
        seen
    }

    fn settled(&self) -> bool {
        let Some(ledger) = self.front() else { return false };
        self.client.ops.iter().all(|op| op.over)
            && ledger.live() == 0
            && self.log.pending.is_empty()
            && self.truth.processes.iter().all(|process| !process.lives())
            && self.nodes.iter().all(|node| node.keeper.idle())
            && self.controllers.iter().all(|c| c.applied == self.log.entries.len())
    }
}

/// The variant's name.
fn first_word(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
