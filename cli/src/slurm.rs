//! Options that people bring from Slurm, and those that later versions of docket have: each is
//! refused with what to write instead.

/// Options of Slurm that docket spells otherwise, or has no use for.
const SLURM: [(&[&str], &str); 24] = [
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
    (
        &["--requeue", "--no-requeue"],
        "leave it out: a job is never run twice unless you ask for it",
    ),
    (&["--signal"], "a time limit sends SIGTERM, and SIGKILL after --kill-grace"),
    (&["--exclude", "-x"], "choose nodes with --node-label k=v"),
    (&["--licenses", "-L", "--reservation"], "docket has none: leave it out"),
    (&["--time-min"], "give the limit itself: --time DUR"),
];

/// Options that the contract names and this version does not have.
const LATER: [&str; 25] = [
    "--array",
    "-a",
    "--gpus",
    "-G",
    "--gres",
    "--resource",
    "--after-ok",
    "--after",
    "--after-any",
    "--after-not-ok",
    "--after-not",
    "--after-start",
    "--after-each",
    "--dependency",
    "-d",
    "--begin",
    "--retries",
    "--retry-on",
    "--fence-after",
    "--hold",
    "-H",
    "--dry-run",
    "--http",
    "--watch",
    "--orphans",
];

/// What to do instead of an option that docket does not have.
pub fn hint(option: &str) -> Option<&'static str> {
    if LATER.contains(&option) {
        return Some("not in this version of docket yet; leave it out");
    }
    SLURM.iter().find(|(names, _)| names.contains(&option)).map(|(_, hint)| *hint)
}
