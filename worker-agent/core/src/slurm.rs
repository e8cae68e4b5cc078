//! Slurm's names for what a job's environment tells, for scripts that were written for it
//! (`docs/slurm.md`): from the grant, the specification and what the submitter said.

use crate::environment::{JobPlace, name_of, variable};
use proto::v1::{ArraySpec, JobSpec, TaskRange};

/// What Slurm's names tell beyond docket's own.
#[derive(Clone, Copy, Debug)]
pub struct SlurmPlace<'a> {
    /// Attempt, node and cpus.
    pub place: JobPlace<'a>,
    /// Memory granted in bytes; 0: none.
    pub mem_bytes: u64,
    /// User id of the job.
    pub uid: u32,
    /// Login name.
    pub user: &'a str,
}

/// Tasks in Slurm's sense, which the submitter says.
const NTASKS: &[u8] = b"SLURM_NTASKS";

/// Sets Slurm's variables; a submitted value stays only of those that the node cannot know.
pub fn add_slurm(env: &mut Vec<Vec<u8>>, spec: &JobSpec, at: &SlurmPlace<'_>) {
    let said = env.iter().find(|var| name_of(var) == NTASKS).and_then(|var| {
        let value = std::str::from_utf8(var.get(NTASKS.len() + 1..)?).ok()?;
        value.parse::<u32>().ok().filter(|tasks| *tasks > 0)
    });
    let vars = variables(spec, at, said.unwrap_or(1));
    env.retain(|var| !vars.iter().any(|(name, _)| name.as_bytes() == name_of(var)));
    env.extend(vars.into_iter().map(|(name, value)| variable(name, value.as_bytes())));
}

fn variables(spec: &JobSpec, at: &SlurmPlace<'_>, ntasks: u32) -> Vec<(&'static str, String)> {
    /// Bytes of a MiB, in which Slurm counts memory.
    const MIB: u64 = 1 << 20;
    let JobPlace { attempt, node, cpus, .. } = at.place;
    let job = attempt.task.job.to_string();
    // Of a task of an array a number of its own, as in Slurm: scripts name scratch directories by it.
    let own = match attempt.task.index {
        Some(index) => format!("{job}_{index}"),
        None => job.clone(),
    };
    let per_task = (cpus / ntasks).max(1);
    let mut vars = vec![
        ("SLURM_JOB_ID", own.clone()),
        ("SLURM_JOBID", own),
        ("SLURM_JOB_NAME", spec.name.clone()),
        ("SLURM_JOB_PARTITION", spec.queue.clone()),
        ("SLURM_JOB_USER", at.user.to_owned()),
        ("SLURM_JOB_UID", at.uid.to_string()),
        ("SLURM_CPUS_ON_NODE", cpus.to_string()),
        ("SLURM_JOB_CPUS_PER_NODE", cpus.to_string()),
        ("SLURM_CPUS_PER_TASK", per_task.to_string()),
        ("SLURM_NTASKS", ntasks.to_string()),
        ("SLURM_NPROCS", ntasks.to_string()),
        ("SLURM_TASKS_PER_NODE", ntasks.to_string()),
        ("SLURM_NNODES", "1".to_owned()),
        ("SLURM_JOB_NUM_NODES", "1".to_owned()),
        ("SLURM_JOB_NODELIST", node.to_owned()),
        ("SLURM_NODELIST", node.to_owned()),
        ("SLURMD_NODENAME", node.to_owned()),
        ("SLURM_NODEID", "0".to_owned()),
        ("SLURM_PROCID", "0".to_owned()),
        ("SLURM_LOCALID", "0".to_owned()),
    ];
    if at.mem_bytes > 0 {
        vars.push(("SLURM_MEM_PER_NODE", at.mem_bytes.div_ceil(MIB).to_string()));
    }
    if let Some(gpus) = at.place.gpus.filter(|gpus| !gpus.is_empty()) {
        let list: Vec<String> = gpus.iter().map(u32::to_string).collect();
        vars.push(("SLURM_JOB_GPUS", list.join(",")));
        vars.push(("SLURM_GPUS_ON_NODE", gpus.len().to_string()));
    }
    if attempt.attempt > 1 {
        vars.push(("SLURM_RESTART_COUNT", (attempt.attempt - 1).to_string()));
    }
    if let (Some(index), Some(array)) = (attempt.task.index, &spec.array) {
        vars.push(("SLURM_ARRAY_JOB_ID", job));
        vars.push(("SLURM_ARRAY_TASK_ID", index.to_string()));
        vars.extend(of_array(array));
    }
    vars
}

fn of_array(array: &ArraySpec) -> [(&'static str, String); 4] {
    let step = |range: &TaskRange| range.step.max(1);
    let count = |range: &TaskRange| {
        u64::from(range.last.saturating_sub(range.first)) / u64::from(step(range)) + 1
    };
    let last =
        |range: &TaskRange| range.last - range.last.saturating_sub(range.first) % step(range);
    let ranges = || array.ranges.iter();
    let total: u64 = ranges().map(count).sum();
    [
        ("SLURM_ARRAY_TASK_COUNT", total.to_string()),
        ("SLURM_ARRAY_TASK_MIN", ranges().map(|r| r.first).min().unwrap_or(0).to_string()),
        ("SLURM_ARRAY_TASK_MAX", ranges().map(last).max().unwrap_or(0).to_string()),
        ("SLURM_ARRAY_TASK_STEP", ranges().next().map_or(1, step).to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::{AttemptId, JobId, TaskId};

    fn env_of(submitted: &[&str], spec: &JobSpec, index: Option<u32>, attempt: u32) -> Vec<String> {
        let task = TaskId { job: JobId(12), index };
        let place = JobPlace {
            attempt: AttemptId { task, attempt },
            node: "n1",
            cpus: 8,
            gpus: Some(&[1, 3]),
        };
        let at = SlurmPlace { place, mem_bytes: 3 << 29, uid: 7, user: "ada" };
        let mut env: Vec<Vec<u8>> = submitted.iter().map(|var| var.as_bytes().to_vec()).collect();
        add_slurm(&mut env, spec, &at);
        env.into_iter().map(|var| String::from_utf8(var).unwrap()).collect()
    }

    fn spec() -> JobSpec {
        JobSpec { name: "fit".into(), queue: "long".into(), ..JobSpec::default() }
    }

    #[test]
    fn a_plain_job_has_slurms_names_of_the_grant() {
        let env = env_of(
            &["A=1", "SLURM_NTASKS=4", "SLURM_JOB_ID=9", "SLURM_SUBMIT_DIR=/d"],
            &spec(),
            None,
            1,
        );
        for var in [
            "A=1",
            "SLURM_SUBMIT_DIR=/d",
            "SLURM_JOB_ID=12",
            "SLURM_JOB_NAME=fit",
            "SLURM_JOB_PARTITION=long",
            "SLURM_CPUS_ON_NODE=8",
            "SLURM_NTASKS=4",
            "SLURM_CPUS_PER_TASK=2",
            "SLURM_MEM_PER_NODE=1536",
            "SLURM_JOB_NODELIST=n1",
            "SLURM_NNODES=1",
            "SLURM_JOB_UID=7",
            "SLURM_JOB_GPUS=1,3",
            "SLURM_GPUS_ON_NODE=2",
        ] {
            assert_eq!(env.iter().filter(|have| *have == var).count(), 1, "{var} in {env:?}");
        }
        let names: std::collections::BTreeSet<_> =
            env.iter().map(|var| var.split('=').next()).collect();
        assert_eq!(names.len(), env.len(), "each name once: {env:?}");
        assert!(!env.iter().any(|var| var.contains("ARRAY") || var.contains("RESTART")), "{env:?}");
        let bare = env_of(&["SLURM_NTASKS=x"], &spec(), None, 1);
        assert!(bare.contains(&"SLURM_NTASKS=1".to_owned()));
        assert!(bare.contains(&"SLURM_CPUS_PER_TASK=8".to_owned()));
    }

    #[test]
    fn a_task_of_an_array_has_its_own_number_and_those_of_the_array() {
        let range = |first, last, step| TaskRange { first, last, step };
        let array =
            ArraySpec { ranges: vec![range(2, 9, 3), range(20, 20, 0)], ..ArraySpec::default() };
        let env = env_of(&[], &JobSpec { array: Some(array), ..spec() }, Some(5), 3);
        for var in [
            "SLURM_JOB_ID=12_5",
            "SLURM_ARRAY_JOB_ID=12",
            "SLURM_ARRAY_TASK_ID=5",
            "SLURM_ARRAY_TASK_COUNT=4",
            "SLURM_ARRAY_TASK_MIN=2",
            "SLURM_ARRAY_TASK_MAX=20",
            "SLURM_ARRAY_TASK_STEP=3",
            "SLURM_RESTART_COUNT=2",
        ] {
            assert!(env.contains(&var.to_owned()), "{var} in {env:?}");
        }
        let edge = ArraySpec { ranges: vec![range(2, 9, 3)], ..ArraySpec::default() };
        let env = env_of(&[], &JobSpec { array: Some(edge), ..spec() }, Some(2), 1);
        assert!(env.contains(&"SLURM_ARRAY_TASK_MAX=8".to_owned()), "{env:?}");
    }
}
