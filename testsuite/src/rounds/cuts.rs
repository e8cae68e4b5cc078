//! A partition between controller and agent: packets are dropped on the loopback of a network
//! namespace, in one direction or both, for less than a heartbeat time-out, for longer, and for
//! longer than a job may be unknown. Nobody died, so nobody may say so, and every code is kept.

use super::{Chance, side_by_side};
use crate::patience::let_pass;
use crate::world::{Cut, End, Link, Pace, Split, Turn, World};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// For how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Length {
    /// Less than the silence that makes a job unknown: 2 s by default.
    Short,
    /// More than that: 40 s by default. The agent gives its session up and dials in vain meanwhile.
    Long,
    /// Until every job that was there is settled as lost.
    Endless,
}

impl Length {
    /// Each.
    pub const ALL: [Length; 3] = [Length::Short, Length::Long, Length::Endless];

    fn span(self, pace: Pace) -> Duration {
        match self {
            // Words that were lost are said again by TCP up to as long again after the cut.
            Length::Short => (pace.silence / 4).min(Duration::from_secs(2)),
            Length::Long | Length::Endless => pace.silence * 4 / 3,
        }
    }
}

/// What is cut, how and how often.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// Time-outs of the worlds.
    pub pace: Pace,
    /// How long a cut is.
    pub length: Length,
    /// Which packets are dropped.
    pub way: Cut,
    /// Seed of the moments at which things happen.
    pub seed: u64,
    /// Is the machine left alone, so that a short cut must not even be noticed?
    pub strict: bool,
}

impl Cuts {
    /// Cuts so many worlds of their own, so many at a time; gives how many there were and the numbers
    /// of those that failed, and calls `done` after each. None where no namespace can be made: that is said under `test`'s name.
    pub fn run(
        self,
        test: &str,
        exe: &Path,
        turn: &Arc<Turn>,
        times: u64,
        at_a_time: usize,
        done: &(dyn Fn() + Sync),
    ) -> (usize, Vec<u64>) {
        let results = side_by_side(0, times, at_a_time, done, |number| {
            self.round(test, World::new(exe, Arc::clone(turn)), Chance::of(self.seed, number))
        });
        let failed = results.iter().filter(|(_, done)| done.is_none()).map(|(n, _)| *n).collect();
        (results.iter().filter(|(_, done)| *done == Some(true)).count(), failed)
    }

    /// One cut of one world; false where it could not be made.
    fn round(self, test: &str, world: World, mut chance: Chance) -> bool {
        let Some((split, link)) = Split::in_namespace(test, world, self.pace) else { return false };
        let jobs = Jobs::start(&split);
        // At any moment between two heartbeats.
        let_pass(chance.span(self.pace.heartbeat), "the line is whole", || true);
        link.cut(self.way);
        let span = self.length.span(self.pace);
        let before = chance.span(span);
        let_pass(before, "the line is cut", || true);
        jobs.let_go(&split.world, &ENDS);
        let_pass(span - before, "the line is cut", || true);
        match self.length {
            Length::Short => self.short(&split.world, &link, &jobs),
            Length::Long => self.long(&split.world, &link, &jobs),
            Length::Endless => self.endless(&split.world, &link, &jobs),
        }
        for (kind, job) in jobs.all() {
            let tale = split.world.tale(job);
            assert!(!tale.tells("agent-died"), "nobody died: {tale:#?}");
            assert_eq!(split.world.lines(&format!("began.{}", kind.name)).len(), 1, "it ran once");
            split.world.must_be_gone(job);
        }
        true
    }

    fn short(self, world: &World, link: &Link, jobs: &Jobs) {
        link.heal();
        jobs.must_end_alike(world, &ENDS);
        jobs.let_all_go(world);
        for (kind, job) in jobs.all() {
            jobs.must_end_alike(world, kind);
            let tale = world.tale(job);
            assert!(!self.strict || !tale.tells("UNKWN"), "it was not noticed: {tale:#?}");
        }
    }

    /// What a cut of the way down left behind is heard until TCP stops to wait for its answers: an
    /// end that came early enough is known and counts.
    fn was_heard(self, world: &World, kind: &Kind, job: u64) -> bool {
        let early = self.way == Cut::Down && kind == &ENDS;
        early && world.show(job)["reason"]["kind"] == "exit-code"
    }

    fn long(self, world: &World, link: &Link, jobs: &Jobs) {
        for (kind, job) in jobs.all() {
            if self.was_heard(world, kind, job) {
                continue;
            }
            let task = world.wait_state(job, "UNKWN");
            assert_eq!(task["terminal"], false, "silence ends nothing: {task:#}");
        }
        link.heal();
        jobs.must_end_alike(world, &ENDS);
        for kind in [&HOLDS, &SURVIVES] {
            let task = world.wait_state(jobs.id(kind), "RUN");
            assert!(task["transient_since"].is_null(), "{task:#}");
        }
        jobs.let_all_go(world);
        jobs.all().for_each(|(kind, _)| jobs.must_end_alike(world, kind));
    }

    fn endless(self, world: &World, link: &Link, jobs: &Jobs) {
        let lost = End::without_code("lost", "UNKWN -> EXIT lost");
        let (heard, unheard): (Vec<_>, Vec<_>) =
            jobs.all().partition(|(kind, job)| self.was_heard(world, kind, *job));
        heard.iter().for_each(|(kind, _)| jobs.must_end_alike(world, kind));
        unheard.iter().for_each(|(_, job)| drop(world.must_end(*job, lost)));
        link.heal();
        for (kind, job) in unheard {
            let task =
                world.wait_job(job, "its end is told late", |t| !t["late_outcome"].is_null());
            let late = &task["late_outcome"];
            match kind == &ENDS {
                true => assert_eq!(late["code"], ENDS.code, "its own code: {task:#}"),
                // Nobody may use what a lost job holds while it lives: docket ended it.
                false => assert_eq!(late["signal"], 15, "{task:#}"),
            }
            world.must_end(job, lost);
        }
    }
}

/// A job of a cut world.
#[derive(PartialEq, Eq)]
struct Kind {
    name: &'static str,
    policy: &'static str,
    code: i64,
}

/// Runs until the line is whole again.
const HOLDS: Kind = Kind { name: "holds", policy: "exit", code: 21 };
const SURVIVES: Kind = Kind { name: "survives", policy: "unknown", code: 22 };
/// Ends while nobody can hear of it.
const ENDS: Kind = Kind { name: "ends", policy: "exit", code: 23 };

struct Jobs([(&'static Kind, u64); 3]);

impl Jobs {
    fn start(split: &Split) -> Jobs {
        let world = &split.world;
        let submit = |kind: &'static Kind| {
            let Kind { name, policy, code } = kind;
            let script = format!(
                "echo $$ >> began.{name}; while [ ! -e go.{name} ]; do sleep 0.2; done; exit {code}"
            );
            (kind, world.submit_sh(&["--on-disconnect", policy], &script))
        };
        let jobs = Jobs([&HOLDS, &SURVIVES, &ENDS].map(submit));
        for (kind, job) in jobs.all() {
            world.wait_state(job, "RUN");
            world.first_line(&format!("began.{}", kind.name));
        }
        jobs
    }

    fn all(&self) -> impl Iterator<Item = (&'static Kind, u64)> {
        self.0.iter().copied()
    }

    fn id(&self, kind: &Kind) -> u64 {
        self.all().find(|(one, _)| *one == kind).expect("each kind is there").1
    }

    fn let_go(&self, world: &World, kind: &Kind) {
        world.touch(&format!("go.{}", kind.name));
    }

    fn let_all_go(&self, world: &World) {
        self.all().for_each(|(kind, _)| self.let_go(world, kind));
    }

    /// It ended with its own code, whatever the line did.
    fn must_end_alike(&self, world: &World, kind: &Kind) {
        let line = format!("-> EXIT exit-code {}", kind.code);
        world.must_end(self.id(kind), End::code(kind.code, &line));
    }
}
