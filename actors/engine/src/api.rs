//! What an engine can be asked, without a word on how it is reached.
//!
//! [`EngineApi`] is the seam between the proxy, which decides, and a client, which speaks: SGLang's HTTP interface in
//! production, a simulated engine in virtual time. Invariants: every call ends by its deadline; no call is repeated by
//! the client itself; a broken connection is told apart from a refusal, because only the first leaves a call's fate
//! unknown. On failure a call gives an [`ApiError`]; it never panics and never guesses a result.

use std::fmt::Debug;

use async_trait::async_trait;
use greenroom_core::Deadline;
use greenroom_messages::engine::{FinishReason, Sampling};

use crate::ApiError;

/// One engine, as its proxy speaks to it.
#[async_trait]
pub trait EngineApi: Debug + Send + Sync {
    /// Version, limits and identity of the server. May block while the engine is busy. Repeatable.
    async fn server_info(&self, deadline: Deadline) -> Result<ServerInfo, ApiError>;

    /// The label of the loaded weights. Cheap: answers also while the engine is paused or loads. Repeatable.
    async fn model_info(&self, deadline: Deadline) -> Result<ModelInfo, ApiError>;

    /// Whether the server is up and not paused. [`ApiError::Missing`] on servers without this endpoint. Repeatable.
    async fn ready(&self, deadline: Deadline) -> Result<bool, ApiError>;

    /// One turn. Dropping the future hangs up; the engine then gives the request up within seconds. Not repeatable.
    async fn generate(&self, call: &GenerateCall, deadline: Deadline) -> Result<Generated, ApiError>;

    /// Ends requests early; they answer with what they have. Also fine when nothing matches. Repeatable.
    async fn abort(&self, target: &AbortTarget, deadline: Deadline) -> Result<(), ApiError>;

    /// Stops generating. Repeatable.
    async fn pause(&self, mode: ServerPause, deadline: Deadline) -> Result<(), ApiError>;

    /// Goes on generating; also fine when not paused. Repeatable.
    async fn continue_generation(&self, deadline: Deadline) -> Result<(), ApiError>;

    /// Drops the prefix cache. Refused while the engine is busy. Repeatable.
    async fn flush_cache(&self, deadline: Deadline) -> Result<(), ApiError>;

    /// Replaces the weights. A refusal does not mean that nothing changed. Repeatable with the same directory.
    async fn update_weights_from_disk(&self, load: &LoadWeights, deadline: Deadline) -> Result<(), ApiError>;

    /// How busy the engine is. Repeatable.
    async fn loads(&self, deadline: Deadline) -> Result<Loads, ApiError>;

    /// A text that changes whenever the engine has gone on with its requests; `None` where it cannot tell. Repeatable.
    async fn progress(&self, _deadline: Deadline) -> Result<Option<String>, ApiError> {
        Ok(None)
    }

    /// The first rows of a weight by its Hugging Face name, row by row, as the engine holds it now.
    /// [`ApiError::Missing`] or [`ApiError::Refused`] where it cannot tell. Repeatable.
    async fn weight_rows(&self, _name: &str, _rows: u32, _deadline: Deadline) -> Result<Vec<f64>, ApiError> {
        Err(ApiError::Missing { call: "/get_weights_by_name", url: "this engine".to_owned() })
    }
}

/// What a proxy must know of a server before it lets it serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// The server's version, such as `0.5.23`.
    pub version: String,
    /// Changes when the server process is started again; empty where the server tells nothing of the kind.
    pub identity: String,
    /// The context length in tokens: prompt and new tokens together.
    pub context_tokens: Option<u32>,
    /// The longest prompt in tokens that the server takes.
    pub max_prompt_tokens: Option<u32>,
    /// Whether prefill and decode run in different servers, which is not supported.
    pub disaggregated: bool,
}

/// What a server says of its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// The label of the loaded weights; `default` on a fresh server.
    pub weight_version: String,
    /// Whether the model generates text.
    pub is_generation: bool,
}

/// One turn, checked and clamped.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateCall {
    /// The request's id at the engine.
    pub rid: String,
    /// The prompt's token ids, all inside the vocabulary.
    pub input_ids: Vec<u32>,
    /// How to sample; `max_new_tokens` fits the context.
    pub sampling: Sampling,
    /// Requests share cached prefixes only with those of the same key: the label of the weights. Without it a turn would
    /// read the cache that older weights left behind when they were replaced without a flush (seen on SGLang 0.5.23
    /// after an in-place update: the outputs were neither the old nor the new weights').
    pub cache_key: String,
}

/// A finished turn, in the server's terms.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Sampled token ids.
    pub output_ids: Vec<u32>,
    /// One log-probability a token, in nats.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The label of the weights that made the last token.
    pub weight_version: String,
    /// Which weights made which tokens; empty on servers that do not tell.
    pub spans: Vec<LabelSpan>,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u32,
}

/// The weights of a stretch of output tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSpan {
    /// The label of the weights.
    pub label: String,
    /// First token, from 0.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

/// Which requests to abort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortTarget {
    /// The requests whose id **begins** with this text (SGLang matches prefixes).
    Request(String),
    /// All, those of other clients too.
    All,
}

/// The server's pause modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPause {
    /// Running requests end with what they have.
    Abort,
    /// Running requests lose their cache and are computed again afterwards.
    Retract,
    /// Running requests keep their cache and go on with new weights.
    InPlace,
}

/// A load of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadWeights {
    /// The Hugging Face directory, as seen from the engine's host.
    pub model_dir: String,
    /// The label that the engine reports afterwards.
    pub weight_version: String,
    /// Whether the prefix cache is dropped with the old weights.
    pub flush_cache: bool,
}

/// How busy an engine is, over all its data-parallel ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// Requests that are generating.
    pub running: u32,
    /// Requests that wait inside the server.
    pub waiting: u32,
}
