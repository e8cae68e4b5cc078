//! Submit: a request becomes a job, once per request id.

use super::apply::Incoming;
use super::array::Array;
use super::blobs::{Blob, Hash, Interned, Spec};
use super::book::Ledger;
use super::depend::Waits;
use super::given;
use super::job::Job;
use super::outcome::{Outcome, Rejection};
use super::ranges::Ranges;
use super::request::{REQUEST_ID_MAX, RequestId};
use super::retry;
use super::state::State;
use super::table::{Entry, Slot};
use super::targets::ranges;
use super::users::{USER_NAME_MAX, User};
use proto::mutants::Mutant;
use proto::{JobId, v1};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Largest encoded specification, in bytes (design 7, Limits).
const SPEC_MAX: usize = 1024 * 1024;

/// Largest encoded environment or input, in bytes: a proposal carries at most this much alone.
const BLOB_MAX: usize = 4 * 1024 * 1024;

/// Priorities that may be asked for.
pub(super) const PRIORITY: std::ops::RangeInclusive<i32> = -1000..=1000;

/// Names of a submit's content.
struct Content {
    spec: Hash,
    env: Hash,
    stdin: Option<Hash>,
}

/// A submit that is taken.
struct New {
    by: Arc<User>,
    request: RequestId,
    user_key: bool,
    spec: Arc<Spec>,
    array: Option<Ranges>,
    env: Arc<Blob>,
    stdin: Option<Arc<Blob>>,
    limit_ms: Option<NonZeroU64>,
    waits: Waits,
    /// The dependency that can never be met.
    never: Option<u32>,
}

/// What a new job is judged by.
struct Judged {
    limit_ms: Option<NonZeroU64>,
    array: Option<Ranges>,
    waits: Waits,
    /// The dependency that can never be met.
    never: Option<u32>,
}

impl Ledger {
    pub(super) fn submit(
        &mut self,
        command: &v1::SubmitCommand,
        blobs: &Incoming<'_>,
    ) -> Result<Outcome, Rejection> {
        let by = requester(command.by.as_ref())?;
        let request = request_id(&command.request_id)?;
        let content = Content::of(command)?;
        let user = self.users.find(&by.user, by.uid);
        if let Some(user) = &user
            && !Mutant::RequestForgotten.active()
            && let Some(first) = self.index.requests.get(&(user.number, request.clone())).copied()
        {
            return match self.content_of(first) {
                Some(old) if old.equals(&content) => {
                    Ok(Outcome::Submitted { job: first, repeated: true })
                }
                _ => Err(Rejection::KeyReused { first }),
            };
        }
        if !command.user_key {
            self.refuse_expired(&request)?;
        }
        let spec = self.spec_blob(content.spec, blobs)?;
        let judged = self.judge_new(&spec.spec, content.stdin.is_some(), by)?;
        let Judged { limit_ms, array, waits, never } = judged;
        let env = self.blob("env_hash", content.env, blobs)?;
        let stdin = content.stdin.map(|hash| self.blob("stdin_hash", hash, blobs)).transpose()?;
        let user = user.unwrap_or_else(|| self.users.intern(&by.user, by.uid));
        let user_key = command.user_key;
        let job = self.enter(New {
            by: user,
            request,
            user_key,
            spec,
            array,
            env,
            stdin,
            limit_ms,
            waits,
            never,
        });
        Ok(Outcome::Submitted { job, repeated: false })
    }

    /// Everything that speaks against a new job, and what it is judged by.
    fn judge_new(
        &self,
        spec: &v1::JobSpec,
        has_stdin_blob: bool,
        by: &v1::Requester,
    ) -> Result<Judged, Rejection> {
        judge_spec(spec, has_stdin_blob)?;
        retry::judge(spec, &self.policy)?;
        given::judge(&spec.resources)?;
        self.judge_queue(spec, by)?;
        let limit_ms = self.limit_at_submit(spec)?;
        let array = array_of(spec)?;
        let tasks = array.as_ref().map_or(1, Ranges::len);
        if self.live().saturating_add(tasks) > self.policy.max_queue {
            return Err(Rejection::QueueFull { limit: self.policy.max_queue });
        }
        self.judge_limits(spec, by, tasks)?;
        let (waits, never) = self.first_look(spec, array.as_ref())?;
        Ok(Judged { limit_ms, array, waits, never })
    }

    /// Whether such a job would be taken now, and the number of the dependency that can never be met.
    pub fn would_take(
        &self,
        spec: &v1::JobSpec,
        by: &v1::Requester,
    ) -> Result<Option<u32>, Rejection> {
        self.judge_new(spec, spec.has_stdin, by).map(|judged| judged.never)
    }

    fn enter(&mut self, new: New) -> JobId {
        let New { by, request, user_key, spec, array, env, stdin, limit_ms, waits, never } = new;
        let blocked = !waits.over() || never.is_some();
        let id = self.next_job_id;
        self.next_job_id = JobId(id.0 + 1);
        self.specs.hold(spec.hash, &spec);
        self.blobs.hold(env.hash, &env);
        if let Some(stdin) = &stdin {
            self.blobs.hold(stdin.hash, stdin);
        }
        self.index.requests.insert((by.number, request.clone()), id);
        let limit = spec.spec.array.as_ref().and_then(|array| array.limit);
        let job = Job {
            id,
            task: None,
            by,
            state: match spec.spec.hold && !Mutant::HeldStarts.active() {
                held if blocked => State::Blocked { held },
                true => State::Held,
                false => State::Queued,
            },
            waits: None,
            priority: spec.spec.priority,
            limit_ms,
            changes: None,
            spec,
            env,
            stdin,
            request,
            user_key,
            submit_wall_ms: self.wall_ms,
            submit_led_ms: self.led_ms,
            eligible_led_ms: self.led_ms,
            submit_position: self.applied,
            changed_position: self.applied,
            attempt: 1,
            node_faults: 0,
            retried: 0,
            intents: None,
            edits: None,
            causes: Vec::new(),
            causes_dropped: 0,
        };
        let slot = match array {
            None => {
                self.index.add(&job);
                Slot::Job(Arc::new(job))
            }
            Some(all) => {
                let array = Array::new(job, all, limit.filter(|limit| *limit > 0));
                self.index.add_array(&array);
                Slot::Array(Arc::new(array))
            }
        };
        self.jobs.put(id, slot);
        self.touched(id);
        if blocked {
            self.begin_to_wait(id, waits, never);
        }
        id
    }

    /// The names of what a remembered request submitted.
    fn content_of(&self, id: JobId) -> Option<Content> {
        if let Some(job) = self.entry(id).map(Entry::head) {
            return Some(Content {
                spec: job.spec.hash,
                env: job.env.hash,
                stdin: job.stdin.as_ref().map(|blob| blob.hash),
            });
        }
        let old = self.jobs.remembered(id)?;
        Some(Content { spec: old.spec, env: old.env, stdin: old.stdin })
    }

    /// A generated id that is older than the memory of requests and not in it may have had an
    /// effect that was forgotten: doing it again could be the second time.
    fn refuse_expired(&self, request: &RequestId) -> Result<(), Rejection> {
        match request.expired(self.wall_ms, self.request_floor_wall_ms) {
            true => Err(Rejection::RequestExpired),
            false => Ok(()),
        }
    }

    fn spec_blob(&self, hash: Hash, blobs: &Incoming<'_>) -> Result<Arc<Spec>, Rejection> {
        if let Some(spec) = self.specs.get(&hash) {
            return Ok(spec);
        }
        let data = incoming("spec_hash", &hash, SPEC_MAX, blobs)?;
        let spec = Spec::decode(hash, data)
            .map_err(|error| Rejection::malformed("spec", error.to_string()))?;
        Ok(Arc::new(spec))
    }

    fn blob(
        &self,
        field: &'static str,
        hash: Hash,
        blobs: &Incoming<'_>,
    ) -> Result<Arc<Blob>, Rejection> {
        if let Some(blob) = self.blobs.get(&hash) {
            return Ok(blob);
        }
        let data = incoming(field, &hash, BLOB_MAX, blobs)?;
        Ok(Arc::new(Blob { hash, data: data.into() }))
    }

    /// Lets go of what a job shared.
    pub(super) fn release_content(
        specs: &mut Interned<Spec>,
        blobs: &mut Interned<Blob>,
        job: &Job,
    ) {
        specs.release(&job.spec.hash);
        blobs.release(&job.env.hash);
        if let Some(stdin) = &job.stdin {
            blobs.release(&stdin.hash);
        }
    }
}

impl Content {
    fn of(command: &v1::SubmitCommand) -> Result<Content, Rejection> {
        Ok(Content {
            spec: hash("spec_hash", &command.spec_hash)?,
            env: hash("env_hash", &command.env_hash)?,
            stdin: command.stdin_hash.as_ref().map(|h| hash("stdin_hash", h)).transpose()?,
        })
    }

    fn equals(&self, other: &Content) -> bool {
        (self.spec, self.env, self.stdin) == (other.spec, other.env, other.stdin)
    }
}

fn hash(field: &'static str, bytes: &[u8]) -> Result<Hash, Rejection> {
    Hash::try_from(bytes)
        .map_err(|_| Rejection::malformed(field, format!("{} bytes, a hash has 32", bytes.len())))
}

fn incoming<'a>(
    field: &'static str,
    hash: &Hash,
    max: usize,
    blobs: &Incoming<'a>,
) -> Result<&'a [u8], Rejection> {
    let data = blobs.get(hash.as_slice()).copied().ok_or_else(|| {
        Rejection::malformed(field, "its blob is neither in the proposal nor in the ledger")
    })?;
    if data.len() > max {
        let why = format!("{} bytes, the limit is {max}", data.len());
        return Err(Rejection::malformed(field, why));
    }
    Ok(data)
}

/// Checks an identity; the edge decided it, so a missing one is a fault of the proposer.
pub(super) fn requester(by: Option<&v1::Requester>) -> Result<&v1::Requester, Rejection> {
    match by {
        Some(by) if !by.user.is_empty() && by.user.len() <= USER_NAME_MAX => Ok(by),
        Some(_) => Err(Rejection::malformed("by.user", "a user name has 1 to 256 bytes")),
        None => Err(Rejection::malformed("by", "who asks is missing")),
    }
}

/// Reads a request id.
pub(super) fn request_id(text: &str) -> Result<RequestId, Rejection> {
    if text.is_empty() || text.len() > REQUEST_ID_MAX {
        let why = format!("{} bytes, a request id has 1 to {REQUEST_ID_MAX}", text.len());
        return Err(Rejection::malformed("request_id", why));
    }
    Ok(RequestId::parse(text))
}

/// The task numbers of an array.
fn array_of(spec: &v1::JobSpec) -> Result<Option<Ranges>, Rejection> {
    let Some(array) = &spec.array else { return Ok(None) };
    let all = ranges(&array.ranges).map_err(|why| Rejection::malformed("spec.array", why))?;
    match all.is_empty() {
        true => Err(Rejection::malformed("spec.array", "an array has at least one task")),
        false => Ok(Some(all)),
    }
}

/// What the state machine relies on in a specification; the edge validates the rest.
fn judge_spec(spec: &v1::JobSpec, has_stdin_blob: bool) -> Result<(), Rejection> {
    if spec.cpus == 0 {
        return Err(Rejection::malformed("spec.cpus", "0 given, at least 1 is needed"));
    }
    if !PRIORITY.contains(&spec.priority) {
        let why = format!("{} given, allowed are -1000 to 1000", spec.priority);
        return Err(Rejection::malformed("spec.priority", why));
    }
    if spec.argv.is_empty() && spec.script.is_none() {
        return Err(Rejection::malformed("spec.argv", "neither a command nor a script"));
    }
    if spec.has_stdin != has_stdin_blob {
        let why = "has_stdin and the stdin blob contradict each other";
        return Err(Rejection::malformed("spec.has_stdin", why));
    }
    Ok(())
}
