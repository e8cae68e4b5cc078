//! The data directory goes away under its living agent: deleted, or renamed.

use crate::{
    Down, Node, Up, fact_of, finish_of, keeper, manifest, scenario, shell, start_of, within,
};
use proto::v1;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio::time::sleep;
use worker_agent::keeper::LockState;

pub async fn scenarios() {
    scenario(
        "a_directory_that_is_deleted_under_an_idle_node_is_not_made_again",
        a_directory_that_is_deleted_under_an_idle_node_is_not_made_again(),
    )
    .await;
    scenario(
        "a_keeper_that_dies_in_a_renamed_directory_is_found_by_its_living_agent",
        a_keeper_that_dies_in_a_renamed_directory_is_found_by_its_living_agent(),
    )
    .await;
}

async fn a_directory_that_is_deleted_under_an_idle_node_is_not_made_again() {
    let mut node = Node::start().await;
    let dir = node.dir.path().to_owned();
    let mut session = node.leader.joined().await;
    manifest(&mut session).await;
    session.says(Down::Run(shell(4, "true"))).await;
    finish_of(&mut session, 4).await;
    fs::remove_dir_all(&dir).unwrap();
    let told = async {
        loop {
            match session.hears().await {
                Up::Heartbeat(beat) if !beat.keeper_answers && beat.takes_no_runs => return beat,
                Up::Goodbye(_) => panic!("it has no keeper to join with"),
                _ => {}
            }
        }
    };
    let beat = within(told).await;
    assert!(beat.problem.contains("was deleted under this agent"), "{}", beat.problem);
    assert!(beat.problem.contains(&dir.display().to_string()), "{}", beat.problem);
    assert!(beat.problem.contains("no new job starts here"), "{}", beat.problem);
    assert!(beat.problem.contains("start the agent again"), "{}", beat.problem);
    assert!(!dir.exists(), "nothing makes it again");
    // Its keeper is gone, so the agent itself refuses what comes all the same.
    session.says(Down::Run(shell(9, "true"))).await;
    let failure = fact_of(&mut session, not_started).await;
    assert!(failure.node_fault && failure.node_out, "{failure:?}");
    assert!(failure.message.contains("start the agent again"), "{failure:?}");
    // Nor does one that somebody else made in its place belong to this agent.
    fs::create_dir(&dir).unwrap();
    for _ in 0..5 {
        assert!(matches!(session.hears().await, Up::Heartbeat(beat) if !beat.keeper_answers));
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    drop(session);
    node.restarts().await;
    let mut session = node.leader.joined().await;
    session.says(Down::Run(shell(5, "exit 4"))).await;
    let finish = finish_of(&mut session, 5).await;
    assert_eq!(finish.end, Some(v1::finish_fact::End::WaitStatus(4 << 8)));
    node.stops().await;
}

async fn a_keeper_that_dies_in_a_renamed_directory_is_found_by_its_living_agent() {
    let mut node = Node::start().await;
    let dir = node.dir.path().to_owned();
    let room = tempfile::tempdir().unwrap();
    let (go, elsewhere) = (room.path().join("go"), room.path().join("elsewhere"));
    let mut session = node.leader.joined().await;
    let text = format!("echo out; while ! test -e {}; do sleep 0.02; done; exit 6", go.display());
    session.says(Down::Run(shell(6, &text))).await;
    let start = start_of(&mut session, 6).await;
    fs::rename(&dir, &elsewhere).unwrap();
    // Somebody else may begin there meanwhile.
    fs::create_dir(&dir).unwrap();
    kill_keeper(&elsewhere);
    // With a keeper again it joins anew.
    let mut session = node.leader.joined().await;
    let item = manifest(&mut session).await.remove(0);
    assert_eq!((item.pid, item.phase()), (start.pid, v1::Phase::Running));
    fs::write(&go, "").unwrap();
    let finish = finish_of(&mut session, 6).await;
    assert_eq!(finish.end, Some(v1::finish_fact::End::WaitStatus(6 << 8)));
    assert_eq!(node.output(&mut session, 6, false).await, b"out\n");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "the old name is somebody else's");
    // Where guard and keeper are gone the agent starts others, under the new name.
    for pid in keeper_and_guard(&elsewhere) {
        kill(pid);
    }
    let mut session = node.leader.joined().await;
    assert!(matches!(keeper::lock_state(&elsewhere).unwrap(), LockState::Held { .. }));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    session.says(Down::Run(shell(7, "true"))).await;
    let failure = fact_of(&mut session, not_started).await;
    assert!(failure.node_fault && failure.node_out, "{failure:?}");
    assert!(failure.message.contains("start the agent again"), "{failure:?}");
    node.stops().await;
    // It would stay if that acknowledgement did not reach it.
    for pid in keeper_and_guard(&elsewhere) {
        kill(pid);
    }
    let free = async {
        while keeper::lock_state(&elsewhere).unwrap() != LockState::Free {
            sleep(Duration::from_millis(20)).await;
        }
    };
    within(free).await;
}

/// Why an attempt did not start, told by its keeper or by the agent alone.
fn not_started(kind: v1::fact::Kind) -> Option<v1::StartFailure> {
    match kind {
        v1::fact::Kind::Refused(refused) => refused.failure,
        v1::fact::Kind::Finish(v1::FinishFact {
            end: Some(v1::finish_fact::End::StartFailure(failure)),
            ..
        }) => Some(failure),
        _ => None,
    }
}

/// Guard and keeper of a directory: the guard signs the lock, the keeper is its child.
fn guard_of(dir: &Path) -> u32 {
    let LockState::Held { by } = keeper::lock_state(dir).unwrap() else { panic!("no keeper") };
    by.split(' ').next().unwrap().parse().unwrap()
}

fn keeper_of(guard: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).ok()?;
    let named = |pid: &u32| {
        let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        argv.starts_with(b"docket\0keeper\0")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(named)
}

fn kill_keeper(dir: &Path) {
    kill(keeper_of(guard_of(dir)).unwrap());
}

fn keeper_and_guard(dir: &Path) -> Vec<u32> {
    let guard = guard_of(dir);
    // The guard first: it starts no other keeper then.
    [Some(guard), keeper_of(guard)].into_iter().flatten().collect()
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}
