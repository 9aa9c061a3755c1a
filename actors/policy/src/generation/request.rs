//! What a caller asks the generator for, and what it hears back: plain data, no tensors.
//!
//! The meaning of every field follows SGLang 0.5.23 (`/generate`), which the embedded engine imitates; where it differs the
//! field says so. Parallel samples (`n`) do not exist here: the server submits `n` requests.
//!
//! Invariants: a submitted request hears exactly one [`GenerationEvent::Finished`], as its last event, unless the generator
//! thread dies (then the stream simply ends). Tokens already announced are never taken back.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::GenerationError;

/// Temperatures below this are greedy decoding (SGLang's rule).
pub const GREEDY_BELOW_TEMPERATURE: f64 = 1e-6;

/// How the next token is chosen. Defaults are SGLang's.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; below [`GREEDY_BELOW_TEMPERATURE`] the most likely token is taken.
    pub temperature: f64,
    /// Nucleus: the smallest set of tokens whose probability reaches this; 1.0 keeps all.
    pub top_p: f64,
    /// Keep the `k` most likely tokens; `None` keeps all (SGLang's -1).
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this fraction of the most likely one; 0.0 drops none.
    pub min_p: f64,
    /// The most tokens to sample; 0 only scores the prompt.
    pub max_new_tokens: u32,
    /// Stop tokens (end of text and `stop_token_ids`) cannot be sampled before this many tokens.
    pub min_new_tokens: u32,
    /// Strings that end the generation when they appear in the decoded output; they need a decoder in the generator.
    pub stop: Vec<String>,
    /// Token ids that end the generation, beside the model's own end-of-text ids.
    pub stop_token_ids: Vec<u32>,
    /// Do not end at end-of-text ids nor at `stop_token_ids` (SGLang ignores both); stop strings still count.
    pub ignore_eos: bool,
    /// Seed of this request's random numbers. `None`: derived from the generator's seed and the request id, so that the
    /// same request id on the same generator draws the same numbers again.
    pub sampling_seed: Option<u64>,
    /// Subtracted from a token's logit once per earlier appearance in the output.
    pub frequency_penalty: f64,
    /// Subtracted from a token's logit if it appeared in the output.
    pub presence_penalty: f64,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1.0 is off.
    pub repetition_penalty: f64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            max_new_tokens: 128,
            min_new_tokens: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            sampling_seed: None,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

impl SamplingParams {
    /// Whether the most likely token is taken, with no randomness.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW_TEMPERATURE || self.top_k == Some(1)
    }

    /// Whether any penalty changes the logits.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.frequency_penalty != 0.0 || self.presence_penalty != 0.0 || self.repetition_penalty != 1.0
    }

    /// Checks every range, with SGLang's wording.
    ///
    /// # Errors
    /// [`GenerationError::InvalidParameter`] names the first parameter that is out of range.
    pub fn validate(&self) -> Result<(), GenerationError> {
        let invalid = |message: String| Err(GenerationError::InvalidParameter { message });
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return invalid(format!("temperature must be non-negative, got {}.", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return invalid(format!("top_p must be in (0, 1], got {}.", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return invalid(format!("min_p must be in [0, 1], got {}.", self.min_p));
        }
        if self.top_k == Some(0) {
            return invalid("top_k must be -1 (disable) or at least 1, got 0.".to_owned());
        }
        if !(-2.0..=2.0).contains(&self.frequency_penalty) {
            return invalid(format!("frequency_penalty must be in [-2, 2], got {}.", self.frequency_penalty));
        }
        if !(-2.0..=2.0).contains(&self.presence_penalty) {
            return invalid(format!("presence_penalty must be in [-2, 2], got {}.", self.presence_penalty));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty <= 2.0) {
            return invalid(format!("repetition_penalty must be in (0, 2], got {}.", self.repetition_penalty));
        }
        if self.min_new_tokens > self.max_new_tokens {
            return invalid(format!(
                "min_new_tokens must be in [0, max_new_tokens({})], got {}.",
                self.max_new_tokens, self.min_new_tokens
            ));
        }
        Ok(())
    }
}

/// One sequence to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// The caller's id; unique among live requests. Aborts match by prefix, so ids should have a fixed width.
    pub rid: String,
    /// The prompt; not empty, each id below the vocabulary size.
    pub input_ids: Vec<u32>,
    /// How to choose tokens.
    pub params: SamplingParams,
    /// Report logprobs. Without it the logprob of a token is still computed where it costs nothing, but top lists are empty.
    pub return_logprob: bool,
    /// First prompt position whose logprob is wanted; `None` (SGLang's -1): output tokens only. Needs `return_logprob`.
    /// Prompt positions that are scored are computed afresh, never taken from the prefix cache.
    pub logprob_start_len: Option<usize>,
    /// How many of the most likely tokens to report at each position; 0: none.
    pub top_logprobs_num: usize,
    /// Token ids whose logprobs to report at each position.
    pub token_ids_logprob: Vec<u32>,
    /// `true`: one event per decoding step. `false`: tokens may be held back and come together just before the end.
    pub stream: bool,
    /// Keys and values are shared only between requests of the same key (SGLang's `extra_key`); empty is a key like others.
    pub cache_key: String,
}

impl GenerationRequest {
    /// A request with default parameters, no logprobs, not streamed.
    #[must_use]
    pub fn new(rid: impl Into<String>, input_ids: Vec<u32>) -> Self {
        Self {
            rid: rid.into(),
            input_ids,
            params: SamplingParams::default(),
            return_logprob: false,
            logprob_start_len: None,
            top_logprobs_num: 0,
            token_ids_logprob: Vec::new(),
            stream: false,
            cache_key: String::new(),
        }
    }
}

/// A token id with its natural-log probability.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// `log_softmax(logits / temperature)` of the token, before top-p, top-k and min-p; for greedy requests
    /// `log_softmax(logits)`. This is SGLang's default; a trainer must divide its logits by the same temperature.
    pub logprob: f32,
}

/// One sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// The token.
    pub id: u32,
    /// See [`TokenLogprob::logprob`].
    pub logprob: f32,
    /// The `top_logprobs_num` most likely tokens, most likely first.
    pub top_logprobs: Vec<TokenLogprob>,
    /// The tokens of `token_ids_logprob`, in the caller's order.
    pub requested_logprobs: Vec<TokenLogprob>,
    /// The version of the weights that produced this token.
    pub weight_version: Arc<str>,
}

/// One scored prompt token.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptToken {
    /// The token.
    pub id: u32,
    /// Its logprob given what precedes it, at temperature 1; `None` for the first reported one, as SGLang does (what would
    /// predict it lies before `logprob_start_len`).
    pub logprob: Option<f32>,
    /// The most likely tokens at this position; empty where `logprob` is `None`.
    pub top_logprobs: Vec<TokenLogprob>,
    /// The tokens of `token_ids_logprob`; empty where `logprob` is `None`.
    pub requested_logprobs: Vec<TokenLogprob>,
}

/// What ended a generation by a stop condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopMatch {
    /// An end-of-text id or one of `stop_token_ids`. It is the last token of the output.
    Token(u32),
    /// One of the stop strings. The tokens that spell it are part of the output ids.
    Text(String),
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop condition was met.
    Stop {
        /// Which one.
        matched: StopMatch,
    },
    /// `max_new_tokens` tokens were sampled.
    Length {
        /// How many that was.
        length: usize,
    },
    /// Someone ended it; tokens delivered so far are good.
    Abort {
        /// SGLang's text: `Aborted`, `Abort in waiting queue`, …
        message: String,
    },
}

/// The end of one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Length of the prompt, tokens.
    pub prompt_tokens: usize,
    /// How many tokens were sampled in all.
    pub completion_tokens: usize,
    /// Prompt tokens whose keys and values came from the prefix cache instead of being computed.
    pub cached_tokens: usize,
    /// How often the request lost its keys and values and was recomputed.
    pub retractions: u32,
    /// Scores of the prompt from `logprob_start_len` on; empty when not asked for.
    pub prompt_logprobs: Vec<PromptToken>,
    /// The version of the weights when the request ended.
    pub weight_version: Arc<str>,
}

/// What the caller of a request hears.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerationEvent {
    /// Of a streamed request, once, before its tokens: it runs.
    Started {
        /// As [`Finished::cached_tokens`].
        cached_tokens: usize,
    },
    /// New tokens since the last event, in order, at least one.
    Tokens(Vec<GeneratedToken>),
    /// The end; nothing follows. Boxed because it is far larger than the other.
    Finished(Box<Finished>),
}

/// What becomes of running requests at a pause. New requests are held in every mode and run after resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// They end with [`FinishReason::Abort`], keeping what they have; held and waiting requests end too.
    Abort,
    /// They lose their keys and values and go back to the queue; after resume prompt and output so far are recomputed.
    Retract,
    /// They stand still and go on after resume with the keys and values they have, even if the weights changed.
    InPlace,
}

/// How busy the generator is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Requests being decoded.
    pub running: usize,
    /// Requests waiting for a place, held by a pause, or retracted.
    pub waiting: usize,
    /// Retracted requests among the waiting ones.
    pub retracted: usize,
    /// Tokens whose keys and values are held for running requests.
    pub used_tokens: usize,
    /// Tokens whose keys and values are held by the prefix cache only, and can be dropped at once.
    pub cached_tokens: usize,
    /// Tokens that fit in all.
    pub capacity_tokens: usize,
    /// The most requests decoded together.
    pub max_running: usize,
    /// Tokens sampled a second over the last seconds; 0 when idle.
    pub throughput_tokens_per_s: f64,
    /// Part of prompt tokens served by the prefix cache since start, 0 to 1.
    pub cache_hit_rate: f64,
    /// Whether a pause is in force.
    pub paused: bool,
    /// Tokens sampled since start.
    pub total_generated_tokens: u64,
    /// Prompt tokens taken in since start.
    pub total_prompt_tokens: u64,
    /// Prompt tokens served by the prefix cache since start.
    pub total_cached_tokens: u64,
    /// Requests accepted since start.
    pub total_requests: u64,
    /// Requests that ended by an abort since start.
    pub total_aborted: u64,
    /// Retractions since start.
    pub total_retractions: u64,
}

/// What an update of the weights did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateReport {
    /// Tensors that were replaced.
    pub tensors: usize,
    /// Their size in the checkpoint, bytes.
    pub bytes: u64,
    /// The version now in force.
    pub weight_version: Arc<str>,
    /// Whether the prefix cache is empty now. `false` although a flush was asked for: requests stood still in place and still
    /// need their keys and values; the weights **were** changed.
    pub cache_flushed: bool,
}

/// The first rows of one weight.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightExcerpt {
    /// Hugging Face name of the tensor.
    pub name: String,
    /// Shape of `values`: that of the tensor with the first dimension cut to what was asked for.
    pub shape: Vec<usize>,
    /// Row-major values; bf16 and f16 are widened exactly.
    pub values: Vec<f32>,
}
