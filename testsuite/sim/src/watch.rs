//! What can be seen of one session from outside, to judge when its leader asks for a manifest.

use crate::invariants::Happening;
use crate::world::World;
use proto::v1::{AgentMessage, LeaderMessage, agent_message, leader_message};

/// One session as its messages show it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    /// Highest order id that went down.
    newest_order: u64,
    /// It went down after the last question, so the leader waits for it.
    awaited: bool,
    /// Highest fact that came up.
    newest_fact: u64,
    /// Heartbeats in a row, up to now, that the leader may not have been able to compare.
    blind: u32,
    /// The present message is a heartbeat that no leader can compare.
    behind: bool,
    asked: bool,
}

impl Watch {
    pub fn sent(&mut self, message: &LeaderMessage) {
        use leader_message::Kind;
        let order = match &message.kind {
            Some(Kind::Run(order)) => order.order_id,
            Some(Kind::Kill(order)) => order.order_id,
            Some(Kind::Suspend(order)) => order.order_id,
            Some(Kind::Resume(order)) => order.order_id,
            Some(Kind::Limit(order)) => order.order_id,
            Some(Kind::SendManifest(_)) => {
                (self.asked, self.awaited) = (true, false);
                return;
            }
            _ => return,
        };
        if order > self.newest_order {
            (self.newest_order, self.awaited) = (order, true);
        }
    }
}

impl World {
    /// Before the leader hears it.
    pub(crate) fn watch_beat(&mut self, id: u64, message: &AgentMessage) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        (conn.watch.behind, conn.watch.asked) = (false, false);
        match &message.kind {
            Some(agent_message::Kind::Facts(facts)) => {
                conn.watch.newest_fact = conn.watch.newest_fact.max(facts.to);
            }
            Some(agent_message::Kind::Heartbeat(beat)) if beat.keeper_answers => {
                let ledger = &self.controllers[conn.controller].ledger;
                let high = ledger.agent(&conn.agent_id).map_or(0, |agent| agent.high().0);
                let watch = &mut conn.watch;
                let no_order = watch.awaited && beat.last_order < watch.newest_order;
                watch.behind = beat.last_seq > high || no_order;
                let sure = beat.last_seq == high
                    && watch.newest_fact <= high
                    && watch.newest_order > 0
                    && watch.newest_order == beat.last_order;
                watch.blind = if sure { 0 } else { watch.blind + 1 };
            }
            _ => {}
        }
    }

    /// After it did.
    pub(crate) fn watch_answer(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (n, watch) = (conn.node, &mut conn.watch);
        if !std::mem::take(&mut watch.asked) {
            return;
        }
        let (behind, blind) = (watch.behind, std::mem::take(&mut watch.blind));
        self.tell(&Happening::Asked { node: n, behind, blind });
    }
}
