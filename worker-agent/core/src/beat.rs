//! Heartbeats: on a fixed schedule, whatever else is sent.

use crate::agent::AgentCore;
use crate::join::Link;
use proto::v1;
use proto::v1::agent_message::Kind as Up;

impl AgentCore {
    pub(crate) fn beat_if_due(&mut self, now_ms: u64) {
        let interval_ms = self.config.heartbeat_interval_ms.max(1);
        let Link::Joined(session) = &mut self.link else { return };
        if now_ms < session.next_beat_ms {
            return;
        }
        // Missed slots are skipped, not made up for: one beat now, the next on the old grid.
        let missed = (now_ms - session.next_beat_ms) / interval_ms;
        session.next_beat_ms += (missed + 1) * interval_ms;
        let no = session.no;
        let beat = self.heartbeat(now_ms);
        if let Link::Joined(session) = &mut self.link {
            session.echoes.sent(beat.h_ms);
        }
        self.tell_leader(no, Up::Heartbeat(beat));
    }

    /// What the keeper last vouched for; without a young answer it vouches for nothing.
    pub(crate) fn heartbeat(&self, now_ms: u64) -> v1::Heartbeat {
        let load_permille = self.load_permille;
        let out = self.out_of_place.why();
        let takes_no_runs = !out.is_empty();
        // What keeps every job from starting is told before anything else.
        let told = |problem: &str| if takes_no_runs { out } else { problem }.to_owned();
        let answer = self.keeper.as_ref().and_then(|keeper| keeper.pong.as_ref());
        let Some((pong, asked_ms)) = answer else {
            return v1::Heartbeat {
                load_permille,
                problem: told(&self.keeper_trouble),
                takes_no_runs,
                ..v1::Heartbeat::default()
            };
        };
        let age_ms = now_ms.saturating_sub(*asked_ms);
        let keeper_answers = age_ms <= self.config.heartbeat_interval_ms;
        let problem = match keeper_answers {
            true if pong.problem.is_empty() => self.keeper_trouble.clone(),
            true => pong.problem.clone(),
            false => format!("the keeper has not answered for {age_ms} ms"),
        };
        v1::Heartbeat {
            h_ms: pong.boottime_ms,
            digest: pong.digest,
            last_seq: pong.last_seq,
            last_order: pong.last_order,
            keeper_answers,
            disk_full: pong.disk_full,
            load_permille,
            problem: told(&problem),
            takes_no_runs,
        }
    }
}
