//! How an attempt ended: reasons, raw wait statuses, and which reason wins (design 3).

use proto::v1::{self, ExitKind, finish_fact::End};

/// Why a task ended. Each has its own fields; none is shown as another.
#[derive(Clone, PartialEq, Debug)]
pub enum ExitReason {
    /// The main process exited; the code is in the wait status.
    ExitCode,
    /// A signal ended the main process; it is in the wait status.
    Signal,
    /// Its keeper ended it at its time limit.
    TimeLimit,
    /// The kernel ended it for memory.
    OutOfMemory,
    /// Ended on request.
    Cancelled {
        /// Who asked.
        by: String,
    },
    /// Its agent's process died while it ran.
    AgentDied,
    /// Its node was rebooted.
    NodeRebooted,
    /// Nobody knew of it until its time to live ran out.
    Lost,
    /// Its node was cut off until its lease ran out, and ended it then: another form of lost.
    LeaseOver,
    /// Its node came back without it.
    Vanished,
    /// Its tree ended and nobody could read how.
    UnknownStatus {
        /// Nobody even knows whether it started.
        started_unknown: bool,
    },
    /// It could not be started.
    StartFailed(v1::StartFailure),
    /// A job it waited for ended otherwise than asked.
    DependencyFailed(v1::DependencyFailure),
}

/// A decoded wait status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitEnd {
    /// Exited with this code, 0 to 255.
    Code(i32),
    /// Ended by this signal.
    Signal {
        /// Its number.
        signal: i32,
        /// A core was dumped.
        core_dumped: bool,
    },
}

/// What a finish fact says, reduced to a verdict.
pub(super) enum Finish {
    /// The task is over.
    Over {
        /// With a success code.
        done: bool,
        /// Why.
        reason: ExitReason,
        /// Raw wait status.
        status: Option<u32>,
    },
    /// Not the job's fault: the attempt is closed and another opened.
    NodeFault(v1::StartFailure),
}

/// Longest text of a failure that the ledger keeps, in bytes: it comes from outside.
const FAILURE_TEXT_MAX: usize = 1024;

impl WaitEnd {
    /// Reads a raw status as wait(2) gives it; `None` for one that is no end (stopped, continued).
    pub fn decode(status: u32) -> Option<WaitEnd> {
        let signal = status & 0x7f;
        match signal {
            0 => Some(WaitEnd::Code(((status >> 8) & 0xff) as i32)),
            0x7f => None,
            _ => Some(WaitEnd::Signal { signal: signal as i32, core_dumped: status & 0x80 != 0 }),
        }
    }
}

impl ExitReason {
    /// The kind on the wire.
    pub fn kind(&self) -> ExitKind {
        match self {
            ExitReason::ExitCode => ExitKind::ExitCode,
            ExitReason::Signal => ExitKind::Signal,
            ExitReason::TimeLimit => ExitKind::TimeLimit,
            ExitReason::OutOfMemory => ExitKind::OutOfMemory,
            ExitReason::Cancelled { .. } => ExitKind::Cancelled,
            ExitReason::AgentDied => ExitKind::AgentDied,
            ExitReason::NodeRebooted => ExitKind::NodeRebooted,
            ExitReason::Lost | ExitReason::LeaseOver => ExitKind::Lost,
            ExitReason::Vanished => ExitKind::Vanished,
            ExitReason::UnknownStatus { .. } => ExitKind::UnknownStatus,
            ExitReason::StartFailed(_) => ExitKind::StartFailed,
            ExitReason::DependencyFailed(_) => ExitKind::DependencyFailed,
        }
    }

    /// Whether it was settled without the agent's word, so that a real outcome may still come.
    pub fn without_word(&self) -> bool {
        matches!(self, ExitReason::AgentDied | ExitReason::Lost | ExitReason::Vanished)
    }

    /// The wire form, with code or signal of the wait status beside it.
    pub fn to_wire(&self, status: Option<u32>) -> v1::Reason {
        let mut reason = v1::Reason { kind: self.kind() as i32, ..v1::Reason::default() };
        match status.and_then(WaitEnd::decode) {
            Some(WaitEnd::Code(code)) => reason.code = Some(code),
            Some(WaitEnd::Signal { signal, core_dumped }) => {
                reason.signal = Some(signal);
                reason.core_dumped = core_dumped;
            }
            None => {}
        }
        match self {
            ExitReason::Cancelled { by } => reason.by = Some(by.clone()),
            ExitReason::StartFailed(failure) => reason.start_failure = Some(failure.clone()),
            ExitReason::DependencyFailed(failure) => reason.dependency = Some(*failure),
            ExitReason::UnknownStatus { started_unknown: true } => {
                reason.detail = Some("started: unknown".to_owned());
            }
            ExitReason::LeaseOver => reason.detail = Some("lease ran out".to_owned()),
            _ => {}
        }
        reason
    }
}

/// Judges a finish fact: a cause for which the keeper signalled a live main process wins, with the
/// wait status beside it; otherwise the natural end. `cancelled_by` is who asked, if anybody did.
pub(super) fn judge(
    fact: &v1::FinishFact,
    success_codes: &[u32],
    cancelled_by: Option<&str>,
) -> Finish {
    let status = match fact.end {
        Some(End::WaitStatus(status)) if WaitEnd::decode(status).is_some() => Some(status),
        _ => None,
    };
    let over = |reason| Finish::Over { done: false, reason, status };
    match fact.killed_for() {
        v1::KillCause::Cancel => {
            return over(ExitReason::Cancelled {
                by: cancelled_by.unwrap_or("its node").to_owned(),
            });
        }
        v1::KillCause::TimeLimit => return over(ExitReason::TimeLimit),
        v1::KillCause::Lease => return over(ExitReason::LeaseOver),
        v1::KillCause::Unspecified | v1::KillCause::Fenced => {}
    }
    if fact.out_of_memory {
        return over(ExitReason::OutOfMemory);
    }
    match &fact.end {
        Some(End::StartFailure(failure)) if failure.node_fault => {
            Finish::NodeFault(trim_failure(failure))
        }
        Some(End::StartFailure(failure)) => over(ExitReason::StartFailed(trim_failure(failure))),
        Some(End::NodeRebooted(true)) => over(ExitReason::NodeRebooted),
        _ => natural(fact, status, success_codes),
    }
}

fn natural(fact: &v1::FinishFact, status: Option<u32>, success_codes: &[u32]) -> Finish {
    match status.and_then(WaitEnd::decode) {
        Some(WaitEnd::Code(code)) => {
            let success = if success_codes.is_empty() {
                code == 0
            } else {
                success_codes.contains(&(code as u32))
            };
            Finish::Over { done: success, reason: ExitReason::ExitCode, status }
        }
        Some(WaitEnd::Signal { .. }) => {
            Finish::Over { done: false, reason: ExitReason::Signal, status }
        }
        // A finish that says nothing readable is still a finish: it is never dropped (P4).
        None => Finish::Over {
            done: false,
            reason: ExitReason::UnknownStatus { started_unknown: fact.started_unknown },
            status: None,
        },
    }
}

/// Bounds what a node may make the ledger keep.
pub(super) fn trim_failure(failure: &v1::StartFailure) -> v1::StartFailure {
    let mut failure = failure.clone();
    failure.path.truncate(4096);
    failure.message = trim_text(&failure.message, FAILURE_TEXT_MAX);
    failure.step = trim_text(&failure.step, 64);
    failure
}

/// The longest prefix of at most `max` bytes that is whole characters.
pub(super) fn trim_text(text: &str, max: usize) -> String {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(status: u32) -> v1::FinishFact {
        v1::FinishFact { end: Some(End::WaitStatus(status)), ..Default::default() }
    }

    fn verdict(fact: &v1::FinishFact, codes: &[u32]) -> (bool, ExitKind) {
        match judge(fact, codes, Some("mia")) {
            Finish::Over { done, reason, .. } => (done, reason.kind()),
            Finish::NodeFault(_) => (false, ExitKind::Unspecified),
        }
    }

    #[test]
    fn a_code_is_done_only_if_it_is_a_success_code() {
        assert_eq!(verdict(&finish(0), &[]), (true, ExitKind::ExitCode));
        assert_eq!(verdict(&finish(3 << 8), &[]), (false, ExitKind::ExitCode));
        assert_eq!(verdict(&finish(3 << 8), &[3]), (true, ExitKind::ExitCode));
        assert_eq!(verdict(&finish(0), &[3]), (false, ExitKind::ExitCode));
        assert_eq!(verdict(&finish(9), &[]), (false, ExitKind::Signal));
    }

    #[test]
    fn what_the_keeper_killed_for_wins_over_the_natural_end() {
        let mut fact = finish(0);
        fact.set_killed_for(v1::KillCause::Cancel);
        fact.out_of_memory = true;
        assert_eq!(verdict(&fact, &[]), (false, ExitKind::Cancelled));
        fact.set_killed_for(v1::KillCause::TimeLimit);
        assert_eq!(verdict(&fact, &[]), (false, ExitKind::TimeLimit));
        fact.set_killed_for(v1::KillCause::Unspecified);
        assert_eq!(verdict(&fact, &[]), (false, ExitKind::OutOfMemory));
    }

    #[test]
    fn a_finish_that_nobody_can_read_is_unknown_status_and_no_invented_zero() {
        assert_eq!(verdict(&v1::FinishFact::default(), &[]), (false, ExitKind::UnknownStatus));
        assert_eq!(verdict(&finish(0x137f), &[]), (false, ExitKind::UnknownStatus));
        let reason = ExitReason::UnknownStatus { started_unknown: true }.to_wire(None);
        assert_eq!((reason.code, reason.signal), (None, None));
        assert_eq!(reason.detail.as_deref(), Some("started: unknown"));
    }

    #[test]
    fn a_status_reads_as_wait_gives_it() {
        assert_eq!(WaitEnd::decode(255 << 8), Some(WaitEnd::Code(255)));
        let dumped = WaitEnd::Signal { signal: 11, core_dumped: true };
        assert_eq!(WaitEnd::decode(0x8b), Some(dumped));
        assert_eq!(WaitEnd::decode(0x7f), None);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        assert_eq!(trim_text("aéé", 4), "aé");
        assert_eq!(trim_text("ab", 4), "ab");
    }
}
