//! Looks at the outputs of what runs, rarely and many at a time: one that grows is looked at every
//! second at most, one that rests ever less often, and what is over its bound is handed to a thread of
//! the spawner. Nothing here blocks: these files lie beside the journal.

use std::collections::BTreeMap;

use super::cutting;
use super::identity;
use super::outputs::Output;
use super::run::Keeper;
use super::spawn::Errand;
use crate::cut::Cut;

/// Between looks at an output that grows. Shorter where a fast disk could write its bound anew in
/// less.
const PAUSE_MAX_MS: u64 = 1_000;
const PAUSE_MIN_MS: u64 = 50;

/// What a fast disk takes in a millisecond: 4 GiB a second.
const FAST_DISK_BYTES_MS: u64 = 4 << 20;

/// Between looks at an output that rests, at most.
const REST_MAX_MS: u64 = 5_000;

/// Files looked at in one turn of the loop: a microsecond or two each.
const LOOKS_MAX: usize = 512;

/// The outputs of the attempts that run.
#[derive(Default)]
pub(super) struct Growth {
    watched: BTreeMap<u64, Watched>,
    /// When the next look is due; 0: not known.
    due_ms: u64,
    /// Why an output over its bound was not cut, the last time that one was to be.
    pub uncut: Option<String>,
}

/// The outputs of one attempt.
struct Watched {
    max: u64,
    outputs: Vec<Seen>,
    next_ms: u64,
    pause_ms: u64,
    /// With the spawner: until it is back, nothing more is asked.
    asked: bool,
}

struct Seen {
    output: Output,
    size: u64,
    /// What is cut out of it, as far as was told.
    cut: Cut,
    /// It has its note.
    noted: bool,
}

/// Outputs that are to be held to their bound.
pub(crate) struct Hold {
    pub outputs: Vec<Output>,
    pub max: u64,
}

/// What became of them, in their order: what is cut out so far, or why a file grows on.
pub(crate) type Held = Vec<Result<Cut, String>>;

impl Hold {
    pub(crate) fn run(&self) -> Held {
        let hold = |output: &Output| {
            let path = output.path.display();
            cutting::hold(output, self.max).map_err(|e| format!("{path}: {e}"))
        };
        self.outputs.iter().map(hold).collect()
    }
}

impl Growth {
    /// When a look is due.
    pub(super) fn due_ms(&self) -> u64 {
        if self.watched.is_empty() { u64::MAX } else { self.due_ms }
    }

    fn pause_of(max: u64) -> u64 {
        (max / FAST_DISK_BYTES_MS).clamp(PAUSE_MIN_MS, PAUSE_MAX_MS)
    }
}

impl Watched {
    /// Looks at its files; `true`: one is to be held to its bound, or gets ready for it.
    fn look(&mut self, now: u64) -> bool {
        let mut grown = false;
        let mut wanted = false;
        for seen in &mut self.outputs {
            let size = seen.output.size().unwrap_or(0);
            grown |= size != seen.size;
            wanted |= !seen.noted && cutting::is_large(size, self.max);
            // One that is shorter than where it was cut was emptied by its job.
            wanted |= size < seen.cut.end || cutting::wanted(size, seen.cut, self.max).is_some();
            seen.size = size;
        }
        let quick = Growth::pause_of(self.max);
        self.pause_ms = if grown { quick } else { (self.pause_ms * 2).min(REST_MAX_MS) };
        // Together with others: fewer turns.
        self.next_ms = (now + self.pause_ms).next_multiple_of(quick.min(self.pause_ms));
        wanted
    }
}

impl Keeper {
    /// Begins to look at the outputs of an attempt whose start is known.
    pub(super) fn watch_growth(&mut self, id: u64) {
        let Some(task) = self.tasks.get(&id) else { return };
        let max = task.accepted.output_max_bytes;
        let Some(start) = task.start.as_ref().filter(|_| max > 0) else { return };
        let outputs = Output::both(&task.run_file(), start, task.accepted.uid).into_iter();
        let own = outputs.filter(|output| output.own);
        let outputs: Vec<Seen> =
            own.map(|output| Seen { output, size: 0, cut: Cut::default(), noted: false }).collect();
        if outputs.is_empty() {
            return;
        }
        let pause_ms = Growth::pause_of(max);
        let next_ms = identity::boottime_ms() + pause_ms;
        self.growth.due_ms = self.growth.due_ms().min(next_ms);
        let watched = Watched { max, outputs, next_ms, pause_ms, asked: false };
        self.growth.watched.insert(id, watched);
    }

    /// A round of looks, once one is due.
    pub(super) fn look_at_growth(&mut self, now: u64) {
        if now < self.growth.due_ms() {
            return;
        }
        let tasks = &self.tasks;
        self.growth.watched.retain(|id, _| tasks.contains_key(id));
        let mut wanted = Vec::new();
        let due = self.growth.watched.iter_mut().filter(|(_, w)| now >= w.next_ms);
        for (id, watched) in due.take(LOOKS_MAX) {
            if watched.look(now) && !watched.asked {
                wanted.push(*id);
            }
        }
        wanted.into_iter().for_each(|id| self.ask_to_hold(id));
        let next = self.growth.watched.values().map(|watched| watched.next_ms).min();
        self.growth.due_ms = next.unwrap_or(u64::MAX);
    }

    fn ask_to_hold(&mut self, id: u64) {
        let Some(watched) = self.growth.watched.get_mut(&id) else { return };
        let outputs = watched.outputs.iter().map(|seen| seen.output.clone()).collect();
        let hold = Hold { outputs, max: watched.max };
        // Full: asked again at the next look.
        watched.asked = self.spawner.ask(Errand::Hold(id, Box::new(hold))).is_ok();
    }

    pub(super) fn held(&mut self, id: u64, held: Held) {
        let why = held.iter().find_map(|result| result.as_ref().err());
        let why = why.map(|why| {
            format!("an output grows over output_max, for nothing can be cut out of it: {why}")
        });
        if let Some(why) = why.as_ref().filter(|_| self.growth.uncut.is_none()) {
            self.log.say(why);
        }
        self.growth.uncut = why;
        let Some(watched) = self.growth.watched.get_mut(&id) else { return };
        watched.asked = false;
        for (seen, result) in watched.outputs.iter_mut().zip(held) {
            if let Ok(cut) = result {
                seen.cut = cut;
                seen.noted |= cutting::is_large(seen.size, watched.max);
            }
        }
    }
}
