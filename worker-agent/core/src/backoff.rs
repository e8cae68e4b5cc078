//! When to dial again: exponential with full jitter, so that thousands of agents that lost the
//! same leader do not come back in one instant.

/// The wait grows with every try and shrinks only when a session has proven useful: a connect
/// alone proves nothing (a peer that accepts and closes would be dialled in a hot loop).
#[derive(Clone, Debug)]
pub struct Backoff {
    tries: u32,
    ceiling_ms: u64,
    seed: u64,
}

/// Ceiling of the first wait.
const FIRST_MS: u64 = 100;

impl Backoff {
    /// `seed` is the shell's random number of this process.
    pub fn new(ceiling_ms: u64, seed: u64) -> Self {
        Backoff { tries: 0, ceiling_ms: ceiling_ms.max(FIRST_MS), seed }
    }

    /// A heartbeat was served: the next wait is short again.
    pub fn reset(&mut self) {
        self.tries = 0;
    }

    /// How long to wait now: uniform in 0..=min(ceiling, 100 ms × 2^tries).
    pub fn next_ms(&mut self) -> u64 {
        let grown = FIRST_MS.saturating_mul(1 << self.tries.min(20));
        self.tries = self.tries.saturating_add(1);
        self.draw() % (grown.min(self.ceiling_ms) + 1)
    }

    /// splitmix64: the numbers follow from the seed alone.
    fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_ceiling_and_spread_over_all_of_it() {
        let (mut top, mut sum) = (0, 0);
        for seed in 0..1000 {
            let mut backoff = Backoff::new(10_000, seed);
            assert!(backoff.next_ms() <= 100);
            assert!(backoff.next_ms() <= 200);
            let late = (0..10).map(|_| backoff.next_ms()).last().expect("ten draws");
            assert!(late <= 10_000);
            top = top.max(late);
            sum += late;
        }
        assert!(top > 9_900, "full jitter reaches the ceiling, saw {top}");
        assert!((4_500..5_500).contains(&(sum / 1000)), "mean {}", sum / 1000);
    }

    #[test]
    fn a_reset_makes_the_next_wait_short() {
        let mut backoff = Backoff::new(10_000, 1);
        let _ = (0..20).map(|_| backoff.next_ms()).max();
        backoff.reset();
        assert!(backoff.next_ms() <= 100);
    }
}
