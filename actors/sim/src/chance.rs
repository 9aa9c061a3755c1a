//! When something goes wrong, and what: seeded, and with an end.
//!
//! Each part has its own stream, so that another call to one part does not shift the misfortunes of another. A part meets
//! at most `left` misfortunes, so that a run that goes on trying completes.

use std::collections::BTreeMap;
use std::fmt::Debug;

use greenroom_core::{Random, Seed};
use rand::Rng;

/// The misfortunes of one part.
#[derive(Debug)]
pub(crate) struct Chance {
    random: Random,
    left: u32,
    probability: f64,
    met: BTreeMap<String, u32>,
}

impl Chance {
    pub(crate) fn new(seed: Seed, left: u32, probability: f64) -> Self {
        Self { random: seed.random(), left, probability, met: BTreeMap::new() }
    }

    /// Whether something goes wrong now, and which of these.
    pub(crate) fn strikes<T: Copy + Debug>(&mut self, with: &[T]) -> Option<T> {
        let struck = self.random.random_bool(self.probability) && self.left > 0;
        if !struck || with.is_empty() {
            return None;
        }
        self.left -= 1;
        let struck = with[self.random.random_range(0..with.len())];
        *self.met.entry(format!("{struck:?}")).or_default() += 1;
        Some(struck)
    }

    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        self.random.random_range(from..=to)
    }

    /// The misfortunes that were met, by kind, and how often each was.
    pub(crate) fn met(&self) -> BTreeMap<String, u32> {
        self.met.clone()
    }
}
