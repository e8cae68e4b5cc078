//! A data directory in which nothing can start: its agent says so at once, and refuses the runs that
//! come all the same. Nobody else may be left to do that: a keeper whose directory was deleted leaves
//! when it has nothing to do.

use crate::agent::AgentCore;
use crate::event::Action;
use crate::join::Link;
use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_request::Kind as ToKeeper;

/// Runs of one session that no keeper may have taken and that are remembered. The window of a
/// session's orders fits; past it the next join's manifest says what never arrived.
const UNTAKEN_MAX: usize = 16_384;

const ENOENT: i32 = 2;

/// Whether anything can start here, and which runs nobody will start.
#[derive(Debug, Default)]
pub struct Out {
    /// Why nothing can; empty: it can.
    why: String,
    /// Runs of this session that were refused here, or that found no keeper.
    untaken: Vec<(v1::AttemptRef, v1::Token)>,
}

impl Out {
    /// Why no run can start here before somebody acts; empty: runs can.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The next join's manifest settles what became of every order before it.
    pub fn forget(&mut self) {
        self.untaken.clear();
    }

    /// No keeper started this run of the present session, and none will.
    pub(crate) fn remember(&mut self, run: &v1::RunOrder) {
        if let (Some(attempt), Some(token)) = (run.attempt, run.token)
            && self.untaken.len() < UNTAKEN_MAX
        {
            self.untaken.push((attempt, token));
        }
    }

    /// Nothing at all can start: it is no fault of the job, and costs it no try.
    fn failure(&self) -> v1::StartFailure {
        v1::StartFailure {
            step: "data-directory".to_owned(),
            errno: ENOENT,
            message: format!("data-directory: {}", self.why),
            node_fault: true,
            node_out: true,
            ..v1::StartFailure::default()
        }
    }
}

impl AgentCore {
    /// The directory was looked at. The controller hears of a change at once: until then it sends jobs.
    pub(crate) fn directory_is(&mut self, why: String, now_ms: u64) {
        if self.out_of_place.why == why {
            return;
        }
        if why.is_empty() {
            self.out.push(Action::Note("the data directory is in its place again".to_owned()));
        } else if self.keeper_trouble != why {
            self.out.push(Action::Warn(why.clone()));
        }
        self.out_of_place.why = why;
        if let Link::Joined(session) = &self.link {
            let no = session.no;
            let beat = self.heartbeat(now_ms);
            self.tell_leader(no, Up::Heartbeat(beat));
        }
        if self.keeper.is_none() {
            self.refuse_untaken();
        }
    }

    /// A run that comes while nothing can start. It is in a keeper's journal if there is one.
    pub(crate) fn refuse_run(&mut self, run: &v1::RunOrder) {
        self.out_of_place.remember(run);
        if self.keeper.is_none() {
            return self.refuse_untaken();
        }
        self.tell_keeper(ToKeeper::Run(v1::KeeperRun {
            order_id: run.order_id,
            attempt: run.attempt,
            token: run.token,
            refuse: Some(self.out_of_place.failure()),
            ..v1::KeeperRun::default()
        }));
    }

    /// A run that found no keeper: nobody took it, and if nobody can it is refused.
    pub(crate) fn run_finds_no_keeper(&mut self, run: &v1::RunOrder) {
        self.out_of_place.remember(run);
        self.refuse_untaken();
    }

    /// Without a keeper: tells that these runs will never start, at a position that is acknowledged
    /// already, where a fact is taken by its meaning. A journal of which nothing is acknowledged has
    /// none; then the next join says what never arrived.
    pub(crate) fn refuse_untaken(&mut self) {
        let Link::Joined(session) = &self.link else { return };
        let (no, journal_id, seq) = (session.no, session.journal_id.clone(), self.relay.acked());
        if self.out_of_place.why.is_empty() || self.out_of_place.untaken.is_empty() || seq == 0 {
            return;
        }
        let failure = self.out_of_place.failure();
        for (attempt, token) in std::mem::take(&mut self.out_of_place.untaken) {
            let refused = v1::RefusedFact {
                attempt: Some(attempt),
                token: Some(token),
                failure: Some(failure.clone()),
            };
            let fact = v1::Fact { seq, kind: Some(v1::fact::Kind::Refused(refused)) };
            let facts = vec![fact];
            let journal_id = journal_id.clone();
            self.tell_leader(no, Up::Facts(v1::Facts { journal_id, from: seq, to: seq, facts }));
        }
    }
}
