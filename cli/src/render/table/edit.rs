//! `docket hold`, `release`, `suspend`, `resume` and `set`: what became of each job. Those that
//! were refused are told as errors.

use crate::render::escape::line;
use crate::render::named;
use proto::v1::EditResult;

/// One line a job.
pub fn edited(results: &[EditResult]) -> String {
    let done = results.iter().filter(|result| result.error.is_none());
    done.map(|result| format!("{} {}\n", named(result.job, result.tasks.as_ref()), words(result)))
        .collect()
}

fn words(result: &EditResult) -> String {
    let state = result.state.as_str();
    match result.outcome.as_str() {
        "held" => "held: it starts after docket release".to_owned(),
        "suspend-requested" if state == "SUSP" => "is suspended".to_owned(),
        "resume-requested" if state == "RUN" => "runs".to_owned(),
        "suspend-requested" => format!("suspend requested: {}", carried_out(result, "stops")),
        "resume-requested" => format!("resume requested: {}", carried_out(result, "continues")),
        "set" if state == "PEND" || state.is_empty() => "is set".to_owned(),
        "set" => format!(
            "is set; it is {}: a limit holds at once, a priority if queued again",
            line(state)
        ),
        other => line(other),
    }
}

/// Who carries it out, and when.
fn carried_out(result: &EditResult, does: &str) -> String {
    let node = result.node.as_ref().map_or_else(|| "its node".to_owned(), |node| line(node));
    match result.state.as_str() {
        "UNKWN" => format!("it is UNKWN; {node} {does} it when it is back"),
        "PEND" => format!("{node} {does} it as soon as it has started"),
        _ => format!("{node} {does} it"),
    }
}
