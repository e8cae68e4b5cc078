//! Why a job is in its state, in words: what it waits for, who has not been heard, how it ended.

use crate::ledger::{
    Agent, Array, DownWhy, ExitReason, Fence, Grant, Job, Ledger, POINT, Session, State, Unknown,
    What, points,
};
use crate::scheduler::{self, NodeVerdict, Outlook, Rank, Reach, Refusal, Start, Why};
use crate::{held, words};
use proto::{TaskId, v1};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs that an explanation names where it waits for their ends.
const AFTER_TOLD: usize = 5;

/// What the leader sees of the agents right now: the only part of an explanation that is not in
/// the ledger.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sight {
    /// The time of the question, UTC ms.
    pub now_wall_ms: u64,
    /// Agents by id; absent: no word in this term.
    pub agents: BTreeMap<String, Word>,
}

/// The last word of an agent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Word {
    /// It may get orders now.
    pub reachable: bool,
    /// How long ago its last message came, in ms.
    pub silent_for_ms: u64,
    /// Why it takes no jobs now, in its own words.
    pub refuses: Option<String>,
}

impl Sight {
    /// Which agents may get orders, and the words of those that take none.
    pub fn reach(&self) -> Reach {
        let (mut reachable, mut refusing) = (BTreeSet::new(), BTreeMap::new());
        for (id, word) in &self.agents {
            match &word.refuses {
                _ if word.reachable => drop(reachable.insert(id.clone())),
                Some(why) => drop(refusing.insert(id.clone(), why.clone())),
                None => {}
            }
        }
        Reach { reachable, refusing }
    }

    /// The led time of the question: it goes on while the log is quiet.
    fn led(&self, ledger: &Ledger) -> u64 {
        ledger.led().saturating_add(self.now_wall_ms.saturating_sub(ledger.wall()))
    }

    fn silence(&self, agent_id: &str) -> Option<u64> {
        self.agents.get(agent_id).map(|word| word.silent_for_ms)
    }
}

/// Explains a job, with the last words of its output if whoever asks may read that; `None` if the ledger
/// does not have it.
pub fn explain(
    ledger: &Ledger,
    sight: &Sight,
    id: impl Into<TaskId>,
    output: bool,
) -> Option<v1::ExplainAnswer> {
    let id = id.into();
    if let Some(array) = ledger.array(id.job).filter(|_| id.index.is_none()) {
        return Some(whole_array(ledger, sight, array, output));
    }
    let job = &ledger.numbered(id)?;
    let reach = sight.reach();
    let outlook = Outlook::new(ledger, &reach, sight.led(ledger));
    let task = job.to_wire_seen(ledger, &outlook);
    let mut answer = v1::ExplainAnswer { task: Some(task), ..v1::ExplainAnswer::default() };
    match job.state() {
        State::Queued => queued(ledger, sight, job, &outlook, &mut answer),
        State::Held => held(ledger, job, &mut answer),
        State::Blocked { held } => blocked(ledger, job, *held, &mut answer),
        State::Waiting(fence) => waiting(ledger, job, fence, &mut answer),
        State::Dispatched(grant) => dispatched(ledger, sight, job, grant, &mut answer),
        State::Running(_) | State::Suspended(_) => running(ledger, sight, job, &mut answer),
        State::Unknown(unknown) => silent(ledger, sight, job, unknown, &mut answer),
        State::Done(_) | State::Exit(_) => ended(ledger, job, output, &mut answer),
    }
    answer.lines.extend(intents(ledger, job));
    Some(answer)
}

/// An array as a whole: how far it is, and why its first task that waits does.
fn whole_array(ledger: &Ledger, sight: &Sight, array: &Array, output: bool) -> v1::ExplainAnswer {
    let task = array.to_wire(ledger);
    let mut answer = v1::ExplainAnswer {
        headline: format!("Array {} is {}: {}.", array.id(), task.state, task.message),
        task: Some(task),
        ..v1::ExplainAnswer::default()
    };
    if let Some(limit) = array.limit() {
        answer.lines.push(format!("At most {limit} of its tasks are on nodes at once."));
    }
    let shared = array.shared().filter(|(_, job)| !job.terminal());
    let waits = shared.filter_map(|(members, _)| members.first()).min();
    if let Some(waits) = waits.and_then(|n| explain(ledger, sight, array.task_id(n), output)) {
        answer.lines.push(waits.headline);
        answer.nodes = waits.nodes;
    }
    answer
}

/// What was asked for and its node must still carry out.
fn intents(ledger: &Ledger, job: &Job) -> Vec<String> {
    let mut lines = Vec::new();
    if job.terminal() {
        return lines;
    }
    if let (Some(stop), Some(intent)) = (job.suspend_requested(), job.suspend()) {
        let node = job.grant().map(|grant| node_name(ledger, grant)).unwrap_or_default();
        let (verb, done) = match stop {
            true => ("suspend", "stops when"),
            false => ("resume", "goes on when"),
        };
        let by = &intent.by.name;
        let by = words::user(by);
        lines.push(format!("{by} asked to {verb} it; it {done} {node} has been told."));
    }
    if let Some(cancel) = job.cancel() {
        let when = words::time_of_day(cancel.wall_ms);
        lines.push(format!(
            "{} asked to cancel it at {when}; it ends when its node has killed it.",
            words::user(&cancel.by.name)
        ));
    }
    if job.state().live_grant().is_some() && job.priority() != job.spec().priority {
        lines.push(format!(
            "Its priority was set to {}: that counts if another attempt is queued.",
            job.priority()
        ));
    }
    lines
}

fn queued(
    ledger: &Ledger,
    sight: &Sight,
    job: &Job,
    outlook: &Outlook<'_>,
    answer: &mut v1::ExplainAnswer,
) {
    let (id, led_ms) = (job.task_id(), sight.led(ledger));
    let Some(why) = outlook.why(id) else { return };
    answer.headline = format!("Job {id} is PEND: {}.", why.summary);
    answer.nodes = why.nodes.iter().map(|node| node_line(ledger, sight, node)).collect();
    if let Some(rank) = Rank::of(ledger, id, led_ms) {
        (answer.place, answer.queued) = (rank.place, rank.of);
        answer.lines.extend(standing(ledger, job, &rank, led_ms));
    }
    if job.node_faults() > 0 {
        answer.lines.push(format!(
            "It is at attempt {}: {} could not be started, which was its node's fault.",
            job.attempt(),
            job.node_faults()
        ));
    }
    if job.retried() > 0 {
        answer.lines.push(format!(
            "It is at attempt {}: {} of {} retries used.",
            job.attempt(),
            job.retried(),
            job.retries()
        ));
    }
    let start = outlook.start(id);
    answer.lines.extend(prospects(job, &why, start.as_ref()));
    answer
        .lines
        .extend(why.cluster.iter().flat_map(|missing| held::of_cluster(ledger, id, missing)));
    answer.start_wall_ms = start.and_then(|start| start.kept.at_wall_ms);
}

/// Its place, the parts of its number, and who is right before it.
fn standing(ledger: &Ledger, job: &Job, rank: &Rank, led_ms: u64) -> Vec<String> {
    let Rank { place, of, number, ahead } = rank;
    let waited = words::duration(led_ms.saturating_sub(job.eligible_led_ms()));
    let share = match number.share {
        0 => String::new(),
        share => {
            let (held, all) = (ledger.bound_by_user(job.by().number).cpus, ledger.cpus());
            let user = words::user(&job.by().name);
            format!(" - {} ({user} has {held} of {all} cpus)", points(share))
        }
    };
    let (total, priority, age) =
        (points(number.total()), points(number.priority), points(number.age));
    let mut lines = vec![format!(
        "Place {place} of {of} in the queue. Its number is {total}: priority {priority} + {age} (waited \
         {waited}){share}."
    )];
    let before = ahead.and_then(|ahead| Some((ahead, ledger.job(ahead.task)?)));
    if let Some((ahead, other)) = before {
        let by = match ahead.more {
            0 => "submitted before it".to_owned(),
            more if more < POINT / 100 => "less than 0.01 more".to_owned(),
            more => format!("{} more", points(more)),
        };
        let user = words::user(&other.by().name);
        lines.push(format!("Right before it: {} of {user}, {by}.", ahead.task));
    }
    lines
}

/// What would have to happen for it to start.
fn prospects(job: &Job, why: &Why, start: Option<&Start>) -> Option<String> {
    if !why.nodes.is_empty()
        && why.nodes.iter().all(|n| n.refusal.as_ref().is_some_and(|r| r.never()))
    {
        let (id, instead) = (job.task_id(), instead(why));
        return Some(format!(
            "No node that has joined can ever run it. It starts if one joins that can; else: docket \
             cancel {id}, and ask for {instead}."
        ));
    }
    if why.starts || why.limit.is_some() || why.cluster.is_some() {
        return None;
    }
    let find = |wanted: fn(&Refusal) -> bool| {
        why.nodes.iter().find(|node| node.refusal.as_ref().is_some_and(wanted))
    };
    if let Some(start) = start.filter(|start| !start.kept.after.is_empty()) {
        return Some(when(start));
    }
    let shorter =
        |refusal: &Refusal| matches!(refusal, Refusal::KeptFor { at_wall_ms: Some(_), .. });
    if let Some(node) = find(shorter) {
        let id = job.task_id();
        return Some(format!(
            "It could go before that on {} with a time limit that ends it in time: docket set {id} --time \
             DURATION",
            node.name
        ));
    }
    if let Some(node) = find(|refusal| matches!(refusal, Refusal::TakesNone { .. })) {
        return Some(format!("It waits until {} takes jobs again.", node.name));
    }
    let node = find(|refusal| matches!(refusal, Refusal::Unreachable { .. }))?;
    Some(format!("It waits until {} is heard again.", node.name))
}

/// By when it starts, and whose ends that takes.
pub(crate) fn when(start: &Start) -> String {
    let Start { name, kept, reserved, .. } = start;
    let after: Vec<String> = kept.after.iter().take(AFTER_TOLD).map(TaskId::to_string).collect();
    let more = kept.after.len().saturating_sub(AFTER_TOLD);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let after = format!("{}{more}", after.join(", "));
    let (end, their) = if kept.after.len() == 1 { ("ends", "its") } else { ("end", "their") };
    match (kept.at_wall_ms.map(words::time_of_day), reserved) {
        (Some(at), true) => format!(
            "{name} is kept for it: it starts there by {at}, when {after} {end} by {their} time limits."
        ),
        (None, true) => format!(
            "{name} is kept for it until enough of these have ended; without time limits nobody knows when: \
             {after}."
        ),
        (Some(at), false) => format!(
            "It could start on {name} by {at}, when {after} {end} by {their} time limits, if none before it \
             takes that."
        ),
        (None, false) => format!("It could start when jobs of {name} end: {after}."),
    }
}

/// What a job that no node can run would have to ask for.
fn instead(why: &Why) -> &'static str {
    let refusals = || why.nodes.iter().filter_map(|node| node.refusal.as_ref());
    if refusals().any(|refusal| matches!(refusal, Refusal::TooSmall { .. })) {
        "less"
    } else if refusals().any(|refusal| matches!(refusal, Refusal::Label { .. })) {
        "a label that a node has"
    } else {
        "another node"
    }
}

pub(crate) fn node_line(ledger: &Ledger, sight: &Sight, node: &NodeVerdict) -> v1::ExplainNode {
    let agent = ledger.agent(&node.agent_id);
    let cpus = agent.map_or(0, |agent| agent.cpus());
    let never = node.never();
    let has = match never {
        true => format!("{cpus} cpus"),
        false => format!("{cpus} cpus, {} free", node.free.cpus),
    };
    let mut why = node.words().unwrap_or_else(|| "would take it".to_owned());
    if let (Some(Refusal::Unreachable { .. }), Some(silence)) =
        (&node.refusal, sight.silence(&node.agent_id))
    {
        why = format!("{why}; last word {} ago", words::duration(silence));
    }
    if never {
        why = format!("{why}: can never run it");
    }
    v1::ExplainNode { node: node.name.clone(), has, why, never }
}

fn held(ledger: &Ledger, job: &Job, answer: &mut v1::ExplainAnswer) {
    let id = job.task_id();
    answer.headline = format!("Job {id} is PEND: it is held.");
    if job.may_have_run() {
        answer.lines.push(
            "The log has lost entries since it was submitted, so it may have run already: look \
             before you release it."
                .to_owned(),
        );
    }
    let has_its_id = |agent: &&Agent| scheduler::id_taken(agent, id.job).is_some();
    if let Some(agent) = ledger.agents().find(has_its_id) {
        answer.lines.push(format!(
            "Another job that has its id still runs on {}, which the log forgot: docket nodes --strays. \
             This one can start there when that has ended.",
            agent.name()
        ));
    }
    answer.lines.push(format!("It starts after: docket release {id}"));
    let queue = ledger.pending_count();
    answer.lines.push(format!("{queue} other jobs wait in the queue."));
}

/// Open dependencies that an explanation lists.
const OPEN_LISTED_MAX: usize = 100;

/// A job that waits for others, or for its time: each of them, and how it stands.
fn blocked(ledger: &Ledger, job: &Job, held: bool, answer: &mut v1::ExplainAnswer) {
    let id = job.task_id();
    let message = answer.task.as_ref().map(|task| task.message.clone()).unwrap_or_default();
    answer.headline = format!("Job {id} is PEND: it {message}.");
    let Some(waits) = ledger.waits_of(job) else { return };
    let deps = waits.open().filter_map(|index| job.dependencies().get(index as usize));
    for dep in deps.take(OPEN_LISTED_MAX) {
        let (kind, named) = (words::dependency_kind(dep.kind()), words::dependency(dep));
        let own = job.task_id().index.filter(|_| dep.kind() == v1::DependencyKind::AfterEach);
        let (named, standing) = match own {
            None => (named, ledger.standing(dep)),
            Some(n) => {
                let tasks = vec![v1::TaskRange { first: n, last: n, step: 1 }];
                let one = v1::Dependency { tasks, ..dep.clone() };
                (words::dependency(&one), ledger.standing(&one))
            }
        };
        answer.lines.push(format!("{kind} {named}: {named} is {standing}."));
    }
    if let Some(more) = waits.open().count().checked_sub(OPEN_LISTED_MAX + 1) {
        answer.lines.push(format!("And {} more.", more + 1));
    }
    if let Some(begin) = waits.begin_wall_ms() {
        answer.lines.push(format!("It does not begin before {}.", words::date_and_time(begin)));
    }
    let then = match held {
        true => format!("held, until: docket release {id}"),
        false => "queued".to_owned(),
    };
    answer.lines.push(format!("When all of that is met it is {then}."));
}

/// A retry whose closed attempt may still live: which proofs open the way, and until when a lease
/// may hold it.
fn waiting(ledger: &Ledger, job: &Job, fence: &Fence, answer: &mut v1::ExplainAnswer) {
    let (id, node, attempt) = (job.task_id(), node_name(ledger, &fence.grant), fence.attempt);
    answer.headline =
        format!("Job {id} is PEND: it waits for proof that attempt {attempt} on {node} is dead.");
    answer.lines.push(format!(
        "Attempt {attempt} was closed as {} at {}; it may still run there.",
        words::kind_name(fence.kind),
        words::time_of_day(fence.since_wall_ms)
    ));
    answer.lines.push(format!(
        "Proof is: {node} comes back without it, tells its end, or was booted anew; or an admin \
         vouches for it: docket nodes confirm-dead {node}"
    ));
    answer.lines.push(match ledger.fence_over_led(job) {
        Some(over) => {
            let away = match fence.kind {
                v1::ExitKind::AgentDied => format!("the agent of {node} does not come back"),
                _ => format!("{node} stays cut off"),
            };
            format!(
                "If {away}, its lease is over at {} at the latest: {node} has ended it then.",
                at(ledger, over)
            )
        }
        None => "No lease ends it: it waits for proof, however long that takes.".to_owned(),
    });
    let then = if fence.held { "held" } else { "queued" };
    answer.lines.push(format!(
        "Then attempt {} is {then} ({} of {} retries used).",
        job.attempt(),
        job.retried(),
        job.retries()
    ));
}

/// The time of day at which led time reaches this.
fn at(ledger: &Ledger, led_ms: u64) -> String {
    let left = led_ms.saturating_sub(ledger.led());
    words::time_of_day(ledger.wall().saturating_add(left))
}

fn dispatched(
    ledger: &Ledger,
    sight: &Sight,
    job: &Job,
    grant: &Grant,
    answer: &mut v1::ExplainAnswer,
) {
    let node = node_name(ledger, grant);
    answer.headline = format!(
        "Job {} is PEND: it was given to {node}, which has not told its start yet.",
        job.task_id()
    );
    let waited = words::duration(sight.now_wall_ms.saturating_sub(grant.wall_ms));
    answer.lines.push(format!("Given {waited} ago, attempt {}.", job.attempt()));
    answer.lines.extend(last_word(sight, grant, &node));
}

fn running(ledger: &Ledger, sight: &Sight, job: &Job, answer: &mut v1::ExplainAnswer) {
    let (Some(grant), Some(started)) = (job.grant(), job.started()) else { return };
    let (id, state, node) = (job.task_id(), job.state_name(), node_name(ledger, grant));
    answer.headline = match job.state() {
        State::Suspended(_) => {
            format!("Job {id} is {state}: it was stopped on request, on {node}.")
        }
        _ => format!("Job {id} is {state}: it runs on {node}."),
    };
    let since = words::duration(sight.now_wall_ms.saturating_sub(started.fact.start_wall_ms));
    answer.lines.push(format!(
        "Started {since} ago, pid {}, attempt {}.",
        started.fact.pid,
        job.attempt()
    ));
    answer.lines.extend(last_word(sight, grant, &node));
    let resumes = job.suspend_requested() == Some(false);
    if matches!(job.state(), State::Suspended(_)) && !resumes {
        answer.lines.push(format!("It goes on after: docket resume {id}"));
    }
}

fn last_word(sight: &Sight, grant: &Grant, node: &str) -> Option<String> {
    let silence = sight.silence(&grant.agent)?;
    Some(format!("The last word of {node} came {} ago.", words::duration(silence)))
}

fn silent(
    ledger: &Ledger,
    sight: &Sight,
    job: &Job,
    unknown: &Unknown,
    answer: &mut v1::ExplainAnswer,
) {
    let node = node_name(ledger, &unknown.grant);
    let policy = ledger.policy();
    answer.headline = format!("Job {} is UNKWN: {node}: {}.", job.task_id(), unknown.why);
    let since = words::time_of_day(unknown.since_wall_ms);
    let limit = words::duration(policy.heartbeat_timeout_ms);
    let last = match sight.silence(&unknown.grant.agent) {
        Some(silence) => format!("its last word came {} ago", words::duration(silence)),
        None => "it has said nothing since this leader began".to_owned(),
    };
    answer.lines.push(format!("Unknown since {since}; {last} (limit {limit})."));
    if unknown.was.started().is_none() {
        answer.lines.push("It was given to that node, its start was never heard.".to_owned());
    } else {
        answer.lines.push(alive(ledger, &unknown.grant, &node));
    }
    answer.lines.push(format!(
        "If {node} comes back, its manifest decides: running again, or its real exit code."
    ));
    answer.lines.extend(lost_lines(ledger, job, unknown));
    if let Some(lease) = job.leased() {
        answer.lines.push(format!(
            "{node} itself ends it {} after the last answer it had from a leader: its lease.",
            words::duration(lease)
        ));
    }
    answer.lines.push(elsewhere(job));
}

/// Why the job may live although nobody vouches for it: what is known of the agent says how likely.
fn alive(ledger: &Ledger, grant: &Grant, node: &str) -> String {
    match ledger.agent(&grant.agent).map(Agent::session) {
        Some(Session::Down(DownWhy::Died)) => {
            format!("The agent of {node} died; its keeper holds the job, which may be alive.")
        }
        Some(Session::Down(DownWhy::Goodbye | DownWhy::Left)) => {
            format!("The agent of {node} was stopped in order; its keeper goes on with the job.")
        }
        _ => format!("{node} may be cut off and the job alive."),
    }
}

/// Until when it may stay unknown. In the first `heartbeat_timeout` of a term that may be later than
/// the time to live, but never later than twice that.
fn lost_lines(ledger: &Ledger, job: &Job, unknown: &Unknown) -> Vec<String> {
    let ttl = ledger.policy().transient_job_timeout_ms;
    let (since, lost) = (unknown.since_led_ms, ledger.lost_at_led(unknown.since_led_ms));
    let what = match job.tries_again(v1::ExitKind::Lost) {
        true => format!("attempt {} is closed as lost", job.attempt()),
        false => "the job ends as EXIT lost".to_owned(),
    };
    let (when, ttl_words) = (at(ledger, lost), words::duration(ttl));
    if lost <= since.saturating_add(ttl) {
        return vec![format!("If not, {what} at {when} (transient_since + {ttl_words}).")];
    }
    let latest = at(ledger, since.saturating_add(ttl.saturating_mul(2)));
    vec![
        format!("If not, {what} at {when}: its time, {ttl_words}, is over, but the leader is new."),
        format!(
            "However often the leader changes, it is decided by {latest} (transient_since + {}).",
            words::duration(ttl.saturating_mul(2))
        ),
    ]
}

/// What a loss means for another attempt.
fn elsewhere(job: &Job) -> String {
    let next = job.attempt().saturating_add(1);
    if job.tries_again(v1::ExitKind::Lost) {
        return format!("Then attempt {next} starts once this one is proven dead.");
    }
    let why = match (job.retries(), job.cancel()) {
        (0, _) => "it has no retries",
        (_, Some(_)) => "a cancel ends its retries",
        (retries, _) if job.retried() >= retries => "its retries are used up",
        _ => "its retries are not for lost ones",
    };
    format!("It will not be started elsewhere ({why}).")
}

fn ended(ledger: &Ledger, job: &Job, output: bool, answer: &mut v1::ExplainAnswer) {
    let Some(end) = job.state().ended() else { return };
    let (id, state) = (job.task_id(), job.state_name());
    answer.headline =
        format!("Job {id} is {state}: {}.", words::end(&job.told(&end.reason), end.status));
    let when = words::time_of_day(end.finish_wall_ms);
    match &end.grant {
        Some(grant) => {
            let node = node_name(ledger, grant);
            answer.lines.push(format!("Ended at {when} on {node}, attempt {}.", job.attempt()));
        }
        None => answer.lines.push(format!("Ended at {when}; it was never given to a node.")),
    }
    if end.reason.without_word() {
        answer.lines.push("Its node did not tell the end, so no exit code is known.".to_owned());
    }
    answer.lines.extend(cancel_beside(job, &end.reason));
    if let Some(late) = &end.late {
        let real = words::end(&late.reason, late.status);
        let ended_by_us = What::OrphanFound { attempt: job.attempt() };
        answer.lines.push(match job.causes().iter().any(|cause| cause.what == ended_by_us) {
            true => format!("Its node came back with it, and docket killed it then: {real}."),
            false => format!("The real end came later and changes nothing: {real}."),
        });
    }
    answer.lines.extend(held::of_ended(ledger, job));
    if end.leftover > 0 {
        answer.lines.push(format!("{} of its processes were still alive then.", end.leftover));
    }
    if output && !end.stderr_tail.is_empty() {
        answer.lines.push("Last lines of stderr:".to_owned());
        let text = String::from_utf8_lossy(&end.stderr_tail).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(5);
        answer.lines.extend(lines.iter().skip(from).map(|line| format!("| {line}")));
    }
}

/// Who asked to cancel a job that ended otherwise.
fn cancel_beside(job: &Job, reason: &ExitReason) -> Option<String> {
    let cancel = job.cancel().filter(|_| !matches!(reason, ExitReason::Cancelled { .. }))?;
    let (by, when) = (words::user(&cancel.by.name), words::time_of_day(cancel.wall_ms));
    Some(match reason.without_word() {
        true => format!("{by} had asked to cancel it at {when}; nobody told what came of that."),
        false => format!("{by} asked to cancel it at {when}, which came too late."),
    })
}

fn node_name(ledger: &Ledger, grant: &Grant) -> String {
    ledger.agent(&grant.agent).map_or_else(|| grant.agent.to_string(), |a| a.name().to_owned())
}
