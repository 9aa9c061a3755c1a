//! Where randomness comes from.
//!
//! A [`Seed`] is split into streams by name and number, so that adding a consumer never shifts another one's numbers, and
//! so that what a part draws does not depend on the order in which parts run.

use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

/// A reproducible source of random numbers; use it through the `rand` traits.
pub type Random = ChaCha12Rng;

/// The root of all randomness of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// The seed of a run.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed as a number, to be shown so that the run can be repeated.
    pub fn value(&self) -> u64 {
        self.0
    }

    /// A child seed for a named purpose.
    pub fn child(&self, purpose: &str) -> Self {
        self.child_numbered(purpose, 0)
    }

    /// A child seed for the `number`-th thing of a named purpose.
    pub fn child_numbered(&self, purpose: &str, number: u64) -> Self {
        // FNV-1a over purpose and number, then the finaliser of SplitMix64: stable across versions and platforms.
        let mut hash = self.0 ^ 0xcbf2_9ce4_8422_2325;
        for byte in purpose.bytes().chain(number.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(hash ^ (hash >> 31))
    }

    /// The random numbers of this seed.
    pub fn random(&self) -> Random {
        Random::seed_from_u64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;

    #[test]
    fn streams_differ_by_purpose_and_number_and_repeat_exactly() {
        let draw = |seed: Seed| seed.random().random::<u64>();
        let root = Seed::new(7);
        let streams = [root, root.child("a"), root.child("b"), root.child_numbered("a", 1), Seed::new(8).child("a")];
        let drawn: std::collections::BTreeSet<u64> = streams.iter().map(|seed| draw(*seed)).collect();
        assert_eq!(drawn.len(), streams.len());
        assert_eq!(draw(root.child("a")), draw(Seed::new(7).child("a")));
        assert_eq!(root.child("a").value(), 17_436_960_656_331_623_218, "a stored run must replay for ever");
    }
}
