//! Life cycle of sessions: dial, join, welcome or refusal, loss, goodbye (design 5).

use crate::agent::AgentCore;
use crate::event::{Action, End, SessionNo, Target};
use crate::lease::Echoes;
use proto::v1;
use proto::v1::GoodbyeKind;
use proto::v1::agent_message::Kind as Up;

/// Where the agent stands towards the controller.
#[derive(Debug)]
pub enum Link {
    /// No connection; the next dial is at that time.
    Apart {
        /// When.
        dial_at_ms: u64,
        /// Whom.
        target: Target,
    },
    /// The shell dials.
    Dialling { session: SessionNo },
    /// The stream is open, but without a keeper there is nothing to join with.
    Unready { session: SessionNo, address: String },
    /// The join is sent and not answered.
    Joining(Session),
    /// The join was accepted.
    Joined(Session),
    /// Goodbye is said, its answer awaited.
    Leaving { session: SessionNo, until_ms: u64 },
    /// Over.
    Ended,
}

/// A session that sent its join.
#[derive(Debug)]
pub struct Session {
    pub(crate) no: SessionNo,
    pub(crate) incarnation: u64,
    /// Time without a word of the peer in which this agent ran.
    pub(crate) silent_ms: u64,
    /// The schedule is fixed: a late beat does not move the next one.
    pub(crate) next_beat_ms: u64,
    /// Messages that it refused.
    pub(crate) refused: u64,
    /// What the leases of this session live on.
    pub(crate) echoes: Echoes,
    /// The first record of the keeper's journal, as its join told it.
    pub(crate) first_seq: u64,
    /// The keeper's journal, as its join told it.
    pub(crate) journal_id: Vec<u8>,
}

/// Leader hints followed at once before the back-off applies: voters may point at each other.
const REDIRECTS_MAX: u32 = 3;

/// How long a stopping agent waits for the answer to its goodbye.
const GOODBYE_WAIT_MS: u64 = 1_000;

impl AgentCore {
    pub(crate) fn dial_if_due(&mut self, now_ms: u64) {
        let Link::Apart { dial_at_ms, target } = &self.link else { return };
        if now_ms < *dial_at_ms {
            return;
        }
        let target = target.clone();
        self.dials += 1;
        let session = SessionNo(self.dials);
        self.link = Link::Dialling { session };
        self.out.push(Action::Dial { session, target });
    }

    pub(crate) fn connected(&mut self, session: SessionNo, address: String, now_ms: u64) {
        if !matches!(self.link, Link::Dialling { session: no } if no == session) {
            return;
        }
        self.link = Link::Unready { session, address };
        self.join_if_ready(now_ms);
    }

    /// Joins once both the stream and the keeper are there.
    pub(crate) fn join_if_ready(&mut self, now_ms: u64) {
        let (Link::Unready { session, address }, Some(keeper)) = (&self.link, &self.keeper) else {
            return;
        };
        let (no, address) = (*session, address.clone());
        self.saved.incarnation += 1;
        let join = v1::Join {
            agent_id: self.saved.agent_id.clone(),
            name: self.config.name.clone(),
            incarnation: self.saved.incarnation,
            process_id: self.config.process_id.clone(),
            journal_id: keeper.welcome.journal_id.clone(),
            boot_id: keeper.welcome.boot_id.clone(),
            cluster_id: self.saved.cluster_id.clone(),
            generation: self.saved.generation,
            term_seen: self.saved.term,
            version: self.config.version.clone(),
            protocol: proto::PROTOCOL,
            level: proto::LEVEL,
            resources: Some(v1::NodeResources {
                limits: keeper.welcome.limits.clone(),
                limits_by: keeper.welcome.limits_by.clone(),
                ..self.config.resources.clone()
            }),
            next_seq: keeper.last_seq + 1,
            first_seq: keeper.holds_from(self.relay.released()),
            acked_seq: self.relay.released(),
            heartbeat_interval_ms: self.config.heartbeat_interval_ms,
            address,
        };
        let (first_seq, journal_id) = (join.first_seq, join.journal_id.clone());
        // Durable first: an incarnation that was ever shown must never be used again.
        self.out.push(Action::Save(self.saved.clone()));
        self.tell_leader(no, Up::Join(join));
        self.link = Link::Joining(Session {
            no,
            incarnation: self.saved.incarnation,
            silent_ms: 0,
            next_beat_ms: now_ms,
            refused: 0,
            echoes: Echoes::default(),
            first_seq,
            journal_id,
        });
    }

    pub(crate) fn welcomed(
        &mut self,
        no: SessionNo,
        term: u64,
        welcome: &v1::Welcome,
        now_ms: u64,
    ) {
        if !matches!(&self.link, Link::Joining(session) if session.no == no) {
            return;
        }
        if let Err(why) = self.accept_epoch(term, welcome) {
            self.give_up(no, &why, now_ms);
            return;
        }
        let Link::Joining(mut session) = std::mem::replace(&mut self.link, Link::Ended) else {
            return;
        };
        session.next_beat_ms = now_ms;
        self.link = Link::Joined(session);
        self.heartbeat_timeout_ms = welcome.heartbeat_timeout_ms;
        self.redirects = 0;
        self.told.clear();
        self.out.push(Action::ReleaseBefore(no));
        self.out.push(Action::Note(format!(
            "joined cluster {} as {} (incarnation {}, term {term})",
            self.saved.cluster_id, self.config.name, self.saved.incarnation
        )));
        self.begin_reconciliation();
    }

    /// Facts from the first unacknowledged on, and the whole manifest.
    fn begin_reconciliation(&mut self) {
        if self.keeper.is_none() {
            return; // its return makes a new session
        }
        let from = self.relay.begin();
        self.tell_keeper(v1::keeper_request::Kind::Resend(v1::KeeperResend { from }));
        self.tell_unjournalled(0);
        self.ask_manifest_of_join();
    }

    /// Takes over a higher (generation, term); a lower one or another cluster is refused.
    fn accept_epoch(&mut self, term: u64, welcome: &v1::Welcome) -> Result<(), String> {
        let seen = &self.saved;
        if welcome.cluster_id.is_empty() {
            return Err("the controller names no cluster".to_owned());
        }
        if !seen.cluster_id.is_empty() && seen.cluster_id != welcome.cluster_id {
            return Err(format!(
                "this node belongs to cluster {mine}, the controller that answers is of cluster \
                 {theirs}: no order of it is taken, and no job is touched. Name {mine}'s own in \
                 `controllers`; or, to serve {theirs}, give this agent a data directory of its own, or \
                 remove agent.state in this one where {mine} is gone for good",
                mine = seen.cluster_id,
                theirs = welcome.cluster_id
            ));
        }
        if (welcome.generation, term) < (seen.generation, seen.term) {
            return Err(format!(
                "the controller is stale: generation {} term {term}, seen were {} and {}",
                welcome.generation, seen.generation, seen.term
            ));
        }
        let mut saved = self.saved.clone();
        saved.cluster_id.clone_from(&welcome.cluster_id);
        saved.generation = welcome.generation;
        saved.term = term;
        if saved != self.saved {
            self.saved = saved.clone();
            self.out.push(Action::Save(saved));
        }
        Ok(())
    }

    pub(crate) fn refused(&mut self, no: SessionNo, term: u64, no_thanks: v1::Refused, now: u64) {
        let v1::Refused { reason, fatal, leader } = no_thanks;
        // A leader that was deposed without knowing it must not end this agent for good.
        let stale = term != 0 && term < self.saved.term;
        if fatal && !stale {
            self.link = Link::Ended;
            self.out.push(Action::End(End::Refused { reason }));
            return;
        }
        let joined = matches!(self.link, Link::Joined(_));
        self.end_session_duties();
        self.out.push(if joined { Action::Abandon(no) } else { Action::Release(no) });
        if !leader.is_empty() && self.redirects < REDIRECTS_MAX {
            self.redirects += 1;
            self.link = Link::Apart { dial_at_ms: now, target: Target::Leader(leader) };
            return;
        }
        self.warn_once(format!("the controller does not take this agent now: {reason}"));
        self.part(now);
    }

    pub(crate) fn disconnected(&mut self, session: SessionNo, why: &str, now_ms: u64) {
        match &self.link {
            Link::Dialling { session: no } | Link::Unready { session: no, .. }
                if *no == session =>
            {
                self.out.push(Action::Release(session));
            }
            Link::Joining(current) | Link::Joined(current) if current.no == session => {
                self.end_session_duties();
                self.out.push(Action::Abandon(session));
            }
            Link::Leaving { session: no, .. } if *no == session => {
                self.end();
                return;
            }
            _ => return,
        }
        self.warn_once(format!("no session with the controller: {why}"));
        self.part(now_ms);
    }

    pub(crate) fn not_saved(&mut self, why: &str, now_ms: u64) {
        let text = format!("cannot write the agent's state file, so no session: {why}");
        // What the list had behind the save was not carried out: nobody answers it.
        self.forget_keeper_question();
        self.orders.forget_look_up();
        match &self.link {
            Link::Joining(session) | Link::Joined(session) => {
                self.give_up(session.no, &text, now_ms);
            }
            Link::Dialling { session } => {
                self.out.push(Action::Release(*session));
                self.warn_once(text);
                self.part(now_ms);
            }
            _ => self.warn_once(text),
        }
    }

    /// Says goodbye, stops reading, and dials again later; the socket stays open meanwhile.
    pub(crate) fn give_up(&mut self, no: SessionNo, why: &str, now_ms: u64) {
        self.warn_once(format!("gave up a session with the controller: {why}"));
        self.end_session_duties();
        let kind = GoodbyeKind::Reconnect.into();
        self.tell_leader(no, Up::Goodbye(v1::Goodbye { kind }));
        self.out.push(Action::Abandon(no));
        self.part(now_ms);
    }

    pub(crate) fn give_up_if_silent(&mut self, now_ms: u64) {
        let (Link::Joining(session) | Link::Joined(session)) = &self.link else { return };
        // Never shorter than the controller's own time-out, nor than a few missed answers.
        let patience_ms = self.heartbeat_timeout_ms.max(3 * self.config.heartbeat_interval_ms);
        if session.silent_ms >= patience_ms {
            let why = format!("no word for {} ms", session.silent_ms);
            self.give_up(session.no, &why, now_ms);
        }
    }

    pub(crate) fn stop(&mut self, now_ms: u64) {
        match &self.link {
            Link::Joining(session) | Link::Joined(session) => {
                let no = session.no;
                self.end_session_duties();
                let kind = GoodbyeKind::Restart.into();
                self.tell_leader(no, Up::Goodbye(v1::Goodbye { kind }));
                self.link = Link::Leaving { session: no, until_ms: now_ms + GOODBYE_WAIT_MS };
            }
            Link::Leaving { .. } | Link::Ended => {}
            Link::Apart { .. } | Link::Dialling { .. } | Link::Unready { .. } => self.end(),
        }
    }

    pub(crate) fn goodbye_answered(&mut self, no: SessionNo) {
        if matches!(self.link, Link::Leaving { session, .. } if session == no) {
            self.end();
        }
    }

    pub(crate) fn leave_if_due(&mut self, now_ms: u64) {
        if matches!(self.link, Link::Leaving { until_ms, .. } if now_ms >= until_ms) {
            self.end();
        }
    }

    fn end(&mut self) {
        self.link = Link::Ended;
        self.out.push(Action::End(End::Stopped));
    }

    /// Refuses what the old session still has queued, before any new join is built.
    fn end_session_duties(&mut self) {
        self.relay.end();
        self.put_off.forget();
        self.orders.clear();
        self.out_of_place.forget();
        self.asks.forget_session();
    }

    fn part(&mut self, now_ms: u64) {
        self.redirects = 0;
        self.link = Link::Apart {
            dial_at_ms: now_ms + self.backoff.next_ms(),
            target: Target::Listed(self.dials),
        };
    }
}
