//! The protocol of EnginePool (the fleet) and EngineProxy (one per SGLang engine).

use greenroom_core::{Address, Reply};
use serde::{Deserialize, Serialize};

use crate::{EngineId, RolloutId, WeightVersion};

/// Messages to the EnginePool.
#[derive(Debug, Serialize, Deserialize)]
pub enum EnginePoolMessage {
    /// From an AgentLoop: one turn. Routed to the engine that served this rollout before while it serves, else to the
    /// least loaded one; waits for an engine that may serve until the request's own time-out. Not repeatable with the
    /// same `rid` while the first runs.
    Generate(GenerateRequest, Reply<Result<GenerateOutcome, EngineFailure>>),
    /// From an AgentLoop that ends early: give up whatever this rollout still has in flight and forget its engine.
    Release(RolloutId),
    /// From the Conductor: bring every engine to this version; answers when each has confirmed, failed, or timed out.
    /// One failed engine is quarantined and does not fail the others. Repeatable.
    UpdateWeights(UpdateWeights, Reply<Vec<EngineUpdate>>),
    /// From the shell and the Conductor: how the fleet stands. Repeatable.
    Status(Reply<Vec<EngineStatus>>),
    /// From the shell: one more engine. Repeatable.
    Add(EngineSpec, Reply<Result<(), EngineFailure>>),
    /// From an engine's host, every few seconds while it lives: this engine is reached through this proxy, which the host
    /// supervises. Answers with the weights that the fleet wants now. A host that is silent for long counts as lost.
    Join(EngineSpec, Address<EngineProxyMessage>, Reply<Result<Option<UpdateWeights>, EngineFailure>>),
    /// From the shell: drain this engine, then forget it. Repeatable.
    Remove(EngineId, Reply<Result<(), EngineFailure>>),
    /// From the run's end: abort what is in flight and answer when every proxy has ended.
    Shutdown(Reply<()>),
    /// From an EngineProxy: its state, load or version changed.
    Changed(EngineStatus),
    /// From the shell: send this engine no more turns (`true`), or send it turns again (`false`). Answers at once; its state
    /// tells when it is idle. Repeatable.
    SetDrained(EngineId, bool, Reply<Result<(), EngineFailure>>),
    /// From the shell: whether each engine holds the numbers of the weights that it says, by a sample of them. Engines that
    /// are silent for this many milliseconds are told as not compared. Changes nothing. Repeatable.
    Verify(u64, Reply<Vec<EngineVerdict>>),
}

greenroom_core::local_message!(EnginePoolMessage);

/// Messages to an EngineProxy. From the EnginePool.
#[derive(Debug, Serialize, Deserialize)]
pub enum EngineProxyMessage {
    /// One turn, as [`EnginePoolMessage::Generate`].
    Generate(GenerateRequest, Reply<Result<GenerateOutcome, EngineFailure>>),
    /// Give up what this rollout has in flight.
    Release(RolloutId),
    /// Drain or pause, load, verify, serve. Repeatable with the same version.
    UpdateWeights(UpdateWeights, Reply<EngineUpdate>),
    /// Stop admitting; serve what is in flight; answers when idle.
    Drain(Reply<()>),
    /// Admit again.
    Undrain,
    /// How this engine stands.
    Status(Reply<EngineStatus>),
    /// Compare a few of the engine's numbers with the weights that it confirmed, within so many milliseconds. Repeatable.
    Verify(u64, Reply<EngineVerdict>),
    /// Tell when this proxy is gone: the port is never answered, and dropped with the proxy or lost with its node.
    Monitor(Reply<()>),
}

greenroom_core::local_message!(EngineProxyMessage);

/// Where an engine is and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// Its name.
    pub engine: EngineId,
    /// Its base address, `http://host:port`.
    pub url: String,
    /// At most this many requests are in flight at it.
    pub max_in_flight: u32,
}

/// How to sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus mass; 1 is off.
    pub top_p: f32,
    /// Keep the k most likely; −1 is off.
    pub top_k: i32,
    /// At most this many new tokens.
    pub max_new_tokens: u32,
    /// Texts that end the turn.
    pub stop: Vec<String>,
    /// Token ids that end the turn, besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// The seed of this request's randomness, where the engine supports it.
    pub seed: Option<u64>,
}

/// One turn of one rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// The rollout.
    pub rollout: RolloutId,
    /// The turn, from 0.
    pub turn: u32,
    /// The request's id at the engine: unique, fixed width within a run.
    pub rid: String,
    /// The prompt's token ids.
    pub input_ids: Vec<u32>,
    /// How to sample.
    pub sampling: Sampling,
    /// Give up after this long, queueing included.
    pub timeout_ms: u64,
    /// Engines with older weights than this version number may not serve it.
    pub oldest_version: u64,
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-turn token or a stop text.
    Stop,
    /// `max_new_tokens` or the context's end.
    Length,
    /// The engine gave it up (a pause, an abort): the tokens so far are kept.
    Abort,
}

/// Which weights made which of the output tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSpan {
    /// The version's number; `None` where the engine's label is not one of this run's.
    pub number: Option<u64>,
    /// First output token, from 0.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

/// One finished turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateOutcome {
    /// Who served it.
    pub engine: EngineId,
    /// Sampled token ids, the end-of-turn token included when one was sampled.
    pub output_ids: Vec<u32>,
    /// For each output token: its log-probability under the sampling temperature, in nats.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Which weights made which tokens; covers all of them, in order.
    pub versions: Vec<VersionSpan>,
    /// Prompt tokens that the engine had cached.
    pub cached_tokens: u32,
    /// From asking to answer.
    pub elapsed_ms: u64,
}

/// Why an engine could not serve: always a failure of infrastructure, except [`EngineFailureKind::ContextExceeded`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{kind:?}: {message}")]
pub struct EngineFailure {
    /// The kind.
    pub kind: EngineFailureKind,
    /// What happened, in words.
    pub message: String,
}

/// The kinds of engine failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EngineFailureKind {
    /// No engine may serve within the time-out.
    NoEngine,
    /// The engine did not answer in time.
    TimedOut,
    /// The connection broke or the engine restarted: the turn's fate is unknown and it is not repeated blindly.
    Lost,
    /// The prompt leaves no room for a new token: the episode ends as truncated.
    ContextExceeded,
    /// The engine refused the request; it would refuse it again.
    Refused,
    /// The request was released by its own rollout.
    Released,
    /// The fleet is shutting down.
    Closed,
}

/// A wish to bring an engine to a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateWeights {
    /// The version.
    pub version: WeightVersion,
    /// The Hugging Face directory with these weights, as seen from the engine's host.
    pub model_dir: String,
    /// What becomes of requests in flight.
    pub pause: PauseMode,
    /// Each engine must have confirmed within this time.
    pub timeout_ms: u64,
}

/// What becomes of requests in flight while weights change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseMode {
    /// Wait for them (up to a drain deadline), then abort the rest.
    #[default]
    Drain,
    /// End them now with what they have.
    Abort,
    /// Drop their cache, go on with the new weights.
    Retract,
    /// Keep their cache, go on with the new weights.
    InPlace,
}

/// How one engine took an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineUpdate {
    /// The engine.
    pub engine: EngineId,
    /// How long it did not serve, or why it failed.
    pub result: Result<UpdateConfirmed, EngineFailure>,
}

/// An engine serves the wanted version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateConfirmed {
    /// The version that the engine itself reported.
    pub version: WeightVersion,
    /// How long the engine did not admit requests.
    pub paused_ms: u64,
}

/// Whether an engine holds the numbers of the weights that it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineVerdict {
    /// The engine.
    pub engine: EngineId,
    /// The weights that it confirmed.
    pub version: Option<WeightVersion>,
    /// What was found.
    pub found: WeightsFound,
}

/// What a comparison of an engine's numbers with a checkpoint found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsFound {
    /// The same numbers.
    Same,
    /// Other numbers: which tensor, and what differs.
    Different(String),
    /// Nothing could be compared, for this reason.
    NotCompared(String),
}

/// The life of an engine, as its proxy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// Not reached yet, or tried again after a loss.
    Connecting,
    /// Reached; version, limits and weights are being read.
    Verifying,
    /// Healthy, but its weights are not admissible: waits for an update.
    Syncing,
    /// Admits requests.
    Serving,
    /// Finishes what is in flight.
    Draining,
    /// Weights are being replaced.
    Updating,
    /// A load failed: nothing it says is believed until a full load succeeds.
    Tainted,
    /// It missed a deadline or dropped the connection.
    Lost,
    /// Its version or model is outside what is supported, or its answers cannot be used.
    Incompatible,
}

/// How one engine stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// The engine.
    pub engine: EngineId,
    /// Its address.
    pub url: String,
    /// Where it is in its life.
    pub state: EngineState,
    /// The weights it confirmed, if any of this run.
    pub version: Option<WeightVersion>,
    /// Requests in flight through this proxy.
    pub in_flight: u32,
    /// How many may be.
    pub max_in_flight: u32,
    /// The context length in tokens, once known.
    pub context_tokens: Option<u32>,
    /// The last thing that went wrong, in words.
    pub trouble: Option<String>,
}
