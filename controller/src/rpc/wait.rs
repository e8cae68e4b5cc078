//! `Wait`: one message per job at once, then each change until all are terminal. It registers with
//! the pump before it looks, so a change in between wakes it.

use super::convert::Which;
use super::server::Shared;
use crate::watch::Watcher;
use futures::Stream;
use proto::{JobId, TaskId, v1};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// A task that became unknown is told only when it is not claimed again within this time: a new
/// leader hears most agents within seconds (design 3).
const HUSH: Duration = Duration::from_secs(5);

/// Tasks in memory at once, each with a specification of 1 MiB at most.
const SLICE: usize = 64;

/// Follows `jobs`. An id that names no job ends the stream with NOT_FOUND, before any message.
pub async fn wait(
    shared: Shared,
    jobs: Vec<Which>,
) -> Result<impl Stream<Item = Result<v1::Task, Status>> + Send + 'static, Status> {
    shared.linearizable().await?;
    let ids: BTreeSet<JobId> = jobs.iter().map(|which| which.job()).collect();
    let watcher = shared.pump.watch(ids.into_iter().collect()).await?;
    shared.check_ids(jobs.clone()).await?;
    Ok(async_stream::try_stream! {
        let mut following = Following::default();
        let mut due = jobs;
        loop {
            for slice in due.chunks(SLICE) {
                for task in shared.tasks(slice.to_vec()).await? {
                    if let Some(task) = following.tell(task) {
                        yield task;
                    }
                }
            }
            if following.live.is_empty() {
                break;
            }
            due = following.next(&watcher).await;
        }
    })
}

/// What the caller knows, and what it may be told later.
#[derive(Default)]
struct Following {
    /// The last message of each job that is not terminal.
    live: BTreeMap<Which, Told>,
    /// Jobs that became unknown, and when that is told.
    hushed: BTreeMap<Which, Instant>,
}

/// What the last message of a job said, as far as it matters for the next one.
struct Told {
    position: u64,
    transient: bool,
    state: String,
    substate: String,
    attempt: u32,
    node: Option<String>,
}

impl Following {
    /// The jobs to look at next: those that changed, or whose hush is over.
    async fn next(&mut self, watcher: &Arc<Watcher>) -> Vec<Which> {
        let over = self.hushed.values().min().copied();
        let changed = async {
            let changed = watcher.changed().await;
            let followed = self.live.keys().filter(|which| changed.contains(&which.job()));
            followed.copied().collect::<Vec<Which>>()
        };
        let due = match over {
            None => changed.await,
            Some(over) => tokio::select! {
                due = changed => due,
                () = tokio::time::sleep_until(over) => self.hush_over(Instant::now()),
            },
        };
        due.into_iter().filter(|job| self.live.contains_key(job)).collect()
    }

    fn hush_over(&self, now: Instant) -> Vec<Which> {
        self.hushed.iter().filter(|(_, over)| **over <= now).map(|(job, _)| *job).collect()
    }

    /// The message for a task as it is now, if there is something new to tell.
    fn tell(&mut self, task: v1::Task) -> Option<v1::Task> {
        let job = match task.task {
            Some(_) => Which::One(TaskId { job: JobId(task.job), index: task.task }),
            None => Which::Whole(JobId(task.job)),
        };
        let told = self.live.get(&job);
        if told.is_some_and(|told| told.position == task.position) {
            return None;
        }
        if told.is_some_and(|told| !told.transient) && task.transient {
            let over = *self.hushed.entry(job).or_insert_with(|| Instant::now() + HUSH);
            if Instant::now() < over {
                return None;
            }
        }
        let claimed_again = self.hushed.remove(&job).is_some() && !task.transient;
        let now = Told::of(&task);
        // That one of many dependencies is met concerns nobody who waits for the end.
        let waits_on = now.substate == "waiting";
        let quiet = claimed_again || waits_on;
        let same = quiet && told.is_some_and(|told| told.same_to_people(&now));
        if task.terminal {
            self.live.remove(&job);
        } else {
            self.live.insert(job, now);
        }
        (!same).then_some(task)
    }
}

impl Told {
    fn of(task: &v1::Task) -> Told {
        Told {
            position: task.position,
            transient: task.transient,
            state: task.state.clone(),
            substate: task.substate.clone(),
            attempt: task.attempt,
            node: task.node.clone(),
        }
    }

    fn same_to_people(&self, now: &Told) -> bool {
        (&self.state, &self.substate, self.attempt, &self.node)
            == (&now.state, &now.substate, now.attempt, &now.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(state: &str, position: u64) -> v1::Task {
        v1::Task {
            job: 1,
            state: state.to_owned(),
            transient: state == "UNKWN",
            terminal: matches!(state, "DONE" | "EXIT"),
            attempt: 1,
            position,
            ..v1::Task::default()
        }
    }

    fn told(following: &mut Following, state: &str, position: u64) -> bool {
        following.tell(task(state, position)).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_unknown_is_not_told() {
        let mut following = Following::default();
        assert!(told(&mut following, "RUN", 1));
        assert!(!told(&mut following, "RUN", 1), "nothing changed");
        assert!(!told(&mut following, "UNKWN", 2));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(!told(&mut following, "UNKWN", 2));
        assert!(!told(&mut following, "RUN", 3), "claimed again");
        assert!(told(&mut following, "DONE", 4));
        assert!(following.live.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_unknown_is_told_and_so_is_what_follows() {
        let mut following = Following::default();
        assert!(told(&mut following, "RUN", 1));
        assert!(!told(&mut following, "UNKWN", 2));
        let watcher = Arc::new(Watcher::default());
        assert_eq!(following.next(&watcher).await, [Which::Whole(JobId(1))]);
        assert!(told(&mut following, "UNKWN", 2));
        assert!(told(&mut following, "RUN", 3));
        assert!(!told(&mut following, "UNKWN", 4));
        assert!(told(&mut following, "EXIT", 5), "an end is told at once");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_message_comes_at_once_even_if_unknown() {
        let mut following = Following::default();
        assert!(told(&mut following, "UNKWN", 7));
    }
}
