//! No job stays RUN, no finish is dropped, and two kinds of loss have two answers: with real
//! processes that are killed, frozen, cut off, cloned, rebooted and answered late.
//!
//! | what fails | file |
//! |---|---|
//! | the agent: killed, stopped, frozen | `agent.rs` |
//! | the agent's directory and its machine | `node.rs` |
//! | the controller, at each step of a job's life | `controller.rs` |
//! | the connection, as a network breaks it | `cuts.rs` |
//! | single messages: lost, doubled, late | `messages.rs` |
//! | anything, at random | `rounds.rs` |

mod agent;
mod controller;
mod cuts;
mod messages;
mod node;
mod rounds;

use testsuite::world::World;

/// A job that says who it is in `started.NAME`, waits for the file `go.NAME`, and ends with `code`.
fn waiting_job(world: &World, options: &[&str], name: &str, code: i64) -> u64 {
    let script = format!(
        "echo \"$$ $DOCKET_ATTEMPT\" >> started.{name}\n\
         while [ ! -e go.{name} ]; do sleep 0.05; done\n\
         echo end >> ended.{name}; exit {code}"
    );
    world.submit_sh(options, &script)
}

/// The same, and it runs.
fn running_job(world: &World, options: &[&str], name: &str, code: i64) -> u64 {
    let job = waiting_job(world, options, name, code);
    world.wait_state(job, "RUN");
    pid_of(world, name);
    job
}

/// Lets the job of that name end.
fn let_go(world: &World, name: &str) {
    world.touch(&format!("go.{name}"));
}

/// Pid of the job of that name, from its own mouth.
fn pid_of(world: &World, name: &str) -> i32 {
    let line = world.first_line(&format!("started.{name}"));
    line.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid")
}

/// The job of that name was started once.
fn assert_once(world: &World, name: &str) {
    let lines = world.lines(&format!("started.{name}"));
    assert_eq!(lines.len(), 1, "{name} was started once: {lines:?}");
}
