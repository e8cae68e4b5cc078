//! Power loss at every write, fsync, allocation, rename and removal of a long script: what was
//! acknowledged is there, nothing is changed, and the vote never goes back.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{all, entry, open};
use wal::{Fault, FaultyDisk, Keep, Log, LogEntry, Record, WriteError};

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Record>),
    Sync,
    Seal,
    Purge(u64),
    Skip(u64, u64),
}

/// A log as it should be.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    entries: Vec<LogEntry>,
    /// Entries up to here may be gone.
    purged: u64,
    /// Everything up to here must be gone.
    skipped: u64,
    vote: Option<Vec<u8>>,
}

impl Model {
    fn take(&mut self, record: &Record) {
        match record.clone() {
            Record::Entry { index, term, payload } => {
                self.entries.push(LogEntry { index, term, payload });
            }
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Cut { from } => self.entries.retain(|entry| entry.index < from),
            Record::Committed { .. } => {}
        }
    }

    /// Whether a recovered log is this one, up to purged entries.
    fn is(&self, entries: &[LogEntry], first: u64, vote: Option<&Vec<u8>>) -> bool {
        let live: Vec<_> = self.entries.iter().filter(|entry| entry.index >= first).collect();
        first > self.skipped
            && first <= self.purged + 1
            && self.vote.as_ref() == vote
            && live.iter().copied().eq(entries.iter())
    }
}

fn script() -> Vec<Step> {
    let mut steps = Vec::new();
    let mut next = 1;
    let mut add = |steps: &mut Vec<Step>, term, count: u64, bytes| {
        let records = (next..next + count).map(|index| entry(index, term, bytes)).collect();
        next += count;
        steps.push(Step::Append(records));
    };
    steps.push(Step::Append(vec![Record::Vote(vec![1])]));
    add(&mut steps, 1, 2, 700);
    steps.push(Step::Sync);
    add(&mut steps, 1, 1, 10);
    steps.push(Step::Seal);
    for _ in 0..3 {
        add(&mut steps, 1, 2, 900);
    }
    steps.push(Step::Append(vec![Record::Vote(vec![2, 2])]));
    steps.push(Step::Sync);
    add(&mut steps, 2, 1, 6000);
    steps.push(Step::Append(vec![
        Record::Cut { from: 8 },
        entry(8, 3, 300),
        Record::Vote(vec![3]),
        Record::Committed { index: 7, term: 1 },
    ]));
    steps.push(Step::Sync);
    for index in 9..16 {
        steps.push(Step::Append(vec![entry(index, 3, 1500)]));
        if index % 2 == 0 {
            steps.push(Step::Sync);
        }
    }
    steps.push(Step::Purge(9));
    steps.push(Step::Append(vec![Record::Cut { from: 15 }, Record::Vote(vec![4])]));
    steps.push(Step::Seal);
    steps.push(Step::Append(vec![entry(15, 4, 5000)]));
    steps.push(Step::Purge(15));
    steps.push(Step::Sync);
    steps.push(Step::Skip(40, 5));
    steps.push(Step::Append(vec![entry(41, 5, 100), Record::Vote(vec![5])]));
    steps.push(Step::Sync);
    for index in 42..50 {
        steps.push(Step::Append(vec![entry(index, 5, 2000)]));
    }
    steps.push(Step::Purge(44));
    steps.push(Step::Seal);
    steps
}

/// The models that a crash may show: from the acknowledged one to the newest attempted one.
struct Run {
    history: Vec<Model>,
    acknowledged: usize,
}

impl Run {
    fn new(model: Model) -> Run {
        Run { history: vec![model], acknowledged: 0 }
    }

    fn now(&self) -> Model {
        self.history.last().unwrap().clone()
    }

    fn acknowledge(&mut self) {
        self.acknowledged = self.history.len() - 1;
    }

    /// Runs one step, noting first what it may leave behind.
    fn step(&mut self, log: &mut Log<FaultyDisk>, step: &Step) -> Result<(), WriteError> {
        match step {
            Step::Append(records) => {
                let mut model = self.now();
                records.iter().for_each(|record| model.take(record));
                self.history.push(model);
                log.append(records)?;
            }
            Step::Sync => {
                log.sync()?;
                self.acknowledge();
            }
            Step::Seal => {
                log.seal()?;
                self.acknowledge();
            }
            Step::Purge(up_to) => {
                // Purging acknowledges nothing; it only widens what may be gone.
                for model in &mut self.history {
                    model.purged = model.purged.max(*up_to);
                }
                log.purge(*up_to, None)?;
            }
            Step::Skip(index, _) => {
                let mut model = self.now();
                model.entries.clear();
                (model.purged, model.skipped) = (*index, *index);
                self.history.push(model);
                let Step::Skip(index, term) = step else { unreachable!() };
                log.skip_to(*index, *term)?;
                self.acknowledge();
            }
        }
        Ok(())
    }

    /// Finds the recovered log among those that are allowed.
    fn check(&self, log: &Log<FaultyDisk>, vote: Option<&Vec<u8>>, what: &str) -> usize {
        let entries = all(log);
        let allowed = &self.history[self.acknowledged..];
        let place = allowed.iter().position(|model| model.is(&entries, log.first_index(), vote));
        let place = place.unwrap_or_else(|| {
            let span: Vec<_> = entries.iter().map(|entry| (entry.index, entry.term)).collect();
            panic!("{what}: {span:?}, vote {vote:?} is none of {}", allowed.len())
        });
        self.acknowledged + place
    }
}

fn crash_at(change: u64, keep: Keep, seed: u64) -> bool {
    let what = format!("power loss at change {change}, {keep:?}, seed {seed}");
    let mut disk = FaultyDisk::new(seed);
    disk.arm(Fault::PowerLossAt(change));
    let mut run = Run::new(Model::default());
    let steps = script();
    let mut done = 0;
    if let Ok((mut log, _)) = open(disk.clone()) {
        for step in &steps {
            if run.step(&mut log, step).is_err() {
                break;
            }
            done += 1;
        }
    }
    disk.crash(keep);
    let (log, found) = open(disk.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let place = run.check(&log, found.vote.as_ref(), &what);
    // A second crash, right after opening: what was shown must stay.
    drop(log);
    disk.crash(Keep::Nothing);
    let (mut log, found) = open(disk.clone()).unwrap_or_else(|e| panic!("{what}, again: {e}"));
    let model = run.history[place].clone();
    assert!(model.is(&all(&log), log.first_index(), found.vote.as_ref()), "{what}, again");
    // And the log goes on.
    let mut run = Run::new(model);
    let next = log.last_index() + 1;
    run.step(&mut log, &Step::Append(vec![entry(next, 9, 3000), Record::Vote(vec![9])])).unwrap();
    run.step(&mut log, &Step::Sync).unwrap();
    drop(log);
    disk.crash(Keep::Nothing);
    let (log, found) = open(disk).unwrap_or_else(|e| panic!("{what}, on: {e}"));
    run.check(&log, found.vote.as_ref(), &what);
    done == steps.len()
}

#[test]
fn power_loss_at_every_change_keeps_what_was_acknowledged() {
    let mut change = 1;
    loop {
        let mut finished = true;
        for (keep, seed) in [
            (Keep::Nothing, 1),
            (Keep::Everything, 2),
            (Keep::Random, 3),
            (Keep::Random, 4 + change * 7),
            (Keep::Random, 5 + change * 11),
        ] {
            finished &= crash_at(change, keep, seed);
        }
        if finished {
            break;
        }
        change += 1;
    }
    assert!(change > 100, "the script makes {change} changes");
}

/// A failed fsync, the process ends, the machine lives on; later power is lost.
#[test]
fn a_failing_fsync_anywhere_loses_nothing_that_was_acknowledged_or_shown() {
    for nth in 1.. {
        let mut disk = FaultyDisk::new(nth);
        disk.arm(Fault::FailSync(nth));
        let mut run = Run::new(Model::default());
        let mut failed = true;
        if let Ok((mut log, _)) = open(disk.clone()) {
            failed = script().iter().any(|step| run.step(&mut log, step).is_err());
        }
        disk.kill();
        let what = format!("fsync {nth} failed");
        let (log, found) = open(disk.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let place = run.check(&log, found.vote.as_ref(), &what);
        drop(log);
        disk.crash(Keep::Nothing);
        let (log, found) = open(disk).unwrap_or_else(|e| panic!("{what}, then power: {e}"));
        let model = &run.history[place];
        assert!(model.is(&all(&log), log.first_index(), found.vote.as_ref()), "{what}, then power");
        if !failed {
            assert!(nth > 20, "{nth}");
            break;
        }
    }
}

#[test]
fn a_failing_write_anywhere_loses_nothing_that_was_acknowledged() {
    for nth in 1.. {
        let mut disk = FaultyDisk::new(nth);
        disk.arm(Fault::FailWrite(nth));
        let mut run = Run::new(Model::default());
        let mut failed = true;
        if let Ok((mut log, _)) = open(disk.clone()) {
            failed = script().iter().any(|step| run.step(&mut log, step).is_err());
        }
        disk.crash(Keep::Random);
        let what = format!("write {nth} failed");
        let (log, found) = open(disk).unwrap_or_else(|e| panic!("{what}: {e}"));
        run.check(&log, found.vote.as_ref(), &what);
        if !failed {
            break;
        }
    }
}

/// Power is lost while opening repairs the damage of the power loss before.
#[test]
fn power_loss_inside_recovery_is_recovered_from() {
    let mut seed = 0;
    for first in (20..150).step_by(7) {
        for second in 1..12 {
            seed += 1;
            let mut disk = FaultyDisk::new(seed);
            disk.arm(Fault::PowerLossAt(first));
            let mut run = Run::new(Model::default());
            if let Ok((mut log, _)) = open(disk.clone()) {
                let _ = script().iter().all(|step| run.step(&mut log, step).is_ok());
            }
            disk.crash(Keep::Random);
            disk.arm(Fault::PowerLossAt(second));
            let _ = open(disk.clone());
            disk.crash(Keep::Random);
            let what = format!("power loss at {first}, then at {second}, seed {seed}");
            let (log, found) = open(disk).unwrap_or_else(|e| panic!("{what}: {e}"));
            run.check(&log, found.vote.as_ref(), &what);
        }
    }
}
