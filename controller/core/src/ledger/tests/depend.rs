//! Dependencies and begin times: each job that waits starts exactly once, or ends at once.

use super::image::bytes;
use super::world::*;
use crate::events;
use crate::explain::{Sight, explain};
use crate::ledger::{Kind, Ledger, Outcome, Rejection, StateName};
use crate::scheduler::plan;
use proto::v1::{self, DependencyKind::*, ExitKind, command::Kind as Command, fact};
use proto::{JobId, TaskId};

const ALIKE: [v1::DependencyKind; 4] = [AfterOk, AfterAny, AfterNotOk, AfterStart];

fn range(first: u32, last: u32) -> v1::TaskRange {
    v1::TaskRange { first, last, step: 0 }
}

fn tasks_of(first: u32, last: u32) -> Option<v1::ArraySpec> {
    Some(v1::ArraySpec { ranges: vec![range(first, last)], limit: None, race: false })
}

fn waiting(world: &mut World, dependencies: Vec<v1::Dependency>) -> JobId {
    world.submit_spec(v1::JobSpec { dependencies, ..spec() })
}

fn on_tasks(kind: v1::DependencyKind, job: JobId, first: u32, last: u32) -> v1::Dependency {
    v1::Dependency { tasks: vec![range(first, last)], ..after(kind, job) }
}

fn array(world: &mut World, last: u32, dependencies: Vec<v1::Dependency>) -> JobId {
    world.submit_spec(v1::JobSpec { array: tasks_of(0, last), dependencies, ..spec() })
}

fn task(job: JobId, number: u32) -> TaskId {
    TaskId { job, index: Some(number) }
}

fn kind(world: &World, id: impl Into<TaskId>) -> Kind {
    world.ledger.job(id.into()).expect("it is there").kind()
}

fn message(world: &World, id: impl Into<TaskId>) -> String {
    world.ledger.numbered(id.into()).expect("it is there").to_wire(&world.ledger).message
}

/// Gives a task to the node, starts it and ends it with that code.
fn run(world: &mut World, id: impl Into<TaskId>, exit: u32) {
    let id = id.into();
    begin(world, id);
    let attempt = world.ledger.job(id).map_or(1, |job| job.attempt());
    let finish = fact::Kind::Finish(finish_of(id, attempt, code(exit)));
    world.facts(N1, vec![finish]);
}

fn begin(world: &mut World, id: impl Into<TaskId>) {
    let id = id.into();
    let attempt = world.ledger.job(id).map_or(1, |job| job.attempt());
    let assign = v1::AssignCommand {
        attempt: Some(attempt_ref(id, attempt)),
        agent_id: N1.to_owned(),
        incarnation: 1,
        journal_id: b"j1".to_vec(),
    };
    assert_eq!(world.apply(Command::Assign(assign)), Outcome::Assigned, "{id:?}");
    world.facts(N1, vec![fact::Kind::Start(start_of(id, attempt))]);
}

fn refused(world: &mut World, spec: v1::JobSpec) -> Option<Rejection> {
    let request = world.next_request();
    match world.submit_with(spec, "mia", &request) {
        Outcome::Rejected(rejection) => Some(rejection),
        _ => None,
    }
}

/// What becomes of a job of each kind that waits for one that ends so; in the order of [`ALIKE`].
fn outcomes(world: &World, jobs: &[JobId]) -> Vec<Kind> {
    jobs.iter().map(|job| kind(world, *job)).collect()
}

fn one_of_each(world: &mut World, job: JobId) -> Vec<JobId> {
    ALIKE.iter().map(|kind| waiting(world, vec![after(*kind, job)])).collect()
}

#[test]
fn each_kind_is_decided_by_start_and_end_of_a_job() {
    use Kind::{Blocked, Exit, Queued};
    for (code, expected) in
        [(0, [Queued, Queued, Exit, Queued]), (1, [Exit, Queued, Queued, Queued])]
    {
        let mut world = World::with_node();
        let other = world.submit();
        let jobs = one_of_each(&mut world, other);
        assert_eq!(outcomes(&world, &jobs), [Blocked; 4]);
        begin(&mut world, other);
        assert_eq!(outcomes(&world, &jobs), [Blocked, Blocked, Blocked, Queued]);
        world.finish(other, super::world::code(code));
        assert_eq!(outcomes(&world, &jobs), expected);
        // Who comes later finds the same, from the ledger.
        let later = one_of_each(&mut world, other);
        assert_eq!(outcomes(&world, &later), expected);
    }
}

#[test]
fn an_array_is_waited_for_as_a_whole_and_fails_with_its_first_exit() {
    use Kind::{Blocked, Exit, Queued};
    let mut world = World::with_node();
    let other = array(&mut world, 2, Vec::new());
    let jobs = one_of_each(&mut world, other);
    run(&mut world, task(other, 0), 0);
    assert_eq!(outcomes(&world, &jobs), [Blocked; 4]);
    run(&mut world, task(other, 2), 7);
    assert_eq!(outcomes(&world, &jobs), [Exit, Blocked, Blocked, Blocked], "at once (I01)");
    begin(&mut world, task(other, 1));
    assert_eq!(outcomes(&world, &jobs), [Exit, Blocked, Blocked, Queued]);
    let finish = fact::Kind::Finish(finish_of(task(other, 1), 1, code(0)));
    world.facts(N1, vec![finish]);
    assert_eq!(outcomes(&world, &jobs), [Exit, Queued, Queued, Queued], "no deadlock (I02)");
    let told = format!("it waited for {other}_2 (after-ok), which is EXIT exit-code 7");
    assert_eq!(message(&world, jobs[0]), told);
    let reason = world.task(jobs[0]).reason.expect("it has ended");
    assert_eq!(reason.kind(), ExitKind::DependencyFailed);
    let failure = reason.dependency.expect("which job");
    assert_eq!((failure.job, failure.task, failure.code), (other.0, Some(2), Some(7)));
    assert_eq!(outcomes_of_later(&mut world, other), [Exit, Queued, Queued, Queued]);
}

fn outcomes_of_later(world: &mut World, other: JobId) -> Vec<Kind> {
    let later = one_of_each(world, other);
    outcomes(world, &later)
}

#[test]
fn tasks_of_an_array_are_waited_for_alone() {
    use Kind::{Blocked, Exit, Queued};
    let mut world = World::with_node();
    let other = array(&mut world, 9, Vec::new());
    let one = waiting(&mut world, vec![on_tasks(AfterOk, other, 3, 3)]);
    let some = waiting(&mut world, vec![on_tasks(AfterOk, other, 2, 4)]);
    let same = waiting(&mut world, vec![on_tasks(AfterAny, other, 2, 4)]);
    let failed = waiting(&mut world, vec![on_tasks(AfterNotOk, other, 2, 4)]);
    let started = waiting(&mut world, vec![on_tasks(AfterStart, other, 4, 5)]);
    let all = [one, some, same, failed, started];
    run(&mut world, task(other, 0), 1);
    assert_eq!(outcomes(&world, &all), [Blocked; 5], "it concerns none of them");
    run(&mut world, task(other, 3), 0);
    assert_eq!(outcomes(&world, &all), [Queued, Blocked, Blocked, Blocked, Blocked]);
    begin(&mut world, task(other, 5));
    run(&mut world, task(other, 4), 1);
    assert_eq!(outcomes(&world, &all), [Queued, Exit, Blocked, Blocked, Queued]);
    assert!(message(&world, some).contains(&format!("{other}_4")), "{}", message(&world, some));
    run(&mut world, task(other, 2), 0);
    assert_eq!(outcomes(&world, &all), [Queued, Exit, Queued, Queued, Queued]);
    // Many at once: the rest is cancelled as a whole.
    let rest = waiting(&mut world, vec![on_tasks(AfterOk, other, 6, 9)]);
    let any = waiting(&mut world, vec![on_tasks(AfterAny, other, 6, 9)]);
    let ranges = vec![range(6, 9)];
    let tasks = vec![v1::TaskSet { job: other.0, ranges }];
    let by = Some(user("mia"));
    let cancel = v1::CancelCommand { by, request_id: "c".into(), tasks, ..Default::default() };
    world.apply(Command::Cancel(cancel));
    assert_eq!((kind(&world, rest), kind(&world, any)), (Exit, Queued));
}

#[test]
fn after_each_waits_task_by_task() {
    use Kind::{Blocked, Exit, Queued};
    let mut world = World::with_node();
    let first = array(&mut world, 4, Vec::new());
    let second = array(&mut world, 4, vec![after(AfterEach, first)]);
    let third = array(&mut world, 4, vec![after(AfterEach, second)]);
    let kinds = |world: &World, job| (0..5).map(|n| kind(world, task(job, n))).collect::<Vec<_>>();
    assert_eq!(message(&world, task(second, 1)), format!("waits for {first}"));
    run(&mut world, task(first, 1), 0);
    run(&mut world, task(first, 3), 4);
    assert_eq!(kinds(&world, second), [Blocked, Queued, Blocked, Exit, Blocked]);
    assert_eq!(kinds(&world, third), [Blocked, Blocked, Blocked, Exit, Blocked], "in one step");
    let told = format!("it waited for {second}_3 (after-each), which is EXIT dependency-failed");
    assert_eq!(message(&world, task(third, 3)), told);
    // A whole array that comes later: what has ended counts.
    let late = array(&mut world, 4, vec![after(AfterEach, first)]);
    assert_eq!(kinds(&world, late), [Blocked, Queued, Blocked, Exit, Blocked]);
    let told = format!("it waited for {first}_3 (after-each), which is EXIT exit-code 4");
    assert_eq!(message(&world, task(late, 3)), told);
    for number in [0, 2, 4] {
        run(&mut world, task(first, number), 0);
    }
    assert_eq!(kinds(&world, second), [Queued, Queued, Queued, Exit, Queued]);
    assert_eq!(kinds(&world, late), [Queued, Queued, Queued, Exit, Queued]);
    let sight = Sight::default();
    let answer = explain(&world.ledger, &sight, task(third, 2), false).expect("it is there");
    assert_eq!(answer.lines[0], format!("after-each {second}_2: {second}_2 is PEND."));
}

#[test]
fn after_each_beside_others_is_looked_at_when_they_are_met() {
    use Kind::{Blocked, Exit, Queued};
    let mut world = World::with_node();
    let (other, first) = (world.submit(), array(&mut world, 2, Vec::new()));
    let second = array(&mut world, 2, vec![after(AfterEach, first), after(AfterOk, other)]);
    let kinds = |world: &World| (0..3).map(|n| kind(world, task(second, n))).collect::<Vec<_>>();
    run(&mut world, task(first, 0), 0);
    run(&mut world, task(first, 1), 1);
    assert_eq!(kinds(&world), [Blocked, Exit, Blocked]);
    run(&mut world, other, 0);
    assert_eq!(kinds(&world), [Queued, Exit, Blocked]);
    run(&mut world, task(first, 2), 0);
    assert_eq!(kinds(&world), [Queued, Exit, Queued]);
}

#[test]
fn a_retry_is_no_end() {
    let mut world = World::with_node();
    let other = world.submit_spec(retrying());
    let jobs = one_of_each(&mut world, other);
    run(&mut world, other, 1);
    assert_eq!(kind(&world, other), Kind::Queued);
    use Kind::{Blocked, Exit, Queued};
    assert_eq!(outcomes(&world, &jobs), [Blocked, Blocked, Blocked, Queued]);
    let late = waiting(&mut world, vec![after(AfterStart, other)]);
    assert_eq!(kind(&world, late), Queued, "an attempt of it had started");
    run(&mut world, other, 0);
    assert_eq!(outcomes(&world, &jobs), [Queued, Queued, Exit, Queued]);
}

#[test]
fn what_can_no_longer_be_met_ends_through_the_whole_chain_in_one_step() {
    let mut world = World::with_node();
    let first = world.submit();
    let mut chain = vec![first];
    for _ in 0..20 {
        let last = *chain.last().expect("one is there");
        chain.push(waiting(&mut world, vec![after(AfterOk, last)]));
    }
    let cleanup = waiting(&mut world, vec![after(AfterAny, *chain.last().expect("one"))]);
    let position = world.index + 1;
    world.cancel(first);
    for pair in chain.windows(2) {
        assert_eq!(world.reason(pair[1]), Some(ExitKind::DependencyFailed));
        let ended = world.job(pair[1]).state().ended().expect("it has ended");
        assert_eq!(ended.position, position);
    }
    assert_eq!(kind(&world, cleanup), Kind::Queued, "after-any of what failed is met");
    let told = format!("it waited for {first} (after-ok), which is EXIT cancelled");
    assert_eq!(message(&world, chain[1]), told);
    let events = events(&world.ledger, chain[1]).expect("it is there").events;
    let last = &events.last().expect("an end").what;
    assert_eq!(*last, format!("PEND -> EXIT dependency-failed: {told}"));
}

#[test]
fn all_dependencies_must_be_met_and_each_is_told() {
    let mut world = World::with_node();
    let others: Vec<JobId> = (0..5).map(|_| world.submit()).collect();
    let deps = others.iter().map(|job| after(AfterOk, *job)).collect();
    let job = waiting(&mut world, deps);
    let (a, b, c) = (others[0], others[1], others[2]);
    assert_eq!(message(&world, job), format!("waits for {a}, {b}, {c} and 2 more"));
    for other in &others[..4] {
        run(&mut world, *other, 0);
        assert_eq!(kind(&world, job), Kind::Blocked);
    }
    let last = others[4];
    assert_eq!(message(&world, job), format!("waits for {last}"));
    begin(&mut world, last);
    let answer = explain(&world.ledger, &Sight::default(), job, false).expect("it is there");
    assert_eq!(answer.headline, format!("Job {job} is PEND: it waits for {last}."));
    assert_eq!(answer.lines[0], format!("after-ok {last}: {last} is RUN."));
    let open: Vec<bool> = world.task(job).dependencies.iter().map(|dep| dep.open).collect();
    assert_eq!(open, [false, false, false, false, true]);
    world.finish(last, code(0));
    assert_eq!(kind(&world, job), Kind::Queued);
    let events = events(&world.ledger, job).expect("it is there").events;
    let told = format!("after-ok {last} is met: {last} is now DONE");
    assert_eq!(events.last().map(|event| event.what.as_str()), Some(told.as_str()));
}

#[test]
fn touching_what_was_waited_for_starts_nothing_again() {
    let mut world = World::with_node();
    let other = world.submit();
    let job = waiting(&mut world, vec![after(AfterAny, other), after(AfterStart, other)]);
    run(&mut world, other, 0);
    run(&mut world, job, 0);
    let before = world.task(job);
    for n in 0..100 {
        world.prioritise(other, n, &format!("touch-{n}"));
        world.cancel(other);
        world.finish(other, code(0));
        world.start(other);
        world.tick();
    }
    assert_eq!(world.task(job), before, "B25: it started once and ended once");
    // The same while it waits: what is touched and does not end is no news.
    let other = world.submit();
    let job = waiting(&mut world, vec![after(AfterAny, other)]);
    for n in 0..100 {
        let request = format!("hold-{n}");
        world.hold(other, n % 2 == 1, &request);
        assert_eq!(kind(&world, job), Kind::Blocked);
    }
    assert_eq!(world.job(job).causes().len(), 0);
}

#[test]
fn only_older_jobs_can_be_waited_for_so_there_are_no_circles() {
    let mut world = World::with_node();
    let other = world.submit();
    for id in [0, other.0 + 1, other.0 + 2, u64::MAX] {
        let dependencies = vec![after(AfterOk, JobId(id))];
        let no = refused(&mut world, v1::JobSpec { dependencies, ..spec() });
        let expected = Rejection::NoSuchDependency { job: JobId(id), newest: other };
        assert_eq!(no, Some(expected));
    }
    assert_eq!(world.ledger.next_job_id(), JobId(other.0 + 1), "none of them got an id");
    // Whatever is submitted, each arrow leads from a job to an older one.
    let chain: Vec<JobId> =
        (0..10).map(|n| waiting(&mut world, vec![after(AfterAny, JobId(other.0 + n))])).collect();
    for job in chain {
        assert!(world.job(job).dependencies().iter().all(|dep| dep.job < job.0));
    }
}

#[test]
fn what_cannot_be_waited_for_is_refused_by_name() {
    let mut world = World::with_node();
    let (plain, short) = (world.submit(), array(&mut world, 3, Vec::new()));
    let with = |dependencies| v1::JobSpec { dependencies, ..spec() };
    let each = |dep, last| v1::JobSpec { array: tasks_of(0, last), ..with(vec![dep]) };
    let no = refused(&mut world, with(vec![on_tasks(AfterOk, plain, 1, 1)]));
    assert_eq!(no, Some(Rejection::NotAnArray { job: plain }));
    let no = refused(&mut world, with(vec![on_tasks(AfterOk, short, 3, 4)])).expect("refused");
    assert_eq!(no.to_string(), format!("array {short} has no task 4: its tasks are 0-3"));
    let no = refused(&mut world, each(after(AfterEach, short), 5)).expect("refused");
    assert!(no.to_string().contains(&format!("array {short} has no task 4, only 0-3")), "{no}");
    assert_eq!(
        refused(&mut world, each(after(AfterEach, plain), 3)),
        Some(Rejection::NotAnArray { job: plain })
    );
    let no = refused(&mut world, with(vec![after(AfterEach, short)])).expect("refused");
    assert!(no.to_string().contains("this job is none: give --array"), "{no}");
    let no = refused(&mut world, with(vec![after(AfterOk, plain); 10_001])).expect("refused");
    assert!(no.to_string().contains("10001 ids given, at most 10000 are allowed"), "{no}");
    let no = refused(&mut world, with(vec![after(Unspecified, plain)]));
    assert!(matches!(no, Some(Rejection::Malformed { .. })), "{no:?}");
}

#[test]
fn an_evicted_job_is_judged_by_what_is_remembered_of_it() {
    use Kind::{Exit, Queued};
    let mut world = World::with_node();
    let (good, bad) = (world.submit(), world.submit());
    let (all, torn) = (array(&mut world, 1, Vec::new()), array(&mut world, 1, Vec::new()));
    run(&mut world, good, 0);
    run(&mut world, bad, 1);
    for (job, code) in [(all, 0), (torn, 1)] {
        run(&mut world, task(job, 0), 0);
        run(&mut world, task(job, 1), code);
    }
    world.pass(8 * 24 * 3_600_000);
    world.tick();
    assert!([good, bad, all, torn].iter().all(|job| world.ledger.evicted(*job)));
    let image = bytes(&world.ledger.freeze());
    world.ledger = Ledger::thaw(image.iter().cloned()).expect("its own image");
    assert_eq!(bytes(&world.ledger.freeze()), image);
    for job in [good, all] {
        assert_eq!(outcomes_of_later(&mut world, job), [Queued, Queued, Exit, Queued]);
    }
    for job in [bad, torn] {
        assert_eq!(outcomes_of_later(&mut world, job), [Exit, Queued, Queued, Queued]);
    }
    let failed = waiting(&mut world, vec![after(AfterOk, bad)]);
    let told = format!(
        "it waited for {bad} (after-ok), which was not DONE and is no longer in the ledger"
    );
    assert_eq!(message(&world, failed), told);
    let some = waiting(&mut world, vec![on_tasks(AfterOk, all, 0, 1)]);
    let each = array(&mut world, 1, vec![after(AfterEach, all)]);
    assert_eq!((kind(&world, some), kind(&world, task(each, 1))), (Queued, Queued));
    let dependencies = vec![on_tasks(AfterOk, torn, 0, 0)];
    let no = refused(&mut world, v1::JobSpec { dependencies, ..spec() });
    assert_eq!(no, Some(Rejection::TasksForgotten { job: torn }));
    let dependencies = vec![after(AfterEach, torn)];
    let no = refused(&mut world, v1::JobSpec { array: tasks_of(0, 1), dependencies, ..spec() });
    assert_eq!(no, Some(Rejection::TasksForgotten { job: torn }));
}

#[test]
fn a_million_tasks_that_wait_for_one_job_are_one_step() {
    let mut world = World::with_node();
    let other = world.submit();
    let big = array(&mut world, 999_998, vec![after(AfterOk, other)]);
    assert_eq!(world.ledger.pending_count(), 1, "they wait for no node");
    run(&mut world, other, 0);
    assert_eq!(world.ledger.pending_count(), 999_999);
    assert_eq!(world.ledger.array(big).map(|array| array.shared().count()), Some(1));
    let mut world = World::with_node();
    let other = world.submit();
    let big = array(&mut world, 999_998, vec![after(AfterOk, other)]);
    run(&mut world, other, 1);
    let counts = world.ledger.array(big).map(|array| array.tally().by_name());
    assert_eq!(counts.and_then(|counts| counts.get(&StateName::Exit).copied()), Some(999_999));
}

#[test]
fn many_who_wait_are_told_in_steps_and_nothing_is_evicted_meanwhile() {
    let mut world = World::with_node();
    let other = world.submit();
    let jobs: Vec<JobId> =
        (0..2_500).map(|_| waiting_unchecked(&mut world, vec![after(AfterOk, other)])).collect();
    let then = waiting(&mut world, vec![after(AfterAny, jobs[2_400])]);
    run(&mut world, other, 1);
    let ended = |world: &World| jobs.iter().filter(|job| kind(world, **job) == Kind::Exit).count();
    assert_eq!((ended(&world), kind(&world, then)), (1_000, Kind::Blocked));
    assert!(world.ledger.next_deadline_led().is_some_and(|due| due <= world.led_ms));
    // A replica from the image goes on as this one does.
    let image = bytes(&world.ledger.freeze());
    let mut replica = Ledger::thaw(image.iter().cloned()).expect("its own image");
    let from = world.log.len();
    world.pass(8 * 24 * 3_600_000);
    assert_eq!(world.tick(), (1_000, true));
    assert!(!world.ledger.evicted(other), "somebody has yet to be told");
    assert_eq!(world.tick(), (1_000, true));
    while world.tick().1 {}
    for (index, proposal) in (from as u64 + 1..).zip(&world.log[from..]) {
        replica.apply(index, proposal);
    }
    assert_eq!(bytes(&replica.freeze()), bytes(&world.ledger.freeze()));
    assert!(world.ledger.evicted(other));
    assert_eq!(kind(&world, then), Kind::Queued);
}

/// Without a check of everything after it.
fn waiting_unchecked(world: &mut World, dependencies: Vec<v1::Dependency>) -> JobId {
    let request = world.next_request();
    let (blobs, command) = submit(&v1::JobSpec { dependencies, ..spec() }, "mia", &request);
    world.index += 1;
    let proposal = v1::Proposal {
        level: proto::LEVEL,
        wall_ms: world.wall_ms,
        led_ms: world.led_ms,
        blobs,
        commands: vec![v1::Command { kind: Some(command) }],
    };
    let applied = world.ledger.apply(world.index, &proposal);
    world.log.push(proposal);
    job_of(&applied.outcomes[0])
}

#[test]
fn a_begin_time_fires_once_by_the_wall_of_a_tick() {
    let mut world = World::with_node();
    let begin_wall_ms = Some(world.wall_ms + 5_000);
    let job = world.submit_spec(v1::JobSpec { begin_wall_ms, ..spec() });
    let past = world.submit_spec(v1::JobSpec { begin_wall_ms: Some(world.wall_ms), ..spec() });
    assert_eq!((kind(&world, job), kind(&world, past)), (Kind::Blocked, Kind::Queued));
    assert_eq!(message(&world, job), "begins at 2023-11-14 22:13:25 UTC");
    assert_eq!(world.ledger.next_begin_wall(), begin_wall_ms);
    // Led time alone lets nothing begin: a clock that stands still, or was set back.
    world.led_ms += 3_600_000;
    world.wall_ms -= 3_600_000;
    assert_eq!(world.tick(), (0, false));
    assert_eq!(kind(&world, job), Kind::Blocked);
    world.wall_ms += 3_600_000 + 4_999;
    assert_eq!(world.tick(), (0, false));
    world.wall_ms += 1;
    assert_eq!(world.tick(), (1, false));
    assert_eq!((kind(&world, job), world.ledger.next_begin_wall()), (Kind::Queued, None));
    world.wall_ms -= 3_600_000;
    world.tick();
    world.wall_ms += 7_200_000;
    assert_eq!(world.tick(), (0, false), "and once only");
    let events = events(&world.ledger, job).expect("it is there").events;
    let last = events.last().map(|event| event.what.as_str());
    assert_eq!(last, Some("its time to begin has come"));
}

#[test]
fn dependency_and_begin_time_must_both_be_met_and_a_hold_outlives_them() {
    let mut world = World::with_node();
    let other = world.submit();
    let begin_wall_ms = Some(world.wall_ms + 5_000);
    let dependencies = vec![after(AfterOk, other)];
    let both = v1::JobSpec { dependencies, begin_wall_ms, ..spec() };
    let (job, held) = (world.submit_spec(both.clone()), world.submit_spec(both));
    world.hold(held, false, "hold");
    let told = format!("waits for {other}; begins at 2023-11-14 22:13:25 UTC; held as well");
    assert_eq!(message(&world, held), told);
    run(&mut world, other, 0);
    assert_eq!(outcomes(&world, &[job, held]), [Kind::Blocked; 2]);
    world.pass(5_000);
    world.tick();
    assert_eq!(outcomes(&world, &[job, held]), [Kind::Queued, Kind::Held]);
    world.hold(held, true, "release");
    assert_eq!(kind(&world, held), Kind::Queued);
}

#[test]
fn tasks_of_an_array_that_waits_can_be_held_and_cancelled_alone() {
    use Kind::{Blocked, Exit, Held, Queued};
    let mut world = World::with_node();
    let other = world.submit();
    let job = array(&mut world, 5, vec![after(AfterOk, other)]);
    let set = |first, last| vec![v1::TaskSet { job: job.0, ranges: vec![range(first, last)] }];
    for (tasks, request_id) in [(set(0, 0), "h1"), (set(4, 5), "h2")] {
        let (by, request_id) = (Some(user("mia")), request_id.to_owned());
        let hold = v1::HoldCommand { by, request_id, tasks, ..Default::default() };
        world.apply(Command::Hold(hold));
    }
    let by = Some(user("mia"));
    let cancel =
        v1::CancelCommand { by, request_id: "c".into(), tasks: set(1, 1), ..Default::default() };
    world.apply(Command::Cancel(cancel));
    let kinds = |world: &World| (0..6).map(|n| kind(world, task(job, n))).collect::<Vec<_>>();
    assert_eq!(kinds(&world), [Blocked, Exit, Blocked, Blocked, Blocked, Blocked]);
    run(&mut world, other, 0);
    assert_eq!(kinds(&world), [Held, Exit, Queued, Queued, Held, Held]);
    // Cancelled as a whole it waits for nothing any more (K04).
    let other = world.submit();
    let job = array(&mut world, 5, vec![after(AfterOk, other)]);
    world.cancel(job);
    assert!(world.ledger.array(job).is_some_and(|array| array.terminal()));
    run(&mut world, other, 0);
    assert!(plan(&world.ledger, &world.ledger.agents_up(), 100).placements.len() <= 3);
}

#[test]
fn a_new_generation_holds_what_waits() {
    let mut world = World::with_node();
    let other = world.submit();
    let job = waiting(&mut world, vec![after(AfterAny, other)]);
    let generation = Some(world.ledger.generation() + 1);
    world.apply(Command::Configure(v1::ConfigureCommand { generation, ..Default::default() }));
    assert!(world.job(job).may_have_run(), "the lost part may have started it");
    world.cancel(other);
    assert_eq!(kind(&world, job), Kind::Held);
}

#[test]
fn a_race_is_ok_with_its_winner_and_fails_with_its_last() {
    use Kind::{Blocked, Exit, Queued};
    let race = |world: &mut World| {
        let array = tasks_of(0, 2).map(|array| v1::ArraySpec { race: true, ..array });
        world.submit_spec(v1::JobSpec { array, ..spec() })
    };
    let mut world = World::with_node();
    let other = race(&mut world);
    let jobs = one_of_each(&mut world, other);
    run(&mut world, task(other, 0), 1);
    assert_eq!(outcomes(&world, &jobs), [Blocked; 4], "the others may win");
    run(&mut world, task(other, 1), 0);
    assert_eq!(outcomes(&world, &jobs), [Queued, Queued, Exit, Queued]);
    let other = race(&mut world);
    let jobs = one_of_each(&mut world, other);
    (0..3).for_each(|number| run(&mut world, task(other, number), 1));
    assert_eq!(outcomes(&world, &jobs), [Exit, Queued, Queued, Queued]);
}

#[test]
fn a_job_ages_from_when_it_may_start() {
    let mut world = World::with_node();
    let other = world.submit();
    let job = waiting(&mut world, vec![after(AfterAny, other)]);
    world.pass(60_000);
    world.cancel(other);
    assert_eq!(world.job(job).eligible_led_ms, 60_000);
}

#[test]
fn a_ledger_without_room_keeps_what_somebody_has_yet_to_be_told() {
    let mut world = World::with_node();
    let policy = Some(v1::Policy { max_completed: 1, ..v1::Policy::default() });
    world.apply(Command::Configure(v1::ConfigureCommand { policy, ..Default::default() }));
    let other = world.submit();
    for _ in 0..1_100 {
        waiting_unchecked(&mut world, vec![after(AfterOk, other)]);
    }
    run(&mut world, other, 1);
    assert!(!world.ledger.evicted(other));
    assert_eq!(world.ledger.counts().get(&StateName::Pend), Some(&100));
    while world.tick().1 {}
    assert!(world.ledger.evicted(other));
    assert_eq!(world.ledger.live(), 0);
}
