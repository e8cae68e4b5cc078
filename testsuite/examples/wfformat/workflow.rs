//! A workflow in WfFormat 1.5 (WfCommons): its tasks, parents first.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A task of a workflow.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// Ids of those that it waits for.
    pub parents: Vec<String>,
    /// How long it ran when the workflow was recorded, in seconds.
    pub runtime_s: f64,
}

/// Reads a workflow; each task comes after all its parents.
pub fn read(text: &str) -> Result<Vec<Task>> {
    let all: Value = serde_json::from_str(text)?;
    let list = |path: &str| {
        let found = all.pointer(path).and_then(Value::as_array);
        found.with_context(|| format!("no list at {path}: is it WfFormat 1.5?"))
    };
    let mut runtimes = BTreeMap::new();
    for run in list("/workflow/execution/tasks")? {
        runtimes.insert(word(run, "id")?, run["runtimeInSeconds"].as_f64().context("a run time")?);
    }
    let mut tasks = BTreeMap::new();
    for task in list("/workflow/specification/tasks")? {
        let id = word(task, "id")?;
        let parents = task["parents"].as_array().context("parents")?;
        let parents = parents.iter().map(|p| Ok(p.as_str().context("a parent")?.to_owned()));
        let parents = parents.collect::<Result<Vec<String>>>()?;
        let runtime_s = *runtimes.get(&id).with_context(|| format!("{id} was never run"))?;
        tasks.insert(id.clone(), Task { id, parents, runtime_s });
    }
    parents_first(tasks)
}

fn word(of: &Value, field: &str) -> Result<String> {
    Ok(of[field].as_str().with_context(|| format!("no {field}"))?.to_owned())
}

fn parents_first(mut left: BTreeMap<String, Task>) -> Result<Vec<Task>> {
    let (mut placed, mut order) = (BTreeSet::new(), Vec::new());
    while !left.is_empty() {
        let ready: Vec<String> = left
            .values()
            .filter(|task| task.parents.iter().all(|parent| placed.contains(parent)))
            .map(|task| task.id.clone())
            .collect();
        ensure!(
            !ready.is_empty(),
            "{} tasks wait for each other, or for none that is there",
            left.len()
        );
        for id in ready {
            order.extend(left.remove(&id));
            placed.insert(id);
        }
    }
    Ok(order)
}
