//! The unknown-finish registry: facts that come before their job or assignment.

use super::image::bytes;
use super::world::*;
use crate::ledger::deferred::ORPHANS_MAX;
use crate::ledger::{Kind, Ledger, Outcome, What};
use proto::v1::{self, ExitKind, command::Kind as Command, fact, finish_fact::End};
use proto::{JobId, TaskId};

const TTL_MS: u64 = 60_000;

fn finish(job: JobId, end: End) -> fact::Kind {
    fact::Kind::Finish(finish_of(job, 1, end))
}

fn start(job: JobId) -> fact::Kind {
    fact::Kind::Start(start_of(job, 1))
}

/// Facts to be told again, with the reasons.
fn tell(world: &mut World, agent: &str, facts: Vec<fact::Kind>) -> Vec<String> {
    match world.facts(agent, facts) {
        Outcome::FactsTaken { later, .. } => later.into_iter().map(|(_, why)| why).collect(),
        other => panic!("{other:?}"),
    }
}

fn told(world: &mut World, agent: &str, facts: Vec<fact::Kind>) {
    assert_eq!(tell(world, agent, facts), [""; 0], "there is room for them");
}

/// The cluster was restored from a backup: a new generation.
fn restored(world: &mut World) {
    let generation = Some(world.ledger.generation() + 1);
    let configure = v1::ConfigureCommand { generation, ..Default::default() };
    world.apply(Command::Configure(configure));
}

fn limited(unknown_finish_max: u64) -> World {
    let mut world = World::with_node();
    let policy = Some(v1::Policy { unknown_finish_max, ..Default::default() });
    world.apply(Command::Configure(v1::ConfigureCommand { policy, ..Default::default() }));
    world
}

#[test]
fn a_finish_before_its_submit_takes_effect_in_the_step_of_its_assignment() {
    let mut world = World::with_node();
    let job = JobId(1);
    // Told in the wrong order even: the start takes effect first.
    told(&mut world, N1, vec![finish(job, code(7)), start(job)]);
    assert_eq!(world.ledger.deferred_counts(), (2, 0));
    assert_eq!(world.submit(), job);
    assert_eq!(world.kind(job), Kind::Queued);
    let attempt = Some(attempt_ref(job, 1));
    let assign = v1::AssignCommand {
        attempt,
        agent_id: N1.to_owned(),
        incarnation: 1,
        journal_id: b"j1".to_vec(),
    };
    let applied = world.apply_all(Vec::new(), vec![Command::Assign(assign)]);
    assert_eq!(applied.outcomes, [Outcome::Assigned]);
    assert_eq!(applied.changed, [TaskId::plain(job)]);
    let task = world.task(job);
    assert_eq!((task.state.as_str(), task.exit_code), ("EXIT", Some(7)));
    assert_eq!((task.pid, task.start_wall_ms), (4711, Some(1_700_000_000_500)));
    let index = world.index;
    let whats = world.job(job).causes().iter().filter(|cause| cause.position == index);
    let whats: Vec<&What> = whats.map(|cause| &cause.what).collect();
    let [What::Assigned { .. }, What::Started { .. }, What::Ended { .. }] = whats[..] else {
        panic!("{whats:?}")
    };
    assert_eq!(world.ledger.deferred_counts(), (0, 0));
    let counters = world.ledger.counters();
    assert_eq!((counters.deferred, counters.drained, counters.after_end), (2, 2, 0));
}

#[test]
fn a_finish_of_a_known_job_waits_for_its_assignment() {
    let mut world = World::with_node();
    let job = world.submit();
    told(&mut world, N1, vec![finish(job, code(0))]);
    assert_eq!(world.kind(job), Kind::Queued);
    world.assign_to(job, N1);
    assert_eq!(world.kind(job), Kind::Done);
}

#[test]
fn a_fact_of_an_attempt_to_come_waits_through_the_end_of_the_present_one() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let job = world.dispatched();
    told(&mut world, N2, vec![fact::Kind::Finish(finish_of(job, 2, code(0)))]);
    world.refuse(job);
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, 2));
    world.assign_to(job, N2);
    assert_eq!(world.kind(job), Kind::Done);
}

#[test]
fn the_same_fact_told_twice_waits_once_and_takes_effect_once() {
    let mut world = World::with_node();
    let job = JobId(1);
    told(&mut world, N1, vec![start(job), start(job)]);
    world.node_up(N1, 2, "j1");
    told(&mut world, N1, vec![start(job), finish(job, code(0)), finish(job, code(9))]);
    assert_eq!(world.ledger.deferred_counts(), (2, 0));
    assert_eq!(world.ledger.counters().repeated, 3);
    world.submit();
    world.assign_to(job, N1);
    assert_eq!(world.kind(job), Kind::Done, "the first finish is the one that counts");
    let starts = |world: &World| {
        let causes = world.job(job).causes().iter();
        causes.filter(|cause| matches!(cause.what, What::Started { .. })).count()
    };
    assert_eq!(starts(&world), 1);
    told(&mut world, N1, vec![finish(job, code(9))]);
    assert_eq!((world.kind(job), world.ledger.counters().drained), (Kind::Done, 2));
}

#[test]
fn a_fact_whose_assignment_is_anothers_is_counted_and_leaves() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let job = JobId(1);
    let mut other_token = finish_of(job, 1, code(8));
    other_token.token = Some(v1::Token { generation: 7, attempt: 1 });
    told(&mut world, N2, vec![finish(job, code(9))]);
    told(&mut world, N1, vec![fact::Kind::Finish(other_token), start(job)]);
    world.submit();
    world.assign_to(job, N1);
    assert_eq!(world.kind(job), Kind::Running);
    assert_eq!(world.ledger.deferred_counts(), (0, 0));
    let counters = world.ledger.counters();
    assert_eq!((counters.wrong_agent, counters.other_attempt, counters.drained), (1, 1, 1));
}

#[test]
fn nobody_suppresses_anothers_fact_by_telling_it_first() {
    let mut world = World::with_node();
    world.node_up(N2, 1, "k1");
    let job = JobId(1);
    told(&mut world, N2, vec![finish(job, code(0))]);
    told(&mut world, N1, vec![finish(job, code(3))]);
    world.submit();
    world.assign_to(job, N1);
    assert_eq!(world.task(job).exit_code, Some(3));
}

#[test]
fn what_waits_for_a_job_that_ends_otherwise_leaves_the_registry() {
    let mut world = World::with_node();
    let job = world.submit();
    told(&mut world, N1, vec![start(job), finish(job, code(0))]);
    world.cancel(job);
    assert_eq!(world.reason(job), Some(ExitKind::Cancelled));
    assert_eq!(world.ledger.deferred_counts(), (0, 0));
    assert_eq!(world.ledger.counters().after_end, 2);
    // And it does not come in again.
    told(&mut world, N1, vec![finish(job, code(0))]);
    assert_eq!(world.ledger.deferred_counts(), (0, 0));
}

#[test]
fn a_refusal_before_its_assignment_closes_the_attempt_in_its_step() {
    let mut world = World::with_node();
    let job = JobId(1);
    let refused = v1::RefusedFact {
        attempt: Some(attempt_ref(job, 1)),
        token: Some(v1::Token { generation: 1, attempt: 1 }),
        failure: Some(node_failure()),
    };
    told(&mut world, N1, vec![fact::Kind::Refused(refused.clone())]);
    world.submit();
    assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, 2));
    // One that nobody waits for is gone with its time: nothing ran.
    let future = v1::RefusedFact { attempt: Some(attempt_ref(JobId(9), 1)), ..refused };
    told(&mut world, N1, vec![fact::Kind::Refused(future)]);
    world.pass(TTL_MS);
    world.tick();
    assert_eq!((world.ledger.deferred_counts(), world.ledger.counters().expired), ((0, 0), 1));
}

#[test]
fn stops_of_what_is_not_known_and_facts_of_what_has_left_are_counted_no_ops() {
    let mut world = World::with_node();
    let (attempt, token) = (Some(attempt_ref(JobId(1), 1)), start_of(JobId(1), 1).token);
    let suspended = v1::SuspendedFact { attempt, token, ..Default::default() };
    let resumed = v1::ResumedFact { attempt, token, ..Default::default() };
    told(&mut world, N1, vec![fact::Kind::Suspended(suspended), fact::Kind::Resumed(resumed)]);
    assert_eq!(world.ledger.counters().unknown_attempt, 2);
    let job = world.running();
    world.finish(job, code(0));
    world.pass(8 * 24 * 3600 * 1000);
    world.tick();
    assert!(world.ledger.evicted(job));
    told(&mut world, N1, vec![finish(job, code(1))]);
    assert_eq!(world.ledger.counters().evicted, 1);
    assert_eq!(world.ledger.deferred_counts(), (0, 0));
}

#[test]
fn what_waits_too_long_is_an_orphan_and_is_still_applied() {
    let mut world = World::with_node();
    let job = JobId(1);
    told(&mut world, N1, vec![start(job), finish(job, code(4))]);
    assert_eq!(world.ledger.next_deadline_led(), Some(world.led_ms + TTL_MS));
    world.pass(TTL_MS - 1);
    assert_eq!(world.tick(), (0, false));
    world.pass(1);
    assert_eq!(world.tick(), (2, false));
    assert_eq!(world.ledger.deferred_counts(), (0, 2));
    assert_eq!(world.ledger.next_deadline_led(), None);
    let orphan = world.ledger.deferred().last().expect("it is kept whole");
    assert_eq!((&*orphan.agent, orphan.orphan, orphan.since_led_ms), (N1, true, 0));
    assert_eq!(orphan.fact.kind, Some(finish(job, code(4))));
    // Told again it is known.
    told(&mut world, N1, vec![finish(job, code(4))]);
    world.submit();
    world.assign_to(job, N1);
    assert_eq!(world.task(job).exit_code, Some(4));
    let counters = world.ledger.counters();
    assert_eq!((counters.expired, counters.drained, counters.orphans_drained), (2, 2, 2));
    assert_eq!(world.ledger.deferred_counts(), (0, 0));
}

#[test]
fn a_full_registry_says_so_and_loses_nothing() {
    let mut world = limited(3);
    let facts = |range: std::ops::Range<u64>| range.map(|job| finish(JobId(job), code(0)));
    told(&mut world, N1, facts(1..4).collect());
    let later = tell(&mut world, N1, facts(4..6).collect());
    let full = "the unknown-finish registry is full: 3 facts wait (unknown_finish_max)";
    assert_eq!(later, [full, full]);
    assert_eq!(world.ledger.counters().refused, 2);
    // One that is in it already is no news, full or not.
    told(&mut world, N1, facts(3..4).collect());
    let jobs: Vec<JobId> = (1..6).map(|_| world.submit()).collect();
    world.assign_to(jobs[0], N1);
    told(&mut world, N1, facts(4..5).collect());
    jobs[1..].iter().for_each(|job| drop(world.assign_to(*job, N1)));
    told(&mut world, N1, facts(5..6).collect());
    assert!(jobs.iter().all(|job| world.kind(*job) == Kind::Done));
}

#[test]
fn one_agent_cannot_shut_the_others_out() {
    let mut world = limited(10_000);
    world.node_up(N2, 1, "k1");
    let facts = |from: u64, n: u64| (from..from + n).map(|job| start(JobId(job))).collect();
    told(&mut world, N1, facts(1, 625));
    let later = tell(&mut world, N1, facts(1_000, 1));
    assert_eq!(later, ["this agent's share of the unknown-finish registry is full: 625 facts"]);
    told(&mut world, N2, facts(1, 1));
    // Its orphans are part of its share.
    world.pass(TTL_MS);
    world.tick();
    assert_eq!(world.ledger.deferred_counts(), (0, 626));
    assert_eq!(tell(&mut world, N1, facts(1_000, 1)).len(), 1);
    assert_eq!(limited(1).ledger.policy().unknown_finish_max, 1);
    let mut small = limited(300);
    told(&mut small, N1, facts(1, 256));
    let later = tell(&mut small, N1, facts(1_000, 1));
    assert_eq!(later, ["this agent's share of the unknown-finish registry is full: 256 facts"]);
}

#[test]
fn the_bytes_of_one_agent_are_bounded_and_a_fact_is_trimmed() {
    let mut world = World::with_node();
    let large = |job| {
        let mut finish = finish_of(JobId(job), 1, code(1));
        let path = vec![b'p'; 9_000];
        finish.stderr_tail = vec![b'e'; 9_000];
        finish.start = Some(v1::StartFact {
            stdout_path: path.clone(),
            stderr_path: path.clone(),
            ..start_of(JobId(job), 1)
        });
        let message = "m".repeat(9_000);
        let failure = v1::StartFailure { path, message, ..node_failure() };
        finish.end = Some(End::StartFailure(failure));
        fact::Kind::Finish(finish)
    };
    told(&mut world, N1, vec![large(1)]);
    let bytes = |world: &World| {
        use prost::Message as _;
        world.ledger.deferred().map(|entry| entry.fact.encoded_len()).sum::<usize>()
    };
    let one = bytes(&world);
    assert!((17_000..18_000).contains(&one), "{one} bytes");
    let fits = (4 << 20) / one as u64;
    (2..=fits).for_each(|job| told(&mut world, N1, vec![large(job)]));
    let later = tell(&mut world, N1, vec![large(fits + 1)]);
    assert_eq!(later, ["this agent's share of the unknown-finish registry is full: 4194304 bytes"]);
}

#[test]
fn a_full_quarantine_keeps_the_expired_and_puts_off_the_new() {
    let mut world = limited(1_000_000);
    let agents: Vec<String> = (0..3).map(|n| format!("agent-{n}")).collect();
    for (agent, n) in agents.iter().zip(0u64..) {
        world.node_up(agent, 9, "q");
        let jobs = n * 4_000 + 1..n * 4_000 + 4_001;
        let facts: Vec<fact::Kind> = jobs.map(|job| finish(JobId(job), code(0))).collect();
        for facts in facts.chunks(1_000) {
            told(&mut world, agent, facts.to_vec());
        }
    }
    world.pass(TTL_MS);
    while world.tick() == (1_000, true) {}
    assert_eq!(world.ledger.deferred_counts(), (2_000, ORPHANS_MAX));
    assert_eq!(world.ledger.next_deadline_led(), None, "no Tick is asked for in vain");
    let later = tell(&mut world, N1, vec![finish(JobId(20_000), code(0))]);
    assert_eq!(later, ["the quarantine of orphan facts is full: 10000"]);
    // Room in the quarantine lets the next one in and the new ones come.
    let job = world.submit();
    world.assign_to(job, &agents[0]);
    assert_eq!(world.kind(job), Kind::Done);
    told(&mut world, N1, vec![finish(JobId(20_000), code(0))]);
    assert_eq!(world.tick(), (1, false));
    assert_eq!(world.ledger.deferred_counts(), (2_000, ORPHANS_MAX));
}

#[test]
fn the_registry_is_part_of_the_image() {
    let mut world = World::with_node();
    told(&mut world, N1, vec![start(JobId(1)), finish(JobId(2), code(2))]);
    world.pass(TTL_MS);
    world.tick();
    told(&mut world, N1, vec![finish(JobId(1), code(1))]);
    let image = bytes(&world.ledger.freeze());
    world.ledger = Ledger::thaw(image.iter().cloned()).expect("its own image");
    world.ledger.check();
    assert_eq!(bytes(&world.ledger.freeze()), image);
    assert_eq!(world.ledger.deferred_counts(), (1, 2));
    for _ in 0..2 {
        let job = world.submit();
        world.assign_to(job, N1);
    }
    let codes = [1, 2].map(|job| world.task(JobId(job)).exit_code);
    assert_eq!(codes, [Some(1), Some(2)]);
    assert!(world.task(JobId(1)).start_wall_ms.is_some());
}

#[test]
fn a_restored_ledger_adopts_the_attempt_whose_assignment_it_lacks() {
    let mut world = World::with_node();
    let (ran, ended, held) = (world.submit(), world.submit(), world.submit());
    world.apply(Command::Hold(v1::HoldCommand {
        tasks: Vec::new(),
        by: Some(user("mia")),
        request_id: "h".to_owned(),
        jobs: vec![held.0],
        release: false,
    }));
    restored(&mut world);
    told(&mut world, N1, vec![start(ran), finish(ended, code(5)), finish(held, code(0))]);
    assert_eq!((world.kind(ran), world.kind(held)), (Kind::Running, Kind::Done));
    assert_eq!((world.kind(ended), world.task(ended).exit_code), (Kind::Exit, Some(5)));
    let grant = world.job(ran).grant().expect("it is held").clone();
    assert_eq!((&*grant.agent, grant.generation, grant.cpus), (N1, 1, 1));
    assert_eq!(world.ledger.used(N1).jobs, 1);
    // The second word of the same attempt is simply its own.
    told(&mut world, N1, vec![finish(ran, code(6))]);
    assert_eq!(world.task(ran).exit_code, Some(6));
}

#[test]
fn an_attempt_is_adopted_when_the_generation_changes() {
    let mut world = World::with_node();
    let known = world.submit();
    told(&mut world, N1, vec![fact::Kind::Finish(finish_of(known, 3, code(0)))]);
    told(&mut world, N1, vec![start(JobId(2))]);
    assert_eq!(world.kind(known), Kind::Queued);
    restored(&mut world);
    assert_eq!((world.kind(known), world.job(known).attempt()), (Kind::Done, 3));
    // Of a job that only the lost part of the log knew nobody takes the word.
    assert_eq!(world.ledger.deferred_counts(), (1, 0));
    let job = world.submit();
    assert_eq!(world.kind(job), Kind::Queued);
    assert_eq!(world.ledger.counters().drained, 1);
}

#[test]
fn an_attempt_that_is_adopted_while_its_agent_is_away_is_unknown_at_once() {
    let mut world = World::with_node();
    let job = world.submit();
    told(&mut world, N1, vec![start(job)]);
    world.down(N1, 1, v1::DownCause::Silence);
    restored(&mut world);
    assert_eq!(world.kind(job), Kind::Unknown);
    assert_eq!(world.since_led(job), Some(world.led_ms));
}

#[test]
fn a_fact_of_the_present_generation_adopts_nothing() {
    let mut world = World::with_node();
    let job = world.submit();
    told(&mut world, N1, vec![start(job)]);
    assert_eq!((world.kind(job), world.ledger.deferred_counts()), (Kind::Queued, (1, 0)));
    // A refusal of an older one says that nothing ran: the job goes its own way.
    let mut world = World::with_node();
    let job = world.submit();
    restored(&mut world);
    world.refuse(job);
    assert_eq!((world.kind(job), world.ledger.deferred_counts()), (Kind::Held, (0, 0)));
}
