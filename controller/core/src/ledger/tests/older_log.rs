//! A log that is an older copy of the one that acknowledged: facts of a journal are gone for good.

use super::image::bytes;
use super::world::*;
use crate::ledger::{
    FactsLost, IDS_PER_GENERATION, Kind, Ledger, ManifestOutcome, Outcome, Rejection, Session,
};
use proto::v1::{self, ExitKind, Phase, command::Kind as Command, fact, finish_fact};
use proto::{JobId, Seq};

/// The agent comes back in a new term; its journal begins at `first` and ends below `next`.
fn back(world: &mut World, first_seq: u64, next_seq: u64) -> Outcome {
    world.term(world.ledger.term() + 1);
    join_again(world, first_seq, next_seq)
}

fn join_again(world: &mut World, first_seq: u64, next_seq: u64) -> Outcome {
    let incarnation = world.ledger.agent(N1).map_or(1, |agent| agent.incarnation() + 1);
    *world.seq(N1) = next_seq;
    let join = v1::Join { first_seq, next_seq, ..join(N1, incarnation, "j1") };
    world.apply(Command::AgentUp(v1::AgentUpCommand { join: Some(join) }))
}

fn lost(world: &World) -> Option<FactsLost> {
    world.ledger.agent(N1).and_then(|agent| agent.facts_lost())
}

fn judge(world: &mut World, items: Vec<v1::ManifestItem>) -> ManifestOutcome {
    match world.at_join(N1, items) {
        Outcome::Manifest(outcome) => outcome,
        other => unreachable!("not judged: {other:?}"),
    }
}

/// Facts 1 to 3 are taken: a start, a finish, a start of one that still runs.
fn three_facts() -> (World, JobId, JobId) {
    let mut world = World::with_node();
    let ended = world.running();
    world.finish(ended, code(0));
    let runs = world.running();
    let waits = world.dispatched();
    assert_eq!(world.ledger.agent(N1).map(|agent| agent.high()), Some(Seq(3)));
    (world, runs, waits)
}

#[test]
fn facts_that_are_gone_from_the_journal_are_not_waited_for() {
    let (mut world, runs, _) = three_facts();
    assert_eq!(back(&mut world, 21, 23), Outcome::AgentUp);
    assert_eq!(lost(&world), Some(FactsLost { from: Seq(4), to: Seq(20), unjudged: true }));
    let item = world.item(runs, Phase::Running);
    let early = v1::ManifestCommand { last_seq: 22, ..world.page(N1, vec![item]) };
    let refused = Rejection::FactsNotApplied { high: Seq(20), last: Seq(22) };
    assert_eq!(world.apply(Command::Manifest(early)), Outcome::Rejected(refused));
    let finish = fact::Kind::Finish(world.finish_fact(runs, code(7)));
    let taken = world.facts_at(N1, 21, vec![finish, world.start_fact(runs)]);
    assert!(matches!(taken, Outcome::FactsTaken { high: Seq(22), .. }), "{taken:?}");
    assert_eq!(world.reason(runs), Some(ExitKind::ExitCode), "what the journal holds is told");
    assert!(judge(&mut world, Vec::new()).judged);
    assert_eq!(world.ledger.agent(N1).map(|agent| agent.session()), Some(Session::Up));
}

#[test]
fn an_attempt_that_may_have_ended_in_the_lost_part_of_the_log_is_not_sent_again() {
    let (mut world, runs, waits) = three_facts();
    let cancelled = world.dispatched();
    world.cancel(cancelled);
    let accepted = world.dispatched();
    back(&mut world, 21, 21);
    let items = vec![world.item(runs, Phase::Running), world.item(accepted, Phase::Accepted)];
    let outcome = judge(&mut world, items);
    assert_eq!((outcome.resend.len(), outcome.vanished, outcome.claimed), (0, 2, 2));
    assert_eq!(world.reason(waits), Some(ExitKind::Vanished));
    assert_eq!(world.reason(cancelled), Some(ExitKind::Vanished), "nobody knows that it never ran");
    assert_eq!([world.kind(runs), world.kind(accepted)], [Kind::Running, Kind::Dispatched]);
}

#[test]
fn the_mark_stays_until_a_manifest_of_a_join_is_judged() {
    let (mut world, _, waits) = three_facts();
    back(&mut world, 21, 21);
    back(&mut world, 21, 21);
    assert!(lost(&world).is_some_and(|lost| lost.unjudged), "nothing was judged meanwhile");
    assert_eq!(judge(&mut world, Vec::new()).vanished, 2);
    assert_eq!(world.reason(waits), Some(ExitKind::Vanished));
    let note = FactsLost { from: Seq(4), to: Seq(20), unjudged: false };
    assert_eq!(lost(&world), Some(note), "told as long as the session lasts");
    let next = world.dispatched();
    back(&mut world, 21, 21);
    assert_eq!(lost(&world), None);
    let resend = judge(&mut world, Vec::new()).resend;
    assert_eq!(resend, [world.job(next).attempt_id()], "its order was lost, no fact was");
}

#[test]
fn an_agent_that_does_not_tell_where_its_journal_begins_is_asked_as_before() {
    let (mut world, runs, waits) = three_facts();
    assert_eq!(back(&mut world, 0, 23), Outcome::AgentUp);
    assert_eq!(lost(&world), None);
    let finish = fact::Kind::Finish(world.finish_fact(runs, code(7)));
    let gap = world.facts_at(N1, 21, vec![finish]);
    assert!(matches!(gap, Outcome::FactsGap { from: Seq(4), .. }), "{gap:?}");
    back(&mut world, 4, 4);
    assert_eq!(lost(&world), None, "a journal that begins where the ledger is has lost nothing");
    let resend = judge(&mut world, Vec::new()).resend;
    assert_eq!(resend, [world.job(waits).attempt_id()]);
}

#[test]
fn a_journal_of_which_nothing_was_taken_here_is_heard_from_its_first_fact_in_order() {
    let mut world = World::with_node();
    let join = v1::Join { first_seq: 15, next_seq: 20, ..join("a9", 1, "j9") };
    let up = v1::AgentUpCommand { join: Some(join.clone()) };
    assert_eq!(world.apply(Command::AgentUp(up)), Outcome::AgentUp);
    assert_eq!(world.ledger.agent("a9").map(|agent| agent.high()), Some(Seq(14)));
    assert_eq!(world.ledger.agent("a9").and_then(|agent| agent.facts_lost()), None);
    let beyond = v1::Join { first_seq: 21, incarnation: 2, ..join };
    let up = v1::AgentUpCommand { join: Some(beyond) };
    let refused = world.apply(Command::AgentUp(up));
    assert!(matches!(refused, Outcome::Rejected(Rejection::Malformed { .. })), "{refused:?}");
}

#[test]
fn the_mark_is_in_the_image() {
    let (mut world, _, waits) = three_facts();
    back(&mut world, 21, 21);
    let image = bytes(&world.ledger.freeze());
    world.ledger = Ledger::thaw(image.iter().cloned()).expect("the image is whole");
    assert!(lost(&world).is_some_and(|lost| lost.unjudged));
    judge(&mut world, Vec::new());
    assert_eq!(world.reason(waits), Some(ExitKind::Vanished));
    let image = bytes(&world.ledger.freeze());
    let thawed = Ledger::thaw(image.iter().cloned()).expect("the image is whole");
    assert_eq!(bytes(&thawed.freeze()), image);
}

/// The log forgot all that came after fact 3; the journal holds all of it and was acknowledged to 20.
fn forgetful() -> (World, JobId) {
    let (mut world, runs, _) = three_facts();
    world.term(2);
    acknowledged_to(&mut world, 20);
    (world, runs)
}

fn acknowledged_to(world: &mut World, acked_seq: u64) {
    let incarnation = world.ledger.agent(N1).map_or(1, |agent| agent.incarnation() + 1);
    let next_seq = acked_seq + 1;
    let join = v1::Join { first_seq: 1, next_seq, acked_seq, ..join(N1, incarnation, "j1") };
    let up = v1::AgentUpCommand { join: Some(join) };
    assert_eq!(world.apply(Command::AgentUp(up)), Outcome::AgentUp);
}

fn end_of(job: JobId) -> fact::Kind {
    fact::Kind::Finish(finish_of(job, 1, code(9)))
}

#[test]
fn a_join_that_shows_an_older_log_holds_what_waits_and_leaves_ids_out() {
    let (mut world, _, _) = three_facts();
    let waits = world.submit();
    world.term(2);
    let generation = world.ledger.generation();
    acknowledged_to(&mut world, 20);
    assert_eq!(world.ledger.generation(), generation + 1);
    assert_eq!(world.kind(waits), Kind::Held);
    assert!(world.job(waits).may_have_run());
    assert!(world.submit().0 > waits.0 + IDS_PER_GENERATION);
}

#[test]
fn one_loss_opens_one_generation_however_many_nodes_and_joins_show_it() {
    let (mut world, _, _) = three_facts();
    world.node_up(N2, 1, "j2");
    let early = world.submit();
    world.term(2);
    acknowledged_to(&mut world, 20);
    world.hold(early, true, "look");
    let generation = world.ledger.generation();
    // Once more, before its facts have come, and the other node too.
    world.term(3);
    acknowledged_to(&mut world, 20);
    let join = v1::Join { first_seq: 1, next_seq: 9, acked_seq: 8, ..join(N2, 2, "j2") };
    world.apply(Command::AgentUp(v1::AgentUpCommand { join: Some(join) }));
    assert_eq!((world.ledger.generation(), world.kind(early)), (generation, Kind::Queued));
    // Another copy is put in place.
    world.term(4);
    acknowledged_to(&mut world, 40);
    assert_eq!((world.ledger.generation(), world.kind(early)), (generation + 1, Kind::Held));
}

#[test]
fn a_join_within_a_term_shows_no_older_log() {
    let (mut world, _, _) = three_facts();
    let waits = world.submit();
    let generation = world.ledger.generation();
    acknowledged_to(&mut world, 20);
    assert_eq!((world.ledger.generation(), world.kind(waits)), (generation, Kind::Queued));
}

#[test]
fn a_repair_explains_what_the_joins_behind_it_show() {
    let (mut world, _, _) = three_facts();
    world.term(2);
    let raised = Some(world.ledger.raised() + 1);
    let configure = v1::ConfigureCommand { generation: raised, ..Default::default() };
    world.apply(Command::Configure(configure));
    let (generation, fresh) = (world.ledger.generation(), world.submit());
    acknowledged_to(&mut world, 20);
    assert_eq!((world.ledger.generation(), world.kind(fresh)), (generation, Kind::Queued));
}

#[test]
fn a_repair_is_noticed_though_joins_had_opened_generations_before() {
    let (mut world, _) = forgetful();
    let (generation, waits) = (world.ledger.generation(), world.submit());
    // The identity file has seen one repair; it knows nothing of the generation of the join.
    let raised = Some(world.ledger.raised() + 1);
    assert!(raised <= Some(generation));
    let configure = v1::ConfigureCommand { generation: raised, ..Default::default() };
    assert_eq!(world.apply(Command::Configure(configure.clone())), Outcome::Configured);
    assert_eq!((world.ledger.generation(), world.kind(waits)), (generation + 1, Kind::Held));
    let image = bytes(&world.ledger.freeze());
    world.ledger = Ledger::thaw(image.iter().cloned()).expect("the image is whole");
    world.hold(waits, true, "look");
    world.apply(Command::Configure(configure));
    assert_eq!((world.ledger.generation(), world.kind(waits)), (generation + 1, Kind::Queued));
}

#[test]
fn what_ran_in_the_lost_part_gets_its_true_end_and_what_runs_is_claimed() {
    let (mut world, _, _) = three_facts();
    let (ended, runs, told) = (world.submit(), world.submit(), world.submit());
    world.term(2);
    acknowledged_to(&mut world, 20);
    let start = fact::Kind::Start(start_of(told, 1));
    world.facts_at(N1, 4, vec![end_of(ended), start]);
    assert_eq!(world.reason(ended), Some(ExitKind::ExitCode));
    // Of one that runs the start may be gone from the journal.
    let item = |job| v1::ManifestItem {
        attempt: Some(attempt_ref(job, 1)),
        ..world.item(ended, Phase::Running)
    };
    let items = vec![item(runs), item(told)];
    let outcome = judge(&mut world, items);
    assert_eq!((outcome.claimed, outcome.strays.len(), outcome.kill.len()), (2, 0, 0));
    assert_eq!([world.kind(runs), world.kind(told)], [Kind::Running; 2]);
}

#[test]
fn a_new_job_takes_neither_end_nor_run_of_a_forgotten_one_with_its_id() {
    let (mut world, _, _) = three_facts();
    world.term(2);
    // Submitted before any node came back: ids that the lost part may have given too.
    let (reused, running) = (world.submit(), world.submit());
    acknowledged_to(&mut world, 20);
    assert_eq!(lost(&world), None, "all facts are there");
    let gone = JobId(running.0 + 3);
    let retold = vec![end_of(reused), end_of(gone)];
    assert!(matches!(world.facts_at(N1, 4, retold), Outcome::FactsTaken { .. }));
    assert_eq!(world.kind(reused), Kind::Held, "it is another one's end");
    let item = v1::ManifestItem {
        attempt: Some(attempt_ref(running, 1)),
        ..world.item(reused, Phase::Running)
    };
    let outcome = judge(&mut world, vec![item]);
    assert_eq!((outcome.strays.len(), outcome.kill.len(), outcome.claimed), (1, 0, 0));
    for job in [reused, running] {
        world.hold(job, true, "look");
    }
    assert_eq!(world.assign_to(reused, N1), Outcome::Assigned);
    let stale = world.assign_to(running, N1);
    assert!(matches!(&stale, Outcome::Stale { what } if what.contains("--strays")), "{stale:?}");
    world.facts_at(N1, 6, vec![end_of(reused)]);
    assert_eq!(world.kind(reused), Kind::Dispatched, "however often it is told");
    let again = v1::ManifestItem {
        attempt: Some(attempt_ref(running, 1)),
        ..world.item(reused, Phase::Running)
    };
    world.term(3);
    acknowledged_to(&mut world, 20);
    let outcome = judge(&mut world, vec![again]);
    assert_eq!((outcome.strays.len(), outcome.kill.len()), (1, 0), "nor is it killed later");
}

/// A stray, and a new job that waits under its id.
fn with_a_stray_of_a_given_id() -> (World, JobId) {
    let (mut world, _, _) = three_facts();
    world.term(2);
    let taken = world.submit();
    acknowledged_to(&mut world, 20);
    let item = v1::ManifestItem {
        attempt: Some(attempt_ref(taken, 1)),
        ..world.item(taken, Phase::Running)
    };
    assert_eq!(judge(&mut world, vec![item]).strays.len(), 1);
    world.hold(taken, true, "look");
    (world, taken)
}

#[test]
fn a_job_whose_id_a_stray_has_waits_for_the_strays_end_and_runs_as_another_attempt() {
    let (mut world, job) = with_a_stray_of_a_given_id();
    assert!(matches!(world.assign_to(job, N1), Outcome::Stale { .. }));
    world.facts_at(N1, 4, vec![end_of(job)]);
    assert_eq!((world.kind(job), world.job(job).attempt()), (Kind::Queued, 2), "not its end");
    assert_eq!(world.ledger.agent(N1).map(|agent| agent.strays().len()), Some(0));
    assert_eq!(world.assign_to(job, N1), Outcome::Assigned);
    world.facts_at(N1, 5, vec![end_of(job)]);
    assert_eq!(world.kind(job), Kind::Dispatched, "nor if it is told again");
}

#[test]
fn a_job_whose_id_a_stray_has_ends_at_once_when_it_is_cancelled() {
    let (mut world, job) = with_a_stray_of_a_given_id();
    world.cancel(job);
    assert_eq!(world.reason(job), Some(ExitKind::Cancelled));
}

#[test]
fn a_job_whose_id_a_stray_has_runs_on_another_node_and_holds_up_nobody() {
    let (mut world, job) = with_a_stray_of_a_given_id();
    let next = world.submit();
    let up = |world: &World| world.ledger.agents_up();
    let planned = |world: &World| -> Vec<(JobId, String)> {
        let plan = crate::scheduler::plan(&world.ledger, &up(world), 10);
        let pair = |p: &crate::scheduler::Placement| (p.attempt.task.job, p.agent_id.to_string());
        plan.placements.iter().map(pair).collect()
    };
    assert_eq!(planned(&world), [(next, N1.to_owned())], "it asks the same, and comes later");
    let told = world.task(job).message;
    assert!(told.contains("another job that has the id") && told.contains("--strays"), "{told}");
    world.node_up(N2, 1, "j2");
    assert!(planned(&world).contains(&(job, N2.to_owned())), "{:?}", planned(&world));
}

#[test]
fn an_agent_that_is_new_here_tells_nothing_of_new_jobs() {
    let (mut world, _, _) = three_facts();
    let reused = world.submit();
    let join = v1::Join { first_seq: 1, next_seq: 9, acked_seq: 8, ..join("a9", 1, "j9") };
    world.apply(Command::AgentUp(v1::AgentUpCommand { join: Some(join) }));
    let gone = JobId(reused.0 + 3);
    world.facts_at("a9", 1, vec![end_of(reused), end_of(gone)]);
    assert_eq!(world.ledger.deferred_counts(), (0, 0), "nothing waits for a job of that id");
    assert_eq!(world.job(reused).attempt(), 2, "its keeper has seen attempt 1");
    assert_eq!(world.submit(), JobId(gone.0 + 1), "an id that was given is not given again");
}

#[test]
fn the_id_of_a_forgotten_job_that_still_runs_is_not_given_again() {
    let (mut world, runs) = forgetful();
    let (running, stray) = (world.item(runs, Phase::Running), JobId(40));
    let stray = v1::ManifestItem { attempt: Some(attempt_ref(stray, 1)), ..running.clone() };
    let outcome = judge(&mut world, vec![running, stray]);
    assert_eq!(outcome.strays.len(), 1);
    assert!(world.submit() > JobId(IDS_PER_GENERATION));
    assert!(!world.ledger.evicted(JobId(40)), "it is not known, and has not ended");
    let image = bytes(&world.ledger.freeze());
    let thawed = Ledger::thaw(image.iter().cloned()).expect("the image is whole");
    assert_eq!(bytes(&thawed.freeze()), image);
}

fn cancelled_there(world: &World, job: JobId) -> fact::Kind {
    let mut finish = world.finish_fact(job, finish_fact::End::WaitStatus(15));
    finish.set_killed_for(v1::KillCause::Cancel);
    fact::Kind::Finish(finish)
}

#[test]
fn a_cancel_that_the_lost_part_of_the_log_knew_is_not_told_as_the_nodes_own() {
    let (mut world, runs) = forgetful();
    let before = world.item(runs, Phase::Running);
    judge(&mut world, vec![before]);
    let finish = cancelled_there(&world, runs);
    world.facts_at(N1, 4, vec![finish]);
    assert_eq!(world.reason(runs), Some(ExitKind::Cancelled));
    assert_eq!(world.task(runs).message, "cancelled by somebody whom this log forgot (signal 15)");
    // Where nothing was lost nobody but the node itself can have done it.
    let mut world = World::with_node();
    let job = world.running();
    let finish = cancelled_there(&world, job);
    world.facts(N1, vec![finish]);
    assert_eq!(world.task(job).message, "cancelled by its node (signal 15)");
}

#[test]
fn who_asks_for_a_job_that_is_a_stray_is_told_what_it_is_and_how_it_ends() {
    let (mut world, runs) = forgetful();
    let (running, stray) = (world.item(runs, Phase::Running), JobId(40));
    let item = v1::ManifestItem { attempt: Some(attempt_ref(stray, 1)), ..running.clone() };
    judge(&mut world, vec![running, item]);
    let told = world.ledger.find(stray).expect_err("it is not known").to_string();
    assert!(told.starts_with("no job 40 in this log, but n1 runs one of that id"), "{told}");
    assert!(told.contains("docket nodes --strays"), "{told}");
    let other = Rejection::NoSuchJob { job: JobId(41), newest: world.submit() };
    assert_eq!(world.ledger.find(JobId(41)), Err(other), "of others nothing is known");
}
