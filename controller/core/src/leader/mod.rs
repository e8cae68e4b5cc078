//! What only a leader does: joins and manifests, facts, liveness, orders, planning, timers.
//! It never applies anything: it reads the ledger, proposes commands, and sends orders that follow
//! from what is applied (design 2, 3, 5). Pure: time and events come in, actions go out.
//! Begin reading with [`Leader::step`], then `reign`, then `join`.

mod desired;
mod dispatch;
mod facts;
mod heartbeat;
mod join;
mod lease;
mod life;
mod liveness;
mod manifest;
mod newcomer;
mod outcomes;
mod pace;
mod placing;
mod reign;
mod session;
mod storm;
mod timers;
mod turn;
mod views;

#[cfg(test)]
mod tests;

pub use desired::{Want, desired};
pub use life::NodeState;
pub use views::NodeView;

use crate::ledger::{Applied, Ledger};
use proto::v1::{self, AgentMessage, Join, LeaderMessage};
use reign::Reign;
use std::collections::BTreeSet;
use turn::Turn;

/// One stream of an agent, numbered by the shell; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SessionId(pub u64);

/// What the shell's socket wrapper saw first when a session ended (design 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionEnd {
    /// The peer's end of file.
    Fin,
    /// The peer's reset.
    Reset,
    /// We closed it.
    Local,
    /// Anything that proves nothing: the stream ended and its connection did not, the network
    /// failed, or the shell's own reader had stalled.
    Other,
}

/// What happens to a leader. Times are the `now_ms` of [`Leader::step`].
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// This controller leads from `term` on; its first entry is not applied yet.
    Elected {
        /// Raft term.
        term: u64,
    },
    /// It leads no longer: every session is sent away.
    Deposed,
    /// An entry was applied. The caller hands over every entry, in log order.
    Applied {
        /// Log index of the entry.
        index: u64,
        /// Its commands.
        commands: &'a [v1::Command],
        /// What they did.
        applied: &'a Applied,
    },
    /// An agent opened a stream and sent its Join.
    Opened {
        /// The new stream.
        session: SessionId,
        /// Its first message.
        join: Join,
        /// Where it comes from, for people.
        peer_addr: String,
    },
    /// A later message of that stream.
    Message {
        /// The stream.
        session: SessionId,
        /// What it says.
        message: AgentMessage,
    },
    /// The stream ended, and all that it had said was handed over before.
    Closed {
        /// The stream.
        session: SessionId,
        /// What ended it.
        end: SessionEnd,
    },
    /// A quorum confirmed that this node led at some moment after [`Action::Confirm`] of that round.
    /// A check that fails feeds nothing.
    Confirmed {
        /// Which.
        round: u64,
    },
    /// Time passed: every [`LeaderConfig::tick_ms`] or so.
    Tick {
        /// The time on the wall, UTC ms: only begin times go by it.
        wall_ms: u64,
    },
}

/// What the shell does next, in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Hand this to the proposer. It may be lost; the leader looks again.
    Propose(v1::Command),
    /// Put this on the session's outgoing channel; if it is full, close the session.
    Send {
        /// The stream.
        session: SessionId,
        /// What to say.
        message: LeaderMessage,
    },
    /// Ask a quorum whether this node still leads (a linearizable read), and answer with
    /// [`Event::Confirmed`]. It may be lost; the leader asks again with a higher number, and the
    /// answer to a higher one stands for all below.
    Confirm {
        /// Number of the question.
        round: u64,
    },
    /// Close the stream once what was sent before is out; more of it is ignored.
    Close {
        /// The stream.
        session: SessionId,
    },
}

/// Times of the leader's own duties, in milliseconds. Policies live in the ledger instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaderConfig {
    /// How often the shell sends [`Event::Tick`]. Must be well below `rdhup_confirm_ms`.
    pub tick_ms: u64,
    /// A close is taken for the death of the agent only after this long without a Join of the same
    /// process (design 3, RDHUP).
    pub rdhup_confirm_ms: u64,
    /// How long the older of two sessions of one agent id has to answer a Ping (design 5).
    pub ping_ms: u64,
    /// A proposal that is not applied after this long is taken for lost: the commands are safe to
    /// repeat, and a stuck flag would stop a duty for good.
    pub proposal_ms: u64,
}

impl Default for LeaderConfig {
    fn default() -> Self {
        LeaderConfig { tick_ms: 50, rdhup_confirm_ms: 300, ping_ms: 2_000, proposal_ms: 10_000 }
    }
}

/// Messages that may wait on one session's way out: the largest burst is one order for each attempt
/// that a node holds, and a node of this many attempts reads faster than it starts them.
pub const OUTBOX_MAX: usize = 4_096;

/// The leader's duties as a state machine. It holds nothing that a restart may not lose.
#[derive(Debug)]
pub struct Leader {
    config: LeaderConfig,
    /// Only while leading.
    reign: Option<Reign>,
    /// Rounds of confirmation that were begun in all terms.
    rounds: u64,
}

impl Leader {
    /// A controller that does not lead.
    pub fn new(config: LeaderConfig) -> Self {
        Leader { config, reign: None, rounds: 0 }
    }

    /// Takes one event at `now_ms` (monotonic, never going back) and says what to do.
    pub fn step(&mut self, ledger: &Ledger, now_ms: u64, event: Event<'_>) -> Vec<Action> {
        let mut turn = Turn::new(ledger, now_ms, self.config);
        match (event, &mut self.reign) {
            (Event::Elected { term }, _) => {
                self.depose(&mut turn);
                let reign = self.reign.insert(Reign::new(term, now_ms, self.rounds));
                // Its first entry may have been applied before the shell heard of the election.
                if ledger.term() == term {
                    reign.begin(&mut turn);
                }
            }
            (Event::Deposed, _) => self.depose(&mut turn),
            (event, Some(reign)) => reign.step(&mut turn, event),
            (Event::Opened { session, .. }, None) => turn.send_away(session, join::not_leading()),
            (_, None) => {}
        }
        turn.into_actions()
    }

    /// Whether this controller leads.
    pub fn leads(&self) -> bool {
        self.reign.is_some()
    }

    /// Agents that get orders now: judged, heard, with a disk that takes runs.
    pub fn reachable(&self) -> BTreeSet<String> {
        self.reign.as_ref().map(Reign::reachable).unwrap_or_default()
    }

    /// Every agent of the ledger as this leader sees it, by agent id. Empty unless leading.
    pub fn node_views(&self, ledger: &Ledger, now_ms: u64) -> Vec<NodeView> {
        self.reign.as_ref().map(|reign| views::all(reign, ledger, now_ms)).unwrap_or_default()
    }

    /// How long the longest unknown task is so, in led time up to now: it goes on while the log is
    /// quiet. 0: none is. Elsewhere than at the leader, up to the last applied entry.
    pub fn unknown_oldest_ms(&self, ledger: &Ledger, now_ms: u64) -> u64 {
        let led = self.reign.as_ref().and_then(|reign| reign.led_ms(now_ms));
        let led = led.unwrap_or(0).max(ledger.led());
        ledger.oldest_unknown_led().map_or(0, |since| led.saturating_sub(since))
    }

    fn depose(&mut self, turn: &mut Turn<'_>) {
        if let Some(reign) = self.reign.take() {
            self.rounds = reign.leases.round();
            reign.end(turn);
        }
    }
}
