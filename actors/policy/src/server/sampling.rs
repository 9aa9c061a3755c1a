//! The `sampling_params` of a request: strict in names and types, checked in range, then translated for the generator.
//!
//! The declaration below is the contract: its order and its types produce, through serde, the very texts that SGLang 0.5.23
//! answers to an unknown or mistyped parameter. Range errors quote the number as the client wrote it.
//!
//! What this engine cannot do (constrained decoding, logit bias, beam search) is refused, never ignored: a sample drawn
//! under other rules than the caller asked for would be silently wrong training data.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ApiError;
use crate::generation::SamplingParams;

const TOP_K_ALL: i64 = 1 << 30;
const GREATEST_PARALLEL_SAMPLES: i64 = 1024;

/// The parameters as sent. `null` means the default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SentParams {
    #[serde(rename = "max_new_tokens")]
    _max_new_tokens: Option<i64>,
    stop: Option<Texts>,
    stop_token_ids: Option<Vec<i64>>,
    stop_regex: Option<Texts>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    min_new_tokens: Option<i64>,
    n: Option<i64>,
    json_schema: Option<Value>,
    regex: Option<String>,
    ebnf: Option<String>,
    structural_tag: Option<Value>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    #[serde(rename = "spaces_between_special_tokens")]
    _spaces_between_special_tokens: Option<bool>,
    no_stop_trim: Option<bool>,
    stream_interval: Option<i64>,
    logit_bias: Option<Map<String, Value>>,
    sampling_seed: Option<i64>,
    #[serde(rename = "custom_params")]
    _custom_params: Option<Value>,
    beam_width: Option<i64>,
    watermark: Option<Value>,
    choice: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

/// The parameters of one request, names and types checked, ranges not yet.
#[derive(Debug)]
pub struct SamplingInput {
    sent: SentParams,
    raw: Map<String, Value>,
}

/// The parameters of one request, ready.
#[derive(Debug, Clone)]
pub struct Sampling {
    /// For the generator.
    pub params: SamplingParams,
    /// How many samples of the same prompt.
    pub parallel_samples: usize,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Leave the stop string or stop token in the text.
    pub no_stop_trim: bool,
    /// Tokens per chunk of a stream.
    pub stream_interval: usize,
}

impl SamplingInput {
    /// Checks names and types.
    ///
    /// # Errors
    /// [`ApiError::Strict`] in serde's words.
    pub fn parse(params: &Map<String, Value>) -> Result<Self, ApiError> {
        let sent: SentParams = serde_json::from_value(Value::Object(params.clone()))
            .map_err(|error| ApiError::Strict(error.to_string()))?;
        Ok(Self { sent, raw: params.clone() })
    }

    /// Checks ranges and support, and fills in what depends on the prompt: with `max_new_tokens: null` the output may fill
    /// the context.
    ///
    /// # Errors
    /// 400 in SGLang's words, or saying what this engine does not support.
    pub fn resolve(&self, prompt_tokens: usize, context_length: usize) -> Result<Sampling, ApiError> {
        self.check_ranges()?;
        self.check_support()?;
        let sent = &self.sent;
        let max_new_tokens =
            self.max_new_tokens().unwrap_or_else(|| context_length.saturating_sub(prompt_tokens + 1) as i64);
        let min_new_tokens = sent.min_new_tokens.unwrap_or(0);
        if min_new_tokens < 0 || min_new_tokens > max_new_tokens {
            return Err(ApiError::bad_request(format!(
                "min_new_tokens must be in [0, max_new_tokens({max_new_tokens})], got {min_new_tokens}."
            )));
        }
        let stop = match &sent.stop {
            None => Vec::new(),
            Some(Texts::One(text)) => vec![text.clone()],
            Some(Texts::Many(texts)) => texts.clone(),
        };
        let params = SamplingParams {
            temperature: sent.temperature.unwrap_or(1.0),
            top_p: sent.top_p.unwrap_or(1.0),
            top_k: sent.top_k.filter(|k| (1..TOP_K_ALL).contains(k)).and_then(|k| u32::try_from(k).ok()),
            min_p: sent.min_p.unwrap_or(0.0),
            max_new_tokens: u32::try_from(max_new_tokens).unwrap_or(u32::MAX),
            min_new_tokens: u32::try_from(min_new_tokens).unwrap_or(0),
            stop: stop.into_iter().filter(|text| !text.is_empty()).collect(),
            // An id outside of the vocabulary can never be sampled, so dropping it changes nothing.
            stop_token_ids: sent.stop_token_ids.iter().flatten().filter_map(|id| u32::try_from(*id).ok()).collect(),
            ignore_eos: sent.ignore_eos.unwrap_or(false),
            sampling_seed: sent.sampling_seed.map(|seed| seed as u64),
            frequency_penalty: sent.frequency_penalty.unwrap_or(0.0),
            presence_penalty: sent.presence_penalty.unwrap_or(0.0),
            repetition_penalty: sent.repetition_penalty.unwrap_or(1.0),
        };
        Ok(Sampling {
            params,
            parallel_samples: sent.n.unwrap_or(1) as usize,
            skip_special_tokens: sent.skip_special_tokens.unwrap_or(true),
            no_stop_trim: sent.no_stop_trim.unwrap_or(false),
            stream_interval: sent.stream_interval.unwrap_or(1).max(1) as usize,
        })
    }

    /// How many samples of the same prompt are wanted; checked by [`Self::resolve`].
    #[must_use]
    pub fn parallel_samples(&self) -> usize {
        self.sent.n.unwrap_or(1).clamp(1, GREATEST_PARALLEL_SAMPLES) as usize
    }

    /// `None`: as many as fit. Absent means SGLang's 128, `null` means as many as fit.
    fn max_new_tokens(&self) -> Option<i64> {
        match self.raw.get("max_new_tokens") {
            None => Some(i64::from(SamplingParams::default().max_new_tokens)),
            Some(value) => value.as_i64(),
        }
    }

    fn check_ranges(&self) -> Result<(), ApiError> {
        let sent = &self.sent;
        let written = |name: &str| self.raw.get(name).map(ToString::to_string).unwrap_or_default();
        let refuse = |rule: &str, name: &str| {
            Err(ApiError::bad_request(format!("{name} must be {rule}, got {}.", written(name))))
        };
        if sent.temperature.is_some_and(|value| !(value >= 0.0 && value.is_finite())) {
            return refuse("a non-negative finite number", "temperature");
        }
        if sent.top_p.is_some_and(|value| !(value > 0.0 && value <= 1.0)) {
            return refuse("in (0, 1]", "top_p");
        }
        if sent.min_p.is_some_and(|value| !(0.0..=1.0).contains(&value)) {
            return refuse("in [0, 1]", "min_p");
        }
        if sent.top_k.is_some_and(|value| value != -1 && value < 1) {
            return refuse("-1 (disable) or at least 1", "top_k");
        }
        for (name, value) in
            [("frequency_penalty", sent.frequency_penalty), ("presence_penalty", sent.presence_penalty)]
        {
            if value.is_some_and(|value| !(-2.0..=2.0).contains(&value)) {
                return refuse("in [-2, 2]", name);
            }
        }
        if sent.repetition_penalty.is_some_and(|value| !(value > 0.0 && value <= 2.0)) {
            return refuse("in (0, 2]", "repetition_penalty");
        }
        if self.max_new_tokens().is_some_and(|value| value < 0) {
            return refuse("at least 0", "max_new_tokens");
        }
        if sent.n.is_some_and(|value| !(1..=GREATEST_PARALLEL_SAMPLES).contains(&value)) {
            return refuse(&format!("in [1, {GREATEST_PARALLEL_SAMPLES}]"), "n");
        }
        Ok(())
    }

    fn check_support(&self) -> Result<(), ApiError> {
        let sent = &self.sent;
        let grammars = [
            ("regex", sent.regex.is_some()),
            ("json_schema", sent.json_schema.is_some()),
            ("ebnf", sent.ebnf.is_some()),
            ("structural_tag", sent.structural_tag.is_some()),
        ];
        if let Some((kind, _)) = grammars.into_iter().find(|(_, present)| *present) {
            return Err(ApiError::bad_request(format!(
                "Failed to compile {kind} grammar: constrained decoding is not supported by this engine."
            )));
        }
        let others = [
            ("stop_regex", sent.stop_regex.is_some()),
            ("logit_bias", sent.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty())),
            ("beam_width", sent.beam_width.is_some_and(|width| width > 1)),
            ("watermark", sent.watermark.is_some()),
            ("choice", sent.choice.is_some()),
        ];
        match others.into_iter().find(|(_, present)| *present) {
            Some((name, _)) => Err(ApiError::bad_request(format!("{name} is not supported by this engine."))),
            None => Ok(()),
        }
    }
}
