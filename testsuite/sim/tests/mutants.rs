//! With the feature `mutants`: every bug that can be switched on is caught by a property that is
//! named for it, and a failing run is made smaller.
#![cfg(feature = "mutants")]

use sim::{Case, ROWS, Tracing, hunt, run_case, shrink};

/// "Facts are acknowledged when they come": no assertion of a debug build stops it before a property
/// does, which ends a run without a report.
const UNASSERTED: u16 = 26;

#[test]
fn every_mutant_is_caught_by_a_property_that_is_named_for_it() {
    std::panic::set_hook(Box::new(|_| {}));
    for row in ROWS {
        let caught = hunt(row);
        assert!(caught.is_some(), "{:?} survives {} seeds", row.mutant, row.bound);
        let by = caught.as_ref().map(|caught| caught.violation.property);
        assert!(caught.is_some_and(|caught| row.expects(&caught)), "{:?}: {by:?}", row.mutant);
    }
}

#[test]
fn a_failing_run_is_made_smaller_and_its_command_repeats_it() {
    let row = ROWS.iter().find(|row| row.mutant.number() == UNASSERTED);
    let seed = row.expect("the table has every mutant").seed;
    let case = Case { seed, mutant: Some(UNASSERTED), ..Case::default() };
    let whole = case.run();
    let smaller = shrink(&case).expect("the mutant is caught with this seed");
    let property = |report: &sim::Report| report.violation.as_ref().map(|v| v.property);
    assert_eq!(property(&smaller.report), property(&whole));
    assert_ne!(smaller.case.trim, case.trim, "something is left out");
    assert!(smaller.left.0 <= 3 && smaller.left.1 <= 10, "{:?} are left", smaller.left);
    let command = smaller.case.command();
    assert!(command.starts_with("cargo run --release -p testsuite --bin sim"), "{command}");
    assert_eq!(smaller.case.run(), smaller.report, "the same again");
}

#[test]
fn a_mutated_run_gives_the_same_bytes_twice() {
    let case = Case { seed: 2, mutant: Some(UNASSERTED), ..Case::default() };
    let (first, second) = (run_case(&case, Tracing::Keep), run_case(&case, Tracing::Keep));
    assert!(first == second && !first.trace.is_empty());
}
