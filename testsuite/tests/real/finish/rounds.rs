//! A few random rounds with a fixed seed; `--bin rounds` runs 200.

use std::path::Path;
use testsuite::rounds::kills;
use testsuite::world::Turn;

#[test]
fn a_few_rounds_of_random_kills_leave_every_job_with_one_true_end() {
    let exe = Path::new(env!("CARGO_BIN_EXE_docket_under_test"));
    let tally = kills::run(exe, &Turn::alone(), 20_261_130, 0, 6, 3, &|| ());
    assert_eq!(tally.failed, [0; 0], "rounds that failed; their stories are above");
    assert_eq!(tally.ends.values().sum::<u64>(), 60, "{:?}", tally.ends);
}
