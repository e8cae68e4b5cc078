//! Attempts of a job that are over: which node ran one, as the job's causes tell it, or why nobody
//! knows. The ledger keeps no more of them, but their node keeps their output in its run directory.

use docket_core::ledger::{Job, What};
use std::sync::Arc;

/// The agent that ran an attempt below the job's newest; else why there is no output of it, for the
/// reader.
pub(super) fn ran_at(job: &Job, attempt: u32) -> Result<Arc<str>, String> {
    let id = job.id();
    let mut agent = None;
    for cause in job.causes() {
        match &cause.what {
            What::Assigned { agent: to, attempt: of }
            | What::Adopted { agent: to, attempt: of }
                if *of == attempt =>
            {
                agent = Some(Arc::clone(to));
            }
            What::Closed { agent: had, attempt: of, .. } if *of == attempt => {
                agent = Some(Arc::clone(had));
            }
            What::NodeFault { step, errno, attempt: of } if *of == attempt => {
                return Err(format!(
                    "attempt {attempt} of job {id} never ran, so it has no output: {step} failed on \
                     its node (errno {errno})"
                ));
            }
            _ => {}
        }
    }
    agent.ok_or_else(|| match job.causes_dropped() {
        0 => format!("attempt {attempt} of job {id} was never given to a node: it has no output"),
        dropped => format!(
            "nobody knows which node ran attempt {attempt} of job {id}: the {dropped} oldest events of \
             the job are not kept; the output is at runs/{id}/0.{attempt}.out of that node"
        ),
    })
}
