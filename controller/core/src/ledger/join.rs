//! AgentUp: a session joins and is the agent's newest from here on.

use super::assign::stale;
use super::book::Ledger;
use super::memory::Edits;
use super::node::{Agent, Bygone, FactsLost, Session};
use super::outcome::{Outcome, Rejection};
use prost::Message as _;
use proto::{JobId, OrderId, Seq, v1};
use std::sync::Arc;

/// Agents the ledger keeps: ten times the largest clusters in use; each is about 1 KiB.
const AGENTS_MAX: usize = 65_536;

/// Largest join, in bytes: labels are words, not documents.
const JOIN_MAX: usize = 64 * 1024;

impl Ledger {
    pub(super) fn agent_up(&mut self, command: &v1::AgentUpCommand) -> Result<Outcome, Rejection> {
        let join = well_formed(command.join.as_ref())?;
        let journal: Arc<[u8]> = join.journal_id.as_slice().into();
        if let Some(known) = self.agents.get(join.agent_id.as_str()) {
            if join.incarnation <= known.incarnation() {
                let now = known.incarnation();
                return Ok(stale(format!(
                    "the agent's session is {now}, not {}",
                    join.incarnation
                )));
            }
            if known.journal == journal && join.next_seq <= known.high.0 {
                let next = Seq(join.next_seq);
                return Err(Rejection::JournalRolledBack { high: known.high, next });
            }
        } else if self.agents.len() >= AGENTS_MAX {
            return Err(Rejection::TooManyAgents { limit: AGENTS_MAX as u64 });
        }
        if let Some(first) = self.shown_loss(join, &journal) {
            self.open_generation(self.generation + 1, first);
        }
        self.enter_session(join, journal);
        self.prove_rebooted(&join.agent_id);
        self.leftovers_rebooted(&join.agent_id.as_str().into());
        Ok(Outcome::AgentUp)
    }

    /// A journal of which a log acknowledged more than this one ever took: it is an older copy of that
    /// one. Gives the first id that may have been given twice, unless a generation was opened for this
    /// loss already. A log cannot become older within a term.
    fn shown_loss(&self, join: &v1::Join, journal: &[u8]) -> Option<JobId> {
        let known = self.agents.get(join.agent_id.as_str())?;
        let heard = known.bygone.map_or(known.high, |bygone| bygone.acked.max(known.high));
        if *known.journal != *journal || join.acked_seq <= heard.0 {
            return None;
        }
        let opened = self.openings.last().is_some_and(|opening| opening.order > known.up_order);
        known.ids_then.filter(|_| !opened)
    }

    fn enter_session(&mut self, join: &v1::Join, journal: Arc<[u8]>) {
        let id: Arc<str> = match self.agents.get_key_value(join.agent_id.as_str()) {
            Some((id, _)) => Arc::clone(id),
            None => join.agent_id.as_str().into(),
        };
        let known = self.agents.remove(&id);
        let (high, facts_lost) = standing(known.as_ref(), join, &journal);
        let bygone = bygone(known.as_ref(), join, &journal, self.order);
        let (fault, confirms, boot, drained) = match known {
            Some(known) => (known.fault, known.confirms, known.boot, known.drained),
            None => (None, Edits::default(), Arc::default(), None),
        };
        // Shared by the attempts of one boot.
        let boot = if *boot == *join.boot_id { boot } else { join.boot_id.as_slice().into() };
        let agent = Agent {
            id: Arc::clone(&id),
            join: join.clone(),
            journal,
            boot,
            high,
            up_order: self.order,
            session: Session::Joining,
            since_wall_ms: self.wall_ms,
            judging: None,
            strays: Vec::new(),
            fault,
            confirms,
            drained,
            facts_lost,
            bygone,
            ids_then: None,
        };
        self.agents.insert(id, agent);
    }
}

/// How far the facts of this journal are taken, and which of them are gone for good.
fn standing(known: Option<&Agent>, join: &v1::Join, journal: &[u8]) -> (Seq, Option<FactsLost>) {
    let below = join.first_seq.saturating_sub(1);
    match known {
        Some(known) if *known.journal == *journal && below > known.high.0 => {
            let from = Seq(known.high.0 + 1);
            (Seq(below), Some(FactsLost { from, to: Seq(below), unjudged: true }))
        }
        Some(known) if *known.journal == *journal => {
            (known.high, known.facts_lost.filter(|lost| lost.unjudged))
        }
        // A new journal begins at 1, or where this log never heard of it; of the old one nothing more
        // can come.
        Some(_) => (Seq(below), None),
        // An agent id that is new here may stand over a journal of which others took facts: those are
        // gone from it and would be asked for in vain.
        None if join.first_seq > 0 => (Seq(below), None),
        // An agent of before does not tell where its journal begins. What it still owes is taken all
        // the same, by its meaning.
        None => (Seq(join.next_seq.saturating_sub(1)), None),
    }
}

/// How far another log acknowledged this journal. What that says of jobs without an older token is no
/// news of this log's own.
fn bygone(
    known: Option<&Agent>,
    join: &v1::Join,
    journal: &[u8],
    order: OrderId,
) -> Option<Bygone> {
    let same = known.filter(|known| *known.journal == *journal);
    if join.acked_seq <= same.map_or(0, |known| known.high.0) {
        return same.and_then(|known| known.bygone);
    }
    // An agent id that is new here over a journal of others proves nothing about this log.
    let order = if known.is_some() { order } else { OrderId(0) };
    Some(Bygone { below: Seq(join.next_seq), acked: Seq(join.acked_seq), order })
}

fn well_formed(join: Option<&v1::Join>) -> Result<&v1::Join, Rejection> {
    let join = join.ok_or_else(|| Rejection::malformed("join", "absent"))?;
    if join.agent_id.is_empty() || join.agent_id.len() > 128 {
        return Err(Rejection::malformed("join.agent_id", "an agent id has 1 to 128 bytes"));
    }
    if join.name.is_empty() || join.name.len() > 255 {
        return Err(Rejection::malformed("join.name", "a node name has 1 to 255 bytes"));
    }
    if join.journal_id.is_empty() || join.journal_id.len() > 64 {
        return Err(Rejection::malformed("join.journal_id", "a journal id has 1 to 64 bytes"));
    }
    if join.boot_id.len() > 64 {
        return Err(Rejection::malformed("join.boot_id", "a boot id has at most 64 bytes"));
    }
    if join.incarnation == 0 {
        return Err(Rejection::malformed("join.incarnation", "sessions count from 1"));
    }
    if join.first_seq > join.next_seq {
        let why = format!("{}, the next one is {}", join.first_seq, join.next_seq);
        return Err(Rejection::malformed("join.first_seq", why));
    }
    if join.encoded_len() > JOIN_MAX {
        let why = format!("{} bytes, the limit is {JOIN_MAX}", join.encoded_len());
        return Err(Rejection::malformed("join", why));
    }
    Ok(join)
}
