//! Random entries, nonsense included: the invariants hold, terminal is absorbing, every replica
//! has the same bytes, and how commands are batched does not matter.

use super::image::bytes;
use super::world::{N1, N2, attempt_ref, finish_of, join, retrying, spec, start_of, submit, user};
use crate::ledger::{Entry, Job, Kind, Ledger, Outcome, StateName, What};
use proptest::prelude::*;
use proto::v1::{self, command::Kind as Command, fact, finish_fact::End};
use proto::{AttemptId, JobId, TaskId, v1::KillCause};
use std::collections::BTreeMap;

/// What a random job waits for: kinds with how far back the job is, and some tasks; and how late it begins.
type After = (Vec<(u8, u8, u8)>, Option<u16>);

/// Tasks and limit of an array.
type Pair = (u8, u8);

/// A step of a random log; what depends on the state is filled in when it is applied.
#[derive(Clone, Debug)]
enum Step {
    Submit { user: u8, request: u8, cpus: u8, hold: bool, retries: u8, array: Pair, after: After },
    Assign { job: u8, task: Option<u8>, agent: bool },
    Plan,
    Facts { agent: bool, gap: bool, facts: Vec<(u8, u8, u8)> },
    Cancel { user: u8, job: u8, tasks: (u8, u8), signal: Option<u8> },
    Edit { job: u8, tasks: (u8, u8), kind: u8, request: u8 },
    ConfirmDead { user: u8, agent: bool, request: u8 },
    Fenced { jobs: Vec<(u8, bool)> },
    Join { agent: bool, ahead: u8, journal: u8, boot: u8, lost: u8 },
    Manifest { agent: bool, at_join: bool, last: bool, items: Vec<(u8, u8, u8)> },
    Down { agent: bool, cause: u8 },
    Heal { agent: bool, boot: u8 },
    Begin { agent: bool },
    Unknown { agent: bool },
    Term { ahead: u8 },
    Tick { later_s: u16 },
    Order { weight: u8, tasks: u8, short: u8 },
    Nothing,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let triple = || (0u8..12, 0u8..4, 0u8..10);
    // Tasks and limit; mostly a plain job.
    let size = prop_oneof![2 => Just((0u8, 0u8)), 1 => (1u8..6, 0u8..3)];
    let after = (
        prop_oneof![
            2 => Just(Vec::new()),
            3 => prop::collection::vec((1u8..6, 1u8..8, 0u8..20), 1..4),
        ],
        prop::option::weighted(0.1, 0u16..600),
    );
    // Mostly the whole job, else tasks of an array.
    let tasks = || prop_oneof![1 => Just((1u8, 0u8)), 1 => (0u8..4, 0u8..5)];
    let step = prop_oneof![
        6 => (0u8..3, 0u8..30, 0u8..6, prop::bool::weighted(0.1), 0u8..4, size, after)
            .prop_map(|(user, request, cpus, hold, retries, array, after)| {
                Step::Submit { user, request, cpus, hold, retries, array, after }
            }),
        2 => (0u8..12, prop::option::of(0u8..5), any::<bool>())
            .prop_map(|(job, task, agent)| Step::Assign { job, task, agent }),
        4 => Just(Step::Plan),
        6 => (any::<bool>(), prop::bool::weighted(0.1), prop::collection::vec(triple(), 1..4))
            .prop_map(|(agent, gap, facts)| Step::Facts { agent, gap, facts }),
        2 => (0u8..3, 0u8..12, tasks(), prop::option::of(0u8..70))
            .prop_map(|(user, job, tasks, signal)| Step::Cancel { user, job, tasks, signal }),
        3 => (0u8..12, tasks(), 0u8..13, 0u8..4)
            .prop_map(|(job, tasks, kind, request)| Step::Edit { job, tasks, kind, request }),
        2 => (0u8..3, any::<bool>(), 0u8..8)
            .prop_map(|(user, agent, request)| Step::ConfirmDead { user, agent, request }),
        2 => prop::collection::vec((0u8..12, any::<bool>()), 1..4)
            .prop_map(|jobs| Step::Fenced { jobs }),
        2 => (any::<bool>(), 0u8..3, 0u8..2, prop_oneof![4 => Just(1u8), 1 => 0u8..4],
              prop_oneof![4 => Just(0u8), 1 => 0u8..4])
            .prop_map(|(agent, ahead, journal, boot, lost)| {
                Step::Join { agent, ahead, journal, boot, lost }
            }),
        4 => (any::<bool>(), any::<bool>(), prop::bool::weighted(0.8),
              prop::collection::vec(triple(), 0..5))
            .prop_map(|(agent, at_join, last, items)| Step::Manifest { agent, at_join, last, items }),
        2 => (any::<bool>(), prop_oneof![Just(1u8), 0u8..5])
            .prop_map(|(agent, cause)| Step::Down { agent, cause }),
        3 => any::<bool>().prop_map(|agent| Step::Begin { agent }),
        3 => (any::<bool>(), prop_oneof![4 => Just(1u8), 1 => 0u8..4])
            .prop_map(|(agent, boot)| Step::Heal { agent, boot }),
        1 => any::<bool>().prop_map(|agent| Step::Unknown { agent }),
        1 => (0u8..3).prop_map(|ahead| Step::Term { ahead }),
        2 => (0u16..500).prop_map(|later_s| Step::Tick { later_s }),
        1 => (1u8..4, 0u8..4, 0u8..4)
            .prop_map(|(weight, tasks, short)| Step::Order { weight, tasks, short }),
        1 => Just(Step::Nothing),
    ];
    prop::collection::vec(step, 1..60)
}

fn agent(first: bool) -> &'static str {
    if first { N1 } else { N2 }
}

fn incarnation(ledger: &Ledger, agent: &str) -> u64 {
    ledger.agent(agent).map_or(0, |agent| agent.incarnation())
}

/// A proposal without stamps; deterministic in ledger and step.
fn commands(ledger: &Ledger, step: &Step) -> (Vec<v1::Blob>, Vec<Command>) {
    let one = |command| (Vec::new(), vec![command]);
    match step {
        Step::Submit { user, request, cpus, hold, retries, array, after } => {
            let after = after_of(ledger, after);
            submit_of((*user, *request, *cpus), *hold, *retries, *array, after)
        }
        Step::Assign { job, task, agent: first } => {
            one(assign_of(ledger, *job, *task, agent(*first)))
        }
        Step::Plan => {
            let plan = crate::scheduler::plan(ledger, &ledger.agents_up(), 100);
            let assigns = plan.placements.iter().filter_map(|p| p.to_command().kind).collect();
            (Vec::new(), assigns)
        }
        Step::Facts { agent: first, gap, facts } => {
            one(facts_of(ledger, agent(*first), *gap, facts))
        }
        Step::Cancel { user: by, job, tasks, signal } => one(cancel_of(*by, *job, *tasks, *signal)),
        Step::Edit { job, tasks, kind, request } => one(edit_of(*job, *tasks, *kind, *request)),
        Step::ConfirmDead { user: by, agent: first, request } => {
            one(confirm_of(*by, agent(*first), *request))
        }
        Step::Begin { agent: first } => one(starts_of(ledger, agent(*first))),
        Step::Fenced { jobs } => one(fenced_of(ledger, jobs)),
        Step::Join { agent: first, ahead, journal, boot, lost } => {
            let id = agent(*first);
            let next = incarnation(ledger, id) + u64::from(*ahead);
            let high = ledger.agent(id).map_or(0, |agent| agent.high().0);
            let join = v1::Join {
                next_seq: high + u64::from(*lost) + 1,
                first_seq: if *lost == 0 { 0 } else { high + u64::from(*lost) },
                boot_id: if *boot == 0 { Vec::new() } else { vec![b'b', *boot] },
                ..join(id, next, ["j1", "j2"][usize::from(*journal)])
            };
            let join = offering(join, next);
            one(Command::AgentUp(v1::AgentUpCommand { join: Some(join) }))
        }
        Step::Manifest { agent: first, at_join, last, items } => {
            one(manifest_of(ledger, agent(*first), *at_join, *last, items))
        }
        Step::Heal { agent: first, boot } => (Vec::new(), heal_of(ledger, agent(*first), *boot)),
        Step::Down { agent: first, cause } => one(Command::AgentDown(v1::AgentDownCommand {
            agent_id: agent(*first).to_owned(),
            incarnation: incarnation(ledger, agent(*first)),
            cause: i32::from(*cause),
        })),
        Step::Unknown { agent: first } => one(Command::Unknown(v1::UnknownCommand {
            agent_id: agent(*first).to_owned(),
            incarnation: incarnation(ledger, agent(*first)),
            why: String::new(),
        })),
        Step::Term { ahead } => one(Command::Term(v1::TermCommand {
            leader: 1,
            term: ledger.term() + u64::from(*ahead),
        })),
        Step::Tick { .. } => one(Command::Tick(v1::TickCommand {})),
        Step::Order { weight, tasks, short } => one(order_of(*weight, *tasks, *short)),
        Step::Nothing => one(Command::Facts(v1::FactsCommand::default())),
    }
}

fn assign_of(ledger: &Ledger, job: u8, task: Option<u8>, agent: &str) -> Command {
    let id = TaskId { job: JobId(u64::from(job)), index: task.map(u32::from) };
    let known = ledger.agent(agent);
    Command::Assign(v1::AssignCommand {
        attempt: Some(attempt_ref(id, ledger.job(id).map_or(1, |job| job.attempt()))),
        agent_id: agent.to_owned(),
        incarnation: known.map_or(0, |agent| agent.incarnation()),
        journal_id: known.map(|agent| agent.journal_id().to_vec()).unwrap_or_default(),
    })
}

fn cancel_of(by: u8, job: u8, tasks: (u8, u8), signal: Option<u8>) -> Command {
    let whole = vec![u64::from(job), u64::from(job) + 1];
    Command::Cancel(v1::CancelCommand {
        by: Some(user(["mia", "tom", "root"][usize::from(by)])),
        request_id: format!("c{job}"),
        jobs: if tasks.0 > tasks.1 { whole } else { Vec::new() },
        tasks: some(job, tasks),
        signal: signal.map(u32::from),
    })
}

fn submit_of(
    (user, request, cpus): (u8, u8, u8),
    hold: bool,
    retries: u8,
    (tasks, limit): (u8, u8),
    (dependencies, begin_wall_ms): (Vec<v1::Dependency>, Option<u64>),
) -> (Vec<v1::Blob>, Vec<Command>) {
    let base = if retries < 1 { spec() } else { retrying() };
    let retries = u32::from(retries);
    let array = (tasks > 0).then(|| v1::ArraySpec {
        ranges: vec![v1::TaskRange { first: 0, last: u32::from(tasks) - 1, step: 0 }],
        limit: Some(u32::from(limit)),
        race: request % 5 == 4,
    });
    let (queue, time_limit_ms) = match request % 3 {
        0 => ("short", Some(60_000 * u64::from(request))),
        _ => ("", None),
    };
    let (cpus, queue) = (u32::from(cpus), queue.to_owned());
    let spec = v1::JobSpec {
        cpus,
        hold,
        retries,
        array,
        queue,
        time_limit_ms,
        dependencies,
        begin_wall_ms,
        gpus: [0, 1, 2, 0][usize::from(request % 4)],
        resources: named(request),
        ..base
    };
    let (blobs, command) =
        submit(&spec, ["mia", "tom", "root"][usize::from(user)], &request.to_string());
    (blobs, vec![command])
}

/// What a job asks for beside gpus: mostly something.
fn named(n: u8) -> BTreeMap<String, u64> {
    let asked = [("matlab", u64::from(n / 2 % 3)), ("scratch", u64::from(n / 3 % 3))];
    asked.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect()
}

/// A node with gpus and scratch, and now and then with fewer.
fn offering(join: v1::Join, n: u64) -> v1::Join {
    let gpus = [3, 3, 2, 1][(n % 4) as usize];
    let resources = [("scratch".to_owned(), u64::from(gpus)), ("matlab".to_owned(), 1)].into();
    let base = join.resources.clone().unwrap_or_default();
    v1::Join { resources: Some(v1::NodeResources { gpus, resources, ..base }), ..join }
}

/// Other weights, so that places are made anew, and limits of users and queues.
fn order_of(weight: u8, tasks: u8, short: u8) -> Command {
    let queue = |name: &str, priority| v1::QueuePolicy {
        name: name.to_owned(),
        priority,
        max_queue: Some(u64::from(short) * 2),
        ..v1::QueuePolicy::default()
    };
    let policy = v1::Policy {
        age_weight: Some(u32::from(weight)),
        user_max_tasks: Some(u64::from(tasks)),
        user_max_cpus: Some(u64::from(short) * 3),
        queues: vec![queue("default", i32::from(short)), queue("short", -1)],
        resources: (tasks > 0)
            .then(|| ("matlab".to_owned(), u64::from(tasks)))
            .into_iter()
            .collect(),
        ..v1::Policy::default()
    };
    Command::Configure(v1::ConfigureCommand { policy: Some(policy), ..Default::default() })
}

/// Mostly what can be waited for; some of it nonsense.
fn after_of(ledger: &Ledger, (deps, begin_s): &After) -> (Vec<v1::Dependency>, Option<u64>) {
    let next = ledger.next_job_id().0;
    let deps = deps.iter().map(|(kind, back, tasks)| {
        let job = next.saturating_sub(u64::from(*back));
        let named = *tasks < 12 && *kind != 5 && ledger.array(JobId(job)).is_some();
        let (first, last) = (u32::from(tasks % 4), u32::from(tasks % 4 + tasks / 4));
        let range = v1::TaskRange { first, last, step: 0 };
        let kind = i32::from(*kind);
        v1::Dependency { kind, job, tasks: if named { vec![range] } else { Vec::new() } }
    });
    let begin = begin_s.map(|s| ledger.wall() + u64::from(s) * 1000);
    (deps.collect(), begin)
}

fn facts_of(ledger: &Ledger, agent: &str, gap: bool, facts: &[(u8, u8, u8)]) -> Command {
    let known = ledger.agent(agent);
    let from = known.map_or(1, |agent| agent.high().0 + 1) + u64::from(gap);
    let facts: Vec<v1::Fact> = (from..)
        .zip(facts)
        .map(|(seq, (n, which, kind))| v1::Fact {
            seq,
            kind: Some(fact_of(ledger, job_of(ledger, agent, *n, *which), *which, *kind)),
        })
        .collect();
    Command::Facts(v1::FactsCommand {
        agent_id: agent.to_owned(),
        incarnation: incarnation(ledger, agent),
        facts: Some(v1::Facts {
            journal_id: known.map(|agent| agent.journal_id().to_vec()).unwrap_or_default(),
            from,
            to: from + facts.len() as u64 - 1,
            facts,
        }),
    })
}

/// Mostly what the agent holds, so that something happens; else any id, given or not.
fn job_of(ledger: &Ledger, agent: &str, n: u8, which: u8) -> TaskId {
    let left: Vec<TaskId> = ledger.leftovers_of(agent).map(|(id, _)| id.task).collect();
    if which == 0 && n.is_multiple_of(3) && !left.is_empty() {
        return left[usize::from(n) % left.len()];
    }
    let held: Vec<TaskId> =
        ledger.held_by(agent).chain(ledger.waiting_on(agent)).map(|job| job.task_id()).collect();
    let waiting: Vec<TaskId> = ledger.waiting_on(agent).map(|job| job.task_id()).collect();
    if which == 1 && !waiting.is_empty() {
        return waiting[usize::from(n) % waiting.len()];
    }
    if which == 2 || held.is_empty() {
        let job = JobId(u64::from(n));
        let index =
            ledger.array(job).map(|array| u32::from(n) % (array.numbers().len() as u32 + 1));
        return TaskId { job, index };
    }
    held[usize::from(n) % held.len()]
}

/// Mostly about the present attempt.
fn attempt_of(ledger: &Ledger, job: TaskId, which: u8) -> u32 {
    let present = ledger.job(job).map_or(1, |job| job.attempt());
    match which {
        1 => present.saturating_sub(1).max(1),
        3 => present + 1,
        _ => present,
    }
}

fn fact_of(ledger: &Ledger, job: TaskId, which: u8, kind: u8) -> fact::Kind {
    let attempt = attempt_of(ledger, job, which);
    let finish = |end| finish_of(job, attempt, end);
    let (reference, token) =
        (Some(attempt_ref(job, attempt)), Some(v1::Token { generation: 1, attempt }));
    match kind {
        0..=2 => fact::Kind::Start(start_of(job, attempt)),
        3 => fact::Kind::Finish(finish(End::WaitStatus(0))),
        4 => {
            let mut fact = finish(End::WaitStatus(9));
            fact.set_killed_for(KillCause::Cancel);
            fact.start = Some(start_of(job, attempt));
            fact::Kind::Finish(fact)
        }
        5 => fact::Kind::Finish(finish(End::UnknownStatus(true))),
        6 => fact::Kind::Finish(finish(End::StartFailure(super::world::node_failure()))),
        7 => fact::Kind::Suspended(v1::SuspendedFact { attempt: reference, token, wall_ms: 1 }),
        8 => fact::Kind::Resumed(v1::ResumedFact { attempt: reference, token, wall_ms: 1 }),
        _ => fact::Kind::Refused(v1::RefusedFact {
            attempt: Some(attempt_ref(job, attempt)),
            token: Some(v1::Token { generation: 1, attempt }),
            failure: None,
        }),
    }
}

fn manifest_of(
    ledger: &Ledger,
    agent: &str,
    at_join: bool,
    last: bool,
    items: &[(u8, u8, u8)],
) -> Command {
    let known = ledger.agent(agent);
    // Mostly a whole manifest, so that not all that is held has vanished at once.
    let held = (ledger.held_by(agent).count() + ledger.waiting_on(agent).count())
        .min(usize::from(u8::MAX)) as u8;
    let rest = (0..held).map(|n| (n, 0, n % 8)).filter(|_| items.len() > 1);
    let items = rest
        .chain(items.iter().copied())
        .filter_map(|(n, which, phase)| {
            let job = job_of(ledger, agent, n, which);
            let attempt = attempt_of(ledger, job, which);
            (job.job != JobId(0)).then(|| v1::ManifestItem {
                attempt: Some(attempt_ref(job, attempt)),
                token: Some(v1::Token { generation: 1, attempt }),
                phase: [0, 1, 2, 2, 3, 3, 4, 2][usize::from(phase % 8)],
                ..v1::ManifestItem::default()
            })
        })
        .collect();
    Command::Manifest(v1::ManifestCommand {
        agent_id: agent.to_owned(),
        incarnation: incarnation(ledger, agent),
        journal_id: known.map(|agent| agent.journal_id().to_vec()).unwrap_or_default(),
        items,
        last,
        at_join,
        last_order: u64::MAX,
        last_seq: known.map_or(0, |agent| agent.high().0),
        page: 0,
        asked: 0,
    })
}

fn fenced_of(ledger: &Ledger, jobs: &[(u8, bool)]) -> Command {
    let waiting: Vec<TaskId> = ledger.waiting().map(|job| job.task_id()).collect();
    let left: Vec<v1::AttemptRef> = ledger.leftovers().map(|(id, _)| id.to_wire()).collect();
    let attempts = jobs.iter().map(|(n, closed)| {
        if let Some(left) = left.get(usize::from(*n) % left.len().max(1)).filter(|_| *closed) {
            return *left;
        }
        let any = JobId(u64::from(*n)).into();
        let id = waiting.get(usize::from(*n) % waiting.len().max(1)).copied().unwrap_or(any);
        let present = ledger.job(id).map_or(1, |job| job.attempt());
        attempt_ref(id, present.saturating_sub(u32::from(*closed)).max(1))
    });
    Command::Fenced(v1::FencedCommand { attempts: attempts.collect() })
}

fn confirm_of(by: u8, agent: &str, request: u8) -> Command {
    Command::ConfirmDead(v1::ConfirmDeadCommand {
        by: Some(user(["mia", "root", "root"][usize::from(by)])),
        request_id: format!("d{request}"),
        agent_id: agent.to_owned(),
    })
}

/// Everything that was given to the agent starts.
fn starts_of(ledger: &Ledger, id: &str) -> Command {
    let from = ledger.agent(id).map_or(1, |agent| agent.high().0 + 1);
    let given = ledger.held_by(id).filter(|job| job.kind() == Kind::Dispatched);
    let starts = given.map(|job| fact::Kind::Start(start_of(job.task_id(), job.attempt())));
    let facts: Vec<v1::Fact> =
        (from..).zip(starts).map(|(seq, kind)| v1::Fact { seq, kind: Some(kind) }).collect();
    Command::Facts(v1::FactsCommand {
        agent_id: id.to_owned(),
        incarnation: incarnation(ledger, id),
        facts: Some(v1::Facts {
            journal_id: ledger.agent(id).map(|a| a.journal_id().to_vec()).unwrap_or_default(),
            from,
            to: from + (facts.len() as u64).max(1) - 1,
            facts,
        }),
    })
}

/// The agent comes back over its journal, with what is said to run there and nothing else.
fn heal_of(ledger: &Ledger, id: &str, boot: u8) -> Vec<Command> {
    let known = ledger.agent(id);
    let journal =
        known.map_or("j1".into(), |agent| String::from_utf8_lossy(agent.journal_id()).into_owned());
    let next = incarnation(ledger, id) + 1;
    let join = v1::Join {
        next_seq: known.map_or(0, |agent| agent.high().0) + 1,
        boot_id: if boot == 0 { Vec::new() } else { vec![b'b', boot] },
        ..join(id, next, &journal)
    };
    let join = offering(join, next);
    let items = ledger.held_by(id).filter(|job| job.started().is_some());
    let items = items.map(|job| v1::ManifestItem {
        gpus: job.gpu_ids().to_vec(),
        attempt: Some(job.attempt_id().to_wire()),
        token: job.token(),
        phase: v1::Phase::Running as i32,
        ..v1::ManifestItem::default()
    });
    let page = v1::ManifestCommand {
        agent_id: id.to_owned(),
        incarnation: next,
        journal_id: journal.into_bytes(),
        items: items.collect(),
        last: true,
        at_join: true,
        last_seq: known.map_or(0, |agent| agent.high().0),
        ..v1::ManifestCommand::default()
    };
    let up = v1::AgentUpCommand { join: Some(join) };
    vec![Command::AgentUp(up), Command::Manifest(page)]
}

/// Tasks `from` to `to` of a job; none if that is empty.
fn some(job: u8, (from, to): (u8, u8)) -> Vec<v1::TaskSet> {
    let range = v1::TaskRange { first: u32::from(from), last: u32::from(to), step: 0 };
    let set = v1::TaskSet { job: u64::from(job), ranges: vec![range] };
    if from <= to { vec![set] } else { Vec::new() }
}

fn edit_of(job: u8, tasks: (u8, u8), kind: u8, request: u8) -> Command {
    let (by, request_id) = (Some(user("root")), format!("e{kind}-{request}"));
    let jobs = if tasks.0 > tasks.1 { vec![u64::from(job)] } else { Vec::new() };
    let tasks = some(job, tasks);
    match kind {
        0 | 1 => Command::Hold(v1::HoldCommand { tasks, by, request_id, jobs, release: kind == 1 }),
        2 | 3 => {
            Command::Suspend(v1::SuspendCommand { tasks, by, request_id, jobs, resume: kind == 3 })
        }
        7 => Command::ArrayLimit(v1::ArrayLimitCommand {
            by,
            request_id,
            jobs: vec![u64::from(job)],
            limit: u32::from(request),
        }),
        8.. => Command::Set(v1::SetCommand {
            by,
            request_id,
            jobs,
            tasks,
            change: Some(change_of(kind, request)),
        }),
        _ => Command::Priority(v1::PriorityCommand {
            tasks,
            by,
            request_id,
            jobs,
            priority: i32::from(kind) * 300,
        }),
    }
}

fn change_of(kind: u8, n: u8) -> v1::set_command::Change {
    use v1::{set_command::Change, time_change::To};
    let time = |to| Change::Time(v1::TimeChange { to: Some(to) });
    match (kind, n) {
        (8, n) => Change::Name(format!("name{n}")),
        (9, n) => Change::Cpus(u32::from(n)),
        (10, n) => Change::MemBytes(u64::from(n) << 20),
        (11, 0) => time(To::None(true)),
        (11, n) => time(To::LimitMs(u64::from(n) * 1_000)),
        (_, n) => time(To::ByMs(i64::from(n) * 700 - 1_000)),
    }
}

/// Applies a log of random steps, checking after each; returns the proposals.
fn run(ledger: &mut Ledger, steps: &[Step]) -> Vec<v1::Proposal> {
    let mut ended = BTreeMap::new();
    let mut attempts = BTreeMap::new();
    let mut released = BTreeMap::new();
    let mut proposals = Vec::new();
    let configure = v1::ConfigureCommand {
        policy: Some(v1::Policy {
            max_queue: 40,
            resources: [("matlab".to_owned(), 2)].into(),
            ..v1::Policy::default()
        }),
        ..v1::ConfigureCommand::default()
    };
    let first = vec![Command::Configure(configure)];
    apply(ledger, &mut proposals, Vec::new(), first, 0);
    for agent in [true, false] {
        let up = [
            Step::Join { agent, ahead: 1, journal: 0, boot: 1, lost: 0 },
            Step::Manifest { agent, at_join: true, last: true, items: Vec::new() },
        ];
        for step in up {
            let (blobs, commands) = commands(ledger, &step);
            apply(ledger, &mut proposals, blobs, commands, 1);
        }
    }
    let submit = |request| Step::Submit {
        user: 0,
        request,
        cpus: 1,
        hold: false,
        retries: 3 * (request % 2),
        array: (request % 3, 0),
        after: (Vec::new(), None),
    };
    let begin = |agent| Step::Begin { agent };
    let runs = (100..106).map(submit).chain([Step::Plan, begin(true), begin(false)]);
    for step in runs {
        let (blobs, commands) = commands(ledger, &step);
        apply(ledger, &mut proposals, blobs, commands, 1);
    }
    for step in steps {
        let later = match step {
            Step::Tick { later_s } => u64::from(*later_s) * 1000,
            _ => 10,
        };
        let (blobs, commands) = commands(ledger, step);
        apply(ledger, &mut proposals, blobs, commands, later);
        ledger.check();
        absorbing(ledger, &mut ended);
        conserved(ledger);
        one_attempt(ledger, &mut attempts);
        started_once(ledger, &mut released);
    }
    proposals
}

fn apply(
    ledger: &mut Ledger,
    proposals: &mut Vec<v1::Proposal>,
    blobs: Vec<v1::Blob>,
    commands: Vec<Command>,
    later_ms: u64,
) {
    let proposal = v1::Proposal {
        level: 1,
        wall_ms: ledger.wall().max(1_700_000_000_000) + later_ms,
        led_ms: ledger.led() + later_ms,
        blobs,
        commands: commands.into_iter().map(|kind| v1::Command { kind: Some(kind) }).collect(),
    };
    let applied = ledger.apply(ledger.applied() + 1, &proposal);
    assert_eq!(applied.outcomes.len(), proposal.commands.len());
    for (command, outcome) in proposal.commands.iter().zip(&applied.outcomes) {
        if let (Some(Command::Assign(assign)), Outcome::Assigned) = (&command.kind, outcome) {
            not_over(ledger, assign);
        }
    }
    proposals.push(proposal);
}

/// What an assignment gives was there: of the node and of the cluster.
fn not_over(ledger: &Ledger, assign: &v1::AssignCommand) {
    let attempt = AttemptId::from_wire(assign.attempt.as_ref()).expect("it was taken");
    let job = ledger.job(attempt.task).expect("it was taken");
    let agent = ledger.agent(&assign.agent_id).expect("it was taken");
    let used = ledger.used(agent.id());
    assert!(used.cpus <= u64::from(agent.cpus()) && used.mem_bytes <= agent.mem_bytes());
    // A fact that waited for it may have ended it in the same step.
    let Some(grant) = job.state().live_grant() else { return };
    assert_eq!(job.gpu_ids().len() as u32, job.ask().gpus);
    assert!(job.gpu_ids().iter().all(|id| *id < agent.gpus() && used.gpu_ids[id] == 1));
    let Some(given) = &grant.given else { return };
    for name in given.cluster.keys() {
        assert!(ledger.used_of_cluster(name) <= ledger.offers()[name], "{name}: over");
    }
    for name in given.node.keys() {
        assert!(used.named[name] <= agent.offers(name), "{name}: over");
    }
    let all: u64 = given.node.values().chain(given.cluster.values()).sum();
    assert_eq!(all, job.ask().resources.values().sum::<u64>(), "all or nothing");
}

/// What has ended stays exactly as it ended, but for the late outcome and what became of its tree (P5).
fn absorbing(ledger: &Ledger, ended: &mut BTreeMap<TaskId, v1::Task>) {
    for job in tasks_of(ledger).iter().filter(|job| job.terminal()) {
        let killed = String::new();
        let now = v1::Task { late_outcome: None, killed, position: 0, ..job.to_wire(ledger) };
        let first = ended.entry(job.task_id()).or_insert_with(|| now.clone());
        assert_eq!(*first, now, "job {} changed after its end", job.task_id());
    }
}

/// Every task, as a copy with its number.
fn tasks_of(ledger: &Ledger) -> Vec<Job> {
    let ids = ledger.newest_first(None).flat_map(|entry| match entry {
        Entry::Job(job) => vec![job.task_id()],
        Entry::Array(array) => array.numbers().numbers().map(|n| array.task_id(n)).collect(),
    });
    ids.map(|id| ledger.numbered(id).expect("each task is there")).collect()
}

/// Attempts only grow, and none is assigned while the one before it may live (P2).
fn one_attempt(ledger: &Ledger, attempts: &mut BTreeMap<TaskId, u32>) {
    for job in tasks_of(ledger) {
        let before = attempts.insert(job.task_id(), job.attempt()).unwrap_or(1);
        assert!(before <= job.attempt(), "job {}: an attempt came back", job.id());
        let mut unproven = None;
        for cause in job.causes() {
            match &cause.what {
                What::Closed { to: Kind::Waiting, attempt, .. } => unproven = Some(*attempt),
                What::Proven { attempt, .. } if unproven == Some(*attempt) => unproven = None,
                What::Assigned { .. } => {
                    assert_eq!(unproven, None, "job {}: two attempts may live", job.id());
                }
                _ => {}
            }
        }
        if job.causes_dropped() == 0 && !job.terminal() {
            assert_eq!(unproven.is_some(), job.fence().is_some(), "job {}: its fence", job.id());
        }
    }
}

/// What waited and goes on never waits again, and starts once for each attempt (B25). What waits has
/// something open; what it waits for is there.
fn started_once(ledger: &Ledger, released: &mut BTreeMap<TaskId, bool>) {
    for job in tasks_of(ledger) {
        let waits = job.kind() == Kind::Blocked;
        let before = released.insert(job.task_id(), !waits).unwrap_or(!waits);
        assert!(!(before && waits), "job {} waits again", job.id());
        assert!(ledger.waits_of(&job).is_some() || !waits, "job {}", job.id());
        let given = job.causes().iter().filter_map(|cause| match &cause.what {
            What::Assigned { attempt, .. } => Some(*attempt),
            _ => None,
        });
        let given: Vec<u32> = given.collect();
        let mut once = given.clone();
        once.dedup();
        assert_eq!(given, once, "job {}: an attempt was assigned twice", job.id());
    }
}

/// Every id that was given is in the ledger, in exactly one state, or has been evicted.
fn conserved(ledger: &Ledger) {
    let given = ledger.next_job_id().0 - 1;
    let evicted = (1..=given).filter(|id| ledger.evicted(JobId(*id))).count() as u64;
    assert_eq!(ledger.newest_first(None).count() as u64 + evicted, given);
    assert_eq!(ledger.counts().values().sum::<u64>(), tasks_of(ledger).len() as u64);
    for array in ledger.newest_first(None) {
        let Entry::Array(array) = array else { continue };
        let given = array.records().filter(|job| job.kind() == Kind::Dispatched).count() as u64;
        let limit = array.limit().map_or(u64::MAX, u64::from);
        let lowered =
            array.head().causes().iter().any(|c| matches!(c.what, What::ArrayLimit { .. }));
        assert!(given <= limit || lowered, "array {}: more than its limit", array.id());
    }
    let live: u64 = StateName::ALL
        .iter()
        .filter(|n| !n.terminal())
        .filter_map(|n| ledger.counts().get(n).copied())
        .sum();
    assert_eq!(live, ledger.live());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_log_keeps_the_invariants_and_replays_to_the_same_bytes(steps in steps()) {
        let mut ledger = Ledger::new();
        let proposals = run(&mut ledger, &steps);
        // A replica that applies the same prefix, is restarted from its image, and goes on.
        let half = proposals.len() / 2;
        let mut replica = Ledger::new();
        let mut twin = Ledger::new();
        for (index, proposal) in (1u64..).zip(&proposals) {
            let outcomes = replica.apply(index, proposal);
            prop_assert_eq!(&outcomes, &twin.apply(index, proposal));
            if index as usize == half {
                let image = bytes(&replica.freeze());
                replica = Ledger::thaw(image.iter().cloned()).expect("its own image");
                replica.check();
                prop_assert_eq!(bytes(&replica.freeze()), image);
            }
        }
        prop_assert_eq!(bytes(&replica.freeze()), bytes(&ledger.freeze()));
        prop_assert_eq!(bytes(&twin.freeze()), bytes(&ledger.freeze()));
    }

    #[test]
    fn how_commands_are_batched_does_not_matter(steps in steps(), size in 2usize..9) {
        let mut one_by_one = Ledger::new();
        let proposals = run(&mut one_by_one, &steps);
        let singles: Vec<(v1::Proposal, v1::Command)> = proposals
            .iter()
            .flat_map(|p| p.commands.iter().map(|c| (p.clone(), c.clone())))
            .collect();
        // All with the stamps of the last, so that only the cuts differ.
        let stamp = |p: &v1::Proposal, commands, blobs| v1::Proposal {
            wall_ms: 1_700_000_000_000, led_ms: 0, commands, blobs, ..p.clone()
        };
        let (mut cut, mut whole) = (Ledger::new(), Ledger::new());
        let mut outcomes: (Vec<Outcome>, Vec<Outcome>) = (Vec::new(), Vec::new());
        for (index, (p, command)) in (1u64..).zip(&singles) {
            let proposal = stamp(p, vec![command.clone()], p.blobs.clone());
            outcomes.0.extend(cut.apply(index, &proposal).outcomes);
        }
        for (index, group) in (1u64..).zip(singles.chunks(size)) {
            let commands = group.iter().map(|(_, c)| c.clone()).collect();
            let blobs = group.iter().flat_map(|(p, _)| p.blobs.clone()).collect();
            outcomes.1.extend(whole.apply(index, &stamp(&group[0].0, commands, blobs)).outcomes);
        }
        prop_assert_eq!(&outcomes.0, &outcomes.1);
        let seen = |ledger: &Ledger| -> Vec<v1::Task> {
            let tasks = tasks_of(ledger).into_iter().map(|job| job.to_wire(ledger));
            tasks.map(|task| v1::Task { position: 0, ..task }).collect()
        };
        prop_assert_eq!(seen(&cut), seen(&whole));
    }

    #[test]
    fn any_bytes_that_decode_are_applied_without_a_panic(
        entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)
    ) {
        use prost::Message as _;
        let mut ledger = Ledger::new();
        for (index, bytes) in (1u64..).zip(&entries) {
            if let Ok(proposal) = v1::Proposal::decode(bytes.as_slice()) {
                let level = v1::Proposal { level: 1, ..proposal };
                ledger.apply(index, &level);
                ledger.check();
            }
        }
    }
}

/// Guards the tests above: a generator that never gets anywhere would prove nothing.
#[test]
fn random_logs_reach_every_state() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = std::collections::BTreeSet::new();
    let mut proofs = std::collections::BTreeSet::new();
    let mut waited = std::collections::BTreeSet::new();
    let (mut freed, mut given) = (std::collections::BTreeSet::new(), 0);
    for _ in 0..60 {
        let steps = steps().new_tree(&mut runner).expect("a log").current();
        for cut in (0..steps.len()).step_by(6) {
            let mut ledger = Ledger::new();
            run(&mut ledger, &steps[..=cut]);
            seen.extend(ledger.jobs_newest_first(None).map(|job| job.kind()));
            let causes = ledger.jobs_newest_first(None).flat_map(|job| job.causes());
            let waits = |what: &What| match what {
                What::DependencyMet { .. } => Some("met"),
                What::BeginReached => Some("begun"),
                What::Ended { kind: v1::ExitKind::DependencyFailed, .. } => Some("failed"),
                _ => None,
            };
            let causes: Vec<_> = causes.collect();
            given += ledger.jobs_newest_first(None).filter(|job| !job.gpu_ids().is_empty()).count();
            freed.extend(causes.iter().filter_map(|cause| match cause.what {
                What::Freed { proof, .. } => Some(proof),
                _ => None,
            }));
            waited.extend(causes.iter().filter_map(|cause| waits(&cause.what)));
            proofs.extend(causes.iter().filter_map(|cause| match cause.what {
                What::Proven { proof, .. } => Some(proof),
                _ => None,
            }));
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), Kind::ALL);
    assert_eq!(waited.len(), 3, "dependencies end in {waited:?}");
    assert!(given > 100, "gpus are given {given} times");
    // The end of a lease is rare: a retry that waits has to be cancelled first.
    assert!(freed.len() >= 4, "what is left over is freed by {freed:?}");
    // A finish of a closed attempt is rare; the tests of retries have it.
    assert!(proofs.len() >= 3, "fences are opened by {proofs:?}");
}
