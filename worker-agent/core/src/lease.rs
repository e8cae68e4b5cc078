//! Leases: the leader's echo of a heartbeat's h is handed to the keeper, whose fences move by it
//! (design 3, "Fences and retries"). An echo counts in the session that asked for it, never in the
//! next one, and only for an h that was sent up in that session.

use crate::agent::AgentCore;
use crate::event::SessionNo;
use crate::join::Link;
use proto::v1;
use proto::v1::keeper_request::Kind as ToKeeper;

/// Which clock readings of the keeper (CLOCK_BOOTTIME, ms) a session sent up and got back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Echoes {
    /// The highest h of a heartbeat.
    sent_ms: u64,
    /// The highest h that came back; `None`: no run may be fenced yet.
    echoed_ms: Option<u64>,
}

/// What an echo is worth.
#[derive(PartialEq, Eq, Debug)]
pub enum Echo {
    /// Higher than all before.
    Renews,
    /// Not higher, or an answer that confirms nothing (h is 0).
    Nothing,
    /// No heartbeat of this session said that.
    Invented,
}

impl Echoes {
    /// A heartbeat with this h went up.
    pub fn sent(&mut self, h_ms: u64) {
        self.sent_ms = self.sent_ms.max(h_ms);
    }

    /// The leader's answer holds this h.
    pub fn came_back(&mut self, h_ms: u64) -> Echo {
        if h_ms > self.sent_ms {
            return Echo::Invented;
        }
        if h_ms == 0 || self.echoed_ms.is_some_and(|last| h_ms <= last) {
            return Echo::Nothing;
        }
        self.echoed_ms = Some(h_ms);
        Echo::Renews
    }

    /// The highest h that came back in this session.
    pub fn last_ms(&self) -> Option<u64> {
        self.echoed_ms
    }
}

impl AgentCore {
    /// The leader answered a heartbeat.
    pub(crate) fn heartbeat_answered(&mut self, no: SessionNo, answer: v1::HeartbeatAnswer) {
        self.backoff.reset();
        let Link::Joined(session) = &mut self.link else { return };
        let h_ms = answer.h_ms;
        match session.echoes.came_back(h_ms) {
            Echo::Renews => self.tell_keeper(ToKeeper::Renew(v1::KeeperRenew { h_ms })),
            Echo::Nothing => {}
            Echo::Invented => {
                self.refuse(no, format!("heartbeat answer with h {h_ms}, which was not sent"));
            }
        }
    }

    /// What a leased run of this session begins with; `None`: the keeper refuses it.
    pub(crate) fn last_echo_ms(&self) -> Option<u64> {
        match &self.link {
            Link::Joined(session) => session.echoes.last_ms(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_counts_once_only_forward_and_only_if_it_was_sent() {
        let mut echoes = Echoes::default();
        assert_eq!(echoes.came_back(1), Echo::Invented);
        echoes.sent(10);
        echoes.sent(7);
        assert_eq!((echoes.came_back(0), echoes.last_ms()), (Echo::Nothing, None));
        assert_eq!((echoes.came_back(8), echoes.last_ms()), (Echo::Renews, Some(8)));
        assert_eq!(echoes.came_back(8), Echo::Nothing);
        assert_eq!((echoes.came_back(5), echoes.last_ms()), (Echo::Nothing, Some(8)));
        assert_eq!((echoes.came_back(11), echoes.last_ms()), (Echo::Invented, Some(8)));
        assert_eq!((echoes.came_back(10), echoes.last_ms()), (Echo::Renews, Some(10)));
    }
}
