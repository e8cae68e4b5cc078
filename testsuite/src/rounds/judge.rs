//! Is what docket says of a job true? The job's own files are the oracle.

use super::job::{Ending, Job};
use crate::world::{Tale, World};
use serde_json::Value;

/// What was killed in a round, as far as it excuses an end without a code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Killed {
    pub agent: bool,
    pub keeper: bool,
    /// The jobs themselves.
    pub jobs: bool,
}

/// The end's kind, or what is wrong with it.
pub(super) fn judge(
    world: &World,
    job: &Job,
    killed: Killed,
    task: &Value,
    tale: &Tale,
) -> Result<String, String> {
    let kind = task["reason"]["kind"].as_str().unwrap_or("exit-code");
    let (began, over) = (job.began(world), job.came_to_its_end(world));
    let must = |holds: bool, what: &str| holds.then_some(()).ok_or_else(|| what.to_owned());
    must(began <= 1, "it ran twice")?;
    must(task["terminal"] == true, "it is not terminal")?;
    must(task["finish_time"].is_string(), "it has no time of its end")?;
    must(task["attempt"].as_u64().is_some_and(|n| n <= 1 || began <= 1), "a second attempt")?;
    must(tale.count("-> EXIT") + tale.count("-> DONE") == 1, "it has not exactly one end")?;
    let code = task["exit_code"].as_i64();
    let without_code = code.is_none() && task["signal"].is_null();
    match kind {
        "exit-code" => {
            must(code.is_some() && job.ending == Ending::Code(code.unwrap_or(-1)), "wrong code")?;
            must(began == 1 && over, "a code of a job that did not end")?;
            must((task["state"] == "DONE") == (code == Some(0)), "wrong state for its code")?;
        }
        "signal" => {
            let signal = task["signal"].as_i64().unwrap_or(-1);
            let own = job.ending == Ending::Signal(signal) && over;
            must(own || (killed.jobs && signal == 9), "wrong signal")?;
        }
        "start-failed" => must(job.ending == Ending::NoProgram && began == 0, "it could start")?,
        "agent-died" => {
            must(killed.agent && !job.survives, "its agent's death could not end it")?;
            must(without_code, "a code is invented")?;
        }
        "unknown-status" => {
            must(killed.keeper, "its keeper was there to read the status")?;
            must(without_code, "a code is invented")?;
        }
        _ => return Err(format!("nothing in this round can end a job as {kind}")),
    }
    judge_late(job, kind, over, &task["late_outcome"])?;
    Ok(kind.to_owned())
}

/// A late end is the truth, or docket's own kill of what had to go.
fn judge_late(job: &Job, kind: &str, over: bool, late: &Value) -> Result<(), String> {
    if late.is_null() {
        return Ok(());
    }
    let true_words = match late["kind"].as_str().unwrap_or_default() {
        "exit-code" => over && job.ending == Ending::Code(late["code"].as_i64().unwrap_or(-1)),
        "signal" => {
            let signal = late["signal"].as_i64().unwrap_or(-1);
            matches!(signal, 9 | 15) || (over && job.ending == Ending::Signal(signal))
        }
        "unknown-status" => true,
        _ => false,
    };
    match kind {
        "agent-died" if true_words => Ok(()),
        "agent-died" => Err("what is told late is not true".to_owned()),
        _ => Err(format!("a late end beside {kind}")),
    }
}
