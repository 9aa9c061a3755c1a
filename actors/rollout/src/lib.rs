//! RolloutManager and AgentLoop: agent semantics, tokens and masks, grading, data sets

pub mod agent;
pub mod grading;
