//! How often a child may be restarted before its supervisor gives up: a pure rule, as in Erlang's supervisors.

use std::collections::VecDeque;

/// The restart policy of one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// How many restarts are allowed within the window; 0 means that the first failure is final.
    pub restarts: u32,
    /// The window, in milliseconds.
    pub within_ms: u64,
    /// The wait before the first restart, in milliseconds; it doubles with each further one in the window.
    pub backoff_ms: u64,
    /// The longest wait before a restart, in milliseconds.
    pub backoff_limit_ms: u64,
}

impl RestartPolicy {
    /// Never restart: a failure of this child is a failure of its supervisor.
    pub const NEVER: Self = Self { restarts: 0, within_ms: 0, backoff_ms: 0, backoff_limit_ms: 0 };

    /// Five restarts a minute, after 100 ms at first and 5 s at the most: for stateless or self-healing actors.
    pub const PATIENT: Self = Self { restarts: 5, within_ms: 60_000, backoff_ms: 100, backoff_limit_ms: 5_000 };
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartDecision {
    /// Restart after this many milliseconds.
    RestartAfterMs(u64),
    /// The child failed too often: stop and tell the parent.
    GiveUp,
}

/// Remembers recent failures of one child and decides.
#[derive(Clone, Debug)]
pub struct RestartIntensity {
    policy: RestartPolicy,
    failures_ms: VecDeque<u64>,
}

impl RestartIntensity {
    /// A child that has not failed yet.
    pub fn new(policy: RestartPolicy) -> Self {
        Self { policy, failures_ms: VecDeque::new() }
    }

    /// The child failed at `now_ms` (any monotone clock).
    pub fn on_failure(&mut self, now_ms: u64) -> RestartDecision {
        let window_start_ms = now_ms.saturating_sub(self.policy.within_ms);
        while self.failures_ms.front().is_some_and(|at| *at < window_start_ms) {
            self.failures_ms.pop_front();
        }
        if self.failures_ms.len() as u64 >= u64::from(self.policy.restarts) {
            return RestartDecision::GiveUp;
        }
        let doublings = self.failures_ms.len().min(16) as u32;
        self.failures_ms.push_back(now_ms);
        let wait_ms = self.policy.backoff_ms.saturating_mul(1 << doublings).min(self.policy.backoff_limit_ms);
        RestartDecision::RestartAfterMs(wait_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_up_after_the_stated_number_in_the_window_and_forgets_old_failures() {
        let policy = RestartPolicy { restarts: 3, within_ms: 1_000, backoff_ms: 10, backoff_limit_ms: 25 };
        let mut intensity = RestartIntensity::new(policy);
        let decisions: Vec<_> = [0, 100, 200, 300].iter().map(|now| intensity.on_failure(*now)).collect();
        use RestartDecision::{GiveUp, RestartAfterMs};
        assert_eq!(decisions, [RestartAfterMs(10), RestartAfterMs(20), RestartAfterMs(25), GiveUp]);
        assert_eq!(intensity.on_failure(1_150), RestartAfterMs(20), "the failures at 0 and 100 are forgotten");
        assert_eq!(RestartIntensity::new(RestartPolicy::NEVER).on_failure(5), GiveUp);
    }
}
