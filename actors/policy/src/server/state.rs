//! What all handlers share: the generator, the tokenizer, limits, metrics and what the server says about itself.
//!
//! The generator is the truth about the weights; the server keeps a copy of the last known name and version, so that
//! `/model_info` answers at once even while the generator reads new weights.

use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::time::Instant;

use super::error::ApiError;
use super::metrics::Metrics;
use super::text::TextCodec;
use super::timeline::{RequestIds, Timeline};
use crate::generation::{GeneratorHandle, ModelInfo};

/// Bounds on what one client can cost, and on every wait.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest request body, bytes.
    pub body_bytes: usize,
    /// The longest a body may take to arrive.
    pub body_deadline: Duration,
    /// The longest a generation may take, waiting and held by a pause included.
    pub request_deadline: Duration,
    /// The longest an administrative call may take. Long enough for one reading of the weights to pass before it.
    pub control_deadline: Duration,
    /// The longest a change of weights may take, waiting for running requests included.
    pub update_deadline: Duration,
    /// The longest a health probe may take (SGLang's 20 s).
    pub health_deadline: Duration,
    /// How long a stopping server lets requests finish.
    pub drain_deadline: Duration,
    /// The most sequences of one request.
    pub batch_sequences: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            body_deadline: Duration::from_secs(60),
            request_deadline: Duration::from_secs(4 * 3600),
            control_deadline: Duration::from_secs(300),
            update_deadline: Duration::from_secs(3600),
            health_deadline: Duration::from_secs(20),
            drain_deadline: Duration::from_secs(10),
            batch_sequences: 4096,
        }
    }
}

/// What the server says it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Where the weights came from, as the caller wrote it.
    pub model_path: String,
    /// The name clients see; an update from disk replaces it by the path, as in SGLang.
    pub served_model_name: String,
    /// The version in force, as far as known.
    pub weight_version: String,
    /// The generator's own path when it was last asked; `None` after an update through this server, whose path is not yet
    /// seen from the generator. A change of it means that someone else changed the weights.
    pub generator_path: Option<std::path::PathBuf>,
}

/// Credentials.
#[derive(Clone, Default)]
pub struct Keys {
    /// For everyone.
    pub api_key: Option<String>,
    /// For administration.
    pub admin_api_key: Option<String>,
}

/// Shared by all handlers.
pub struct EngineState {
    /// The generator.
    pub generator: GeneratorHandle,
    /// The tokenizer.
    pub text: Arc<dyn TextCodec>,
    /// What is fixed about the model.
    pub facts: ModelInfo,
    /// Where the tokenizer came from.
    pub tokenizer_path: String,
    /// Bounds.
    pub limits: Limits,
    /// Credentials.
    pub keys: Keys,
    /// Counters.
    pub metrics: Metrics,
    /// Dates.
    pub timeline: Timeline,
    /// How long the start took; a client tells a restarted server by a change of it.
    pub startup_seconds: f64,
    /// Fresh request ids.
    pub request_ids: RequestIds,
    /// The port, once bound.
    pub address: std::net::SocketAddr,
    /// The seed, as shown in `/server_info`.
    pub seed: u64,
    /// Whether a weight-update session is open.
    pub weight_session: AtomicBool,
    /// Whether a flush waits for idleness.
    pub flush_waits: AtomicBool,
    /// See [`Served`].
    pub served: Mutex<Served>,
}

impl EngineState {
    /// Waits for something until a deadline.
    ///
    /// # Errors
    /// 504 when the deadline passes first.
    pub async fn ask<T>(&self, deadline: Instant, answer: impl Future<Output = T>) -> Result<T, ApiError> {
        tokio::time::timeout_at(deadline, answer).await.map_err(|_| {
            ApiError::Native(StatusCode::GATEWAY_TIMEOUT, "The engine did not answer before the deadline.".to_owned())
        })
    }

    /// Waits for an administrative answer of the generator.
    ///
    /// # Errors
    /// 504 at the control deadline, or what the generator says.
    pub async fn control<T>(
        &self,
        answer: impl Future<Output = Result<T, crate::error::GenerationError>>,
    ) -> Result<T, ApiError> {
        Ok(self.ask(Instant::now() + self.limits.control_deadline, answer).await??)
    }

    /// What the server says it serves.
    pub fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last known state of the weights, refreshed from the generator if that answers quickly.
    pub async fn refresh_served(&self) -> Served {
        let deadline = Instant::now() + Duration::from_millis(200);
        let info = self.ask(deadline, self.generator.model_info()).await;
        let mut served = self.served();
        if let Ok(Ok(info)) = info {
            served.weight_version = info.weight_version.to_string();
            if served.generator_path.as_ref().is_some_and(|path| *path != info.model_path) {
                served.model_path = info.model_path.display().to_string();
                served.served_model_name = served.model_path.clone();
            }
            served.generator_path = Some(info.model_path);
        }
        served.clone()
    }

    /// Checks that token ids are in the vocabulary. SGLang dies of one that is not; here it is refused.
    ///
    /// # Errors
    /// 400 naming the first bad id and its place in `field`.
    pub fn check_ids(&self, field: &str, ids: &[i64]) -> Result<Vec<u32>, ApiError> {
        let vocabulary = self.facts.vocabulary_size;
        let checked = ids.iter().enumerate().map(|(position, id)| {
            u32::try_from(*id).ok().filter(|known| (*known as usize) < vocabulary).ok_or_else(|| {
                ApiError::bad_request(format!(
                    "{field}[{position}] is {id}, which is outside of the vocabulary [0, {vocabulary})."
                ))
            })
        });
        checked.collect()
    }

    /// Checks lengths.
    ///
    /// # Errors
    /// 400 in SGLang's words.
    pub fn check_length(&self, prompt_tokens: usize, max_new_tokens: usize) -> Result<(), ApiError> {
        let context = self.facts.context_length;
        if prompt_tokens >= context {
            return Err(ApiError::bad_request(format!(
                "The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens)."
            )));
        }
        let total = prompt_tokens.saturating_add(max_new_tokens);
        if total > context {
            return Err(ApiError::bad_request(format!(
                "Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total of \
                 {total} tokens: {prompt_tokens} tokens from the input messages and {max_new_tokens} tokens for the completion. \
                 Please reduce the number of tokens in the input messages or the completion to fit within the limit."
            )));
        }
        Ok(())
    }
}
