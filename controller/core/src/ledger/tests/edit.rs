//! Edits: intents on what a node has, and requests that come twice (B6, P8).

use super::world::*;
use crate::ledger::{Kind, Ledger, Outcome, Rejection};
use proto::JobId;
use proto::v1::{self, DownCause, Phase, command::Kind as Command};

fn result(outcome: &Outcome) -> Result<(), Rejection> {
    match outcome {
        Outcome::Edited(results) => results[0].result.clone(),
        Outcome::Rejected(rejection) => Err(rejection.clone()),
        _ => Err(Rejection::NotAdmin),
    }
}

fn requested(world: &World, job: JobId) -> Option<bool> {
    world.task(job).suspend_requested
}

/// A UUIDv7 of that wall time; `n` tells two of the same time apart.
fn uuid(wall_ms: u64, n: u64) -> String {
    let time = format!("{wall_ms:012x}");
    format!("{}-{}-739b-aea5-{n:012x}", &time[..8], &time[8..])
}

#[test]
fn a_suspend_is_shown_until_its_node_has_done_it() {
    let mut world = World::with_node();
    let job = world.running();
    assert_eq!(result(&world.suspend(job, false, "s1")), Ok(()));
    assert_eq!((world.kind(job), requested(&world, job)), (Kind::Running, Some(true)));
    let fact = world.stop_fact(job, true);
    world.facts(N1, vec![fact]);
    assert_eq!((world.kind(job), requested(&world, job)), (Kind::Suspended, None));
    world.suspend(job, true, "r1");
    assert_eq!((world.kind(job), requested(&world, job)), (Kind::Suspended, Some(false)));
    let fact = world.stop_fact(job, false);
    world.facts(N1, vec![fact]);
    assert_eq!((world.kind(job), requested(&world, job)), (Kind::Running, None));
    let events = crate::events(&world.ledger, job).map(|answer| answer.events).unwrap_or_default();
    let what: Vec<&str> = events[3..].iter().map(|event| event.what.as_str()).collect();
    assert_eq!(
        what,
        [
            "asked to suspend it",
            "stopped it: RUN -> SUSP",
            "asked to resume it",
            "let it go on: SUSP -> RUN"
        ]
    );
}

#[test]
fn whatever_a_node_has_may_be_suspended_and_nothing_else() {
    let mut world = World::with_node();
    let allowed = [world.dispatched(), world.running(), world.suspended()];
    for job in allowed {
        let request = world.next_request();
        assert_eq!(result(&world.suspend(job, job == allowed[2], &request)), Ok(()));
        assert!(requested(&world, job).is_some(), "job {job}");
    }
    let waiting = world.submit();
    let held = world.submit_spec(v1::JobSpec { hold: true, ..spec() });
    for job in [waiting, held] {
        let request = world.next_request();
        let refused = result(&world.suspend(job, false, &request));
        assert!(matches!(refused, Err(Rejection::WrongState { .. })), "{refused:?}");
    }
    world.finish(allowed[1], code(0));
    let refused = result(&world.suspend(allowed[1], false, "late"));
    assert!(matches!(refused, Err(Rejection::AlreadyTerminal { .. })));
}

#[test]
fn a_suspend_of_an_unknown_task_is_kept_for_the_join() {
    let mut world = World::with_node();
    let job = world.running();
    world.down(N1, 1, DownCause::Silence);
    assert_eq!(result(&world.suspend(job, false, "s1")), Ok(()));
    assert_eq!((world.kind(job), requested(&world, job)), (Kind::Unknown, Some(true)));
    world.join(N1, 2, "j1");
    let item = world.item(job, Phase::Running);
    world.at_join(N1, vec![item]);
    assert_eq!((world.kind(job), requested(&world, job)), (Kind::Running, Some(true)));
}

#[test]
fn a_stop_that_is_told_before_the_manifest_leaves_an_unknown_task_unknown() {
    let mut world = World::with_node();
    let job = world.running();
    world.suspend(job, false, "s1");
    world.down(N1, 1, DownCause::Silence);
    world.join(N1, 2, "j1");
    let fact = world.stop_fact(job, true);
    world.facts(N1, vec![fact]);
    assert_eq!((world.kind(job), requested(&world, job)), (Kind::Unknown, None));
    // A manifest that only says accepted leaves it what it was.
    let item = world.item(job, Phase::Accepted);
    world.at_join(N1, vec![item]);
    assert_eq!(world.kind(job), Kind::Suspended);
}

#[test]
fn a_stop_that_is_told_again_after_its_resume_is_no_news() {
    let mut world = World::with_node();
    let job = world.running();
    let (stop, go) = (world.stop_fact(job, true), world.stop_fact(job, false));
    let from = *world.seq(N1);
    world.facts(N1, vec![stop.clone(), go]);
    assert_eq!(world.kind(job), Kind::Running);
    let causes = world.job(job).causes().len();
    world.facts_at(N1, from, vec![stop]);
    assert_eq!((world.kind(job), world.job(job).causes().len()), (Kind::Running, causes));
}

#[test]
fn what_is_being_cancelled_is_not_suspended() {
    let mut world = World::with_node();
    let job = world.running();
    world.cancel(job);
    let refused = result(&world.suspend(job, false, "s1"));
    assert!(matches!(refused, Err(Rejection::WrongState { .. })));
}

#[test]
fn a_suspend_that_comes_twice_never_stops_the_job_again() {
    let mut world = World::with_node();
    let job = world.running();
    world.suspend(job, false, "s1");
    let fact = world.stop_fact(job, true);
    world.facts(N1, vec![fact]);
    world.suspend(job, true, "r1");
    let fact = world.stop_fact(job, false);
    world.facts(N1, vec![fact]);
    let image = super::image::bytes(&world.ledger.freeze());
    world.ledger = Ledger::thaw(image.into_iter()).expect("its own image");
    let before = world.job(job).clone();
    assert_eq!(result(&world.suspend(job, false, "s1")), Ok(()), "the same answer");
    assert_eq!(*world.job(job), before, "and no effect");
}

#[test]
fn a_request_that_did_nothing_the_first_time_does_nothing_later_either() {
    let mut world = World::with_node();
    let job = world.suspended();
    assert_eq!(result(&world.suspend(job, false, "s1")), Ok(()));
    world.suspend(job, true, "r1");
    world.suspend(job, false, "s1");
    assert_eq!(requested(&world, job), Some(false));
}

#[test]
fn every_edit_is_done_once_per_request() {
    let mut world = World::with_node();
    let job = world.submit();
    world.hold(job, false, "h1");
    world.hold(job, true, "h2");
    world.hold(job, false, "h1");
    assert_eq!(world.kind(job), Kind::Queued);
    world.prioritise(job, 5, "p1");
    world.prioritise(job, 6, "p2");
    world.prioritise(job, 5, "p1");
    assert_eq!(world.job(job).priority(), 6);
    let signal = |world: &mut World, request: &str, signal| {
        world.apply(Command::Cancel(v1::CancelCommand {
            tasks: Vec::new(),
            by: Some(user("mia")),
            request_id: request.to_owned(),
            jobs: vec![job.0],
            signal: Some(signal),
        }))
    };
    world.assign_to(job, N1);
    world.start(job);
    signal(&mut world, "k1", 10);
    signal(&mut world, "k2", 12);
    signal(&mut world, "k1", 10);
    assert_eq!(world.job(job).signal().map(|signal| signal.signal), Some(12));
}

#[test]
fn a_request_id_that_asks_for_something_else_is_refused() {
    let mut world = World::with_node();
    let job = world.submit();
    world.prioritise(job, 5, "p1");
    let other = Err(Rejection::KeyReused { first: job });
    assert_eq!(result(&world.prioritise(job, 6, "p1")), other);
    assert_eq!(result(&world.hold(job, false, "p1")), other);
    assert_eq!((world.kind(job), world.job(job).priority()), (Kind::Queued, 5));
    // Another user's request of the same name is another request.
    let command = v1::HoldCommand {
        tasks: Vec::new(),
        by: Some(user("root")),
        request_id: "p1".to_owned(),
        jobs: vec![job.0],
        release: false,
    };
    assert_eq!(result(&world.apply(Command::Hold(command))), Ok(()));
}

#[test]
fn a_request_that_may_have_been_forgotten_is_refused_as_expired() {
    let mut world = World::with_node();
    let job = world.submit();
    let now = world.wall_ms;
    for n in 0..65 {
        world.prioritise(job, n as i32 + 1, &uuid(now + n, n));
    }
    assert_eq!(result(&world.prioritise(job, 1, &uuid(now, 0))), Err(Rejection::RequestExpired));
    assert_eq!(result(&world.prioritise(job, 2, &uuid(now + 1, 1))), Ok(()), "still remembered");
    assert_eq!(world.job(job).priority(), 65);
    assert_eq!(result(&world.prioritise(job, 7, &uuid(now + 1, 99))), Ok(()), "not before it");
    // A day later nothing vouches for what is not remembered, on a job that was never edited too.
    let other = world.submit();
    world.pass(25 * 3600 * 1000);
    let old = uuid(now, 5);
    assert_eq!(result(&world.prioritise(other, 1, &old)), Err(Rejection::RequestExpired));
}

#[test]
fn a_priority_may_be_set_as_long_as_a_job_has_not_ended() {
    let mut world = World::with_node();
    let jobs = [world.submit(), world.dispatched(), world.running(), world.suspended()];
    for job in jobs {
        let request = world.next_request();
        assert_eq!(result(&world.prioritise(job, 9, &request)), Ok(()));
        assert_eq!(world.job(job).priority(), 9);
    }
    world.finish(jobs[2], code(0));
    let ended = Err(Rejection::AlreadyTerminal { job: jobs[2] });
    assert_eq!(result(&world.prioritise(jobs[2], 3, "last")), ended);
    let waiting = world.waiting();
    assert_eq!(result(&world.prioritise(waiting, 3, "w")), Ok(()));
}

#[test]
fn a_refused_edit_names_the_verb_that_helps() {
    let mut world = World::with_node();
    let (runs, waits) = (world.running(), world.submit());
    let answers = [
        (world.hold(runs, false, "a"), "docket suspend"),
        (world.hold(runs, true, "b"), "docket resume"),
        (world.suspend(waits, false, "c"), "docket hold"),
        (world.suspend(waits, true, "d"), "docket release"),
    ];
    for (outcome, verb) in answers {
        assert!(format!("{outcome:?}").contains(verb), "{outcome:?}");
    }
    world.cancel(runs);
    for resume in [true, false] {
        let told = format!("{:?}", world.suspend(runs, resume, &format!("e{resume}")));
        assert!(told.contains("being cancelled"), "{told}");
    }
}
