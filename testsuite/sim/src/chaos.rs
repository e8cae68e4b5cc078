//! Trouble, one after another, and its end.

use crate::plan::Fault;
use crate::rng::Rng;
use crate::world::{Event, World};
use docket_core::ledger::Session;
use worker_agent_core::Event as Heard;

impl World {
    /// One fault, and when the next one comes.
    pub(crate) fn chaos(&mut self) {
        if self.truth.calm_ms.is_some() {
            return;
        }
        // Each fault has its own chance, so that leaving one out leaves the others as they are.
        let number = self.strikes;
        self.strikes += 1;
        let mut dice = Rng::new(self.seed).split(number);
        let gap = dice.range(1, 2 * self.plan.fault_gap_ms);
        self.at(gap, Event::Chaos);
        let fault = dice.pick(&self.plan.faults);
        let quiet = self.now < self.scene_until_ms;
        if let Some(fault) = fault.filter(|_| !quiet && self.plan.trim.wants_strike(number)) {
            self.trace.note(self.now, || format!("fault {number}: {fault:?}"));
            std::mem::swap(&mut self.rng, &mut dice);
            self.strike(fault);
            std::mem::swap(&mut self.rng, &mut dice);
        }
    }

    fn strike(&mut self, fault: Fault) {
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        let c = self.rng.below(self.controllers.len() as u64) as usize;
        let patience = self.plan.patience_ms();
        match fault {
            Fault::AgentKill => {
                self.agent_dies(n, false);
                let most = if self.rng.permille(500) { 500 } else { 2 * patience };
                let delay = self.rng.skewed(most);
                self.at(delay, Event::AgentStart { node: n });
            }
            Fault::AgentStop => self.agent_step_or_wait(n, Heard::Stop),
            Fault::AgentFreeze => self.freeze_agent(n, 2 * patience),
            Fault::AgentDiskFails => self.nodes[n].save_fails = self.rng.range(1, 3) as u32,
            Fault::KeeperKill => {
                self.keeper_crash(n);
                let delay = self.rng.skewed(5_000);
                self.at(delay, Event::KeeperStart { node: n });
            }
            Fault::KeeperFreeze => {
                self.nodes[n].keeper.frozen = self.nodes[n].keeper.up;
                let delay = self.rng.skewed(2 * patience);
                self.at(delay, Event::KeeperThaw { node: n });
            }
            Fault::KeeperDiskFull => {
                let at_once = self.rng.permille(250);
                let keeper = &mut self.nodes[n].keeper;
                (keeper.full, keeper.fills) = (keeper.full || at_once, !at_once);
                let delay = self.rng.skewed(4 * patience);
                self.at(delay, Event::KeeperRoom { node: n });
            }
            Fault::NodeReboot => self.reboot(n, false),
            Fault::NodeLost if self.rng.permille(500) => self.nodes[n].falls_at_start = true,
            Fault::NodeLost => self.reboot(n, true),
            Fault::NodeRefuses => self.nodes[n].keeper.refuses = self.rng.range(1, 5) as u32,
            Fault::NodeFailsStarts => self.nodes[n].keeper.fails = self.rng.range(1, 5) as u32,
            Fault::Cut | Fault::CutUp | Fault::CutDown | Fault::CutShort => {
                self.cut_links(fault, n, c)
            }
            Fault::WallJump => self.jump(n, c),
            Fault::StallOverCut => self.stall_over_cut(n),
            Fault::LateEcho => self.at(0, Event::LateEcho { node: n, step: 0 }),
            Fault::CommitStall => {
                let stall = self.rng.skewed(12_000);
                self.log.busy_until_ms = self.log.busy_until_ms.max(self.now + stall);
                self.truth.stalled_ms = self.truth.stalled_ms.max(self.log.busy_until_ms);
            }
            _ => self.strike_controller(fault, c),
        }
    }

    fn strike_controller(&mut self, fault: Fault, any: usize) {
        let leader = self.log.leader;
        let c = if fault == Fault::FollowerCrash { any } else { leader.unwrap_or(any) };
        match fault {
            Fault::LeaderCrash | Fault::FollowerCrash => {
                self.controller_crash(c);
                let delay = self.rng.skewed(20_000);
                self.at(delay, Event::ControllerStart { controller: c });
            }
            Fault::LeaderFreeze => {
                let long = if self.rng.permille(500) { 3_000 } else { 2 * self.plan.patience_ms() };
                let for_ms = self.rng.skewed(long);
                self.freeze_controller(c);
                self.at(for_ms, Event::ControllerThaw { controller: c });
                // The others do not wait for ever.
                if for_ms > 2_000 && self.controllers.len() > 1 {
                    self.raft_loses(c);
                }
            }
            Fault::LeaderDeposed => self.raft_loses(c),
            Fault::LeaderIsolated => self.isolate(c),
            Fault::ApplyStall => {
                self.controllers[c].apply_delay_ms = self.rng.skewed(1_500);
                self.truth.stalled_ms = self.truth.stalled_ms.max(self.now + 8_000);
                self.at(5_000, Event::ApplyEases { controller: c });
            }
            _ => {}
        }
    }

    /// The leader loses the other controllers. Often the cut goes through the nodes too: one of them
    /// reaches this leader only, the others the rest only.
    fn isolate(&mut self, c: usize) {
        self.isolated.insert(c);
        self.raft_loses(c);
        // Now and then longer than what it must not renew.
        let (plan, policy) = (&self.plan, &self.plan.policy);
        let long = plan.patience_ms() + policy.transient_job_timeout_ms + 2 * policy.fence_after_ms;
        let most = if self.rng.permille(300) { long } else { 20_000 };
        let (delay, leases) = (self.rng.skewed(most), self.plan.leases);
        let delay = if leases { self.plan.beyond_leases_ms() } else { delay };
        self.at(delay, Event::Rejoined { controller: c });
        if self.controllers.len() == 1 || !(leases || self.rng.permille(300)) {
            return;
        }
        let with_it: Vec<usize> =
            self.conns.values().filter(|conn| conn.serves(c)).map(|conn| conn.node).collect();
        let Some(kept) = self.rng.pick(&with_it) else { return };
        for n in 0..self.nodes.len() {
            for other in (0..self.controllers.len()).filter(|other| (*other == c) != (n == kept)) {
                self.cut(n, other, true, true, delay);
            }
        }
        if leases {
            self.scene_until_ms = self.now + delay;
        }
    }

    /// The only leader stands still while a node's network goes and comes: what the node said
    /// before, and a reset, wait for it together.
    fn stall_over_cut(&mut self, n: usize) {
        let begins = self.plan.beat_ms + self.rng.below(1_000);
        let lasts = self.plan.old_word_ms() + self.rng.range(1, 1_000);
        // Longer, and the agent itself gives the session up.
        let short = begins + lasts + 1_500 < self.plan.patience_ms();
        if self.controllers.len() > 1 || self.controllers[0].frozen || !short {
            return;
        }
        self.scene_until_ms = self.now + begins + lasts + 2_500;
        self.freeze_controller(0);
        self.at(begins, Event::LinkCut { node: n, controller: 0, for_ms: lasts });
        let thaws = begins + lasts + self.rng.below(1_500);
        self.at(thaws, Event::ControllerThaw { controller: 0 });
    }

    /// Answers are held back, then nothing goes up any more, then the old answers arrive: what is
    /// counted from their receipt is counted wrong.
    pub(crate) fn late_echo(&mut self, n: usize, step: u8) {
        if self.truth.calm_ms.is_some() {
            return;
        }
        let plan = &self.plan;
        let first = plan.beat_ms + 2 * plan.net_max_ms;
        let policy = &plan.policy;
        let lasts = policy.fence_after_ms + policy.transient_job_timeout_ms;
        let lasts = lasts + plan.patience_ms() + 20_000;
        let most = plan.patience_ms().saturating_sub(2 * first);
        match step {
            0 if most <= 3_000 => {}
            0 | 1 => {
                for c in 0..self.controllers.len() {
                    self.cut(n, c, step == 1, true, lasts);
                }
                let next = if step == 0 { first } else { self.rng.range(3_000, most) };
                self.scene_until_ms = self.scene_until_ms.max(self.now + next + 1_000);
                self.at(next, Event::LateEcho { node: n, step: step + 1 });
            }
            _ => (0..self.controllers.len()).for_each(|c| self.down_heals(n, c)),
        }
    }

    fn freeze_controller(&mut self, c: usize) {
        let controller = &mut self.controllers[c];
        if controller.up && !controller.frozen {
            (controller.frozen, controller.frozen_ms) = (true, self.now);
        }
    }

    fn cut_links(&mut self, fault: Fault, n: usize, c: usize) {
        let most = match fault {
            Fault::CutShort => 2_000,
            _ => self.plan.patience_ms() + self.plan.policy.transient_job_timeout_ms,
        };
        // Often just long enough for a kernel to give up, and too short for anybody else.
        let (old, patience) = (self.plan.old_word_ms(), self.plan.patience_ms());
        let for_ms = if fault != Fault::CutShort && old < patience && self.rng.permille(400) {
            self.rng.range(old + 1, patience)
        } else {
            self.rng.skewed(most)
        };
        let beyond = self.plan.leases && fault == Fault::Cut;
        let for_ms = if beyond { self.plan.beyond_leases_ms() } else { for_ms };
        let (up, down) = (fault != Fault::CutDown, fault != Fault::CutUp);
        // From all of them, as a node that lost its network; or from one.
        let all = self.rng.permille(600) || beyond;
        for other in 0..self.controllers.len() {
            if all || other == c {
                self.cut(n, other, up, down, for_ms);
            }
        }
    }

    fn jump(&mut self, n: usize, c: usize) {
        let hours = self.rng.range(0, 60) as i64 - 30;
        let skew = hours * 3_600_000 + self.rng.below(60_000) as i64;
        if self.rng.permille(500) {
            self.controllers[c].wall_skew_ms = skew;
        } else {
            self.nodes[n].wall_skew_ms = skew;
        }
    }

    fn agent_step_or_wait(&mut self, n: usize, event: Heard) {
        if !self.nodes[n].frozen {
            self.agent_step(n, event);
        }
    }

    fn freeze_agent(&mut self, n: usize, most: u64) {
        if self.nodes[n].agent_up() {
            self.nodes[n].frozen = true;
            let (delay, life) = (self.rng.skewed(most), self.nodes[n].life);
            self.at(delay, Event::AgentThaw { node: n, life });
        }
    }

    /// A process has just begun, and perhaps nobody has heard of it yet.
    pub(crate) fn falls_soon(&mut self, n: usize) {
        if std::mem::take(&mut self.nodes[n].falls_at_start) {
            let delay = self.rng.skewed(20 + self.plan.net_max_ms);
            self.at(delay, Event::NodeFalls { node: n });
        }
    }

    pub(crate) fn node_falls(&mut self, n: usize) {
        if self.truth.calm_ms.is_none() {
            self.reboot(n, true);
        }
    }

    /// The machine goes down with all that runs on it; perhaps its disk is another one afterwards.
    fn reboot(&mut self, n: usize, lost: bool) {
        if !self.nodes[n].booted {
            return;
        }
        self.agent_vanishes(n);
        self.agent_gone(n);
        self.keeper_crash(n);
        self.nodes[n].booted = false;
        let now = self.now;
        let dying =
            self.truth.processes.iter_mut().filter(|process| process.node == n && process.lives());
        for process in dying {
            process.ended.get_or_insert((now, 9));
            process.empty_ms = Some(now);
            process.rebooted = true;
        }
        if lost {
            let keeps_agent = self.rng.permille(500);
            let node = &mut self.nodes[n];
            node.lose_disk(keeps_agent, n, &mut self.rng);
        }
        let delay = self.rng.range(2_000, 40_000);
        self.at(delay, Event::NodeBoot { node: n });
    }

    pub(crate) fn node_boot(&mut self, n: usize) {
        if self.nodes[n].booted {
            return;
        }
        self.nodes[n].booted = true;
        self.nodes[n].boot += 1;
        self.trace.note(self.now, || format!("node {n} boots"));
        let (first, second) = (self.rng.skewed(1_000), self.rng.skewed(1_000));
        self.at(first, Event::KeeperStart { node: n });
        self.at(second, Event::AgentStart { node: n });
    }

    /// All faults off. From here on the promised bounds hold.
    pub(crate) fn calm(&mut self) {
        self.trace.note(self.now, || "calm".to_owned());
        self.truth.calm_ms = Some(self.now);
        (0..self.controllers.len()).for_each(|c| self.rejoined(c));
        self.log.busy_until_ms = self.log.busy_until_ms.min(self.now + 200);
        for c in 0..self.controllers.len() {
            self.controllers[c].apply_delay_ms = 0;
            self.controller_start(c);
            self.controller_thaw(c);
        }
        for n in 0..self.nodes.len() {
            for c in 0..self.controllers.len() {
                let serial = self.links[n][c].serial;
                self.link_heals(n, c, serial);
            }
            let node = &mut self.nodes[n];
            (node.save_fails, node.keeper.refuses, node.keeper.fails) = (0, 0, 0);
            node.falls_at_start = false;
            self.node_boot(n);
            let life = self.nodes[n].life;
            self.agent_thaw(n, life);
            self.keeper_thaw(n);
            self.keeper_start(n);
            self.keeper_room(n);
            self.agent_start(n);
        }
        if self.log.leader.is_none() {
            self.at(100, Event::Elect);
        }
        self.resume_rest();
        // After the ledger had its time to show what really runs.
        let seen = self.plan.rejoin_ms() + self.plan.lag_ms() + 6_000;
        self.at(seen, Event::Probe);
    }

    /// A kill in perfect weather: it must show within a second.
    pub(crate) fn probe(&mut self) {
        // One that an earlier calm had planned comes too early in this one.
        let settled = self.plan.rejoin_ms() + self.plan.lag_ms();
        if self.truth.calm_ms.is_some_and(|calm| self.now < calm + settled) {
            return;
        }
        if self.truth.calm_ms.is_some() {
            self.confirm_lost();
        }
        let Some(reign) = self.truth.reign.clone().filter(|_| self.truth.calm_ms.is_some()) else {
            return;
        };
        let ledger = &self.controllers[reign.controller].ledger;
        let busy = (0..self.nodes.len()).find_map(|n| {
            let agent = ledger.agent(&self.nodes[n].saved.agent_id)?;
            let up = agent.session() == Session::Up
                && agent.process_id() == self.nodes[n].process_id
                && self.nodes[n].agent_up();
            let runs = ledger.held_by(agent.id()).any(|job| job.kind().held_by());
            (up && runs).then(|| (n, agent.id().to_string(), agent.incarnation()))
        });
        let Some((n, agent_id, incarnation)) = busy else { return };
        self.trace.note(self.now, || format!("probe: agent {n} is killed"));
        self.truth.probe = Some((agent_id, incarnation, self.now));
        self.agent_dies(n, false);
        self.at(4_000, Event::AgentStart { node: n });
    }
}
