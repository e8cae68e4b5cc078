//! Numbers from a seed.

use std::time::Duration;

/// splitmix64: each round of a seed draws its own numbers, so that one round can be repeated alone.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The numbers of that round.
    pub fn of(seed: u64, round: u64) -> Chance {
        let mut chance = Chance(seed ^ round.wrapping_mul(0xA24B_AED4_963E_E407));
        chance.draw();
        chance
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A span below `limit`, in whole ms.
    pub fn span(&mut self, limit: Duration) -> Duration {
        let ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(self.below(ms))
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        let limit = u64::try_from(all.len()).unwrap_or(1);
        all[usize::try_from(self.below(limit)).unwrap_or(0)]
    }
}
