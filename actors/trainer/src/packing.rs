//! Packing samples into micro-batches of a bounded number of tokens.
//!
//! First-fit decreasing: samples in order of falling length (equal lengths in the order given) go into the first
//! micro-batch with room. The same lengths always give the same packing; a sample is never split; one that exceeds the
//! budget is an error that names it, not a silent out-of-memory risk (slime makes an oversized micro-batch of it).

use crate::error::TrainerError;

/// Samples of one forward and backward pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MicroBatch {
    /// Indices into the list of samples, ascending.
    pub samples: Vec<usize>,
    /// Their tokens together.
    pub tokens: usize,
}

/// Packs samples of the given lengths (in tokens) under `budget` tokens; samples without tokens are left out.
///
/// Micro-batches come out fullest-sample first; within one, samples keep the order given.
///
/// # Errors
/// [`TrainerError::SampleTooLong`] for the first sample longer than `budget`, described by `describe(index)`.
pub fn pack(
    lengths: &[usize],
    budget: usize,
    describe: impl Fn(usize) -> String,
) -> Result<Vec<MicroBatch>, TrainerError> {
    if let Some(index) = lengths.iter().position(|length| *length > budget) {
        return Err(TrainerError::SampleTooLong { place: describe(index), tokens: lengths[index], budget });
    }
    let mut order: Vec<usize> = (0..lengths.len()).filter(|index| lengths[*index] > 0).collect();
    order.sort_by_key(|index| std::cmp::Reverse(lengths[*index]));

    let mut batches: Vec<MicroBatch> = Vec::new();
    for index in order {
        let length = lengths[index];
        match batches.iter_mut().find(|batch| batch.tokens + length <= budget) {
            Some(batch) => {
                batch.samples.push(index);
                batch.tokens += length;
            }
            None => batches.push(MicroBatch { samples: vec![index], tokens: length }),
        }
    }
    for batch in &mut batches {
        batch.samples.sort_unstable();
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(lengths: &[usize], budget: usize) -> Vec<Vec<usize>> {
        let batches = pack(lengths, budget, |index| format!("sample {index}")).unwrap();
        batches.into_iter().map(|batch| batch.samples).collect()
    }

    #[test]
    fn first_fit_decreasing() {
        assert_eq!(packed(&[3, 7, 5, 5], 10), vec![vec![0, 1], vec![2, 3]]);
        assert_eq!(packed(&[4, 4, 4], 8), vec![vec![0, 1], vec![2]]);
        assert_eq!(packed(&[0, 2, 0], 8), vec![vec![1]]);
        assert!(packed(&[], 8).is_empty());
    }

    #[test]
    fn a_sample_over_the_budget_is_named() {
        let error = pack(&[3, 9], 8, |index| format!("rollout r{index}")).unwrap_err();
        assert_eq!(error.code(), "GR0703");
        assert!(error.to_string().contains("rollout r1 has 9 tokens"), "{error}");
    }

    proptest! {
        #[test]
        fn every_sample_once_within_budget_and_no_two_batches_could_be_one(
            lengths in prop::collection::vec(0_usize..64, 0..60),
            budget in 64_usize..200,
        ) {
            let batches = pack(&lengths, budget, |index| index.to_string()).unwrap();
            let mut seen: Vec<usize> = batches.iter().flat_map(|batch| batch.samples.clone()).collect();
            seen.sort_unstable();
            let expected: Vec<usize> = (0..lengths.len()).filter(|index| lengths[*index] > 0).collect();
            prop_assert_eq!(seen, expected);
            for batch in &batches {
                let tokens: usize = batch.samples.iter().map(|index| lengths[*index]).sum();
                prop_assert_eq!(tokens, batch.tokens);
                prop_assert!(tokens <= budget);
            }
            for (index, batch) in batches.iter().enumerate() {
                for later in &batches[index + 1..] {
                    prop_assert!(batch.tokens + later.tokens > budget, "{} and {} fit", index, later.tokens);
                }
            }
            prop_assert_eq!(batches, pack(&lengths, budget, |index| index.to_string()).unwrap());
        }
    }
}
