//! Group-relative advantages (GRPO; Shao et al. 2024, and Dr. GRPO without the division by the deviation).
//!
//! One value per *rollout*: a rollout that forked into several samples still counts once, and all its samples get the
//! same advantage. Statistics never cross prompt groups and never include anything that is not a finished rollout (the
//! caller passes only those). Groups whose rewards are all equal carry no signal: advantage 0, counted.

use std::collections::BTreeMap;

use crate::config::AdvantageConfig;
use crate::error::TrainerError;

/// A group's standard deviation at or below this counts as zero, in units of reward (slime filters groups the same way).
pub const ZERO_DEVIATION: f64 = 1e-6;

/// Advantages of a batch and what there is to say about its groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advantages {
    /// One per rollout, in the order given.
    pub per_rollout: Vec<f64>,
    /// Number of prompt groups.
    pub groups: usize,
    /// Groups whose rewards are all equal (a group of one rollout is such a group).
    pub zero_variance_groups: usize,
    /// Mean reward over rollouts.
    pub mean_reward: f64,
}

/// Computes the advantages of rollouts given as (group key, reward).
///
/// # Errors
/// [`TrainerError::InvalidBatch`] for a reward that is not finite.
pub fn group_advantages<G: Ord + Copy>(
    rollouts: &[(G, f64)],
    config: &AdvantageConfig,
) -> Result<Advantages, TrainerError> {
    let mut members: BTreeMap<G, Vec<usize>> = BTreeMap::new();
    for (index, (group, reward)) in rollouts.iter().enumerate() {
        if !reward.is_finite() {
            return Err(TrainerError::batch(format!("rollout {index}"), format!("its reward is {reward}")));
        }
        members.entry(*group).or_default().push(index);
    }

    let mut result =
        Advantages { per_rollout: vec![0.0; rollouts.len()], groups: members.len(), ..Advantages::default() };
    for indices in members.values() {
        let rewards: Vec<f64> = indices.iter().map(|index| rollouts[*index].1).collect();
        let (mean, deviation) = mean_and_deviation(&rewards);
        if deviation <= ZERO_DEVIATION {
            result.zero_variance_groups += 1;
            continue;
        }
        let scale = if config.normalise_by_std { deviation + config.std_epsilon } else { 1.0 };
        for (index, reward) in indices.iter().zip(&rewards) {
            result.per_rollout[*index] = (reward - mean) / scale;
        }
    }
    if !rollouts.is_empty() {
        result.mean_reward = rollouts.iter().map(|(_, reward)| reward).sum::<f64>() / rollouts.len() as f64;
    }
    Ok(result)
}

/// Mean and unbiased standard deviation; a single value has deviation 0.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(rollouts: &[(u32, f64)], by_std: bool, expected: &[f64], zero_variance: usize) {
        let config = AdvantageConfig { normalise_by_std: by_std, std_epsilon: 1e-6 };
        let found = group_advantages(rollouts, &config).unwrap();
        assert_eq!(found.zero_variance_groups, zero_variance, "{rollouts:?}");
        for (index, (left, right)) in found.per_rollout.iter().zip(expected).enumerate() {
            assert!((left - right).abs() < 1e-5, "{rollouts:?} rollout {index}: {left} instead of {right}");
        }
    }

    #[test]
    fn known_groups() {
        let half = 0.5_f64.sqrt();
        check(&[(1, 1.0), (1, 0.0)], true, &[half, -half], 0);
        check(&[(1, 1.0), (1, 0.0)], false, &[0.5, -0.5], 0);
        check(&[(1, 1.0), (1, 1.0), (1, 1.0)], true, &[0.0; 3], 1);
        check(&[(7, 1.0)], true, &[0.0], 1);
        // Interleaved groups with different levels do not see each other.
        check(&[(2, 10.0), (1, 1.0), (2, 11.0), (1, 0.0)], true, &[-half, half, half, -half], 0);
        check(&[], true, &[], 0);
    }

    #[test]
    fn a_reward_that_is_not_finite_is_named() {
        let error = group_advantages(&[(1, 0.0), (1, f64::NAN)], &AdvantageConfig::default()).unwrap_err();
        assert_eq!(error.code(), "GR0702");
        assert!(error.to_string().contains("rollout 1"), "{error}");
    }

    proptest! {
        #[test]
        fn groups_are_centred_and_independent(
            first in prop::collection::vec(-3.0..3.0_f64, 2..9),
            second in prop::collection::vec(-3.0..3.0_f64, 2..9),
            by_std: bool,
        ) {
            let config = AdvantageConfig { normalise_by_std: by_std, std_epsilon: 1e-6 };
            let alone: Vec<(u8, f64)> = first.iter().map(|reward| (0, *reward)).collect();
            let mut both = alone.clone();
            both.extend(second.iter().map(|reward| (1, *reward)));
            let alone = group_advantages(&alone, &config).unwrap();
            let both = group_advantages(&both, &config).unwrap();
            prop_assert_eq!(&alone.per_rollout[..], &both.per_rollout[..first.len()]);
            prop_assert!(alone.per_rollout.iter().sum::<f64>().abs() < 1e-6);
        }
    }
}
