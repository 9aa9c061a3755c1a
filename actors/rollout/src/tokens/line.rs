//! One line of token ids with its mask, log-probabilities and versions: a sample in the making.

use greenroom_messages::engine::VersionSpan;
use greenroom_messages::rollout::Sample;

/// A sample in the making. All three columns have the same length.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Line {
    sample: Sample,
}

impl Line {
    pub(super) fn ids(&self) -> &[u32] {
        &self.sample.tokens
    }

    pub(super) fn len(&self) -> usize {
        self.sample.tokens.len()
    }

    /// Adds tokens that nobody sampled.
    pub(super) fn extend_masked(&mut self, ids: &[u32]) {
        self.sample.tokens.extend_from_slice(ids);
        self.sample.loss_mask.resize(self.sample.tokens.len(), 0);
        self.sample.logprobs.resize(self.sample.tokens.len(), 0.0);
    }

    /// Adds sampled tokens; `versions` count from the first of them.
    pub(super) fn extend_sampled(&mut self, ids: &[u32], logprobs: &[f32], versions: &[VersionSpan]) {
        let start = self.len() as u32;
        self.sample.tokens.extend_from_slice(ids);
        self.sample.loss_mask.resize(self.sample.tokens.len(), 1);
        self.sample.logprobs.extend_from_slice(logprobs);
        for span in versions.iter().filter(|span| span.start < span.end) {
            let moved = VersionSpan { number: span.number, start: span.start + start, end: span.end + start };
            match self.sample.versions.last_mut() {
                Some(last) if last.number == moved.number && last.end == moved.start => last.end = moved.end,
                _ => self.sample.versions.push(moved),
            }
        }
    }

    /// The first `length` tokens of this line, masks as they are.
    pub(super) fn cut(&self, length: usize) -> Self {
        let versions = self.sample.versions.iter().filter(|span| (span.start as usize) < length);
        let sample = Sample {
            tokens: self.sample.tokens[..length].to_vec(),
            loss_mask: self.sample.loss_mask[..length].to_vec(),
            logprobs: self.sample.logprobs[..length].to_vec(),
            versions: versions.map(|span| VersionSpan { end: span.end.min(length as u32), ..span.clone() }).collect(),
        };
        Self { sample }
    }

    /// This line as context that is not trained on.
    pub(super) fn masked(&self) -> Self {
        let mut line = Self::default();
        line.extend_masked(self.ids());
        line
    }

    /// Adds what `other` has after its first `start` tokens; this line has exactly `start` tokens.
    pub(super) fn append_tail(&mut self, other: &Self, start: usize) {
        debug_assert_eq!(self.len(), start, "a branch continues where its trunk was cut");
        self.sample.tokens.extend_from_slice(&other.sample.tokens[start..]);
        self.sample.loss_mask.extend_from_slice(&other.sample.loss_mask[start..]);
        self.sample.logprobs.extend_from_slice(&other.sample.logprobs[start..]);
        let later = other.sample.versions.iter().filter(|span| span.end as usize > start);
        self.sample
            .versions
            .extend(later.map(|span| VersionSpan { start: span.start.max(start as u32), ..span.clone() }));
    }

    /// The finished sample; `None` when nothing in it is trained on.
    pub(super) fn into_sample(self) -> Option<Sample> {
        let is_consistent = self.sample.loss_mask.len() == self.sample.tokens.len()
            && self.sample.logprobs.len() == self.sample.tokens.len();
        debug_assert!(is_consistent, "the columns of a sample have one length");
        self.sample.loss_mask.contains(&1).then_some(self.sample)
    }
}
