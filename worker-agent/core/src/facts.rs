//! The relay of facts. The keeper's journal is the spool: the relay holds none, only how far it
//! sent and how far the controller acknowledged, and asks the keeper to send again what it dropped.

use proto::v1;

/// Records that may be sent and not acknowledged. Enough for 8,192 fast jobs in one round trip;
/// past it facts are dropped here and asked for again, so that memory stays flat.
pub const WINDOW_RECORDS: u64 = 8_192;

/// How far the journal went up in this session.
#[derive(Clone, Debug, Default)]
pub struct FactRelay {
    /// The session takes facts.
    open: bool,
    sent_to: u64,
    acked: u64,
    /// Highest record that any session acknowledged: of those up to here the keeper may let go.
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

/// What an acknowledgement leads to.
#[derive(PartialEq, Eq, Debug)]
pub enum Acked {
    /// The keeper is to be told.
    Tell,
    /// As `Tell`, and it is to send again from there.
    TellAndAsk(u64),
    /// It speaks of records never sent in this session.
    Nonsense,
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
        if self.sent_to - self.acked >= WINDOW_RECORDS {
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

    /// The controller has everything up to `to` in its log.
    pub fn acknowledge(&mut self, to: u64) -> Acked {
        if to > self.sent_to {
            return Acked::Nonsense;
        }
        self.acked = self.acked.max(to);
        self.released = self.released.max(to);
        if self.stalled && self.sent_to - self.acked < WINDOW_RECORDS / 2 {
            self.stalled = false;
            return Acked::TellAndAsk(self.ask(self.sent_to + 1));
        }
        Acked::Tell
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

    /// Highest record that was ever acknowledged.
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
        assert_eq!(relay.acknowledge(10), Acked::Tell);
        assert_eq!(relay.acknowledge(WINDOW_RECORDS), Acked::TellAndAsk(next));
        assert_eq!(relay.offer(&batch(next, next)), Verdict::Send);
    }

    #[test]
    fn an_acknowledgement_of_what_was_never_sent_is_nonsense() {
        let mut relay = begun(3);
        assert_eq!(relay.acknowledge(4), Acked::Nonsense);
        assert_eq!(relay.acked(), 3);
    }

    #[test]
    fn a_leader_that_misses_facts_gets_them_again_but_none_that_it_acknowledged() {
        let mut relay = begun(0);
        assert_eq!(relay.offer(&batch(1, 5)), Verdict::Send);
        assert_eq!(relay.acknowledge(2), Acked::Tell);
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
        assert_eq!(relay.acknowledge(22), Acked::Tell);
    }
}
