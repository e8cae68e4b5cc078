//! What an entry did: values that every replica computes alike, never errors of `apply`.

use super::limits::Reached;
use super::ranges::Ranges;
use super::state::StateName;
use crate::words;
use proto::{AttemptId, JobId, Seq, TaskId, v1};
use std::sync::Arc;

/// The effect of one proposal.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Applied {
    /// One outcome per command, in order.
    pub outcomes: Vec<Outcome>,
    /// The tasks that changed, each once, in id order.
    pub changed: Vec<TaskId>,
}

/// What one command did.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// The job is in the ledger.
    Submitted {
        /// Its id.
        job: JobId,
        /// The request id was seen before: nothing was done now.
        repeated: bool,
    },
    /// The task is dispatched; its order id is [`super::order_id`] of this command.
    Assigned,
    /// A batch of facts was taken: everything up to `high` may be acknowledged to the session
    /// that sent it.
    FactsTaken {
        /// Whose.
        agent_id: Arc<str>,
        /// Of which journal.
        journal_id: Arc<[u8]>,
        /// Last seq of the batch.
        high: Seq,
        /// Facts that must be sent again later, and why: their keeper journals them anew.
        later: Vec<(Seq, String)>,
    },
    /// The batch leaves a hole: send again from here.
    FactsGap {
        /// Whose.
        agent_id: Arc<str>,
        /// First seq that is missing.
        from: Seq,
    },
    /// One verdict per job that was named.
    Cancelled(Vec<CancelResult>),
    /// One verdict per job that was named in a hold, release, priority, suspend or resume.
    Edited(Vec<EditResult>),
    /// So many tasks became unknown.
    Unknown {
        /// How many.
        count: u64,
    },
    /// A page of a manifest was judged.
    Manifest(ManifestOutcome),
    /// The session is the agent's newest now.
    AgentUp,
    /// The agent's session is over.
    AgentDown {
        /// Tasks that ended as `agent-died`.
        ended: u64,
        /// Tasks that became unknown.
        unknown: u64,
    },
    /// Values of the cluster are changed.
    Configured,
    /// Deadlines were settled.
    Ticked {
        /// How many things.
        settled: u32,
        /// More are due: propose another.
        more: bool,
    },
    /// The term has begun; so many tasks became unknown.
    TermStarted {
        /// How many.
        count: u64,
    },
    /// So many retries stopped waiting: an operator, or the end of their leases, vouches that the
    /// closed attempts are dead.
    Proven {
        /// How many.
        count: u64,
    },
    /// The node is drained, or is not any more; so many attempts are there.
    Drained {
        /// How many.
        held: u64,
    },
    /// The command was true when proposed and is not any more; nothing was done.
    Stale {
        /// What changed.
        what: String,
    },
    /// The command was refused; nothing was done.
    Rejected(Rejection),
}

/// Verdicts on one page of a manifest (design 3, "Manifest at every join").
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ManifestOutcome {
    /// Attempts that the agent has and should have.
    pub claimed: u64,
    /// Orders that never arrived: the same Run goes again.
    pub resend: Vec<AttemptId>,
    /// Over for the ledger: kill them.
    pub kill: Vec<AttemptId>,
    /// Ids the ledger does not know yet: listed for the operator, not killed.
    pub strays: Vec<AttemptId>,
    /// Attempts with a higher number than the ledger's: this leader is stale, close the session.
    pub newer: Vec<AttemptId>,
    /// Tasks that ended as `vanished`.
    pub vanished: u64,
    /// That was the last page: the session may get orders now.
    pub judged: bool,
}

/// One job's answer to a cancel.
#[derive(Clone, PartialEq, Debug)]
pub struct CancelResult {
    /// Which.
    pub job: JobId,
    /// Which tasks of it were named; `None`: the whole job.
    pub tasks: Option<Ranges>,
    /// What happened.
    pub verdict: CancelVerdict,
}

/// What a cancel did to one job.
#[derive(Clone, PartialEq, Debug)]
pub enum CancelVerdict {
    /// It was pending and is EXIT `cancelled` now.
    Cancelled,
    /// Its node will be told; it ends when its tree is gone.
    Requested,
    /// Its node will be told to send the signal.
    Signalled,
    /// It was terminal before.
    AlreadyEnded,
    /// Refused.
    Refused(Rejection),
}

/// One job's answer to an edit.
#[derive(Clone, PartialEq, Debug)]
pub struct EditResult {
    /// Which.
    pub job: JobId,
    /// Which tasks of it were named; `None`: the whole job.
    pub tasks: Option<Ranges>,
    /// Done, or why not.
    pub result: Result<(), Rejection>,
}

/// Why a command was refused. Facts with fields; the shell turns them into statuses.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Rejection {
    /// The queue is at its limit.
    #[error("the queue is full: {limit} tasks are waiting or running (max_queue); try again later")]
    QueueFull {
        /// `max_queue`, in tasks.
        limit: u64,
    },
    /// The time limit is above what the cluster allows.
    #[error("{}", over_max_time(*asked_ms, *max_ms, key))]
    OverMaxTime {
        /// What was asked for, ms; `None`: no limit.
        asked_ms: Option<u64>,
        /// The most that is allowed, ms.
        max_ms: u64,
        /// By which key.
        key: String,
    },
    /// No queue of that name takes jobs.
    #[error("{}", no_such_queue(asked, nearest.as_deref(), known))]
    NoSuchQueue {
        /// What was asked for.
        asked: String,
        /// What may have been meant.
        nearest: Option<String>,
        /// Those there are.
        known: String,
    },
    /// The queue is for others.
    #[error("queue {queue} does not take jobs of {user}: it is for {users}")]
    NotInQueue {
        /// Which.
        queue: String,
        /// Who asked.
        user: String,
        /// Who may.
        users: String,
    },
    /// The priority is above what the queue allows.
    #[error(
        "a priority of {asked} is above what queue {queue} allows: at most {max} (queues.{queue}.max_priority)"
    )]
    OverPriority {
        /// What was asked for.
        asked: i32,
        /// The highest allowed.
        max: i32,
        /// By which queue.
        queue: String,
    },
    /// A user or a queue would have more tasks than allowed.
    #[error("{0}; try again when some have ended")]
    OverLimit(Box<Reached>),
    /// A limit would never let it start.
    #[error("it could never start: {0}; ask for less")]
    NeverWithin(Box<Reached>),
    /// The id was never given.
    #[error("no job {job}: the newest is {newest}")]
    NoSuchJob {
        /// What was asked for.
        job: JobId,
        /// The newest id given.
        newest: JobId,
    },
    /// A node runs something under that id, which another part of the log gave, or another log.
    #[error(
        "no job {job} in this log, but {node} runs one of that id that the log forgot, a stray: nothing \
         here may end it; docket nodes --strays lists them, and whoever owns it ends it on {node}: its \
         processes have DOCKET_JOB_ID={job} in their environment"
    )]
    Stray {
        /// What was asked for.
        job: JobId,
        /// The node's name.
        node: String,
    },
    /// The job ended and left the ledger.
    #[error("job {job} has ended and is no longer in the ledger")]
    Evicted {
        /// Which.
        job: JobId,
    },
    /// It is no array, so it has no tasks.
    #[error("job {job} is not an array: name it without a task")]
    NotAnArray {
        /// Which.
        job: JobId,
    },
    /// The array has no such task, or none was named where one is needed.
    #[error("{}", no_such_task(*job, *task, tasks))]
    NoSuchTask {
        /// Which array.
        job: JobId,
        /// What was asked for.
        task: Option<u32>,
        /// The tasks that it has.
        tasks: String,
    },
    /// Only owner and admins may.
    #[error("job {job} belongs to {owner}; only they or an admin may do that")]
    NotOwner {
        /// Which.
        job: JobId,
        /// Whose it is.
        owner: String,
    },
    /// Only admins may.
    #[error("only an admin may do that")]
    NotAdmin,
    /// The job has ended already.
    #[error("job {job} has already ended")]
    AlreadyTerminal {
        /// Which.
        job: JobId,
    },
    /// It would wait for a job that was never submitted, or for itself.
    #[error(
        "no job {job} to wait for: the newest is {newest}, and a job can only wait for older ones"
    )]
    NoSuchDependency {
        /// What it would wait for.
        job: JobId,
        /// The newest id given.
        newest: JobId,
    },
    /// The array that it would wait for task by task lacks one of its numbers.
    #[error(
        "after-each {job}: array {job} has no task {task}, only {tasks}; both need the same numbers"
    )]
    NoCounterpart {
        /// Which array.
        job: JobId,
        /// The first number that it lacks.
        task: u32,
        /// The tasks that it has.
        tasks: String,
    },
    /// It would wait for tasks of an array of which only is known that not all were DONE.
    #[error(
        "the tasks of array {job} are not known any more, only that not all of them were DONE: it left the \
         ledger; name {job} as a whole, or submit without waiting for it"
    )]
    TasksForgotten {
        /// Which array.
        job: JobId,
    },
    /// The job is in a state in which that cannot be done.
    #[error("job {job} is {state}: {why}")]
    WrongState {
        /// Which.
        job: JobId,
        /// Its state.
        state: StateName,
        /// What would be needed.
        why: &'static str,
    },
    /// The request id was used for other content.
    #[error("this request id was used before, for other content: job {first}; use another key")]
    KeyReused {
        /// The job of the first use.
        first: JobId,
    },
    /// The request id is too old to know what became of it.
    #[error(
        "the request id has expired and its outcome is unknown; look for the job, then submit with a new id"
    )]
    RequestExpired,
    /// The command makes no sense.
    #[error("malformed {field}: {why}")]
    Malformed {
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The entry is above what this program can apply: the pump must stop.
    #[error("the entry has level {level}, this program applies up to {known}; upgrade it")]
    TooHighLevel {
        /// The entry's.
        level: u32,
        /// The program's.
        known: u32,
    },
    /// The agent never joined.
    #[error("agent {agent_id} is not known: it has to join first")]
    NoSuchAgent {
        /// Which.
        agent_id: String,
    },
    /// The ledger is at its limit of agents.
    #[error("{limit} agents are known already; no more can join")]
    TooManyAgents {
        /// The limit.
        limit: u64,
    },
    /// The keeper's journal is older than what this ledger took from it.
    #[error("the journal was rolled back: the ledger has its facts up to {}, it would go on at {}, so an older copy of it was put back; remove journal/ in the agent's data directory, kill the process `docket keeper` of that directory, and start the agent again: it begins a new journal, and jobs that still run there end as vanished", high.0, next.0)]
    JournalRolledBack {
        /// Highest seq taken.
        high: Seq,
        /// What the join named as next.
        next: Seq,
    },
    /// The manifest is ahead of the facts: judge it when they are applied.
    #[error("the manifest holds facts up to {}, applied are {}; it must wait for them", last.0, high.0)]
    FactsNotApplied {
        /// Highest seq applied.
        high: Seq,
        /// The manifest's F.
        last: Seq,
    },
}

impl Rejection {
    pub(super) fn malformed(field: &'static str, why: impl Into<String>) -> Rejection {
        Rejection::Malformed { field, why: why.into() }
    }
}

impl CancelVerdict {
    /// The outcome's name on the wire; empty for a refusal.
    pub fn as_str(&self) -> &'static str {
        match self {
            CancelVerdict::Cancelled => "cancelled",
            CancelVerdict::Requested => "requested",
            CancelVerdict::Signalled => "signalled",
            CancelVerdict::AlreadyEnded => "already-ended",
            CancelVerdict::Refused(_) => "",
        }
    }
}

impl CancelResult {
    /// The wire form; the shell adds the status code of a refusal.
    pub fn to_wire(&self) -> v1::CancelResult {
        let error = match &self.verdict {
            CancelVerdict::Refused(rejection) => Some(rejection.to_string()),
            _ => None,
        };
        v1::CancelResult {
            job: self.job.0,
            outcome: self.verdict.as_str().to_owned(),
            error,
            error_code: 0,
            tasks: self.tasks.as_ref().map(Ranges::to_string),
        }
    }
}

fn over_max_time(asked_ms: Option<u64>, max_ms: u64, key: &str) -> String {
    let max = words::duration(max_ms);
    match asked_ms {
        Some(asked) => {
            let asked = words::duration(asked);
            format!("a time limit of {asked} is above what is allowed here: at most {max} ({key})")
        }
        None => format!("a time limit is needed here: at most {max} ({key})"),
    }
}

fn no_such_queue(asked: &str, nearest: Option<&str>, known: &str) -> String {
    match nearest {
        Some(nearest) => format!("no queue {asked}: did you mean {nearest}? There are: {known}"),
        None => format!("no queue {asked}: there are {known}"),
    }
}

/// Longest list of tasks in a refusal, in bytes.
const TASKS_TOLD_MAX: usize = 200;

fn no_such_task(job: JobId, task: Option<u32>, tasks: &str) -> String {
    let told = tasks.get(..TASKS_TOLD_MAX).map_or(tasks.to_owned(), |cut| format!("{cut}..."));
    match task {
        Some(task) => format!("array {job} has no task {task}: its tasks are {told}"),
        None => {
            format!("job {job} is an array: name one of its tasks, as {job}_N; they are {told}")
        }
    }
}
