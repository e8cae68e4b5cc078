//! Bugs that can be switched on, to show that the simulation finds them (`docs/simulation.md`).
//! Without the feature `mutants`, which no dependency edge enables, none can: every
//! [`Mutant::active`] is a constant `false` and its branch is not compiled in.

/// Numbered bugs: the number stays, the name says what is broken.
macro_rules! mutants {
    ($($number:literal $name:ident $text:literal,)*) => {
        /// One bug; [`Mutant::breaks`] says what it does.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u16)]
        pub enum Mutant {
            $(#[doc = $text] $name = $number,)*
        }

        impl Mutant {
            /// All of them, by number.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)*];

            /// What it breaks, in words.
            pub const fn breaks(self) -> &'static str {
                match self {
                    $(Mutant::$name => $text,)*
                }
            }
        }
    };
}

mutants! {
    1 SinceNotPersisted "an image loses since when a task is unknown",
    2 SinceResetByTerm "a new term restarts the time to live of unknown tasks",
    3 ManifestOnlyFirst "the agent shows its manifest only in its first session",
    4 ExitAssumedZero "a keeper that did not see an end says exit code 0",
    5 DeadClaimedRunning "a keeper that finds a dead tree claims that it runs",
    6 DeathSilenceSwapped "a death is recorded as silence, a silence as death",
    7 DeathAfterPartition "a close proves a death however old the last word is",
    8 DeathAfterStall "a close proves a death though the leader had stalled",
    9 GoodbyeIgnored "a close after a goodbye is taken for a death",
    10 UnknownNeverSettled "the time to live of an unknown task never ends",
    11 WallClockDeadlines "deadlines are measured by the wall clock",
    12 TerminalOverwritten "a finish overwrites a terminal state",
    13 AttemptNotCompared "facts of an older attempt are taken for the present one",
    14 DispatchedForgotten "a task that was assigned and not started is not lost with its node",
    15 ClaimBeforeTerm "joins are taken before the entry that makes all unknown",
    16 TermKeepsRunning "the first entry of a term leaves tasks as they were",
    17 StoppedClaimedRunning "a manifest's suspended task is claimed as running",
    18 DigestOutOfOrder "digests are compared though they describe different points",
    20 OrderBeforeDurable "an order to run leaves before its assignment is durable",
    21 LostJournalResent "what a lost journal had is sent again",
    22 DispatchedDied "what nobody heard to start ends as agent-died",
    23 DisconnectIgnored "on_disconnect is not looked at",
    24 OrphanKept "a manifest's attempt of an ended task is let live",
    25 OlderAttemptKept "a manifest's older attempt is let live",
    26 AckBeforeApplied "facts are acknowledged when they come",
    27 RequestForgotten "a submit's request id is not remembered",
    28 IntentsDropped "what was asked while a node was away is not carried out at its join",
    29 OldSessionEnds "the loss of an older session counts",
    30 BeatIsNoLife "a heartbeat is no sign of life",
    31 StallCounted "the leader's own stall counts as silence of its agents",
    32 SilenceNotSwept "silence is not counted",
    33 ResourcesKept "an ended task keeps its resources",
    34 CancelLostInImage "an image loses who asked to cancel",
    35 HighLostInImage "an image loses how far a journal was taken",
    36 SpawnedTwice "a keeper starts what it has accepted before",
    37 RetrySameAttempt "an attempt that its node failed is queued under the same number",
    38 CancelRestarts "each further cancel replaces the first",
    39 ClaimKeepsSession "a claim leaves a task with the older session",
    40 FactsBeforeManifest "a manifest is judged without the facts it rests on",
    41 HeldStarts "a held job is started",
    42 LateForgotten "the real end of a task that was settled without it is not kept",
    43 UnknownFinishDropped "a fact of a job that is not known yet is dropped",
    44 RegistryNotDrained "the registry is not drained when its job comes",
    45 RegistryDrainedTwice "what is drained stays in the registry",
    46 RegistryLostInImage "an image lacks the registry",
    47 OrphansDeleted "what waits too long in the registry is deleted",
    48 RetryWithoutProof "a retry does not wait until the old attempt is dead",
    49 EditRepeated "a suspend or resume that comes twice is carried out twice",
    50 CancelKeepsRetrying "a cancelled attempt is tried again",
    51 LeaseFromReceipt "a lease is counted from when its renewal is read",
    52 DeposedRenews "a heartbeat is echoed without asking a quorum",
    53 LeaseForgotten "a new leader takes leases for over that it has not renewed",
    54 DigestIgnored "digests are not compared, nor is anybody asked who cannot be",
    55 LostRunWaits "an order to run that got lost inside the node waits for the next join",
    56 ParkedUnlisted "a manifest lacks the ends that wait for room in the journal",
}

impl Mutant {
    /// Its number, which stays.
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The mutant of that number.
    pub fn of_number(number: u16) -> Option<Mutant> {
        Mutant::ALL.iter().copied().find(|mutant| mutant.number() == number)
    }

    /// Whether this bug is switched on in this thread.
    #[cfg(not(feature = "mutants"))]
    #[inline(always)]
    pub const fn active(self) -> bool {
        false
    }

    /// Whether this bug is switched on in this thread.
    #[cfg(feature = "mutants")]
    pub fn active(self) -> bool {
        chosen::get() == Some(self)
    }
}

#[cfg(feature = "mutants")]
mod chosen {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub fn get() -> Option<Mutant> {
        CHOSEN.get()
    }

    pub fn set(mutant: Option<Mutant>) {
        CHOSEN.set(mutant);
    }
}

/// Switches one bug on in this thread, and every other off.
#[cfg(feature = "mutants")]
pub fn choose(mutant: Option<Mutant>) {
    chosen::set(mutant);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_grow() {
        assert!(Mutant::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(Mutant::ALL.iter().all(|m| Mutant::of_number(m.number()) == Some(*m)));
    }

    #[test]
    #[cfg(not(feature = "mutants"))]
    fn without_the_feature_nothing_is_compiled_in() {
        assert!(crate::FEATURES.is_empty());
        assert!(Mutant::ALL.iter().all(|mutant| !mutant.active()));
    }

    #[test]
    #[cfg(feature = "mutants")]
    fn with_the_feature_one_is_on_at_a_time() {
        assert_eq!(crate::FEATURES, ["mutants"]);
        choose(Mutant::of_number(3));
        let on: Vec<_> = Mutant::ALL.iter().filter(|mutant| mutant.active()).collect();
        assert_eq!(on, [&Mutant::ManifestOnlyFirst]);
        choose(None);
    }
}
