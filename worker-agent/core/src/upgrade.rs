//! An older keeper is asked to go on as this agent's program, again with back-off until it does: it
//! may be busy, or unable to.

use crate::agent::AgentCore;
use proto::v1::KeeperUpgrade;
use proto::v1::keeper_request::Kind as ToKeeper;

/// Between two requests: the first pause, doubling, and the longest.
const PAUSE_FIRST_MS: u64 = 60_000;
const PAUSE_LAST_MS: u64 = 3_600_000;

/// When an older keeper may be asked next. It outlives the keeper's connection: one that comes back
/// as old as it was is not asked at once.
#[derive(Debug, Default)]
pub(crate) struct Upgrade {
    next_ms: u64,
    asked: u32,
}

impl AgentCore {
    /// `None`: there is nobody to ask.
    pub(crate) fn upgrade_due_ms(&self) -> Option<u64> {
        let keeper = self.keeper.as_ref()?;
        let older = is_older(&keeper.welcome.version, &self.config.version);
        (older && !self.config.program.is_empty()).then_some(self.upgrade.next_ms)
    }

    pub(crate) fn ask_for_upgrade_if_due(&mut self, now_ms: u64) {
        if self.upgrade_due_ms().is_none_or(|due_ms| now_ms < due_ms) {
            return;
        }
        let pause_ms = PAUSE_FIRST_MS << self.upgrade.asked.min(10);
        self.upgrade.next_ms = now_ms + pause_ms.min(PAUSE_LAST_MS);
        self.upgrade.asked = self.upgrade.asked.saturating_add(1);
        let exe = self.config.program.clone();
        self.tell_keeper(ToKeeper::Upgrade(KeeperUpgrade { exe }));
    }
}

/// Whether one version comes before another, as their numbers say; what cannot be read is not older.
fn is_older(version: &str, than: &str) -> bool {
    match (numbers(version), numbers(than)) {
        (Some(version), Some(than)) => version < than,
        _ => false,
    }
}

/// Major, minor, patch; a pre-release comes before its release.
fn numbers(version: &str) -> Option<([u64; 3], bool)> {
    let version = version.split('+').next()?;
    let (release, before) = version.split_once('-').map_or((version, false), |(r, _)| (r, true));
    let numbers: Vec<u64> = release.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    Some((numbers.try_into().ok()?, !before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (older, newer) in [("0.9.9", "0.10.0"), ("1.0.0-rc.1", "1.0.0"), ("0.1.0+a", "0.1.1")] {
            assert!(is_older(older, newer) && !is_older(newer, older));
        }
        for (one, other) in [("0.1.0", "0.1.0"), ("", "0.1.0"), ("sim", "0.1.0"), ("0.1", "0.2.0")]
        {
            assert!(!is_older(one, other) && !is_older(other, one));
        }
    }
}
