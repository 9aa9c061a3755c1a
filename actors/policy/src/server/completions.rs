//! `/v1/completions`, `/v1/tokenize` and `/v1/detokenize`: plain text and ids.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use futures::stream::{self, StreamExt};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::error::{ApiError, json_response};
use super::messages;
use super::openai::{self, LogprobWish};
use super::running::{Running, Unit};
use super::state::EngineState;
use super::stream::{Chunks, merged};
use super::validation::{BodyKind, Fields, parse_object, read_body};

const DEFAULT_MAX_TOKENS: i64 = 16;

/// A text completion request, its form checked.
struct CompletionBody {
    model: String,
    prompts: Vec<Vec<u32>>,
    wish: LogprobWish,
    logprobs: bool,
    echo: bool,
    rid: Option<String>,
    cache_key: String,
    stream: bool,
    include_usage: bool,
    return_token_ids: bool,
}

/// Handles a text completion.
///
/// # Errors
/// Validation errors, and 400 in the OpenAI-style body.
pub async fn completions(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let received = Instant::now();
    let object = openai_object(&state, request).await?;
    let body = CompletionBody::parse(&state, &object)?;
    let units = body.units(&state, &object, received)?;
    let samples = units.len() / body.prompts.len().max(1);
    let id = body.rid.clone().or_else(|| units.first().map(|unit| unit.request.rid.clone())).unwrap_or_default();
    let created = state.timeline.now() as i64;
    if body.stream {
        let running = Running::submit_all(&state, units).await.map_err(ApiError::for_openai)?;
        return Ok(stream_completions(&state, &body, running, &id, created));
    }
    let mut running = openai::complete(&state, units).await?;
    let choices =
        running.iter_mut().enumerate().map(|(index, one)| body.choice(&state, index, one)).collect::<Vec<Value>>();
    let prompt_tokens = running.iter().step_by(samples.max(1)).map(|one| one.progress.prompt.len()).sum();
    let completion_tokens = running.iter().map(|one| one.progress.ids.len()).sum();
    let answer = json!({
        "id": id, "object": "text_completion", "created": created, "model": body.model, "choices": choices,
        "usage": openai::usage(prompt_tokens, completion_tokens),
        "metadata": running.first().map(|one| openai::metadata(&one.progress)),
    });
    Ok(json_response(StatusCode::OK, &answer))
}

async fn openai_object(state: &EngineState, request: Request) -> Result<Map<String, Value>, ApiError> {
    let (parts, body) = request.into_parts();
    let bytes =
        read_body(body, state.limits.body_bytes, state.limits.body_deadline).await.map_err(ApiError::for_openai)?;
    parse_object(&parts.headers, &bytes, BodyKind::Model)
}

impl CompletionBody {
    fn parse(state: &EngineState, object: &Map<String, Value>) -> Result<Self, ApiError> {
        let mut fields = Fields::new(object, BodyKind::Model);
        let prompt = fields.get("prompt");
        if prompt.is_none() {
            fields.missing("prompt");
        }
        let model = fields.string("model").unwrap_or("default").to_owned();
        let rid = fields.string("rid").map(str::to_owned);
        let cache_key = openai::cache_key(&mut fields);
        let stream = fields.boolean("stream", false);
        let echo = fields.boolean("echo", false);
        let logprobs = fields.integer("logprobs");
        let include_usage = openai::include_usage(&mut fields);
        let return_token_ids = fields.boolean("return_token_ids", false);
        fields.finish()?;
        let prompts = prompts(state, prompt.unwrap_or(&Value::Null))?;
        let top = logprobs.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let wish = LogprobWish { logprobs: logprobs.is_some(), top, prompt: echo };
        Ok(Self {
            model,
            prompts,
            wish,
            logprobs: logprobs.is_some(),
            echo,
            rid,
            cache_key,
            stream,
            include_usage,
            return_token_ids,
        })
    }

    fn units(
        &self,
        state: &EngineState,
        object: &Map<String, Value>,
        received: Instant,
    ) -> Result<Vec<Unit>, ApiError> {
        let mut fields = Fields::new(object, BodyKind::Model);
        // Absent means 16 here, an explicit null as many as fit.
        let max_tokens =
            if object.contains_key("max_tokens") { fields.integer("max_tokens") } else { Some(DEFAULT_MAX_TOKENS) };
        fields.finish()?;
        let sampling = openai::sampling(object, max_tokens)?;
        let sequences = self.prompts.len().saturating_mul(sampling.parallel_samples());
        if sequences > state.limits.batch_sequences {
            let most = state.limits.batch_sequences;
            return Err(
                ApiError::bad_request(format!("One request may ask for at most {most} sequences.")).for_openai()
            );
        }
        let mut units = Vec::new();
        for (index, prompt) in self.prompts.iter().enumerate() {
            let rid = self
                .rid
                .as_ref()
                .map(|rid| if self.prompts.len() == 1 { rid.clone() } else { format!("{rid}_{index}") });
            let (cache_key, stream) = (self.cache_key.as_str(), self.stream);
            let asked = openai::Asked { rid: rid.as_deref(), cache_key, stream, received };
            units.extend(openai::units(state, prompt, &sampling, self.wish, &asked)?);
        }
        Ok(units)
    }

    fn choice(&self, state: &EngineState, index: usize, one: &mut Running) -> Value {
        let codec = state.text.as_ref();
        let mut text = one.progress.text(codec);
        if self.echo {
            text.insert_str(0, &codec.decode(&one.progress.prompt, true).unwrap_or_default());
        }
        let (finish_reason, matched_stop) = openai::finish(&one.progress);
        let logprobs = match self.logprobs {
            true => openai::completion_logprobs(codec, &one.progress, self.echo, 0),
            false => Value::Null,
        };
        let mut choice = json!({
            "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason, "matched_stop": matched_stop,
        });
        if let Some(fields) = choice.as_object_mut().filter(|_| self.return_token_ids) {
            fields.insert("response_token_ids".to_owned(), Value::from(one.progress.ids.clone()));
        }
        choice
    }
}

/// Text, texts, ids or lists of ids.
fn prompts(state: &EngineState, prompt: &Value) -> Result<Vec<Vec<u32>>, ApiError> {
    let refuse = |message: &str| ApiError::bad_request(message).for_openai();
    let encode = |text: &str| state.text.encode(text, true).map_err(|reason| refuse(&reason));
    let ids = |list: &[Value]| {
        let ids: Option<Vec<i64>> = list.iter().map(Value::as_i64).collect();
        let ids =
            ids.ok_or_else(|| refuse("prompt must be a string, a list of strings, token ids, or a list of those"))?;
        state.check_ids("prompt", &ids).map_err(ApiError::for_openai)
    };
    let prompts = match prompt {
        Value::String(text) => vec![encode(text)?],
        Value::Array(items) => match items.first() {
            Some(Value::String(_)) => {
                items.iter().map(|item| encode(item.as_str().unwrap_or_default())).collect::<Result<_, _>>()?
            }
            Some(Value::Array(_)) => items
                .iter()
                .map(|item| ids(item.as_array().map(Vec::as_slice).unwrap_or_default()))
                .collect::<Result<_, _>>()?,
            _ => vec![ids(items)?],
        },
        _ => Vec::new(),
    };
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(refuse("Prompt cannot be empty"));
    }
    Ok(prompts)
}

fn stream_completions(
    state: &Arc<EngineState>,
    body: &CompletionBody,
    running: Vec<Running>,
    id: &str,
    created: i64,
) -> Response {
    let totals = Arc::new(Mutex::new((0, 0)));
    let envelope = json!({"id": id, "object": "text_completion", "created": created, "model": body.model});
    let chunks = |index: usize, one: &Running| CompletionChunks {
        envelope: envelope.clone(),
        index,
        logprobs: body.logprobs,
        echo: body.echo.then(|| state.text.decode(&one.progress.prompt, true).unwrap_or_default()),
        sent_text: 0,
        sent_tokens: 0,
        totals: Arc::clone(&totals),
    };
    let requests: Vec<(Running, CompletionChunks)> = running
        .into_iter()
        .enumerate()
        .map(|(index, one)| {
            let chunks = chunks(index, &one);
            (one, chunks)
        })
        .collect();
    let last = stream::once(async move {
        let (prompt_tokens, completion_tokens) = *totals.lock().unwrap_or_else(PoisonError::into_inner);
        with(&envelope, json!([]), openai::usage(prompt_tokens, completion_tokens))
    });
    let include_usage = body.include_usage;
    merged(state, requests, last.filter(move |_| std::future::ready(include_usage)))
}

fn with(envelope: &Value, choices: Value, usage: Value) -> Value {
    let mut chunk = envelope.clone();
    if let Some(fields) = chunk.as_object_mut() {
        fields.insert("choices".to_owned(), choices);
        fields.insert("usage".to_owned(), usage);
    }
    chunk
}

struct CompletionChunks {
    envelope: Value,
    index: usize,
    logprobs: bool,
    echo: Option<String>,
    sent_text: usize,
    sent_tokens: usize,
    totals: Arc<Mutex<(usize, usize)>>,
}

impl Chunks for CompletionChunks {
    fn events(&mut self, state: &EngineState, running: &mut Running) -> Vec<Value> {
        let codec = state.text.as_ref();
        let text = running.progress.text(codec);
        let fresh = text.get(self.sent_text..).unwrap_or_default().to_owned();
        self.sent_text = self.sent_text.max(text.len());
        let ended = running.progress.finished.is_some();
        if fresh.is_empty() && !ended {
            return Vec::new();
        }
        let logprobs = match self.logprobs {
            true => openai::completion_logprobs(codec, &running.progress, false, self.sent_tokens),
            false => Value::Null,
        };
        self.sent_tokens = running.progress.ids.len();
        if ended {
            let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
            totals.0 += running.progress.prompt.len();
            totals.1 += running.progress.ids.len();
        }
        let (finish_reason, matched_stop) = openai::finish(&running.progress);
        let text = format!("{}{fresh}", self.echo.take().unwrap_or_default());
        let choice = json!({
            "index": self.index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason, "matched_stop": matched_stop,
        });
        vec![with(&self.envelope, json!([choice]), Value::Null)]
    }
}

/// `POST /v1/tokenize`: of a prompt, of several, or of messages through the chat template.
///
/// # Errors
/// Validation errors, and 400 in the OpenAI-style body.
pub async fn tokenize(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let object = openai_object(&state, request).await?;
    let mut fields = Fields::new(&object, BodyKind::Model);
    let messages = messages::read(&mut fields);
    let special = fields.boolean("add_special_tokens", true);
    let open = fields.boolean("add_generation_prompt", true);
    let continue_final_message = fields.boolean("continue_final_message", false);
    let tools = fields.list("tools").filter(|tools| !tools.is_empty());
    let nothing = Map::new();
    let variables = fields.object("chat_template_kwargs").unwrap_or(&nothing);
    let prompt = fields.get("prompt");
    let has_messages = fields.get("messages").is_some();
    fields.finish()?;
    let encode = |text: &Value| {
        let text = text
            .as_str()
            .ok_or_else(|| ApiError::bad_request("prompt must be a string or a list of strings").for_openai())?;
        state.text.encode(text, special).map_err(|reason| ApiError::bad_request(reason).for_openai())
    };
    let (tokens, count) = match (prompt, has_messages) {
        (Some(Value::Array(texts)), false) => {
            let all: Vec<Vec<u32>> = texts.iter().map(encode).collect::<Result<_, _>>()?;
            (json!(all), json!(all.iter().map(Vec::len).collect::<Vec<usize>>()))
        }
        (Some(text), false) => {
            let ids = encode(text)?;
            (json!(ids), json!(ids.len()))
        }
        (None, true) => {
            let ids = messages::encode(&state, &messages, tools, open, continue_final_message, variables)?;
            (json!(ids), json!(ids.len()))
        }
        _ => return Err(ApiError::bad_request("Exactly one of 'prompt' and 'messages' must be given.").for_openai()),
    };
    let limit = state.text.maximum_length().unwrap_or(state.facts.context_length);
    Ok(json_response(StatusCode::OK, &json!({"tokens": tokens, "count": count, "max_model_len": limit})))
}

/// `POST /v1/detokenize`: of one list of ids or of several.
///
/// # Errors
/// Validation errors, and 400 in the OpenAI-style body.
pub async fn detokenize(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let object = openai_object(&state, request).await?;
    let mut fields = Fields::new(&object, BodyKind::Model);
    if fields.get("tokens").is_none() {
        fields.missing("tokens");
    }
    let tokens = fields.list("tokens").unwrap_or_default();
    let skip = fields.boolean("skip_special_tokens", true);
    fields.finish()?;
    let decode = |list: &[Value]| {
        let ids: Option<Vec<i64>> = list.iter().map(Value::as_i64).collect();
        let ids = ids.ok_or_else(|| ApiError::bad_request("tokens must be integers").for_openai())?;
        let ids = state.check_ids("tokens", &ids).map_err(ApiError::for_openai)?;
        state.text.decode(&ids, skip).map_err(|reason| ApiError::bad_request(reason).for_openai())
    };
    let text = if tokens.first().is_some_and(Value::is_array) {
        let all: Vec<String> = tokens
            .iter()
            .map(|list| decode(list.as_array().map(Vec::as_slice).unwrap_or_default()))
            .collect::<Result<_, _>>()?;
        json!(all)
    } else {
        json!(decode(tokens)?)
    };
    Ok(json_response(StatusCode::OK, &json!({"text": text})))
}
