//! One request while it lives: its tokens, how far it is computed, and when it must stop.

use std::sync::Arc;

use greenroom_core::{Random, Seed};

use super::options::TextDecoder;
use super::request::{FinishReason, Finished, GeneratedToken, GenerationRequest, PromptToken, StopMatch};
use super::sampler::{Distribution, History, apply_penalties, forbid};

/// More tokens than this at the end of the output are never needed beyond a stop string's bytes to find it: every ordinary
/// token decodes to a byte at least, and this many special ones in between are allowed for.
const STOP_TEXT_SLACK_TOKENS: usize = 8;

/// A request with its progress.
#[derive(Debug)]
pub struct Sequence {
    /// Number in order of arrival.
    pub key: u64,
    /// What was asked for.
    pub request: GenerationRequest,
    /// Prompt and output.
    pub tokens: Vec<u32>,
    /// Tokens whose keys and values are in the slot.
    pub computed: usize,
    /// Its slot while it runs.
    pub slot: Option<usize>,
    /// Prompt tokens taken from the cache at first admission; `None` before it.
    pub cached_tokens: Option<usize>,
    /// Whether its start was announced.
    pub start_announced: bool,
    /// How often it was retracted.
    pub retractions: u32,
    /// Scores of the prompt so far.
    pub prompt_logprobs: Vec<PromptToken>,
    /// Tokens that were not announced yet.
    pub held: Vec<GeneratedToken>,
    history: History,
    random: Random,
}

impl Sequence {
    /// A request that has just arrived.
    #[must_use]
    pub fn new(key: u64, request: GenerationRequest, generator_seed: u64) -> Self {
        let seed = match request.params.sampling_seed {
            Some(seed) => Seed::new(seed).child("sampling"),
            None => Seed::new(generator_seed).child("sampling").child(&request.rid),
        };
        let mut history = History::default();
        if request.params.repetition_penalty != 1.0 {
            history.prompt_tokens = request.input_ids.clone();
            history.prompt_tokens.sort_unstable();
            history.prompt_tokens.dedup();
        }
        Self {
            key,
            tokens: request.input_ids.clone(),
            request,
            computed: 0,
            slot: None,
            cached_tokens: None,
            start_announced: false,
            retractions: 0,
            prompt_logprobs: Vec::new(),
            held: Vec::new(),
            history,
            random: seed.random(),
        }
    }

    /// Length of the prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> usize {
        self.request.input_ids.len()
    }

    /// What was sampled so far.
    #[must_use]
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens()..]
    }

    /// Tokens still to be computed before the next can be sampled.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// From which prompt position on scores are still to be made; `None` when none are wanted or all are there.
    #[must_use]
    pub fn scoring_from(&self) -> Option<usize> {
        let start = self.request.logprob_start_len.filter(|_| self.request.return_logprob)?;
        (start < self.prompt_tokens() && self.output().is_empty()).then_some(start)
    }

    /// How many of the first tokens may come from the cache: not the last, whose logits are needed, and nothing that is to
    /// be scored.
    #[must_use]
    pub fn reusable(&self) -> usize {
        let all_but_last = self.tokens.len() - 1;
        self.scoring_from().map_or(all_but_last, |start| start.min(all_but_last))
    }

    /// Whether the logits at this position score the next prompt token.
    #[must_use]
    pub fn scores_at(&self, position: usize) -> bool {
        self.scoring_from().is_some_and(|start| position >= start && position + 1 < self.prompt_tokens())
    }

    /// Gives back what was computed; it will be computed again.
    pub fn retract(&mut self) {
        self.computed = 0;
        self.slot = None;
        self.retractions += 1;
        if self.output().is_empty() {
            // The prompt was not scored to its end; with output it was, and is not scored again.
            self.prompt_logprobs.clear();
        }
    }

    /// Scores the prompt token after `position` with the logits at `position`.
    ///
    /// # Errors
    /// A text for the abort when the logits are nonsense.
    pub fn score(&mut self, position: usize, logits: &[f32]) -> Result<(), String> {
        if self.prompt_logprobs.is_empty() {
            self.prompt_logprobs.push(unscored(self.tokens[position]));
        }
        let distribution = Distribution::new(logits, 1.0).ok_or_else(|| not_finite(position))?;
        let id = self.tokens[position + 1];
        self.prompt_logprobs.push(PromptToken {
            id,
            logprob: Some(distribution.logprob(id)),
            top_logprobs: distribution.top(self.request.top_logprobs_num),
            requested_logprobs: distribution.requested(&self.request.token_ids_logprob),
        });
        Ok(())
    }

    /// Samples the next token from its logits and holds it for announcement.
    ///
    /// # Errors
    /// A text for the abort when the logits are nonsense.
    pub fn sample(&mut self, logits: &mut [f32], eos: &[u32], weight_version: &Arc<str>) -> Result<u32, String> {
        let params = &self.request.params;
        if params.has_penalties() {
            apply_penalties(logits, params, &self.history);
        }
        if self.output().len() < params.min_new_tokens as usize {
            forbid(logits, eos.iter().chain(&params.stop_token_ids).copied());
        }
        let distribution =
            Distribution::new(logits, params.temperature).ok_or_else(|| not_finite(self.tokens.len() - 1))?;
        let id = distribution.draw(params, &mut self.random);
        let with_logprobs = self.request.return_logprob;
        self.held.push(GeneratedToken {
            id,
            logprob: distribution.logprob(id),
            top_logprobs: if with_logprobs { distribution.top(self.request.top_logprobs_num) } else { Vec::new() },
            requested_logprobs: distribution.requested(&self.request.token_ids_logprob),
            weight_version: Arc::clone(weight_version),
        });
        if params.has_penalties() {
            *self.history.output_counts.entry(id).or_insert(0) += 1;
        }
        self.tokens.push(id);
        Ok(id)
    }

    /// Whether it must stop now. The limit is looked at first, then ids, then strings: SGLang's order, in which an
    /// end-of-text id sampled as the very last allowed token counts as `Length`.
    #[must_use]
    pub fn finish_reason(&self, eos: &[u32], decoder: Option<&TextDecoder>) -> Option<FinishReason> {
        let params = &self.request.params;
        let output = self.output();
        if output.len() >= params.max_new_tokens as usize {
            return Some(FinishReason::Length { length: output.len() });
        }
        let last = *output.last()?;
        if !params.ignore_eos && (eos.contains(&last) || params.stop_token_ids.contains(&last)) {
            return Some(FinishReason::Stop { matched: StopMatch::Token(last) });
        }
        let decode = decoder.filter(|_| !params.stop.is_empty())?;
        let longest = params.stop.iter().map(String::len).max().unwrap_or(0);
        let tail_start = output.len().saturating_sub(longest + STOP_TEXT_SLACK_TOKENS);
        let tail = decode(&output[tail_start..]);
        let found = params.stop.iter().find(|stop| tail.contains(stop.as_str()))?;
        Some(FinishReason::Stop { matched: StopMatch::Text(found.clone()) })
    }

    /// The last event of the request.
    #[must_use]
    pub fn finished(&mut self, reason: FinishReason, weight_version: &Arc<str>) -> Finished {
        let start = self.request.logprob_start_len.filter(|_| self.request.return_logprob);
        if let Some(start) = start.filter(|&start| start + 1 == self.prompt_tokens())
            && self.prompt_logprobs.is_empty()
        {
            self.prompt_logprobs.push(unscored(self.request.input_ids[start]));
        }
        Finished {
            reason,
            prompt_tokens: self.prompt_tokens(),
            completion_tokens: self.output().len(),
            cached_tokens: self.cached_tokens.unwrap_or(0),
            retractions: self.retractions,
            prompt_logprobs: std::mem::take(&mut self.prompt_logprobs),
            weight_version: Arc::clone(weight_version),
        }
    }
}

/// The first reported prompt token: what would predict it was not asked for.
fn unscored(id: u32) -> PromptToken {
    PromptToken { id, logprob: None, top_logprobs: Vec::new(), requested_logprobs: Vec::new() }
}

fn not_finite(position: usize) -> String {
    format!("the network's logits at position {position} are not finite; the weights are broken")
}
