//! A log that is an older copy of the one that acknowledged: facts of a journal are gone for good.

use super::image::bytes;
use super::world::*;
use crate::ledger::{FactsLost, Kind, Ledger, ManifestOutcome, Outcome, Rejection, Session};
use proto::v1::{self, ExitKind, Phase, command::Kind as Command, fact};
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

/// The log forgot job 5 and what came after fact 3; the journal holds all and was acknowledged to 20.
fn forgetful() -> (World, JobId) {
    let (mut world, runs, _) = three_facts();
    let agent = world.ledger.agent(N1).expect("it joined").incarnation();
    world.term(2);
    let (incarnation, next_seq, acked_seq) = (agent + 1, 21, 20);
    let join = v1::Join { first_seq: 1, next_seq, acked_seq, ..join(N1, incarnation, "j1") };
    world.apply(Command::AgentUp(v1::AgentUpCommand { join: Some(join) }));
    (world, runs)
}

fn end_of(job: JobId) -> fact::Kind {
    fact::Kind::Finish(finish_of(job, 1, code(9)))
}

#[test]
fn a_new_job_does_not_take_the_end_of_a_forgotten_one_with_its_id() {
    let (mut world, runs) = forgetful();
    let reused = world.submit();
    assert_eq!(lost(&world), None, "all facts are there");
    let finish = fact::Kind::Finish(world.finish_fact(runs, code(7)));
    let gone = JobId(reused.0 + 3);
    let retold = vec![finish, end_of(reused), end_of(gone)];
    assert!(matches!(world.facts_at(N1, 4, retold), Outcome::FactsTaken { .. }));
    assert_eq!(world.reason(runs), Some(ExitKind::ExitCode), "what is known here counts");
    assert_eq!(world.ledger.deferred_counts(), (0, 0), "nothing waits for a job of that id");
    assert_eq!(world.job(reused).attempt(), 2, "its keeper has seen attempt 1");
    assert_eq!(world.submit(), JobId(gone.0 + 1), "an id that was given is not given again");
    judge(&mut world, Vec::new());
    world.assign_to(reused, N1);
    world.facts_at(N1, 5, vec![end_of(reused)]);
    assert_eq!(world.kind(reused), Kind::Dispatched, "however often it is told");
}

#[test]
fn the_id_of_a_forgotten_job_that_still_runs_is_not_given_again() {
    let (mut world, runs) = forgetful();
    let (running, stray) = (world.item(runs, Phase::Running), JobId(40));
    let stray = v1::ManifestItem { attempt: Some(attempt_ref(stray, 1)), ..running };
    let outcome = judge(&mut world, vec![running, stray]);
    assert_eq!(outcome.strays.len(), 1);
    assert_eq!(world.submit(), JobId(41));
    let image = bytes(&world.ledger.freeze());
    let thawed = Ledger::thaw(image.iter().cloned()).expect("the image is whole");
    assert_eq!(bytes(&thawed.freeze()), image);
}
