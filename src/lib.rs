//! greenroom: a runtime of supervised actors for agentic reinforcement learning of language models on one's own machines.
//!
//! This is the façade: the crates of the actor families under one roof, for programs that embed them, and the wiring that
//! the `greenroom` binary does: configuration, a whole run on one machine, the live display.
//!
//! Another ractor application uses it in three ways; `tests/embed.rs` shows each as a whole program.
//!
//! **A whole run** on this machine, as a child of its own supervisor: [`up::RunActor`] ends with the run.
//!
//! ```no_run
//! # async fn example(supervisor: ractor::ActorCell) -> anyhow::Result<()> {
//! use greenroom::config::{self, Layers};
//! use greenroom::up::{RunActor, RunArguments, RunMessage, RunPlace};
//! use ractor::Actor;
//!
//! let layers = Layers { files: vec!["run.toml".into()], ..Layers::default() };
//! let place = RunPlace { runs_dir: "runs".into(), name: "mine".into(), resume: false };
//! let arguments = RunArguments::new(config::load(&layers)?.config, place);
//! let (run, ended) = Actor::spawn_linked(None, RunActor, arguments, supervisor).await?;
//! let deadline = greenroom::core::Deadline::after_ms(1_000);
//! let status = greenroom::core::ask(&greenroom::core::Address::of(&run), deadline, RunMessage::Status).await?;
//! println!("{} of {} steps", status.step.0, status.steps);
//! ended.await?;
//! # Ok(())
//! # }
//! ```
//!
//! **Only some of the actors**, with the same messages: engines that others run, behind one pool.
//!
//! ```no_run
//! # async fn example(version: greenroom::messages::WeightVersion) -> anyhow::Result<()> {
//! use greenroom::core::{Address, Deadline, Faults, Seam, ask};
//! use greenroom::engine::{EngineConfig, EnginePool, EnginePoolArguments, http_api_factory};
//! use greenroom::messages::engine::{EnginePoolMessage, EngineSpec, PauseMode, UpdateWeights};
//! use greenroom::messages::EngineId;
//! use ractor::Actor;
//!
//! let config = EngineConfig::default();
//! let url = "http://127.0.0.1:30000".to_owned();
//! let arguments = EnginePoolArguments {
//!     specs: vec![EngineSpec { engine: EngineId::new("mine"), url, max_in_flight: 8 }],
//!     api: http_api_factory(&config)?,
//!     config,
//!     seam: Seam::system(0, Faults::none()),
//!     run: version.run.clone(),
//!     vocabulary_tokens: 151_936,
//!     journal: Address::of_function("events", |event| { println!("{event:?}"); Ok(()) }),
//! };
//! let (pool, _) = Actor::spawn(None, EnginePool, arguments).await?;
//! let pool: Address<EnginePoolMessage> = Address::adapted(&pool);
//! // an engine serves weights that somebody gave it a version of, never what it happened to start with
//! let weights = UpdateWeights { version, model_dir: "/models/mine".into(), pause: PauseMode::Drain, timeout_ms: 60_000 };
//! ask(&pool, Deadline::after_ms(60_000), |reply| EnginePoolMessage::UpdateWeights(weights, reply)).await?;
//! // and now EnginePoolMessage::Generate
//! # Ok(())
//! # }
//! ```
//!
//! **A running cluster**, joined as one more node: with roles ([`node::NodeBuilder::start`]), or as a guest that asks and is
//! told.
//!
#![cfg_attr(
    feature = "cluster",
    doc = r##"
```no_run
# async fn example(identity: greenroom::cluster::IdentityFiles) -> anyhow::Result<()> {
use std::time::Duration;

use greenroom::core::Address;
use greenroom::messages::run::StepFinished;

let guest = greenroom::Node::builder("dashboard")
    .run("mine")
    .seed("trainer-0.group:4700")
    .cookie_file("/etc/greenroom/cookie")
    .identity(identity)
    .join()
    .await?;
guest.run_is_led(Duration::from_secs(60)).await?;
let to = Address::of_function("steps", |step: StepFinished| {
    println!("step {}: reward {}", step.step.0, step.reward);
    Ok(())
});
let _subscribed = guest.subscribe(to);
println!("the run has ended: {}", guest.ended().await);
guest.leave().await;
# Ok(())
# }
```
"##
)]
//!
//! With the feature `cluster` (on by default), which is also ractor's of that name, each message type of an actor says itself
//! what it is to other processes: a foreign one needs `impl ractor::Message for MyMessage {}`. Without the feature every type is
//! a message, and everything here but the cluster is the same. Without the feature `torch` there is no trainer and no
//! embedded engine, and the build needs no libtorch.

pub mod config;
mod down;
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
mod subscribed;
pub mod up;

pub use error::StartError;
#[cfg(feature = "cluster")]
pub use node::Node;
pub use subscribed::{Subscribed, subscribe};

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
