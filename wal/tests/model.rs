//! Random work against a model that is a plain vector: appends, cuts, syncs, purges, skips,
//! restarts, crashes, a disk that fills up and empties.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{ME, payload, tiny};
use proptest::prelude::*;
use wal::{FaultyDisk, Keep, Log, LogEntry, Record, WriteError};

#[derive(Debug, Clone)]
enum Act {
    Append { entries: Vec<usize>, vote: bool },
    CutBack(u64),
    Sync,
    Seal,
    Purge(u64),
    Skip(u64),
    Restart,
    Crash { keep: u8, seed: u64 },
    Full,
    Empty,
    ReadSome(u64, u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let bytes = prop_oneof![3 => 0..200usize, 1 => 200..6000usize];
    let one = prop_oneof![
        10 => (prop::collection::vec(bytes, 1..5), any::<bool>())
            .prop_map(|(entries, vote)| Act::Append { entries, vote }),
        2 => (1..8u64).prop_map(Act::CutBack),
        4 => Just(Act::Sync),
        2 => Just(Act::Seal),
        2 => (0..30u64).prop_map(Act::Purge),
        1 => (0..5u64).prop_map(Act::Skip),
        1 => Just(Act::Restart),
        2 => (0..3u8, any::<u64>()).prop_map(|(keep, seed)| Act::Crash { keep, seed }),
        1 => Just(Act::Full),
        2 => Just(Act::Empty),
        3 => (0..60u64, 0..9u64).prop_map(|(from, count)| Act::ReadSome(from, count)),
    ];
    prop::collection::vec(one, 1..60)
}

#[derive(Debug, Clone, Default, PartialEq)]
struct State {
    /// Live or purged entries, contiguous; the last one has index `last`.
    entries: Vec<LogEntry>,
    last: u64,
    /// Nothing up to here may be live.
    skipped: u64,
    vote: Option<Vec<u8>>,
}

impl State {
    fn apply(&mut self, records: &[Record]) {
        for record in records {
            match record.clone() {
                Record::Entry { index, term, payload } => {
                    self.entries.push(LogEntry { index, term, payload });
                    self.last = index;
                }
                Record::Vote(vote) => self.vote = Some(vote),
                Record::Cut { from } => {
                    self.entries.retain(|entry| entry.index < from);
                    self.last = from - 1;
                }
                Record::Committed { .. } => {}
            }
        }
    }
}

struct World {
    disk: FaultyDisk,
    log: Option<Log<FaultyDisk>>,
    /// Acknowledged state, then one for every batch since.
    states: Vec<State>,
    purged: u64,
    term: u64,
    seed: u64,
}

impl World {
    fn new() -> World {
        let disk = FaultyDisk::new(77);
        let log = Log::open(disk.clone(), ME, tiny()).unwrap().0;
        let states = vec![State::default()];
        World { disk, log: Some(log), states, purged: 0, term: 1, seed: 0 }
    }

    fn now(&self) -> &State {
        self.states.last().unwrap()
    }

    fn log(&mut self) -> &mut Log<FaultyDisk> {
        self.log.as_mut().unwrap()
    }

    fn acknowledge(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    fn append(&mut self, records: &[Record]) {
        match self.log().append(records) {
            Ok(_) => {
                let mut next = self.now().clone();
                next.apply(records);
                self.states.push(next);
            }
            Err(WriteError::NoSpace { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }

    fn run(&mut self, act: &Act) {
        match act {
            Act::Append { entries, vote } => self.append_entries(entries, *vote),
            Act::CutBack(count) => {
                let from = (self.now().last + 1).saturating_sub(*count);
                let from = from.max(self.log().first_index());
                self.append(&[Record::Cut { from }]);
            }
            Act::Sync => {
                self.log().sync().unwrap();
                self.acknowledge();
            }
            Act::Seal => {
                self.log().seal().unwrap();
                self.acknowledge();
            }
            Act::Purge(back) => {
                let up_to = self.now().last.saturating_sub(*back);
                self.purged = self.purged.max(up_to);
                self.log().purge(up_to, None).unwrap();
            }
            Act::Skip(ahead) => self.skip(*ahead),
            Act::Restart => {
                self.disk.kill();
                self.reopen();
            }
            Act::Crash { keep, seed } => {
                self.seed ^= seed;
                let keep = [Keep::Nothing, Keep::Everything, Keep::Random][*keep as usize];
                self.disk.crash(keep);
                self.reopen();
            }
            Act::Full => {
                let used = self.disk.used();
                self.disk.set_capacity(Some(used));
            }
            Act::Empty => self.disk.set_capacity(None),
            Act::ReadSome(from, count) => self.read_some(*from, *count),
        }
        self.check();
    }

    fn append_entries(&mut self, sizes: &[usize], vote: bool) {
        let mut records = Vec::new();
        for (index, size) in (self.now().last + 1..).zip(sizes) {
            let term = self.term;
            records.push(Record::Entry { index, term, payload: payload(index, term, *size) });
        }
        if vote {
            self.term += 1;
            records.push(Record::Vote(self.term.to_le_bytes().to_vec()));
        }
        self.append(&records);
    }

    fn skip(&mut self, ahead: u64) {
        let (to, term) = (self.now().last + ahead, self.term);
        match self.log().skip_to(to, term) {
            Ok(()) => {
                let vote = self.now().vote.clone();
                self.states = vec![State { entries: Vec::new(), last: to, skipped: to, vote }];
                self.purged = self.purged.max(to);
            }
            Err(WriteError::NoSpace { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }

    fn reopen(&mut self) {
        self.log = None;
        // Some room: a log on a full disk opens too, but a first segment needs its space.
        let (log, found) = Log::open(self.disk.clone(), ME, tiny()).unwrap();
        let last = log.last_index();
        let place = self.states.iter().position(|state| {
            let live = state.entries.iter().filter(|entry| entry.index >= log.first_index());
            state.last == last
                && state.vote == found.vote
                && live.eq(log.read(log.first_index(), last).unwrap().iter())
        });
        let place = place.unwrap_or_else(|| panic!("not a state since the last sync: {found:?}"));
        // What was shown is acknowledged: opening made it durable.
        self.states = vec![self.states[place].clone()];
        self.log = Some(log);
    }

    fn read_some(&mut self, from: u64, count: u64) {
        let first = self.log().first_index();
        let inside = from >= first && from + count <= self.now().last;
        match self.log().read(from, from + count) {
            Ok(read) => {
                assert!(inside);
                let state = self.now();
                let expected: Vec<_> = state
                    .entries
                    .iter()
                    .filter(|entry| (from..=from + count).contains(&entry.index))
                    .cloned()
                    .collect();
                assert_eq!(read, expected);
            }
            Err(e) => assert!(!inside, "{e}"),
        }
    }

    fn check(&mut self) {
        let (first, last) = (self.log().first_index(), self.log().last_index());
        assert_eq!(last, self.now().last);
        assert!(first > self.now().skipped && first <= self.purged + 1);
        let read = self.log().read(first, last).unwrap();
        let live: Vec<_> = self.now().entries.iter().filter(|e| e.index >= first).collect();
        assert!(live.iter().copied().eq(read.iter()));
        for entry in &read {
            assert_eq!(self.log().term_at(entry.index), Some(entry.term));
        }
    }
}

proptest! {
    #[test]
    fn the_log_is_a_vector_that_survives(acts in acts()) {
        let mut world = World::new();
        for act in &acts {
            world.run(act);
        }
        world.run(&Act::Sync);
        world.run(&Act::Crash { keep: 0, seed: 0 });
    }
}
