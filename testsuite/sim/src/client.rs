//! The clients: they submit, cancel, suspend, resume and release, try again with the same request
//! id until they hear an outcome, and now and then ask again what they know already.

use crate::invariants::Happening;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::world::{Event, World};
use docket_core::ledger::{EditResult, Outcome, Rejection};
use prost::Message as _;
use proto::v1::{self, command::Kind};
use std::collections::BTreeMap;

/// How long a client waits before it asks again, ms.
const TIMEOUT_MS: u64 = 3_000;

/// What a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    Submit,
    Cancel,
    Suspend,
    Resume,
    Release,
    Priority,
}

/// One request and its fate.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub wish: Wish,
    /// Number of the job's plan.
    pub job: usize,
    pub request_id: String,
    user_key: bool,
    tries: u64,
    /// Gives up unheard after so many tries.
    tries_max: u64,
    pub over: bool,
    /// The first outcome, and the entry that decided it.
    pub outcome: Option<(Outcome, u64)>,
}

/// Who waits for an outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub op: usize,
}

/// What a controller answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Applied { outcome: Outcome, index: u64 },
    NotLeader,
    Unknown,
}

/// All requests of a run.
#[derive(Debug, Default)]
pub(crate) struct Client {
    pub ops: Vec<Op>,
    specs: Vec<v1::Blob>,
    /// Jobs that are stopped and not let go on before all is well.
    stopped: Vec<usize>,
    plans: BTreeMap<Vec<u8>, usize>,
}

impl Client {
    /// The plan of the job that has this specification.
    pub fn plan_of(&self, spec: &[u8]) -> Option<usize> {
        self.plans.get(spec).copied()
    }

    fn add(&mut self, wish: Wish, job: usize, request_id: String, tries_max: u64) -> usize {
        let user_key = self.ops.len().is_multiple_of(3);
        let (tries, over, outcome) = (0, false, None);
        self.ops.push(Op { wish, job, request_id, user_key, tries, tries_max, over, outcome });
        self.ops.len() - 1
    }

    /// Whether the job's request of that kind, if there is one, has been answered.
    fn settled(&self, wish: Wish, job: usize) -> bool {
        self.ops.iter().all(|op| op.wish != wish || op.job != job || op.over)
    }
}

/// A name for bytes; the ledger compares names and never computes them.
fn name_of(data: &[u8]) -> Vec<u8> {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in data {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (0..4).flat_map(|n| Rng::new(hash ^ n).draw().to_le_bytes()).collect()
}

fn blob(data: Vec<u8>) -> v1::Blob {
    v1::Blob { hash: name_of(&data), data }
}

fn requester() -> Option<v1::Requester> {
    Some(v1::Requester { user: "mia".to_owned(), uid: 1000, admin: false })
}

fn spec_of(plan: &Plan, job: usize) -> v1::JobSpec {
    let wanted = &plan.jobs[job];
    v1::JobSpec {
        name: format!("j{job}"),
        argv: vec![b"x".to_vec()],
        dir: b"/".to_vec(),
        cpus: wanted.cpus,
        priority: wanted.priority,
        on_disconnect: wanted.on_disconnect.into(),
        kill_grace_ms: Some(wanted.grace_ms),
        hold: wanted.hold,
        retries: wanted.retries,
        retry_on: wanted.retry_on.iter().map(|kind| *kind as i32).collect(),
        fence_after_ms: wanted.fence_after_ms,
        fence_proof: wanted.fence_proof,
        time_limit_ms: wanted.limit_ms,
        ..v1::JobSpec::default()
    }
}

impl World {
    /// Every request of the run, at its time.
    pub(crate) fn plan_requests(&mut self) {
        for job in 0..self.plan.jobs.len() {
            // Each job has its own chance, so that leaving one out leaves the others as they are.
            let mut dice = Rng::new(!self.seed).split(job as u64);
            std::mem::swap(&mut self.rng, &mut dice);
            self.plan_job(job);
            std::mem::swap(&mut self.rng, &mut dice);
        }
    }

    fn plan_job(&mut self, job: usize) {
        let spec = blob(spec_of(&self.plan, job).encode_to_vec());
        self.client.plans.insert(spec.data.clone(), job);
        self.client.specs.push(spec);
        if !self.plan.trim.wants_job(job) {
            return;
        }
        let wanted = self.plan.jobs[job].clone();
        let needed = self.needs_more(job);
        let tries = if !needed && self.rng.permille(100) { self.rng.range(1, 3) } else { u64::MAX };
        self.wish(Wish::Submit, job, wanted.submit_ms, tries);
        if let Some(at) = wanted.cancel_ms {
            for _ in 0..wanted.presses {
                let later = self.rng.skewed(5_000);
                self.wish(Wish::Cancel, job, at + later, u64::MAX);
            }
        }
        if let Some(at) = wanted.suspend_ms {
            let later = self.rng.skewed(40_000);
            self.wish(Wish::Suspend, job, at, u64::MAX);
            // The rest stands still until all is well again.
            if self.rng.permille(500) {
                self.wish(Wish::Resume, job, at + later, u64::MAX);
            } else {
                self.client.stopped.push(job);
            }
        }
        if wanted.reprioritise {
            let later = self.rng.skewed(20_000);
            self.wish(Wish::Priority, job, wanted.submit_ms + later, u64::MAX);
        }
        if wanted.hold {
            let later = self.rng.skewed(20_000);
            self.wish(Wish::Release, job, wanted.submit_ms + later, u64::MAX);
        }
    }

    /// Only a later request can end it: nobody gives it up, and its submit does not expire.
    fn needs_more(&self, job: usize) -> bool {
        let wanted = &self.plan.jobs[job];
        wanted.hold || wanted.duration_ms.is_none() || wanted.suspend_ms.is_some()
    }

    /// A suspend that was refused at first may hit when it comes again, after its resume was refused
    /// too, or had nothing to do and is remembered as done: whoever stops a job lets it go on.
    fn resume_again(&mut self, asked: &Op, outcome: &Outcome) {
        let hit = |results: &[EditResult]| results.iter().any(|result| result.result.is_ok());
        let stopped = asked.wish == Wish::Suspend
            && matches!(outcome, Outcome::Edited(results) if hit(results));
        let resumed = |op: &Op| op.wish == Wish::Resume && op.job == asked.job && op.tries > 0;
        if stopped && self.client.ops.iter().any(resumed) {
            self.wish(Wish::Resume, asked.job, self.now + 1_000, u64::MAX);
        }
    }

    /// Nobody has let these go on so far: nothing is to stand still for ever.
    pub(crate) fn resume_rest(&mut self) {
        // Not before the ledger has had to see that they stand still.
        let later_ms = self.plan.rejoin_ms() + self.plan.lag_ms() + 2_000;
        for job in std::mem::take(&mut self.client.stopped) {
            self.wish(Wish::Resume, job, self.now + later_ms, u64::MAX);
        }
    }

    /// The operator vouches for the machines that are gone for good.
    pub(crate) fn confirm_lost(&mut self) {
        let lost: Vec<String> = self.nodes.iter().flat_map(|node| node.lost_ids.clone()).collect();
        let Some(c) = self.log.leader else { return };
        for agent_id in lost {
            let by = Some(v1::Requester { user: "root".to_owned(), uid: 0, admin: true });
            let request_id = format!("confirm-{agent_id}-{}", self.now);
            let confirm = v1::ConfirmDeadCommand { by, request_id, agent_id };
            self.vouch(c, v1::Command { kind: Some(Kind::ConfirmDead(confirm)) });
        }
    }

    fn wish(&mut self, wish: Wish, job: usize, at_ms: u64, tries_max: u64) {
        let needed = self.needs_more(job);
        // Half of the ids carry the time at which they were made, as generated ones do.
        let mut id = [self.rng.draw().to_be_bytes(), self.rng.draw().to_be_bytes()].concat();
        let made = self.wall(0, at_ms).to_be_bytes();
        let request_id = if self.rng.permille(500) && !needed {
            id.splice(0..6, made[2..].iter().copied());
            id[6] = 0x70 | (id[6] & 0x0f);
            id[8] = 0x80 | (id[8] & 0x3f);
            uuid_text(&id)
        } else {
            format!("{wish:?}-{job}-{:x}", self.rng.below(1 << 32))
        };
        let op = self.client.add(wish, job, request_id, tries_max);
        self.queue.push(at_ms, Event::Op { op });
    }

    /// It is time for a request, unless something else must come first.
    pub(crate) fn op(&mut self, op: usize) {
        let Op { wish, job, .. } = self.client.ops[op];
        let submitted = self.truth.acked.contains_key(&job);
        if wish != Wish::Submit && !submitted {
            if self.client.settled(Wish::Submit, job) {
                // Nobody heard of the job: nobody knows its id.
                self.client.ops[op].over = true;
                return;
            }
            return self.at(1_000, Event::Op { op });
        }
        if wish == Wish::Resume && !self.client.settled(Wish::Suspend, job) {
            return self.at(1_000, Event::Op { op });
        }
        self.ask(op);
    }

    fn ask(&mut self, op: usize) {
        let asked = &mut self.client.ops[op];
        asked.tries += 1;
        let tries = asked.tries;
        let controller = self.rng.below(self.controllers.len() as u64) as usize;
        let delay = self.latency();
        self.at(delay, Event::Request { op, controller });
        self.at(TIMEOUT_MS, Event::OpTimeout { op, tries });
        // The network may bring it twice.
        if self.rng.permille(50) {
            let delay = self.rng.skewed(2_000);
            self.at(delay, Event::Request { op, controller });
        }
    }

    pub(crate) fn op_timeout(&mut self, op: usize, tries: u64) {
        let asked = &mut self.client.ops[op];
        if asked.over || asked.tries != tries {
            return;
        }
        if asked.tries >= asked.tries_max {
            asked.over = true;
            return;
        }
        self.ask(op);
    }

    pub(crate) fn request(&mut self, op: usize, controller: usize) {
        if !self.controllers[controller].up {
            return;
        }
        let Op { wish, job, request_id, user_key, .. } = self.client.ops[op].clone();
        let by = requester();
        let jobs: Vec<u64> = self.truth.acked.get(&job).copied().into_iter().collect();
        let mut blobs = Vec::new();
        let kind = match wish {
            Wish::Submit => {
                let (spec, env) =
                    (self.client.specs[job].clone(), blob(vec![10, 3, b'A', b'=', b'1']));
                let (spec_hash, env_hash) = (spec.hash.clone(), env.hash.clone());
                blobs = vec![spec, env];
                let stdin_hash = None;
                Kind::Submit(v1::SubmitCommand {
                    by,
                    request_id,
                    user_key,
                    spec_hash,
                    env_hash,
                    stdin_hash,
                })
            }
            Wish::Cancel => Kind::Cancel(v1::CancelCommand {
                tasks: Vec::new(),
                by,
                request_id,
                jobs,
                signal: None,
            }),
            Wish::Suspend | Wish::Resume => {
                let resume = wish == Wish::Resume;
                Kind::Suspend(v1::SuspendCommand {
                    tasks: Vec::new(),
                    by,
                    request_id,
                    jobs,
                    resume,
                })
            }
            Wish::Priority => Kind::Priority(v1::PriorityCommand {
                tasks: Vec::new(),
                by,
                request_id,
                jobs,
                priority: 7,
            }),
            Wish::Release => Kind::Hold(v1::HoldCommand {
                tasks: Vec::new(),
                by,
                request_id,
                jobs,
                release: true,
            }),
        };
        self.enqueue(controller, v1::Command { kind: Some(kind) }, blobs, Waiter { op });
    }

    pub(crate) fn answer(&mut self, waiter: Waiter, answer: Answer) {
        if self.truth.calm_ms.is_none() && self.rng.permille(100) {
            return;
        }
        let delay = self.latency();
        self.at(delay, Event::Answered { op: waiter.op, answer: Box::new(answer) });
    }

    pub(crate) fn answered(&mut self, op: usize, answer: Answer) {
        let Answer::Applied { outcome, index } = answer else {
            let tries = self.client.ops[op].tries;
            let delay = self.rng.skewed(1_000);
            return self.at(delay, Event::OpTimeout { op, tries });
        };
        let asked = self.client.ops[op].clone();
        self.trace.note(self.now, || {
            format!("client: {:?} of j{} answered: {outcome:?}", asked.wish, asked.job)
        });
        self.tell(&Happening::Answered { op, outcome: &outcome, index });
        if asked.wish == Wish::Submit
            && let Outcome::Submitted { job, .. } = &outcome
        {
            self.truth.acked.entry(asked.job).or_insert(job.0);
        }
        self.resume_again(&asked, &outcome);
        let known = &mut self.client.ops[op];
        known.over = true;
        let expired = matches!(outcome, Outcome::Rejected(Rejection::RequestExpired));
        if known.outcome.is_none() && !expired {
            known.outcome = Some((outcome, index));
        }
        if self.rng.permille(80) {
            let controller = self.rng.below(self.controllers.len() as u64) as usize;
            let delay = self.rng.skewed(20_000);
            self.at(delay, Event::Request { op, controller });
        }
    }
}

fn uuid_text(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
