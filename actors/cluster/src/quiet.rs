//! Logs that repeat: said at most once a second, with how often it was left out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// At most one word a second about one matter.
#[derive(Debug, Default)]
pub(crate) struct Quiet(Mutex<(Option<Instant>, u64)>);

impl Quiet {
    /// Whether to speak now; if so, how often that was left out before.
    pub(crate) fn may_speak(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.0.is_some_and(|last| now.duration_since(last) < Duration::from_secs(1)) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}
