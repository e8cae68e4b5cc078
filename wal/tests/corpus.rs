//! The fuzz target's body on real logs (`fuzz/seeds`: one of a controller, one of a keeper, both cut
//! behind their last frame), on what fuzzing kept (`fuzz/corpus-kept`), and on many changed copies of the
//! logs; see `docs/fuzzing.md`.
#![allow(clippy::unwrap_used)]

#[path = "../fuzz/body.rs"]
mod body;

use proptest::prelude::*;

fn seeds() -> Vec<Vec<u8>> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds");
    let mut seeds: Vec<Vec<u8>> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect();
    seeds.sort();
    seeds
}

/// One change of a file.
#[derive(Debug, Clone)]
enum Change {
    Set { at: usize, to: u8 },
    Number { at: usize, to: u32 },
    Cut { at: usize },
    Move { from: usize, to: usize, bytes: usize },
    Insert { at: usize, bytes: usize },
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>().prop_map(|at| at.index(1 << 20));
    let edge = prop_oneof![Just(0), Just(1), Just(7), Just(u32::MAX), Just(1 << 31), any::<u32>()];
    prop_oneof![
        4 => (at.clone(), any::<u8>()).prop_map(|(at, to)| Change::Set { at, to }),
        4 => (at.clone(), edge).prop_map(|(at, to)| Change::Number { at, to }),
        1 => at.clone().prop_map(|at| Change::Cut { at }),
        1 => (at.clone(), at.clone(), 1..400usize)
            .prop_map(|(from, to, bytes)| Change::Move { from, to, bytes }),
        1 => (at, 1..100usize).prop_map(|(at, bytes)| Change::Insert { at, bytes }),
    ]
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        let size = file.len().max(1);
        let place = |at: usize| at % size;
        match *self {
            Change::Set { at, to } => file[place(at)] = to,
            Change::Number { at, to } => {
                let at = place(at) / 4 * 4;
                if let Some(four) = file.get_mut(at..at + 4) {
                    four.copy_from_slice(&to.to_le_bytes());
                }
            }
            Change::Cut { at } => file.truncate(place(at).max(1)),
            Change::Move { from, to, bytes } => {
                let from = place(from);
                let part = file[from..(from + bytes).min(file.len())].to_vec();
                let to = place(to).min(file.len() - part.len());
                file[to..to + part.len()].copy_from_slice(&part);
            }
            Change::Insert { at, bytes } => {
                let at = place(at);
                file.splice(at..at, std::iter::repeat_n(0, bytes));
            }
        }
    }
}

#[test]
fn real_logs_are_whole_and_stay_so_with_fresh_checksums() {
    for seed in seeds() {
        for how in 0..4 {
            body::judge(&[&[how], seed.as_slice()].concat());
        }
    }
}

#[test]
fn what_fuzzing_kept_is_judged() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus-kept");
    let kept: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(kept.len() >= 10, "{} inputs", kept.len());
    for path in kept {
        eprintln!("{}", path.display()); // shown if it fails
        body::judge(&std::fs::read(path).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_changed_in_a_real_log_is_judged_and_never_a_crash(
        seed in any::<prop::sample::Index>(),
        how in 0u8..4,
        changes in prop::collection::vec(change(), 1..6),
    ) {
        let seeds = seeds();
        let mut file = seeds[seed.index(seeds.len())].clone();
        changes.iter().for_each(|change| change.apply(&mut file));
        body::judge(&[&[how], file.as_slice()].concat());
    }
}
