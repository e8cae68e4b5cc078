//! What would become of a job that is not submitted (`submit --dry-run`): whether it would be taken, whether
//! it could ever run, where, and when.

use crate::explain::{Sight, node_line, when};
use crate::ledger::{Ledger, Rejection};
use crate::scheduler::{Refusal, Would, would};
use crate::words;
use proto::v1;

/// Answers it, or says why such a job would be refused.
pub fn forecast(
    ledger: &Ledger,
    sight: &Sight,
    spec: &v1::JobSpec,
    by: &v1::Requester,
) -> Result<v1::DryRunAnswer, Rejection> {
    let never = ledger.would_take(spec, by)?;
    let would = would(ledger, &sight.reach(), spec);
    let dependency = never.and_then(|number| spec.dependencies.get(number as usize));
    let mut answer = v1::DryRunAnswer {
        ever: would.ever && dependency.is_none(),
        headline: headline(&would),
        nodes: would.nodes.iter().map(|node| node_line(ledger, sight, node)).collect(),
        ..v1::DryRunAnswer::default()
    };
    if let Some(dependency) = dependency {
        let job = dependency.job;
        answer.headline = format!(
            "It would end as dependency-failed at once: what it asks of {job} cannot be met"
        );
    }
    let waits = waits(ledger, spec);
    answer.now = would.now && answer.ever && waits.is_empty();
    if would.now && !answer.now && answer.ever {
        answer.headline = "It would not start at once, though there is room for it now".to_owned();
    }
    answer.lines.extend(waits);
    if !would.now && answer.ever {
        answer.lines.extend(would.start.as_ref().map(when));
        answer.start_wall_ms = would.start.and_then(|start| start.kept.at_wall_ms);
    }
    answer.headline.push('.');
    Ok(answer)
}

fn headline(would: &Would) -> String {
    match (would.nodes.is_empty(), would.warning()) {
        (true, _) => "No node has joined: nobody knows whether it could run".to_owned(),
        (_, Some(never)) => format!("It could never run: {never}"),
        (_, None) if would.now => {
            let takes = would.nodes.iter().filter(|node| node.refusal.is_none());
            let names: Vec<&str> = takes.take(3).map(|node| node.name.as_str()).collect();
            format!("It would start at once, on {}", names.join(" or "))
        }
        (_, None) => match &would.cluster {
            Some(missing) => format!("It would wait: {missing}"),
            None if would.nodes.iter().any(|node| node.refusal.as_ref().is_some_and(busy)) => {
                "It would wait until a node has room for it".to_owned()
            }
            None => "It would wait: no node takes it now".to_owned(),
        },
    }
}

fn busy(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Busy { .. })
}

/// What keeps it back whatever nodes have.
fn waits(ledger: &Ledger, spec: &v1::JobSpec) -> Vec<String> {
    let mut lines = Vec::new();
    if spec.hold {
        lines.push("It would be held until docket release.".to_owned());
    }
    if let Some(begin) = spec.begin_wall_ms.filter(|begin| *begin > ledger.wall()) {
        lines.push(format!("It would begin at {} at the soonest.", words::time_of_day(begin)));
    }
    let live = |id: &u64| ledger.entry(proto::JobId(*id)).is_some_and(|entry| !entry.terminal());
    let open: Vec<String> =
        spec.dependencies.iter().map(|d| d.job).filter(live).map(|id| id.to_string()).collect();
    if !open.is_empty() {
        lines.push(format!("It would wait for {}.", open.join(", ")));
    }
    lines
}
