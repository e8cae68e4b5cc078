//! What every service shares: the way to the ledger, the proposer, and the end of the process.

use super::convert::Which;
use super::identity::Caller;
use super::status;
use crate::activity::Activity;
use crate::config::Config;
use crate::proposer::{Accepted, Pending, ProposerHandle};
use crate::pump::{PumpHandle, View};
use crate::raft::Node;
use docket_core::ledger::{Entry, Job, Ledger, Rejection};
use docket_core::scheduler::Outlook;
use futures::{Stream, StreamExt as _};
use proto::{JobId, TaskId, v1};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// A read that waits longer has lost its majority or its controller.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A proposal that waits longer is answered with "outcome unknown": less than what clients wait.
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Jobs looked at in one visit of the pump: about a millisecond, so that no entry waits for a list.
pub const SCAN_SLICE: usize = 4096;

/// Tasks written out in one visit of the pump: a wire form costs more than a look.
const FETCH_SLICE: usize = 512;

/// Cheap to clone.
#[derive(Clone)]
pub struct Shared {
    /// Raft.
    pub node: Node,
    /// The ledger's owner.
    pub pump: PumpHandle,
    /// The way into the log.
    pub proposer: ProposerHandle,
    /// Ends every stream.
    pub stop: CancellationToken,
    /// Takes note of requests.
    pub activity: Activity,
    /// What does not change.
    pub about: Arc<About>,
}

/// Facts about this server that do not change while it runs.
pub struct About {
    /// The configuration in force.
    pub config: Config,
    /// Address of its TCP listener, if it has one.
    pub listen: String,
    /// Address of its HTTP listener, if it has one.
    pub http: String,
    /// Controller and agent are one process.
    pub embedded: bool,
    /// User and uid it runs as.
    pub user: String,
    /// Its uid: may shut it down.
    pub uid: u32,
    /// Name of its machine.
    pub host: String,
    /// When it began to serve.
    pub since: Instant,
    /// Tells the embedding process that someone asked for its end.
    pub shutdown: mpsc::Sender<ShutdownRequest>,
}

/// Someone asked the embedded node to end (`docket down`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownRequest {
    /// End the jobs as well.
    pub kill: bool,
}

/// Where a scan of the jobs stands: ids below it are still to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// Nothing was seen.
    Newest,
    /// Go on below this id.
    Below(JobId),
    /// All were seen.
    End,
}

impl Shared {
    /// Resolves when a read through the pump is linearizable.
    pub async fn linearizable(&self) -> Result<(), Status> {
        self.activity.touch();
        match tokio::time::timeout(READ_TIMEOUT, self.node.linearizable()).await {
            Ok(confirmed) => Ok(confirmed?),
            Err(_) => Err(status::timed_out("confirming the leadership")),
        }
    }

    /// Reads the ledger, linearizably.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(View<'_>) -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.linearizable().await?;
        Ok(self.pump.read(look).await?)
    }

    /// Proposes a command and waits for its outcome.
    pub async fn propose(
        &self,
        kind: v1::command::Kind,
        blobs: Vec<v1::Blob>,
    ) -> Result<Accepted, Status> {
        self.activity.touch();
        let command = v1::Command { kind: Some(kind) };
        in_time(self.proposer.propose(command, blobs)).await
    }

    /// Queues a command behind those queued before; [`in_time`] waits for its outcome.
    pub async fn enqueue(
        &self,
        kind: v1::command::Kind,
        blobs: Vec<v1::Blob>,
    ) -> Result<Pending, Status> {
        let command = v1::Command { kind: Some(kind) };
        Ok(self.proposer.enqueue(command, blobs).await?)
    }

    /// NOT_FOUND for the first that names no job or task.
    pub async fn check_ids(&self, named: Vec<Which>) -> Result<(), Status> {
        let look = move |view: View<'_>| {
            named.iter().try_for_each(|which| match which {
                Which::Whole(id) => found_entry(view.ledger, *id).map(drop),
                Which::One(id) => found(view.ledger, *id).map(drop),
            })
        };
        self.pump.read(look).await?
    }

    /// What is named, in that order; one for an array as a whole. What names none is NOT_FOUND.
    pub async fn tasks(&self, jobs: Vec<Which>) -> Result<Vec<v1::Task>, Status> {
        let mut tasks = Vec::with_capacity(jobs.len());
        for slice in jobs.chunks(FETCH_SLICE) {
            let slice = slice.to_vec();
            let look = move |view: View<'_>| {
                let reach = super::explain::sight(&view).reach();
                let outlook = Outlook::new(view.ledger, &reach, view.ledger.led());
                let wire = |which: &Which| task_of(view.ledger, &outlook, *which);
                slice.iter().map(wire).collect::<Result<Vec<_>, _>>()
            };
            tasks.extend(self.pump.read(look).await??);
        }
        Ok(tasks)
    }

    /// Looks at the next slice of jobs, newest first. `take` folds over them.
    pub async fn scan<A: Send + 'static>(
        &self,
        from: Cursor,
        state: A,
        take: impl Fn(&mut A, &Seen<'_>, Entry<'_>) -> Scan + Send + 'static,
    ) -> Result<(Cursor, A), Status> {
        let below = match from {
            Cursor::Newest => None,
            Cursor::Below(id) => Some(id),
            Cursor::End => return Ok((Cursor::End, state)),
        };
        let look = move |view: View<'_>| {
            let mut state = state;
            let reach = super::explain::sight(&view).reach();
            let outlook = Outlook::new(view.ledger, &reach, view.ledger.led());
            let seen = Seen { ledger: view.ledger, outlook };
            let jobs = view.ledger.newest_first(below);
            for (number, job) in jobs.enumerate() {
                let last = matches!(take(&mut state, &seen, job), Scan::Enough);
                if last || number + 1 >= SCAN_SLICE {
                    return (Cursor::Below(job.id()), state);
                }
            }
            (Cursor::End, state)
        };
        Ok(self.pump.read(look).await?)
    }

    /// Ends a stream with a status when the server stops: an open stream would hold it up.
    pub fn until_stopped<T: Send + 'static>(
        &self,
        stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> impl Stream<Item = Result<T, Status>> + Send + 'static {
        let stop = self.stop.clone();
        let ended = stop.clone();
        let open = self.activity.open();
        stream.inspect(move |_| open.touch()).take_until(stop.cancelled_owned()).chain(
            futures::stream::iter([()]).filter_map(move |()| {
                let stopped = ended.is_cancelled().then(|| Err(status::stopping()));
                async move { stopped }
            }),
        )
    }
}

/// What a scan sees beside each job.
pub struct Seen<'a> {
    /// The ledger.
    pub ledger: &'a Ledger,
    /// Why what waits does.
    pub outlook: Outlook<'a>,
}

/// Whether a scan goes on in its slice.
pub enum Scan {
    /// Show me the next one.
    More,
    /// The next slice begins behind this one.
    Enough,
}

/// Waits for an outcome, but not for ever.
pub async fn in_time(
    outcome: impl Future<Output = Result<Accepted, crate::proposer::ProposeError>>,
) -> Result<Accepted, Status> {
    match tokio::time::timeout(PROPOSE_TIMEOUT, outcome).await {
        Ok(accepted) => Ok(accepted?),
        Err(_) => Err(crate::proposer::ProposeError::OutcomeUnknown.into()),
    }
}

/// What is named, on the wire.
fn task_of(ledger: &Ledger, outlook: &Outlook<'_>, which: Which) -> Result<v1::Task, Status> {
    match which {
        Which::Whole(id) => Ok(match found_entry(ledger, id)? {
            Entry::Job(job) => job.to_wire_seen(ledger, outlook),
            Entry::Array(array) => array.to_wire(ledger),
        }),
        Which::One(id) => {
            found(ledger, id)?;
            let job = ledger.numbered(id).expect("found in the line before");
            Ok(job.to_wire_seen(ledger, outlook))
        }
    }
}

/// The task of an id, or why there is none. One that shares its record has no number there.
pub fn found(ledger: &Ledger, id: TaskId) -> Result<&Job, Status> {
    found_entry(ledger, id.job)?;
    ledger.find(id).map_err(|rejection| status::rejected(&rejection))
}

/// The job of an id, plain or array, or why there is none.
pub fn found_entry(ledger: &Ledger, id: JobId) -> Result<Entry<'_>, Status> {
    match ledger.entry(id) {
        Some(entry) => Ok(entry),
        None if ledger.evicted(id) => Err(status::evicted(id.0)),
        None => Err(match ledger.find(id) {
            Err(stray @ Rejection::Stray { .. }) => status::rejected(&stray),
            _ => status::no_such_job(id.0, ledger.next_job_id().0 - 1),
        }),
    }
}

/// Whether `caller` may change jobs of `user`.
pub fn may_change(caller: &Caller, uid: u32) -> bool {
    caller.admin || caller.uid == uid
}

/// Whether `caller` may read what jobs of `user` write. Everybody sees all jobs; what is in their output
/// is their user's affair (docs/adr/0008-output-is-its-users.md).
pub fn may_read(caller: &Caller, uid: u32) -> bool {
    may_change(caller, uid)
}

/// Takes out of a task what `caller` may not read.
pub fn conceal(caller: &Caller, task: &mut v1::Task) {
    if !may_read(caller, task.uid) {
        task.stderr_tail.clear();
    }
}

/// Counts by state, as the wire names them.
pub fn counts_to_wire(
    counts: BTreeMap<docket_core::ledger::StateName, u64>,
) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(state, count)| (state.as_str().to_owned(), count)).collect()
}
