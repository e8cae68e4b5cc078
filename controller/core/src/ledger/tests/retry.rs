//! Retries and fences: what is tried again, what it waits for, and what proves the old attempt dead.

use super::world::*;
use crate::ledger::{CancelVerdict, Kind, Ledger, Outcome, Rejection, StateName};
use proto::JobId;
use proto::v1::{self, DownCause, ExitKind, KillCause, Phase, command::Kind as Command};
use proto::v1::{fact, finish_fact::End};

fn what_happened(world: &World, job: JobId) -> Vec<String> {
    let events = crate::events(&world.ledger, job).map(|answer| answer.events).unwrap_or_default();
    events.into_iter().map(|event| event.what).collect()
}

fn proven(count: u64) -> Outcome {
    Outcome::Proven { count }
}

/// Its attempt 1 is unknown and leased, on a silent node.
fn lost(world: &mut World, spec: v1::JobSpec) -> JobId {
    let job = world.submit_spec(spec);
    world.assign_to(job, N1);
    world.start(job);
    world.down(N1, 1, DownCause::Silence);
    world.pass(300_000);
    world.tick();
    job
}

#[test]
fn a_failed_attempt_is_tried_again_and_the_job_is_never_seen_terminal() {
    let mut world = World::with_node();
    let job = world.submit_spec(v1::JobSpec { retries: 2, ..spec() });
    for attempt in 1..=2 {
        assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
        world.start(job);
        world.finish(job, code(3));
        assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, attempt + 1));
        assert_eq!(world.ledger.used(N1).jobs, 0);
    }
    world.assign_to(job, N1);
    world.finish(job, code(3));
    assert_eq!(world.reason(job), Some(ExitKind::ExitCode));
    let task = world.task(job);
    assert_eq!((task.attempt, task.retries, task.retried, task.exit_code), (3, 2, 2, Some(3)));
}

#[test]
fn a_fast_attempt_that_is_tried_again_shows_its_start() {
    let mut world = World::with_node();
    let job = world.submit_spec(v1::JobSpec { retries: 1, ..spec() });
    world.assign_to(job, N1);
    let mut finish = world.finish_fact(job, code(3));
    finish.start = Some(start_of(job, 1));
    world.facts(N1, vec![fact::Kind::Finish(finish)]);
    let events = what_happened(&world, job);
    assert_eq!(
        events[2..],
        [
            "started, pid 4711",
            "ended: exit-code 3 (real wait status 0x300)",
            "PEND -> PEND queued: attempt 1 ended as exit-code 3; attempt 2 is queued",
        ]
    );
}

#[test]
fn a_success_is_not_tried_again() {
    let mut world = World::with_node();
    let job = world.retrying();
    world.finish(job, code(0));
    assert_eq!(world.kind(job), Kind::Done);
}

#[test]
fn only_the_ends_that_the_job_names_are_tried_again() {
    let by_default =
        [(code(1), true), (End::WaitStatus(9), true), (End::NodeRebooted(true), false)];
    for (end, again) in by_default {
        let mut world = World::with_node();
        let job = world.submit_spec(v1::JobSpec { retries: 1, ..spec() });
        world.assign_to(job, N1);
        world.start(job);
        world.finish(job, end.clone());
        assert_eq!(world.kind(job) == Kind::Queued, again, "{end:?}");
    }
    let only = vec![ExitKind::NodeRebooted as i32];
    for (end, again) in [(code(1), false), (End::NodeRebooted(true), true)] {
        let mut world = World::with_node();
        let job = world.submit_spec(v1::JobSpec { retries: 1, retry_on: only.clone(), ..spec() });
        world.assign_to(job, N1);
        world.finish(job, end.clone());
        assert_eq!(world.kind(job) == Kind::Queued, again, "{end:?}");
    }
}

#[test]
fn a_cancel_that_was_asked_for_ends_the_retries() {
    let mut world = World::with_node();
    let job = world.retrying();
    world.cancel(job);
    world.finish(job, code(1));
    assert_eq!(world.reason(job), Some(ExitKind::ExitCode));
    let job = world.retrying();
    world.cancel(job);
    world.down(N1, 1, DownCause::Rdhup);
    assert_eq!(world.reason(job), Some(ExitKind::AgentDied));
}

#[test]
fn node_faults_do_not_count_as_retries() {
    let mut world = World::with_node();
    let job = world.submit_spec(v1::JobSpec { retries: 2, ..spec() });
    for _ in 0..5 {
        world.pass(1_000_000);
        world.tick();
        assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
        world.refuse(job);
    }
    assert_eq!((world.job(job).node_faults(), world.job(job).retried()), (5, 0));
    world.pass(1_000_000);
    world.tick();
    world.assign_to(job, N1);
    world.start(job);
    world.finish(job, code(1));
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, 7));
    // The sixth fault is the end all the same: the retries are not for the node's faults, and one is left.
    world.assign_to(job, N1);
    world.refuse(job);
    assert_eq!(world.reason(job), Some(ExitKind::StartFailed));
}

#[test]
fn after_the_death_of_its_agent_a_retry_waits_and_keeps_what_the_old_tree_may_use() {
    let mut world = World::with_node();
    let job = world.waiting();
    let task = world.task(job);
    assert_eq!((task.state.as_str(), task.substate.as_str()), ("PEND", "waiting"));
    assert_eq!((task.attempt, task.retried, task.terminal), (2, 1, false));
    assert_eq!(task.message, "waits for proof that attempt 1 on n1 is dead");
    assert_eq!(world.ledger.used(N1).cpus, 1);
    assert_eq!(world.ledger.waiting().map(|job| job.id()).collect::<Vec<_>>(), [job]);
    assert_eq!(world.ledger.waiting_on(N1).count(), 1);
    assert_eq!(world.ledger.waiting_on(N2).count(), 0);
    assert_eq!(world.ledger.held_by(N1).count(), 0);
    assert!(matches!(world.assign_to(job, N1), Outcome::Stale { .. }));
}

#[test]
fn the_finish_of_the_closed_attempt_proves_its_death_and_is_told_once() {
    let mut world = World::with_node();
    let job = world.waiting();
    world.join(N1, 2, "j1");
    world.finish_closed(N1, job, code(0));
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, 2));
    assert_eq!(world.ledger.used(N1).jobs, 0);
    let events = what_happened(&world, job);
    assert_eq!(
        events[3..],
        [
            "RUN -> PEND waiting: attempt 1 ended as agent-died; attempt 2 waits for proof that it \
             is dead",
            "told the real end of attempt 1, too late to count: exit-code 0",
            "attempt 1 is dead: its end was told; -> PEND queued, attempt 2",
        ]
    );
    let before = world.ledger.counters().other_attempt;
    world.finish_closed(N1, job, code(0));
    assert_eq!(what_happened(&world, job).len(), events.len());
    assert_eq!(world.ledger.counters().other_attempt, before + 1);
}

#[test]
fn only_the_agent_that_had_it_proves_a_death_and_only_with_its_token() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let job = world.waiting();
    world.join(N1, 2, "j1");
    world.finish_closed(N2, job, code(0));
    let mut forged = finish_of(job, 1, code(0));
    forged.token = Some(v1::Token { generation: 2, attempt: 1 });
    world.facts(N1, vec![fact::Kind::Finish(forged)]);
    assert_eq!(world.kind(job), Kind::Waiting);
    // Neither a start nor a refusal is an end.
    world.facts(N1, vec![fact::Kind::Start(start_of(job, 1))]);
    assert_eq!((world.kind(job), what_happened(&world, job).len()), (Kind::Waiting, 4));
}

#[test]
fn a_late_end_of_an_attempt_whose_fence_was_opened_otherwise_is_told_and_changes_nothing() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let job = lost(&mut world, retrying());
    assert_eq!(world.kind(job), Kind::Waiting);
    assert_eq!(world.fenced(job, 1), proven(1));
    world.assign_to(job, N2);
    assert_eq!(world.kind(job), Kind::Dispatched);
    world.join(N1, 2, "j1");
    world.finish_closed(N1, job, code(7));
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Dispatched, 2));
    let events = what_happened(&world, job);
    let last = "told the real end of attempt 1, too late to count: exit-code 7";
    assert_eq!(events.last().map(String::as_str), Some(last));
}

#[test]
fn a_late_end_of_an_older_attempt_is_told_while_a_newer_one_waits() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let job = lost(&mut world, retrying());
    world.fenced(job, 1);
    world.assign_to(job, N2);
    world.facts(N2, vec![fact::Kind::Start(start_of(job, 2))]);
    world.down(N2, 1, DownCause::Rdhup);
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Waiting, 3));
    world.join(N1, 2, "j1");
    world.facts(N1, vec![fact::Kind::Finish(finish_of(job, 1, code(7)))]);
    assert_eq!(world.kind(job), Kind::Waiting);
    let events = what_happened(&world, job);
    let last = "told the real end of attempt 1, too late to count: exit-code 7";
    assert_eq!(events.last().map(String::as_str), Some(last));
}

#[test]
fn a_manifest_of_the_same_journal_without_it_proves_a_death_and_one_with_it_kills() {
    let mut world = World::with_node();
    let job = world.waiting();
    world.join(N1, 2, "j1");
    let closed = v1::ManifestItem {
        attempt: Some(attempt_ref(job, 1)),
        token: Some(v1::Token { generation: 1, attempt: 1 }),
        ..world.item(job, Phase::Running)
    };
    let outcome = world.at_join(N1, vec![closed]);
    assert!(matches!(outcome, Outcome::Manifest(m) if m.kill.len() == 1));
    assert_eq!(world.kind(job), Kind::Waiting);
    world.join(N1, 3, "j1");
    world.at_join(N1, Vec::new());
    assert_eq!(world.kind(job), Kind::Queued);
}

#[test]
fn a_manifest_within_a_session_proves_only_what_was_ordered_before_it() {
    let mut world = World::with_node();
    let job = lost(&mut world, retrying());
    let order = world.job(job).fence().map_or(0, |fence| fence.grant.order.0);
    let page = v1::ManifestCommand { at_join: false, ..world.page(N1, Vec::new()) };
    let before = v1::ManifestCommand { last_order: order - 1, ..page.clone() };
    world.apply(Command::Manifest(before));
    assert_eq!(world.kind(job), Kind::Waiting);
    world.apply(Command::Manifest(v1::ManifestCommand { last_order: order, ..page }));
    assert_eq!(world.kind(job), Kind::Queued);
}

#[test]
fn another_journal_proves_nothing_and_another_boot_does() {
    let mut world = World::with_node();
    let job = world.waiting();
    world.node_up(N1, 2, "j2");
    assert_eq!(world.kind(job), Kind::Waiting);
    world.boot = "";
    world.node_up(N1, 3, "j3");
    assert_eq!(world.kind(job), Kind::Waiting, "a boot id that was not told is no other one");
    world.boot = "b2";
    world.join(N1, 4, "j3");
    assert_eq!(world.kind(job), Kind::Queued);
}

#[test]
fn an_attempt_that_vanished_with_its_journal_waits_unless_its_node_was_booted_anew() {
    for (boot, kind) in [("b1", Kind::Waiting), ("b2", Kind::Queued)] {
        let mut world = World::with_node();
        let job = world.retrying();
        world.boot = boot;
        world.node_up(N1, 2, "j2");
        assert_eq!(world.kind(job), kind);
    }
}

#[test]
fn a_claim_after_a_reboot_of_the_agent_moves_the_boot_that_counts() {
    let mut world = World::with_node();
    let job = world.retrying();
    world.boot = "b2";
    world.join(N1, 2, "j1");
    let item = world.item(job, Phase::Running);
    world.at_join(N1, vec![item]);
    world.down(N1, 2, DownCause::Rdhup);
    world.join(N1, 3, "j1");
    assert_eq!(world.kind(job), Kind::Waiting);
}

#[test]
fn an_admin_may_vouch_for_a_death_and_the_same_request_vouches_for_nothing_later() {
    let mut world = World::with_node();
    let job = world.waiting();
    assert_eq!(world.confirm_dead("mia", "d1", N1), Outcome::Rejected(Rejection::NotAdmin));
    let unknown = world.confirm_dead("root", "d1", "nobody");
    assert!(matches!(unknown, Outcome::Rejected(Rejection::NoSuchAgent { .. })));
    assert_eq!(world.confirm_dead("root", "d1", N1), proven(1));
    assert_eq!(world.kind(job), Kind::Queued);
    world.node_up(N1, 2, "j1");
    world.assign_to(job, N1);
    world.start(job);
    world.down(N1, 2, DownCause::Rdhup);
    assert_eq!(world.kind(job), Kind::Waiting);
    let image = super::image::bytes(&world.ledger.freeze());
    world.ledger = Ledger::thaw(image.into_iter()).expect("its own image");
    assert_eq!(world.confirm_dead("root", "d1", N1), proven(1), "the same answer");
    assert_eq!(world.kind(job), Kind::Waiting, "and no effect");
    assert_eq!(world.confirm_dead("root", "d2", N1), proven(1));
    assert_eq!(world.kind(job), Kind::Queued);
    let who = crate::events(&world.ledger, job).map(|answer| answer.events).unwrap_or_default();
    assert!(who.last().is_some_and(|event| event.who.starts_with("root")));
}

#[test]
fn the_end_of_a_lease_opens_only_the_fence_of_a_leased_attempt() {
    let mut world = World::with_node();
    let job = lost(&mut world, retrying());
    assert_eq!(world.job(job).leased(), Some(600_000));
    assert_eq!(world.fenced(job, 2), proven(0), "another attempt");
    assert_eq!(world.fenced(JobId(99), 1), proven(0));
    assert_eq!(world.fenced(job, 1), proven(1));
    assert_eq!(world.kind(job), Kind::Queued);
    let mut world = World::with_node();
    let job = lost(&mut world, v1::JobSpec { fence_proof: true, ..retrying() });
    assert_eq!((world.kind(job), world.job(job).leased()), (Kind::Waiting, None));
    assert_eq!(world.fenced(job, 1), proven(0), "its node ends nothing");
}

#[test]
fn a_lease_is_fixed_when_the_attempt_is_given_to_a_node() {
    let mut world = World::with_node();
    let job = world.retrying();
    let policy = Some(v1::Policy { fence_after_ms: 60_000, ..v1::Policy::default() });
    world.apply(Command::Configure(v1::ConfigureCommand { policy, ..Default::default() }));
    assert_eq!(world.job(job).leased(), Some(600_000));
    let own = world.submit_spec(v1::JobSpec { fence_after_ms: Some(90_000), ..retrying() });
    let later = world.submit_spec(retrying());
    world.assign_to(own, N1);
    world.assign_to(later, N1);
    let leases = [own, later].map(|job| world.job(job).leased());
    assert_eq!(leases, [Some(90_000), Some(60_000)]);
}

#[test]
fn nothing_is_leased_that_nobody_would_start_again() {
    let mut world = World::with_node();
    let usual = world.submit_spec(v1::JobSpec { retries: 3, ..spec() });
    let never = world.submit_spec(v1::JobSpec { retries: 0, ..retrying() });
    let last = world.submit_spec(v1::JobSpec { retries: 1, ..retrying() });
    world.assign_to(last, N1);
    assert!(world.job(last).leased().is_some());
    world.finish(last, code(1));
    for job in [usual, never, last] {
        assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
        assert_eq!(world.job(job).leased(), None, "job {job}");
    }
}

#[test]
fn an_attempt_that_its_node_ended_with_its_lease_is_lost_and_no_signal_of_its_own() {
    let on_lost = vec![ExitKind::Lost as i32];
    for (retries, kind) in [(0, Kind::Exit), (1, Kind::Queued)] {
        let mut world = World::with_node();
        let spec = v1::JobSpec { retries, retry_on: on_lost.clone(), ..spec() };
        let job = world.submit_spec(spec);
        world.assign_to(job, N1);
        world.start(job);
        let mut finish = world.finish_fact(job, End::WaitStatus(9));
        finish.set_killed_for(KillCause::Lease);
        world.facts(N1, vec![fact::Kind::Finish(finish)]);
        assert_eq!(world.kind(job), kind);
        if kind == Kind::Exit {
            assert_eq!(world.reason(job), Some(ExitKind::Lost));
            assert_eq!(world.task(job).signal, Some(9));
            let cut_off = "its node was cut off until its lease ran out";
            let killed = format!("by docket with all its processes: {cut_off}");
            assert_eq!(world.task(job).killed, killed);
        }
    }
}

#[test]
fn a_retry_that_waits_is_cancelled_at_once_and_its_old_tree_killed_at_the_join() {
    let mut world = World::with_node();
    let job = world.waiting();
    let Outcome::Cancelled(results) = world.cancel(job) else { unreachable!("a cancel") };
    assert_eq!(results[0].verdict, CancelVerdict::Cancelled);
    assert_eq!(world.reason(job), Some(ExitKind::Cancelled));
    world.join(N1, 2, "j1");
    let closed =
        v1::ManifestItem { attempt: Some(attempt_ref(job, 1)), ..world.item(job, Phase::Running) };
    let outcome = world.at_join(N1, vec![closed]);
    assert!(matches!(outcome, Outcome::Manifest(m) if m.kill.len() == 1));
}

#[test]
fn a_hold_of_a_retry_that_waits_never_forgets_the_fence() {
    let mut world = World::with_node();
    let job = world.waiting();
    world.hold(job, false, "h1");
    assert_eq!(world.kind(job), Kind::Waiting);
    assert!(world.task(job).message.ends_with("; held as well"));
    world.join(N1, 2, "j1");
    world.at_join(N1, Vec::new());
    assert_eq!(world.kind(job), Kind::Held);
    world.hold(job, true, "h2");
    assert_eq!(world.kind(job), Kind::Queued);
    let mut world = World::with_node();
    let job = world.waiting();
    world.hold(job, false, "h1");
    world.hold(job, true, "h2");
    world.fenced(job, 1);
    assert_eq!(world.kind(job), Kind::Queued);
}

#[test]
fn the_next_attempt_starts_without_what_was_asked_of_the_last() {
    let mut world = World::with_node();
    let job = world.retrying();
    world.suspend(job, false, "s1");
    assert!(world.job(job).suspend().is_some());
    world.finish(job, code(1));
    world.assign_to(job, N1);
    assert_eq!((world.job(job).suspend(), world.job(job).suspend_requested()), (None, None));
}

#[test]
fn a_retry_policy_that_makes_no_sense_is_refused() {
    let refused = |spec: v1::JobSpec, at: &str| {
        let mut world = World::with_node();
        let outcome = world.submit_with(spec, "mia", "r");
        let field = match outcome {
            Outcome::Rejected(Rejection::Malformed { field, .. }) => field,
            _ => "taken",
        };
        assert_eq!(field, at);
    };
    refused(v1::JobSpec { retries: 1_001, ..spec() }, "spec.retries");
    for kind in [ExitKind::Unspecified as i32, ExitKind::Cancelled as i32, 99] {
        refused(v1::JobSpec { retry_on: vec![kind], ..spec() }, "spec.retry_on");
    }
    refused(v1::JobSpec { fence_after_ms: Some(30_000), ..spec() }, "spec.fence_after_ms");
    refused(v1::JobSpec { fence_after_ms: Some(30_001), ..retrying() }, "taken");
}

#[test]
fn a_waiting_job_counts_as_pending_and_survives_a_restart() {
    let mut world = World::with_node();
    let job = world.waiting();
    world.hold(job, false, "h1");
    assert_eq!(world.ledger.counts().get(&StateName::Pend), Some(&1));
    let image = super::image::bytes(&world.ledger.freeze());
    let thawed = Ledger::thaw(image.iter().cloned()).expect("its own image");
    thawed.check();
    assert_eq!(thawed.job(job), world.ledger.job(job));
    assert_eq!(super::image::bytes(&thawed.freeze()), image);
}
