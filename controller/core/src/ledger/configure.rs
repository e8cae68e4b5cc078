//! Configure: values of the cluster, at the bootstrap and by `docket cluster set`.

use super::book::Ledger;
use super::outcome::{Outcome, Rejection};
use super::policy;
use super::submit::requester;
use proto::v1;

impl Ledger {
    /// Without a requester it is the bootstrap of the controller itself.
    pub(super) fn configure(
        &mut self,
        command: &v1::ConfigureCommand,
    ) -> Result<Outcome, Rejection> {
        if command.by.is_some() && !requester(command.by.as_ref())?.admin {
            return Err(Rejection::NotAdmin);
        }
        let policy = command.policy.as_ref().map(policy::judge).transpose()?;
        self.judge_identity(command)?;
        if let Some(policy) = policy {
            self.policy = policy;
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
        Ok(Outcome::Configured)
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
