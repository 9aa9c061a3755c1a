//! Where time comes from.
//!
//! Durations are measured with tokio's clock, which a paused runtime moves by itself; dates (milliseconds since 1970) are
//! tokio's clock added to an origin that is read once. So one reading of the system's date, here, serves a whole process,
//! and a simulation has dates that depend on its seed alone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// The source of dates. Cheap to clone. Must be made inside a tokio runtime.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ms: u64,
    origin: Instant,
    simulated: bool,
}

impl Clock {
    /// The clock of a real process.
    #[allow(clippy::disallowed_methods)] // the one place where the system's date is read
    pub fn system() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { origin_ms: since_1970.as_millis() as u64, origin: Instant::now(), simulated: false }
    }

    /// The clock of a simulation that begins at `origin_ms` milliseconds since 1970.
    pub fn simulated(origin_ms: u64) -> Self {
        Self { origin_ms, origin: Instant::now(), simulated: true }
    }

    /// Whether this is the clock of a simulation.
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// The present date in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.origin_ms + self.origin.elapsed().as_millis() as u64
    }

    /// Milliseconds since this clock was made.
    pub fn elapsed_ms(&self) -> u64 {
        self.origin.elapsed().as_millis() as u64
    }
}
