//! The metrics of one batch, as the coding-agent example defines them.
//!
//! pass@1 is the mean over groups of a group's mean reward; pass@k is the fraction of groups in which some rollout earned
//! at least 1. Both are over rollouts, never over the samples that a rollout fans out into, and never over rollouts that
//! were not graded. masked_frac is, per sample, the fraction of tokens after the first prompt that are not trained on.
//! Percentiles take the nearest rank of the sorted values, halves rounded to even, as Python's `round` does.

use greenroom_messages::Purpose;
use greenroom_messages::rollout::{FinishedGroup, FinishedRollout, Sample};
use serde::{Deserialize, Serialize};

/// Mean, percentiles and maximum of a set of values; all 0 for an empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

impl Percentiles {
    /// Of these values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let Some(max) = values.last().copied() else { return Self::default() };
        let rank = |fraction: f64| {
            let place = (fraction * (values.len() - 1) as f64).round_ties_even() as usize;
            values[place.min(values.len() - 1)]
        };
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Self { mean, p50: rank(0.5), p95: rank(0.95), p99: rank(0.99), max }
    }
}

/// What a batch showed. Everything but `times` depends on the seed alone in a deterministic run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchMetrics {
    /// Mean reward over all graded rollouts.
    pub reward: f64,
    /// Mean over groups of the group's mean reward.
    #[serde(rename = "pass@1")]
    pub pass_at_1: f64,
    /// Fraction of groups in which some rollout earned at least 1.
    #[serde(rename = "pass@k")]
    pub pass_at_k: f64,
    /// Groups with a graded rollout.
    pub num_groups: u64,
    /// Graded rollouts.
    pub num_rollouts: u64,
    /// Rollouts (last attempts) that were not graded.
    pub not_graded: u64,
    /// Turns per graded rollout.
    pub turns_mean: f64,
    /// Most turns of a graded rollout.
    pub turns_max: f64,
    /// Mean of the samples' masked fraction.
    pub masked_frac_mean: f64,
    /// Largest masked fraction of a sample.
    pub masked_frac_max: f64,
    /// Samples beyond the first of a rollout: how often a history forked.
    pub forks: u64,
    /// Sampled tokens.
    pub new_tokens: u64,
    /// By how many steps the weights that sampled the tokens are older than the newest that could have; mean over tokens.
    #[serde(default)]
    pub staleness: f64,
    /// Times; left out where they stand elsewhere.
    #[serde(default, skip_serializing_if = "BatchTimes::are_absent")]
    pub times: BatchTimes,
}

/// Times of a batch, in seconds; per rollout unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchTimes {
    /// Waiting for a sandbox.
    pub sandbox_claim_sec: Percentiles,
    /// The agent's loop: generating and executing.
    pub sandbox_agent_sec: Percentiles,
    /// Grading.
    pub sandbox_eval_sec: Percentiles,
    /// The agent's commands together.
    pub sandbox_exec_sec: Percentiles,
    /// Each of the agent's commands.
    pub sandbox_exec_call: Percentiles,
    /// How many commands.
    pub sandbox_exec_calls: u64,
    /// Fraction of sandboxes that were warm when claimed.
    pub warm_fraction: f64,
}

impl BatchMetrics {
    /// Of these groups.
    pub fn of(groups: &[FinishedGroup]) -> Self {
        let graded_of = |group: &FinishedGroup| -> Vec<FinishedRollout> {
            group.rollouts.iter().filter(|rollout| rollout.reward.is_some()).cloned().collect()
        };
        let per_group: Vec<Vec<FinishedRollout>> =
            groups.iter().map(graded_of).filter(|graded| !graded.is_empty()).collect();
        let rewards = |group: &Vec<FinishedRollout>| -> Vec<f64> {
            group.iter().filter_map(|rollout| rollout.reward).map(f64::from).collect()
        };
        let graded: Vec<&FinishedRollout> = per_group.iter().flatten().collect();
        let masked: Vec<f64> = graded.iter().flat_map(|rollout| &rollout.samples).filter_map(masked_fraction).collect();
        let all: usize = groups.iter().map(|group| group.rollouts.len()).sum();
        Self {
            reward: mean(per_group.iter().flat_map(rewards)),
            pass_at_1: mean(per_group.iter().map(|group| mean(rewards(group)))),
            pass_at_k: mean(
                per_group.iter().map(|group| f64::from(rewards(group).iter().any(|reward| *reward >= 1.0))),
            ),
            num_groups: per_group.len() as u64,
            num_rollouts: graded.len() as u64,
            not_graded: (all - graded.len()) as u64,
            turns_mean: mean(graded.iter().map(|rollout| f64::from(rollout.turns))),
            turns_max: graded.iter().map(|rollout| f64::from(rollout.turns)).fold(0.0, f64::max),
            masked_frac_mean: mean(masked.iter().copied()),
            masked_frac_max: masked.iter().copied().fold(0.0, f64::max),
            forks: graded.iter().map(|rollout| u64::from(rollout.forks)).sum(),
            new_tokens: graded.iter().flat_map(|rollout| &rollout.samples).map(trained_tokens).sum(),
            staleness: staleness(&graded),
            times: BatchTimes::of(&graded),
        }
    }
}

impl BatchTimes {
    fn are_absent(&self) -> bool {
        *self == Self::default()
    }

    fn of(graded: &[&FinishedRollout]) -> Self {
        let seconds = |part: fn(&FinishedRollout) -> u64| {
            Percentiles::of(graded.iter().map(|rollout| part(rollout) as f64 / 1_000.0))
        };
        let calls: Vec<f64> =
            graded.iter().flat_map(|rollout| &rollout.exec_calls_ms).map(|call_ms| *call_ms as f64 / 1_000.0).collect();
        Self {
            sandbox_claim_sec: seconds(|rollout| rollout.timings.claim_ms),
            sandbox_agent_sec: seconds(|rollout| rollout.timings.generate_ms + rollout.timings.exec_ms),
            sandbox_eval_sec: seconds(|rollout| rollout.timings.grade_ms),
            sandbox_exec_sec: seconds(|rollout| rollout.timings.exec_ms),
            sandbox_exec_calls: calls.len() as u64,
            sandbox_exec_call: Percentiles::of(calls),
            warm_fraction: mean(graded.iter().map(|rollout| f64::from(rollout.warm))),
        }
    }
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / count as f64 }
}

fn trained_tokens(sample: &Sample) -> u64 {
    sample.loss_mask.iter().filter(|mask| **mask != 0).count() as u64
}

/// A training batch n could be sampled by version n − 1; a measurement is made of its own version.
fn staleness(graded: &[&FinishedRollout]) -> f64 {
    let (mut steps, mut tokens) = (0, 0_u64);
    for rollout in graded {
        let batch = rollout.rollout.group.batch;
        let newest = batch.number.saturating_sub(u64::from(batch.purpose == Purpose::Train));
        for span in rollout.samples.iter().flat_map(|sample| &sample.versions) {
            let length = u64::from(span.end.saturating_sub(span.start));
            steps += length * span.number.map_or(0, |number| newest.saturating_sub(number));
            tokens += length;
        }
    }
    if tokens == 0 { 0.0 } else { steps as f64 / tokens as f64 }
}

fn masked_fraction(sample: &Sample) -> Option<f64> {
    let first = sample.loss_mask.iter().position(|mask| *mask != 0)?;
    let response = &sample.loss_mask[first..];
    Some(1.0 - response.iter().filter(|mask| **mask != 0).count() as f64 / response.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_take_the_nearest_rank_with_halves_to_even() {
        let of = |count: usize| Percentiles::of((0..count).map(|value| value as f64));
        assert_eq!(Percentiles::of([]), Percentiles::default());
        assert_eq!((of(1).p50, of(1).p99, of(1).max), (0.0, 0.0, 0.0));
        assert_eq!(of(2).p50, 0.0, "round(0.5) is 0");
        assert_eq!(of(4).p50, 2.0, "round(1.5) is 2");
        assert_eq!((of(100).p50, of(100).p95, of(100).p99, of(100).max), (50.0, 94.0, 98.0, 99.0));
    }

    #[test]
    fn the_masked_fraction_starts_at_the_first_trained_token() {
        let sample = |mask: &[u8]| Sample { loss_mask: mask.to_vec(), ..Sample::default() };
        assert_eq!(masked_fraction(&sample(&[0, 0, 1, 1])), Some(0.0));
        assert_eq!(masked_fraction(&sample(&[0, 1, 0, 0, 1])), Some(0.5));
        assert_eq!(masked_fraction(&sample(&[0, 0])), None);
    }
}
