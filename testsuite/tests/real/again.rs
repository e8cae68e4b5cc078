//! `docket retry`: jobs that have ended are submitted again, whole or only what failed of them.

use testsuite::world;
use testsuite::world::User;

#[test]
fn a_job_is_submitted_again_with_all_that_belongs_to_it() {
    let world = world!();
    let _node = world.up(2);
    let script = "read line; echo $line $COLOUR; [ -e fixed ]";
    let words =
        ["submit", "--env", "COLOUR=red", "--stdin", "-", "-J", "first", "--", "sh", "-c", script];
    let ran = world.docket_with_stdin(&words, b"from stdin\n");
    let job: u64 = ran.text().trim().parse().unwrap();
    assert_eq!(world.docket(&["wait", &job.to_string()]).code, Some(1));
    assert!(world.ok(&["show", &job.to_string()]).contains(&format!("docket retry {job}")));
    world.touch("fixed");
    let again: u64 = world.ok(&["retry", &job.to_string()]).trim().parse().unwrap();
    assert_ne!(again, job);
    assert_eq!(world.docket(&["wait", &again.to_string()]).code, Some(0));
    assert_eq!(world.ok(&["logs", &again.to_string()]), "from stdin red\n");
    let shown = world.show(again);
    assert_eq!((&shown["retry_of"], &shown["name"]), (&job.into(), &"first".into()));
    assert_eq!(world.show(job)["state"], "EXIT", "what was stays as it was");
    // What was set since counts; what lives or did not fail is refused by name, each for itself.
    let lives = world.submit(&["--", "sleep", "1000"]);
    let (lives, again) = (lives.to_string(), again.to_string());
    let ran = world.docket(&["retry", &lives, &again, "--failed"]);
    assert_ne!(ran.code, Some(0));
    assert!(ran.err().contains(&format!("job {lives} has not ended")), "{}", ran.describe());
    assert!(ran.err().contains(&format!("job {again} is DONE")), "{}", ran.describe());
    assert_eq!(world.docket(&["retry", "999"]).code, Some(66));
    world.ok(&["cancel", &lives]);
}

#[test]
fn of_an_array_only_the_tasks_that_failed_run_again() {
    let world = world!();
    let _node = world.up(4);
    let script = "echo $DOCKET_TASK_ID >> ran; [ -e fixed ] || [ $((DOCKET_TASK_ID % 3)) != 0 ]";
    let job = world.submit_sh(&["-a", "0-9"], script);
    world.docket(&["wait", &job.to_string()]);
    assert_eq!(world.show(job)["array"]["counts"]["EXIT"], 4);
    world.touch("fixed");
    let again: u64 = world.ok(&["retry", &job.to_string(), "--failed"]).trim().parse().unwrap();
    assert_eq!(world.docket(&["wait", &again.to_string()]).code, Some(0));
    assert_eq!(world.show(again)["array"]["tasks"], "0,3,6,9");
    assert_eq!(world.lines("ran").len(), 14);
    let two: u64 = world.ok(&["retry", &format!("{job}_2,4")]).trim().parse().unwrap();
    assert_eq!(world.docket(&["wait", &two.to_string()]).code, Some(0));
    assert_eq!(world.show(two)["array"]["total"], 2);
    let none = world.docket(&["retry", &again.to_string(), "--failed"]);
    assert!(none.err().contains("no task of job"), "{}", none.describe());
    let unknown = world.docket(&["retry", &format!("{job}_77")]);
    assert!(unknown.err().contains("no task 77"), "{}", unknown.describe());
    // Once for each request, whoever asks twice.
    let json = world.ok(&["retry", &job.to_string(), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["retry_of"], job);
}

#[test]
fn only_its_owner_or_an_admin_runs_a_job_again() {
    let world = world!();
    if !testsuite::skip::is_root() {
        return;
    }
    let _node = world.up(2);
    let job = world.submit(&["--", "false"]);
    world.wait_end(job);
    let stranger = world.of(&User::nobody());
    let mut stranger = stranger;
    stranger.set("DOCKET_SERVER", &format!("unix:{}", world.data().join("docket.sock").display()));
    let ran = stranger.docket(&["retry", &job.to_string()]);
    assert_ne!(ran.code, Some(0), "{}", ran.describe());
    assert_eq!(world.list_ids().len(), 1, "nothing was submitted");
}
