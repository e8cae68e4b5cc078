//! Options and commands that people bring from Slurm, and those that later versions of docket have:
//! each is refused with what to write instead.

/// Options of Slurm that docket spells otherwise, or has no use for.
const SLURM: [(&[&str], &str); 25] = [
    (&["--partition"], "docket calls it -p or --queue"),
    (&["--ntasks", "-n"], "a docket job is one command: -c N reserves cpus for it"),
    (&["--nodes", "-N"], "a docket job runs on one node: -w NODE chooses it"),
    (&["--cpus-per-task"], "docket calls it -c or --cpus"),
    (
        &["--ntasks-per-node", "--ntasks-per-core"],
        "a docket job is one command: -c N reserves cpus",
    ),
    (&["--mem-per-cpu"], "give the whole memory of the job: --mem SIZE"),
    (&["--chdir"], "docket calls it -D or --dir"),
    (&["--output"], "docket calls it -o or --stdout"),
    (&["--error"], "docket calls it -e or --stderr"),
    (&["--input", "-i"], "docket calls it --stdin"),
    (&["--job-name"], "docket calls it -J or --name"),
    (&["--export"], "your variables go with the job; choose with --env, --env-only or --clean-env"),
    (&["--wrap"], "give the command itself: -- sh -c 'COMMAND'"),
    (&["--nodelist"], "docket calls it -w or --node"),
    (&["--constraint", "-C"], "docket calls it --node-label k=v"),
    (&["--exclusive"], "reserve all cpus of the node: -c N"),
    (&["--parsable"], "leave it out: submit prints the job id and nothing else"),
    (&["--account", "-A", "--qos", "-q"], "docket has no accounts: leave it out"),
    (&["--mail-type", "--mail-user"], "docket sends no mail: docket wait ID && …"),
    (&["--requeue", "--no-requeue"], "a job is run again only where you ask for it: --retries N"),
    (&["--exclude", "-x"], "choose nodes with --node-label k=v"),
    (&["--licenses", "-L"], "docket calls it --resource NAME=N"),
    (
        &["--gres", "-G", "--gpus-per-node"],
        "docket calls it --gpus N, and other consumables --resource NAME=N",
    ),
    (&["--reservation"], "docket has none: leave it out"),
    (&["--time-min"], "give the limit itself: --time DUR"),
];

/// Options that the contract names and this version does not have, with what does the same now.
const LATER: [(&[&str], &str); 1] = [(&["--watch"], "")];

/// What to do instead of an option that docket does not have.
pub fn hint(option: &str) -> Option<String> {
    let of = |names: &[&str]| names.contains(&option);
    if let Some((_, instead)) = LATER.iter().find(|(names, _)| of(names)) {
        return Some(format!("not in this version of docket{instead}"));
    }
    SLURM.iter().find(|(names, _)| of(names)).map(|(_, hint)| (*hint).to_owned())
}

/// What `set` does not change.
const LATER_SET: [&str; 10] = [
    "--gpus",
    "--queue",
    "-p",
    "--node",
    "-w",
    "--node-label",
    "--comment",
    "--begin",
    "--dependency",
    "--after-ok",
];

/// What to do instead of an option that `set` does not have.
pub fn set_hint(option: &str) -> Option<String> {
    LATER_SET.contains(&option).then(|| {
        "set does not change that: it changes --priority, --time, --name, --cpus, --mem and \
         --array-limit; cancel the job and submit it anew to change anything else"
            .to_owned()
    })
}

/// Commands of Slurm, and docket's that do the same.
const SLURM_COMMANDS: [(&str, &str); 9] = [
    ("squeue", "docket list"),
    ("sacct", "docket list --all"),
    ("sbatch", "docket submit SCRIPT, or docket submit -- CMD"),
    ("srun", "docket run -- CMD"),
    ("salloc", "docket run -- CMD"),
    ("scancel", "docket cancel ID"),
    ("sinfo", "docket nodes"),
    ("scontrol", "docket show ID, or docket nodes"),
    ("sattach", "docket logs -f ID"),
];

/// Commands that the contract names and this version does not have, each behind the command that
/// it belongs to, with what does the same now.
const LATER_COMMANDS: [(&str, &str, &str); 9] = [
    ("", "top", "docket list shows the jobs, docket nodes the nodes"),
    ("cluster", "add", "there is one controller"),
    ("cluster", "remove", "there is one controller"),
    ("cluster", "promote", "there is one controller"),
    ("cluster", "transfer", "there is one controller"),
    ("cluster", "snapshot", "the controller makes its snapshots by itself"),
    ("cluster", "backup", "end the controller and copy its data directory"),
    ("cluster", "restore", "put back a copy of the data directory while nothing runs"),
    ("cluster", "resume", "nothing is stopped after a start"),
];

/// What to do instead of a command that docket does not have; `parent` is the command before it.
pub fn command_hint(parent: &str, given: &str) -> Option<String> {
    let later = |known: &&(&str, &str, &str)| (known.0, known.1) == (parent, given);
    if let Some((.., instead)) = LATER_COMMANDS.iter().find(later) {
        let name = format!("{parent} {given}");
        return Some(format!("not in this version of docket: {}: {instead}", name.trim_start()));
    }
    let slurm = SLURM_COMMANDS.iter().find(|(name, _)| parent.is_empty() && *name == given);
    slurm.map(|(name, command)| format!("{name} is Slurm's: {command}"))
}
