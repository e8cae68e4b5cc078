//! Every state by every cause, against the table of moves.

use super::world::*;
use crate::ledger::{Kind, MOVES};
use proto::JobId;
use proto::v1::{self, DownCause, OnDisconnect, Phase, command::Kind as Command, finish_fact::End};
use std::collections::BTreeSet;

type Make = fn(&mut World) -> JobId;
type Cause = fn(&mut World, JobId);

/// A begin time that no other cause reaches.
const LATER_MS: u64 = 2_000_000;

/// Every state, those with several kinds of data more than once.
const STATES: &[(Kind, Make)] = &[
    (Kind::Queued, World::submit),
    (Kind::Queued, after_a_fault),
    (Kind::Held, held),
    (Kind::Blocked, |w| blocked(w, false)),
    (Kind::Blocked, |w| blocked(w, true)),
    (Kind::Blocked, |w| {
        w.submit_spec(v1::JobSpec { begin_wall_ms: Some(w.wall_ms + LATER_MS), ..spec() })
    }),
    (Kind::Blocked, |w| {
        let begin_wall_ms = Some(w.wall_ms + LATER_MS);
        w.submit_spec(v1::JobSpec { begin_wall_ms, hold: true, ..spec() })
    }),
    (Kind::Blocked, |w| {
        let other = w.submit();
        let dependencies = vec![after(v1::DependencyKind::AfterOk, other)];
        let begin_wall_ms = Some(w.wall_ms + LATER_MS);
        w.node_up(N2, 1, "k1");
        w.assign_to(other, N2);
        w.submit_spec(v1::JobSpec { dependencies, begin_wall_ms, ..spec() })
    }),
    (Kind::Dispatched, World::dispatched),
    (Kind::Dispatched, |w| asked_to_end(w, World::dispatched)),
    (Kind::Running, World::running),
    (Kind::Running, |w| asked_to_end(w, World::running)),
    (Kind::Running, patient),
    (Kind::Suspended, World::suspended),
    (Kind::Suspended, |w| {
        let job = patient(w);
        claim(w, job, Phase::Suspended);
        job
    }),
    (Kind::Unknown, |w| lost(w, World::dispatched)),
    (Kind::Unknown, |w| lost(w, |w| asked_to_end(w, World::dispatched))),
    (Kind::Unknown, |w| lost(w, World::running)),
    (Kind::Unknown, |w| lost(w, World::suspended)),
    (Kind::Waiting, World::waiting),
    (Kind::Waiting, |w| {
        let job = w.waiting();
        hold(w, job, false);
        job
    }),
    (Kind::Queued, |w| {
        let job = w.retrying();
        w.finish(job, code(1));
        job
    }),
    (Kind::Dispatched, retrying_dispatched),
    (Kind::Running, World::retrying),
    (Kind::Suspended, retrying_suspended),
    (Kind::Unknown, |w| lost(w, retrying_dispatched)),
    (Kind::Unknown, |w| lost(w, World::retrying)),
    (Kind::Unknown, |w| lost(w, retrying_suspended)),
    (Kind::Unknown, |w| {
        let job = lost(w, World::retrying);
        w.boot = "b2";
        w.join(N1, 40, "j1");
        job
    }),
    (Kind::Done, |w| over(w, code(0))),
    (Kind::Exit, |w| over(w, code(1))),
    (Kind::Exit, |w| {
        let job = w.running();
        w.down(N1, 1, DownCause::Rdhup);
        job
    }),
    (Kind::Exit, |w| {
        let job = w.submit();
        w.cancel(job);
        job
    }),
];

/// Every cause, by the name that the table gives it; a name may have several.
const CAUSES: &[(&str, Cause)] = &[
    ("dependency met", |w, job| end_other(w, job, code(0))),
    ("dependency failed", |w, job| end_other(w, job, code(1))),
    ("begin reached", |w, _| {
        w.wall_ms += LATER_MS;
        w.tick();
    }),
    ("assign", |w, job| {
        w.assign_to(job, N1);
    }),
    ("hold", |w, job| hold(w, job, false)),
    ("release", |w, job| hold(w, job, true)),
    ("cancel", |w, job| {
        w.cancel(job);
    }),
    ("signal", |w, job| signal(w, job)),
    ("suspended", |w, job| stop(w, job, true)),
    ("resumed", |w, job| stop(w, job, false)),
    ("proof: finish", |w, job| {
        w.finish_closed(N1, job, code(0));
    }),
    ("proof: reboot", |w, _| {
        w.boot = "b2";
        w.join(N1, 50, "j1");
    }),
    ("proof: confirmed", |w, _| {
        w.confirm_dead("root", "dead", N1);
    }),
    ("proof: lease", |w, job| {
        let attempt = w.job(job).attempt();
        w.fenced(job, attempt);
        w.fenced(job, attempt.saturating_sub(1));
    }),
    ("suspend", |w, job| suspend(w, job, false)),
    ("resume", |w, job| suspend(w, job, true)),
    ("priority", priority),
    ("start", |w, job| {
        w.start(job);
    }),
    ("finish", |w, job| {
        w.finish(job, code(0));
    }),
    ("finish", |w, job| {
        w.finish(job, End::WaitStatus(9));
    }),
    ("node fault", |w, job| {
        w.finish(job, End::StartFailure(node_failure()));
    }),
    ("order refused", |w, job| {
        w.refuse(job);
    }),
    ("agent died", |w, _| {
        w.down(N1, incarnation(w), DownCause::Rdhup);
    }),
    ("silence", |w, _| {
        w.down(N1, incarnation(w), DownCause::Silence);
    }),
    ("silence", |w, _| {
        w.down(N1, incarnation(w), DownCause::Goodbye);
    }),
    ("silence", |w, _| {
        w.apply(Command::Unknown(v1::UnknownCommand::default()));
    }),
    ("new term", |w, _| {
        w.term(99);
    }),
    ("join", |w, _| {
        w.join(N1, 50, "j1");
    }),
    ("manifest: accepted", |w, job| claim(w, job, Phase::Accepted)),
    ("manifest: running", |w, job| claim(w, job, Phase::Running)),
    ("manifest: suspended", |w, job| claim(w, job, Phase::Suspended)),
    ("manifest: ended", |w, job| claim(w, job, Phase::Ended)),
    ("manifest: missing", |w, _| {
        w.join(N1, 50, "j1");
        w.at_join(N1, Vec::new());
    }),
    ("manifest: journal lost", |w, _| {
        w.join(N1, 50, "j2");
        w.at_join(N1, Vec::new());
    }),
    ("manifest: node reset", |w, _| {
        w.boot = "b2";
        w.join(N1, 50, "j2");
        w.at_join(N1, Vec::new());
    }),
    ("time to live over", |w, _| {
        w.pass(1_000_000);
        w.tick();
    }),
    ("configure", |w, _| {
        w.apply(Command::Configure(v1::ConfigureCommand::default()));
    }),
    ("new generation", |w, _| {
        let generation = Some(w.ledger.generation() + 1);
        w.apply(Command::Configure(v1::ConfigureCommand { generation, ..Default::default() }));
    }),
    ("submit", |w, _| {
        w.submit();
    }),
];

fn incarnation(world: &World) -> u64 {
    world.ledger.agent(N1).map_or(0, |agent| agent.incarnation())
}

fn after_a_fault(world: &mut World) -> JobId {
    let job = world.dispatched();
    world.refuse(job);
    world.pass(1000);
    world.tick();
    job
}

/// Waits for a job that runs on the second node.
fn blocked(world: &mut World, hold: bool) -> JobId {
    world.node_up(N2, 1, "k1");
    let other = world.submit();
    world.assign_to(other, N2);
    let dependencies = vec![after(v1::DependencyKind::AfterOk, other)];
    world.submit_spec(v1::JobSpec { dependencies, hold, ..spec() })
}

/// What a job waits for ends, if it does.
fn end_other(world: &mut World, job: JobId, end: End) {
    let Some(other) = world.job(job).dependencies().first().map(|dep| JobId(dep.job)) else {
        return;
    };
    let fact = world.finish_fact(other, end);
    world.facts(N2, vec![v1::fact::Kind::Finish(fact)]);
}

fn held(world: &mut World) -> JobId {
    world.submit_spec(v1::JobSpec { hold: true, ..spec() })
}

fn asked_to_end(world: &mut World, make: Make) -> JobId {
    let job = make(world);
    world.cancel(job);
    job
}

/// Runs, and survives its agent.
fn patient(world: &mut World) -> JobId {
    let spec = v1::JobSpec { on_disconnect: OnDisconnect::Unknown as i32, ..spec() };
    let job = world.submit_spec(spec);
    world.assign_to(job, N1);
    world.start(job);
    job
}

fn lost(world: &mut World, make: Make) -> JobId {
    let job = make(world);
    world.down(N1, 1, DownCause::Silence);
    job
}

fn retrying_dispatched(world: &mut World) -> JobId {
    let job = world.submit_spec(retrying());
    world.assign_to(job, N1);
    job
}

fn retrying_suspended(world: &mut World) -> JobId {
    let job = world.retrying();
    stop(world, job, true);
    job
}

fn stop(world: &mut World, job: JobId, stopped: bool) {
    let fact = world.stop_fact(job, stopped);
    world.facts(N1, vec![fact]);
}

fn over(world: &mut World, end: End) -> JobId {
    let job = world.running();
    world.finish(job, end);
    job
}

fn hold(world: &mut World, job: JobId, release: bool) {
    let request = world.next_request();
    world.hold(job, release, &request);
}

fn signal(world: &mut World, job: JobId) {
    let (by, request_id) = (Some(user("mia")), world.next_request());
    let signal = Some(10);
    world.apply(Command::Cancel(v1::CancelCommand {
        tasks: Vec::new(),
        by,
        request_id,
        jobs: vec![job.0],
        signal,
    }));
}

fn suspend(world: &mut World, job: JobId, resume: bool) {
    let request = world.next_request();
    world.suspend(job, resume, &request);
}

fn priority(world: &mut World, job: JobId) {
    let request = world.next_request();
    world.prioritise(job, 7, &request);
}

fn claim(world: &mut World, job: JobId, phase: Phase) {
    let item = world.item(job, phase);
    let mut page = world.page(N1, vec![item]);
    page.at_join = false;
    page.last_order = u64::MAX;
    world.apply(Command::Manifest(page));
}

#[test]
fn every_state_moves_by_every_cause_as_the_table_says() {
    let mut seen = BTreeSet::new();
    for (from, make) in STATES {
        for (by, cause) in CAUSES {
            let mut world = World::with_node();
            let job = make(&mut world);
            assert_eq!(world.kind(job), *from, "the way to {from:?}");
            if by.starts_with("dependency") && world.job(job).dependencies().is_empty() {
                continue;
            }
            let before = world.task(job);
            cause(&mut world, job);
            let to = world.kind(job);
            let allowed = MOVES.iter().find(|m| m.from == *from && m.by == *by);
            let legal = allowed.map_or(to == *from, |m| m.to.contains(&to));
            assert!(legal, "{from:?} moved by {by} to {to:?}");
            if from.terminal() {
                // Beside the end: what was heard of it later, and what became of its tree.
                let late = v1::Task {
                    late_outcome: None,
                    killed: before.killed.clone(),
                    position: before.position,
                    ..world.task(job)
                };
                assert_eq!(late, before, "{by} changed a terminal task");
            }
            if to != *from {
                seen.insert((*from, *by, to));
            }
        }
    }
    for m in MOVES {
        for to in m.to.iter().filter(|to| **to != m.from) {
            assert!(seen.contains(&(m.from, m.by, *to)), "never seen: {m:?} to {to:?}");
        }
    }
}
