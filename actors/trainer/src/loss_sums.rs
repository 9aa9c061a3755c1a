//! Sums over trained tokens from which a step's metrics are made.
//!
//! Kept in f64 on the host and added in a fixed order, so that metrics are the same bits each time. Terms of the loss are
//! weighted like the loss itself; statistics of log-probabilities are plain means over tokens.

/// Per-token values of one chunk, as they come from the device.
#[derive(Debug)]
pub(crate) struct TokenTerms<'a> {
    /// Loss, policy loss, KL, entropy, ratio, clipped, importance weight, log-probability, old log-probability.
    pub columns: &'a [Vec<f32>],
    /// Weights in the step's loss.
    pub weights: &'a [f32],
    /// What the engine reported.
    pub rollout_logprobs: &'a [f32],
    /// The cap of importance weights, if they are used.
    pub importance_sampling_cap: Option<f64>,
}

/// Sums over trained tokens; `weighted_*` with the token's weight in the loss, the rest plain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossSums {
    /// Number of trained tokens.
    pub tokens: u64,
    /// Sum of the weights (1 for a whole step in which nothing was left out).
    pub weight: f64,
    /// The loss itself.
    pub loss: f64,
    /// Policy part of the loss, importance weights included.
    pub weighted_policy_loss: f64,
    /// k3 to the reference, without its coefficient.
    pub weighted_kl: f64,
    /// Entropy in nats.
    pub weighted_entropy: f64,
    /// Tokens whose clipped branch was taken.
    pub weighted_clipped: f64,
    /// Policy ratio.
    pub ratio: f64,
    /// Largest policy ratio.
    pub ratio_max: f64,
    /// Importance weight after the cap.
    pub importance: f64,
    /// Tokens whose importance weight was capped.
    pub importance_capped: u64,
    /// |trainer's old log-probability − engine's log-probability|.
    pub mismatch: f64,
    /// The largest of them.
    pub mismatch_max: f64,
    /// k3 estimate of KL(engine ‖ trainer) at the tokens taken.
    pub mismatch_kl: f64,
}

impl LossSums {
    pub(crate) fn add(&mut self, terms: &TokenTerms<'_>) {
        let [loss, policy, kl, entropy, ratio, clipped, importance, _logprob, old] = terms.columns else { return };
        for token in 0..terms.weights.len() {
            let weight = f64::from(terms.weights[token]);
            self.tokens += 1;
            self.weight += weight;
            self.loss += weight * f64::from(loss[token]);
            self.weighted_policy_loss += weight * f64::from(policy[token]);
            self.weighted_kl += weight * f64::from(kl[token]);
            self.weighted_entropy += weight * f64::from(entropy[token]);
            self.weighted_clipped += weight * f64::from(clipped[token]);
            self.ratio += f64::from(ratio[token]);
            self.ratio_max = self.ratio_max.max(f64::from(ratio[token]));
            let difference = f64::from(old[token]) - f64::from(terms.rollout_logprobs[token]);
            self.mismatch += difference.abs();
            self.mismatch_max = self.mismatch_max.max(difference.abs());
            self.mismatch_kl += difference.exp() - 1.0 - difference;
            if let Some(cap) = terms.importance_sampling_cap {
                self.importance += f64::from(importance[token]);
                self.importance_capped += u64::from(difference.exp() > cap);
            }
        }
    }

    /// Adds another micro-batch of the same step.
    pub fn merge(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.weight += other.weight;
        self.loss += other.loss;
        self.weighted_policy_loss += other.weighted_policy_loss;
        self.weighted_kl += other.weighted_kl;
        self.weighted_entropy += other.weighted_entropy;
        self.weighted_clipped += other.weighted_clipped;
        self.ratio += other.ratio;
        self.ratio_max = self.ratio_max.max(other.ratio_max);
        self.importance += other.importance;
        self.importance_capped += other.importance_capped;
        self.mismatch += other.mismatch;
        self.mismatch_max = self.mismatch_max.max(other.mismatch_max);
        self.mismatch_kl += other.mismatch_kl;
    }

    /// A weighted sum as a weighted mean; 0 without tokens.
    pub fn weighted_mean(&self, sum: f64) -> f64 {
        if self.weight == 0.0 { 0.0 } else { sum / self.weight }
    }

    /// A plain sum as a mean over tokens; 0 without tokens.
    pub fn token_mean(&self, sum: f64) -> f64 {
        if self.tokens == 0 { 0.0 } else { sum / self.tokens as f64 }
    }
}
