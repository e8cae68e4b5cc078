//! Options of `submit` and `run` that keep a job from starting: other jobs, and a time.

use crate::parse::{self, After};
use clap::Args;
use proto::v1::Dependency;

/// What has to happen before a job starts: all of it.
#[derive(Debug, Clone, Default, Args)]
pub struct AfterOptions {
    /// Start when these jobs are DONE; ids such as 12, 12_3 or 12_0-4
    #[arg(long, visible_alias = "after", value_name = "ID,…", value_parser = parse::after_ok)]
    pub after_ok: Vec<After>,
    /// Start when these jobs have ended, in whatever way
    #[arg(long, value_name = "ID,…", value_parser = parse::after_any)]
    pub after_any: Vec<After>,
    /// Start when these jobs have ended and at least one task of each is EXIT
    #[arg(long, visible_alias = "after-not", value_name = "ID,…", value_parser = parse::after_not_ok)]
    pub after_not_ok: Vec<After>,
    /// Start when these jobs have started
    #[arg(long, value_name = "ID,…", value_parser = parse::after_start)]
    pub after_start: Vec<After>,
    /// Start each task when the task of its number in these arrays is DONE
    #[arg(long, value_name = "ID,…", value_parser = parse::after_each)]
    pub after_each: Vec<After>,
    /// The same as Slurm writes it: after, afterok, afterany, afternotok, aftercorr
    #[arg(short = 'd', long, value_name = "KIND:ID[:ID…],…", value_parser = parse::slurm_dependency)]
    pub dependency: Vec<After>,
    /// Start not before: 10:00, 2026-12-01T10:00, now+1h, tomorrow [default: at once]
    #[arg(long, value_name = "TIME", value_parser = parse::begin)]
    pub begin: Option<u64>,
}

impl AfterOptions {
    /// All dependencies, each once.
    pub fn dependencies(&self) -> Vec<Dependency> {
        let given = [
            &self.after_ok,
            &self.after_any,
            &self.after_not_ok,
            &self.after_start,
            &self.after_each,
            &self.dependency,
        ];
        let mut all: Vec<Dependency> = Vec::new();
        let mut known = std::collections::HashSet::new();
        for After(deps) in given.into_iter().flatten() {
            for dep in deps {
                let tasks: Vec<_> = dep.tasks.iter().map(|t| (t.first, t.last, t.step)).collect();
                if known.insert((dep.kind, dep.job, tasks)) {
                    all.push(dep.clone());
                }
            }
        }
        all
    }
}
