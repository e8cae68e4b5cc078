//! Every bug that can be switched on, the property that must find it, and how soon. A bug that
//! survives shows a hole: in the properties, or in what the simulation does.

use crate::trim::{ASSERTION, Case};
use crate::world::Violation;
use proto::mutants::Mutant;

/// One bug and what finds it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The bug.
    pub mutant: Mutant,
    /// Properties of which one must be the first that it breaks.
    pub caught_by: &'static [&'static str],
    /// Seeds within which that must happen.
    pub bound: u64,
    /// A seed of those that found it: tried first. Any change of the simulation may move it.
    pub seed: u64,
}

/// Which seed found it, after how many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caught {
    /// The seed.
    pub seed: u64,
    /// Seeds that were tried.
    pub tried: u64,
    /// What it broke.
    pub violation: Violation,
}

const fn row(mutant: Mutant, caught_by: &'static [&'static str], bound: u64, seed: u64) -> Row {
    Row { mutant, caught_by, bound, seed }
}

/// All of them.
pub const ROWS: &[Row] = &[
    row(Mutant::SinceNotPersisted, &["replicas", "unknown"], 300, 52),
    row(Mutant::SinceResetByTerm, &["unknown"], 300, 1),
    row(Mutant::ManifestOnlyFirst, &["convergence"], 300, 2),
    row(Mutant::ExitAssumedZero, &["truth"], 300, 0),
    row(Mutant::DeadClaimedRunning, &["convergence"], 300, 86),
    row(Mutant::DeathSilenceSwapped, &["death", "silence"], 300, 0),
    row(Mutant::DeathAfterPartition, &["death"], 300, 82),
    row(Mutant::DeathAfterStall, &["death"], 300, 33),
    row(Mutant::GoodbyeIgnored, &["death"], 300, 9),
    row(Mutant::UnknownNeverSettled, &["unknown"], 300, 0),
    row(Mutant::WallClockDeadlines, &["unknown", "convergence"], 300, 47),
    row(Mutant::TerminalOverwritten, &["absorbing"], 300, 4),
    row(Mutant::AttemptNotCompared, &["truth", "consistent", "registry"], 300, 13),
    row(Mutant::DispatchedForgotten, &["silence", "unknown"], 300, 0),
    row(Mutant::ClaimBeforeTerm, &["convergence"], 300, 3),
    row(Mutant::TermKeepsRunning, &["unknown"], 300, 1),
    row(Mutant::StoppedClaimedRunning, &["convergence"], 300, 21),
    row(Mutant::DigestOutOfOrder, &["digest"], 300, 136),
    row(Mutant::OrderBeforeDurable, &["orders"], 300, 1),
    row(Mutant::LostJournalResent, &["one-attempt"], 300, 20),
    row(Mutant::DispatchedDied, &["truth"], 300, 12),
    row(Mutant::DisconnectIgnored, &["death"], 300, 12),
    row(Mutant::OrphanKept, &["orphans"], 300, 12),
    row(Mutant::OlderAttemptKept, &["orphans"], 300, 13),
    row(Mutant::AckBeforeApplied, &["finish"], 300, 0),
    row(Mutant::RequestForgotten, &["idempotent"], 300, 0),
    row(Mutant::IntentsDropped, &["convergence"], 300, 52),
    row(Mutant::OldSessionEnds, &["death"], 300, 55),
    row(Mutant::BeatIsNoLife, &["silence"], 300, 0),
    row(Mutant::StallCounted, &["silence"], 300, 20),
    row(Mutant::SilenceNotSwept, &["silence"], 300, 36),
    row(Mutant::ResourcesKept, &["resources"], 300, 0),
    row(Mutant::CancelLostInImage, &["replicas"], 300, 0),
    row(Mutant::HighLostInImage, &["replicas"], 300, 1),
    row(Mutant::SpawnedTwice, &["one-attempt", "truth"], 300, 0),
    row(Mutant::RetrySameAttempt, &["finish", "consistent"], 300, 3),
    row(Mutant::CancelRestarts, &["idempotent"], 300, 0),
    row(Mutant::ClaimKeepsSession, &["convergence"], 300, 52),
    row(Mutant::FactsBeforeManifest, &["unknown"], 300, 3),
    row(Mutant::HeldStarts, &["orders"], 300, 2),
    row(Mutant::LateForgotten, &["finish"], 300, 4),
    row(Mutant::UnknownFinishDropped, &["registry"], 300, 0),
    row(Mutant::RegistryNotDrained, &["registry"], 300, 0),
    row(Mutant::RegistryDrainedTwice, &["registry"], 300, 0),
    row(Mutant::RegistryLostInImage, &["registry"], 300, 3),
    row(Mutant::OrphansDeleted, &["registry"], 300, 6),
    row(Mutant::RetryWithoutProof, &["one-attempt"], 300, 13),
    row(Mutant::EditRepeated, &["idempotent"], 1_000, 379),
    row(Mutant::CancelKeepsRetrying, &["idempotent"], 300, 16),
    row(Mutant::LeaseFromReceipt, &["one-attempt"], 1_000, 256),
    row(Mutant::DeposedRenews, &["one-attempt"], 1_000, 13),
    row(Mutant::LeaseForgotten, &["one-attempt"], 1_000, 13),
    row(Mutant::DigestIgnored, &["convergence"], 1_000, 281),
    row(Mutant::LostRunWaits, &["convergence"], 1_000, 295),
    row(Mutant::ParkedUnlisted, &["truth"], 300, 73),
];

/// Tries seeds until the bug is caught; `None` if it survives its bound.
pub fn hunt(row: &Row) -> Option<Caught> {
    let others = (0..row.bound).filter(|seed| *seed != row.seed);
    let seeds = std::iter::once(row.seed).chain(others);
    let mutant = Some(row.mutant.number());
    seeds.zip(1..).find_map(|(seed, tried)| {
        let violation = Case { seed, mutant, ..Case::default() }.run().violation?;
        Some(Caught { seed, tried, violation })
    })
}

impl Row {
    /// Whether a property that is named for it found it. A debug build asserts more in the cores,
    /// and may be stopped by that first.
    pub fn expects(&self, caught: &Caught) -> bool {
        let property = caught.violation.property;
        let asserted = cfg!(debug_assertions) && property == ASSERTION;
        self.caught_by.contains(&property) || asserted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_has_its_row_and_names_properties_of_the_table() {
        let mutants: Vec<Mutant> = ROWS.iter().map(|row| row.mutant).collect();
        assert_eq!(mutants, Mutant::ALL);
        for row in ROWS {
            assert!(!row.caught_by.is_empty() && row.seed < row.bound, "{:?}", row.mutant);
            for name in row.caught_by {
                assert!(crate::TABLE.iter().any(|known| known.name == *name), "{name}");
            }
        }
    }
}
