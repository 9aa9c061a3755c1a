//! The settings of rollouts, and the arithmetic of their time-outs.
//!
//! Defaults are those of the SkyPilot example's `AGENT_*` variables. Every time-out fits into the one around it: a turn's
//! commands and the grading into the guard, the guard into the sandbox's lifetime; [`RolloutConfig::problems`] checks
//! this before a run begins, because a box that ends under a running rollout is a lost rollout.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::GradingLimits;

/// Slack of a rollout's guard time over its turns and its grading: model latency, the claim, the set-up.
pub const GUARD_SLACK_MS: u64 = 300_000;
/// Slack of a sandbox's lifetime over the guard when none is set: only a leak's backstop.
pub const LIFETIME_SLACK_MS: u64 = 3_600_000;
/// What must remain of a lease after guard and grading.
pub const LEASE_MARGIN_MS: u64 = 60_000;
/// What finding out a branch's commits and withholding its history may take.
pub const GRADING_PREPARATION_MS: u64 = 180_000;
/// The least that taking an agent's work may take when nothing is set: on a busy machine a short evaluation is no measure.
pub const LEAST_MOVING_MS: u64 = 30_000;
/// The first wait before the set-up command is tried again in a box; grows by itself with each try.
pub const SETUP_BACKOFF_MS: u64 = 2000;

/// Where tasks with an `eval_cmd` are graded. Tasks of SWE-smith's shape are always graded in a fresh box.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GradeIn {
    /// In a box that the agent never touched, set up in the same way, with the working directory as the agent left it.
    #[default]
    FreshBox,
    /// In the agent's own box: for tasks whose answer lies outside of the working directory, such as an installed package or
    /// a file in the home. What else the agent left there can then spoil the grading, to its gain or to the run's harm.
    SameBox,
}

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
    /// Taking an agent's work out of its sandbox, and bringing it into another one, each; unset: `eval_timeout_ms`, but at
    /// least 30 s. Work that takes longer to read earns 0, if an untouched sandbox can be read in that time.
    pub moving_timeout_ms: Option<u64>,
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
    /// Where tasks with an `eval_cmd` are graded.
    pub grade_in: GradeIn,
    /// The largest change that an agent may leave, in bytes: of the difference, or of the working directory where a task has
    /// an `eval_cmd`. A larger one earns 0. It must fit into the sandbox's /tmp (`sandbox.local.limits.tmp_bytes`).
    pub max_change_bytes: u64,
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
    /// How often one sample is tried when infrastructure fails, the first time included. A set-up or a grading that fails
    /// in the same words twice in a row is not tried again.
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
            moving_timeout_ms: None,
            guard_ms: None,
            sandbox_lifetime_ms: None,
            claim_timeout_ms: 300_000,
            setup_timeout_ms: 60_000,
            setup_attempts: 3,
            withhold_history: true,
            grade_in: GradeIn::FreshBox,
            max_change_bytes: 64 << 20,
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
    /// How long taking an agent's work, or bringing it elsewhere, may take, milliseconds.
    pub fn moving_timeout_ms(&self) -> u64 {
        self.moving_timeout_ms.unwrap_or(self.eval_timeout_ms.max(LEAST_MOVING_MS))
    }

    /// What grading may cost.
    pub fn grading_limits(&self) -> GradingLimits {
        GradingLimits {
            timeout: Duration::from_millis(self.eval_timeout_ms),
            moving_timeout: Duration::from_millis(self.moving_timeout_ms()),
            change_bytes: self.max_change_bytes,
        }
    }

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

    /// How long a sandbox for grading lives, milliseconds: its set-up at the slowest, the tests, and what lies between.
    pub fn grading_lifetime_ms(&self) -> u64 {
        let tries = u64::from(self.setup_attempts);
        let waits_ms = SETUP_BACKOFF_MS.saturating_mul(tries.saturating_mul(tries.saturating_sub(1)) / 2);
        let set_up_ms = tries.saturating_mul(self.setup_timeout_ms).saturating_add(waits_ms);
        // the history is withheld, the change is moved and laid over the tests: each of them has its own limit
        let steps_ms = self.moving_timeout_ms().saturating_mul(3).saturating_add(GRADING_PREPARATION_MS);
        let parts = [set_up_ms, steps_ms, self.eval_timeout_ms, LEASE_MARGIN_MS];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// What grading needs of the agent's own sandbox, milliseconds: its work is taken, or it is graded there.
    fn grading_ms(&self) -> u64 {
        self.eval_timeout_ms.saturating_add(self.moving_timeout_ms())
    }

    /// How long a group may be without news at the worst: every attempt ends at the guard. For who waits for groups.
    pub fn longest_sample_ms(&self) -> u64 {
        let attempts = u64::from(self.max_attempts);
        attempts.saturating_mul(self.guard_ms().saturating_add(MAX_BACKOFF_MS))
    }

    /// Everything that is wrong with these settings, one line each; empty when nothing is.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let positive: [(&str, u64); 14] = [
            ("max_turns", self.max_turns.into()),
            ("guard_ms", self.guard_ms.unwrap_or(1)),
            ("exec_timeout_ms", self.exec_timeout_ms),
            ("eval_timeout_ms", self.eval_timeout_ms),
            ("moving_timeout_ms", self.moving_timeout_ms.unwrap_or(1)),
            ("setup_attempts", self.setup_attempts.into()),
            ("setup_timeout_ms", self.setup_timeout_ms),
            ("claim_timeout_ms", self.claim_timeout_ms),
            ("turn_timeout_ms", self.turn_timeout_ms),
            ("max_new_tokens", self.max_new_tokens.into()),
            ("max_running", self.max_running.into()),
            ("max_attempts", self.max_attempts.into()),
            ("min_trainable", self.min_trainable.into()),
            ("max_change_bytes", self.max_change_bytes),
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
        if self.max_change_bytes > LARGEST_CHANGE_BYTES {
            let given = self.max_change_bytes;
            problems.push(format!(
                "max_change_bytes is {given}: a box moves files of at most {LARGEST_CHANGE_BYTES} bytes"
            ));
        }
        problems.extend(lease_problem(self.sandbox_lifetime_ms(), self.guard_ms(), self.grading_ms()));
        problems
    }
}

/// The largest file that is moved out of a box and into one.
const LARGEST_CHANGE_BYTES: u64 = 512 << 20;

/// The longest wait before a re-issue.
pub const MAX_BACKOFF_MS: u64 = 60_000;

/// Lease arithmetic: a sandbox must outlive the rollout that holds it. `None` when it does, else the line that says by how
/// much the lifetime must grow.
pub fn lease_problem(lifetime_ms: u64, guard_ms: u64, grading_ms: u64) -> Option<String> {
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
    fn the_box_for_grading_outlives_set_up_and_tests() {
        let config: RolloutConfig =
            serde_json::from_str(r#"{"setup_attempts": 3, "setup_timeout_ms": 1000, "eval_timeout_ms": 7}"#).unwrap();
        assert_eq!(config.grading_lifetime_ms(), 3 * 1000 + 2000 + 4000 + 180_000 + 3 * 30_000 + 7 + 60_000);
        let longer = RolloutConfig { moving_timeout_ms: Some(1), ..config.clone() };
        assert_eq!(config.grading_lifetime_ms() - longer.grading_lifetime_ms(), 3 * 29_999);
        let slow = RolloutConfig { eval_timeout_ms: 40_000, ..config.clone() };
        assert_eq!(slow.grading_limits().moving_timeout, Duration::from_secs(40), "as long as the evaluation");
        let endless = RolloutConfig { setup_timeout_ms: u64::MAX, setup_attempts: u32::MAX, ..config };
        assert_eq!(endless.grading_lifetime_ms(), u64::MAX);
        assert_eq!(RolloutConfig::default().grade_in, GradeIn::FreshBox);
        let same: RolloutConfig = serde_json::from_str(r#"{"grade_in": "same-box"}"#).unwrap();
        assert_eq!(same.grade_in, GradeIn::SameBox);
    }

    #[test]
    fn every_contradiction_is_a_line_with_a_remedy() {
        let cases: &[(&str, &str)] = &[
            (r#"{"sandbox_lifetime_ms": 1919999}"#, "set it to at least 1920000"),
            (r#"{"guard_ms": 9000000, "sandbox_lifetime_ms": 9000000}"#, "set it to at least 9300000"),
            (r#"{"max_turns": 0}"#, "max_turns must be at least 1"),
            (r#"{"max_context_tokens": 100}"#, "raise the first"),
            (r#"{"top_p": 0.0}"#, "above 0"),
            (r#"{"top_k": 0}"#, "−1 (off)"),
            (r#"{"max_change_bytes": 0}"#, "max_change_bytes must be at least 1"),
            (r#"{"max_change_bytes": 1000000000}"#, "at most 536870912 bytes"),
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
        let least: RolloutConfig = serde_json::from_str(r#"{"sandbox_lifetime_ms": 1920000}"#).unwrap();
        assert!(least.problems().is_empty());
        assert!(serde_json::from_str::<RolloutConfig>(r#"{"max_turn": 1}"#).is_err(), "unknown keys are errors");
    }
}
