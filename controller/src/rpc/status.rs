//! Errors to gRPC statuses: the only file that does so (style rule 20). The message is ready for a
//! person; the metadata key `docket-reason` carries a stable word for programs (design 5, Errors).

use super::convert::Invalid;
use crate::proposer::ProposeError;
use crate::pump::PumpGone;
use crate::raft::ReadError;
use docket_core::ledger::Rejection;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// Metadata key of the stable reason.
pub const REASON_KEY: &str = "docket-reason";

/// A status with its stable reason.
pub fn status(code: Code, reason: &'static str, message: impl Into<String>) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert(REASON_KEY, MetadataValue::from_static(reason));
    Status::with_metadata(code, message, metadata)
}

/// No such job: with the newest id, so that a typing error shows.
pub fn no_such_job(job: u64, newest: u64) -> Status {
    let message = match newest {
        0 => format!("no job {job}: no job was ever submitted here"),
        newest => format!("no job {job}: the newest is {newest}"),
    };
    status(Code::NotFound, "no-such-job", message)
}

/// The job has left the ledger.
pub fn evicted(job: u64) -> Status {
    let message = format!("job {job} has ended and is no longer in the ledger");
    status(Code::NotFound, "evicted", message)
}

/// Not a setting, or not a value of it.
pub fn setting(message: impl Into<String>) -> Status {
    status(Code::InvalidArgument, "invalid-setting", message)
}

/// Others are at it; try again.
pub fn busy(message: impl Into<String>) -> Status {
    status(Code::Unavailable, "busy", message)
}

/// A job cannot be submitted again, or not so.
pub fn not_to_retry(message: impl Into<String>) -> Status {
    status(Code::FailedPrecondition, "not-to-retry", message)
}

/// The node that holds the output does not answer.
pub fn agent_away(message: impl Into<String>) -> Status {
    status(Code::Unavailable, "agent-away", message)
}

/// The output was removed from its node, or never existed.
pub fn output_gone(message: impl Into<String>) -> Status {
    status(Code::NotFound, "output-gone", message)
}

/// No node has that name.
pub fn no_such_node(node: &str) -> Status {
    let message = format!("no node {node}: docket nodes lists them");
    status(Code::NotFound, "no-such-node", message)
}

/// Several nodes have that name.
pub fn several_nodes(node: &str, agents: &[String]) -> Status {
    let message = format!(
        "{} nodes are called {node}: name the agent, {}",
        agents.len(),
        agents.join(" or ")
    );
    status(Code::InvalidArgument, "several-nodes", message)
}

/// The caller may see the job, and not read what it writes.
pub fn output_of_another(job: proto::TaskId, user: &str) -> Status {
    let message =
        format!("the output of job {job} is for {user}, root and admins: ask one of them for it");
    status(Code::PermissionDenied, "not-allowed", message)
}

/// A read took longer than it may: the controller is overloaded or lost its majority.
pub fn timed_out(what: &str) -> Status {
    let message = format!("{what} took too long: the controller is busy or has no majority");
    status(Code::Unavailable, "timed-out", message)
}

/// The caller may not do that.
pub fn not_allowed(message: impl Into<String>) -> Status {
    status(Code::PermissionDenied, "not-allowed", message)
}

/// More was asked for than one answer may carry.
pub fn answer_too_large(bytes: usize, max: usize) -> Status {
    let message = format!("the answer has {bytes} bytes, and {max} fit: ask for fewer ids at once");
    status(Code::ResourceExhausted, "answer-too-large", message)
}

/// The controller is stopping; ask again in a moment.
pub fn stopping() -> Status {
    status(Code::Unavailable, "stopping", "the controller is stopping; try again")
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Status {
        status(Code::InvalidArgument, "invalid-argument", invalid.to_string())
    }
}

impl From<PumpGone> for Status {
    fn from(_: PumpGone) -> Status {
        stopping()
    }
}

impl From<ReadError> for Status {
    fn from(error: ReadError) -> Status {
        match error {
            ReadError::NotLeader { leader } => not_leader(leader, error.to_string()),
            ReadError::Stopped { .. } => stopping(),
        }
    }
}

impl From<ProposeError> for Status {
    fn from(error: ProposeError) -> Status {
        let message = error.to_string();
        match error {
            ProposeError::NotLeader { leader } => not_leader(leader, message),
            ProposeError::OutcomeUnknown => status(Code::Unavailable, "outcome-unknown", message),
            ProposeError::DiskFull { .. } | ProposeError::ReserveUsed { .. } => {
                status(Code::ResourceExhausted, "disk-full", message)
            }
            ProposeError::Stopping => status(Code::Unavailable, "stopping", message),
        }
    }
}

fn not_leader(leader: Option<u64>, message: String) -> Status {
    let mut status = status(Code::Unavailable, "not-leader", message);
    if let Some(id) = leader {
        status.metadata_mut().insert("docket-leader", MetadataValue::from(id));
    }
    status
}

/// The status of a refusal that apply decided.
pub fn rejected(rejection: &Rejection) -> Status {
    let (code, reason) = match rejection {
        Rejection::QueueFull { .. } => (Code::ResourceExhausted, "queue-full"),
        Rejection::OverLimit(_) => (Code::ResourceExhausted, "over-limit"),
        Rejection::NeverWithin(_) => (Code::InvalidArgument, "never-within-limit"),
        Rejection::NoSuchQueue { .. } => (Code::InvalidArgument, "no-such-queue"),
        Rejection::NotInQueue { .. } => (Code::PermissionDenied, "not-in-queue"),
        Rejection::OverPriority { .. } => (Code::InvalidArgument, "over-priority"),
        Rejection::NoSuchJob { .. } => (Code::NotFound, "no-such-job"),
        Rejection::Stray { .. } => (Code::NotFound, "stray"),
        Rejection::Evicted { .. } => (Code::NotFound, "evicted"),
        Rejection::NotOwner { .. } | Rejection::NotAdmin => (Code::PermissionDenied, "not-allowed"),
        Rejection::AlreadyTerminal { .. } => (Code::FailedPrecondition, "already-ended"),
        Rejection::WrongState { .. } => (Code::FailedPrecondition, "wrong-state"),
        Rejection::KeyReused { .. } => (Code::AlreadyExists, "key-reused"),
        Rejection::RequestExpired => (Code::FailedPrecondition, "request-expired"),
        Rejection::OverMaxTime { .. } => (Code::InvalidArgument, "over-max-time"),
        Rejection::NotAnArray { .. } => (Code::InvalidArgument, "not-an-array"),
        Rejection::NoSuchTask { .. } => (Code::NotFound, "no-such-task"),
        Rejection::NoSuchDependency { .. } => (Code::NotFound, "no-such-dependency"),
        Rejection::NoCounterpart { .. } => (Code::InvalidArgument, "no-counterpart"),
        Rejection::TasksForgotten { .. } => (Code::FailedPrecondition, "tasks-forgotten"),
        Rejection::Malformed { .. } => (Code::InvalidArgument, "invalid-argument"),
        Rejection::TooHighLevel { .. } => (Code::FailedPrecondition, "level-too-high"),
        Rejection::NoSuchAgent { .. } => (Code::NotFound, "no-such-agent"),
        Rejection::TooManyAgents { .. } => (Code::ResourceExhausted, "too-many-agents"),
        Rejection::JournalRolledBack { .. } => (Code::Aborted, "journal-rolled-back"),
        Rejection::FactsNotApplied { .. } => (Code::FailedPrecondition, "facts-not-applied"),
    };
    status(code, reason, rejection.to_string())
}

/// An outcome that does not belong to the command: a bug, told rather than hidden.
pub fn unexpected(outcome: &docket_core::ledger::Outcome) -> Status {
    let message = format!("the ledger answered something else ({outcome:?}); please report it");
    status(Code::Internal, "unexpected-outcome", message)
}

/// The number of a code, for messages that carry one.
pub fn code_number(code: Code) -> u32 {
    u32::try_from(i32::from(code)).unwrap_or(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::JobId;

    #[test]
    fn each_refusal_has_its_code_and_a_stable_reason() {
        let reason = |status: &Status| {
            status.metadata().get(REASON_KEY).unwrap().to_str().unwrap().to_owned()
        };
        let full = rejected(&Rejection::QueueFull { limit: 7 });
        assert_eq!((full.code(), &*reason(&full)), (Code::ResourceExhausted, "queue-full"));
        let reused = rejected(&Rejection::KeyReused { first: JobId(3) });
        assert_eq!((reused.code(), &*reason(&reused)), (Code::AlreadyExists, "key-reused"));
        let other = Status::from(ReadError::NotLeader { leader: Some(2) });
        assert_eq!((other.code(), &*reason(&other)), (Code::Unavailable, "not-leader"));
        assert_eq!(other.metadata().get("docket-leader").unwrap(), "2");
        let unknown = Status::from(ProposeError::OutcomeUnknown);
        assert_eq!(&*reason(&unknown), "outcome-unknown");
        assert!(unknown.message().contains("same request id"));
    }
}
