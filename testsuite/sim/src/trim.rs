//! What a run leaves out of its seed's plan: a failing seed is made smaller this way, and the
//! command line that repeats it says what is left.

use crate::trace::Tracing;
use crate::world::{Report, Violation, run_case};
use clap::Args;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Less than the plan; what is `None` stays as the seed drew it.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub struct Trim {
    /// Nodes, the first of the seed's.
    #[arg(long, value_name = "N")]
    pub nodes: Option<usize>,
    /// Controllers.
    #[arg(long, value_name = "N")]
    pub controllers: Option<usize>,
    /// Only these jobs of the plan are submitted.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub jobs: Option<Vec<usize>>,
    /// Only these faults strike, counted from 0 in the order of the run.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub strikes: Option<Vec<u64>>,
    /// All faults go off after this time, and none come again, ms.
    #[arg(long, value_name = "MS")]
    pub calm_after: Option<u64>,
}

/// One run: a seed, what is left out of it, and the bug that is switched on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Case {
    /// Everything follows from it.
    pub seed: u64,
    /// What is left out.
    pub trim: Trim,
    /// Number of the bug; needs the feature `mutants`.
    pub mutant: Option<u16>,
}

impl Trim {
    /// Whether this job of the plan is submitted.
    pub fn wants_job(&self, job: usize) -> bool {
        self.jobs.as_ref().is_none_or(|jobs| jobs.contains(&job))
    }

    /// Whether this fault strikes.
    pub fn wants_strike(&self, number: u64) -> bool {
        self.strikes.as_ref().is_none_or(|strikes| strikes.contains(&number))
    }

    fn words(&self) -> String {
        let mut words = String::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                words.push_str(&format!(" --{name} {value}"));
            }
        };
        add("nodes", self.nodes.map(|n| n.to_string()));
        add("controllers", self.controllers.map(|n| n.to_string()));
        add("jobs", self.jobs.as_ref().map(|list| joined(list)));
        add("strikes", self.strikes.as_ref().map(|list| joined(list)));
        add("calm-after", self.calm_after.map(|n| n.to_string()));
        words
    }
}

/// An empty list reads back as one number that is no job and no fault.
fn joined(list: &[impl ToString]) -> String {
    if list.is_empty() {
        return u32::MAX.to_string();
    }
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl Case {
    /// The one command that does it again, line by line.
    pub fn command(&self) -> String {
        let (features, mutant) = match self.mutant {
            Some(number) => (" --features mutants", format!(" --mutant {number}")),
            None => ("", String::new()),
        };
        format!(
            "cargo run --release -p testsuite --bin sim{features} -- --seed {}{mutant}{} --trace",
            self.seed,
            self.trim.words()
        )
    }

    /// Runs it; a panic of the code under test is a broken property like any other.
    pub fn run(&self) -> Report {
        catch_unwind(AssertUnwindSafe(|| run_case(self, Tracing::Off))).unwrap_or_else(|panic| {
            let what = text_of(&*panic);
            let violation = Violation { property: ASSERTION, what, at_ms: 0 };
            Report { violation: Some(violation), ..Report::default() }
        })
    }
}

/// What a panic in the code under test counts as.
pub const ASSERTION: &str = "assertion";

/// What a panic said.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
