//! `docket wait`.

use super::context::{Context, jobs};
use super::follow::{Until, follow};
use super::outcome::exit_code_of_all;
use super::stuck::with_word;
use crate::args::WaitArgs;
use crate::failure::Failure;
use crate::parse::exact_duration;
use crate::render::{task_line, verdict};
use crate::say::{note, print};
use proto::v1::Task;
use std::collections::BTreeMap;

/// Most jobs in one request; the server's limit.
const JOBS_MAX: usize = 10_000;

/// Waits, says how each ended that is not DONE, and gives the exit code.
pub async fn wait(context: &Context, args: &WaitArgs) -> Result<u8, Failure> {
    let mut ids = jobs(&args.ids)?;
    ids.sort_unstable();
    ids.dedup();
    let until = if args.any { Until::Any } else { Until::All };
    if until == Until::Any && ids.len() > JOBS_MAX {
        return Err(Failure::Usage(format!("--any takes at most {JOBS_MAX} ids: give fewer")));
    }
    let mut client = context.client().await?;
    let mut states: BTreeMap<u64, String> = BTreeMap::new();
    let asker = client.clone();
    let waiting = with_word(&asker, &ids, async {
        let mut ended = Vec::new();
        for part in ids.chunks(JOBS_MAX) {
            let seen = |task: &Task| {
                states.insert(task.job, task.state.clone());
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
    told(args, &ended)?;
    Ok(exit_code_of_all(&ended))
}

fn told(args: &WaitArgs, ended: &[Task]) -> Result<(), Failure> {
    for task in ended {
        if args.json {
            print(&task_line(task))?;
        } else if args.any {
            print(&format!("{}\n", task.job))?;
        }
        if task.state != "DONE" {
            note(&verdict(task));
        }
    }
    Ok(())
}

fn timed_out(ids: &[u64], states: &BTreeMap<u64, String>, limit: &str) -> Failure {
    let ended = |id: &&u64| states.get(id).is_some_and(|state| state == "DONE" || state == "EXIT");
    let live: Vec<&u64> = ids.iter().filter(|id| !ended(id)).collect();
    let what = match live[..] {
        [one] => match states.get(one) {
            Some(state) => format!("job {one} is still {state}"),
            None => format!("job {one} is not known to have ended"),
        },
        _ => format!("{} of {} jobs have not ended", live.len(), ids.len()),
    };
    let ids: Vec<String> = live.iter().take(10).map(ToString::to_string).collect();
    Failure::TimedOut { what, limit: limit.to_owned(), ids: ids.join(" ") }
}
