//! Samples made ready for the network: checked, trimmed, flattened into columns.
//!
//! A sample's input ends before its last trained token: what comes after is never looked at by a causal model's loss, so
//! a trailing observation costs nothing. Row `p - 1` predicts token `p`, so token 0 can never be trained on.

use greenroom_messages::rollout::Sample;

use crate::error::TrainerError;
use crate::loss::TrainedTokens;

/// The engine rounds its log-probabilities; a value this little above 0 is still one.
const LOGPROB_SLACK: f32 = 1e-3;

/// One sample that has at least one trained token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadySample {
    /// How messages speak of it.
    pub place: String,
    /// Which rollout of the batch it belongs to, from 0.
    pub rollout: usize,
    /// What the network reads.
    pub input: Vec<i64>,
    /// Rows of the input that predict trained tokens, ascending.
    pub rows: Vec<i64>,
    /// Those tokens.
    pub targets: Vec<i64>,
    /// Their log-probabilities as the engine reported them.
    pub rollout_logprobs: Vec<f32>,
    /// Their log-probabilities before the batch's first optimizer step, where they are known.
    pub old_logprobs: Option<Vec<f32>>,
    /// Their log-probabilities under the reference policy, where they are needed.
    pub reference_logprobs: Option<Vec<f32>>,
    /// Advantage of its rollout.
    pub advantage: f32,
    /// Weight of each trained token in the step's loss.
    pub weight: f32,
}

/// Limits of the network that samples must keep.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Token ids are below this.
    pub vocabulary: usize,
    /// Longest sequence in tokens.
    pub max_tokens: usize,
}

/// Checks a sample and makes it ready; `None` when it has no trained token. `with_logprobs`: whether its log-probabilities
/// are used (not in a warm start).
///
/// # Errors
/// [`TrainerError::InvalidBatch`] that names `place` and what is wrong.
pub fn ready(
    place: &str,
    rollout: usize,
    sample: &Sample,
    limits: Limits,
    with_logprobs: bool,
) -> Result<Option<ReadySample>, TrainerError> {
    let problem = |reason: String| Err(TrainerError::batch(place, reason));
    let length = sample.tokens.len();
    if sample.loss_mask.len() != length {
        return problem(format!("{length} tokens but a loss mask of {}", sample.loss_mask.len()));
    }
    if with_logprobs && sample.logprobs.len() != length {
        return problem(format!("{length} tokens but {} log-probabilities", sample.logprobs.len()));
    }
    if let Some(position) = sample.tokens.iter().position(|token| *token as usize >= limits.vocabulary) {
        let (token, vocabulary) = (sample.tokens[position], limits.vocabulary);
        return problem(format!("token {token} at position {position}, but the vocabulary has {vocabulary}"));
    }
    if let Some(position) = sample.loss_mask.iter().position(|mask| *mask > 1) {
        return problem(format!("loss mask {} at position {position} is neither 0 nor 1", sample.loss_mask[position]));
    }
    let trained: Vec<usize> = (0..length).filter(|position| sample.loss_mask[*position] == 1).collect();
    let (Some(first), Some(last)) = (trained.first(), trained.last()) else { return Ok(None) };
    if *first == 0 {
        return problem("its first token is to be trained on, but nothing predicts it".to_owned());
    }
    if *last > limits.max_tokens {
        return problem(format!("{last} tokens to read, but the model reads at most {}", limits.max_tokens));
    }
    let rollout_logprobs = if with_logprobs { logprobs_at(place, sample, &trained)? } else { Vec::new() };
    Ok(Some(ReadySample {
        place: place.to_owned(),
        rollout,
        input: sample.tokens[..*last].iter().map(|token| i64::from(*token)).collect(),
        rows: trained.iter().map(|position| *position as i64 - 1).collect(),
        targets: trained.iter().map(|position| i64::from(sample.tokens[*position])).collect(),
        rollout_logprobs,
        ..ReadySample::default()
    }))
}

fn logprobs_at(place: &str, sample: &Sample, trained: &[usize]) -> Result<Vec<f32>, TrainerError> {
    let logprob = |position: &usize| {
        let value = sample.logprobs[*position];
        if value.is_finite() && value <= LOGPROB_SLACK {
            return Ok(value);
        }
        Err(TrainerError::batch(place, format!("log-probability {value} at position {position}")))
    };
    trained.iter().map(logprob).collect()
}

/// The columns of a micro-batch: the samples' inputs one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pack {
    /// Inputs, joined.
    pub tokens: Vec<i64>,
    /// Length of each.
    pub lengths: Vec<usize>,
    /// Trained tokens, with rows counted over the whole pack.
    pub trained: TrainedTokens,
}

/// Joins samples into one pack. Old and reference log-probabilities are taken over when every sample has them.
pub fn join(samples: &[&ReadySample]) -> Pack {
    let mut pack = Pack::default();
    for sample in samples {
        let offset = pack.tokens.len() as i64;
        let count = sample.rows.len();
        pack.tokens.extend(&sample.input);
        pack.lengths.push(sample.input.len());
        pack.trained.rows.extend(sample.rows.iter().map(|row| row + offset));
        pack.trained.targets.extend(&sample.targets);
        pack.trained.rollout_logprobs.extend(&sample.rollout_logprobs);
        pack.trained.advantages.extend(std::iter::repeat_n(sample.advantage, count));
        pack.trained.weights.extend(std::iter::repeat_n(sample.weight, count));
    }
    let joined = |column: fn(&ReadySample) -> Option<&Vec<f32>>| -> Option<Vec<f32>> {
        let columns: Option<Vec<&Vec<f32>>> = samples.iter().map(|sample| column(sample)).collect();
        columns.map(|columns| columns.into_iter().flatten().copied().collect())
    };
    pack.trained.old_logprobs = joined(|sample| sample.old_logprobs.as_ref());
    pack.trained.reference_logprobs = joined(|sample| sample.reference_logprobs.as_ref());
    pack
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { vocabulary: 10, max_tokens: 6 };

    fn sample(mask: &[u8]) -> Sample {
        let length = mask.len() as u32;
        Sample {
            tokens: (0..length).map(|index| index + 1).collect(),
            loss_mask: mask.to_vec(),
            logprobs: mask.iter().map(|mask| -f32::from(*mask)).collect(),
            versions: Vec::new(),
        }
    }

    #[test]
    fn inputs_end_before_the_last_trained_token() {
        let found = ready("s", 3, &sample(&[0, 0, 1, 0, 1, 0, 0]), LIMITS, true).unwrap().unwrap();
        assert_eq!(found.input, [1, 2, 3, 4]);
        assert_eq!(found.rows, [1, 3]);
        assert_eq!(found.targets, [3, 5]);
        assert_eq!(found.rollout_logprobs, [-1.0, -1.0]);
        assert_eq!(ready("s", 0, &sample(&[0, 0, 0]), LIMITS, true).unwrap(), None);
    }

    #[test]
    fn packs_count_rows_over_the_whole_pack() {
        let first = ready("a", 0, &sample(&[0, 0, 1]), LIMITS, true).unwrap().unwrap();
        let mut second = ready("b", 1, &sample(&[0, 1, 1]), LIMITS, true).unwrap().unwrap();
        second.old_logprobs = Some(vec![-2.0, -2.0]);
        let pack = join(&[&first, &second]);
        assert_eq!(pack.tokens, [1, 2, 1, 2]);
        assert_eq!(pack.lengths, [2, 2]);
        assert_eq!(pack.trained.rows, [1, 2, 3]);
        assert_eq!(pack.trained.targets, [3, 2, 3]);
        assert_eq!(pack.trained.old_logprobs, None);
        assert_eq!(join(&[&second]).trained.old_logprobs, Some(vec![-2.0, -2.0]));
    }

    #[test]
    fn inconsistent_samples_are_named() {
        let good = sample(&[0, 0, 1]);
        let cases = [
            (Sample { loss_mask: vec![0, 1], ..good.clone() }, "loss mask of 2"),
            (Sample { logprobs: vec![0.0], ..good.clone() }, "1 log-probabilities"),
            (Sample { tokens: vec![1, 10, 2], ..good.clone() }, "token 10 at position 1"),
            (Sample { loss_mask: vec![0, 2, 1], ..good.clone() }, "neither 0 nor 1"),
            (Sample { loss_mask: vec![1, 0, 1], ..good.clone() }, "first token"),
            (Sample { logprobs: vec![0.0, 0.0, f32::NAN], ..good.clone() }, "NaN at position 2"),
            (Sample { logprobs: vec![0.0, 0.0, 0.5], ..good.clone() }, "0.5 at position 2"),
            (sample(&[0, 0, 0, 0, 0, 0, 0, 1]), "reads at most 6"),
        ];
        for (sample, part) in cases {
            let error = ready("rollout x sample 0", 0, &sample, LIMITS, true).unwrap_err();
            assert_eq!(error.code(), "GR0702");
            let text = error.to_string();
            assert!(text.contains("rollout x sample 0") && text.contains(part), "{text}");
        }
    }
}
