//! `docket set` of what was asked at the submit: name, time limit, cpus and memory. A node that has the
//! job is told of its new limit; what it was given beside that it keeps.

use super::Ask;
use super::book::Ledger;
use super::cancel::Asker;
use super::cause::{Cause, What, Who};
use super::edit::wrong;
use super::job::{Job, LimitIntent};
use super::memory::{Edit, Verb};
use super::outcome::{EditResult, Outcome, Rejection};
use super::targets::{Named, Target};
use proto::v1::{self, set_command, time_change};
use proto::{JobId, TaskId};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Least limit that taking time away leaves, in ms: the job has been longer than that.
const LIMIT_MIN_MS: u64 = 1_000;

/// Longest name, in bytes.
const NAME_MAX: usize = 256;

/// What is asked for.
#[derive(Clone, PartialEq, Debug)]
enum Change {
    Name(Arc<str>),
    Time(time_change::To),
    Cpus(u32),
    Mem(u64),
}

/// The same for one task, whatever it had before.
#[derive(Clone, PartialEq, Debug)]
enum Value {
    Name(Arc<str>),
    Limit(Option<NonZeroU64>),
    Cpus(u32),
    Mem(u64),
}

impl Change {
    fn of(command: &v1::SetCommand) -> Result<Change, Rejection> {
        match command.change.as_ref() {
            Some(set_command::Change::Name(name)) => {
                let fits = !name.is_empty() && name.len() <= NAME_MAX;
                let why = || format!("{} bytes, a name has 1 to {NAME_MAX}", name.len());
                let name = fits.then(|| Change::Name(name.as_str().into()));
                name.ok_or_else(|| Rejection::malformed("name", why()))
            }
            Some(set_command::Change::Time(v1::TimeChange { to: Some(to) })) => match to {
                time_change::To::LimitMs(0) => {
                    Err(Rejection::malformed("time", "0 given, at least 1 ms is needed"))
                }
                to => Ok(Change::Time(*to)),
            },
            Some(set_command::Change::Cpus(0)) => {
                Err(Rejection::malformed("cpus", "0 given, at least 1 is needed"))
            }
            Some(set_command::Change::Cpus(cpus)) => Ok(Change::Cpus(*cpus)),
            Some(set_command::Change::MemBytes(bytes)) => Ok(Change::Mem(*bytes)),
            _ => Err(Rejection::malformed("change", "nothing is to be changed")),
        }
    }

    fn verb(&self) -> Verb {
        match self {
            Change::Name(_) => Verb::Name,
            Change::Time(_) => Verb::Time,
            Change::Cpus(_) => Verb::Cpus,
            Change::Mem(_) => Verb::Mem,
        }
    }

    /// What a request is remembered by: the same for equal changes.
    fn code(&self) -> i64 {
        match self {
            // FNV-1a: a name that collides is taken for the same one, which repeats nothing wrong.
            Change::Name(name) => name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            }) as i64,
            Change::Time(time_change::To::LimitMs(ms)) => i64::try_from(*ms).unwrap_or(i64::MAX),
            Change::Time(time_change::To::None(_)) => -1,
            Change::Time(time_change::To::ByMs(by)) => by.wrapping_add(i64::MIN / 2),
            Change::Cpus(cpus) => i64::from(*cpus),
            Change::Mem(bytes) => i64::try_from(*bytes).unwrap_or(i64::MAX),
        }
    }
}

impl Value {
    /// Whether the job is so already.
    fn holds(&self, job: &Job) -> bool {
        match self {
            Value::Name(name) => job.name() == **name,
            Value::Limit(limit) => job.limit_ms == *limit,
            Value::Cpus(cpus) => job.ask().cpus == *cpus,
            Value::Mem(bytes) => job.ask().mem_bytes == *bytes,
        }
    }

    fn what(&self) -> What {
        match self {
            Value::Name(name) => What::Named { to: Arc::clone(name) },
            Value::Limit(limit) => What::TimeLimit { to_ms: limit.map(NonZeroU64::get) },
            Value::Cpus(cpus) => What::Cpus { to: *cpus },
            Value::Mem(bytes) => What::Mem { to_bytes: *bytes },
        }
    }

    fn put(&self, job: &mut Job) {
        match self {
            Value::Name(name) => {
                job.changes.get_or_insert_default().name = Some(Arc::clone(name));
            }
            Value::Limit(limit) => job.limit_ms = *limit,
            Value::Cpus(cpus) => {
                let ask = Ask { cpus: *cpus, ..(**job.ask()).clone() };
                job.changes.get_or_insert_default().ask = Some(Arc::new(ask));
            }
            Value::Mem(bytes) => {
                let ask = Ask { mem_bytes: *bytes, ..(**job.ask()).clone() };
                job.changes.get_or_insert_default().ask = Some(Arc::new(ask));
            }
        }
    }
}

impl Ledger {
    pub(super) fn set(&mut self, command: &v1::SetCommand) -> Result<Outcome, Rejection> {
        let asker = self.asker(command.by.as_ref(), &command.request_id)?;
        let change = Change::of(command)?;
        let named = self.targets(&command.jobs, &command.tasks);
        let results = named.into_iter().map(|Named { job, tasks, target }| {
            let result = target.and_then(|target| self.set_once(&target, &asker, &change));
            EditResult { job, tasks, result }
        });
        Ok(Outcome::Edited(results.collect()))
    }

    /// As every edit: a request that did it already changes nothing more (P8).
    fn set_once(
        &mut self,
        target: &Target,
        asker: &Asker<'_>,
        change: &Change,
    ) -> Result<(), Rejection> {
        let (verb, code) = (change.verb(), change.code());
        if self.repeated(target, asker, verb, code)? {
            return Ok(());
        }
        match target {
            Target::Task(id) => self.set_one(*id, asker, change)?,
            Target::Members(job, _) | Target::All(job) => {
                self.set_members(target, *job, asker, change)?;
            }
        }
        self.remember(target, Edit::new(asker, verb, code, self.led_ms));
        Ok(())
    }

    /// What a change makes of this job, if it may be made.
    fn value_for(&self, job: &Job, asker: &Asker<'_>, change: &Change) -> Result<Value, Rejection> {
        if job.terminal() {
            return Err(Rejection::AlreadyTerminal { job: job.id });
        }
        let on_node = job.state.live_grant().is_some();
        Ok(match change {
            Change::Cpus(_) | Change::Mem(_) if on_node => {
                let why = "a node has it: what it was given it keeps until it ends";
                return Err(wrong(job.id, job.kind(), why));
            }
            Change::Cpus(cpus) => {
                self.judge_cpus(job, *cpus)?;
                Value::Cpus(*cpus)
            }
            Change::Mem(bytes) => Value::Mem(*bytes),
            Change::Name(name) => Value::Name(Arc::clone(name)),
            Change::Time(to) => {
                let limit = limit_after(job, *to)?;
                let grows = limit.is_none_or(|limit| Some(limit) > job.limit_ms);
                match asker.by.admin || !grows {
                    true => Value::Limit(limit),
                    false => {
                        Value::Limit(self.judge_limit(limit.map(NonZeroU64::get), job.queue())?)
                    }
                }
            }
        })
    }

    fn set_one(&mut self, id: TaskId, asker: &Asker<'_>, change: &Change) -> Result<(), Rejection> {
        let job = self.owned(id, asker)?;
        let value = self.value_for(job, asker, change)?;
        if value.holds(job) {
            return Ok(());
        }
        let on_node = job.state.live_grant().is_some();
        let order = self.order;
        let intent = LimitIntent { order, by: Arc::clone(&asker.user) };
        let cause = self.cause(Who::User(Arc::clone(&asker.user)), value.what());
        self.update(id, |job| {
            value.put(job);
            if on_node && matches!(value, Value::Limit(_)) {
                job.intents_mut().limit = Some(intent);
            }
            job.note(cause);
        });
        Ok(())
    }

    /// Changes tasks of an array: those that share records in one step. What does not fit a task leaves
    /// that one alone; it is refused if it fits none.
    fn set_members(
        &mut self,
        target: &Target,
        id: JobId,
        asker: &Asker<'_>,
        change: &Change,
    ) -> Result<(), Rejection> {
        let mut refused = Err(Rejection::AlreadyTerminal { job: id });
        for task in self.own_of(target, |_| true) {
            match self.set_one(task, asker, change) {
                Ok(()) => refused = Ok(()),
                Err(why) => refused = refused.or(Err(why)),
            }
        }
        let which = target.members().and_then(|(_, which)| which.cloned());
        let meant = |members: &super::Ranges| {
            which.as_ref().is_none_or(|which| !members.common(which).is_empty())
        };
        let shared = self.array(id).into_iter().flat_map(|array| array.shared());
        let judged: Vec<Result<Value, Rejection>> = shared
            .filter(|(members, job)| !job.terminal() && meant(members))
            .map(|(_, job)| self.value_for(job, asker, change))
            .collect();
        if judged.is_empty() {
            return refused;
        }
        if let Some(why) = judged.into_iter().find_map(Result::err) {
            return refused.map_err(|_| why);
        }
        let who = Who::User(Arc::clone(&asker.user));
        let cause = self.cause(who, What::Held);
        self.update_shared(id, which.as_ref(), |job| {
            !job.terminal() && put_if_new(job, change, &cause)
        });
        if which.is_none() {
            self.update_array(id, |array| {
                put_if_new(&mut array.head, change, &cause);
            });
        }
        Ok(())
    }
}

/// Changes a job for which the change was judged already; false if it is so.
fn put_if_new(job: &mut Job, change: &Change, cause: &Cause) -> bool {
    let value = match change {
        Change::Name(name) => Value::Name(Arc::clone(name)),
        Change::Cpus(cpus) => Value::Cpus(*cpus),
        Change::Mem(bytes) => Value::Mem(*bytes),
        Change::Time(to) => match limit_after(job, *to) {
            Ok(limit) => Value::Limit(limit),
            Err(_) => return false,
        },
    };
    let new = !value.holds(job);
    if new {
        value.put(job);
        job.note(Cause { what: value.what(), ..cause.clone() });
    }
    new
}

fn limit_after(job: &Job, to: time_change::To) -> Result<Option<NonZeroU64>, Rejection> {
    match to {
        time_change::To::LimitMs(ms) => Ok(NonZeroU64::new(ms)),
        time_change::To::None(_) => Ok(None),
        time_change::To::ByMs(by) => {
            let why = "it has no time limit to add to: give one, without a sign";
            let now = job.limit_ms.ok_or_else(|| wrong(job.id, job.kind(), why))?;
            Ok(NonZeroU64::new(now.get().saturating_add_signed(by).max(LIMIT_MIN_MS)))
        }
    }
}
