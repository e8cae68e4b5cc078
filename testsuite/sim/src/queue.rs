//! What will happen, by virtual time. Ties are broken by chance, so that each order of two things
//! of the same millisecond is tried; whatever must keep its order queues up behind its own event.

use crate::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events by due time.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Due<E>>>,
    serial: u64,
    ties: Rng,
}

#[derive(Debug)]
struct Due<E> {
    key: (u64, u64, u64),
    event: E,
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Due<E> {}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<E> Queue<E> {
    pub fn new(seed: u64) -> Queue<E> {
        Queue { heap: BinaryHeap::new(), serial: 0, ties: Rng::new(!seed) }
    }

    pub fn push(&mut self, at_ms: u64, event: E) {
        self.serial += 1;
        let key = (at_ms, self.ties.below(1 << 16), self.serial);
        self.heap.push(Reverse(Due { key, event }));
    }

    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse(due)| (due.key.0, due.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_ties_in_any_order() {
        let mut orders = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let mut queue = Queue::new(seed);
            queue.push(5, 'c');
            queue.push(1, 'a');
            queue.push(1, 'b');
            let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, e)| e).collect();
            assert!(order.ends_with('c'));
            orders.insert(order);
        }
        assert_eq!(orders.len(), 2);
    }
}
