//! P4: an acknowledged finish has had its effect, and in the end every finish is acknowledged.

use super::{Check, Happening, Property};
use crate::process::Key;
use crate::world::World;
use docket_core::ledger::Ledger;
use proto::v1::{FinishFact, fact};

#[derive(Default)]
pub(super) struct Finishes;

impl Property for Finishes {
    fn name(&self) -> &'static str {
        "finish"
    }

    fn happened(&mut self, world: &World, happening: &Happening<'_>) -> Check {
        let Happening::KeeperAcked { node, to } = happening else { return Ok(()) };
        let journal = &world.nodes[*node].keeper.journal;
        let Some(ledger) = world.front() else { return Ok(()) };
        for (seq, fact) in
            journal.facts.range(journal.acked + 1..).take_while(|(seq, _)| **seq <= *to)
        {
            if let Some(fact::Kind::Finish(finish)) = &fact.kind {
                took_effect(ledger, finish).map_err(|what| {
                    format!("fact {seq} of node {node} was acknowledged: {what}")
                })?;
            }
        }
        Ok(())
    }

    fn end(&mut self, world: &World) -> Check {
        let Some(ledger) = world.front() else { return Ok(()) };
        for (n, node) in world.nodes.iter().enumerate() {
            let journal = &node.keeper.journal;
            if journal.acked < journal.last_fact {
                let (acked, last) = (journal.acked, journal.last_fact);
                return Err(format!("node {n} waits with facts {acked}..{last}"));
            }
            for fact in journal.facts.values() {
                if let Some(fact::Kind::Finish(finish)) = &fact.kind {
                    took_effect(ledger, finish).map_err(|what| format!("node {n}: {what}"))?;
                }
            }
        }
        Ok(())
    }
}

fn took_effect(ledger: &Ledger, finish: &FinishFact) -> Check {
    let Some(key) = Key::from_wire(finish.attempt.as_ref(), finish.token.as_ref()) else {
        return Err("a finish of nothing".to_owned());
    };
    let Some(job) = ledger.job(key.attempt.task.job) else {
        return Err(format!("{} is not in the ledger", key.attempt));
    };
    if job.attempt() > key.attempt.attempt {
        return Ok(());
    }
    match job.state().ended() {
        None => Err(format!("{} is {:?}", key.attempt, job.kind())),
        Some(ended) if ended.reason.without_word() && ended.late.is_none() => {
            Err(format!("{} was settled without it, and it is not shown", key.attempt))
        }
        Some(_) => Ok(()),
    }
}
