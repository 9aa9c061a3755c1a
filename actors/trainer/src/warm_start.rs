//! Warm starts by supervised learning: which demonstrations make which optimizer step.
//!
//! The order of each pass is a permutation drawn from the request's seed and the pass's number, so the plan is a pure
//! function of its input. Demonstrations are dealt into steps of about `tokens_per_step` tokens; none is split or lost.

use greenroom_core::Seed;
use greenroom_messages::trainer::WarmStart;
use rand::seq::SliceRandom;

use crate::config::LossNormaliser;
use crate::error::TrainerError;
use crate::normaliser::{SampleShare, token_weights};
use crate::samples::{Limits, ReadySample, ready};

/// Checks the demonstrations; those without a token to learn are left out.
///
/// # Errors
/// [`TrainerError::InvalidBatch`] for a broken demonstration, or when there is nothing to learn.
pub fn prepare(request: &WarmStart, limits: Limits) -> Result<Vec<ReadySample>, TrainerError> {
    let problem = |reason: &str| Err(TrainerError::batch("warm start", reason));
    if request.epochs == 0 || request.tokens_per_step == 0 {
        return problem("epochs and tokens_per_step must be at least 1");
    }
    if !(request.learning_rate > 0.0 && request.learning_rate.is_finite()) {
        return problem("its learning rate is not a finite number above 0");
    }
    let mut samples = Vec::with_capacity(request.samples.len());
    for (index, sample) in request.samples.iter().enumerate() {
        samples.extend(ready(&format!("demonstration {index}"), index, sample, limits, false)?);
    }
    if samples.is_empty() {
        return problem("no demonstration has a token to learn");
    }
    Ok(samples)
}

/// For each pass, its optimizer steps as lists of indices into `lengths` (tokens per demonstration).
pub fn plan(lengths: &[usize], epochs: u32, tokens_per_step: usize, seed: u64) -> Vec<Vec<Vec<usize>>> {
    (0..epochs)
        .map(|epoch| {
            let mut order: Vec<usize> = (0..lengths.len()).collect();
            let stream = Seed::new(seed).child_numbered("warm_start", u64::from(epoch));
            order.shuffle(&mut stream.random());
            deal(&order, lengths, tokens_per_step)
        })
        .collect()
}

fn deal(order: &[usize], lengths: &[usize], tokens_per_step: usize) -> Vec<Vec<usize>> {
    let mut steps: Vec<Vec<usize>> = Vec::new();
    let mut tokens = 0;
    for index in order {
        match steps.last_mut() {
            Some(step) if tokens + lengths[*index] <= tokens_per_step => {
                step.push(*index);
                tokens += lengths[*index];
            }
            _ => {
                steps.push(vec![*index]);
                tokens = lengths[*index];
            }
        }
    }
    steps
}

/// The demonstrations of one optimizer step, each trained token with the same weight.
pub fn step_samples(samples: &[ReadySample], indices: &[usize]) -> Vec<ReadySample> {
    let mut chosen: Vec<ReadySample> = indices.iter().map(|index| samples[*index].clone()).collect();
    let shares: Vec<SampleShare> =
        chosen.iter().map(|sample| SampleShare { rollout: 0, trained_tokens: sample.rows.len() }).collect();
    for (sample, weight) in chosen.iter_mut().zip(token_weights(LossNormaliser::TokenMean, &shares, 1)) {
        sample.weight = weight as f32;
    }
    chosen
}

/// The mean losses over the first and over the last tenth of the steps (at least one step each), from each step's loss and
/// tokens; 0 where there is no step.
pub fn losses_at_the_ends(steps: &[(f64, usize)]) -> (f32, f32) {
    let tenth = steps.len().div_ceil(10);
    let mean = |steps: &[(f64, usize)]| {
        let tokens: usize = steps.iter().map(|(_, tokens)| tokens).sum();
        let sum: f64 = steps.iter().map(|(loss, tokens)| loss * *tokens as f64).sum();
        (sum / tokens.max(1) as f64) as f32
    };
    (mean(&steps[..tenth]), mean(&steps[steps.len() - tenth..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_pass_has_every_demonstration_once(
            lengths in prop::collection::vec(1_usize..40, 1..50),
            tokens_per_step in 1_usize..120,
            seed: u64,
        ) {
            let passes = plan(&lengths, 3, tokens_per_step, seed);
            prop_assert_eq!(passes.len(), 3);
            for steps in &passes {
                let mut seen: Vec<usize> = steps.iter().flatten().copied().collect();
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
                for step in steps {
                    let tokens: usize = step.iter().map(|index| lengths[*index]).sum();
                    prop_assert!(tokens <= tokens_per_step || step.len() == 1);
                }
            }
            prop_assert_eq!(passes, plan(&lengths, 3, tokens_per_step, seed));
        }
    }

    #[test]
    fn losses_at_the_ends_are_means_over_tokens_of_a_tenth_of_the_steps() {
        assert_eq!(losses_at_the_ends(&[]), (0.0, 0.0));
        assert_eq!(losses_at_the_ends(&[(2.0, 5)]), (2.0, 2.0));
        assert_eq!(losses_at_the_ends(&[(2.0, 5), (1.0, 5)]), (2.0, 1.0), "they differ within a single pass");
        let twenty: Vec<(f64, usize)> = (0..20).map(|step| (f64::from(20 - step), 1 + step as usize % 2)).collect();
        let (first, last) = losses_at_the_ends(&twenty);
        assert!((first - (20.0 + 2.0 * 19.0) / 3.0).abs() < 1e-5 && (last - (2.0 + 2.0) / 3.0).abs() < 1e-5);
    }

    #[test]
    fn passes_differ_in_order() {
        let lengths = vec![1; 30];
        let passes = plan(&lengths, 2, 5, 1);
        assert_ne!(passes[0], passes[1]);
        assert_ne!(passes[0], plan(&lengths, 2, 5, 2)[0]);
    }
}
