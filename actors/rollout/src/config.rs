//! The settings of rollouts, and the arithmetic of their time-outs.
//!
//! Defaults are those of the SkyPilot example's `AGENT_*` variables. Every time-out fits into the one around it: a turn's
//! commands and the grading into the guard, the guard into the sandbox's lifetime; [`RolloutConfig::problems`] checks
//! this before a run begins, because a box that ends under a running rollout is a lost rollout.

use serde::{Deserialize, Serialize};

/// Slack of a rollout's guard time over its turns and its grading: model latency, the claim, the set-up.
pub const GUARD_SLACK_MS: u64 = 300_000;
/// Slack of a sandbox's lifetime over the guard when none is set: only a leak's backstop.
pub const LIFETIME_SLACK_MS: u64 = 3_600_000;
/// What must remain of a lease after guard and grading.
pub const LEASE_MARGIN_MS: u64 = 60_000;
/// What grading may take besides the tests themselves: taking the agent's change, restoring the tests' tree.
pub const GRADING_PREPARATION_MS: u64 = 180_000;

/// The settings of rollouts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutConfig {
    /// Model calls of an episode (`AGENT_MAX_TURNS`); replies that cannot be parsed count.
    pub max_turns: u32,
    /// One command of the agent (`AGENT_EXEC_TIMEOUT_SEC`).
    pub exec_timeout_ms: u64,
    /// The task's tests (`AGENT_EVAL_TIMEOUT_SEC`).
    pub eval_timeout_ms: u64,
    /// A whole rollout (`AGENT_ROLLOUT_GUARD_SEC`); unset: turns × exec time-out + eval time-out + 300 s.
    pub guard_ms: Option<u64>,
    /// How long a sandbox lives (`AGENT_SANDBOX_LIFETIME_SEC`); unset: the guard + 3600 s.
    pub sandbox_lifetime_ms: Option<u64>,
    /// How long a rollout waits for a sandbox.
    pub claim_timeout_ms: u64,
    /// The task's set-up command, each try.
    pub setup_timeout_ms: u64,
    /// How often the set-up command is tried; it fails transiently under load.
    pub setup_attempts: u32,
    /// Whether the hidden tests and the original code are taken out of a task's repository while the agent acts. Switch it
    /// off only to look into a set-up.
    pub withhold_history: bool,
    /// One model call, queueing included.
    pub turn_timeout_ms: u64,
    /// Prompt and reply together, in tokens (`ROLLOUT_MAX_CONTEXT_LEN`).
    pub max_context_tokens: u32,
    /// One reply, in tokens.
    pub max_new_tokens: u32,
    /// Nucleus mass; 1 is off. Training assumes the full distribution: leave it off.
    pub top_p: f32,
    /// Keep the k most likely; −1 is off.
    pub top_k: i32,
    /// Rollouts that run at once.
    pub max_running: u32,
    /// How often one sample is tried when infrastructure fails, the first time included.
    pub max_attempts: u32,
    /// The wait before a re-issue; doubles with each attempt, at most 60 s.
    pub retry_backoff_ms: u64,
    /// A group with at least this many trainable rollouts (or all, where it has fewer) is trained on.
    pub min_trainable: u32,
    /// Whether rollouts with tokens of weights older than the batch admits end as stale.
    pub drop_stale: bool,
    /// Whether replies that the agent dropped (format errors) are trained on, each as a sample of its own.
    pub train_failed_replies: bool,
    /// Whether tasks are shuffled, each epoch anew (`ROLLOUT_SHUFFLE`).
    pub shuffle: bool,
    /// How much of a command's output is kept, in bytes.
    pub output_limit_bytes: u64,
    /// Further variables of the chat template, such as `enable_thinking = false`.
    pub template_variables: serde_json::Map<String, serde_json::Value>,
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self {
            max_turns: 20,
            exec_timeout_ms: 60_000,
            eval_timeout_ms: 120_000,
            guard_ms: None,
            sandbox_lifetime_ms: None,
            claim_timeout_ms: 300_000,
            setup_timeout_ms: 60_000,
            setup_attempts: 3,
            withhold_history: true,
            turn_timeout_ms: 900_000,
            max_context_tokens: 32_768,
            max_new_tokens: 4096,
            top_p: 1.0,
            top_k: -1,
            max_running: 184,
            max_attempts: 3,
            retry_backoff_ms: 1000,
            min_trainable: 2,
            drop_stale: true,
            train_failed_replies: true,
            shuffle: true,
            output_limit_bytes: 1 << 20,
            template_variables: serde_json::Map::new(),
        }
    }
}

impl RolloutConfig {
    /// The guard time of a rollout, milliseconds.
    pub fn guard_ms(&self) -> u64 {
        let acting_ms = u64::from(self.max_turns).saturating_mul(self.exec_timeout_ms);
        let worst = acting_ms.saturating_add(self.eval_timeout_ms).saturating_add(GUARD_SLACK_MS);
        self.guard_ms.unwrap_or(worst)
    }

    /// How long a claimed sandbox lives, milliseconds.
    pub fn sandbox_lifetime_ms(&self) -> u64 {
        self.sandbox_lifetime_ms.unwrap_or(self.guard_ms().saturating_add(LIFETIME_SLACK_MS))
    }

    /// How long a group may be without news at the worst: every attempt ends at the guard. For who waits for groups.
    pub fn longest_sample_ms(&self) -> u64 {
        let attempts = u64::from(self.max_attempts);
        attempts.saturating_mul(self.guard_ms().saturating_add(MAX_BACKOFF_MS))
    }

    /// Everything that is wrong with these settings, one line each; empty when nothing is.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let positive: [(&str, u64); 11] = [
            ("max_turns", self.max_turns.into()),
            ("exec_timeout_ms", self.exec_timeout_ms),
            ("eval_timeout_ms", self.eval_timeout_ms),
            ("setup_attempts", self.setup_attempts.into()),
            ("setup_timeout_ms", self.setup_timeout_ms),
            ("claim_timeout_ms", self.claim_timeout_ms),
            ("turn_timeout_ms", self.turn_timeout_ms),
            ("max_new_tokens", self.max_new_tokens.into()),
            ("max_running", self.max_running.into()),
            ("max_attempts", self.max_attempts.into()),
            ("min_trainable", self.min_trainable.into()),
        ];
        problems.extend(
            positive.iter().filter(|(_, value)| *value == 0).map(|(name, _)| format!("{name} must be at least 1")),
        );
        if self.max_context_tokens <= self.max_new_tokens {
            problems.push(format!(
                "max_context_tokens ({}) leaves no room for a prompt beside max_new_tokens ({}): raise the first",
                self.max_context_tokens, self.max_new_tokens
            ));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            problems.push(format!("top_p is {}, but must be above 0 and at most 1", self.top_p));
        }
        if self.top_k == 0 || self.top_k < -1 {
            problems.push(format!("top_k is {}, but must be −1 (off) or at least 1", self.top_k));
        }
        problems.extend(lease_problem(self.sandbox_lifetime_ms(), self.guard_ms(), self.eval_timeout_ms));
        problems
    }
}

/// The longest wait before a re-issue.
pub const MAX_BACKOFF_MS: u64 = 60_000;

/// Lease arithmetic: a sandbox must outlive the rollout that holds it. `None` when it does, else the line that says by how
/// much the lifetime must grow.
pub fn lease_problem(lifetime_ms: u64, guard_ms: u64, eval_timeout_ms: u64) -> Option<String> {
    let grading_ms = eval_timeout_ms.saturating_add(GRADING_PREPARATION_MS);
    let needed_ms = guard_ms.saturating_add(grading_ms).saturating_add(LEASE_MARGIN_MS);
    (lifetime_ms < needed_ms).then(|| {
        format!(
            "sandbox_lifetime_ms is {lifetime_ms}, but a rollout may take {guard_ms} (guard) + \
             {grading_ms} (grading) + {LEASE_MARGIN_MS} (margin): set it to at least {needed_ms}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_consistent_and_the_guard_is_the_examples() {
        let config = RolloutConfig::default();
        assert_eq!(config.problems(), Vec::<String>::new());
        assert_eq!(config.guard_ms(), 20 * 60_000 + 120_000 + 300_000);
        assert_eq!(config.sandbox_lifetime_ms(), config.guard_ms() + 3_600_000);
    }

    #[test]
    fn every_contradiction_is_a_line_with_a_remedy() {
        let cases: &[(&str, &str)] = &[
            (r#"{"sandbox_lifetime_ms": 1979999}"#, "set it to at least 1980000"),
            (r#"{"guard_ms": 9000000, "sandbox_lifetime_ms": 9000000}"#, "set it to at least 9360000"),
            (r#"{"max_turns": 0}"#, "max_turns must be at least 1"),
            (r#"{"max_context_tokens": 100}"#, "raise the first"),
            (r#"{"top_p": 0.0}"#, "above 0"),
            (r#"{"top_k": 0}"#, "−1 (off)"),
        ];
        for (json, words) in cases {
            let config: RolloutConfig = serde_json::from_str(json).unwrap();
            let problems = config.problems();
            assert!(problems.len() == 1 && problems[0].contains(words), "{json}: {problems:?}");
        }
        for key in ["exec_timeout_ms", "eval_timeout_ms"] {
            let endless: RolloutConfig = serde_json::from_str(&format!(r#"{{"{key}": {}}}"#, i64::MAX)).unwrap();
            assert_eq!(endless.longest_sample_ms(), u64::MAX, "{key}: sums end at the largest number");
            let _ = endless.problems();
        }
        let least: RolloutConfig = serde_json::from_str(r#"{"sandbox_lifetime_ms": 1980000}"#).unwrap();
        assert!(least.problems().is_empty());
        assert!(serde_json::from_str::<RolloutConfig>(r#"{"max_turn": 1}"#).is_err(), "unknown keys are errors");
    }
}
