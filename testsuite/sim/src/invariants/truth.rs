//! P3: what the ledger says of an end is what really happened, or honestly nothing.

use super::{Check, Property, Step};
use crate::process::{Key, Process};
use crate::world::World;
use docket_core::ledger::{ExitReason, Job, WaitEnd};
use proto::v1::KillCause;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Truthful {
    /// Processes seen so far, by their key.
    by_key: BTreeMap<Key, Vec<usize>>,
    seen: usize,
}

impl Property for Truthful {
    fn name(&self) -> &'static str {
        "truth"
    }

    fn applied(&mut self, step: &Step<'_>) -> Check {
        self.learn(step.world);
        step.changed().try_for_each(|job| self.judge(step.world, job))
    }
}

impl Truthful {
    fn learn(&mut self, world: &World) {
        for (number, process) in world.truth.processes.iter().enumerate().skip(self.seen) {
            self.by_key.entry(process.key).or_default().push(number);
        }
        self.seen = world.truth.processes.len();
    }

    fn process<'w>(&self, world: &'w World, job: &Job) -> Option<&'w Process> {
        let key = Key { attempt: job.attempt_id(), generation: job.token()?.generation };
        let number = self.by_key.get(&key)?.last()?;
        world.truth.processes.get(*number)
    }

    fn judge(&self, world: &World, job: &Job) -> Check {
        let process = self.process(world, job);
        if let Some(started) = job.started()
            && process.is_none_or(|process| process.pid != started.fact.pid)
        {
            return Err(format!("job {} is said to have started: {started:?}", job.id()));
        }
        let Some(ended) = job.state().ended() else { return Ok(()) };
        let say = |what: &str| Err(format!("job {}: {what}: {ended:?} {process:?}", job.id()));
        if let Some(late) = &ended.late {
            return fits(world, &late.reason, late.status, process)
                .map_err(|what| format!("job {}: late: {what}: {late:?}", job.id()));
        }
        match &ended.reason {
            ExitReason::AgentDied | ExitReason::Lost if ended.status.is_some() => {
                say("a code was invented")
            }
            ExitReason::AgentDied if job.started().is_none() => say("nobody ever said that it ran"),
            ExitReason::AgentDied | ExitReason::Lost => Ok(()),
            ExitReason::Vanished => match process {
                Some(process) if process.lives() => say("it vanished and lives"),
                Some(process) if ended.status.is_some() || !lost(world, process) => {
                    say("its journal is there and tells its end")
                }
                _ => Ok(()),
            },
            reason => fits(world, reason, ended.status, process)
                .map_err(|what| format!("job {}: {what}: {ended:?} {process:?}", job.id())),
        }
    }
}

/// Whether the disk that knew of it is gone.
fn lost(world: &World, process: &Process) -> bool {
    !world.nodes[process.node].processes.contains_key(&process.key)
}

fn fits(
    world: &World,
    reason: &ExitReason,
    status: Option<u32>,
    process: Option<&Process>,
) -> Check {
    let say = |what: &str| Err(what.to_owned());
    let never_ran = process.is_none();
    match reason {
        ExitReason::Cancelled { .. } if status.is_none() => {
            if never_ran {
                Ok(())
            } else {
                say("cancelled without its status")
            }
        }
        ExitReason::StartFailed(_) => {
            if never_ran {
                Ok(())
            } else {
                say("it did start")
            }
        }
        ExitReason::UnknownStatus { started_unknown } => {
            if never_ran && *started_unknown {
                Ok(())
            } else {
                say("its status was known")
            }
        }
        ExitReason::NodeRebooted => match process {
            Some(process) if !process.rebooted => say("its node was not rebooted under it"),
            _ if status.is_some() => say("a code was invented"),
            _ => Ok(()),
        },
        ExitReason::ExitCode
        | ExitReason::Signal
        | ExitReason::Cancelled { .. }
        | ExitReason::TimeLimit
        | ExitReason::OutOfMemory
        | ExitReason::LeaseOver => {
            let Some(process) = process else { return say("it never ran") };
            let Some((_, real)) = process.ended else { return say("it still runs") };
            if process.lives() {
                return say("something of its tree lives");
            }
            if Some(real) != status || process.rebooted {
                return Err(format!("its real status is {real:#x}"));
            }
            let cancelled = process.killed_for == KillCause::Cancel;
            let job = &world.plan.jobs[process.job];
            let killed = match reason {
                ExitReason::Cancelled { .. } => cancelled,
                ExitReason::TimeLimit => process.killed_for == KillCause::TimeLimit,
                ExitReason::LeaseOver => process.killed_for == KillCause::Lease,
                ExitReason::OutOfMemory => job.oom && real == 9,
                _ => matches!(process.killed_for, KillCause::Unspecified | KillCause::Fenced),
            };
            if !killed {
                return say("the reason is not that of its signal");
            }
            if !matches!(reason, ExitReason::ExitCode | ExitReason::Signal) {
                return Ok(());
            }
            let code = matches!(WaitEnd::decode(real), Some(WaitEnd::Code(_)));
            if !cancelled && code != matches!(reason, ExitReason::ExitCode) {
                return say("code and signal are confused");
            }
            let done = world.plan.jobs[process.job].status == 0;
            if real == 0 && !done { say("a success that is none") } else { Ok(()) }
        }
        other => Err(format!("nothing in this world ends as {other:?}")),
    }
}
