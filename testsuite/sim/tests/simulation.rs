//! A small budget of seeds in every test run, and that a seed always does the same.

use sim::{Case, Tracing, Trim, run, run_case};

/// Seeds of the budget: some seconds unoptimised. The thousands run in release.
const SEEDS: u64 = 40;

#[test]
fn a_budget_of_seeds_keeps_every_property() {
    for seed in 0..SEEDS {
        let report = run(seed, Tracing::Off);
        assert_eq!(
            report.violation, None,
            "seed {seed}; again: cargo run --release -p testsuite --bin sim -- --seed {seed} --trace"
        );
    }
}

#[test]
fn the_same_seed_twice_gives_the_same_bytes() {
    for seed in [3, 5, 113] {
        let (first, second) = (run(seed, Tracing::Keep), run(seed, Tracing::Keep));
        assert!(!first.trace.is_empty());
        assert!(first == second, "seed {seed} did not do the same twice");
        assert_eq!(run(seed, Tracing::Off).events, first.events, "tracing changes nothing");
    }
}

#[test]
fn different_seeds_do_different_things() {
    assert_ne!(run(1, Tracing::Keep).trace, run(2, Tracing::Keep).trace);
}

#[test]
fn a_run_that_leaves_things_out_gives_the_same_bytes_twice() {
    let trim = Trim {
        nodes: Some(2),
        controllers: Some(1),
        jobs: Some(vec![0, 2, 5]),
        strikes: Some((0..40).collect()),
        calm_after: Some(30_000),
    };
    let case = Case { seed: 5, trim, mutant: None };
    let (first, second) = (run_case(&case, Tracing::Keep), run_case(&case, Tracing::Keep));
    assert!(first == second && first.violation.is_none());
    assert!(first.jobs <= 3, "only those jobs are submitted");
    let command = case.command();
    let head = "cargo run --release -p testsuite --bin sim -- --seed 5 --nodes 2 --controllers 1";
    assert!(command.starts_with(head) && command.contains("--jobs 0,2,5"), "{command}");
}
