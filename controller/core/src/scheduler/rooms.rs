//! What users and queues may still have on nodes, as a pass uses it up.

use crate::ledger::{Counted, Ledger, Line, Reached, Room, Whose};
use proto::TaskId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All that a pass came across.
pub(super) struct Rooms<'a> {
    ledger: &'a Ledger,
    rooms: BTreeMap<Whose, (Room, Option<TaskId>)>,
}

/// The limit that keeps a task from every node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeptBy {
    whose: Whose,
    counted: Counted,
    room: Room,
    cpus: u64,
    /// The task before it that the rest of the limit is kept for.
    behind: Option<TaskId>,
}

impl<'a> Rooms<'a> {
    pub fn new(ledger: &'a Ledger) -> Rooms<'a> {
        Rooms { ledger, rooms: BTreeMap::new() }
    }

    /// What keeps a task of that line from starting.
    pub fn keeps(&mut self, task: TaskId, line: &Line) -> Option<KeptBy> {
        let cpus = u64::from(line.ask.cpus);
        both(line).into_iter().find_map(|whose| {
            let (room, closed) = *self.of(&whose);
            let behind = closed.filter(|first| *first != task);
            let counted = room.keeps(cpus).or(behind.map(|_| Counted::Cpus))?;
            Some(KeptBy { whose, counted, room, cpus, behind })
        })
    }

    /// The rest of that limit is for this task.
    pub fn close(&mut self, by: &KeptBy, task: TaskId) {
        let (_, closed) = self.of(&by.whose);
        closed.get_or_insert(task);
    }

    /// A task of that line is placed, or a node is kept for it.
    pub fn take(&mut self, line: &Line) {
        for whose in both(line) {
            let (room, _) = self.of(&whose);
            room.take(u64::from(line.ask.cpus));
        }
    }

    fn of(&mut self, whose: &Whose) -> &mut (Room, Option<TaskId>) {
        if !self.rooms.contains_key(whose) {
            self.rooms.insert(whose.clone(), (self.ledger.room(whose), None));
        }
        self.rooms.entry(whose.clone()).or_default()
    }
}

fn both(line: &Line) -> [Whose; 2] {
    [Whose::User(line.user), Whose::Queue(Arc::clone(&line.queue))]
}

impl KeptBy {
    /// Whether it can start once others of the same limit have ended.
    pub fn could_start(&self) -> bool {
        self.counted == Counted::Cpus && !self.room.never(self.cpus)
    }

    /// The limit, and what counts to it.
    pub fn reached(&self, ledger: &Ledger) -> Reached {
        ledger.reached(&self.whose, self.counted, &self.room, self.cpus)
    }

    /// In words.
    pub fn words(&self, ledger: &Ledger) -> String {
        let reached = self.reached(ledger);
        match self.behind {
            Some(first) if self.room.keeps(self.cpus).is_none() => {
                format!(
                    "the rest of {} of {} is kept for {first}, which comes first",
                    reached.key, reached.whose
                )
            }
            _ => reached.to_string(),
        }
    }
}
