//! RolloutManager and AgentLoop: agent semantics, tokens and masks, grading, data sets.
//!
//! * [`RolloutManager`] — makes batches of groups of rollouts: admission, guard time-outs, re-issue of what infrastructure
//!   failed, typed outcomes. [`manager::ManagerState`] decides, purely.
//! * [`agent_loop`] — one episode: claim a sandbox, set it up, turn by turn until the agent ends, grade in a fresh one, report.
//! * [`agent`] — mini-swe-agent's behaviour; [`grading`] — from what it left behind to a reward.
//! * [`tokens`] — token ids are kept, never made again; [`dataset`] — tasks as JSONL.
//!
//! Invariants: a rollout ends exactly once, in exactly one outcome; a claimed sandbox is released whatever happens; an
//! infrastructure failure has no reward; a group is reported exactly once; decisions depend on input, time and seed alone.

pub mod agent;
pub mod agent_loop;
mod config;
pub mod dataset;
mod error;
pub mod grading;
pub mod manager;
pub mod tokens;

pub use agent::AGENT_ERRORS;
pub use config::{
    GRADING_PREPARATION_MS, GUARD_SLACK_MS, GradeIn, LEASE_MARGIN_MS, LIFETIME_SLACK_MS, MAX_BACKOFF_MS, RolloutConfig,
    SETUP_BACKOFF_MS, lease_problem,
};
pub use dataset::make::MAKE_ERRORS;
pub use dataset::{Dataset, GradingLimits, Task};
pub use error::{ERRORS, RolloutError};
pub use grading::GRADING_ERRORS;
pub use manager::{RolloutManager, RolloutManagerArguments};
