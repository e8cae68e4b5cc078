//! The order of the queue through real processes: what is large starts in a stream of small ones (G02),
//! short ones fill the gap before it, and limits say whose they are (G11).

use testsuite::patience::wait_by_command;
use testsuite::world;
use testsuite::world::World;

/// Runs until a file is there; says in `order` that it began.
fn until(name: &str, file: &str) -> String {
    format!("echo {name} >> order; while [ ! -e {file} ]; do sleep 0.05; done")
}

fn submit(world: &World, options: &[&str], script: &str) -> u64 {
    let mut words = options.to_vec();
    words.extend(["--", "sh", "-c", script]);
    world.submit(&words)
}

fn began(world: &World, count: usize) {
    wait_by_command("jobs began", || world.lines("order").len() == count);
}

/// What is told of a job, on one line.
fn told(world: &World, job: u64) -> String {
    let text = world.ok(&["explain", &job.to_string()]);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_job_that_needs_the_whole_node_starts_in_a_stream_of_small_ones() {
    let world = world!();
    let _node = world.up(4);
    for _ in 0..4 {
        submit(&world, &[], &until("small", "go"));
    }
    began(&world, 4);
    let large = submit(&world, &["-c", "4"], "echo large >> order");
    let last = (0..8).map(|_| submit(&world, &[], "echo late >> order")).last().unwrap();
    let text = told(&world, large);
    assert!(text.contains("is kept for it"), "{text}");
    let text = told(&world, last);
    assert!(text.contains("Place 9 of 9"), "{text}");
    world.touch("go");
    world.wait_end(last);
    wait_by_command("all began", || world.lines("order").len() == 13);
    let order = world.lines("order");
    assert_eq!(order[4], "large", "{order:?}");
}

#[test]
fn a_job_that_ends_in_time_goes_before_one_that_waits_for_the_whole_node() {
    let world = world!();
    let _node = world.up(2);
    submit(&world, &["-t", "1h"], &until("holder", "go"));
    began(&world, 1);
    let large = submit(&world, &["-c", "2"], "echo large >> order");
    let long = submit(&world, &[], "echo long >> order");
    let short = submit(&world, &["-t", "10m"], "echo short >> order");
    world.wait_end(short);
    assert_eq!(world.lines("order"), ["holder", "short"]);
    let text = told(&world, large);
    assert!(text.contains("is kept for it: it starts there by"), "{text}");
    let text = told(&world, long);
    assert!(text.contains("this one could delay that"), "{text}");
    assert!(text.contains(&format!("docket set {long} --time DURATION")), "{text}");
    world.ok(&["set", &long.to_string(), "--time", "20m"]);
    world.wait_end(long);
    world.touch("go");
    world.wait_end(large);
    assert_eq!(world.lines("order"), ["holder", "short", "long", "large"]);
}

#[test]
fn a_limit_says_whose_it_is_and_by_which_jobs_it_is_used() {
    let mut world = world!();
    world.set("DOCKET_CONTROLLER__QUEUES", "short.max_tasks=1,short.max_queue=2,short.max_time=1h");
    let _node = world.up(4);
    let first = submit(&world, &["-p", "short"], &until("first", "go"));
    began(&world, 1);
    let second = submit(&world, &["-p", "short"], "true");
    let text = format!("queue short has 1 of 1 tasks on nodes (queues.short.max_tasks): {first}");
    wait_by_command("the limit is told", || told(&world, second).contains(&text));
    let third = world.docket(&["submit", "-p", "short", "--", "true"]);
    assert_eq!(third.code, Some(75), "{}", third.describe());
    assert!(third.err().contains("2 of 2 tasks that have not ended"), "{}", third.err());
    assert!(third.err().contains(&format!("{first}, {second}")), "{}", third.err());
    let named = world.docket(&["submit", "-p", "shrot", "--", "true"]);
    assert!(named.err().contains("did you mean short"), "{}", named.describe());
    let long = world.docket(&["submit", "-p", "short", "-t", "2h", "--", "true"]);
    assert!(long.err().contains("queues.short.max_time"), "{}", long.describe());
    let other = submit(&world, &[], "true");
    world.wait_end(other);
    world.touch("go");
    world.wait_end(second);
}
