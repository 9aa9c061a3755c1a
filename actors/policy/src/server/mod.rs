//! The embedded engine: an HTTP server over the generator that speaks SGLang 0.5.23's protocol.
//!
//! A client of SGLang cannot tell the difference by shape, status, content type or error body; the recorded exchanges in
//! `tests/fixtures/sglang` are the judge. Where SGLang would die of a request (an id outside of the vocabulary, weights of
//! the wrong shape), this server answers 400 and lives. Other differences are named in the module they concern.
//!
//! Invariants: no request reaches the generator unchecked; every wait has a deadline ([`state::Limits`]); a client that goes
//! away ends its request; an idle server does nothing at all. When the generator thread dies, calls answer 503.
//!
//! * [`generate`], [`chat`], [`completions`]: samples; [`stream`]: server-sent events; [`running`], [`progress`]: one request.
//! * [`control`], [`weights`], [`info`], [`metrics`], [`auth`]: everything around them.

mod auth;
mod chat;
mod codec;
mod completions;
mod control;
pub mod error;
mod generate;
mod info;
mod messages;
pub mod metrics;
mod openai;
pub mod progress;
mod python;
mod router;
mod running;
mod sampling;
mod start;
pub mod state;
mod stream;
pub mod text;
pub mod timeline;
mod validation;
mod weights;

pub use codec::ModelText;
pub use error::{ERRORS, ServerError};
pub use info::SGLANG_VERSION;
pub use start::{EngineServer, EngineServerConfig, RunningEngine, ServeOptions};
pub use state::{Keys, Limits};
pub use text::{ChatPrompt, TextCodec};
