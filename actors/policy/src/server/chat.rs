//! `/v1/chat/completions`.
//!
//! Any model name is accepted and echoed, tools reach the template and nothing parses calls out of the answer: that is what
//! the recorded server does without parsers. `input_ids` instead of a rendered template, `return_token_ids`,
//! `return_prompt_token_ids` and `return_meta_info` give a trainer what it needs.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use futures::stream::{self, StreamExt};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::error::{ApiError, FieldError, json_response};
use super::messages;
use super::openai::{self, LogprobWish};
use super::running::Running;
use super::sampling::SamplingInput;
use super::state::EngineState;
use super::stream::{Chunks, merged};
use super::validation::{BodyKind, Fields, parse_object, read_body};

/// A chat request, its form checked.
struct ChatBody {
    model: String,
    prompt: Vec<u32>,
    sampling: SamplingInput,
    wish: LogprobWish,
    rid: Option<String>,
    cache_key: String,
    stream: bool,
    include_usage: bool,
    return_prompt_token_ids: bool,
    return_token_ids: bool,
    return_meta_info: bool,
}

/// Handles a chat.
///
/// # Errors
/// Validation errors, and 400 in the OpenAI-style body.
pub async fn chat(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let received = Instant::now();
    let (parts, body) = request.into_parts();
    let bytes =
        read_body(body, state.limits.body_bytes, state.limits.body_deadline).await.map_err(ApiError::for_openai)?;
    let chat = ChatBody::parse(&state, &parse_object(&parts.headers, &bytes, BodyKind::Model)?)?;
    let (rid, cache_key, stream) = (chat.rid.as_deref(), chat.cache_key.as_str(), chat.stream);
    let asked = openai::Asked { rid, cache_key, stream, received };
    let units = openai::units(&state, &chat.prompt, &chat.sampling, chat.wish, &asked)?;
    let id = chat.rid.clone().or_else(|| units.first().map(|unit| unit.request.rid.clone())).unwrap_or_default();
    let created = state.timeline.now() as i64;
    if chat.stream {
        let running = Running::submit_all(&state, units).await.map_err(ApiError::for_openai)?;
        return Ok(stream_chat(&state, &chat, running, &id, created));
    }
    let mut running = openai::complete(&state, units).await?;
    let choices: Vec<Value> =
        running.iter_mut().enumerate().map(|(index, one)| choice(&state, &chat, index, one)).collect();
    let completion_tokens = running.iter().map(|one| one.progress.ids.len()).sum();
    let answer = json!({
        "id": id, "object": "chat.completion", "created": created, "model": chat.model, "choices": choices,
        "usage": openai::usage(chat.prompt.len(), completion_tokens),
        "metadata": running.first().map(|one| openai::metadata(&one.progress)),
    });
    Ok(json_response(StatusCode::OK, &answer))
}

impl ChatBody {
    fn parse(state: &EngineState, object: &Map<String, Value>) -> Result<Self, ApiError> {
        let mut fields = Fields::new(object, BodyKind::Model);
        let messages = messages::read(&mut fields);
        if object.get("messages").is_none() {
            // The imitated server fills this in before it validates, so its error text shows it.
            let mut seen = object.clone();
            let choice = if object.get("tools").is_some_and(|tools| !tools.is_null()) { "auto" } else { "none" };
            seen.entry("tool_choice").or_insert_with(|| Value::from(choice));
            fields.missing_in("messages", &Value::Object(seen));
        }
        let model = fields.string("model").unwrap_or("default").to_owned();
        let rid = fields.string("rid").map(str::to_owned);
        let cache_key = openai::cache_key(&mut fields);
        let stream = fields.boolean("stream", false);
        let logprobs = fields.boolean("logprobs", false);
        let top = fields.integer("top_logprobs").unwrap_or(0);
        let max_tokens = fields.integer("max_completion_tokens").or_else(|| fields.integer("max_tokens"));
        let tools = fields.list("tools").filter(|tools| !tools.is_empty());
        let tools = tools.filter(|_| object.get("tool_choice").and_then(Value::as_str) != Some("none"));
        let nothing = Map::new();
        let variables = fields.object("chat_template_kwargs").unwrap_or(&nothing);
        let continue_final_message = fields.boolean("continue_final_message", false);
        let include_usage = openai::include_usage(&mut fields);
        let return_prompt_token_ids = fields.boolean("return_prompt_token_ids", false);
        let return_token_ids = fields.boolean("return_token_ids", false);
        let return_meta_info = fields.boolean("return_meta_info", false);
        let input_ids = messages::given_ids(&mut fields);
        fields.finish()?;
        if stream && (return_token_ids || return_prompt_token_ids || return_meta_info) {
            let message = "Token ids and meta_info are not returned by a streamed chat; use stream=false or /generate.";
            return Err(ApiError::bad_request(message).for_openai());
        }
        let sampling = openai::sampling(object, max_tokens)?;
        let prompt = match input_ids {
            Some(ids) => state.check_ids("input_ids", &ids).map_err(ApiError::for_openai)?,
            None => messages::encode(state, &messages, tools, true, continue_final_message, variables)?,
        };
        Ok(Self {
            model,
            prompt,
            sampling,
            wish: LogprobWish { logprobs, top: usize::try_from(top).unwrap_or(0), prompt: false },
            rid,
            cache_key,
            stream,
            include_usage,
            // The flag for the output's ids brings the prompt's along, as recorded.
            return_prompt_token_ids: return_prompt_token_ids || return_token_ids,
            return_token_ids,
            return_meta_info,
        })
    }
}

fn choice(state: &EngineState, chat: &ChatBody, index: usize, one: &mut Running) -> Value {
    let codec = state.text.as_ref();
    let text = one.progress.text(codec);
    let (finish_reason, matched_stop) = openai::finish(&one.progress);
    let logprobs = if chat.wish.logprobs { openai::chat_logprobs(codec, &one.progress, 0) } else { Value::Null };
    let mut choice = json!({
        "index": index, "message": {"role": "assistant", "content": text, "reasoning_content": null}, "logprobs": logprobs,
        "finish_reason": finish_reason, "matched_stop": matched_stop,
    });
    if let Some(fields) = choice.as_object_mut() {
        if chat.return_prompt_token_ids {
            fields.insert("prompt_token_ids".to_owned(), Value::from(one.progress.prompt.clone()));
        }
        if chat.return_token_ids {
            fields.insert("response_token_ids".to_owned(), Value::from(one.progress.ids.clone()));
        }
        if chat.return_meta_info {
            fields.insert("meta_info".to_owned(), one.progress.meta_info(codec, &state.timeline));
        }
    }
    choice
}

/// What all chunks of one streamed chat share.
struct Envelope {
    id: String,
    created: i64,
    model: String,
    generated: Mutex<usize>,
}

impl Envelope {
    fn chunk(&self, choices: Value) -> Value {
        json!({"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model, "choices": choices})
    }
}

fn stream_chat(state: &Arc<EngineState>, chat: &ChatBody, running: Vec<Running>, id: &str, created: i64) -> Response {
    let envelope = Envelope { id: id.to_owned(), created, model: chat.model.clone(), generated: Mutex::new(0) };
    let envelope = Arc::new(envelope);
    let chunks = |index: usize| ChatChunks {
        envelope: Arc::clone(&envelope),
        index,
        logprobs: chat.wish.logprobs,
        sent_text: 0,
        sent_tokens: 0,
        begun: false,
    };
    let requests = running.into_iter().enumerate().map(|(index, one)| (one, chunks(index))).collect();
    let prompt_tokens = chat.prompt.len();
    let include_usage = chat.include_usage;
    let last = Arc::clone(&envelope);
    let last = stream::once(async move {
        let generated = *last.generated.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chunk = last.chunk(json!([]));
        if let Some(fields) = chunk.as_object_mut() {
            fields.insert("usage".to_owned(), openai::usage(prompt_tokens, generated));
        }
        chunk
    });
    merged(state, requests, last.filter(move |_| std::future::ready(include_usage)))
}

struct ChatChunks {
    envelope: Arc<Envelope>,
    index: usize,
    logprobs: bool,
    sent_text: usize,
    sent_tokens: usize,
    begun: bool,
}

impl ChatChunks {
    fn event(&self, delta: Value, logprobs: Value, finish: (Value, Value)) -> Value {
        let choice = json!({
            "index": self.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish.0, "matched_stop": finish.1,
        });
        self.envelope.chunk(json!([choice]))
    }
}

impl Chunks for ChatChunks {
    fn events(&mut self, state: &EngineState, running: &mut Running) -> Vec<Value> {
        let codec = state.text.as_ref();
        let nothing = || (Value::Null, Value::Null);
        let mut events = Vec::new();
        if !self.begun {
            self.begun = true;
            let delta = json!({"reasoning_content": null, "role": "assistant", "content": ""});
            events.push(self.event(delta, Value::Null, nothing()));
        }
        let text = running.progress.text(codec);
        let fresh = text.get(self.sent_text..).unwrap_or_default();
        if !fresh.is_empty() {
            let logprobs = match self.logprobs {
                true => openai::chat_logprobs(codec, &running.progress, self.sent_tokens),
                false => Value::Null,
            };
            self.sent_tokens = running.progress.ids.len();
            events.push(self.event(json!({"reasoning_content": null, "content": fresh}), logprobs, nothing()));
            self.sent_text = text.len();
        }
        if running.progress.finished.is_some() {
            *self.envelope.generated.lock().unwrap_or_else(PoisonError::into_inner) += running.progress.ids.len();
            events.push(self.event(json!({"reasoning_content": null}), Value::Null, openai::finish(&running.progress)));
        }
        events
    }
}

/// The error for a role that does not exist.
#[must_use]
pub fn bad_role(position: usize, role: &Value) -> FieldError {
    let known = "'user', 'system', 'assistant', 'tool', 'function', 'developer'";
    let message = format!("Value error, 'role' must be one of {known} (case-insensitive).");
    let mut error = FieldError::new("value_error", &["messages"], message, role);
    error.location.extend([Value::from(position), Value::from("role")]);
    error
}
