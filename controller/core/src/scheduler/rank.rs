//! The place of a task in the queue, the parts of its number, and who stands before it. Asked for by people,
//! one task at a time: it counts those before.

use crate::ledger::{Job, Kind, Ledger, Number, POINT, Place, Weights};
use proto::TaskId;
use std::cmp::Reverse;

/// Where a queued task stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rank {
    /// From 1.
    pub place: u64,
    /// How many tasks are queued.
    pub of: u64,
    /// Its number, in parts.
    pub number: Number,
    /// The task right before it.
    pub ahead: Option<Ahead>,
}

/// A task before another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// Which.
    pub task: TaskId,
    /// By how much its number is greater, in [`POINT`]s.
    pub more: i64,
}

impl Rank {
    /// Of a queued task at a led time; `None` if it is not queued.
    pub fn of(ledger: &Ledger, id: TaskId, led_ms: u64) -> Option<Rank> {
        let job = ledger.job(id).filter(|job| job.kind() == Kind::Queued)?;
        let (weights, all) = (Weights::of(ledger.policy()), ledger.cpus());
        let share = |user| weights.share(ledger.bound_by_user(user).cpus, all);
        let own = share(job.by().number);
        let (Reverse(key), _) = ledger.place(job, id);
        let standing = key.saturating_sub(own);
        let (mut before, mut ahead) = (0, None::<Ahead>);
        for (line, places) in ledger.lines() {
            let taken_off = share(line.user);
            let bound = (Reverse(standing.saturating_add(taken_off)), id);
            before +=
                places.range(..bound).map(|place| tasks_before(ledger, *place, id)).sum::<u64>();
            let Some((Reverse(last), task)) = places.range(..bound).next_back() else { continue };
            let more = last.saturating_sub(taken_off).saturating_sub(standing);
            if ahead.is_none_or(|known| (more, Reverse(*task)) < (known.more, Reverse(known.task)))
            {
                ahead = Some(Ahead { task: *task, more });
            }
        }
        let number = parts(job, &weights, key, own, led_ms);
        Some(Rank { place: before + 1, of: ledger.pending_count(), number, ahead })
    }
}

fn parts(job: &Job, weights: &Weights, key: i64, share: i64, led_ms: u64) -> Number {
    let weight = i64::from(weights.age);
    let since = i64::try_from(job.eligible_led_ms()).unwrap_or(i64::MAX);
    let priority = key.saturating_add(since.saturating_mul(weight));
    let waited = led_ms.saturating_sub(job.eligible_led_ms());
    let waited = i64::try_from(waited).unwrap_or(i64::MAX);
    debug_assert_eq!(POINT, 3_600_000, "a millisecond is one part of an hour's point");
    Number { priority, age: waited.saturating_mul(weight), share }
}

/// Tasks that one place stands for and that come before a task.
fn tasks_before(ledger: &Ledger, (_, first): Place, id: TaskId) -> u64 {
    let Some((array, number)) = ledger.array(first.job).zip(first.index) else { return 1 };
    let same = |n: &u32| first.job == id.job && array.together(number, *n);
    match id.index.filter(same) {
        Some(own) => array.rank(own).1,
        None => array.rank(number).0,
    }
}
