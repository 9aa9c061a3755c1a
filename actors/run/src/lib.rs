//! The Conductor: the schedule of a run, its database, and how it goes on after a crash.
//!
//! * [`Conductor`] drives the run: batches of rollouts, optimizer steps, weight versions, evaluations.
//! * [`Schedule`] decides what may start next; it is pure and the same for a fresh and a resumed run.
//! * [`Database`] is `run.db`: SQLite, so that a person can ask it with SQL. [`Journal`] writes the events into it.
//! * [`check`] holds the invariants of a run's history as pure functions, for tests, for the simulation and for
//!   `greenroom check`.
//!
//! Invariants: a step is committed in one transaction together with the rollouts that it trained on; no rollout is
//! committed twice; a batch is never generated with weights older than the schedule allows.

mod actor;
pub mod check;
mod conductor;
mod config;
mod database;
mod error;
mod journal;
mod metrics;
mod policy_step;
mod progress;
mod report;
mod resume;
mod schedule;
mod signal;
mod store;
mod summary;

pub use actor::{Conductor, ConductorArguments, ConductorInput, ConductorParts, RunEnd};
pub use conductor::ConductorState;
pub use config::{EvaluationConfig, RunConfig, ScheduleMode};
pub use database::{CommittedStep, Database, DatabaseReader, RolloutTotals, StepCommit};
pub use error::{ERRORS, RunError};
pub use journal::{Journal, JournalArguments, JournalInput, JournalState};
pub use metrics::{BatchMetrics, BatchTimes, Percentiles};
pub use resume::{ResumePoint, resume_point};
pub use schedule::{BatchState, Effect, Facts, Schedule};
pub use store::RunDirectory;
pub use summary::RunSummary;
