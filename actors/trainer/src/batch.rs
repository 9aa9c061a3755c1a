//! From the Conductor's batch to samples with advantages and weights.
//!
//! A rollout may appear once only; a reward must be finite; everything else is checked by [`crate::samples`]. Nothing is
//! dropped silently: rollouts without a trained token stay in the statistics and in the normaliser's count.

use std::collections::BTreeSet;

use greenroom_messages::trainer::TrainBatch;

use crate::advantage::{Advantages, group_advantages};
use crate::config::{LossConfig, TrainerConfig};
use crate::error::TrainerError;
use crate::normaliser::{SampleShare, token_weights};
use crate::samples::{Limits, ReadySample, ready};

/// A checked batch.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadyBatch {
    /// Samples with at least one trained token, in the batch's order.
    pub samples: Vec<ReadySample>,
    /// All rollouts of the batch.
    pub rollouts: usize,
    /// Their advantages.
    pub advantages: Advantages,
}

/// Checks a batch and computes advantages. Weights are set by [`part`].
///
/// # Errors
/// [`TrainerError::InvalidBatch`].
pub fn prepare(batch: &TrainBatch, config: &TrainerConfig, limits: Limits) -> Result<ReadyBatch, TrainerError> {
    if !(batch.temperature > 0.0 && batch.temperature.is_finite()) {
        let reason = format!("temperature {} is not a finite number above 0", batch.temperature);
        return Err(TrainerError::batch(format!("batch of {}", batch.step), reason));
    }
    let mut seen = BTreeSet::new();
    let mut rewards = Vec::new();
    let mut samples = Vec::new();
    for (group_index, group) in batch.groups.iter().enumerate() {
        for rollout in &group.rollouts {
            let place = format!("rollout {}", rollout.rollout);
            if !seen.insert(rollout.rollout) {
                return Err(TrainerError::batch(place, "it is in the batch twice"));
            }
            if !rollout.reward.is_finite() {
                return Err(TrainerError::batch(place, format!("its reward is {}", rollout.reward)));
            }
            for (index, sample) in rollout.samples.iter().enumerate() {
                let place = format!("{place} sample {index}");
                samples.extend(ready(&place, rewards.len(), sample, limits, true)?);
            }
            rewards.push((group_index, f64::from(rollout.reward)));
        }
    }
    let advantages = group_advantages(&rewards, &config.advantage)?;
    for sample in &mut samples {
        sample.advantage = advantages.per_rollout[sample.rollout] as f32;
    }
    Ok(ReadyBatch { samples, rollouts: rewards.len(), advantages })
}

/// The samples of optimizer step `index` of `count` of this batch, weighted over that step's rollouts. Rollouts are dealt
/// out in the batch's order, as evenly as possible; samples without a gradient are left out where the settings allow it.
pub fn part(batch: &ReadyBatch, index: usize, count: usize, loss: &LossConfig) -> Vec<ReadySample> {
    let begin = batch.rollouts * index / count;
    let end = batch.rollouts * (index + 1) / count;
    let mut samples: Vec<ReadySample> =
        batch.samples.iter().filter(|sample| (begin..end).contains(&sample.rollout)).cloned().collect();
    let shares: Vec<SampleShare> = samples
        .iter()
        .map(|sample| SampleShare { rollout: sample.rollout - begin, trained_tokens: sample.rows.len() })
        .collect();
    let weights = token_weights(loss.normaliser, &shares, end - begin);
    for (sample, weight) in samples.iter_mut().zip(weights) {
        sample.weight = weight as f32;
    }
    samples.retain(|sample| has_gradient(sample, loss));
    samples
}

/// Whether a sample can contribute to the gradient.
pub fn has_gradient(sample: &ReadySample, loss: &LossConfig) -> bool {
    let only_policy = loss.kl_coefficient == 0.0 && loss.entropy_coefficient == 0.0;
    !(loss.skip_zero_advantage && only_policy && sample.advantage == 0.0)
}
