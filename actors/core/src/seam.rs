//! What comes from outside, so that a simulation can give it.

use crate::{Clock, Faults, Seed, spawn_blocking_named};

/// What every actor is given from outside: time, randomness and injected faults.
#[derive(Clone, Debug)]
pub struct Seam {
    /// Where time comes from.
    pub clock: Clock,
    /// Where randomness comes from; streams are split off by name.
    pub seed: Seed,
    /// Which fault points fire, and how.
    pub faults: Faults,
}

impl Seam {
    /// The seam of a real process: system clock, the run's seed, faults as given (usually [`Faults::none`]).
    pub fn system(seed: u64, faults: Faults) -> Self {
        Self { clock: Clock::system(), seed: Seed::new(seed), faults }
    }

    /// Runs blocking work (files, checksums) off the actors' threads; in virtual time in place, so that its end is
    /// ordered by the seed and not by the machine. `None` when the work panicked, which is also logged by `name`.
    pub async fn blocking<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.clock.is_simulated() {
            return Some(work());
        }
        spawn_blocking_named(name, work).await.ok().flatten()
    }

    /// The seam of a simulation: virtual time that starts at `epoch_ms`, a seed, faults as given.
    pub fn simulated(seed: u64, epoch_ms: u64, faults: Faults) -> Self {
        Self { clock: Clock::simulated(epoch_ms), seed: Seed::new(seed), faults }
    }
}
