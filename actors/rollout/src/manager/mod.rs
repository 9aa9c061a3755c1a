//! Batches of groups of rollouts: who runs when, what is tried again, and when a group is finished.
//!
//! [`ManagerState`] decides, purely; [`RolloutManager`] is the actor that starts AgentLoops, keeps the timer and sends what
//! was decided. A rollout that fails by infrastructure is issued again under a new id (same group and sample, next
//! attempt) after a back-off; one that outlives its guard time is ended, however stuck its loop may be.
//!
//! Invariants ([`ManagerState::violations`]): at most `max_running` rollouts run; a sample waits, runs or is done, never two
//! of these; an ended rollout's id is never issued again; a group is reported once for each time it was asked for.

mod actor;
mod batch;
mod outcome;
mod state;

pub use actor::{RolloutManager, RolloutManagerArguments, RolloutManagerInput, RolloutManagerState};
pub(crate) use outcome::bare;
pub use state::{Issue, ManagerEffect, ManagerInput, ManagerLimits, ManagerState};

#[cfg(test)]
mod tests;
