//! A moment after which nobody waits any more.

use std::time::Duration;

use tokio::time::Instant;

/// A point in (tokio's) time by which something must have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline `wait` from now.
    pub fn after(wait: Duration) -> Self {
        Self(Instant::now() + wait)
    }

    /// The deadline `wait_ms` milliseconds from now.
    pub fn after_ms(wait_ms: u64) -> Self {
        Self::after(Duration::from_millis(wait_ms))
    }

    /// The earlier of this deadline and another one.
    pub fn earlier(self, other: Self) -> Self {
        self.min(other)
    }

    /// The instant itself, for `timeout_at` and `sleep_until`.
    pub fn instant(&self) -> Instant {
        self.0
    }

    /// The time left; zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }
}
