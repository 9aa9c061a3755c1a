//! From the losses of single tokens to the loss of an optimizer step.
//!
//! The whole normalisation is one weight per sample, computed over the step *before* any forward pass. The step's loss
//! is then a plain sum over tokens, so that it does not matter how the samples fall into micro-batches (no mean of
//! means), and the pieces can be back-propagated one by one.

use crate::config::LossNormaliser;

/// What the normaliser needs to know of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleShare {
    /// Which rollout it belongs to (any numbering from 0 without gaps up to `rollouts`).
    pub rollout: usize,
    /// Its trained tokens (loss mask 1).
    pub trained_tokens: usize,
}

/// The weight of each trained token, one value per sample.
///
/// * `RolloutMean`: 1 / (trained tokens of the rollout, all sibling samples together) / rollouts.
/// * `TokenMean`: 1 / trained tokens of the step.
///
/// `rollouts` counts every rollout of the step, also those without a trained token: they are part of the mean, with
/// loss 0. Weights of samples without trained tokens are 0.
pub fn token_weights(normaliser: LossNormaliser, samples: &[SampleShare], rollouts: usize) -> Vec<f64> {
    match normaliser {
        LossNormaliser::TokenMean => {
            let total: usize = samples.iter().map(|sample| sample.trained_tokens).sum();
            samples.iter().map(|sample| weight(sample, total as f64)).collect()
        }
        LossNormaliser::RolloutMean => {
            let mut per_rollout = vec![0_usize; rollouts];
            for sample in samples {
                per_rollout[sample.rollout] += sample.trained_tokens;
            }
            let divisor = |sample: &SampleShare| per_rollout[sample.rollout] as f64 * rollouts as f64;
            samples.iter().map(|sample| weight(sample, divisor(sample))).collect()
        }
    }
}

fn weight(sample: &SampleShare, divisor: f64) -> f64 {
    if sample.trained_tokens == 0 { 0.0 } else { 1.0 / divisor }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(rollout: usize, trained_tokens: usize) -> SampleShare {
        SampleShare { rollout, trained_tokens }
    }

    #[test]
    fn siblings_share_their_rollouts_mean() {
        let samples = [share(0, 2), share(0, 6), share(1, 1), share(2, 0)];
        let weights = token_weights(LossNormaliser::RolloutMean, &samples, 3);
        assert_eq!(weights, vec![1.0 / 24.0, 1.0 / 24.0, 1.0 / 3.0, 0.0]);
        let weights = token_weights(LossNormaliser::TokenMean, &samples, 3);
        assert_eq!(weights, vec![1.0 / 9.0, 1.0 / 9.0, 1.0 / 9.0, 0.0]);
    }

    proptest! {
        #[test]
        fn a_constant_loss_keeps_its_value(lengths in prop::collection::vec((0_usize..5, 1_usize..50), 1..30)) {
            let samples: Vec<SampleShare> = lengths.iter().map(|(rollout, tokens)| share(*rollout, *tokens)).collect();
            let mut present: Vec<usize> = samples.iter().map(|sample| sample.rollout).collect();
            present.sort_unstable();
            present.dedup();
            let total = |weights: &[f64]| -> f64 {
                weights.iter().zip(&samples).map(|(weight, sample)| weight * sample.trained_tokens as f64).sum()
            };
            let by_rollout = token_weights(LossNormaliser::RolloutMean, &samples, 5);
            prop_assert!((total(&by_rollout) - present.len() as f64 / 5.0).abs() < 1e-9);
            let by_token = token_weights(LossNormaliser::TokenMean, &samples, 5);
            prop_assert!((total(&by_token) - 1.0).abs() < 1e-9);
        }
    }
}
