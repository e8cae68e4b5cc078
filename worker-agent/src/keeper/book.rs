//! What the journal says: attempts that live, attempts whose end is not acknowledged, orders seen.
//! One pure transition function, for records as they are written and as they are read back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proto::AttemptId;
use proto::v1::journal_record::Kind;
use proto::v1::{
    Accepted, AttemptRef, Fact, JournalAttempt, JournalImage, JournalRecord, KillCause, KillNoted,
    LimitNoted, PaceNoted, StartFact, Token, fact,
};

/// Ended attempts remembered after their acknowledgement, so that an order repeated late does not
/// run them again. The leader orders nothing that it knows as ended; this is for what was under way.
const DONE_MAX: usize = 4096;

/// An attempt of one cluster generation: what a token stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub attempt: AttemptId,
    pub generation: u64,
}

impl Key {
    /// `None`: no attempt, no token, or a token of another attempt.
    pub(crate) fn from_wire(attempt: Option<&AttemptRef>, token: Option<&Token>) -> Option<Key> {
        let attempt = AttemptId::from_wire(attempt).ok()?;
        let token = token.filter(|token| token.attempt == attempt.attempt)?;
        Some(Key { attempt, generation: token.generation })
    }

    pub(crate) fn attempt_ref(self) -> AttemptRef {
        self.attempt.to_wire()
    }

    pub(crate) fn token(self) -> Token {
        Token { generation: self.generation, attempt: self.attempt.attempt }
    }
}

/// The state of a journal after some record.
#[derive(Clone, Default, Debug, PartialEq)]
pub(crate) struct Book {
    live: BTreeMap<Key, JournalAttempt>,
    /// Ended, with the position of the finish that is not acknowledged.
    ended: BTreeMap<Key, u64>,
    ended_at: BTreeMap<u64, Key>,
    done: BTreeSet<Key>,
    done_order: VecDeque<Key>,
    acked: u64,
    last_order: u64,
    last_fact: u64,
    /// All records up to here, or an image of them, were seen.
    whole: bool,
}

impl Book {
    /// Before the first record of a journal that begins with this one.
    pub(crate) fn new(first_seq: u64) -> Book {
        Book { whole: first_seq <= 1, ..Book::default() }
    }

    /// Takes one record in, in order of position. Total: what names nothing known is passed over,
    /// since the records of an attempt may be purged up to an image.
    pub(crate) fn apply(&mut self, seq: u64, record: &JournalRecord) {
        if fact_of(seq, record).is_some() {
            self.last_fact = seq;
        }
        match &record.kind {
            Some(Kind::Accepted(accepted)) => {
                self.last_order = self.last_order.max(accepted.order_id);
                if let Some(key) =
                    Key::from_wire(accepted.attempt.as_ref(), accepted.token.as_ref())
                {
                    let attempt =
                        JournalAttempt { accepted: Some(accepted.clone()), ..Default::default() };
                    self.live.insert(key, attempt);
                }
            }
            Some(Kind::Started(start)) => self.started(start),
            Some(Kind::Exited(finish)) => {
                let key = Key::from_wire(finish.attempt.as_ref(), finish.token.as_ref());
                if let Some(live) = key.and_then(|key| self.live.get_mut(&key)) {
                    live.exited = Some(finish.clone());
                }
            }
            Some(Kind::Closed(closed)) => {
                let finish = closed.finish.as_ref();
                let key = finish.and_then(|f| Key::from_wire(f.attempt.as_ref(), f.token.as_ref()));
                if let Some(key) = key {
                    self.closed(seq, key);
                }
            }
            // Nobody can have more than what was told.
            Some(Kind::Acked(acked)) => self.acknowledge(acked.to.min(self.last_fact)),
            Some(Kind::Image(image)) => self.image_read(image),
            Some(Kind::Order(order)) => self.last_order = self.last_order.max(order.order_id),
            Some(Kind::Kill(kill)) => self.kill_noted(kill),
            Some(Kind::Pace(note)) => self.pace_noted(note),
            Some(Kind::Limit(note)) => self.limit_noted(note),
            Some(Kind::Warned(note)) => {
                let key = Key::from_wire(note.attempt.as_ref(), note.token.as_ref());
                if let Some(accepted) = key.and_then(|key| self.accepted_mut(key)) {
                    accepted.warn = None;
                }
            }
            Some(Kind::Suspended(f)) => self.told(f.attempt.as_ref(), f.token.as_ref(), true),
            Some(Kind::Resumed(f)) => self.told(f.attempt.as_ref(), f.token.as_ref(), false),
            Some(Kind::Refused(_)) | None => {}
        }
    }

    fn limit_noted(&mut self, note: &LimitNoted) {
        self.last_order = self.last_order.max(note.order_id);
        let key = Key::from_wire(note.attempt.as_ref(), note.token.as_ref());
        if let Some(accepted) = key.and_then(|key| self.accepted_mut(key)) {
            accepted.time_limit_ms = note.time_limit_ms;
        }
    }

    fn accepted_mut(&mut self, key: Key) -> Option<&mut Accepted> {
        self.live.get_mut(&key)?.accepted.as_mut()
    }

    fn pace_noted(&mut self, note: &PaceNoted) {
        let key = Key::from_wire(note.attempt.as_ref(), note.token.as_ref());
        let Some(live) = key.and_then(|key| self.live.get_mut(&key)) else { return };
        let Some(done_ms) = note.done_boottime_ms else {
            live.suspend_wanted = Some(note.suspend);
            return;
        };
        let since_ms = live.suspended_since_ms;
        if since_ms > 0 {
            live.suspended_ms += done_ms.saturating_sub(since_ms);
        }
        live.suspended_since_ms = if note.suspend { done_ms } else { 0 };
    }

    /// A fact about a live attempt; told again it says the same.
    fn told(&mut self, attempt: Option<&AttemptRef>, token: Option<&Token>, suspended: bool) {
        let key = Key::from_wire(attempt, token);
        let Some(live) = key.and_then(|key| self.live.get_mut(&key)) else { return };
        live.suspended = suspended;
        if live.suspend_wanted == Some(suspended) {
            live.suspend_wanted = None;
        }
    }

    fn started(&mut self, start: &StartFact) {
        let key = Key::from_wire(start.attempt.as_ref(), start.token.as_ref());
        if let Some(live) = key.and_then(|key| self.live.get_mut(&key)) {
            live.started = Some(start.clone());
        }
    }

    fn kill_noted(&mut self, note: &KillNoted) {
        let Ok(attempt) = AttemptId::from_wire(note.attempt.as_ref()) else { return };
        let (first, last) = (Key { attempt, generation: 0 }, Key { attempt, generation: u64::MAX });
        for live in self.live.range_mut(first..=last).map(|(_, live)| live) {
            // Before its start is known there is nothing that could have been signalled.
            let noted = match live.started {
                Some(_) => &mut live.killed_for,
                None => &mut live.kill_wanted,
            };
            if *noted == KillCause::Unspecified as i32 {
                *noted = note.cause;
            }
            // A later order may bring the SIGKILL forward, never put it off.
            let hard_ms = note.hard_boottime_ms;
            if live.kill_hard_ms == 0 || hard_ms > 0 && hard_ms < live.kill_hard_ms {
                live.kill_hard_ms = hard_ms;
            }
        }
    }

    fn closed(&mut self, seq: u64, key: Key) {
        self.live.remove(&key);
        if let Some(older) = self.ended.insert(key, seq) {
            self.ended_at.remove(&older);
        }
        self.ended_at.insert(seq, key);
    }

    fn acknowledge(&mut self, to: u64) {
        self.acked = self.acked.max(to);
        self.last_fact = self.last_fact.max(self.acked);
        while let Some((&seq, &key)) = self.ended_at.first_key_value()
            && seq <= self.acked
        {
            self.ended_at.remove(&seq);
            self.ended.remove(&key);
            if self.done.insert(key) {
                self.done_order.push_back(key);
            }
            while self.done_order.len() > DONE_MAX {
                if let Some(oldest) = self.done_order.pop_front() {
                    self.done.remove(&oldest);
                }
            }
        }
    }

    fn image_read(&mut self, image: &JournalImage) {
        self.acknowledge(image.acked);
        self.last_order = self.last_order.max(image.last_order);
        if self.whole {
            return;
        }
        self.whole = true;
        self.live = image
            .attempts
            .iter()
            .filter_map(|attempt| {
                let accepted = attempt.accepted.as_ref()?;
                let key = Key::from_wire(accepted.attempt.as_ref(), accepted.token.as_ref())?;
                Some((key, attempt.clone()))
            })
            .collect();
    }

    /// All that must be kept when earlier acknowledged records go. Ended attempts are not in it:
    /// their finish is a record of its own, kept until it is acknowledged.
    pub(crate) fn image(&self) -> JournalImage {
        JournalImage {
            acked: self.acked,
            last_order: self.last_order,
            attempts: self.live.values().cloned().collect(),
        }
    }

    /// Attempts that are accepted and not closed.
    pub(crate) fn live(&self) -> &BTreeMap<Key, JournalAttempt> {
        &self.live
    }

    /// Attempts whose finish is not acknowledged, newest finish first.
    pub(crate) fn ended(&self) -> impl Iterator<Item = Key> {
        self.ended_at.values().rev().copied()
    }

    /// Whether this attempt was ever taken, as far as is remembered.
    pub(crate) fn knows(&self, key: Key) -> bool {
        self.live.contains_key(&key) || self.ended.contains_key(&key) || self.done.contains(&key)
    }

    /// Facts up to here are in the controller's log.
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// O: the highest order id taken or refused.
    pub(crate) fn last_order(&self) -> u64 {
        self.last_order
    }

    /// F: the position of the newest fact; 0 if there was none.
    pub(crate) fn last_fact(&self) -> u64 {
        self.last_fact
    }
}

/// The fact in a record, if it is one for the controller.
pub(crate) fn fact_of(seq: u64, record: &JournalRecord) -> Option<Fact> {
    let kind = match record.kind.as_ref()? {
        Kind::Started(start) => fact::Kind::Start(start.clone()),
        Kind::Closed(closed) => fact::Kind::Finish(closed.finish.clone()?),
        Kind::Refused(refused) => fact::Kind::Refused(refused.clone()),
        Kind::Suspended(suspended) => fact::Kind::Suspended(*suspended),
        Kind::Resumed(resumed) => fact::Kind::Resumed(*resumed),
        _ => return None,
    };
    Some(Fact { seq, kind: Some(kind) })
}

/// The record that tells a fact once more, behind the others.
pub(crate) fn record_of(fact: Fact) -> Option<JournalRecord> {
    let kind = match fact.kind? {
        fact::Kind::Start(start) => Kind::Started(start),
        fact::Kind::Finish(finish) => Kind::Closed(proto::v1::Closed { finish: Some(finish) }),
        fact::Kind::Refused(refused) => Kind::Refused(refused),
        fact::Kind::Suspended(suspended) => Kind::Suspended(suspended),
        fact::Kind::Resumed(resumed) => Kind::Resumed(resumed),
    };
    Some(JournalRecord { kind: Some(kind) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::v1::{
        Accepted, Acked, Closed, FinishFact, OrderSeen, RefusedFact, ResumedFact, SuspendedFact,
    };

    pub(crate) fn key(job: u64) -> Key {
        let attempt = AttemptRef { job, task: None, attempt: 1 };
        Key::from_wire(Some(&attempt), Some(&Token { generation: 1, attempt: 1 })).unwrap()
    }

    pub(crate) fn record(kind: Kind) -> JournalRecord {
        JournalRecord { kind: Some(kind) }
    }

    pub(crate) fn accepted(job: u64, order_id: u64) -> JournalRecord {
        record(Kind::Accepted(Accepted {
            attempt: Some(key(job).attempt_ref()),
            token: Some(key(job).token()),
            order_id,
            ..Default::default()
        }))
    }

    fn finish(job: u64) -> FinishFact {
        FinishFact {
            attempt: Some(key(job).attempt_ref()),
            token: Some(key(job).token()),
            ..Default::default()
        }
    }

    pub(crate) fn closed(job: u64) -> JournalRecord {
        record(Kind::Closed(Closed { finish: Some(finish(job)) }))
    }

    fn pace_note(job: u64, suspend: bool, done_boottime_ms: Option<u64>) -> PaceNoted {
        let (attempt, token) = (Some(key(job).attempt_ref()), Some(key(job).token()));
        PaceNoted { attempt, token, suspend, done_boottime_ms }
    }

    fn suspended(job: u64) -> JournalRecord {
        let (attempt, token) = (Some(key(job).attempt_ref()), Some(key(job).token()));
        record(Kind::Suspended(SuspendedFact { attempt, token, wall_ms: 7 }))
    }

    fn resumed(job: u64) -> JournalRecord {
        let (attempt, token) = (Some(key(job).attempt_ref()), Some(key(job).token()));
        record(Kind::Resumed(ResumedFact { attempt, token, wall_ms: 8 }))
    }

    fn any_record() -> impl Strategy<Value = JournalRecord> {
        let job = 1..5u64;
        let start = |job| {
            record(Kind::Started(StartFact {
                attempt: Some(key(job).attempt_ref()),
                token: Some(key(job).token()),
                pid: 7,
                ..Default::default()
            }))
        };
        let refused = |job| {
            record(Kind::Refused(RefusedFact {
                attempt: Some(key(job).attempt_ref()),
                ..Default::default()
            }))
        };
        let kill = |job| {
            let cause = KillCause::Cancel as i32;
            record(Kind::Kill(kill_note(job, cause, job)))
        };
        let pace = |(job, suspend, done): (u64, bool, Option<u64>)| {
            record(Kind::Pace(pace_note(job, suspend, done)))
        };
        prop_oneof![
            (job.clone(), any::<bool>(), prop::option::of(1..99u64)).prop_map(pace),
            job.clone().prop_map(suspended),
            job.clone().prop_map(resumed),
            (job.clone(), 1..99u64).prop_map(|(job, order)| accepted(job, order)),
            job.clone().prop_map(start),
            job.clone().prop_map(|job| record(Kind::Exited(finish(job)))),
            job.clone().prop_map(closed),
            job.clone().prop_map(refused),
            job.prop_map(kill),
            (1..40u64).prop_map(|to| record(Kind::Acked(Acked { to }))),
            (1..99u64).prop_map(|order_id| record(Kind::Order(OrderSeen { order_id }))),
        ]
    }

    fn kill_note(job: u64, cause: i32, hard_boottime_ms: u64) -> KillNoted {
        KillNoted { attempt: Some(key(job).attempt_ref()), cause, hard_boottime_ms }
    }

    #[test]
    fn a_token_must_be_the_attempts_own() {
        let attempt = AttemptRef { job: 1, task: None, attempt: 2 };
        let token = Token { generation: 1, attempt: 1 };
        assert_eq!(Key::from_wire(Some(&attempt), Some(&token)), None);
        assert_eq!(Key::from_wire(Some(&attempt), None), None);
    }

    #[test]
    fn an_attempt_stays_known_from_its_acceptance_until_long_after_its_acknowledgement() {
        let mut book = Book::new(1);
        book.apply(1, &accepted(1, 10));
        assert!(book.knows(key(1)) && !book.knows(key(2)));
        book.apply(2, &closed(1));
        assert_eq!(book.ended().collect::<Vec<_>>(), [key(1)]);
        book.apply(3, &record(Kind::Acked(Acked { to: 2 })));
        assert_eq!(book.ended().count(), 0);
        assert!(book.knows(key(1)));
        assert_eq!((book.acked(), book.last_fact(), book.last_order()), (2, 2, 10));
    }

    #[test]
    fn a_kill_before_the_start_is_wanted_and_signalled_only_after_it() {
        let cause = KillCause::Cancel as i32;
        let kill = record(Kind::Kill(kill_note(1, cause, 0)));
        let start = StartFact {
            attempt: Some(key(1).attempt_ref()),
            token: Some(key(1).token()),
            ..Default::default()
        };
        let mut book = Book::new(1);
        book.apply(1, &accepted(1, 10));
        book.apply(2, &kill);
        let noted =
            |book: &Book| (book.live()[&key(1)].kill_wanted, book.live()[&key(1)].killed_for);
        assert_eq!(noted(&book), (cause, 0));
        book.apply(3, &record(Kind::Started(start)));
        book.apply(4, &kill);
        assert_eq!(noted(&book), (cause, cause));
    }

    #[test]
    fn the_time_of_a_sigkill_is_only_ever_brought_forward() {
        let mut book = Book::new(1);
        book.apply(1, &accepted(1, 10));
        let cause = KillCause::TimeLimit as i32;
        for (seq, (hard_ms, expected)) in (2..).zip([(0, 0), (90, 90), (99, 90), (50, 50), (0, 50)])
        {
            book.apply(seq, &record(Kind::Kill(kill_note(1, cause, hard_ms))));
            assert_eq!(book.live()[&key(1)].kill_hard_ms, expected, "after record {seq}");
        }
    }

    #[test]
    fn a_pace_is_wanted_until_its_fact_and_its_time_is_summed() {
        let mut book = Book::new(1);
        book.apply(1, &accepted(1, 10));
        let steps = [
            (record(Kind::Pace(pace_note(1, true, None))), (false, Some(true), 0, 0)),
            (record(Kind::Pace(pace_note(1, true, Some(100)))), (false, Some(true), 100, 0)),
            (suspended(1), (true, None, 100, 0)),
            (record(Kind::Pace(pace_note(1, false, None))), (true, Some(false), 100, 0)),
            // Stopped once more by the next keeper: the time before counts too.
            (record(Kind::Pace(pace_note(1, true, Some(130)))), (true, Some(false), 130, 30)),
            (record(Kind::Pace(pace_note(1, false, Some(150)))), (true, Some(false), 0, 50)),
            (resumed(1), (false, None, 0, 50)),
        ];
        for (seq, (record, expected)) in (2..).zip(steps) {
            book.apply(seq, &record);
            let live = &book.live()[&key(1)];
            let state =
                (live.suspended, live.suspend_wanted, live.suspended_since_ms, live.suspended_ms);
            assert_eq!(state, expected, "after record {seq}");
        }
        assert_eq!(book.last_fact(), 8);
    }

    #[test]
    fn a_fact_told_again_is_owed_until_its_new_place_is_acknowledged() {
        let mut book = Book::new(1);
        book.apply(1, &accepted(1, 10));
        book.apply(2, &closed(1));
        book.apply(3, &record_of(fact_of(2, &closed(1)).unwrap()).unwrap());
        book.apply(4, &record(Kind::Acked(Acked { to: 2 })));
        assert_eq!(book.ended().collect::<Vec<_>>(), [key(1)]);
        book.apply(5, &record(Kind::Acked(Acked { to: 3 })));
        assert_eq!(book.ended().count(), 0);
    }

    proptest! {
        /// Acknowledged records before an image may be purged: what is left gives the same book, but
        /// for the memory of attempts that are long done.
        #[test]
        fn an_image_stands_for_what_was_purged(
            before in prop::collection::vec(any_record(), 0..40),
            after in prop::collection::vec(any_record(), 0..20),
        ) {
            let mut whole = Book::new(1);
            let mut records = before;
            for (place, record) in records.iter().enumerate() {
                whole.apply(place as u64 + 1, record);
            }
            records.push(record(Kind::Image(whole.image())));
            let image_at = records.len() as u64;
            records.extend(after);
            let purged = whole.acked().min(image_at - 1);
            whole = Book::new(1);
            let mut short = Book::new(purged + 1);
            for (place, record) in records.iter().enumerate() {
                let seq = place as u64 + 1;
                whole.apply(seq, record);
                if seq > purged {
                    short.apply(seq, record);
                }
            }
            prop_assert_eq!(&whole.live, &short.live);
            prop_assert_eq!(&whole.ended, &short.ended);
            prop_assert_eq!(whole.acked, short.acked);
            prop_assert_eq!(whole.last_order, short.last_order);
            prop_assert_eq!(whole.last_fact, short.last_fact);
        }
    }
}
