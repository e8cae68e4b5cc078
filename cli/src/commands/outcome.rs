//! The exit code that `wait` and `run` take from how a job ended (design 7, Jobs).

use crate::exit;
use proto::v1::{ExitKind, Reason, Task};

/// The code for one ended job.
pub fn exit_code(task: &Task) -> u8 {
    let reason = task.reason.as_ref();
    let code = task.exit_code.or(reason.and_then(|reason| reason.code));
    let signal = task.signal.or(reason.and_then(|reason| reason.signal));
    if task.state == "DONE" {
        return byte(code.unwrap_or(0));
    }
    let status = match (code, signal) {
        (Some(code), _) => Some(byte(code)),
        (None, Some(signal)) => Some(exit::SIGNAL_BASE.saturating_add(byte(signal))),
        (None, None) => None,
    };
    match (reason.map_or(ExitKind::Unspecified, Reason::kind), status) {
        (ExitKind::ExitCode | ExitKind::Signal, Some(status)) => status,
        // Whatever else ended it, docket never says 0.
        (_, Some(status)) if status != 0 => status,
        (ExitKind::Cancelled, _) => exit::CANCELLED,
        _ => exit::FAILED,
    }
}

/// The code for several: done only if all are.
pub fn exit_code_of_all(tasks: &[Task]) -> u8 {
    match tasks {
        [one] => exit_code(one),
        tasks if tasks.iter().all(|task| task.state == "DONE") => exit::DONE,
        _ => exit::FAILED,
    }
}

/// A code outside of a byte cannot come from a process; it must not wrap to 0.
fn byte(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(state: &str, kind: ExitKind, code: Option<i32>, signal: Option<i32>) -> Task {
        Task {
            state: state.to_owned(),
            terminal: true,
            reason: Some(Reason { kind: kind.into(), code, signal, ..Default::default() }),
            exit_code: code,
            signal,
            ..Default::default()
        }
    }

    #[test]
    fn every_end_has_the_code_of_the_contract() {
        use ExitKind as K;
        let table = [
            ("DONE", K::ExitCode, Some(0), None, 0),
            ("DONE", K::ExitCode, Some(10), None, 10),
            ("EXIT", K::ExitCode, Some(1), None, 1),
            ("EXIT", K::ExitCode, Some(42), None, 42),
            ("EXIT", K::ExitCode, Some(255), None, 255),
            ("EXIT", K::ExitCode, Some(0), None, 0),
            ("EXIT", K::Signal, None, Some(9), 137),
            ("EXIT", K::Signal, None, Some(11), 139),
            ("EXIT", K::Cancelled, None, Some(15), 143),
            ("EXIT", K::Cancelled, None, Some(9), 137),
            ("EXIT", K::Cancelled, Some(3), None, 3),
            ("EXIT", K::Cancelled, Some(0), None, 143),
            ("EXIT", K::Cancelled, None, None, 143),
            ("EXIT", K::TimeLimit, Some(0), None, 1),
            ("EXIT", K::TimeLimit, None, Some(15), 143),
            ("EXIT", K::OutOfMemory, None, Some(9), 137),
            ("EXIT", K::AgentDied, None, None, 1),
            ("EXIT", K::Lost, None, None, 1),
            ("EXIT", K::Vanished, None, None, 1),
            ("EXIT", K::NodeRebooted, None, None, 1),
            ("EXIT", K::UnknownStatus, None, None, 1),
            ("EXIT", K::StartFailed, None, None, 1),
        ];
        for (state, kind, code, signal, expected) in table {
            let task = ended(state, kind, code, signal);
            assert_eq!(exit_code(&task), expected, "{state} {kind:?} {code:?} {signal:?}");
        }
    }

    #[test]
    fn several_are_done_only_if_all_are() {
        let done = ended("DONE", ExitKind::ExitCode, Some(0), None);
        let failed = ended("EXIT", ExitKind::ExitCode, Some(7), None);
        assert_eq!(exit_code_of_all(&[done.clone(), done.clone()]), 0);
        assert_eq!(exit_code_of_all(&[done, failed.clone()]), 1);
        assert_eq!(exit_code_of_all(&[failed]), 7);
    }
}
