//! Configure: values of the cluster, at the bootstrap and by `docket cluster set`.

use super::assign::stale;
use super::book::Ledger;
use super::memory::{Edit, Verb};
use super::outcome::{Outcome, Rejection};
use super::policy;
use super::submit::requester;
use prost::Message as _;
use proto::v1;
use std::sync::Arc;

impl Ledger {
    /// Without a requester it is the bootstrap of the controller itself.
    pub(super) fn configure(
        &mut self,
        command: &v1::ConfigureCommand,
    ) -> Result<Outcome, Rejection> {
        if command.by.is_some() && !requester(command.by.as_ref())?.admin {
            return Err(Rejection::NotAdmin);
        }
        // Without an id there is nothing to remember it by: each counts.
        let asker = match &command.by {
            by @ Some(_) if !command.request_id.is_empty() => {
                Some(self.asker(by.as_ref(), &command.request_id)?)
            }
            _ => None,
        };
        if let Some(asker) = &asker {
            // Done twice, it would take back what was set since (P8).
            if self.settings.recall(asker).is_some() {
                return Ok(Outcome::Configured);
            }
            self.settings.judge_age(&asker.request, self.wall_ms)?;
        }
        if self.is_other(command.before.as_deref()) {
            return Ok(stale("the values of the cluster were changed meanwhile"));
        }
        let policy = command.policy.as_ref().map(policy::judge).transpose()?;
        self.judge_identity(command)?;
        if let Some(policy) = policy {
            self.policy = policy;
            self.offers = Arc::new(policy::offers(&self.policy));
            self.index.rank_again(&self.jobs, &self.policy);
        }
        if let Some(id) = &command.cluster_id {
            self.cluster_id.clone_from(id);
        }
        if let Some(raised) = command.generation.filter(|raised| *raised > self.raised) {
            self.raised = raised;
            // A join that showed an older log may have opened some of which no identity file knows.
            self.open_generation(raised.max(self.generation + 1), self.next_job_id);
        }
        if let Some(asker) = &asker {
            self.settings.remember(Edit::new(asker, Verb::Configure, 0, self.led_ms));
        }
        Ok(Outcome::Configured)
    }

    /// Whether the policy is another one than that.
    fn is_other(&self, before: Option<&[u8]>) -> bool {
        before.is_some_and(|before| v1::Policy::decode(before).as_ref() != Ok(&self.policy))
    }

    /// A cluster keeps its id for life; its generation only grows: tokens rely on both.
    fn judge_identity(&self, command: &v1::ConfigureCommand) -> Result<(), Rejection> {
        if let Some(id) = &command.cluster_id {
            if id.is_empty() || id.len() > 128 {
                return Err(Rejection::malformed("cluster_id", "a cluster id has 1 to 128 bytes"));
            }
            if !self.cluster_id.is_empty() && *id != self.cluster_id {
                let why = format!("this cluster is {} and stays it", self.cluster_id);
                return Err(Rejection::malformed("cluster_id", why));
            }
        }
        match command.generation {
            Some(given) if given < self.raised => {
                let why = format!("{given} given, {} was given already", self.raised);
                Err(Rejection::malformed("generation", why))
            }
            _ => Ok(()),
        }
    }
}
