//! What one seed does: the cluster's size and times, its jobs, and which faults are switched on.
//! Each seed uses only some of the faults, for many bugs hide behind too much of everything.

use crate::rng::Rng;
use crate::trim::Trim;
use proto::v1::{ExitKind, OnDisconnect, Policy};

/// A kind of trouble.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fault {
    AgentKill,
    AgentStop,
    AgentFreeze,
    AgentDiskFails,
    KeeperKill,
    KeeperFreeze,
    KeeperDiskFull,
    NodeReboot,
    NodeLost,
    NodeRefuses,
    NodeFailsStarts,
    Cut,
    CutUp,
    CutDown,
    CutShort,
    LeaderCrash,
    LeaderFreeze,
    LeaderDeposed,
    LeaderIsolated,
    FollowerCrash,
    CommitStall,
    ApplyStall,
    WallJump,
    StallOverCut,
    LateEcho,
}

/// Every kind.
pub(crate) const FAULTS: [Fault; 25] = [
    Fault::AgentKill,
    Fault::AgentStop,
    Fault::AgentFreeze,
    Fault::AgentDiskFails,
    Fault::KeeperKill,
    Fault::KeeperFreeze,
    Fault::KeeperDiskFull,
    Fault::NodeReboot,
    Fault::NodeLost,
    Fault::NodeRefuses,
    Fault::NodeFailsStarts,
    Fault::Cut,
    Fault::CutUp,
    Fault::CutDown,
    Fault::CutShort,
    Fault::LeaderCrash,
    Fault::LeaderFreeze,
    Fault::LeaderDeposed,
    Fault::LeaderIsolated,
    Fault::FollowerCrash,
    Fault::CommitStall,
    Fault::ApplyStall,
    Fault::WallJump,
    Fault::StallOverCut,
    Fault::LateEcho,
];

/// Troubles that leases are for.
const AGAINST_LEASES: [Fault; 7] = [
    Fault::AgentKill,
    Fault::LateEcho,
    Fault::LeaderIsolated,
    Fault::Cut,
    Fault::LeaderDeposed,
    Fault::LeaderCrash,
    Fault::AgentFreeze,
];

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub controllers: usize,
    pub nodes: usize,
    pub cpus: u32,
    pub policy: Policy,
    pub beat_ms: u64,
    pub net_max_ms: u64,
    pub commit_max_ms: u64,
    pub jobs: Vec<JobPlan>,
    pub faults: Vec<Fault>,
    /// It is about leases: troubles last longer than these.
    pub leases: bool,
    /// Mean distance of two faults.
    pub fault_gap_ms: u64,
    /// Chaos, calm, chaos again; after that everything must settle.
    pub chaos_ms: [u64; 2],
    /// What is left out of all that.
    pub trim: Trim,
}

/// One job, as its submitter and its program know it.
#[derive(Clone, Debug)]
pub(crate) struct JobPlan {
    pub submit_ms: u64,
    /// `None`: it ends only if it is ended.
    pub duration_ms: Option<u64>,
    /// Raw wait status of its own end.
    pub status: u32,
    pub ignores_term: bool,
    /// How long children outlive the main process.
    pub linger_ms: u64,
    pub grace_ms: u64,
    pub cpus: u32,
    pub on_disconnect: OnDisconnect,
    /// The program does not exist.
    pub bad_exec: bool,
    pub cancel_ms: Option<u64>,
    pub suspend_ms: Option<u64>,
    pub hold: bool,
    pub priority: i32,
    /// Its own ends may cost so many further attempts.
    pub retries: u32,
    pub retry_on: Vec<ExitKind>,
    pub fence_after_ms: Option<u64>,
    pub fence_proof: bool,
    pub limit_ms: Option<u64>,
    /// The kernel ends it for memory.
    pub oom: bool,
    /// Its owner presses cancel so often.
    pub presses: u64,
    pub reprioritise: bool,
}

/// Jobs of one run at most: what matters are interleavings, not numbers.
pub(crate) const JOBS_MAX: u64 = 80;

/// What a stall over a cut takes at most, beside two beats and two ways, ms.
const STALL_MAX_MS: u64 = 6_500;

/// Nodes of a run that is about many at once.
const STORM_NODES: usize = 40;

/// What may be tried again.
const RETRY_ON: [ExitKind; 8] = [
    ExitKind::ExitCode,
    ExitKind::Signal,
    ExitKind::StartFailed,
    ExitKind::AgentDied,
    ExitKind::Lost,
    ExitKind::NodeRebooted,
    ExitKind::Vanished,
    ExitKind::UnknownStatus,
];

impl Plan {
    pub fn draw(rng: &mut Rng, trim: &Trim) -> Plan {
        let beat_ms =
            if rng.permille(300) { rng.range(2_000, 5_000) } else { 500 + rng.skewed(4_500) };
        let timeout = beat_ms * 3 + rng.below(beat_ms * 2);
        let ttl = timeout + rng.skewed(60_000);
        let policy = Policy {
            heartbeat_timeout_ms: timeout,
            transient_job_timeout_ms: ttl,
            on_disconnect: if rng.permille(250) {
                OnDisconnect::Unknown.into()
            } else {
                OnDisconnect::Exit.into()
            },
            // Short, so that what waits expires within a run.
            unknown_finish_ttl_ms: 1_000 + rng.skewed(60_000),
            fence_after_ms: timeout + rng.range(1_000, 30_000),
            ..Policy::default()
        };
        let first = rng.range(20_000, 100_000 + timeout * 3);
        let chaos_ms = [first, rng.range(5_000, timeout + ttl)];
        let jobs = rng.range(3, JOBS_MAX);
        let on = rng.range(1, 9);
        let faults = (0..on).filter_map(|_| rng.pick(&FAULTS)).collect();
        let mut plan = Plan {
            controllers: if rng.permille(500) { 1 } else { 3 },
            // Now and then very many come back at once.
            nodes: if rng.permille(10) { STORM_NODES } else { rng.range(1, 4) as usize },
            cpus: rng.range(2, 8) as u32,
            policy,
            beat_ms,
            net_max_ms: rng.skewed(150),
            commit_max_ms: rng.skewed(80),
            jobs: Vec::new(),
            faults,
            leases: false,
            fault_gap_ms: 150 + rng.skewed(6_000),
            chaos_ms,
            trim: trim.clone(),
        };
        if plan.faults.contains(&Fault::StallOverCut) && rng.permille(500) {
            plan.turn_to_stalls();
        }
        plan.jobs = (0..jobs).map(|_| plan.draw_job(rng)).collect();
        if rng.permille(120) {
            plan.turn_to_leases(rng);
        }
        if plan.faults.contains(&Fault::KeeperDiskFull) && rng.permille(500) {
            plan.turn_to_disks(rng);
        }
        plan.nodes = trim.nodes.unwrap_or(plan.nodes);
        plan.controllers = trim.controllers.unwrap_or(plan.controllers);
        plan.chaos_ms[0] = trim.calm_after.unwrap_or(plan.chaos_ms[0]);
        plan
    }

    /// A run with room for `StallOverCut`: one leader, which nobody replaces while it stands still,
    /// and agents with the patience for that.
    fn turn_to_stalls(&mut self) {
        self.controllers = 1;
        let policy = &mut self.policy;
        let most = 2 * self.beat_ms + 2 * self.net_max_ms + STALL_MAX_MS;
        let longer = most.saturating_sub(policy.heartbeat_timeout_ms);
        policy.heartbeat_timeout_ms += longer;
        policy.transient_job_timeout_ms += longer;
        policy.fence_after_ms += longer;
    }

    /// A run about full disks only: nothing makes an agent join again, which would cure what a
    /// keeper dropped, every run is ordered before the calm, and few other orders follow it.
    fn turn_to_disks(&mut self, rng: &mut Rng) {
        self.faults = vec![Fault::KeeperDiskFull];
        self.fault_gap_ms = rng.range(300, 3_000);
        self.nodes = self.nodes.max(2);
        self.cpus = 8;
        self.jobs.truncate(8);
        for job in &mut self.jobs {
            (job.cpus, job.hold) = (1, false);
            (job.cancel_ms, job.suspend_ms) = (None, None);
            job.duration_ms = job.duration_ms.or(Some(1_000));
            job.submit_ms = rng.below(self.chaos_ms[0] * 2 / 3);
        }
    }

    /// A run about leases: long attempts that are tried again when they are lost, room for the next
    /// one elsewhere, and troubles that last longer than a lease, one after another.
    fn turn_to_leases(&mut self, rng: &mut Rng) {
        let timeout = self.policy.heartbeat_timeout_ms;
        self.policy.transient_job_timeout_ms = timeout + rng.below(3_000);
        self.policy.fence_after_ms = 2 * timeout + rng.range(5_000, 20_000);
        self.nodes = self.nodes.max(2);
        self.leases = true;
        let on = rng.range(1, 3);
        self.faults = (0..on).filter_map(|_| rng.pick(&AGAINST_LEASES)).collect();
        if self.faults.contains(&Fault::LeaderIsolated) {
            self.controllers = 3;
        }
        self.fault_gap_ms = rng.range(5_000, 25_000);
        self.chaos_ms[0] = 200_000 + rng.below(200_000);
        self.jobs.truncate(12);
        for job in &mut self.jobs {
            job.submit_ms = rng.below(self.chaos_ms[0] / 2);
            job.duration_ms = Some(rng.range(20_000, 200_000));
            job.cpus = 1;
            job.on_disconnect = OnDisconnect::Unknown;
            (job.cancel_ms, job.suspend_ms, job.limit_ms) = (None, None, None);
            (job.hold, job.bad_exec, job.fence_proof) = (false, false, false);
            (job.retries, job.retry_on) = (2, vec![ExitKind::Lost]);
            job.fence_after_ms = None;
        }
    }

    fn draw_job(&self, rng: &mut Rng) -> JobPlan {
        let submit_ms = rng.below(self.chaos_ms[0] + 5_000);
        let ever = rng.permille(150);
        let duration = match rng.below(4) {
            0 => rng.below(5),
            1 => rng.below(2_000),
            2 => rng.below(15_000),
            _ => rng.below(self.policy.transient_job_timeout_ms + 10_000),
        };
        let status = match rng.below(4) {
            0 | 1 => 0,
            2 => (rng.range(1, 255) as u32) << 8,
            _ => rng.range(1, 11) as u32,
        };
        let oom = rng.permille(50);
        let status = if oom { 9 } else { status };
        let retries = if rng.permille(350) { rng.range(1, 3) as u32 } else { 0 };
        let retry_on = if rng.permille(300) {
            Vec::new()
        } else {
            (0..rng.range(1, 5)).filter_map(|_| rng.pick(&RETRY_ON)).collect()
        };
        let cancel_ms = (ever || rng.permille(200)).then(|| submit_ms + rng.skewed(30_000));
        JobPlan {
            submit_ms,
            duration_ms: (!ever).then_some(duration),
            status,
            ignores_term: rng.permille(200),
            linger_ms: if rng.permille(200) { rng.below(3_000) } else { 0 },
            grace_ms: rng.range(100, 4_000),
            cpus: rng.range(1, u64::from(self.cpus)) as u32,
            on_disconnect: match rng.below(4) {
                0 => OnDisconnect::Exit,
                1 => OnDisconnect::Unknown,
                _ => OnDisconnect::Unspecified,
            },
            bad_exec: rng.permille(60),
            cancel_ms,
            suspend_ms: rng.permille(120).then(|| submit_ms + rng.skewed(10_000)),
            hold: rng.permille(50),
            priority: rng.below(3) as i32 - 1,
            retries,
            retry_on,
            fence_after_ms: rng
                .permille(400)
                .then(|| self.policy.heartbeat_timeout_ms + rng.range(1, 20_000)),
            fence_proof: rng.permille(300),
            limit_ms: rng.permille(100).then(|| rng.range(50, 20_000)),
            oom,
            presses: if rng.permille(100) { 10 } else { rng.range(1, 3) },
            reprioritise: rng.permille(100),
        }
    }

    /// Longer than a lost task, its lease and the doubt of a new term take together.
    pub fn beyond_leases_ms(&self) -> u64 {
        let policy = &self.policy;
        3 * self.patience_ms() + 2 * policy.transient_job_timeout_ms + policy.fence_after_ms
    }

    /// Silence after which an agent gives a session up, and the controller an agent.
    pub fn patience_ms(&self) -> u64 {
        self.policy.heartbeat_timeout_ms
    }

    /// A cut of this length outlives the kernel's patience, and the last word is old by then
    /// (design 3, RDHUP); shorter ones heal as if nothing had been, ms.
    pub fn old_word_ms(&self) -> u64 {
        self.beat_ms + 2_500 + 2 * self.net_max_ms
    }

    /// How long after the last fault every agent has a judged session at the latest: it gives up a
    /// dead one, finds the leader by trying, and shows its manifest; a lost proposal costs 10 s.
    pub fn rejoin_ms(&self) -> u64 {
        self.patience_ms() + 16 * self.beat_ms + 20_000
    }

    /// How long the ledger may differ from what really runs while all is well: a start or an end on
    /// its way, a heartbeat or two until the digest shows a difference.
    pub fn lag_ms(&self) -> u64 {
        12_000 + 6 * self.beat_ms
    }

    /// How long after the last fault everything has ended at the latest, jobs one after another.
    pub fn settle_ms(&self) -> u64 {
        let work: u64 = self
            .jobs
            .iter()
            .enumerate()
            .filter(|(job, _)| self.trim.wants_job(*job))
            .map(|(_, job)| job)
            .map(|job| {
                let once = job.duration_ms.unwrap_or(0) + job.grace_ms + job.linger_ms + 5_000;
                let fence = job.fence_after_ms.unwrap_or(self.policy.fence_after_ms);
                let again = u64::from(job.retries);
                once * (1 + again) + again * (fence + 10_000)
            })
            .sum();
        2 * self.rejoin_ms()
            + self.lag_ms()
            + 2 * self.policy.transient_job_timeout_ms
            + work
            + 120_000
    }
}
