//! A random number generator for tests: xoshiro256++ (Blackman, Vigna), seeded through SplitMix64.
//!
//! The generator is implemented here because a dependency could change its sequence in an update. A
//! printed seed must reproduce its run, and the bundled capture must not change.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// A deterministic random number generator.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Returns a random number generator with this seed.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self { state: std::array::from_fn(|_| next_splitmix64(&mut state)) }
    }

    /// Returns a generator with a random seed, and prints the seed. If the environment variable
    /// `SEED` is set, uses its value as the seed, which replays an earlier run.
    #[expect(clippy::print_stdout, reason = "the harness shows it where a test fails")]
    pub fn with_replayable_seed() -> Self {
        let seed = match std::env::var("SEED") {
            Ok(text) => text.parse().expect("SEED is a decimal number of 64 bits"),
            Err(_) => RandomState::new().hash_one(0),
        };
        println!("SEED={seed}");
        Self::new(seed)
    }

    /// Returns the next 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let answer = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (third, fourth) = (c ^ a, d ^ b);
        self.state = [a ^ fourth, b ^ third, third ^ (b << 17), fourth.rotate_left(45)];
        answer
    }

    /// Returns a number below `limit`, which must not be 0. The bias is below 2⁻³² for 32-bit
    /// limits.
    pub const fn below(&mut self, limit: u64) -> u64 {
        ((self.next_u64() as u128 * limit as u128) >> 64) as u64
    }

    /// Returns a random number in a range, which must not be empty.
    pub const fn within(&mut self, range: Range<usize>) -> usize {
        range.start + self.below((range.end - range.start) as u64) as usize
    }

    /// Returns true with probability 1/`n`.
    pub const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns a random element of a slice, which must not be empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.within(0..of.len())]
    }

    /// Fills a slice with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes);
        bytes
    }

    /// Shuffles the elements of a slice randomly.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.within(0..last + 1));
        }
    }

    /// Flips `flips` random bits, possibly the same bit several times. Does nothing if the slice is
    /// empty.
    pub fn flip_bits(&mut self, bytes: &mut [u8], flips: usize) {
        if bytes.is_empty() {
            return;
        }
        for _ in 0..flips {
            bytes[self.within(0..bytes.len())] ^= 1 << self.below(8);
        }
    }
}

const fn next_splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the output of the authors' C programs: splitmix64.c with seed 0, and
    /// xoshiro256++ with the state 1, 2, 3, 4.
    #[test]
    fn random_output_equals_the_reference_implementation() {
        let mut state = 0;
        assert_eq!(next_splitmix64(&mut state), 0xe220_a839_7b1d_cdaf);
        assert_eq!(next_splitmix64(&mut state), 0x6e78_9e6a_a1b9_65f4);
        let mut random = Random { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn random_within_covers_exactly_the_range() {
        let mut random = Random::with_replayable_seed();
        let mut drawn = [false; 5];
        for _ in 0..1_000 {
            drawn[random.within(3..8) - 3] = true;
        }
        assert_eq!(drawn, [true; 5]);
    }

    #[test]
    fn shuffle_keeps_elements_and_flip_bits_changes_bits() {
        let mut random = Random::with_replayable_seed();
        let mut items: Vec<u32> = (0..100).collect();
        random.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        let mut bytes = [0u8; 64];
        random.flip_bits(&mut bytes, 1);
        assert_eq!(bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
        random.flip_bits(&mut [], 1);
    }
}
