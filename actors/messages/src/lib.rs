//! Every typed message of the system: the protocol on one shelf, one file per actor family.
//!
//! A message's page says who sends it, what the reply is, and whether it may be repeated. The asker chooses the deadline
//! ([`greenroom_core::ask`]); where the work itself takes a time-out, the message carries it in milliseconds.
//!
//! Invariants: families know each other by these messages only; what crosses nodes is plain data that serde can carry;
//! a failure of infrastructure is a typed failure and never looks like a result.

pub mod engine;
mod error;
mod ids;
pub mod node;
pub mod rollout;
pub mod run;
pub mod sandbox;
pub mod setting;
pub mod steer;
pub mod trainer;
pub mod weights;

pub use error::ERRORS;
pub use ids::{
    BatchId, EngineId, GroupId, IdParseError, LeaseId, Purpose, RolloutId, RunId, Step, TaskId, WeightVersion,
};
