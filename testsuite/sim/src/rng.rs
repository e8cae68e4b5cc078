//! The one source of chance: every draw of a run follows from its seed.

/// splitmix64: small, fast, and good enough to choose interleavings.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Another source, of the same seed and that number.
    pub fn split(&self, number: u64) -> Rng {
        let mut other = Rng(self.0 ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        other.draw();
        other
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`; 0 for `n = 0`.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.draw() % n }
    }

    /// Uniform in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Between 1 and `high`, small values as likely as large ones by order of magnitude.
    pub fn skewed(&mut self, high: u64) -> u64 {
        let bits = 64 - high.max(1).leading_zeros();
        let shift = self.below(u64::from(bits));
        self.range(1, (high >> shift).max(1))
    }

    /// True in so many of 1,000 cases.
    pub fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }

    /// One of them; `None` of an empty list.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let at = self.below(list.len() as u64) as usize;
        list.get(at).copied()
    }

    pub fn bytes(&mut self) -> Vec<u8> {
        [self.draw().to_le_bytes(), self.draw().to_le_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_numbers_and_stays_in_range() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        for _ in 0..1000 {
            assert_eq!(a.draw(), b.draw());
            assert!((3..=9).contains(&a.range(3, 9)));
            assert!((1..=500).contains(&a.skewed(500)));
            b.range(0, 6);
            b.skewed(500);
        }
        assert_ne!(Rng::new(1).draw(), Rng::new(2).draw());
    }
}
