//! The JSON of SGLang, only the fields that are used, and its validation.
//!
//! Sampled ids and logprobs are read together from `output_token_logprobs`, the one list that pairs them; `output_ids`
//! must agree with it. An answer that contradicts itself is refused as a whole: nothing of it could be trained on.

use greenroom_messages::engine::FinishReason;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{GenerateCall, Generated, LabelSpan, Loads};

/// `GET /server_info`.
#[derive(Debug, Deserialize)]
pub(super) struct ServerInfo {
    #[serde(default)]
    version: String,
    #[serde(default)]
    startup_time: Value,
    #[serde(default)]
    pub(super) context_length: Option<u32>,
    #[serde(default)]
    max_req_input_len: Option<u32>,
    #[serde(default)]
    disaggregation_mode: Option<String>,
}

impl ServerInfo {
    pub(super) fn into_api(self, context_tokens: Option<u32>) -> crate::ServerInfo {
        let identity = if self.startup_time.is_null() { String::new() } else { self.startup_time.to_string() };
        let disaggregated = self.disaggregation_mode.is_some_and(|mode| !matches!(mode.as_str(), "" | "null"));
        crate::ServerInfo {
            version: self.version,
            identity,
            context_tokens,
            max_prompt_tokens: self.max_req_input_len,
            disaggregated,
        }
    }
}

/// `GET /v1/models`.
#[derive(Debug, Deserialize)]
pub(super) struct ModelList {
    data: Vec<ModelCard>,
}

#[derive(Debug, Deserialize)]
struct ModelCard {
    #[serde(default)]
    max_model_len: Option<u32>,
}

impl ModelList {
    pub(super) fn context_tokens(&self) -> Option<u32> {
        self.data.first().and_then(|card| card.max_model_len)
    }
}

/// `GET /model_info`.
#[derive(Debug, Deserialize)]
pub(super) struct ModelInfo {
    pub(super) weight_version: String,
    #[serde(default = "yes")]
    pub(super) is_generation: bool,
}

fn yes() -> bool {
    true
}

/// The body of `POST /generate`.
#[derive(Debug, Serialize)]
pub(super) struct GenerateBody<'a> {
    rid: &'a str,
    extra_key: &'a str,
    input_ids: &'a [u32],
    sampling_params: SamplingParams<'a>,
    return_logprob: bool,
    logprob_start_len: i32,
    stream: bool,
}

#[derive(Debug, Serialize)]
struct SamplingParams<'a> {
    temperature: f32,
    top_p: f32,
    top_k: i32,
    max_new_tokens: u32,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    stop_token_ids: &'a [u32],
    skip_special_tokens: bool,
    spaces_between_special_tokens: bool,
    no_stop_trim: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_seed: Option<u64>,
}

/// The server keeps seeds in a signed 64-bit tensor.
const SEED_MASK: u64 = i64::MAX as u64;

impl<'a> GenerateBody<'a> {
    pub(super) fn new(call: &'a GenerateCall) -> Self {
        let sampling = &call.sampling;
        Self {
            rid: &call.rid,
            extra_key: &call.cache_key,
            input_ids: &call.input_ids,
            sampling_params: SamplingParams {
                temperature: sampling.temperature,
                top_p: sampling.top_p,
                top_k: sampling.top_k,
                max_new_tokens: sampling.max_new_tokens,
                stop: &sampling.stop,
                stop_token_ids: &sampling.stop_token_ids,
                skip_special_tokens: false,
                spaces_between_special_tokens: false,
                no_stop_trim: true,
                sampling_seed: sampling.seed.map(|seed| seed & SEED_MASK),
            },
            return_logprob: true,
            logprob_start_len: -1,
            stream: false,
        }
    }
}

/// The answer to `POST /generate`.
#[derive(Debug, Deserialize)]
pub(super) struct GenerateAnswer {
    #[serde(default)]
    output_ids: Option<Vec<u32>>,
    meta_info: MetaInfo,
}

#[derive(Debug, Deserialize)]
struct MetaInfo {
    #[serde(default)]
    id: Option<String>,
    finish_reason: Option<FinishReasonField>,
    #[serde(default)]
    weight_version: Option<String>,
    #[serde(default)]
    weight_versions: Option<Vec<SpanField>>,
    #[serde(default)]
    output_token_logprobs: Option<Vec<(Option<f64>, u32, Value)>>,
    #[serde(default)]
    prompt_tokens: Option<u32>,
    #[serde(default)]
    cached_tokens: u32,
}

#[derive(Debug, Deserialize)]
struct FinishReasonField {
    r#type: String,
}

#[derive(Debug, Deserialize)]
struct SpanField {
    version: String,
    start: u32,
    end: u32,
}

impl GenerateAnswer {
    /// Checks the answer against the call and itself; `Err` says what is wrong with it.
    pub(super) fn into_generated(self, call: &GenerateCall) -> Result<Generated, String> {
        let meta = self.meta_info;
        if let Some(id) = meta.id.filter(|id| *id != call.rid) {
            return Err(format!("it is for request {id:?}, not {:?}", call.rid));
        }
        if let Some(tokens) = meta.prompt_tokens.filter(|tokens| *tokens as usize != call.input_ids.len()) {
            return Err(format!("it counts {tokens} prompt tokens where {} were sent", call.input_ids.len()));
        }
        let finish = match meta.finish_reason.map(|reason| reason.r#type).as_deref() {
            Some("stop") => FinishReason::Stop,
            Some("length") => FinishReason::Length,
            Some("abort") => FinishReason::Abort,
            other => return Err(format!("its finish reason is {other:?}")),
        };
        let mut ids = Vec::new();
        let mut logprobs = Vec::new();
        for (logprob, id, _) in meta.output_token_logprobs.unwrap_or_default() {
            let logprob = logprob.filter(|value| value.is_finite() && *value <= 1e-3);
            let logprob =
                logprob.ok_or_else(|| format!("the logprob of output token {} is missing or no logprob", ids.len()))?;
            ids.push(id);
            logprobs.push(logprob as f32);
        }
        if let Some(output_ids) = self.output_ids.filter(|output_ids| *output_ids != ids) {
            return Err(format!(
                "it has {} output ids and {} ids with logprobs, and they differ",
                output_ids.len(),
                ids.len()
            ));
        }
        if ids.is_empty() && finish != FinishReason::Abort && call.sampling.max_new_tokens > 0 {
            return Err(format!("it ended with {finish:?} and has no token: even an end at once is one"));
        }
        if ids.len() > call.sampling.max_new_tokens as usize {
            return Err(format!(
                "it has {} tokens where at most {} were asked for",
                ids.len(),
                call.sampling.max_new_tokens
            ));
        }
        let spans = checked_spans(meta.weight_versions.unwrap_or_default(), ids.len())?;
        let weight_version = meta.weight_version.ok_or("it does not name its weight version")?;
        Ok(Generated { output_ids: ids, logprobs, finish, weight_version, spans, cached_tokens: meta.cached_tokens })
    }
}

/// Spans that cover all tokens in order, empty ones left out; none at all where the server does not tell.
fn checked_spans(fields: Vec<SpanField>, tokens: usize) -> Result<Vec<LabelSpan>, String> {
    if fields.is_empty() {
        return Ok(Vec::new());
    }
    let mut next = 0;
    for field in &fields {
        if field.start != next || field.end < field.start {
            return Err(format!(
                "its weight versions are not one stretch: {} to {} after {next}",
                field.start, field.end
            ));
        }
        next = field.end;
    }
    if next as usize != tokens {
        return Err(format!("its weight versions cover {next} of {tokens} tokens"));
    }
    let spans = fields.into_iter().filter(|field| field.start < field.end);
    Ok(spans.map(|field| LabelSpan { label: field.version, start: field.start, end: field.end }).collect())
}

/// The answer to `POST /update_weights_from_disk`.
#[derive(Debug, Deserialize)]
pub(super) struct UpdateAnswer {
    pub(super) success: bool,
    #[serde(default)]
    pub(super) message: String,
}

/// The numbers of an answer of `POST /get_weights_by_name`, which are lists in lists.
pub(super) fn flat_numbers(answer: &Value) -> Option<Vec<f64>> {
    match answer {
        Value::Array(items) => {
            let lists = items.iter().map(flat_numbers).collect::<Option<Vec<_>>>()?;
            Some(lists.concat())
        }
        // JSON has no infinity and no NaN: what stands in their place is no finite number either
        Value::Null => Some(vec![f64::NAN]),
        number => number.as_f64().map(|number| vec![number]),
    }
}

/// `GET /v1/loads`.
#[derive(Debug, Deserialize)]
pub(super) struct LoadsAnswer {
    loads: Vec<RankLoad>,
}

#[derive(Debug, Deserialize)]
struct RankLoad {
    #[serde(default)]
    num_running_reqs: u32,
    #[serde(default)]
    num_waiting_reqs: u32,
    #[serde(default)]
    num_used_tokens: u64,
    #[serde(default)]
    num_total_tokens: u64,
    #[serde(default)]
    gen_throughput: f64,
    #[serde(default)]
    total_prefill_busy_us: u64,
}

impl LoadsAnswer {
    pub(super) fn total(&self) -> Loads {
        let sum = |count: fn(&RankLoad) -> u32| self.loads.iter().map(count).fold(0, u32::saturating_add);
        Loads { running: sum(|load| load.num_running_reqs), waiting: sum(|load| load.num_waiting_reqs) }
    }

    /// What moves with every token, in words.
    pub(super) fn progress(&self) -> String {
        let rank = |load: &RankLoad| {
            format!(
                "running {}, waiting {}, tokens held {} of {}, {:.1} tokens/s, prefill {} us",
                load.num_running_reqs,
                load.num_waiting_reqs,
                load.num_used_tokens,
                load.num_total_tokens,
                load.gen_throughput,
                load.total_prefill_busy_us
            )
        };
        self.loads.iter().map(rank).collect::<Vec<_>>().join("; ")
    }
}
