//! The relay of facts. The keeper's journal is the spool: the relay holds none, only how far it
//! sent and how far the controller acknowledged, and asks the keeper to send again what it dropped.

use proto::v1;

/// Records that may be sent and not acknowledged. Enough for 8,192 fast jobs in one round trip;
/// past it facts are dropped here and asked for again, so that memory stays flat.
pub const WINDOW_RECORDS: u64 = 8_192;

/// Records that may be sent beyond what the keeper may let go of: facts that are put off are no
/// reason to hold up what comes behind them, as long as memory and journal stay bounded.
pub const KEPT_RECORDS: u64 = 8 * WINDOW_RECORDS;

/// How far the journal went up in this session.
#[derive(Clone, Debug, Default)]
pub struct FactRelay {
    /// The session takes facts.
    open: bool,
    sent_to: u64,
    acked: u64,
    /// Highest record of which the keeper was told that it is acknowledged: it may let go up to here.
    released: u64,
    /// A resend from here is under way: what comes from further on is older than the request.
    asked_from: Option<u64>,
    /// Something was dropped since the window was full.
    stalled: bool,
}

/// What to do with a batch.
#[derive(PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Send it up.
    Send,
    /// Known, or not wanted now.
    Drop,
    /// Something before it is missing: ask the keeper from there.
    Ask(u64),
}

impl FactRelay {
    /// A keeper said how far its records are acknowledged.
    pub fn keeper_is_at(&mut self, acked: u64) {
        *self = FactRelay { acked, released: acked, sent_to: acked, ..FactRelay::default() };
    }

    /// A session begins: everything unacknowledged goes again, from the returned record on.
    pub fn begin(&mut self) -> u64 {
        self.open = true;
        self.stalled = false;
        self.acked = self.released;
        self.ask(self.acked + 1)
    }

    /// The session is over.
    pub fn end(&mut self) {
        self.open = false;
    }

    /// A batch `from..=to` of the keeper.
    pub fn offer(&mut self, batch: &v1::Facts) -> Verdict {
        if !self.open || batch.to <= self.sent_to || batch.from > batch.to {
            return Verdict::Drop;
        }
        if self.full() {
            self.stalled = true;
            return Verdict::Drop;
        }
        let next = self.sent_to + 1;
        if batch.from > next {
            if self.asked_from == Some(next) {
                return Verdict::Drop;
            }
            return Verdict::Ask(self.ask(next));
        }
        self.asked_from = None;
        self.sent_to = batch.to;
        Verdict::Send
    }

    /// The controller has everything up to `to` in its log. False: it speaks of records that were
    /// never sent in this session.
    #[must_use]
    pub fn acknowledge(&mut self, to: u64) -> bool {
        let sent = to <= self.sent_to;
        if sent {
            self.acked = self.acked.max(to);
        }
        sent
    }

    /// Up to where the keeper may let go now, if that is news for it; never up to `kept` or above.
    pub fn release(&mut self, kept: Option<u64>) -> Option<u64> {
        let to = kept.map_or(self.acked, |kept| self.acked.min(kept.saturating_sub(1)));
        if to <= self.released {
            return None;
        }
        self.released = to;
        Some(to)
    }

    /// From where the keeper is to send again what was dropped, once there is room.
    pub fn resume(&mut self) -> Option<u64> {
        let half = self.sent_to - self.acked < WINDOW_RECORDS / 2;
        if !self.open || !self.stalled || self.full() || !half {
            return None;
        }
        self.stalled = false;
        Some(self.ask(self.sent_to + 1))
    }

    fn full(&self) -> bool {
        self.sent_to - self.acked >= WINDOW_RECORDS
            || self.sent_to.saturating_sub(self.released) >= KEPT_RECORDS
    }

    /// The controller misses records from `from` on. `None`: it acknowledged them and the keeper's
    /// journal, which begins at `first`, has let go of them. What it still holds goes again: the log
    /// of that controller is an older copy of the one that acknowledged.
    pub fn rewind(&mut self, from: u64, first: u64) -> Option<u64> {
        if from == 0 || from < first.min(self.acked + 1) {
            return None;
        }
        self.acked = self.acked.min(from - 1);
        Some(self.ask(from.min(self.sent_to + 1)))
    }

    /// The record that was asked for and did not come yet.
    pub fn waits_for(&self) -> Option<u64> {
        self.asked_from.filter(|_| self.open)
    }

    /// Highest record that the controller of this session has.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Highest record of which the keeper was told that it is acknowledged.
    pub fn released(&self) -> u64 {
        self.released
    }

    fn ask(&mut self, from: u64) -> u64 {
        self.sent_to = from - 1;
        self.asked_from = Some(from);
        from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(from: u64, to: u64) -> v1::Facts {
        v1::Facts { journal_id: vec![1], from, to, facts: vec![] }
    }

    fn begun(acked: u64) -> FactRelay {
        let mut relay = FactRelay::default();
        relay.keeper_is_at(acked);
        assert_eq!(relay.begin(), acked + 1);
        relay
    }

    #[test]
    fn nothing_goes_up_without_a_session() {
        let mut relay = FactRelay::default();
        relay.keeper_is_at(0);
        assert_eq!(relay.offer(&batch(1, 1)), Verdict::Drop);
    }

    #[test]
    fn batches_in_flight_before_a_resend_are_dropped_and_order_is_kept() {
        let mut relay = begun(4);
        assert_eq!(relay.offer(&batch(9, 9)), Verdict::Drop, "older than the resend asked for");
        assert_eq!(relay.offer(&batch(5, 8)), Verdict::Send);
        assert_eq!(relay.offer(&batch(9, 9)), Verdict::Send);
        assert_eq!(relay.offer(&batch(8, 9)), Verdict::Drop, "sent in this session already");
        assert_eq!(relay.offer(&batch(11, 11)), Verdict::Ask(10), "10 was never offered");
        assert_eq!(relay.offer(&batch(12, 12)), Verdict::Drop, "asked once, not for each batch");
        assert_eq!(relay.offer(&batch(10, 12)), Verdict::Send);
    }

    #[test]
    fn a_full_window_drops_and_asks_again_once_there_is_room() {
        let mut relay = begun(0);
        assert_eq!(relay.offer(&batch(1, WINDOW_RECORDS)), Verdict::Send);
        let next = WINDOW_RECORDS + 1;
        assert_eq!(relay.offer(&batch(next, next)), Verdict::Drop);
        assert!(relay.acknowledge(10));
        assert_eq!((relay.release(None), relay.resume()), (Some(10), None));
        assert!(relay.acknowledge(WINDOW_RECORDS));
        assert_eq!((relay.release(None), relay.resume()), (Some(WINDOW_RECORDS), Some(next)));
        assert_eq!(relay.offer(&batch(next, next)), Verdict::Send);
    }

    #[test]
    fn an_acknowledgement_of_what_was_never_sent_is_nonsense() {
        let mut relay = begun(3);
        assert!(!relay.acknowledge(4));
        assert_eq!(relay.acked(), 3);
    }

    #[test]
    fn a_leader_that_misses_facts_gets_them_again_but_none_that_it_acknowledged() {
        let mut relay = begun(0);
        assert_eq!(relay.offer(&batch(1, 5)), Verdict::Send);
        assert!(relay.acknowledge(2));
        assert_eq!(relay.rewind(2, 3), None);
        assert_eq!(relay.rewind(4, 3), Some(4));
        assert_eq!(relay.offer(&batch(4, 5)), Verdict::Send);
    }

    #[test]
    fn a_leader_with_an_older_log_gets_again_what_the_journal_still_holds() {
        let mut relay = begun(20);
        assert_eq!(relay.offer(&batch(21, 22)), Verdict::Send);
        assert_eq!(relay.rewind(14, 15), None, "that is gone");
        assert_eq!(relay.rewind(15, 15), Some(15));
        assert_eq!(relay.waits_for(), Some(15));
        assert_eq!(relay.offer(&batch(21, 22)), Verdict::Drop, "under way before the question");
        assert_eq!(relay.offer(&batch(15, 22)), Verdict::Send);
        assert_eq!((relay.waits_for(), relay.acked()), (None, 14));
        assert!(relay.acknowledge(22));
        assert_eq!(relay.release(None), Some(22));
    }

    #[test]
    fn what_the_keeper_must_keep_holds_up_others_only_when_they_are_very_many() {
        let mut relay = begun(0);
        let mut sent = 0;
        while sent <= KEPT_RECORDS {
            assert_eq!(relay.offer(&batch(sent + 1, sent + 4_096)), Verdict::Send, "from {sent}");
            sent += 4_096;
            assert!(relay.acknowledge(sent));
            assert_eq!(relay.release(Some(5)), (sent == 4_096).then_some(4));
        }
        assert_eq!(relay.offer(&batch(sent + 1, sent + 1)), Verdict::Drop);
        assert_eq!(relay.resume(), None);
        assert_eq!(relay.release(None), Some(sent));
        assert_eq!(relay.resume(), Some(sent + 1));
    }
}
