//! P8: the same request again changes nothing and gets the first answer.

use super::{Check, Happening, Property, Step};
use crate::client::Wish;
use crate::world::World;
use docket_core::ledger::{CancelVerdict, Outcome, order_id};
use proto::v1::command;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Idempotent {
    /// By request id: the job it made.
    made: BTreeMap<String, u64>,
    /// By request id: the order of the edit that it made.
    edited: BTreeMap<String, proto::OrderId>,
    /// By job: the order that its first cancel gave.
    cancelled: BTreeMap<u64, proto::OrderId>,
    /// By job: the attempt that was cancelled.
    attempts: BTreeMap<u64, u32>,
}

impl Property for Idempotent {
    fn name(&self) -> &'static str {
        "idempotent"
    }

    fn applied(&mut self, step: &Step<'_>) -> Check {
        for (command, outcome) in step.entry.proposal.commands.iter().zip(&step.applied.outcomes) {
            let (Some(command::Kind::Submit(submit)), Outcome::Submitted { job, repeated }) =
                (&command.kind, outcome)
            else {
                continue;
            };
            let first = *self.made.entry(submit.request_id.clone()).or_insert(job.0);
            let known = self.made.values().filter(|made| **made == job.0).count();
            if first != job.0 || known != 1 {
                let id = &submit.request_id;
                return Err(format!("request {id} made job {first} and job {job} ({repeated})"));
            }
        }
        self.edits(step)?;
        for job in step.changed() {
            // Its intent ends the retries (design 3): the attempt it was asked of stays the last.
            if self.attempts.get(&job.id().0).is_some_and(|asked| *asked != job.attempt()) {
                return Err(format!("job {} was cancelled and is tried again", job.id()));
            }
            let Some(cancel) = job.cancel() else { continue };
            self.attempts.insert(job.id().0, job.attempt());
            let first = *self.cancelled.entry(job.id().0).or_insert(cancel.order);
            if first != cancel.order {
                let (id, now) = (job.id(), cancel.order);
                return Err(format!("job {id} was cancelled by order {first:?}, now by {now:?}"));
            }
        }
        Ok(())
    }

    fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Check {
        let Happening::Answered { op, outcome, index } = happening else { return Ok(()) };
        let asked = &world.client.ops[*op];
        let Some((first, first_index)) = &asked.outcome else { return Ok(()) };
        if index < first_index {
            // Answers may overtake each other; a refusal before the effect is none of it.
            return Ok(());
        }
        let same = match (asked.wish, first, outcome) {
            (_, Outcome::Submitted { job: a, .. }, Outcome::Submitted { job: b, .. }) => a == b,
            (Wish::Cancel, Outcome::Cancelled(a), Outcome::Cancelled(b)) => {
                let verdict = |list: &[docket_core::ledger::CancelResult]| {
                    list.first().map(|result| result.verdict.clone())
                };
                let (a, b) = (verdict(a), verdict(b));
                // Several requests cancel one job: only the first has an effect to remember.
                a == b
                    || a == Some(CancelVerdict::Requested) && b == Some(CancelVerdict::AlreadyEnded)
            }
            (Wish::Submit, ..) => false,
            _ => true,
        };
        if same {
            Ok(())
        } else {
            Err(format!("{asked:?} was answered {first:?}, then {outcome:?}"))
        }
    }
}

impl Idempotent {
    /// A suspend or resume that was carried out is not carried out again.
    fn edits(&mut self, step: &Step<'_>) -> Check {
        let commands = step.entry.proposal.commands.iter().zip(&step.applied.outcomes);
        for (ordinal, (command, outcome)) in (0..).zip(commands) {
            let Some(command::Kind::Suspend(edit)) = &command.kind else { continue };
            let Outcome::Edited(results) = outcome else { continue };
            let (order, request) = (order_id(step.entry.index, ordinal), &edit.request_id);
            for result in results.iter().filter(|result| result.result.is_ok()) {
                let first = *self.edited.entry(request.clone()).or_insert(order);
                let now = step.ledger.job(result.job).and_then(|job| job.suspend());
                if first != order && now.is_some_and(|intent| intent.order == order) {
                    return Err(format!("request {request} has an effect a second time"));
                }
            }
        }
        Ok(())
    }
}
