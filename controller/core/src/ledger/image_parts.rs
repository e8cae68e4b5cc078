//! The parts of an image: pure field mapping from the ledger's types to the messages.

use super::array::Array;
use super::blobs::Hash;
use super::cause::{Cause, Proof, What, Who};
use super::deferred::Deferred;
use super::exit::ExitReason;
use super::given::Given;
use super::job::Job;
use super::limit::{changes_image, limit_image};
use super::memory::{Edit, Edits, Verb};
use super::node::{Agent, DownWhy, Session};
use super::state::{Ended, Fence, Grant, Kind, Late, Started, State};
use super::table::Remembered;
use super::users::User;
use proto::mutants::Mutant;
use proto::v1::{self, image_cause, image_record};
use proto::{AttemptId, JobId};
use std::collections::BTreeMap;

/// Writes jobs, each blob once before its first use.
#[derive(Default)]
pub(super) struct ImageWriter {
    blobs: BTreeMap<Hash, u64>,
}

impl ImageWriter {
    /// The records of an array, but for those of its tasks that have records of their own.
    pub fn array(&mut self, array: &Array) -> Vec<image_record::Kind> {
        let mut out = self.job(array.head());
        let Some(image_record::Kind::Job(head)) = out.pop() else { return out };
        let groups = array.shared().map(|(members, job)| v1::ImageGroup {
            members: members
                .stretches()
                .map(|(first, last)| v1::TaskRange { first, last, step: 1 })
                .collect(),
            job: Some(job_image(job)),
        });
        out.push(image_record::Kind::Array(v1::ImageArray {
            groups: groups.collect(),
            limit: array.limit(),
            head: Some(head),
        }));
        out
    }

    /// The records of one job.
    pub fn job(&mut self, job: &Job) -> Vec<image_record::Kind> {
        let mut out = Vec::new();
        let spec = self.blob(&mut out, &job.spec.hash, &job.spec.bytes);
        let env = self.blob(&mut out, &job.env.hash, &job.env.data);
        let stdin = job.stdin.as_ref().map(|stdin| self.blob(&mut out, &stdin.hash, &stdin.data));
        let mut image = job_image(job);
        (image.spec, image.env, image.stdin) = (spec, env, stdin);
        out.push(image_record::Kind::Job(image));
        out
    }

    fn blob(&mut self, out: &mut Vec<image_record::Kind>, hash: &Hash, data: &[u8]) -> u64 {
        let next = self.blobs.len() as u64;
        *self.blobs.entry(*hash).or_insert_with(|| {
            let blob = v1::ImageBlob { hash: hash.to_vec(), data: data.to_vec() };
            out.push(image_record::Kind::Blob(blob));
            next
        })
    }
}

pub(super) fn user_image(user: &User) -> v1::ImageUser {
    v1::ImageUser { name: user.name.clone(), uid: user.uid }
}

pub(super) fn agent_image(agent: &Agent) -> v1::ImageAgent {
    let wire = |attempts: &mut dyn Iterator<Item = &AttemptId>| {
        attempts.map(|attempt| attempt.to_wire()).collect()
    };
    v1::ImageAgent {
        join: Some(agent.join.clone()),
        high: if Mutant::HighLostInImage.active() { 0 } else { agent.high.0 },
        up_order: agent.up_order.0,
        session: session_code(agent.session),
        since_wall_ms: agent.since_wall_ms,
        judging: agent.judging.as_ref().map(|judging| v1::ImageJudging {
            at_join: judging.at_join,
            next_page: judging.next_page,
            seen: wire(&mut judging.seen.iter()),
        }),
        strays: wire(&mut agent.strays.iter()),
        fault: agent.fault.as_ref().map(|fault| v1::ImageFault {
            failure: Some(fault.failure.clone()),
            count: fault.count,
            until_led_ms: fault.until_led_ms,
            wall_ms: fault.wall_ms,
            order: fault.order.0,
        }),
        confirms: edit_images(&agent.confirms),
        drained: agent.drained.as_ref().map(|drained| v1::ImageDrained {
            user: drained.by.number,
            reason: drained.reason.to_string(),
            wall_ms: drained.wall_ms,
        }),
        confirm_floor_wall_ms: agent.confirms.floor_wall_ms,
        facts_lost: agent.facts_lost.map(|lost| v1::ImageFactsLost {
            from: lost.from.0,
            to: lost.to.0,
            unjudged: lost.unjudged,
        }),
        bygone: agent.bygone.map(|bygone| bygone.freeze()),
        ids_then: agent.ids_then.map(|id| id.0),
    }
}

pub(super) fn deferred_image(deferred: &Deferred) -> v1::ImageDeferred {
    v1::ImageDeferred {
        agent_id: deferred.agent.to_string(),
        incarnation: deferred.incarnation,
        journal_id: deferred.journal.to_vec(),
        fact: Some(deferred.fact.clone()),
        since_led_ms: deferred.since_led_ms,
        since_wall_ms: deferred.since_wall_ms,
        position: deferred.position,
        orphan: deferred.orphan,
    }
}

fn session_code(session: Session) -> u32 {
    match session {
        Session::Joining => 1,
        Session::Up => 2,
        Session::Down(DownWhy::Died) => 3,
        Session::Down(DownWhy::Silent) => 4,
        Session::Down(DownWhy::Goodbye) => 5,
        Session::Down(DownWhy::Left) => 6,
        Session::Down(DownWhy::NewTerm) => 7,
    }
}

pub(super) fn kind_code(kind: Kind) -> u32 {
    match kind {
        Kind::Queued => 1,
        Kind::Held => 2,
        Kind::Dispatched => 3,
        Kind::Running => 4,
        Kind::Suspended => 5,
        Kind::Unknown => 6,
        Kind::Done => 7,
        Kind::Exit => 8,
        Kind::Waiting => 9,
        Kind::Blocked => 10,
    }
}

pub(super) fn request(id: JobId, old: &Remembered) -> v1::ImageRequest {
    v1::ImageRequest {
        job: id.0,
        user: old.by.number,
        request_id: old.request.to_string(),
        user_key: old.user_key,
        submit_wall_ms: old.submit_wall_ms,
        submit_led_ms: old.submit_led_ms,
        spec_hash: old.spec.to_vec(),
        env_hash: old.env.to_vec(),
        stdin_hash: old.stdin.map(|hash| hash.to_vec()),
    }
}

/// Without the numbers of its blobs.
fn job_image(job: &Job) -> v1::ImageJob {
    v1::ImageJob {
        id: job.id.0,
        task: job.task,
        user: job.by.number,
        spec: 0,
        env: 0,
        stdin: None,
        request_id: job.request.to_string(),
        user_key: job.user_key,
        submit_wall_ms: job.submit_wall_ms,
        submit_led_ms: job.submit_led_ms,
        submit_position: job.submit_position,
        eligible_led_ms: (job.eligible_led_ms != job.submit_led_ms).then_some(job.eligible_led_ms),
        changed_position: job.changed_position,
        attempt: job.attempt,
        priority: job.priority,
        node_faults: job.node_faults,
        time_limit_ms: job.time_limit_ms(),
        changes: changes_image(job),
        limit: limit_image(job),
        fence: job.fence().map(fence_image),
        blocked: blocked_image(job),
        retried: job.retried,
        edits: job.edits.as_deref().map(edit_images).unwrap_or_default(),
        edit_floor_wall_ms: job.edits.as_ref().map_or(0, |edits| edits.floor_wall_ms),
        cancel: job.cancel().map(|cancel| v1::ImageCancel {
            order: cancel.order.0,
            user: cancel.by.number,
            request_id: cancel.request.to_string(),
            wall_ms: cancel.wall_ms,
            at_once: cancel.at_once,
        }),
        signal: job.signal().map(|signal| v1::ImageSignal {
            order: signal.order.0,
            user: signal.by.number,
            request_id: signal.request.to_string(),
            signal: signal.signal,
        }),
        suspend: job.suspend().map(|suspend| v1::ImageSuspend {
            order: suspend.order.0,
            user: suspend.by.number,
            resume: suspend.resume,
        }),
        causes: job.causes.iter().map(cause_image).collect(),
        causes_dropped: job.causes_dropped,
        state: kind_code(job.kind()),
        grant: job.state.grant().or_else(|| job.state.binding()).map(grant_image),
        started: job.state.started().map(|started| started_image(started, &job.state)),
        overdue: job.overdue_order().map(|order| order.0),
        unknown: match &job.state {
            State::Unknown(unknown) => Some(v1::ImageUnknown {
                was: kind_code(unknown.was.kind()),
                since_led_ms: unknown.since_led_ms,
                since_wall_ms: unknown.since_wall_ms,
                why: unknown.why.to_string(),
            }),
            _ => None,
        },
        ended: job.state.ended().map(ended_image),
    }
}

fn blocked_image(job: &Job) -> Option<v1::ImageBlocked> {
    let State::Blocked { held } = job.state else { return None };
    let waits = job.waits.as_ref().map(|waits| v1::ImageWaits {
        open: waits.open.to_wire(),
        each: waits.each.to_wire(),
        begin_wall_ms: waits.begin_wall_ms,
    });
    Some(v1::ImageBlocked { held, waits })
}

pub(super) fn grant_image(grant: &Grant) -> v1::ImageGrant {
    let mut image = v1::ImageGrant {
        agent_id: grant.agent.to_string(),
        incarnation: grant.incarnation,
        journal_id: grant.journal.to_vec(),
        order: grant.order.0,
        generation: grant.generation,
        cpus: grant.cpus,
        mem_bytes: grant.mem_bytes,
        gpus: grant.gpus,
        wall_ms: grant.wall_ms,
        boot_id: grant.boot.to_vec(),
        lease_ms: grant.lease_ms,
        ..v1::ImageGrant::default()
    };
    Given::freeze(grant.given.as_ref(), &mut image);
    image
}

fn fence_image(fence: &Fence) -> v1::ImageFence {
    v1::ImageFence {
        attempt: fence.attempt,
        since_led_ms: fence.since_led_ms,
        since_wall_ms: fence.since_wall_ms,
        kind: fence.kind as i32,
        held: fence.held,
    }
}

/// Requests that changed values of the cluster; `None`: there are none.
pub(super) fn settings_image(settings: &Edits) -> Option<v1::ImageSettings> {
    let (edits, floor_wall_ms) = (edit_images(settings), settings.floor_wall_ms);
    let some = !edits.is_empty() || floor_wall_ms > 0;
    some.then_some(v1::ImageSettings { edits, floor_wall_ms })
}

fn edit_images(edits: &Edits) -> Vec<v1::ImageEdit> {
    let image = |edit: &Edit| v1::ImageEdit {
        user: edit.by.number,
        request_id: edit.request.to_string(),
        verb: verb_code(edit.verb),
        value: edit.value,
        led_ms: edit.led_ms,
    };
    edits.list.iter().map(image).collect()
}

pub(super) fn verb_code(verb: Verb) -> u32 {
    1 + Verb::ALL.iter().position(|known| *known == verb).unwrap_or_default() as u32
}

pub(super) fn proof_code(proof: Proof) -> i64 {
    1 + Proof::ALL.iter().position(|known| *known == proof).unwrap_or_default() as i64
}

fn started_image(started: &Started, state: &State) -> v1::ImageStarted {
    let since_led_ms = match state {
        State::Running(run) | State::Suspended(run) => run.since_led_ms,
        _ => 0,
    };
    let (fact, from_manifest) = (Some(started.fact.clone()), started.from_manifest);
    v1::ImageStarted { fact, from_manifest, since_led_ms }
}

fn ended_image(ended: &Ended) -> v1::ImageEnded {
    v1::ImageEnded {
        reason: Some(reason_image(&ended.reason, ended.status)),
        finish_wall_ms: ended.finish_wall_ms,
        ended_led_ms: ended.ended_led_ms,
        position: ended.position,
        rusage: ended.rusage,
        stderr_tail: ended.stderr_tail.to_vec(),
        stdout_bytes: ended.stdout_bytes,
        stderr_bytes: ended.stderr_bytes,
        stdout_cut_bytes: ended.stdout_cut_bytes,
        stderr_cut_bytes: ended.stderr_cut_bytes,
        leftover: ended.leftover,
        late: ended.late.as_deref().map(late_image),
    }
}

fn late_image(late: &Late) -> v1::ImageLate {
    v1::ImageLate {
        reason: Some(reason_image(&late.reason, late.status)),
        finish_wall_ms: late.finish_wall_ms,
        position: late.position,
    }
}

fn reason_image(reason: &ExitReason, status: Option<u32>) -> v1::ImageReason {
    let mut image =
        v1::ImageReason { kind: reason.kind() as i32, status, ..v1::ImageReason::default() };
    match reason {
        ExitReason::Cancelled { by } => image.by.clone_from(by),
        ExitReason::StartFailed(failure) => image.failure = Some(failure.clone()),
        ExitReason::DependencyFailed(failure) => image.dependency = Some(*failure),
        ExitReason::LeaseOver => image.lease = true,
        ExitReason::UnknownStatus { started_unknown } => image.started_unknown = *started_unknown,
        _ => {}
    }
    image
}

fn cause_image(cause: &Cause) -> v1::ImageCause {
    let who = match &cause.who {
        Who::User(user) => image_cause::Who::User(user.number),
        Who::Agent(agent) => image_cause::Who::AgentId(agent.to_string()),
        Who::Controller(id) => image_cause::Who::Controller(*id),
    };
    let mut image = v1::ImageCause {
        position: cause.position,
        wall_ms: cause.wall_ms,
        who: Some(who),
        ..v1::ImageCause::default()
    };
    image.what = what_image(&cause.what, &mut image);
    image
}

/// What happened; gives the code.
fn what_image(what: &What, image: &mut v1::ImageCause) -> u32 {
    let code = |kind: &Kind| i64::from(kind_code(*kind));
    match what {
        What::Assigned { agent, attempt } | What::Adopted { agent, attempt } => {
            (image.text, image.a) = (agent.to_string(), i64::from(*attempt));
            if matches!(what, What::Assigned { .. }) { 1 } else { 32 }
        }
        What::Started { pid } => {
            image.a = i64::from(*pid);
            2
        }
        What::Ended { from, to, kind, status, leader } => {
            (image.a, image.b, image.status) = (code(from), *kind as i64, *status);
            image.leader = *leader;
            if *to == Kind::Done { 3 } else { 4 }
        }
        What::NodeFault { step, errno, attempt } => {
            (image.text, image.a) = (step.to_string(), i64::from(*errno));
            image.b = i64::from(*attempt);
            5
        }
        What::CancelRequested => 6,
        What::CancelTooLate => 7,
        What::SignalRequested { signal } => {
            image.a = i64::from(*signal);
            8
        }
        What::Unknown { why } => {
            image.text = why.to_string();
            9
        }
        What::Claimed { to } => {
            image.a = code(to);
            10
        }
        What::OrderLost => 11,
        What::Late { kind, status } => {
            (image.a, image.status) = (*kind as i64, *status);
            17
        }
        What::Suspended => 18,
        What::Resumed => 19,
        What::Held
        | What::Released
        | What::SuspendRequested
        | What::ResumeRequested
        | What::Priority { .. }
        | What::Overdue { .. }
        | What::ArrayLimit { .. }
        | What::Named { .. }
        | What::TimeLimit { .. }
        | What::RaceWon { .. }
        | What::Cpus { .. }
        | What::Mem { .. } => set_image(what, image),
        What::Closed { .. }
        | What::Proven { .. }
        | What::Freed { .. }
        | What::LateAttempt { .. }
        | What::OrphanFound { .. }
        | What::OrphanGone { .. } => closed_image(what, image),
        what => set_image(what, image),
    }
}

/// What was set, what followed from it, and what was waited for; gives the code.
fn set_image(what: &What, image: &mut v1::ImageCause) -> u32 {
    match what {
        What::Held => 12,
        What::Released => 13,
        What::SuspendRequested => 15,
        What::ResumeRequested => 16,
        What::Priority { to } => set(image, i64::from(*to), 14),
        What::ArrayLimit { to } => set(image, i64::from(*to), 50),
        What::Named { to } => {
            image.text = to.to_string();
            70
        }
        What::TimeLimit { to_ms } => set(image, to_ms.map_or(0, u64::cast_signed), 71),
        What::Overdue { limit_ms } => set(image, limit_ms.cast_signed(), 75),
        What::RaceWon { winner } => set(image, i64::from(*winner), 74),
        What::Cpus { to } => set(image, i64::from(*to), 72),
        What::Mem { to_bytes } => set(image, to_bytes.cast_signed(), 73),
        What::DependencyMet { index } => set(image, i64::from(*index), 42),
        What::BeginReached => 43,
        _ => 0,
    }
}

/// Something was set to a number; gives the code.
fn set(image: &mut v1::ImageCause, to: i64, code: u32) -> u32 {
    image.a = to;
    code
}

/// What became of attempts that are over; gives the code.
fn closed_image(what: &What, image: &mut v1::ImageCause) -> u32 {
    let code = |kind: &Kind| i64::from(kind_code(*kind));
    match what {
        What::OrphanFound { attempt } => {
            image.a = i64::from(*attempt);
            40
        }
        What::OrphanGone { attempt, leftover } => {
            (image.a, image.b) = (i64::from(*attempt), i64::from(*leftover));
            41
        }
        What::Closed { from, to, attempt, agent, kind, status, leader, detail } => {
            (image.a, image.b, image.c) = (i64::from(*attempt), *kind as i64, code(from));
            (image.text, image.status, image.leader) = (agent.to_string(), *status, *leader);
            image.detail = detail.as_deref().unwrap_or_default().to_owned();
            if *to == Kind::Queued { 20 } else { 21 }
        }
        What::Proven { attempt, proof, to } => {
            (image.a, image.b, image.c) = (i64::from(*attempt), proof_code(*proof), code(to));
            22
        }
        What::Freed { attempt, proof } => {
            (image.a, image.b) = (i64::from(*attempt), proof_code(*proof));
            51
        }
        What::LateAttempt { attempt, kind, status } => {
            (image.a, image.b, image.status) = (i64::from(*attempt), *kind as i64, *status);
            23
        }
        _ => 0,
    }
}
