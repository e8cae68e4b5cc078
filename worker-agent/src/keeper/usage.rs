//! What an attempt used, and whether the kernel killed it for memory: the counts of its cgroup where
//! it has one, else only what wait(2) told of the processes that were waited for.

use proto::v1::finish_fact::End;
use proto::v1::{Rusage, SlotCounts};

use super::cgroup::Slot;
use super::task::Task;

/// The raw wait status of a process that died of SIGKILL.
pub(super) const SIGKILLED: u32 = libc::SIGKILL as u32;

impl Task {
    /// Whether the kernel killed the main process for memory: it died of SIGKILL, and its cgroup
    /// counted such a kill. A kill by somebody counts nothing there, and a kill of another process of
    /// the tree leaves the main one to end by itself.
    pub(super) fn is_out_of_memory(&self, end: &End) -> bool {
        matches!(end, End::WaitStatus(status) if status & 0x7f == SIGKILLED) && self.oom_kills() > 0
    }

    fn oom_kills(&self) -> u64 {
        let Some((before, slot)) = self.counted() else { return 0 };
        slot.counts().oom_kills.saturating_sub(before.oom_kills)
    }

    /// Its slot, and what that had counted before; an older keeper did not note that.
    fn counted(&self) -> Option<(SlotCounts, &Slot)> {
        self.accepted.slot_before.zip(self.slot.as_deref())
    }

    /// All that is known, once the tree is empty or given up; `waited`: of the main process.
    pub(super) fn usage(&self, waited: Option<Rusage>) -> Option<Rusage> {
        let Some((before, slot)) = self.counted() else { return waited };
        Some(with_counts(waited.unwrap_or_default(), &before, &slot.counts(), slot.peak_bytes()))
    }
}

fn with_counts(
    waited: Rusage,
    before: &SlotCounts,
    after: &SlotCounts,
    peak_bytes: Option<u64>,
) -> Rusage {
    let oom_kills = after.oom_kills.saturating_sub(before.oom_kills);
    // Where one of the counts is not known, the limit is taken to be the cause, as ever.
    let hit = before.limit_hits.zip(after.limit_hits).is_none_or(|(before, after)| after > before);
    let since = |after: Option<u64>, before: Option<u64>| Some(after?.saturating_sub(before?));
    let times = since(after.user_us, before.user_us).zip(since(after.system_us, before.system_us));
    let (user_us, system_us) = times.unwrap_or((waited.user_us, waited.system_us));
    Rusage {
        user_us,
        system_us,
        whole_tree: times.is_some(),
        peak_bytes,
        oom_kills: u32::try_from(oom_kills).unwrap_or(u32::MAX),
        oom_of_node: oom_kills > 0 && !hit,
        ..waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITED: Rusage = Rusage {
        user_us: 10,
        system_us: 20,
        max_rss_bytes: 30,
        whole_tree: false,
        peak_bytes: None,
        oom_kills: 0,
        oom_of_node: false,
    };

    #[test]
    fn the_counts_of_earlier_attempts_are_left_out() {
        let times = |user, system| SlotCounts {
            user_us: Some(user),
            system_us: Some(system),
            ..SlotCounts::default()
        };
        let before = SlotCounts { oom_kills: 2, ..times(100, 200) };
        let after = SlotCounts { oom_kills: 3, ..times(150, 260) };
        let used = with_counts(WAITED, &before, &after, Some(99));
        let expected = Rusage {
            user_us: 50,
            system_us: 60,
            whole_tree: true,
            peak_bytes: Some(99),
            oom_kills: 1,
            ..WAITED
        };
        assert_eq!(used, expected);
    }

    #[test]
    fn a_kill_without_a_limit_that_was_reached_is_the_nodes() {
        let counts =
            |oom_kills, limit_hits| SlotCounts { oom_kills, limit_hits, ..SlotCounts::default() };
        for (what, before, after, of_node) in [
            ("its own limit", counts(0, Some(0)), counts(1, Some(2)), false),
            ("no limit of its own", counts(0, Some(0)), counts(1, Some(0)), true),
            ("one that an earlier attempt reached", counts(1, Some(4)), counts(2, Some(4)), true),
            ("reached, and nobody was killed", counts(1, Some(1)), counts(1, Some(3)), false),
            ("nothing at all", counts(1, Some(1)), counts(1, Some(1)), false),
            ("noted by an older keeper", counts(0, None), counts(1, Some(0)), false),
            ("a kernel that does not count", counts(0, None), counts(1, None), false),
        ] {
            let used = with_counts(WAITED, &before, &after, None);
            assert_eq!(used.oom_of_node, of_node, "{what}");
            assert_eq!(u64::from(used.oom_kills), after.oom_kills - before.oom_kills, "{what}");
        }
    }

    #[test]
    fn without_times_of_the_tree_those_that_were_waited_for_stand_and_say_so() {
        let none = SlotCounts::default();
        assert_eq!(with_counts(WAITED, &none, &none, None), WAITED);
        // Half of it is nothing: a cgroup that was removed by hand.
        let before = SlotCounts { user_us: Some(1), system_us: Some(1), ..none };
        assert_eq!(with_counts(WAITED, &before, &none, None), WAITED);
    }
}
