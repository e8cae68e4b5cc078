//! Reading an image back. What can be derived is derived again; what contradicts itself is refused.

use super::blobs::{Blob, Hash, Spec};
use super::book::{Counters, Ledger};
use super::deferred::Deferred;
use super::exit::ExitReason;
use super::given::Given;
use super::ids::Opening;
use super::image::IMAGE_FORMAT;
use super::image_parts::{kind_code, verb_code};
use super::index::Indexes;
use super::job::{CancelIntent, Intents, Job, LimitIntent, SignalRequest, SuspendIntent};
use super::limit::{changes_of, limit_of};
use super::memory::{Edit, Edits, Verb};
use super::node::{Agent, Bygone, DownWhy, FactsLost, Judging, NodeFault, Session};
use super::policy;
use super::request::RequestId;
use super::state::{Ended, Fence, Grant, Kind, Late, Run, Started, State, Unknown, Was};
use super::table::{Remembered, Slot};
use super::thaw_array::{OpenArray, waits};
use super::users::User;
use super::waits::Dependants;
use prost::Message as _;
use proto::mutants::Mutant;
use proto::v1::{self, ExitKind, image_record};
use proto::{AttemptId, JobId, OrderId, Seq};
use std::sync::Arc;

/// Why an image cannot be read. The caller falls back to the older snapshot.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ImageError {
    /// A chunk is no chunk.
    #[error("chunk {chunk} of the ledger image cannot be decoded: {error}")]
    Undecodable {
        /// Which, from 0.
        chunk: u64,
        /// What the decoder said.
        error: String,
    },
    /// It was written by a newer program.
    #[error("the ledger image has format {found}, this program reads up to {known}; upgrade it")]
    Newer {
        /// Its format.
        found: u32,
        /// What this program reads.
        known: u32,
    },
    /// A record is missing or says what cannot be.
    #[error("record {record} of the ledger image is broken: {what}")]
    Broken {
        /// Which, from 0.
        record: u64,
        /// What is wrong.
        what: &'static str,
    },
}

impl Ledger {
    /// The ledger of an image.
    pub fn thaw(chunks: impl Iterator<Item = Vec<u8>>) -> Result<Ledger, ImageError> {
        let mut reader = Reader::default();
        for (number, chunk) in (0u64..).zip(chunks) {
            let chunk = v1::ImageChunk::decode(chunk.as_slice()).map_err(|error| {
                ImageError::Undecodable { chunk: number, error: error.to_string() }
            })?;
            for record in chunk.records {
                reader.take(record)?;
                reader.records += 1;
            }
        }
        reader.finish()
    }
}

#[derive(Default)]
pub(super) struct Reader {
    pub(super) ledger: Ledger,
    /// The array whose tasks are being read.
    pub(super) open_array: Option<OpenArray>,
    blobs: Vec<(Hash, Vec<u8>)>,
    headed: bool,
    ended: bool,
    records: u64,
}

pub(super) type Broken = &'static str;

impl Reader {
    fn take(&mut self, record: v1::ImageRecord) -> Result<(), ImageError> {
        let broken = |what| ImageError::Broken { record: self.records, what };
        let kind = record.kind.ok_or_else(|| broken("a record without content"))?;
        match kind {
            image_record::Kind::Head(head) if !self.headed => return self.head(head),
            _ if !self.headed => return Err(broken("the head does not come first")),
            _ if self.ended => return Err(broken("something follows the end")),
            _ => {}
        }
        let result = match kind {
            image_record::Kind::Head(_) => Err("a second head"),
            image_record::Kind::User(user) => {
                self.ledger.users.intern(&user.name, user.uid);
                Ok(())
            }
            image_record::Kind::Agent(agent) => self.agent(agent),
            image_record::Kind::Blob(blob) => self.blob(blob),
            image_record::Kind::Job(job) if job.task.is_some() => self.member(&job),
            image_record::Kind::Job(job) => self.close_array().and_then(|()| self.job(&job)),
            image_record::Kind::Array(array) => {
                self.close_array().and_then(|()| self.array(&array))
            }
            image_record::Kind::Request(request) => {
                self.close_array().and_then(|()| self.request(&request))
            }
            image_record::Kind::Settings(image) => {
                let settings = self.edits(&image.edits, image.floor_wall_ms);
                settings.map(|settings| self.ledger.settings = settings)
            }
            image_record::Kind::Deferred(deferred) => self.deferred(deferred),
            image_record::Kind::Dependencies(waits) => self.dependencies(&waits),
            image_record::Kind::Leftover(leftover) => self.leftover(&leftover),
            image_record::Kind::End(end) => {
                self.ended = end.records == self.records;
                let closed = self.close_array();
                if self.ended { closed } else { Err("records are missing before the end") }
            }
        };
        result.map_err(|what| ImageError::Broken { record: self.records, what })
    }

    fn finish(mut self) -> Result<Ledger, ImageError> {
        if !self.ended {
            return Err(ImageError::Broken { record: self.records, what: "the end is missing" });
        }
        let ledger = &mut self.ledger;
        ledger.index = Indexes::of(&ledger.jobs, &ledger.leftovers, &ledger.policy);
        self.ledger.waits = Dependants::of(&self.ledger.jobs);
        Ok(self.ledger)
    }

    fn head(&mut self, head: v1::ImageHead) -> Result<(), ImageError> {
        let broken = |what| ImageError::Broken { record: 0, what };
        if head.format != IMAGE_FORMAT {
            return Err(ImageError::Newer { found: head.format, known: IMAGE_FORMAT });
        }
        self.headed = true;
        let ledger = &mut self.ledger;
        ledger.applied = head.applied;
        ledger.wall_ms = head.wall_ms;
        ledger.led_ms = head.led_ms;
        ledger.term = head.term;
        ledger.leader = head.leader;
        ledger.term_led_ms = head.term_led_ms;
        ledger.cluster_id = head.cluster_id;
        ledger.generation = head.generation;
        // Images of before had one number for both.
        ledger.raised = if head.raised == 0 { head.generation } else { head.raised };
        ledger.openings = head.openings.iter().map(Opening::thaw).collect();
        ledger.next_job_id = JobId(head.next_job_id);
        ledger.skipped = head.skipped.iter().map(|ids| (JobId(ids.from), JobId(ids.to))).collect();
        ledger.policy = head.policy.ok_or_else(|| broken("a head without policy"))?;
        ledger.offers = Arc::new(policy::offers(&ledger.policy));
        ledger.request_floor_wall_ms = head.request_floor_wall_ms;
        ledger.counters = Counters::from_map(&head.counters);
        Ok(())
    }

    fn blob(&mut self, blob: v1::ImageBlob) -> Result<(), Broken> {
        let hash = Hash::try_from(blob.hash.as_slice()).map_err(|_| "a hash has 32 bytes")?;
        self.blobs.push((hash, blob.data));
        Ok(())
    }

    fn agent(&mut self, image: v1::ImageAgent) -> Result<(), Broken> {
        let join = image.join.ok_or("an agent without join")?;
        let id: Arc<str> = join.agent_id.as_str().into();
        let agent = Agent {
            id: Arc::clone(&id),
            journal: join.journal_id.as_slice().into(),
            boot: join.boot_id.as_slice().into(),
            join,
            high: Seq(image.high),
            up_order: OrderId(image.up_order),
            session: session(image.session)?,
            since_wall_ms: image.since_wall_ms,
            judging: image.judging.map(judging).transpose()?,
            strays: image.strays.iter().map(attempt).collect::<Result<_, _>>()?,
            fault: image.fault.map(fault).transpose()?,
            confirms: self.edits(&image.confirms, image.confirm_floor_wall_ms)?,
            drained: image.drained.map(|drained| self.drained(&drained)).transpose()?,
            facts_lost: image.facts_lost.map(|lost| FactsLost {
                from: Seq(lost.from),
                to: Seq(lost.to),
                unjudged: lost.unjudged,
            }),
            bygone: image.bygone.as_ref().map(Bygone::thaw),
            ids_then: image.ids_then.map(JobId),
        };
        self.ledger.agents.insert(id, agent);
        Ok(())
    }

    fn deferred(&mut self, image: v1::ImageDeferred) -> Result<(), Broken> {
        let agent = self.ledger.agents.get(image.agent_id.as_str());
        let deferred = Deferred {
            agent: Arc::clone(&agent.ok_or("a deferred fact of no known agent")?.id),
            incarnation: image.incarnation,
            journal: image.journal_id.as_slice().into(),
            fact: image.fact.ok_or("a deferred fact without content")?,
            since_led_ms: image.since_led_ms,
            since_wall_ms: image.since_wall_ms,
            position: image.position,
            orphan: image.orphan,
        };
        let new = Mutant::RegistryLostInImage.active() || self.ledger.deferred.insert(deferred);
        if new { Ok(()) } else { Err("a deferred fact that is there already or waits for nothing") }
    }

    fn request(&mut self, image: &v1::ImageRequest) -> Result<(), Broken> {
        let id = self.next_id(image.job)?;
        let hash = |bytes: &[u8]| Hash::try_from(bytes).map_err(|_| "a hash has 32 bytes");
        let remembered = Remembered {
            by: self.user(image.user)?,
            request: RequestId::parse(&image.request_id),
            user_key: image.user_key,
            submit_wall_ms: image.submit_wall_ms,
            submit_led_ms: image.submit_led_ms,
            spec: hash(&image.spec_hash)?,
            env: hash(&image.env_hash)?,
            stdin: image.stdin_hash.as_deref().map(hash).transpose()?,
        };
        self.ledger.jobs.put(id, Slot::Request(Arc::new(remembered)));
        Ok(())
    }

    fn job(&mut self, image: &v1::ImageJob) -> Result<(), Broken> {
        let job = self.whole_job(image)?;
        self.ledger.jobs.put(job.id, Slot::Job(Arc::new(job)));
        Ok(())
    }

    pub(super) fn whole_job(&mut self, image: &v1::ImageJob) -> Result<Job, Broken> {
        let id = self.next_id(image.id)?;
        let spec = self.spec(image.spec)?;
        let env = self.held_blob(image.env)?;
        let stdin = image.stdin.map(|number| self.held_blob(number)).transpose()?;
        Ok(Job {
            id,
            task: None,
            by: self.user(image.user)?,
            env,
            stdin,
            request: RequestId::parse(&image.request_id),
            submit_wall_ms: image.submit_wall_ms,
            submit_led_ms: image.submit_led_ms,
            eligible_led_ms: image.eligible_led_ms.unwrap_or(image.submit_led_ms),
            submit_position: image.submit_position,
            changed_position: image.changed_position,
            state: self.state(image)?,
            waits: waits(image)?,
            attempt: image.attempt,
            priority: image.priority,
            limit_ms: limit_of(image, &spec),
            changes: changes_of(image, &spec),
            node_faults: image.node_faults,
            retried: image.retried,
            user_key: image.user_key,
            intents: self.intents(image)?,
            edits: self.job_edits(image)?,
            causes: image.causes.iter().map(|c| self.cause(c)).collect::<Result<_, _>>()?,
            causes_dropped: image.causes_dropped,
            spec,
        })
    }

    /// What a task of an array has of its own; the rest is the array's.
    pub(super) fn record_of(&self, head: &Job, image: &v1::ImageJob) -> Result<Job, Broken> {
        Ok(Job {
            task: image.task,
            eligible_led_ms: image.eligible_led_ms.unwrap_or(head.submit_led_ms),
            changed_position: image.changed_position,
            state: self.state(image)?,
            waits: None,
            attempt: image.attempt,
            priority: image.priority,
            limit_ms: limit_of(image, &head.spec),
            changes: changes_of(image, &head.spec),
            node_faults: image.node_faults,
            retried: image.retried,
            intents: self.intents(image)?,
            edits: self.job_edits(image)?,
            causes: image.causes.iter().map(|c| self.cause(c)).collect::<Result<_, _>>()?,
            causes_dropped: image.causes_dropped,
            ..head.clone()
        })
    }

    /// Ids come in growing order and below the next one.
    fn next_id(&self, id: u64) -> Result<JobId, Broken> {
        let id = JobId(id);
        let newest = self.ledger.jobs.newest();
        if id.0 == 0 || id >= self.ledger.next_job_id || newest.is_some_and(|newest| newest >= id) {
            return Err("job ids do not grow");
        }
        Ok(id)
    }

    pub(super) fn user(&self, number: u32) -> Result<Arc<User>, Broken> {
        self.ledger.users.number(number).ok_or("no user of that number")
    }

    fn raw(&self, number: u64) -> Result<&(Hash, Vec<u8>), Broken> {
        let number = usize::try_from(number).map_err(|_| "no blob of that number")?;
        self.blobs.get(number).ok_or("no blob of that number")
    }

    fn spec(&mut self, number: u64) -> Result<Arc<Spec>, Broken> {
        let (hash, data) = self.raw(number)?;
        let spec = match self.ledger.specs.get(hash) {
            Some(spec) => spec,
            None => Arc::new(Spec::decode(*hash, data).map_err(|_| "an undecodable spec")?),
        };
        self.ledger.specs.hold(spec.hash, &spec);
        Ok(spec)
    }

    fn held_blob(&mut self, number: u64) -> Result<Arc<Blob>, Broken> {
        let (hash, data) = self.raw(number)?;
        let blob = match self.ledger.blobs.get(hash) {
            Some(blob) => blob,
            None => Arc::new(Blob { hash: *hash, data: data.as_slice().into() }),
        };
        self.ledger.blobs.hold(blob.hash, &blob);
        Ok(blob)
    }

    fn intents(&self, image: &v1::ImageJob) -> Result<Option<Box<Intents>>, Broken> {
        let cancel = image.cancel.as_ref().map(|cancel| {
            Ok::<_, Broken>(CancelIntent {
                order: OrderId(cancel.order),
                by: self.user(cancel.user)?,
                request: RequestId::parse(&cancel.request_id),
                wall_ms: cancel.wall_ms,
                at_once: cancel.at_once,
            })
        });
        let signal = image.signal.as_ref().map(|signal| {
            Ok::<_, Broken>(SignalRequest {
                order: OrderId(signal.order),
                by: self.user(signal.user)?,
                request: RequestId::parse(&signal.request_id),
                signal: signal.signal,
            })
        });
        let suspend = image.suspend.as_ref().map(|suspend| {
            Ok::<_, Broken>(SuspendIntent {
                order: OrderId(suspend.order),
                by: self.user(suspend.user)?,
                resume: suspend.resume,
            })
        });
        let limit = image.limit.as_ref().map(|limit| {
            Ok::<_, Broken>(LimitIntent { order: OrderId(limit.order), by: self.user(limit.user)? })
        });
        let cancel = cancel.filter(|_| !Mutant::CancelLostInImage.active());
        let intents = Intents {
            cancel: cancel.transpose()?,
            signal: signal.transpose()?,
            suspend: suspend.transpose()?,
            limit: limit.transpose()?,
            overdue: image.overdue.map(OrderId),
        };
        Ok((intents != Intents::default()).then(|| Box::new(intents)))
    }

    fn job_edits(&self, image: &v1::ImageJob) -> Result<Option<Box<Edits>>, Broken> {
        let edits = self.edits(&image.edits, image.edit_floor_wall_ms)?;
        Ok((edits != Edits::default()).then(|| Box::new(edits)))
    }

    fn edits(&self, images: &[v1::ImageEdit], floor_wall_ms: u64) -> Result<Edits, Broken> {
        let edit = |image: &v1::ImageEdit| {
            let verb = Verb::ALL.into_iter().find(|verb| verb_code(*verb) == image.verb);
            Ok::<_, Broken>(Edit {
                by: self.user(image.user)?,
                request: RequestId::parse(&image.request_id),
                verb: verb.ok_or("an edit of no known kind")?,
                value: image.value,
                led_ms: image.led_ms,
            })
        };
        Ok(Edits { list: images.iter().map(edit).collect::<Result<_, _>>()?, floor_wall_ms })
    }

    fn state(&self, image: &v1::ImageJob) -> Result<State, Broken> {
        let grant = || {
            let grant = image.grant.as_ref().ok_or("a live attempt without grant")?;
            let agent = self.ledger.agents.get(grant.agent_id.as_str());
            let agent = agent.ok_or("a live attempt of no known agent")?;
            let mut grant = grant_of(grant, Arc::clone(&agent.id));
            if grant.boot == agent.boot {
                grant.boot = Arc::clone(&agent.boot);
            }
            Ok::<_, Broken>(grant)
        };
        let started = || started(image.started.as_ref()).ok_or("a run without start");
        let since_led_ms = image.started.as_ref().map_or(0, |started| started.since_led_ms);
        let run = || Ok::<_, Broken>(Run { grant: grant()?, started: started()?, since_led_ms });
        Ok(match kind(image.state)? {
            Kind::Queued => State::Queued,
            Kind::Held => State::Held,
            Kind::Blocked => {
                let blocked = image.blocked.as_ref().ok_or("a wait for nothing")?;
                State::Blocked { held: blocked.held }
            }
            Kind::Waiting => {
                let fence = image.fence.as_ref().ok_or("a wait without its fence")?;
                State::Waiting(Box::new(fence_of(fence, grant()?)))
            }
            Kind::Dispatched => State::Dispatched(Box::new(grant()?)),
            Kind::Running => State::Running(Box::new(run()?)),
            Kind::Suspended => State::Suspended(Box::new(run()?)),
            Kind::Unknown => {
                let unknown = image.unknown.as_ref().ok_or("unknown without its data")?;
                let was = match kind(unknown.was)? {
                    Kind::Dispatched => Was::Dispatched,
                    Kind::Running => Was::Running(started()?),
                    Kind::Suspended => Was::Suspended(started()?),
                    _ => return Err("unknown was something else"),
                };
                State::Unknown(Box::new(Unknown {
                    grant: grant()?,
                    was,
                    since_led_ms: since_of(unknown, &self.ledger),
                    since_wall_ms: unknown.since_wall_ms,
                    why: unknown.why.as_str().into(),
                }))
            }
            Kind::Done => State::Done(Box::new(self.ended(image)?)),
            Kind::Exit => State::Exit(Box::new(self.ended(image)?)),
        })
    }

    fn ended(&self, image: &v1::ImageJob) -> Result<Ended, Broken> {
        let ended = image.ended.as_ref().ok_or("ended without its data")?;
        let (reason, status) = reason(ended.reason.as_ref())?;
        let late = match &ended.late {
            None => None,
            Some(late) => {
                let (reason, status) = self::reason(late.reason.as_ref())?;
                let (finish_wall_ms, position) = (late.finish_wall_ms, late.position);
                Some(Box::new(Late { reason, status, finish_wall_ms, position }))
            }
        };
        Ok(Ended {
            reason,
            status,
            finish_wall_ms: ended.finish_wall_ms,
            ended_led_ms: ended.ended_led_ms,
            position: ended.position,
            grant: image
                .grant
                .as_ref()
                .map(|grant| grant_of(grant, self.agent_id(&grant.agent_id))),
            started: started(image.started.as_ref()),
            rusage: ended.rusage,
            stderr_tail: ended.stderr_tail.as_slice().into(),
            stdout_bytes: ended.stdout_bytes,
            stderr_bytes: ended.stderr_bytes,
            stdout_cut_bytes: ended.stdout_cut_bytes,
            stderr_cut_bytes: ended.stderr_cut_bytes,
            leftover: ended.leftover,
            late,
        })
    }

    pub(super) fn agent_id(&self, id: &str) -> Arc<str> {
        match self.ledger.agents.get_key_value(id) {
            Some((id, _)) => Arc::clone(id),
            None => id.into(),
        }
    }
}

fn since_of(unknown: &v1::ImageUnknown, ledger: &Ledger) -> u64 {
    if Mutant::SinceNotPersisted.active() { ledger.led_ms } else { unknown.since_led_ms }
}

pub(super) fn kind(code: u32) -> Result<Kind, Broken> {
    Kind::ALL.into_iter().find(|kind| kind_code(*kind) == code).ok_or("a state of no known kind")
}

pub(super) fn exit_kind(code: i64) -> Result<ExitKind, Broken> {
    i32::try_from(code)
        .ok()
        .and_then(|code| ExitKind::try_from(code).ok())
        .ok_or("a reason of no known kind")
}

fn session(code: u32) -> Result<Session, Broken> {
    Ok(match code {
        1 => Session::Joining,
        2 => Session::Up,
        3 => Session::Down(DownWhy::Died),
        4 => Session::Down(DownWhy::Silent),
        5 => Session::Down(DownWhy::Goodbye),
        6 => Session::Down(DownWhy::Left),
        7 => Session::Down(DownWhy::NewTerm),
        _ => return Err("a session of no known kind"),
    })
}

pub(super) fn attempt(wire: &v1::AttemptRef) -> Result<AttemptId, Broken> {
    AttemptId::from_wire(Some(wire)).map_err(|_| "a reference to no attempt")
}

fn judging(image: v1::ImageJudging) -> Result<Judging, Broken> {
    Ok(Judging {
        at_join: image.at_join,
        next_page: image.next_page,
        seen: image.seen.iter().map(attempt).collect::<Result<_, _>>()?,
    })
}

fn fault(image: v1::ImageFault) -> Result<NodeFault, Broken> {
    Ok(NodeFault {
        failure: image.failure.ok_or("a fault without failure")?,
        count: image.count,
        until_led_ms: image.until_led_ms,
        wall_ms: image.wall_ms,
        order: OrderId(image.order),
    })
}

pub(super) fn grant_of(image: &v1::ImageGrant, agent: Arc<str>) -> Grant {
    Grant {
        agent,
        incarnation: image.incarnation,
        journal: image.journal_id.as_slice().into(),
        order: OrderId(image.order),
        generation: image.generation,
        cpus: image.cpus,
        mem_bytes: image.mem_bytes,
        gpus: image.gpus,
        given: Given::thaw(image),
        wall_ms: image.wall_ms,
        boot: image.boot_id.as_slice().into(),
        lease_ms: image.lease_ms,
    }
}

fn fence_of(image: &v1::ImageFence, grant: Grant) -> Fence {
    Fence {
        grant,
        attempt: image.attempt,
        since_led_ms: image.since_led_ms,
        since_wall_ms: image.since_wall_ms,
        kind: image.kind(),
        held: image.held,
    }
}

fn started(image: Option<&v1::ImageStarted>) -> Option<Started> {
    let image = image?;
    Some(Started { fact: image.fact.clone()?, from_manifest: image.from_manifest })
}

fn reason(image: Option<&v1::ImageReason>) -> Result<(ExitReason, Option<u32>), Broken> {
    let image = image.ok_or("an end without reason")?;
    let reason = match image.kind() {
        ExitKind::Unspecified => return Err("a reason of no known kind"),
        ExitKind::ExitCode => ExitReason::ExitCode,
        ExitKind::Signal => ExitReason::Signal,
        ExitKind::TimeLimit => ExitReason::TimeLimit,
        ExitKind::OutOfMemory => ExitReason::OutOfMemory,
        ExitKind::Cancelled => ExitReason::Cancelled { by: image.by.clone() },
        ExitKind::AgentDied => ExitReason::AgentDied,
        ExitKind::NodeRebooted => ExitReason::NodeRebooted,
        ExitKind::Lost if image.lease => ExitReason::LeaseOver,
        ExitKind::Lost => ExitReason::Lost,
        ExitKind::Vanished => ExitReason::Vanished,
        ExitKind::UnknownStatus => {
            ExitReason::UnknownStatus { started_unknown: image.started_unknown }
        }
        ExitKind::StartFailed => {
            ExitReason::StartFailed(image.failure.clone().ok_or("a failure without its data")?)
        }
        ExitKind::DependencyFailed => {
            let failure = image.dependency.ok_or("a failed dependency without its data")?;
            ExitReason::DependencyFailed(failure)
        }
    };
    Ok((reason, image.status))
}
