//! Sets of task numbers, kept as stretches: a million tasks that wait cost as much as one.

use proto::v1;
use std::collections::BTreeMap;
use std::fmt;

/// A set of task numbers. Invariant: stretches are not empty, do not touch and do not overlap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ranges {
    /// Last number of each stretch by its first.
    stretches: BTreeMap<u32, u32>,
    count: u64,
}

impl Ranges {
    /// The set of these stretches, both ends included, in any order and overlapping or not.
    pub fn of(stretches: impl IntoIterator<Item = (u32, u32)>) -> Ranges {
        let mut sorted: Vec<(u32, u32)> =
            stretches.into_iter().filter(|(first, last)| first <= last).collect();
        sorted.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match joined.last_mut() {
                Some((_, end)) if u64::from(first) <= u64::from(*end) + 1 => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        let count = joined.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
        Ranges { stretches: joined.into_iter().collect(), count }
    }

    /// How many numbers.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The least number.
    pub fn first(&self) -> Option<u32> {
        self.stretches.first_key_value().map(|(first, _)| *first)
    }

    /// The greatest number.
    pub fn last(&self) -> Option<u32> {
        self.stretches.last_key_value().map(|(_, last)| *last)
    }

    /// As messages hold them.
    pub fn to_wire(&self) -> Vec<v1::TaskRange> {
        self.stretches().map(|(first, last)| v1::TaskRange { first, last, step: 1 }).collect()
    }

    /// The least number above the given one.
    pub fn after(&self, number: u32) -> Option<u32> {
        let next = number.checked_add(1)?;
        if self.contains(next) {
            return Some(next);
        }
        self.stretches.range(next..).next().map(|(first, _)| *first)
    }

    /// How many of its numbers are less than the given one.
    pub fn below(&self, number: u32) -> u64 {
        let begin = self.stretches.range(..number);
        begin.map(|(first, last)| u64::from((*last).min(number - 1) - first) + 1).sum()
    }

    /// Whether the number is in it.
    pub fn contains(&self, number: u32) -> bool {
        self.stretch_of(number).is_some()
    }

    fn stretch_of(&self, number: u32) -> Option<(u32, u32)> {
        let (first, last) = self.stretches.range(..=number).next_back()?;
        (*last >= number).then_some((*first, *last))
    }

    /// Takes a number out; false if it was not in it.
    pub fn remove(&mut self, number: u32) -> bool {
        let Some((first, last)) = self.stretch_of(number) else { return false };
        self.stretches.remove(&first);
        if first < number {
            self.stretches.insert(first, number - 1);
        }
        if number < last {
            self.stretches.insert(number + 1, last);
        }
        self.count -= 1;
        true
    }

    /// What is in both.
    pub fn common(&self, other: &Ranges) -> Ranges {
        let cut = |(first, last): (u32, u32)| {
            let from = other.stretch_of(first).map_or(first, |(begin, _)| begin);
            let begins = other.stretches.range(from..=last);
            begins.map(move |(a, b)| (first.max(*a), last.min(*b))).collect::<Vec<_>>()
        };
        Ranges::of(self.stretches().flat_map(cut))
    }

    /// What is in this one and not in the other.
    pub fn without(&self, other: &Ranges) -> Ranges {
        let mut left = Vec::new();
        for (first, last) in self.stretches() {
            let mut from = Some(first);
            for (a, b) in Ranges::of([(first, last)]).common(other).stretches() {
                if let Some(begin) = from.filter(|begin| *begin < a) {
                    left.push((begin, a - 1));
                }
                from = b.checked_add(1);
            }
            left.extend(from.filter(|begin| *begin <= last).map(|begin| (begin, last)));
        }
        Ranges::of(left)
    }

    /// The stretches in order: first and last number.
    pub fn stretches(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.stretches.iter().map(|(first, last)| (*first, *last))
    }

    /// Every number in order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.stretches().flat_map(|(first, last)| first..=last)
    }
}

/// As people write it: `0-9,12,20-29`.
impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (first, last)) in self.stretches().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set(ranges: &Ranges) -> BTreeSet<u32> {
        ranges.numbers().collect()
    }

    fn any() -> impl Strategy<Value = (Vec<(u32, u32)>, Ranges)> {
        let number = prop_oneof![0..40u32, (u32::MAX - 5)..=u32::MAX];
        let stretch =
            (number, 0..6u32).prop_map(|(first, more)| (first, first.saturating_add(more)));
        proptest::collection::vec(stretch, 0..6).prop_map(|list| (list.clone(), Ranges::of(list)))
    }

    proptest! {
        #[test]
        fn ranges_are_the_sets_they_stand_for((list, ranges) in any(), (_, other) in any(), n in 0..48u32) {
            let plain: BTreeSet<u32> = list.iter().flat_map(|(a, b)| *a..=*b).collect();
            prop_assert_eq!(&set(&ranges), &plain);
            prop_assert_eq!(ranges.len(), plain.len() as u64);
            prop_assert_eq!(ranges.contains(n), plain.contains(&n));
            prop_assert_eq!(ranges.first(), plain.first().copied());
            prop_assert_eq!(ranges.below(n), plain.range(..n).count() as u64);
            let above = plain.range((std::ops::Bound::Excluded(n), std::ops::Bound::Unbounded)).next();
            prop_assert_eq!(ranges.after(n), above.copied());
            let (own, others) = (set(&ranges), set(&other));
            prop_assert_eq!(set(&ranges.common(&other)), &own & &others);
            prop_assert_eq!(set(&ranges.without(&other)), &own - &others);
            let mut less = ranges.clone();
            prop_assert_eq!(less.remove(n), plain.contains(&n));
            prop_assert_eq!(less.len(), set(&less).len() as u64);
            prop_assert_eq!(&less, &Ranges::of(set(&less).into_iter().map(|n| (n, n))));
        }
    }

    #[test]
    fn ranges_are_written_as_people_write_them() {
        assert_eq!(Ranges::of([(5, 5), (0, 3), (4, 4), (8, 9)]).to_string(), "0-5,8-9");
        assert_eq!(Ranges::default().to_string(), "");
    }
}
