//! Simulated engines, sandboxes and trainer, and the world in which the unchanged actors of a run meet them.
//!
//! [`World::run`] drives a whole run in virtual time: RolloutManager, AgentLoops, SandboxPool, SandboxLeases, EnginePool,
//! EngineProxies, WeightPublisher, WeightReceiver, Conductor and Journal are those of a real run; only what they reach out
//! to is simulated. A [`Scenario`] says how the run is set up and how much goes wrong; a seed decides what goes wrong when.
//!
//! Invariants: the same scenario and seed give the same events at the same virtual times, in any process; misfortunes are
//! few, so a run completes in spite of them; whatever happens, a run ends. On a breach [`Report::violations`] names it, and
//! the seed replays it.

mod agent;
mod chance;
mod checks;
mod engine;
mod error;
mod generation;
mod ledger;
mod policy;
mod sandbox;
mod scenario;
mod trainer;
mod weights_file;
mod wiring;
mod world;

pub use engine::SimulatedEngine;
pub use error::SimError;
pub use sandbox::{SimulatedBox, SimulatedProvider};
pub use scenario::{Misfortunes, Sabotage, Scenario};
pub use trainer::{SimulatedTrainer, TrainerArguments, TrainerInput, TrainerState};
pub use world::{Report, World};
