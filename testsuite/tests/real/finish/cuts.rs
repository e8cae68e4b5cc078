//! Partitions as a network makes them: each length in each direction once. `--bin rounds -- cuts`
//! makes 50 of each with the default time-outs.

use std::path::Path;
use std::time::Duration;
use testsuite::rounds::cuts::{Cuts, Length};
use testsuite::world::{Cut, Pace, Turn};

/// What is unknown for so long is lost: longer than a rejoin on a busy machine takes.
const PACE: Pace = Pace { unknown_max: Duration::from_secs(8), ..Pace::QUICK };

/// The three directions side by side.
fn cut_each_way(test: &str, length: Length) {
    let exe = Path::new(env!("CARGO_BIN_EXE_docket_under_test"));
    let turn = Turn::shared();
    std::thread::scope(|scope| {
        for way in Cut::ALL {
            let cuts = Cuts { pace: PACE, length, way, seed: 1, strict: false };
            let turn = &turn;
            scope.spawn(move || {
                let (_, failed) = cuts.run(test, exe, turn, 1, 1, &|| ());
                assert!(failed.is_empty(), "{length:?} {way:?}");
            });
        }
    });
}

#[test]
fn a_short_cut_of_the_line_in_any_direction_keeps_every_code() {
    cut_each_way("a_short_cut_of_the_line_in_any_direction_keeps_every_code", Length::Short);
}

#[test]
fn a_cut_beyond_the_heartbeat_time_out_makes_jobs_unknown_and_they_run_again() {
    let test = "a_cut_beyond_the_heartbeat_time_out_makes_jobs_unknown_and_they_run_again";
    cut_each_way(test, Length::Long);
}

#[test]
fn a_cut_beyond_the_time_limit_loses_jobs_and_their_ends_are_late() {
    let test = "a_cut_beyond_the_time_limit_loses_jobs_and_their_ends_are_late";
    cut_each_way(test, Length::Endless);
}
