//! A small budget of seeds in every test run, and that a seed always does the same.

use sim::{Tracing, run};

/// Seeds of the budget: some seconds unoptimised. The thousands run in release.
const SEEDS: u64 = 40;

#[test]
fn a_budget_of_seeds_keeps_every_property() {
    for seed in 0..SEEDS {
        let report = run(seed, Tracing::Off);
        assert_eq!(
            report.violation, None,
            "seed {seed}; again: cargo run --release -p sim -- --seed {seed} --trace"
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
