//! The order of the queue, merged from its lines. A line whose head cannot be placed is left for this
//! pass, so a pass costs as much as there are placements and lines, however long the queue is. Only the
//! share of a user moves while a pass fills nodes, and it is the same for all jobs of that user: their
//! lines stay in order among themselves, and one entry of the user moves.

use crate::ledger::{Job, Ledger, Line, Place, Weights};
use proto::{JobId, TaskId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;

/// Where the first task of a user stands among those of all users.
type Standing = (Reverse<i64>, TaskId, u32);

/// The heads of all lines.
pub(super) struct Heads<'a, I: Iterator<Item = Place>> {
    ledger: &'a Ledger,
    lines: Vec<Waiting<'a, I>>,
    users: BTreeMap<u32, User>,
    first: BTreeSet<Standing>,
    shares: Shares,
    /// Tasks of arrays with a limit that this pass may still place.
    room: BTreeMap<JobId, u64>,
}

/// A user whose tasks wait.
struct User {
    heads: BTreeSet<(Place, usize)>,
    /// Cpus that they have, with those of this pass.
    cpus: u64,
}

/// What a user's cpus take off the numbers of their jobs.
struct Shares {
    weights: Weights,
    all: u64,
}

/// A line and how far it is.
struct Waiting<'a, I: Iterator<Item = Place>> {
    line: &'a Line,
    places: Peekable<I>,
    /// Tasks of arrays behind those that were placed.
    behind: BTreeSet<Place>,
    /// Jobs of which nothing more is looked at.
    skipped: BTreeSet<JobId>,
}

/// The first task of all lines that are left.
pub(super) struct Head<'a> {
    pub task: TaskId,
    pub job: &'a Job,
    pub line: &'a Line,
}

/// Every line of the queue.
pub(super) fn heads(ledger: &Ledger) -> Heads<'_, impl Iterator<Item = Place>> {
    let lines = ledger.lines().map(|(line, places)| Waiting {
        line,
        places: places.iter().copied().peekable(),
        behind: BTreeSet::new(),
        skipped: BTreeSet::new(),
    });
    let shares = Shares { weights: Weights::of(ledger.policy()), all: ledger.cpus() };
    let mut heads = Heads {
        ledger,
        lines: lines.collect(),
        users: BTreeMap::new(),
        first: BTreeSet::new(),
        shares,
        room: BTreeMap::new(),
    };
    for number in 0..heads.lines.len() {
        heads.step_forward(number);
    }
    let users: Vec<u32> = heads.users.keys().copied().collect();
    users.into_iter().for_each(|user| heads.stand(user));
    heads
}

impl<'a, I: Iterator<Item = Place>> Heads<'a, I> {
    /// The first task of all lines that are left.
    pub fn first(&self) -> Option<Head<'a>> {
        let (_, task, number) = self.head()?;
        let line = self.lines.get(number)?.line;
        Some(Head { task, job: self.ledger.job(task)?, line })
    }

    fn head(&self) -> Option<(u32, TaskId, usize)> {
        let (_, task, user) = self.first.first()?;
        let ((_, _), number) = self.users.get(user)?.heads.first()?;
        Some((*user, *task, *number))
    }

    /// It was placed: the next one of its line steps forward, and its user has more.
    pub fn placed(&mut self) {
        let Some((user, task, number)) = self.head() else { return };
        if let Some((array, room)) = self.ledger.array(task.job).and_then(|a| Some((a, a.room()?)))
        {
            let left = self.room.entry(array.id()).or_insert(room);
            *left = left.saturating_sub(1);
        }
        let cpus = self.lines.get(number).map_or(0, |waiting| u64::from(waiting.line.ask.cpus));
        self.leave(user);
        if let Some(user) = self.users.get_mut(&user) {
            user.cpus += cpus;
        }
        self.taken(user, number);
        self.stand(user);
    }

    /// Whether the limit of its array is reached by what this pass has placed.
    pub fn full(&self, task: TaskId) -> bool {
        self.room.get(&task.job) == Some(&0)
    }

    /// Its job is left where it is, which says nothing about others behind it.
    pub fn passed(&mut self) {
        let Some((user, task, number)) = self.head() else { return };
        self.leave(user);
        if let Some(waiting) = self.lines.get_mut(number) {
            waiting.skipped.insert(task.job);
        }
        self.taken(user, number);
        self.stand(user);
    }

    /// It cannot be placed, so none of its line can.
    pub fn refused(&mut self) {
        let Some((user, _, _)) = self.head() else { return };
        self.leave(user);
        if let Some(user) = self.users.get_mut(&user) {
            user.heads.pop_first();
        }
        self.stand(user);
    }

    /// Takes the head of a line out of it; the next one steps forward.
    fn taken(&mut self, user: u32, number: usize) {
        let Some((place, _)) = self.users.get_mut(&user).and_then(|u| u.heads.pop_first()) else {
            return;
        };
        let Some(waiting) = self.lines.get_mut(number) else { return };
        waiting.taken(place);
        let (_, TaskId { job, index }) = place;
        let next = self.ledger.array(job).zip(index).and_then(|(array, n)| array.behind(n));
        waiting.behind.extend(next.map(|(job, id)| self.ledger.place(job, id)));
        self.step_forward(number);
    }

    /// The head of a line stands among those of its user.
    fn step_forward(&mut self, number: usize) {
        let Some(waiting) = self.lines.get_mut(number) else { return };
        let Some(place) = waiting.head(&self.room) else { return };
        let user = waiting.line.user;
        let cpus = || self.ledger.bound_by_user(user).cpus;
        let user =
            self.users.entry(user).or_insert_with(|| User { heads: BTreeSet::new(), cpus: cpus() });
        user.heads.insert((place, number));
    }

    fn standing(&self, number: u32) -> Option<Standing> {
        let user = self.users.get(&number)?;
        let ((Reverse(key), task), _) = user.heads.first()?;
        let share = self.shares.of(user.cpus);
        Some((Reverse(key.saturating_sub(share)), *task, number))
    }

    /// A user's first task enters the order.
    fn stand(&mut self, user: u32) {
        self.first.extend(self.standing(user));
    }

    fn leave(&mut self, user: u32) {
        if let Some(standing) = self.standing(user) {
            self.first.remove(&standing);
        }
    }
}

impl Shares {
    fn of(&self, cpus: u64) -> i64 {
        self.weights.share(cpus, self.all)
    }
}

impl<I: Iterator<Item = Place>> Waiting<'_, I> {
    fn taken(&mut self, place: Place) {
        if !self.behind.remove(&place) {
            self.places.next();
        }
    }

    /// The first that is left, but for jobs that are skipped and arrays whose limit is reached.
    fn head(&mut self, room: &BTreeMap<JobId, u64>) -> Option<Place> {
        let skipped = &self.skipped;
        let full = |(_, id): &Place| room.get(&id.job) == Some(&0) || skipped.contains(&id.job);
        self.behind.retain(|place| !full(place));
        while self.places.next_if(full).is_some() {}
        self.behind.first().into_iter().chain(self.places.peek()).min().copied()
    }
}
