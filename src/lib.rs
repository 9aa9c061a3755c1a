//! greenroom: a runtime of supervised actors for agentic reinforcement learning of language models on one's own machines.
//!
//! This is the façade: the crates of the actor families under one roof, for programs that embed them, and the wiring that
//! the `greenroom` binary does: configuration, a whole run on one machine, the live display.
//!
//! A foreign ractor application can start a whole run as a child of its own supervisor ([`up::Run`]), or start only some of
//! the actors and speak to them with the same messages ([`messages`]).

pub mod config;
mod error;
pub mod explain;
mod files;
#[cfg(feature = "cluster")]
pub mod local_cluster;
#[cfg(feature = "cluster")]
pub mod node;
mod parts;
#[cfg(feature = "cluster")]
pub mod shell;
pub mod up;

pub use error::StartError;

#[cfg(feature = "cluster")]
pub use greenroom_cluster as cluster;
pub use greenroom_core as core;
pub use greenroom_engine as engine;
#[cfg(feature = "cluster")]
pub use greenroom_identity as identity;
pub use greenroom_messages as messages;
#[cfg(feature = "torch")]
pub use greenroom_policy as policy;
pub use greenroom_rollout as rollout;
pub use greenroom_run as run;
pub use greenroom_sandbox as sandbox;
pub use greenroom_tokens as tokens;
#[cfg(feature = "torch")]
pub use greenroom_trainer as trainer;
pub use greenroom_weights as weights;

/// The README's Rust examples, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeExamples;
