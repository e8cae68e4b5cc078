//! `docket wait`.

use super::context::{Context, each};
use super::follow::{Until, follow, id_of};
use super::outcome::exit_code_of_all;
use super::stuck::with_word;
use crate::args::WaitArgs;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::render::escape::line;
use crate::render::{task_line, verdict};
use crate::say::{note, print};
use proto::TaskId;
use proto::v1::Task;
use std::collections::BTreeMap;
use units::exact_duration;

/// Most jobs in one request; the server's limit.
const JOBS_MAX: usize = 10_000;

/// Waits, says how each ended that is not DONE, and gives the exit code.
pub async fn wait(context: &Context, args: &WaitArgs) -> Result<u8, Failure> {
    let ids = each(&args.ids)?;
    let until = if args.any { Until::Any } else { Until::All };
    if until == Until::Any && ids.len() > JOBS_MAX {
        return Err(Failure::Usage(format!("--any takes at most {JOBS_MAX} ids: give fewer")));
    }
    let mut client = context.client().await?;
    let mut states: BTreeMap<TaskId, Seen> = BTreeMap::new();
    let mut far = Far::new(&ids);
    let asker = client.clone();
    let waiting = with_word(&asker, &ids, async {
        let mut ended = Vec::new();
        for part in ids.chunks(JOBS_MAX) {
            let seen = |task: &Task| {
                states.insert(id_of(task), Seen::of(task));
                far.saw(task);
            };
            ended.extend(follow(&mut client, part, until, seen).await?);
        }
        Ok::<_, Failure>(ended)
    });
    let ended = match args.timeout {
        None => waiting.await?,
        Some(limit) => match tokio::time::timeout(limit, waiting).await {
            Ok(ended) => ended?,
            Err(_) => return Err(timed_out(&ids, &states, &exact_duration(limit))),
        },
    };
    drop(far);
    told(args, &ended)?;
    Ok(exit_code_of_all(&ended))
}

fn told(args: &WaitArgs, ended: &[Task]) -> Result<(), Failure> {
    for task in ended {
        if args.json {
            print(&task_line(task))?;
        } else if args.any {
            print(&format!("{}\n", id_of(task)))?;
        }
        if task.state != "DONE" {
            note(&verdict(task));
        }
    }
    Ok(())
}

/// How far all of them are together: tasks that have ended, of how many.
struct Far {
    of: BTreeMap<TaskId, (u64, u64)>,
    /// The sums.
    ended: u64,
    total: u64,
    progress: Progress,
}

impl Far {
    fn new(ids: &[TaskId]) -> Far {
        let of: BTreeMap<TaskId, (u64, u64)> = ids.iter().map(|id| (*id, (0, 1))).collect();
        let progress = match of.len() {
            0 | 1 => Progress::none(),
            all => Progress::new("ended", Some(all as u64)),
        };
        Far { ended: 0, total: of.len() as u64, of, progress }
    }

    fn saw(&mut self, task: &Task) {
        let (ended, total) = match &task.array {
            None => (u64::from(task.terminal), 1),
            Some(array) => {
                let ended = |state: &str| array.counts.get(state).copied().unwrap_or(0);
                (ended("DONE") + ended("EXIT"), array.total)
            }
        };
        // One array alone has tasks to count as well.
        if self.of.len() == 1 && total > 1 && !task.terminal && self.of.values().all(|n| n.1 == 1) {
            self.progress = Progress::new("ended", Some(total));
        }
        let before = self.of.insert(id_of(task), (ended, total)).unwrap_or((0, 0));
        self.ended = self.ended + ended - before.0.min(self.ended);
        self.total = self.total + total - before.1.min(self.total);
        self.progress.set(self.ended, self.total);
    }
}

/// What the last word about a job said.
struct Seen {
    state: String,
    user: String,
}

impl Seen {
    fn of(task: &Task) -> Seen {
        Seen { state: task.state.clone(), user: line(&task.user) }
    }

    fn ended(&self) -> bool {
        matches!(self.state.as_str(), "DONE" | "EXIT")
    }

    /// What it still is; one that was stopped ends by no waiting.
    fn words(&self, job: TaskId) -> String {
        match self.state.as_str() {
            "SUSP" => format!(
                "job {job} is suspended: {} or root can let it go on with docket resume {job}",
                self.user
            ),
            state => format!("job {job} is still {state}"),
        }
    }
}

fn timed_out(ids: &[TaskId], states: &BTreeMap<TaskId, Seen>, limit: &str) -> Failure {
    let ended = |id: &&TaskId| states.get(id).is_some_and(Seen::ended);
    let live: Vec<&TaskId> = ids.iter().filter(|id| !ended(id)).collect();
    let stopped = |id: &&&TaskId| states.get(id).is_some_and(|seen| seen.state == "SUSP");
    let what = match live[..] {
        [one] => match states.get(one) {
            Some(seen) => seen.words(*one),
            None => format!("job {one} is not known to have ended"),
        },
        _ => {
            let (live, stopped) = (live.len(), live.iter().filter(stopped).count());
            let stopped = match stopped {
                0 => String::new(),
                _ => format!(" ({stopped} suspended, until docket resume)"),
            };
            format!("{live} of {} jobs have not ended{stopped}", ids.len())
        }
    };
    let ids: Vec<String> = live.iter().take(10).map(ToString::to_string).collect();
    Failure::TimedOut { what, limit: limit.to_owned(), ids: ids.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(job: u64) -> TaskId {
        TaskId::plain(proto::JobId(job))
    }

    fn states(states: &[(u64, &str)]) -> BTreeMap<TaskId, Seen> {
        let seen = |state: &str| Seen { state: state.to_owned(), user: "mia".to_owned() };
        states.iter().map(|(id, state)| (plain(*id), seen(state))).collect()
    }

    #[test]
    fn a_wait_that_times_out_on_a_suspended_job_says_who_can_resume_it() {
        let text = timed_out(&[plain(4)], &states(&[(4, "SUSP")]), "5s").to_string();
        let expected = "job 4 is suspended: mia or root can let it go on with docket resume 4";
        assert!(text.contains(expected), "{text}");
        let text = timed_out(&[plain(4)], &states(&[(4, "RUN")]), "5s").to_string();
        assert!(text.contains("job 4 is still RUN"), "{text}");
        let three = states(&[(1, "DONE"), (2, "SUSP"), (3, "RUN")]);
        let text = timed_out(&[1, 2, 3].map(plain), &three, "5s").to_string();
        assert!(text.contains("2 of 3 jobs have not ended (1 suspended, until docket resume)"));
    }
}
