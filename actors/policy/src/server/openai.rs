//! What the OpenAI-style routes share: their sampling fields, usage, finish reasons and logprobs.
//!
//! Their fields are translated to native `sampling_params` and take the same path as those, so that one place decides on
//! ranges and support; only the error body differs.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::progress::{Progress, Wanted, logprob_value};
use super::running::{Running, Unit};
use super::sampling::{Sampling, SamplingInput};
use super::state::EngineState;
use super::text::TextCodec;
use super::validation::Fields;
use crate::generation::{FinishReason, GenerationRequest, StopMatch, TokenLogprob};

/// Fields that mean the same here and in `sampling_params`, with the native name.
const SAMPLING_FIELDS: [(&str, &str); 19] = [
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("frequency_penalty", "frequency_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("repetition_penalty", "repetition_penalty"),
    ("min_tokens", "min_new_tokens"),
    ("stop", "stop"),
    ("stop_token_ids", "stop_token_ids"),
    ("stop_regex", "stop_regex"),
    ("n", "n"),
    ("regex", "regex"),
    ("ebnf", "ebnf"),
    ("no_stop_trim", "no_stop_trim"),
    ("ignore_eos", "ignore_eos"),
    ("skip_special_tokens", "skip_special_tokens"),
    ("logit_bias", "logit_bias"),
    ("seed", "sampling_seed"),
];

/// The sampling of an OpenAI-style body. `max_new_tokens`: `None` lets the output fill the context.
///
/// # Errors
/// In the OpenAI-style body.
pub fn sampling(object: &Map<String, Value>, max_new_tokens: Option<i64>) -> Result<SamplingInput, ApiError> {
    let mut native = Map::new();
    for (name, native_name) in SAMPLING_FIELDS {
        if let Some(value) = object.get(name).filter(|value| !value.is_null()) {
            native.insert(native_name.to_owned(), value.clone());
        }
    }
    native.insert("max_new_tokens".to_owned(), max_new_tokens.map_or(Value::Null, Value::from));
    let format = object.get("response_format").and_then(|format| format.get("type")).and_then(Value::as_str);
    if format.is_some_and(|kind| kind != "text") {
        let message = "Failed to compile json_schema grammar: constrained decoding is not supported by this engine.";
        return Err(ApiError::bad_request(message).for_openai());
    }
    SamplingInput::parse(&native).map_err(ApiError::for_openai)
}

/// What a request's keys and values are shared under: its salt and its extra key, as SGLang joins them.
pub fn cache_key(fields: &mut Fields<'_>) -> String {
    let salt = fields.string("cache_salt").unwrap_or_default().to_owned();
    salt + fields.string("extra_key").unwrap_or_default()
}

/// Which lists of logprobs are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogprobWish {
    /// Any at all.
    pub logprobs: bool,
    /// How many of the most likely tokens.
    pub top: usize,
    /// Those of the prompt too.
    pub prompt: bool,
}

/// How a request was asked, beside what it asks for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Its id, where the caller gave one.
    pub rid: Option<&'a str>,
    /// As [`GenerationRequest::cache_key`].
    pub cache_key: &'a str,
    /// Whether chunks are wanted.
    pub stream: bool,
    /// When it arrived.
    pub received: tokio::time::Instant,
}

/// The sequences for one prompt: one request for each of its samples.
///
/// # Errors
/// Lengths and ranges, in the OpenAI-style body.
pub fn units(
    state: &EngineState,
    prompt: &[u32],
    sampling: &SamplingInput,
    wish: LogprobWish,
    asked: &Asked<'_>,
) -> Result<Vec<Unit>, ApiError> {
    let Asked { rid, cache_key, stream, received } = *asked;
    state.check_length(prompt.len(), 0).map_err(ApiError::for_openai)?;
    let Sampling { params, parallel_samples, skip_special_tokens, no_stop_trim, stream_interval } =
        sampling.resolve(prompt.len(), state.facts.context_length).map_err(ApiError::for_openai)?;
    state.check_length(prompt.len(), params.max_new_tokens as usize).map_err(ApiError::for_openai)?;
    let wanted = Wanted {
        logprobs: wish.logprobs,
        top_logprobs: wish.logprobs && wish.top > 0,
        skip_special_tokens,
        no_stop_trim,
        ..Wanted::default()
    };
    let given = |sample: usize| match rid {
        Some(rid) if parallel_samples == 1 => rid.to_owned(),
        Some(rid) => format!("{rid}_{sample}"),
        None => state.request_ids.next(),
    };
    let unit = |sample: usize| Unit {
        request: GenerationRequest {
            rid: given(sample),
            input_ids: prompt.to_vec(),
            params: params.clone(),
            return_logprob: wish.logprobs,
            logprob_start_len: (wish.logprobs && wish.prompt).then_some(0),
            top_logprobs_num: if wish.logprobs { wish.top.min(state.facts.vocabulary_size) } else { 0 },
            token_ids_logprob: Vec::new(),
            stream,
            cache_key: cache_key.to_owned(),
        },
        wanted: wanted.clone(),
        stream_interval,
        received,
    };
    Ok((0..parallel_samples).map(unit).collect())
}

/// Submits and waits for all.
///
/// # Errors
/// In the OpenAI-style body.
pub async fn complete(state: &EngineState, units: Vec<Unit>) -> Result<Vec<Running>, ApiError> {
    let mut running = Running::submit_all(state, units).await.map_err(ApiError::for_openai)?;
    for one in &mut running {
        one.complete(state).await.map_err(ApiError::for_openai)?;
    }
    Ok(running)
}

/// `usage`: a prompt counts once however many samples it has.
#[must_use]
pub fn usage(prompt_tokens: usize, completion_tokens: usize) -> Value {
    json!({
        "prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + completion_tokens, "completion_tokens": completion_tokens,
        "prompt_tokens_details": null, "reasoning_tokens": 0, "completion_tokens_details": null,
    })
}

/// `finish_reason` and `matched_stop`; both `null` while running.
#[must_use]
pub fn finish(progress: &Progress) -> (Value, Value) {
    match progress.finished.as_ref().map(|finished| &finished.reason) {
        None => (Value::Null, Value::Null),
        Some(FinishReason::Length { .. }) => (Value::from("length"), Value::Null),
        Some(FinishReason::Abort { .. }) => (Value::from("abort"), Value::Null),
        Some(FinishReason::Stop { matched: StopMatch::Token(id) }) => (Value::from("stop"), Value::from(*id)),
        Some(FinishReason::Stop { matched: StopMatch::Text(text) }) => {
            (Value::from("stop"), Value::from(text.as_str()))
        }
    }
}

/// The versions that made the first sample, as `metadata`.
#[must_use]
pub fn metadata(progress: &Progress) -> Value {
    json!({"weight_version": progress.weight_version(), "weight_versions": progress.weight_versions()})
}

/// The `logprobs` object of a chat choice for the output tokens from `start` on.
#[must_use]
pub fn chat_logprobs(codec: &dyn TextCodec, progress: &Progress, start: usize) -> Value {
    let entry = |id: u32, logprob: f32| {
        let text = codec.decode(&[id], false).unwrap_or_default();
        json!({"token": text, "bytes": text.as_bytes(), "logprob": logprob_value(Some(logprob))})
    };
    let content = progress.tokens.iter().skip(start).map(|token| {
        let mut whole = entry(token.id, token.logprob);
        let top: Vec<Value> = token.top_logprobs.iter().map(|one| entry(one.id, one.logprob)).collect();
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("top_logprobs".to_owned(), Value::Array(top));
        }
        whole
    });
    json!({"content": content.collect::<Vec<Value>>()})
}

/// The `logprobs` object of a text completion: the prompt's, when `echo`, then those of output tokens from `start` on.
#[must_use]
pub fn completion_logprobs(codec: &dyn TextCodec, progress: &Progress, echo: bool, start: usize) -> Value {
    let text = |id: u32| codec.decode(&[id], false).unwrap_or_default();
    let table = |entries: &[TokenLogprob]| {
        let rows = entries.iter().map(|one| (text(one.id), logprob_value(Some(one.logprob))));
        Value::Object(rows.collect())
    };
    let mut tokens = Vec::new();
    let mut logprobs = Vec::new();
    let mut tops = Vec::new();
    let prompt = progress.finished.as_ref().map(|finished| finished.prompt_logprobs.as_slice()).unwrap_or_default();
    for token in prompt.iter().filter(|_| echo) {
        tokens.push(Value::from(text(token.id)));
        logprobs.push(logprob_value(token.logprob));
        tops.push(if token.logprob.is_some() { table(&token.top_logprobs) } else { Value::Null });
    }
    for token in progress.tokens.iter().skip(start) {
        tokens.push(Value::from(text(token.id)));
        logprobs.push(logprob_value(Some(token.logprob)));
        tops.push(table(&token.top_logprobs));
    }
    let offsets = vec![Value::from(-1); tokens.len()];
    json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": tops})
}

/// Whether a streamed answer ends with a `usage` chunk.
pub fn include_usage(fields: &mut Fields<'_>) -> bool {
    fields
        .object("stream_options")
        .and_then(|options| options.get("include_usage"))
        .and_then(Value::as_bool)
        .unwrap_or(false)
}
