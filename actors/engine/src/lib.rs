//! EngineProxy (one per SGLang engine) and EnginePool (the fleet): the life of engines, routing, the HTTP client.
//!
//! * [`EnginePool`] — routes turns: sticky by rollout, else least loaded; queues them until their own time-out; fans weight
//!   updates out; supervises its proxies.
//! * [`EngineProxy`] — owns one engine: its state machine ([`EngineMachine`]), its requests in flight, its weight version.
//! * [`EngineHost`] — one engine elsewhere: joins the fleet, applies weights on its host before they are loaded.
//! * [`EngineApi`] — what an engine can be asked; [`HttpEngineApi`] speaks it to SGLang, a simulation to nobody.
//!
//! Invariants: an engine serves only while the weights that it confirmed itself are this run's and new enough for the
//! request, and a sample of their numbers is what the loaded file holds (where the engine can tell); a token id outside the
//! vocabulary is never sent (it would kill the server); a turn whose connection broke is reported and never repeated; every
//! question and every turn ends by its deadline. An engine that fails is quarantined, reconnected and loaded anew before it
//! serves again; it never takes the fleet with it.

mod api;
mod config;
mod error;
mod host;
mod http;
mod pool;
mod proxy;
mod secret;
mod version;

pub use api::{
    AbortTarget, EngineApi, GenerateCall, Generated, LabelSpan, LoadWeights, Loads, ModelInfo, ServerInfo, ServerPause,
};
pub use config::{Backoff, CallDeadlines, Credentials, EngineConfig, UpdateOrder, VersionWindow};
pub use error::{ApiError, ERRORS, EngineConfigError};
pub use host::{EngineHost, EngineHostArguments, EngineHostInput};
pub use http::{HttpEngineApi, http_api_factory};
pub use pool::{ApiFactory, EnginePool, EnginePoolArguments, EnginePoolInput, Quorum, Router, RouterPlan};
pub use proxy::{
    Admission, Call, CallAnswer, Effect, EngineMachine, EngineProxy, EngineProxyArguments, EngineProxyInput, Input,
    MachineSettings, Progress, Report, SpotVerdict,
};
pub use secret::{Secret, SecretSource};
pub use version::{Features, SglangVersion};
