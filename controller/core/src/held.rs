//! Who holds what is missing, in words: licences of the cluster, and what attempts left behind of which
//! nobody knows whether they still live.

use crate::ledger::{Agent, Job, Ledger, Leftover};
use crate::scheduler::{Missing, free_by};
use crate::words;
use proto::{AttemptId, TaskId};

/// Holders of one consumable that an explanation names.
const NAMED_MAX: usize = 8;

/// What a task waits for of what the cluster offers: who has it, and until when.
pub(crate) fn of_cluster(ledger: &Ledger, id: TaskId, missing: &Missing) -> Vec<String> {
    let mut lines = Vec::new();
    for part in missing.each() {
        let Some(name) = part.name() else { continue };
        if part.short.asked > part.all {
            let (all, asked) = (part.all, part.short.asked);
            lines.push(format!(
                "It can never start while the cluster has {all} of {name}: docket cluster set \
                 resource.{name} {asked}, or docket cancel {id} and ask for less."
            ));
        }
        lines.extend(holders(ledger, name));
    }
    if let Some(at) = free_by(ledger, missing) {
        let at = words::time_of_day(at);
        lines.push(format!("By the time limits of these enough of it is free by {at}."));
    }
    lines
}

fn holders(ledger: &Ledger, name: &str) -> Vec<String> {
    let all = ledger.holders(name);
    let live: Vec<String> = all
        .iter()
        .filter(|holder| holder.leftover.is_none())
        .map(|holder| match holder.amount {
            1 => holder.task.to_string(),
            more => format!("{} ({more})", holder.task),
        })
        .collect();
    let more = match live.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = live.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let live = (!live.is_empty()).then(|| format!("{name} is held by {named}{more}."));
    let left = all.iter().filter_map(|holder| {
        let (leftover, amount) = (holder.leftover?, holder.amount);
        let node = node_name(ledger, leftover);
        let how = words::kind_name(leftover.kind);
        Some(format!(
            "{amount} of {name} is held by job {}, which ended as {how} on {node}: it may live until {node} is \
             back without it; if you know that it is dead: docket nodes confirm-dead {node}",
            holder.task
        ))
    });
    live.into_iter().chain(left).collect()
}

/// Of a job that is over: what it may still hold, and until when.
pub(crate) fn of_ended(ledger: &Ledger, job: &Job) -> Vec<String> {
    let own = |(id, _): &(AttemptId, &Leftover)| id.task == job.task_id();
    let left = ledger.leftovers().filter(own);
    left.map(|(_, leftover)| {
        let node = node_name(ledger, leftover);
        format!(
            "It may still live and hold {}: that is free once {node} is back without it, or after: docket \
             nodes confirm-dead {node}",
            leftover.holds()
        )
    })
    .collect()
}

/// What an operator should know of a node: what is over there and still binds something.
pub fn left_on(ledger: &Ledger, agent: &Agent) -> Option<String> {
    let all: Vec<String> = ledger
        .leftovers_of(agent.id())
        .map(|(id, leftover)| format!("{} may hold {}", id.task, leftover.holds()))
        .collect();
    (!all.is_empty())
        .then(|| format!("{} after its end: docket nodes confirm-dead frees that", all.join(", ")))
}

fn node_name(ledger: &Ledger, leftover: &Leftover) -> String {
    let agent = ledger.agent(&leftover.grant.agent);
    agent.map_or_else(|| leftover.grant.agent.to_string(), |agent| agent.name().to_owned())
}
