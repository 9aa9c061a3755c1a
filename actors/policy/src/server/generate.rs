//! `/generate`: ids or text in, samples out; single, batched, several samples of one prompt, streamed or not.
//!
//! The order of checks is the recorded server's: the form of the body, then names and types of sampling parameters (both
//! answered with 400 also for streams), then values (for a stream an event, since its headers are out).

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::error::{ApiError, FieldError, json_response};
use super::progress::Wanted;
use super::python::{repr, type_name};
use super::running::{Running, Unit};
use super::sampling::SamplingInput;
use super::state::EngineState;
use super::stream;
use super::validation::{BodyKind, Fields, parse_object, read_body};
use crate::generation::GenerationRequest;

const KIND: BodyKind = BodyKind::Dataclass("GenerateReqInput");

/// Handles `POST` and `PUT /generate`.
///
/// # Errors
/// See the module.
pub async fn generate(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let received = Instant::now();
    let (parts, body) = request.into_parts();
    let bytes = read_body(body, state.limits.body_bytes, state.limits.body_deadline).await?;
    let body = GenerateBody::parse(&parse_object(&parts.headers, &bytes, KIND)?)?;
    if body.stream {
        let submitted = match body.units(&state, received) {
            Ok(units) => Running::submit_all(&state, units).await,
            Err(error) => Err(error),
        };
        return Ok(match submitted {
            Ok(running) => stream::generate(state, running, body.is_batch),
            Err(error) => stream::failed(&error),
        });
    }
    let mut running = Running::submit_all(&state, body.units(&state, received)?).await?;
    // Concurrently in the generator; here one after the other, which ends when the last one has ended.
    for one in &mut running {
        one.complete(&state).await?;
    }
    let codec = state.text.as_ref();
    let mut answers: Vec<Value> = running.iter_mut().map(|one| one.progress.answer(codec, &state.timeline)).collect();
    let answer = if body.is_batch { Value::Array(answers) } else { answers.pop().unwrap_or_default() };
    Ok(json_response(StatusCode::OK, &answer))
}

/// One prompt as sent.
#[derive(Debug, Clone)]
enum Prompt {
    Ids(Vec<i64>),
    Text(String),
}

/// The body of `/generate`, its form checked.
#[derive(Debug)]
struct GenerateBody {
    prompts: Option<Vec<Prompt>>,
    prompts_are_a_list: bool,
    is_batch: bool,
    rids: Option<Vec<String>>,
    rid_is_a_list: bool,
    sampling: Vec<SamplingInput>,
    return_logprob: Vec<bool>,
    logprob_start_len: Vec<i64>,
    top_logprobs_num: Vec<i64>,
    token_ids_logprob: Vec<Vec<i64>>,
    extra_key: Vec<String>,
    wanted: Wanted,
    stream: bool,
    refused: Option<ApiError>,
}

impl GenerateBody {
    fn parse(object: &Map<String, Value>) -> Result<Self, ApiError> {
        let mut fields = Fields::new(object, KIND);
        let ids = input_ids(&mut fields);
        let (prompts, prompts_are_a_list) = match (ids, fields.get("text")) {
            (Some(found), _) => (Some(found.0), found.1),
            (None, Some(Value::String(text))) => (Some(vec![Prompt::Text(text.clone())]), false),
            (None, Some(Value::Array(texts))) => (texts_of(&mut fields, texts), true),
            (None, Some(other)) => {
                fields.complain("string_type", "text", "Input should be a valid string", other);
                (None, false)
            }
            (None, None) => (None, false),
        };
        let (rids, rid_is_a_list) = match fields.get("rid") {
            None => (None, false),
            Some(Value::String(rid)) => (Some(vec![rid.clone()]), false),
            Some(Value::Array(rids)) if rids.iter().all(Value::is_string) => {
                (Some(rids.iter().filter_map(Value::as_str).map(str::to_owned).collect()), true)
            }
            Some(other) => {
                fields.complain("string_type", "rid", "Input should be a valid string", other);
                (None, false)
            }
        };
        let stream = fields.boolean("stream", false);
        let text_in_logprobs = fields.boolean("return_text_in_logprobs", false);
        let prompt_token_ids = fields.boolean("return_prompt_token_ids", false);
        let wanted = Wanted { text_in_logprobs, prompt_token_ids, ..Wanted::default() };
        let return_logprob =
            each(&mut fields, "return_logprob", "Input should be a valid boolean", |value| value.as_bool());
        let logprob_start_len =
            each(&mut fields, "logprob_start_len", "Input should be a valid integer", Value::as_i64);
        let top_logprobs_num = each(&mut fields, "top_logprobs_num", "Input should be a valid integer", Value::as_i64);
        let token_ids_logprob = token_id_lists(&mut fields);
        let extra_key =
            each(&mut fields, "extra_key", "Input should be a valid string", |value| value.as_str().map(str::to_owned));
        let sampling_objects = sampling_objects(&mut fields);
        let refused = unsupported(&fields);
        fields.finish()?;
        let sampling: Vec<SamplingInput> =
            sampling_objects.iter().map(SamplingInput::parse).collect::<Result<_, _>>()?;
        let is_batch = prompts_are_a_list || sampling.iter().any(|params| params.parallel_samples() > 1);
        Ok(Self {
            prompts,
            prompts_are_a_list,
            is_batch,
            rids,
            rid_is_a_list,
            sampling,
            return_logprob,
            logprob_start_len,
            top_logprobs_num,
            token_ids_logprob,
            extra_key,
            wanted,
            stream,
            refused,
        })
    }

    /// The sequences to generate, in the order of the answer: for each prompt its samples.
    fn units(&self, state: &EngineState, received: Instant) -> Result<Vec<Unit>, ApiError> {
        let Some(prompts) = &self.prompts else {
            return Err(ApiError::bad_request("Either text, input_ids or input_embeds should be provided."));
        };
        if let Some(refused) = &self.refused {
            return Err(refused.clone());
        }
        let samples = self.sampling.first().map_or(1, SamplingInput::parallel_samples);
        if self.sampling.iter().any(|params| params.parallel_samples() != samples) {
            return Err(ApiError::bad_request(
                "The parallel_sample_num should be the same for all samples in sample params.",
            ));
        }
        if prompts.len().saturating_mul(samples) > state.limits.batch_sequences {
            let most = state.limits.batch_sequences;
            return Err(ApiError::bad_request(format!("One request may ask for at most {most} sequences.")));
        }
        self.check_lengths_of_lists(prompts.len())?;
        let rids = self.request_ids(state, prompts.len(), samples)?;
        let mut units = Vec::with_capacity(rids.len());
        for (position, rid) in rids.into_iter().enumerate() {
            units.push(self.unit(state, received, position / samples, rid, &prompts[position / samples])?);
        }
        Ok(units)
    }

    fn unit(
        &self,
        state: &EngineState,
        received: Instant,
        index: usize,
        rid: String,
        prompt: &Prompt,
    ) -> Result<Unit, ApiError> {
        let input_ids = match prompt {
            Prompt::Ids(ids) if ids.is_empty() => return Err(ApiError::bad_request("input_ids cannot be empty.")),
            Prompt::Ids(ids) => {
                // Before the vocabulary: a prompt that is too long is told so, however odd its ids.
                state.check_length(ids.len(), 0)?;
                state.check_ids("input_ids", ids)?
            }
            Prompt::Text(text) => {
                state.text.encode(text, true).map_err(|reason| ApiError::bad_request(format!("text: {reason}")))?
            }
        };
        if input_ids.is_empty() {
            return Err(ApiError::bad_request("The text encodes to no tokens."));
        }
        let context = state.facts.context_length;
        state.check_length(input_ids.len(), 0)?;
        let default = SamplingInput::parse(&Map::new())?;
        let sampling = nth(&self.sampling, index).unwrap_or(&default).resolve(input_ids.len(), context)?;
        state.check_length(input_ids.len(), sampling.params.max_new_tokens as usize)?;
        let return_logprob = nth(&self.return_logprob, index).copied().unwrap_or(false);
        let top_logprobs_num = nth(&self.top_logprobs_num, index).copied().unwrap_or(0);
        let top_logprobs_num = usize::try_from(top_logprobs_num).unwrap_or(0).min(state.facts.vocabulary_size);
        let requested = nth(&self.token_ids_logprob, index).map(Vec::as_slice).unwrap_or_default();
        let start = nth(&self.logprob_start_len, index).copied().unwrap_or(-1);
        let request = GenerationRequest {
            rid,
            return_logprob,
            logprob_start_len: usize::try_from(start).ok().filter(|start| return_logprob && *start < input_ids.len()),
            top_logprobs_num: if return_logprob { top_logprobs_num } else { 0 },
            token_ids_logprob: if return_logprob {
                state.check_ids("token_ids_logprob", requested)?
            } else {
                Vec::new()
            },
            input_ids,
            params: sampling.params,
            stream: self.stream,
            cache_key: nth(&self.extra_key, index).cloned().unwrap_or_default(),
        };
        let wanted = Wanted {
            logprobs: return_logprob,
            top_logprobs: request.top_logprobs_num > 0,
            requested_logprobs: !request.token_ids_logprob.is_empty(),
            skip_special_tokens: sampling.skip_special_tokens,
            no_stop_trim: sampling.no_stop_trim,
            ..self.wanted.clone()
        };
        Ok(Unit { request, wanted, stream_interval: sampling.stream_interval, received })
    }

    fn check_lengths_of_lists(&self, prompts: usize) -> Result<(), ApiError> {
        let lists = [
            ("sampling_params", self.sampling.len()),
            ("return_logprob", self.return_logprob.len()),
            ("logprob_start_len", self.logprob_start_len.len()),
            ("top_logprobs_num", self.top_logprobs_num.len()),
            ("token_ids_logprob", self.token_ids_logprob.len()),
            ("extra_key", self.extra_key.len()),
        ];
        match lists.into_iter().find(|(_, length)| *length > 1 && *length != prompts) {
            Some((name, length)) => Err(ApiError::bad_request(format!(
                "{name} is a list of {length}, but the batch has {prompts} prompts."
            ))),
            None => Ok(()),
        }
    }

    /// One id for each sequence. Samples of one prompt get numbered ids, so that an abort by the given id reaches them all
    /// (SGLang gives them fresh ids, which an abort cannot find).
    fn request_ids(&self, state: &EngineState, prompts: usize, samples: usize) -> Result<Vec<String>, ApiError> {
        let of_prompt: Vec<String> = match &self.rids {
            None => return Ok((0..prompts * samples).map(|_| state.request_ids.next()).collect()),
            Some(rids) if self.rid_is_a_list && rids.len() != prompts => {
                return Err(ApiError::bad_request(
                    "The specified rids length mismatch with the batch_size for batch processing.",
                ));
            }
            Some(rids) if self.rid_is_a_list || !self.prompts_are_a_list => rids.clone(),
            Some(rids) => (0..prompts).map(|index| format!("{}_{index}", rids[0])).collect(),
        };
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<&String> = of_prompt.iter().filter(|rid| !seen.insert(*rid)).collect();
        if !twice.is_empty() {
            let list = repr(&twice.into_iter().map(|rid| Value::from(rid.as_str())).collect());
            return Err(ApiError::bad_request(format!("Duplicate request IDs detected within the request: {list}")));
        }
        if samples == 1 {
            return Ok(of_prompt);
        }
        Ok(of_prompt.iter().flat_map(|rid| (0..samples).map(move |sample| format!("{rid}_{sample}"))).collect())
    }
}

/// The `index`-th of a list, or the only one for all.
fn nth<T>(list: &[T], index: usize) -> Option<&T> {
    if list.len() == 1 { list.first() } else { list.get(index) }
}

/// `input_ids`: one list or a list of lists; whether it was the latter.
fn input_ids(fields: &mut Fields<'_>) -> Option<(Vec<Prompt>, bool)> {
    let value = fields.get("input_ids")?;
    let Value::Array(items) = value else {
        fields.complain("list_type", "input_ids", "Input should be a valid list", value);
        return None;
    };
    let whole = |item: &Value| item.is_i64() || item.is_u64();
    let ids = |items: &[Value]| items.iter().map(|id| id.as_i64().unwrap_or(i64::MAX)).collect::<Vec<i64>>();
    let nested = items.first().is_some_and(Value::is_array);
    let wrong = if nested {
        let inside = items.iter().filter_map(Value::as_array).flatten().find(|item| !whole(item));
        items.iter().find(|item| !item.is_array()).or(inside)
    } else {
        items.iter().find(|item| !whole(item))
    };
    if let Some(wrong) = wrong {
        let text = format!("elements must be int or list; got {}", type_name(wrong));
        let error = FieldError::new("value_error", &["input_ids"], format!("Value error, {text}"), value);
        fields.push(error.with_context(format!("{{'error': ValueError({})}}", repr(&Value::from(text)))));
        return None;
    }
    let prompts = if nested {
        items.iter().filter_map(Value::as_array).map(|list| Prompt::Ids(ids(list))).collect()
    } else {
        vec![Prompt::Ids(ids(items))]
    };
    Some((prompts, nested))
}

fn texts_of(fields: &mut Fields<'_>, texts: &[Value]) -> Option<Vec<Prompt>> {
    if let Some(wrong) = texts.iter().find(|text| !text.is_string()) {
        fields.complain("string_type", "text", "Input should be a valid string", wrong);
        return None;
    }
    Some(texts.iter().filter_map(Value::as_str).map(|text| Prompt::Text(text.to_owned())).collect())
}

/// A value for all or a list with one for each prompt.
fn each<T>(fields: &mut Fields<'_>, name: &str, complaint: &str, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    let items = match fields.get(name) {
        None => return Vec::new(),
        Some(Value::Array(items)) => items.as_slice(),
        Some(single) => std::slice::from_ref(single),
    };
    let read: Option<Vec<T>> = items.iter().map(read).collect();
    read.unwrap_or_else(|| {
        let value = fields.get(name).cloned().unwrap_or_default();
        let kind = match complaint {
            complaint if complaint.ends_with("boolean") => "bool_type",
            complaint if complaint.ends_with("string") => "string_type",
            _ => "int_type",
        };
        fields.complain(kind, name, complaint, &value);
        Vec::new()
    })
}

fn token_id_lists(fields: &mut Fields<'_>) -> Vec<Vec<i64>> {
    let Some(list) = fields.list("token_ids_logprob") else { return Vec::new() };
    let numbers = |items: &[Value]| items.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>();
    let lists = if list.first().is_some_and(|item| item.is_array() || item.is_null()) {
        list.iter().map(|item| numbers(item.as_array().map(Vec::as_slice).unwrap_or_default())).collect()
    } else {
        numbers(list).map(|ids| vec![ids])
    };
    lists.unwrap_or_else(|| {
        let value = Value::from(list.to_vec());
        fields.complain("int_type", "token_ids_logprob", "Input should be a valid integer", &value);
        Vec::new()
    })
}

fn sampling_objects(fields: &mut Fields<'_>) -> Vec<Map<String, Value>> {
    match fields.get("sampling_params") {
        None => vec![Map::new()],
        Some(Value::Object(params)) => vec![params.clone()],
        Some(Value::Array(list)) if list.iter().all(Value::is_object) => {
            list.iter().filter_map(Value::as_object).cloned().collect()
        }
        Some(other) => {
            fields.complain("dict_type", "sampling_params", "Input should be a valid dictionary", other);
            Vec::new()
        }
    }
}

/// What this engine cannot do, in SGLang's words where it has them.
fn unsupported(fields: &Fields<'_>) -> Option<ApiError> {
    let set = |name: &str| fields.get(name).is_some_and(|value| !matches!(value, Value::Bool(false)));
    if let Some(lora) = fields.get("lora_path") {
        let name = repr(lora);
        return Some(ApiError::bad_request(format!(
            "LoRA adapter {name} was requested, but LoRA is not enabled. Please launch the server with --enable-lora flag and \
             preload adapters using --lora-paths or /load_lora_adapter endpoint."
        )));
    }
    if set("return_hidden_states") {
        return Some(ApiError::bad_request(
            "The server is not configured to return hidden states. Please set `--return-hidden-states-mode last`, \
             `--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag.",
        ));
    }
    let others = [
        "input_embeds",
        "image_data",
        "video_data",
        "audio_data",
        "custom_logit_processor",
        "session_params",
        "return_entropy",
    ];
    let name = others.into_iter().find(|name| set(name))?;
    Some(ApiError::bad_request(format!("{name} is not supported by this engine.")))
}
