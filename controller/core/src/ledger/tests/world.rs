//! A test world: a ledger, a log that grows by one, clocks that are turned by hand. Every apply
//! is followed by a full `check()`.

use crate::ledger::{Applied, Job, Kind, Ledger, Outcome, State};
use prost::Message as _;
use proto::v1::{self, Phase, command::Kind as Command, fact, finish_fact::End};
use proto::{AttemptId, JobId, TaskId};
use std::collections::BTreeMap;

/// The agent of most tests.
pub(crate) const N1: &str = "agent-1";
pub(crate) const N2: &str = "agent-2";

pub(crate) struct World {
    pub ledger: Ledger,
    pub index: u64,
    pub wall_ms: u64,
    pub led_ms: u64,
    /// What was applied.
    pub log: Vec<v1::Proposal>,
    /// Boot id that the nodes join with.
    pub boot: &'static str,
    /// Next seq of each agent's journal.
    seqs: BTreeMap<String, u64>,
    requests: u64,
}

impl World {
    pub fn new() -> World {
        World {
            ledger: Ledger::new(),
            index: 0,
            wall_ms: 1_700_000_000_000,
            led_ms: 0,
            log: Vec::new(),
            boot: "b1",
            seqs: BTreeMap::new(),
            requests: 0,
        }
    }

    /// A world with one node of 8 cpus that is up.
    pub fn with_node() -> World {
        let mut world = World::new();
        world.node_up(N1, 1, "j1");
        world
    }

    pub fn pass(&mut self, ms: u64) {
        self.wall_ms += ms;
        self.led_ms += ms;
    }

    pub fn apply_all(&mut self, blobs: Vec<v1::Blob>, commands: Vec<Command>) -> Applied {
        self.index += 1;
        let proposal = v1::Proposal {
            level: proto::LEVEL,
            wall_ms: self.wall_ms,
            led_ms: self.led_ms,
            blobs,
            commands: commands.into_iter().map(|kind| v1::Command { kind: Some(kind) }).collect(),
        };
        let applied = self.ledger.apply(self.index, &proposal);
        self.ledger.check();
        assert_eq!(applied.outcomes.len(), proposal.commands.len());
        self.log.push(proposal);
        applied
    }

    pub fn apply(&mut self, command: Command) -> Outcome {
        self.apply_all(Vec::new(), vec![command]).outcomes.remove(0)
    }

    // Submits.

    pub fn next_request(&mut self) -> String {
        self.requests += 1;
        format!("request-{}", self.requests)
    }

    pub fn submit_with(&mut self, spec: v1::JobSpec, by: &str, request: &str) -> Outcome {
        let (blobs, command) = submit(&spec, by, request);
        self.apply_all(blobs, vec![command]).outcomes.remove(0)
    }

    pub fn submit_spec(&mut self, spec: v1::JobSpec) -> JobId {
        let request = self.next_request();
        job_of(&self.submit_with(spec, "mia", &request))
    }

    pub fn submit(&mut self) -> JobId {
        self.submit_spec(spec())
    }

    // Nodes.

    pub fn join(&mut self, agent: &str, incarnation: u64, journal: &str) -> Outcome {
        let next_seq = match self.ledger.agent(agent) {
            Some(known) if **known.journal_id() == *journal.as_bytes() => *self.seq(agent),
            _ => {
                self.seqs.insert(agent.to_owned(), 1);
                1
            }
        };
        let boot_id = self.boot.as_bytes().to_vec();
        let join = v1::Join { next_seq, boot_id, ..join(agent, incarnation, journal) };
        self.apply(Command::AgentUp(v1::AgentUpCommand { join: Some(join) }))
    }

    pub fn node_up(&mut self, agent: &str, incarnation: u64, journal: &str) {
        assert_eq!(self.join(agent, incarnation, journal), Outcome::AgentUp);
        let judged = self.at_join(agent, Vec::new());
        assert!(matches!(judged, Outcome::Manifest(_)), "{judged:?}");
    }

    pub fn page(&self, agent: &str, items: Vec<v1::ManifestItem>) -> v1::ManifestCommand {
        let known = self.ledger.agent(agent).expect("the agent has joined");
        v1::ManifestCommand {
            agent_id: agent.to_owned(),
            incarnation: known.incarnation(),
            journal_id: known.journal_id().to_vec(),
            items,
            last: true,
            at_join: true,
            last_order: 0,
            last_seq: known.high().0,
            page: 0,
            asked: 0,
        }
    }

    pub fn at_join(&mut self, agent: &str, items: Vec<v1::ManifestItem>) -> Outcome {
        let page = self.page(agent, items);
        self.apply(Command::Manifest(page))
    }

    pub fn item(&self, job: JobId, phase: Phase) -> v1::ManifestItem {
        let job = self.ledger.job(job).expect("the job is there");
        v1::ManifestItem {
            attempt: Some(job.attempt_id().to_wire()),
            token: Some(v1::Token { generation: 1, attempt: job.attempt() }),
            phase: phase as i32,
            pid: 77,
            pid_start_ticks: 7,
            start_wall_ms: 70,
            gpus: job.gpu_ids().to_vec(),
        }
    }

    pub fn down(&mut self, agent: &str, incarnation: u64, cause: v1::DownCause) -> Outcome {
        let mut down = v1::AgentDownCommand {
            agent_id: agent.to_owned(),
            incarnation,
            ..v1::AgentDownCommand::default()
        };
        down.set_cause(cause);
        self.apply(Command::AgentDown(down))
    }

    pub fn term(&mut self, term: u64) -> Outcome {
        self.apply(Command::Term(v1::TermCommand { leader: 1, term }))
    }

    pub fn tick(&mut self) -> (u32, bool) {
        match self.apply(Command::Tick(v1::TickCommand {})) {
            Outcome::Ticked { settled, more } => (settled, more),
            _ => (u32::MAX, true),
        }
    }

    // Tasks.

    pub fn assign_to(&mut self, job: JobId, agent: &str) -> Outcome {
        let known = self.ledger.agent(agent).expect("the agent has joined");
        let assign = v1::AssignCommand {
            attempt: Some(self.job(job).attempt_id().to_wire()),
            agent_id: agent.to_owned(),
            incarnation: known.incarnation(),
            journal_id: known.journal_id().to_vec(),
        };
        self.apply(Command::Assign(assign))
    }

    pub fn dispatched(&mut self) -> JobId {
        let job = self.submit();
        assert_eq!(self.assign_to(job, N1), Outcome::Assigned);
        job
    }

    pub fn running(&mut self) -> JobId {
        let job = self.dispatched();
        self.start(job);
        assert_eq!(self.kind(job), Kind::Running);
        job
    }

    pub fn suspended(&mut self) -> JobId {
        let job = self.running();
        let mut page = self.page(N1, vec![self.item(job, Phase::Suspended)]);
        page.at_join = false;
        self.apply(Command::Manifest(page));
        assert_eq!(self.kind(job), Kind::Suspended);
        job
    }

    /// Runs, and is tried again after any end, five times.
    pub fn retrying(&mut self) -> JobId {
        let job = self.submit_spec(retrying());
        assert_eq!(self.assign_to(job, N1), Outcome::Assigned);
        self.start(job);
        job
    }

    /// Attempt 1 of it is closed as `agent-died` and not proven dead.
    pub fn waiting(&mut self) -> JobId {
        let job = self.retrying();
        let session = self.ledger.agent(N1).map_or(0, |agent| agent.incarnation());
        self.down(N1, session, v1::DownCause::Rdhup);
        assert_eq!(self.kind(job), Kind::Waiting);
        job
    }

    pub fn stop_fact(&self, job: JobId, stopped: bool) -> fact::Kind {
        let attempt = self.job(job).attempt();
        let token = Some(v1::Token { generation: 1, attempt });
        let attempt = Some(attempt_ref(job, attempt));
        match stopped {
            true => fact::Kind::Suspended(v1::SuspendedFact { attempt, token, wall_ms: 1 }),
            false => fact::Kind::Resumed(v1::ResumedFact { attempt, token, wall_ms: 1 }),
        }
    }

    /// A finish of the attempt before the present one.
    pub fn finish_closed(&mut self, agent: &str, job: JobId, end: End) -> Outcome {
        let fact = finish_of(job, self.job(job).attempt() - 1, end);
        self.facts(agent, vec![fact::Kind::Finish(fact)])
    }

    pub fn confirm_dead(&mut self, by: &str, request: &str, agent: &str) -> Outcome {
        self.apply(Command::ConfirmDead(v1::ConfirmDeadCommand {
            by: Some(user(by)),
            request_id: request.to_owned(),
            agent_id: agent.to_owned(),
        }))
    }

    pub fn fenced(&mut self, job: JobId, attempt: u32) -> Outcome {
        let attempts = vec![attempt_ref(job, attempt)];
        self.apply(Command::Fenced(v1::FencedCommand { attempts }))
    }

    pub fn hold(&mut self, job: JobId, release: bool, request: &str) -> Outcome {
        let (by, request_id) = (Some(user("mia")), request.to_owned());
        self.apply(Command::Hold(v1::HoldCommand {
            tasks: Vec::new(),
            by,
            request_id,
            jobs: vec![job.0],
            release,
        }))
    }

    pub fn suspend(&mut self, job: JobId, resume: bool, request: &str) -> Outcome {
        let (by, request_id, jobs) = (Some(user("mia")), request.to_owned(), vec![job.0]);
        self.apply(Command::Suspend(v1::SuspendCommand {
            tasks: Vec::new(),
            by,
            request_id,
            jobs,
            resume,
        }))
    }

    pub fn prioritise(&mut self, job: JobId, priority: i32, request: &str) -> Outcome {
        let (by, request_id, jobs) = (Some(user("mia")), request.to_owned(), vec![job.0]);
        self.apply(Command::Priority(v1::PriorityCommand {
            tasks: Vec::new(),
            by,
            request_id,
            jobs,
            priority,
        }))
    }

    pub fn job(&self, id: JobId) -> &Job {
        self.ledger.job(id).expect("the job is there")
    }

    pub fn kind(&self, id: JobId) -> Kind {
        self.job(id).kind()
    }

    pub fn reason(&self, id: JobId) -> Option<v1::ExitKind> {
        Some(self.job(id).state().ended()?.reason.kind())
    }

    pub fn task(&self, id: JobId) -> v1::Task {
        self.job(id).to_wire(&self.ledger)
    }

    pub fn since_led(&self, id: JobId) -> Option<u64> {
        match self.job(id).state() {
            State::Unknown(unknown) => Some(unknown.since_led_ms),
            _ => None,
        }
    }

    // Facts.

    pub fn seq(&mut self, agent: &str) -> &mut u64 {
        self.seqs.entry(agent.to_owned()).or_insert(1)
    }

    pub fn facts(&mut self, agent: &str, facts: Vec<fact::Kind>) -> Outcome {
        let from = *self.seq(agent);
        let to = from + facts.len() as u64 - 1;
        *self.seq(agent) = to + 1;
        self.facts_at(agent, from, facts)
    }

    pub fn facts_at(&mut self, agent: &str, from: u64, facts: Vec<fact::Kind>) -> Outcome {
        let known = self.ledger.agent(agent).expect("the agent has joined");
        let command = v1::FactsCommand {
            agent_id: agent.to_owned(),
            incarnation: known.incarnation(),
            facts: Some(v1::Facts {
                journal_id: known.journal_id().to_vec(),
                from,
                to: from + facts.len() as u64 - 1,
                facts: (from..)
                    .zip(facts)
                    .map(|(seq, kind)| v1::Fact { seq, kind: Some(kind) })
                    .collect(),
            }),
        };
        self.apply(Command::Facts(command))
    }

    pub fn start_fact(&self, job: JobId) -> fact::Kind {
        fact::Kind::Start(start_of(job, self.job(job).attempt()))
    }

    pub fn finish_fact(&self, job: JobId, end: End) -> v1::FinishFact {
        finish_of(job, self.job(job).attempt(), end)
    }

    pub fn start(&mut self, job: JobId) -> Outcome {
        let fact = self.start_fact(job);
        self.facts(N1, vec![fact])
    }

    pub fn finish(&mut self, job: JobId, end: End) -> Outcome {
        let fact = self.finish_fact(job, end);
        self.facts(N1, vec![fact::Kind::Finish(fact)])
    }

    pub fn refuse(&mut self, job: JobId) -> Outcome {
        self.refuse_with(job, node_failure())
    }

    pub fn refuse_with(&mut self, job: JobId, failure: v1::StartFailure) -> Outcome {
        let attempt = self.job(job).attempt();
        let fact = v1::RefusedFact {
            attempt: Some(attempt_ref(job, attempt)),
            token: Some(v1::Token { generation: 1, attempt }),
            failure: Some(failure),
        };
        self.facts(N1, vec![fact::Kind::Refused(fact)])
    }

    pub fn cancel_by(&mut self, by: v1::Requester, jobs: &[JobId]) -> Outcome {
        let request_id = self.next_request();
        self.apply(Command::Cancel(v1::CancelCommand {
            tasks: Vec::new(),
            by: Some(by),
            request_id,
            jobs: jobs.iter().map(|job| job.0).collect(),
            signal: None,
        }))
    }

    pub fn cancel(&mut self, job: JobId) -> Outcome {
        self.cancel_by(user("mia"), &[job])
    }
}

pub(crate) fn user(name: &str) -> v1::Requester {
    let uid = name.bytes().map(u32::from).sum();
    v1::Requester { user: name.to_owned(), uid, admin: name == "root" }
}

pub(crate) fn spec() -> v1::JobSpec {
    v1::JobSpec {
        name: "prep".to_owned(),
        argv: vec![b"/bin/prep".to_vec()],
        cpus: 1,
        ..v1::JobSpec::default()
    }
}

/// A dependency on a whole job.
pub(crate) fn after(kind: v1::DependencyKind, job: JobId) -> v1::Dependency {
    v1::Dependency { kind: kind as i32, job: job.0, tasks: Vec::new() }
}

/// Tried again after any end, five times.
pub(crate) fn retrying() -> v1::JobSpec {
    use v1::ExitKind::*;
    let kinds = [ExitCode, Signal, StartFailed, AgentDied, Lost, Vanished, NodeRebooted];
    let retry_on = kinds.iter().map(|kind| *kind as i32).collect();
    v1::JobSpec { retries: 5, retry_on, ..spec() }
}

/// Stands for BLAKE3, which the core never computes: distinct for what the tests use.
pub(crate) fn fake_hash(data: &[u8]) -> Vec<u8> {
    let mut hash = [0xcbf2_9ce4_8422_2325u64, 1, 2, 3];
    for (i, byte) in data.iter().enumerate() {
        let lane = &mut hash[i % 4];
        *lane = (*lane ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
        hash[0] = hash[0].wrapping_add(hash[(i + 1) % 4]).wrapping_mul(0x0100_0000_01b3);
    }
    hash.iter().flat_map(|lane| lane.to_le_bytes()).collect()
}

pub(crate) fn blob(data: Vec<u8>) -> v1::Blob {
    v1::Blob { hash: fake_hash(&data), data }
}

pub(crate) fn submit(spec: &v1::JobSpec, by: &str, request: &str) -> (Vec<v1::Blob>, Command) {
    let spec = blob(spec.encode_to_vec());
    let env = blob(v1::EnvBlob { vars: vec![b"PATH=/bin".to_vec()] }.encode_to_vec());
    let command = v1::SubmitCommand {
        by: Some(user(by)),
        request_id: request.to_owned(),
        user_key: false,
        spec_hash: spec.hash.clone(),
        env_hash: env.hash.clone(),
        stdin_hash: None,
    };
    (vec![spec, env], Command::Submit(command))
}

pub(crate) fn job_of(outcome: &Outcome) -> JobId {
    let job = match outcome {
        Outcome::Submitted { job, .. } => Some(*job),
        _ => None,
    };
    job.expect("the submit is taken")
}

pub(crate) fn join(agent: &str, incarnation: u64, journal: &str) -> v1::Join {
    v1::Join {
        agent_id: agent.to_owned(),
        name: agent.replace("agent-", "n"),
        incarnation,
        journal_id: journal.as_bytes().to_vec(),
        next_seq: 1,
        boot_id: b"b1".to_vec(),
        resources: Some(v1::NodeResources {
            cpus: 8,
            mem_bytes: 8 << 30,
            ..v1::NodeResources::default()
        }),
        ..v1::Join::default()
    }
}

pub(crate) fn attempt_ref(job: impl Into<TaskId>, attempt: u32) -> v1::AttemptRef {
    AttemptId { task: job.into(), attempt }.to_wire()
}

pub(crate) fn start_of(job: impl Into<TaskId>, attempt: u32) -> v1::StartFact {
    v1::StartFact {
        attempt: Some(attempt_ref(job, attempt)),
        token: Some(v1::Token { generation: 1, attempt }),
        pid: 4711,
        pid_start_ticks: 9,
        start_wall_ms: 1_700_000_000_500,
        stdout_path: b"/home/mia/out".to_vec(),
        ..v1::StartFact::default()
    }
}

pub(crate) fn finish_of(job: impl Into<TaskId>, attempt: u32, end: End) -> v1::FinishFact {
    v1::FinishFact {
        attempt: Some(attempt_ref(job, attempt)),
        token: Some(v1::Token { generation: 1, attempt }),
        end: Some(end),
        finish_wall_ms: 1_700_000_001_000,
        stderr_tail: b"last words".to_vec(),
        ..v1::FinishFact::default()
    }
}

pub(crate) fn node_failure() -> v1::StartFailure {
    v1::StartFailure {
        step: "cgroup".to_owned(),
        errno: 28,
        message: "No space left on device".to_owned(),
        node_fault: true,
        ..v1::StartFailure::default()
    }
}

/// The wait status of an exit code.
pub(crate) fn code(code: u32) -> End {
    End::WaitStatus(code << 8)
}
