//! Events of the keeper: its welcome, facts, manifests, and the answers by which it vouches for
//! the jobs.

use crate::agent::AgentCore;
use crate::event::Action;
use crate::facts::Verdict;
use crate::join::Link;
use crate::leader::GONE;
use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_event::Kind;
use proto::v1::keeper_request::Kind as ToKeeper;

/// The keeper at the other end of the socket.
#[derive(Debug)]
pub struct KeeperView {
    pub(crate) welcome: v1::KeeperWelcome,
    /// Highest record of its journal that is known.
    pub(crate) last_seq: u64,
    /// Lowest record that its journal still holds or will write; 0: it does not tell.
    pub(crate) first_seq: u64,
    /// Its last answer, and when the question was sent: what it vouches for is no younger.
    pub(crate) pong: Option<(v1::KeeperPong, u64)>,
    /// A question without answer yet; only one at a time.
    pub(crate) asked: Option<(u64, u64)>,
    pub(crate) ping_at_ms: u64,
}

impl KeeperView {
    /// When it is asked next; not while it owes an answer.
    pub fn next_ping_ms(&self) -> u64 {
        self.asked.map_or(self.ping_at_ms, |_| u64::MAX)
    }

    /// The lowest record that can be sent again: what is not acknowledged is always there.
    pub(crate) fn holds_from(&self, released: u64) -> u64 {
        match self.first_seq {
            0 => released + 1,
            first => first.min(released + 1),
        }
    }
}

impl AgentCore {
    pub(crate) fn hear_keeper(&mut self, event: v1::KeeperEvent, now_ms: u64) {
        match event.kind {
            Some(Kind::Welcome(welcome)) => self.keeper_welcomed(welcome, now_ms),
            Some(Kind::Facts(facts)) => self.relay_facts(facts),
            Some(Kind::Manifest(manifest)) => {
                self.keeper_reaches(manifest.last_seq);
                self.manifest_arrived(manifest);
            }
            Some(Kind::Pong(pong)) => {
                self.keeper_reaches(pong.last_seq);
                self.keeper_begins_at(pong.first_seq, now_ms);
                self.keeper_answered(pong);
            }
            Some(Kind::Problem(v1::KeeperProblem { message })) => {
                self.out.push(Action::Warn(format!("keeper: {message}")));
            }
            Some(Kind::NotJournalled(exit)) => self.relay_volatile(exit),
            None => {}
        }
    }

    fn keeper_welcomed(&mut self, welcome: v1::KeeperWelcome, now_ms: u64) {
        self.relay.keeper_is_at(welcome.acked);
        self.put_off.forget();
        // It tells those of its own again.
        self.unjournalled.clear();
        self.keeper_trouble.clear();
        self.keeper = Some(KeeperView {
            last_seq: welcome.next_seq.saturating_sub(1),
            first_seq: welcome.first_seq,
            welcome,
            pong: None,
            asked: None,
            ping_at_ms: now_ms,
        });
        self.plan_first_sweep(now_ms);
        self.ping_keeper_if_due(now_ms);
        match &self.link {
            // Orders given to the lost connection may be lost, the journal may be another one:
            // a join with its whole manifest settles all of that.
            Link::Joining(session) | Link::Joined(session) => {
                self.give_up(session.no, "the keeper was away", now_ms);
            }
            _ => self.join_if_ready(now_ms),
        }
    }

    pub(crate) fn keeper_lost(&mut self) {
        if self.keeper.take().is_some() {
            self.out.push(Action::Warn("lost the keeper's socket; jobs go on".to_owned()));
        }
        self.relay.end();
        self.put_off.forget();
        for run in self.orders.drop_all() {
            self.out_of_place.remember(&run);
        }
        self.asks.forget_all();
        // It may have left with these unread.
        self.refuse_untaken();
    }

    /// Where no keeper is left its controller hears of it at once: until then it sends jobs.
    pub(crate) fn keeper_in_trouble(&mut self, why: String, now_ms: u64) {
        if self.keeper_trouble == why {
            return;
        }
        if !why.is_empty() {
            self.out.push(Action::Warn(why.clone()));
        }
        self.keeper_trouble = why;
        if let (Link::Joined(session), None) = (&self.link, &self.keeper) {
            let no = session.no;
            let beat = self.heartbeat(now_ms);
            self.tell_leader(no, Up::Heartbeat(beat));
        }
    }

    fn relay_facts(&mut self, facts: v1::Facts) {
        self.keeper_reaches(facts.to);
        let Link::Joined(session) = &self.link else { return };
        let no = session.no;
        match self.relay.offer(&facts) {
            Verdict::Send => self.tell_leader(no, Up::Facts(facts)),
            Verdict::Drop => {}
            Verdict::Ask(from) => self.tell_keeper(ToKeeper::Resend(v1::KeeperResend { from })),
        }
    }

    /// An exit that the keeper could not journal: the controller's log is its only durability. It
    /// is held here and goes up in every session until this keeper is gone, for nothing
    /// acknowledges it; to take it twice changes nothing.
    fn relay_volatile(&mut self, exit: v1::KeeperVolatileExit) {
        let Some(finish) = exit.finish else { return };
        if self.unjournalled.iter().any(|held| held.attempt == finish.attempt) {
            return; // told again at our hello
        }
        let text = "the keeper could not journal an exit; it is durable once the controller has it";
        self.out.push(Action::Warn(text.to_owned()));
        self.unjournalled.push(finish);
        self.tell_unjournalled(self.unjournalled.len() - 1);
    }

    /// Sends the held exits from the `first` on, at a position that is acknowledged already, where
    /// they are taken by their meaning. While nothing is acknowledged they wait for that.
    pub(crate) fn tell_unjournalled(&mut self, first: usize) {
        let (Link::Joined(session), Some(keeper)) = (&self.link, &self.keeper) else { return };
        let (no, seq) = (session.no, self.relay.acked());
        if seq == 0 {
            return;
        }
        let journal_id = keeper.welcome.journal_id.clone();
        for finish in self.unjournalled.iter().skip(first).cloned().collect::<Vec<_>>() {
            let fact = v1::Fact { seq, kind: Some(v1::fact::Kind::Finish(finish)) };
            let journal_id = journal_id.clone();
            let facts = v1::Facts { journal_id, from: seq, to: seq, facts: vec![fact] };
            self.tell_leader(no, Up::Facts(facts));
        }
    }

    fn keeper_answered(&mut self, pong: v1::KeeperPong) {
        let Some(keeper) = &mut self.keeper else { return };
        if let Some((nonce, sent_ms)) = keeper.asked
            && nonce == pong.nonce
        {
            keeper.asked = None;
            keeper.pong = Some((pong, sent_ms));
        }
    }

    /// The open question was never sent; without this no other would ever be asked.
    pub(crate) fn forget_keeper_question(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.asked = None;
        }
    }

    pub(crate) fn ping_keeper_if_due(&mut self, now_ms: u64) {
        // Twice per beat, so that an answer at hand is always younger than one interval.
        let period_ms = (self.config.heartbeat_interval_ms / 2).max(1);
        let Some(keeper) = &mut self.keeper else { return };
        if keeper.asked.is_some() || now_ms < keeper.ping_at_ms {
            return;
        }
        keeper.ping_at_ms = now_ms + period_ms;
        let nonce = self.asks.fresh_nonce();
        keeper.asked = Some((nonce, now_ms));
        self.tell_keeper(ToKeeper::Ping(v1::KeeperPing { nonce }));
    }

    /// Its journal may let go of acknowledged records just as an older controller asks for them: the
    /// next join tells that they are gone.
    fn keeper_begins_at(&mut self, first_seq: u64, now_ms: u64) {
        let Some(keeper) = &mut self.keeper else { return };
        keeper.first_seq = keeper.first_seq.max(first_seq);
        let Link::Joined(session) = &self.link else { return };
        if self.relay.waits_for().is_some_and(|asked| asked < first_seq) {
            let no = session.no;
            self.give_up(no, GONE, now_ms);
        }
    }

    fn keeper_reaches(&mut self, seq: u64) {
        if let Some(keeper) = &mut self.keeper {
            keeper.last_seq = keeper.last_seq.max(seq);
        }
    }
}
