//! The one transition function: live, at recovery, in simulation and in inspection.
//! It is total: what makes no sense is an outcome, computed alike by every replica.

use super::book::Ledger;
use super::outcome::{Applied, Outcome, Rejection};
use super::tick::SETTLED_MAX;
use proto::mutants::Mutant;
use proto::{OrderId, v1, v1::command::Kind};
use std::collections::BTreeMap;

/// Bits of an order id that count the commands of an entry.
const ORDINAL_BITS: u32 = 12;

/// Commands of one entry that can be numbered; the proposer sends at most 1,024.
const COMMANDS_MAX: u64 = 1 << ORDINAL_BITS;

const _: () = assert!(COMMANDS_MAX >= 1024);

/// Blobs that came with the proposal, by hash.
pub(super) type Incoming<'a> = BTreeMap<&'a [u8], &'a [u8]>;

/// The order id of a command: its entry's log index, then its place in the entry.
pub fn order_id(index: u64, ordinal: u64) -> OrderId {
    OrderId((index << ORDINAL_BITS) | (ordinal & (COMMANDS_MAX - 1)))
}

impl Ledger {
    /// Applies the entry at `index`. Entries come in log order, each once; the index may skip
    /// entries that hold no proposal.
    ///
    /// An entry above this program's level changes nothing and every outcome says
    /// [`Rejection::TooHighLevel`]: the caller must stop, for its state is behind from there on.
    ///
    /// # Panics
    /// If `index` was applied before: the caller's log is then broken.
    pub fn apply(&mut self, index: u64, proposal: &v1::Proposal) -> Applied {
        assert!(index > self.applied, "entry {index} comes after entry {}", self.applied);
        if let Some(rejection) = level_refused(proposal.level) {
            let refused = |_: &v1::Command| Outcome::Rejected(rejection.clone());
            return Applied {
                outcomes: proposal.commands.iter().map(refused).collect(),
                changed: Vec::new(),
            };
        }
        self.applied = index;
        self.wall_ms = proposal.wall_ms;
        let led_ms = match proposal.led_ms {
            _ if Mutant::WallClockDeadlines.active() => proposal.wall_ms,
            led_ms => led_ms,
        };
        self.led_ms = self.led_ms.max(led_ms);
        let blobs: Incoming<'_> =
            proposal.blobs.iter().map(|blob| (&*blob.hash, &*blob.data)).collect();
        let outcomes = (0u64..)
            .zip(&proposal.commands)
            .map(|(ordinal, command)| self.apply_command(ordinal, command, &blobs))
            .collect();
        let changed = std::mem::take(&mut self.changed).into_iter().collect();
        Applied { outcomes, changed }
    }

    fn apply_command(
        &mut self,
        ordinal: u64,
        command: &v1::Command,
        blobs: &Incoming<'_>,
    ) -> Outcome {
        if ordinal >= COMMANDS_MAX {
            let why = format!("an entry has at most {COMMANDS_MAX} commands");
            return Outcome::Rejected(Rejection::malformed("commands", why));
        }
        self.order = order_id(self.applied, ordinal);
        let outcome = match &command.kind {
            None => Err(Rejection::malformed("kind", "a command without content")),
            Some(Kind::Submit(submit)) => self.submit(submit, blobs),
            Some(Kind::Assign(assign)) => self.assign(assign),
            Some(Kind::Facts(facts)) => self.take_facts(facts),
            Some(Kind::Cancel(cancel)) => self.cancel(cancel),
            Some(Kind::Unknown(unknown)) => self.unknown(unknown),
            Some(Kind::Manifest(manifest)) => self.manifest(manifest),
            Some(Kind::AgentUp(up)) => self.agent_up(up),
            Some(Kind::AgentDown(down)) => self.agent_down(down),
            Some(Kind::Configure(configure)) => self.configure(configure),
            Some(Kind::Tick(_)) => Ok(self.tick()),
            Some(Kind::Term(term)) => Ok(self.begin_term(term)),
            Some(Kind::Suspend(suspend)) => self.suspend(suspend),
            Some(Kind::Hold(hold)) => self.hold(hold),
            Some(Kind::Priority(priority)) => self.prioritise(priority),
            Some(Kind::ConfirmDead(confirm)) => self.confirm_dead(confirm),
            Some(Kind::Fenced(fenced)) => self.fenced(fenced),
            Some(Kind::Drain(drain)) => self.drain_node(drain),
            Some(Kind::ArrayLimit(limit)) => self.limit_arrays(limit),
            Some(Kind::Set(set)) => self.set(set),
        };
        let ticked = matches!(command.kind, Some(Kind::Tick(_)));
        self.follow_up(if ticked { 0 } else { SETTLED_MAX });
        outcome.unwrap_or_else(Outcome::Rejected)
    }
}

impl Ledger {
    /// What a command leads to in its own step: facts that waited for it, jobs that waited for what it
    /// ended, at most so many, and room for what ended.
    fn follow_up(&mut self, most: u32) {
        let mut left = most;
        loop {
            self.drain();
            let told = self.tell(left);
            left -= told;
            if told == 0 {
                break;
            }
        }
        self.evict_beyond_limit();
    }
}

fn level_refused(level: u32) -> Option<Rejection> {
    match level {
        0 => Some(Rejection::malformed("level", "a proposal carries a level from 1")),
        1..=proto::LEVEL => None,
        _ => Some(Rejection::TooHighLevel { level, known: proto::LEVEL }),
    }
}
