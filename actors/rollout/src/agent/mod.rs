//! The agent: mini-swe-agent's behaviour as a deterministic state machine without I/O.
//!
//! [`Agent`] is fed with replies and command results and answers with the next thing to do; clock, host facts and
//! process environment are handed in. The rules follow mini-swe-agent 2.4.6 as measured on recorded traces: the message
//! list is append-only, a reply that cannot be parsed never enters it, and limits are looked at only before a query.
//!
//! Invariants: the same definition, task, host facts and inputs give the same messages; nothing here panics; a template
//! that cannot be rendered after the start ends the episode with an exit message and is never an observation.

mod config;
mod definition;
mod error;
mod exec;
mod exit;
mod json_text;
mod message;
mod parse;
mod python_json;
pub(crate) mod python_text;
mod state;
mod submission;
mod template;
mod tool_call;
mod trajectory;

pub use config::{ActionProtocol, AgentConfig, AgentFile, EnvironmentConfig, ModelConfig};
pub use definition::{AgentDefinition, AgentTask, HostFacts, Uname};
pub use error::{AGENT_ERRORS, AgentError};
pub use exec::{ExecFailure, ExecResult};
pub use exit::{Exit, ExitStatus};
pub use message::{Message, MessageExtra, Origin, Role};
pub use parse::{ActionRegex, DEFAULT_ACTION_REGEX};
pub use state::{Agent, FailedReply, NextStep, Reply};
pub use submission::{SUBMIT_SENTINEL, submission};
pub use tool_call::{ToolCall, bash_tool_schema};

#[cfg(test)]
mod tests;
