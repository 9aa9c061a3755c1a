//! What a step says of itself.
//!
//! [`StepMetrics`] holds everything; the Conductor's [`TrainReport`] is a part of it. All metrics go to the log as one
//! event per step, under the names given here. Definitions: terms of the loss are means with the loss's own weights over
//! the tokens trained on; statistics of log-probabilities are plain means over them.

use greenroom_messages::trainer::TrainReport;

use crate::advantage::Advantages;
use crate::loss_sums::LossSums;

/// Everything measured in one training step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMetrics {
    /// The whole loss.
    pub loss: f64,
    /// Its policy part, importance weights included.
    pub policy_loss: f64,
    /// k3 to the reference, nats; 0 when not computed.
    pub kl: f64,
    /// Entropy, nats.
    pub entropy: f64,
    /// Fraction of tokens whose clipped branch was taken.
    pub clip_fraction: f64,
    /// Mean policy ratio.
    pub ratio: f64,
    /// Largest policy ratio.
    pub ratio_max: f64,
    /// Mean importance weight after the cap; 0 when not used.
    pub importance_weight: f64,
    /// Fraction of tokens whose importance weight was capped.
    pub importance_capped_fraction: f64,
    /// Mean |trainer's log-probability − engine's|, nats.
    pub logprob_mismatch: f64,
    /// The largest of them.
    pub logprob_mismatch_max: f64,
    /// k3 estimate of KL(engine ‖ trainer), nats.
    pub mismatch_kl: f64,
    /// Norm of the gradient before clipping (of the last optimizer step that was applied; 0 when none was).
    pub gradient_norm: f64,
    /// Learning rate (the last optimizer step's).
    pub learning_rate: f64,
    /// Optimizer steps applied.
    pub optimizer_steps: u32,
    /// Optimizer steps left out because a gradient was not finite.
    pub skipped_steps: u32,
    /// Mean reward over rollouts.
    pub mean_reward: f64,
    /// Prompt groups.
    pub groups: u64,
    /// Groups whose rewards were all equal.
    pub groups_without_signal: u64,
    /// Trained tokens.
    pub tokens_trained: u64,
    /// Tokens that passed forward and backward through the network.
    pub tokens_total: u64,
    /// Forward and backward passes.
    pub micro_batches: u64,
}

impl StepMetrics {
    /// Metrics that are known before any pass.
    pub fn of(advantages: &Advantages) -> Self {
        Self {
            mean_reward: advantages.mean_reward,
            groups: advantages.groups as u64,
            groups_without_signal: advantages.zero_variance_groups as u64,
            ..Self::default()
        }
    }

    /// Fills in the means, from the sums over all `parts` optimizer steps of the batch.
    pub fn set_means(&mut self, sums: &LossSums, parts: usize) {
        self.loss = sums.loss / parts.max(1) as f64;
        self.policy_loss = sums.weighted_mean(sums.weighted_policy_loss);
        self.kl = sums.weighted_mean(sums.weighted_kl);
        self.entropy = sums.weighted_mean(sums.weighted_entropy);
        self.clip_fraction = sums.weighted_mean(sums.weighted_clipped);
        self.ratio = sums.token_mean(sums.ratio);
        self.ratio_max = sums.ratio_max;
        self.importance_weight = sums.token_mean(sums.importance);
        self.importance_capped_fraction = sums.token_mean(sums.importance_capped as f64);
        self.logprob_mismatch = sums.token_mean(sums.mismatch);
        self.logprob_mismatch_max = sums.mismatch_max;
        self.mismatch_kl = sums.token_mean(sums.mismatch_kl);
        self.tokens_trained = sums.tokens;
    }

    /// The Conductor's view.
    pub fn report(&self, elapsed_ms: u64) -> TrainReport {
        TrainReport {
            loss: self.loss as f32,
            grad_norm: self.gradient_norm as f32,
            learning_rate: self.learning_rate as f32,
            entropy: self.entropy as f32,
            kl: self.kl as f32,
            clip_fraction: self.clip_fraction as f32,
            logprob_mismatch: self.logprob_mismatch as f32,
            tokens_trained: self.tokens_trained,
            tokens_total: self.tokens_total,
            groups_without_signal: u32::try_from(self.groups_without_signal).unwrap_or(u32::MAX),
            skipped: self.skipped_steps > 0,
            elapsed_ms,
        }
    }

    /// One event with all metrics.
    pub fn log(&self, step: u64, elapsed_ms: u64) {
        tracing::info!(
            target: "greenroom_trainer::step",
            step,
            elapsed_ms,
            loss = self.loss,
            policy_loss = self.policy_loss,
            kl = self.kl,
            entropy = self.entropy,
            clip_fraction = self.clip_fraction,
            ratio = self.ratio,
            ratio_max = self.ratio_max,
            importance_weight = self.importance_weight,
            importance_capped_fraction = self.importance_capped_fraction,
            logprob_mismatch = self.logprob_mismatch,
            logprob_mismatch_max = self.logprob_mismatch_max,
            mismatch_kl = self.mismatch_kl,
            gradient_norm = self.gradient_norm,
            learning_rate = self.learning_rate,
            optimizer_steps = self.optimizer_steps,
            skipped_steps = self.skipped_steps,
            "training step done"
        );
        tracing::debug!(
            target: "greenroom_trainer::batch",
            step,
            mean_reward = self.mean_reward,
            groups = self.groups,
            groups_without_signal = self.groups_without_signal,
            tokens_trained = self.tokens_trained,
            tokens_total = self.tokens_total,
            micro_batches = self.micro_batches,
            "training batch"
        );
    }
}
