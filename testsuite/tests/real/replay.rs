//! Real inputs through the examples, which use nothing but the command line: a recorded workflow and
//! the trace of a cluster.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use testsuite::heavy_world;
use testsuite::world::World;

/// A built example; the tests of the whole package build it.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a test has a path");
    let target = own.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let path = target.join("examples").join(name);
    assert!(path.exists(), "{} is not built: cargo build -p testsuite --examples", path.display());
    path
}

fn run(world: &World, name: &str, data: &str, more: &[&str]) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(data);
    let mut command = world.command(&example(name));
    command.arg("--docket").arg(world.exe()).args(more).arg(data);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let (out, err) = (output.stdout, output.stderr);
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    assert!(output.status.success(), "{name}: {}\n{out}{err}", output.status);
    out.into_owned()
}

#[test]
fn every_task_of_a_workflow_ends_done_and_after_those_it_waits_for() {
    let world = heavy_world!();
    let _node = world.up(2);
    for (file, tasks) in
        [("helloworld-forkjoin-10tasks.json", 10), ("montage-2mass-015d-310tasks.json", 310)]
    {
        let told = run(&world, "wfformat", file, &[]);
        let says = format!("{tasks} tasks, all DONE, each after those that it waits for");
        assert!(told.starts_with(&says), "{told}");
    }
}

#[test]
fn every_job_of_a_clusters_trace_ends() {
    let world = heavy_world!();
    let _node = world.up(240);
    let told = run(&world, "swf", "hpc2n-seth-2002-3170jobs.swf", &[]);
    assert!(told.starts_with("3170 jobs, all DONE, 25 of them that had never run"), "{told}");
}
