//! What was applied since the last snapshot, and when to ask for the next one.

use crate::pump::SnapshotDue;

/// Counts from one freeze of the ledger to the next.
#[derive(Debug, Default)]
pub(crate) struct SinceSnapshot {
    bytes: u64,
    commands: u64,
    /// Whole distances after which a snapshot was asked for.
    asked: u64,
}

impl SinceSnapshot {
    /// Counts an entry. True: ask for a snapshot now. Raft passes over what comes while it builds
    /// one, so it is asked again after each further distance: asked once only, it could be for ever
    /// that the log grows.
    pub fn count(&mut self, due: &SnapshotDue, bytes: u64, commands: u64) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        self.commands = self.commands.saturating_add(commands);
        let by_bytes = self.bytes / due.every_bytes.max(1);
        let passed = by_bytes.max(self.commands / due.every_commands.max(1));
        let asks = passed > self.asked;
        self.asked = passed;
        asks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_whose_request_was_passed_over_is_asked_for_again() {
        let limits =
            SnapshotDue { every_bytes: 1 << 40, every_commands: 100, due: Default::default() };
        let mut since = SinceSnapshot::default();
        let asks: Vec<u64> = (1..=25).filter(|_| since.count(&limits, 1, 10)).collect();
        assert_eq!(asks, [10, 20], "after each distance, and not at each entry");
        assert!(since.count(&limits, 1, 5_000));
        assert!(!since.count(&limits, 1, 10), "a large entry asks once");
        since = SinceSnapshot::default();
        let limits = SnapshotDue { every_bytes: 50, ..limits };
        let asks: Vec<u64> = (1..=12).filter(|_| since.count(&limits, 10, 1)).collect();
        assert_eq!(asks, [5, 10]);
    }
}
