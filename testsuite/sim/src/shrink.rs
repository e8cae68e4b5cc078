//! Makes a failing run smaller while it still breaks the same property: fewer faults, jobs, nodes
//! and controllers, and an earlier calm. Greedy halving: what is left out once stays out.

use crate::trim::{Case, Trim};
use crate::world::{Report, Violation};

/// Runs of one shrinking at most; each takes some hundredths of a second.
const RUNS_MAX: u32 = 600;

/// A smaller run and what it breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shrunk {
    /// The run.
    pub case: Case,
    /// What it does.
    pub report: Report,
    /// Runs that it took to find it.
    pub runs: u32,
    /// Jobs and faults that are left.
    pub left: (usize, usize),
}

/// The smallest run that was found to break the same property as this one; `None` if that breaks
/// none.
pub fn shrink(case: &Case) -> Option<Shrunk> {
    let report = case.run();
    let property = report.violation.as_ref()?.property;
    let mut search = Search { case: case.clone(), report, property, runs: 1 };
    // Everything at first, so that the lists can be cut.
    let (jobs, strikes) = search.lists();
    loop {
        let before = search.case.clone();
        search.shorten();
        search.fewer_strikes(&strikes);
        search.fewer_jobs(&jobs);
        search.fewer_machines();
        if search.case == before || search.runs >= RUNS_MAX {
            break;
        }
    }
    let trim = &search.case.trim;
    let left = (
        trim.jobs.as_ref().map_or(jobs.len(), Vec::len),
        trim.strikes.as_ref().map_or(strikes.len(), Vec::len),
    );
    Some(Shrunk { case: search.case, report: search.report, runs: search.runs, left })
}

struct Search {
    case: Case,
    report: Report,
    property: &'static str,
    runs: u32,
}

impl Search {
    /// Jobs and faults of the run as it stands. A run that panicked cannot tell: then generously.
    fn lists(&self) -> (Vec<usize>, Vec<u64>) {
        let strikes = if self.report.strikes > 0 { self.report.strikes } else { 1_000 };
        let jobs = self.case.trim.jobs.clone();
        let faults = self.case.trim.strikes.clone();
        (
            jobs.unwrap_or_else(|| (0..crate::plan::JOBS_MAX as usize).collect()),
            faults.unwrap_or_else(|| (0..strikes).collect()),
        )
    }

    /// Takes the change if the run still breaks the same property.
    fn try_with(&mut self, change: impl FnOnce(&mut Trim)) -> bool {
        let mut case = self.case.clone();
        change(&mut case.trim);
        if case == self.case || self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        let report = case.run();
        let same = report.violation.as_ref().is_some_and(|v| v.property == self.property);
        if same {
            (self.case, self.report) = (case, report);
        }
        same
    }

    /// The calm may come right after what was seen, or in the middle of the time before.
    fn shorten(&mut self) {
        let seen = self.report.violation.as_ref().map_or(0, |Violation { at_ms, .. }| *at_ms);
        let mut end = self.case.trim.calm_after.unwrap_or(seen + 1).max(1);
        self.try_with(|trim| trim.calm_after = Some(end));
        while end > 1_000 && self.try_with(|trim| trim.calm_after = Some(end / 2)) {
            end /= 2;
        }
    }

    fn fewer_strikes(&mut self, all: &[u64]) {
        let list = self.case.trim.strikes.clone().unwrap_or_else(|| all.to_vec());
        self.fewer(list, |trim, list| trim.strikes = Some(list));
    }

    fn fewer_jobs(&mut self, all: &[usize]) {
        let list = self.case.trim.jobs.clone().unwrap_or_else(|| all.to_vec());
        self.fewer(list, |trim, list| trim.jobs = Some(list));
    }

    /// Leaves out halves, quarters, and so on down to single ones.
    fn fewer<T: Copy>(&mut self, mut list: Vec<T>, put: impl Fn(&mut Trim, Vec<T>)) {
        let mut size = list.len();
        while size > 0 {
            let mut at = 0;
            while at < list.len() {
                let end = (at + size).min(list.len());
                let rest: Vec<T> = list[..at].iter().chain(&list[end..]).copied().collect();
                if self.try_with(|trim| put(trim, rest.clone())) {
                    list = rest;
                } else {
                    at = end;
                }
            }
            size /= 2;
        }
    }

    fn fewer_machines(&mut self) {
        for n in 1..=3 {
            if self.case.trim.nodes.is_none_or(|nodes| n < nodes)
                && self.try_with(|trim| trim.nodes = Some(n))
            {
                break;
            }
        }
        if self.case.trim.controllers.is_none() {
            self.try_with(|trim| trim.controllers = Some(1));
        }
    }
}
