//! Messages from the controller: which are taken, and where each goes.

use crate::agent::AgentCore;
use crate::event::{Action, SessionNo};
use crate::join::Link;
use crate::orders::Order;
use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_request::Kind as ToKeeper;
use proto::v1::leader_message::Kind;

/// Why a session ends whose controller asks for facts that went a moment ago: the next join tells
/// that they are gone.
pub(crate) const GONE: &str = "the facts it asks for are gone from the keeper's journal";

impl AgentCore {
    pub(crate) fn hear_leader(&mut self, no: SessionNo, message: v1::LeaderMessage, now_ms: u64) {
        let v1::LeaderMessage { term, incarnation, kind } = message;
        let Some(kind) = kind else { return };
        match &mut self.link {
            Link::Joining(session) | Link::Joined(session) if session.no == no => {
                session.silent_ms = 0;
            }
            Link::Leaving { session, .. } if *session == no => {
                if matches!(kind, Kind::Goodbye(_)) {
                    self.goodbye_answered(no);
                }
                return;
            }
            // Of a session that was given up: refused unread.
            _ => return,
        }
        match kind {
            Kind::Welcome(welcome) => self.welcomed(no, term, &welcome, now_ms),
            Kind::Refused(refused) => self.refused(no, term, refused, now_ms),
            Kind::Ping(v1::Ping { nonce }) => self.tell_leader(no, Up::Pong(v1::Pong { nonce })),
            kind => {
                if self.admits(no, term, incarnation, &kind) {
                    self.obey(no, kind, now_ms);
                }
            }
        }
    }

    /// Orders count only from the leader of the highest term, within the session they name.
    fn admits(&mut self, no: SessionNo, term: u64, incarnation: u64, kind: &Kind) -> bool {
        let Link::Joined(session) = &mut self.link else {
            return self.refuse(no, format!("{} before the welcome", name_of(kind)));
        };
        if session.incarnation != incarnation {
            let own = session.incarnation;
            let why = format!("{} for incarnation {incarnation}, not {own}", name_of(kind));
            return self.refuse(no, why);
        }
        if term < self.saved.term {
            let why = format!("{} of term {term}, seen was {}", name_of(kind), self.saved.term);
            return self.refuse(no, why);
        }
        if term > self.saved.term {
            self.saved.term = term;
            self.out.push(Action::Save(self.saved.clone()));
        }
        true
    }

    /// Refuses a message; tells the first of a session and then ever fewer, so that a stale
    /// leader cannot fill the log.
    pub(crate) fn refuse(&mut self, no: SessionNo, what: String) -> bool {
        if let Link::Joining(session) | Link::Joined(session) = &mut self.link {
            session.refused += 1;
            if session.refused.is_power_of_two() {
                let count = session.refused;
                self.out.push(Action::Warn(format!(
                    "session {}: refused a message of the controller ({what}); {count} so far",
                    no.0
                )));
            }
        }
        false
    }

    fn obey(&mut self, no: SessionNo, kind: Kind, now_ms: u64) {
        match kind {
            Kind::Run(order) => self.take_order(Order::Run(Box::new(order)), now_ms),
            Kind::Kill(order) => self.take_order(Order::Kill(order), now_ms),
            Kind::Suspend(order) => self.take_order(Order::Suspend(order), now_ms),
            Kind::Resume(order) => self.take_order(Order::Resume(order), now_ms),
            Kind::Limit(order) => self.take_order(Order::Limit(order), now_ms),
            Kind::Forget(order) => self.take_order(Order::Forget(order), now_ms),
            Kind::OpenBulk(v1::OpenBulk { request }) => {
                self.out.push(Action::OpenBulk { session: no, request });
            }
            Kind::SendManifest(v1::SendManifest { nonce }) => self.ask_manifest_for(nonce),
            Kind::Ack(ack) => self.acknowledged(no, &ack),
            Kind::Heartbeat(answer) => self.heartbeat_answered(no, answer),
            Kind::Resend(resend) => self.resend(no, &resend, now_ms),
            Kind::Later(later) => self.later(&later, now_ms),
            // Handled before the fence, or only while leaving.
            Kind::Welcome(_) | Kind::Refused(_) | Kind::Ping(_) | Kind::Goodbye(_) => {}
        }
    }

    fn acknowledged(&mut self, no: SessionNo, ack: &v1::Ack) {
        if !self.speaks_of_our_journal(&ack.journal_id) {
            return;
        }
        let first = self.relay.acked() == 0;
        if self.relay.acknowledge(ack.to) {
            self.release_to_keeper();
        } else {
            self.refuse(no, format!("acknowledgement of fact {}, which was not sent", ack.to));
        }
        if first {
            self.tell_unjournalled(0);
        }
    }

    fn resend(&mut self, no: SessionNo, resend: &v1::ResendFrom, now_ms: u64) {
        if !self.speaks_of_our_journal(&resend.journal_id) {
            return;
        }
        let acked = self.relay.acked();
        let released = self.relay.released();
        let first = self.keeper.as_ref().map_or(0, |keeper| keeper.holds_from(released));
        match self.relay.rewind(resend.from, first) {
            Some(from) => {
                self.tell_keeper(ToKeeper::Resend(v1::KeeperResend { from }));
                if self.relay.acked() < acked {
                    // What went at a position that it does not have was not taken.
                    self.tell_unjournalled(0);
                }
            }
            None if self.let_go_since_join(resend.from) => self.give_up(no, GONE, now_ms),
            None => {
                let what = format!("wants facts from {}, but acknowledged to {acked}", resend.from);
                self.refuse(no, what);
            }
        }
    }

    /// The journal let go of that record after this session's join told that it is there.
    fn let_go_since_join(&self, from: u64) -> bool {
        let (Link::Joined(session), Some(keeper)) = (&self.link, &self.keeper) else {
            return false;
        };
        (session.first_seq..keeper.first_seq).contains(&from)
    }

    pub(crate) fn speaks_of_our_journal(&self, journal_id: &[u8]) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.welcome.journal_id == journal_id)
    }
}

fn name_of(kind: &Kind) -> &'static str {
    match kind {
        Kind::Welcome(_) => "welcome",
        Kind::Run(_) => "run",
        Kind::Kill(_) => "kill",
        Kind::Suspend(_) => "suspend",
        Kind::Resume(_) => "resume",
        Kind::Limit(_) => "limit",
        Kind::Forget(_) => "forget",
        Kind::OpenBulk(_) => "open-bulk",
        Kind::SendManifest(_) => "send-manifest",
        Kind::Ping(_) => "ping",
        Kind::Ack(_) => "ack",
        Kind::Heartbeat(_) => "heartbeat answer",
        Kind::Goodbye(_) => "goodbye answer",
        Kind::Refused(_) => "refusal",
        Kind::Resend(_) => "resend",
        Kind::Later(_) => "later",
    }
}
