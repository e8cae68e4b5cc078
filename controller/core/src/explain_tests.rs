//! Golden explanations: what a person reads for each state.

use crate::ledger::ExitReason;
use crate::ledger::tests::world::*;
use crate::{Sight, Word, explain};
use proto::JobId;
use proto::v1::{self, DownCause, finish_fact::End};

fn sight(world: &World, silent_for_ms: u64) -> Sight {
    let word = Word { reachable: silent_for_ms < 30_000, silent_for_ms, refuses: None };
    Sight { now_wall_ms: world.wall_ms, agents: [(N1.to_owned(), word)].into() }
}

fn told(world: &World, sight: &Sight, job: JobId) -> String {
    let answer = explain(&world.ledger, sight, job, true).expect("the job is there");
    let nodes = answer.nodes.iter().map(|n| format!("  {}  {}  {}", n.node, n.has, n.why));
    let lines = answer.lines.iter().cloned();
    std::iter::once(answer.headline).chain(nodes).chain(lines).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_pending_job_says_what_it_asks_and_who_holds_it() {
    let mut world = World::with_node();
    let holder = world.submit_spec(v1::JobSpec { cpus: 6, ..spec() });
    world.assign_to(holder, N1);
    world.submit();
    let job = world.submit_spec(v1::JobSpec { cpus: 4, ..spec() });
    world.pass(190_000);
    assert_eq!(
        told(&world, &sight(&world, 400), job),
        "Job 3 is PEND: cpus: 4 asked, 2 free.\n\
         \x20 n1  8 cpus, 2 free  cpus: 4 asked, 2 free\n\
         Place 2 of 2 in the queue. Its number is -74.95: priority 0.00 + 0.05 (waited 3m10s) - 75.00 \
         (mia has 6 of 8 cpus).\n\
         Right before it: 2 of mia, submitted before it.\n\
         n1 is kept for it until enough of these have ended; without time limits nobody knows when: 1, 2."
    );
}

#[test]
fn a_job_that_waits_for_a_node_that_takes_none_tells_what_the_node_says() {
    let mut world = World::with_node();
    let job = world.submit();
    let mut sight = sight(&world, 400);
    let word = sight.agents.get_mut(N1).expect("it was heard");
    word.reachable = false;
    word.refuses = Some("the data directory /d was deleted".to_owned());
    assert_eq!(
        told(&world, &sight, job),
        "Job 1 is PEND: n1 takes no jobs: the data directory /d was deleted.\n\
         \x20 n1  8 cpus, 8 free  takes no jobs: the data directory /d was deleted\n\
         Place 1 of 1 in the queue. Its number is 0.00: priority 0.00 + 0.00 (waited 0s).\n\
         It waits until n1 takes jobs again."
    );
}

#[test]
fn a_job_that_can_never_run_is_told_so() {
    let mut world = World::with_node();
    let job = world.submit_spec(v1::JobSpec { cpus: 64, ..spec() });
    assert_eq!(
        told(&world, &sight(&world, 0), job),
        "Job 1 is PEND: no node is large enough: cpus: 64 asked, 8 in all on n1.\n\
         \x20 n1  8 cpus  cpus: 64 asked, 8 in all: can never run it\n\
         Place 1 of 1 in the queue. Its number is 0.00: priority 0.00 + 0.00 (waited 0s).\n\
         No node that has joined can ever run it. It starts if one joins that can; else: docket \
         cancel 1, and ask for less."
    );
}

#[test]
fn a_job_that_asks_for_what_no_node_is_or_has_is_not_told_to_ask_for_less() {
    let mut world = World::with_node();
    let node = world.submit_spec(v1::JobSpec { node: Some("n9".to_owned()), ..spec() });
    let labels = [("disk".to_owned(), "fast".to_owned())].into();
    let label = world.submit_spec(v1::JobSpec { node_labels: labels, ..spec() });
    let ends = |job| told(&world, &sight(&world, 0), job);
    assert!(ends(node).ends_with("and ask for another node."), "{}", ends(node));
    assert!(ends(label).ends_with("and ask for a label that a node has."), "{}", ends(label));
}

#[test]
fn a_job_behind_a_silent_node_waits_for_the_node_and_not_for_its_jobs() {
    let mut world = World::with_node();
    world.running();
    let job = world.submit();
    let text = told(&world, &sight(&world, 40_000), job);
    assert!(text.ends_with("It waits until n1 is heard again."), "{text}");
}

#[test]
fn a_user_named_nobody_is_told_from_nobody() {
    let mut world = World::with_node();
    let job = world.running();
    world.cancel_by(v1::Requester { user: "nobody".to_owned(), ..user("root") }, &[job]);
    let text = told(&world, &sight(&world, 0), job);
    assert!(text.contains("user nobody asked to cancel it"), "{text}");
    let cancelled = ExitReason::Cancelled { by: "nobody".into() };
    assert_eq!(crate::words::end(&cancelled, None), "cancelled by user nobody");
}

#[test]
fn a_tree_that_docket_killed_when_its_agent_came_back_is_told_so() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Rdhup);
    world.join(N1, 2, "j1");
    let item = world.item(job, v1::Phase::Running);
    world.at_join(N1, vec![item]);
    world.finish(job, End::WaitStatus(15));
    let text = told(&world, &sight(&world, 0), job);
    let killed = "Its node came back with it, and docket killed it then: signal 15.";
    assert!(text.ends_with(killed), "{text}");
    let killed =
        "by docket with all its processes: its node came back with it after this was decided";
    assert_eq!(world.task(job).killed, killed);
}

#[test]
fn an_unknown_job_says_who_is_silent_and_when_it_is_decided() {
    let mut world = World::with_node();
    let job = world.running();
    world.pass(30_000);
    world.down(N1, 1, DownCause::Silence);
    world.cancel(job);
    world.pass(39_000);
    world.tick();
    assert_eq!(
        told(&world, &sight(&world, 69_000), job),
        "Job 1 is UNKWN: n1: its node is silent.\n\
         Unknown since 22:13:50 UTC; its last word came 1m09s ago (limit 30s).\n\
         n1 may be cut off and the job alive.\n\
         If n1 comes back, its manifest decides: running again, or its real exit code.\n\
         If not, the job ends as EXIT lost at 22:18:50 UTC (transient_since + 5m00s).\n\
         It will not be started elsewhere (it has no retries).\n\
         mia asked to cancel it at 22:13:50 UTC; it ends when its node has killed it."
    );
}

#[test]
fn an_ended_job_says_how_and_shows_its_last_words() {
    let mut world = World::with_node();
    let job = world.running();
    world.finish(job, End::WaitStatus(3 << 8));
    assert_eq!(
        told(&world, &sight(&world, 0), job),
        "Job 1 is EXIT: exit code 3.\n\
         Ended at 22:13:21 UTC on n1, attempt 1.\n\
         Last lines of stderr:\n\
         | last words"
    );
}

#[test]
fn a_settled_job_says_that_no_code_is_known_and_shows_the_late_one() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Rdhup);
    world.join(N1, 2, "j1");
    world.finish(job, code(42));
    assert_eq!(
        told(&world, &sight(&world, 0), job),
        "Job 1 is EXIT: the agent of its node died.\n\
         Ended at 22:13:20 UTC on n1, attempt 1.\n\
         Its node did not tell the end, so no exit code is known.\n\
         The real end came later and changes nothing: exit code 42."
    );
}

#[test]
fn every_state_has_an_explanation() {
    let mut world = World::with_node();
    let held = world.submit_spec(v1::JobSpec { hold: true, ..spec() });
    let jobs = [held, world.dispatched(), world.running(), world.suspended()];
    let heads = jobs.map(|job| {
        explain(&world.ledger, &sight(&world, 0), job, true).map(|a| a.headline).unwrap_or_default()
    });
    assert_eq!(
        heads,
        [
            "Job 1 is PEND: it is held.",
            "Job 2 is PEND: it was given to n1, which has not told its start yet.",
            "Job 3 is RUN: it runs on n1.",
            "Job 4 is SUSP: it was stopped on request, on n1.",
        ]
    );
}

#[test]
fn a_retry_that_waits_says_for_what_proof_and_until_when_its_lease_may_hold_it() {
    let mut world = World::with_node();
    let job = world.waiting();
    assert_eq!(
        told(&world, &sight(&world, 0), job),
        "Job 1 is PEND: it waits for proof that attempt 1 on n1 is dead.\n\
         Attempt 1 was closed as agent-died at 22:13:20 UTC; it may still run there.\n\
         Proof is: n1 comes back without it, tells its end, or was booted anew; or an admin \
         vouches for it: docket nodes confirm-dead n1\n\
         If the agent of n1 does not come back, its lease is over at 22:23:28 UTC at the latest: n1 has ended it then.\n\
         Then attempt 2 is queued (1 of 5 retries used)."
    );
    // A new leader counts the lease anew.
    world.pass(60_000);
    world.term(2);
    let text = told(&world, &sight(&world, 0), job);
    assert!(text.contains("its lease is over at 22:24:28 UTC at the latest"), "{text}");
}

#[test]
fn a_retry_without_a_lease_says_that_only_proof_ends_its_wait() {
    let mut world = World::with_node();
    let job = world.submit_spec(v1::JobSpec { fence_proof: true, ..retrying() });
    world.assign_to(job, N1);
    world.start(job);
    world.down(N1, 1, DownCause::Rdhup);
    world.hold(job, false, "h");
    let text = told(&world, &sight(&world, 0), job);
    assert!(text.contains("No lease ends it: it waits for proof, however long that takes."));
    assert!(text.ends_with("Then attempt 2 is held (1 of 5 retries used)."), "{text}");
}

#[test]
fn an_unknown_job_of_a_new_leader_says_both_limits() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Silence);
    world.pass(290_000);
    world.term(2);
    let text = told(&world, &sight(&world, 0), job);
    let line = "If not, the job ends as EXIT lost at 22:18:40 UTC: its time, 5m00s, is over, but \
                the leader is new.\n\
                However often the leader changes, it is decided by 22:23:20 UTC (transient_since \
                + 10m00s).";
    assert!(text.contains(line), "{text}");
}

#[test]
fn an_unknown_job_that_is_tried_again_says_so() {
    let mut world = World::with_node();
    let job = world.retrying();
    world.down(N1, 1, DownCause::Silence);
    let text = told(&world, &sight(&world, 0), job);
    let lines: Vec<&str> = text.lines().skip(4).collect();
    assert_eq!(
        lines,
        [
            "If not, attempt 1 is closed as lost at 22:18:20 UTC (transient_since + 5m00s).",
            "n1 itself ends it 10m00s after the last answer it had from a leader: its lease.",
            "Then attempt 2 starts once this one is proven dead.",
        ]
    );
    world.cancel(job);
    let text = told(&world, &sight(&world, 0), job);
    let ends = "It will not be started elsewhere (a cancel ends its retries).";
    assert!(text.contains(ends), "{text}");
}

#[test]
fn what_its_node_must_still_carry_out_is_told() {
    let mut world = World::with_node();
    let job = world.running();
    world.suspend(job, false, "s");
    world.prioritise(job, 9, "p");
    let text = told(&world, &sight(&world, 0), job);
    let asked = "mia asked to suspend it; it stops when n1 has been told.\n\
                 Its priority was set to 9: that counts if another attempt is queued.";
    assert!(text.ends_with(asked), "{text}");
    let fact = world.stop_fact(job, true);
    world.facts(N1, vec![fact]);
    assert!(!told(&world, &sight(&world, 0), job).contains("asked to suspend"));
    world.suspend(job, true, "r");
    let text = told(&world, &sight(&world, 0), job);
    assert!(text.contains("mia asked to resume it; it goes on when n1 has been told."), "{text}");
}

#[test]
fn a_lost_job_that_was_to_be_cancelled_says_by_whom() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Silence);
    world.cancel(job);
    world.pass(400_000);
    world.tick();
    let text = told(&world, &sight(&world, 0), job);
    let asked = "mia had asked to cancel it at 22:13:20 UTC; nobody told what came of that.";
    assert!(text.contains(asked), "{text}");
    world.node_up(N1, 2, "j1");
    let late = world.running();
    world.cancel(late);
    world.finish(late, code(0));
    let text = told(&world, &sight(&world, 0), late);
    assert!(
        text.contains("mia asked to cancel it at 22:20:00 UTC, which came too late."),
        "{text}"
    );
}

#[test]
fn a_suspended_job_says_how_it_goes_on() {
    let mut world = World::with_node();
    let job = world.suspended();
    let text = told(&world, &sight(&world, 0), job);
    assert!(text.ends_with(&format!("It goes on after: docket resume {job}")), "{text}");
    world.suspend(job, true, "r");
    let text = told(&world, &sight(&world, 0), job);
    assert!(!text.contains("docket resume"), "it was asked for already: {text}");
}

#[test]
fn an_agent_that_is_known_to_be_dead_is_not_said_to_be_cut_off() {
    let mut world = World::with_node();
    let unknown = v1::JobSpec { on_disconnect: v1::OnDisconnect::Unknown.into(), ..spec() };
    let job = world.submit_spec(unknown);
    world.assign_to(job, N1);
    world.start(job);
    world.down(N1, 1, DownCause::Rdhup);
    let text = told(&world, &sight(&world, 0), job);
    let died = "The agent of n1 died; its keeper holds the job, which may be alive.";
    assert!(text.contains(died) && !text.contains("cut off"), "{text}");
}
