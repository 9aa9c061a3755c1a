//! What can go wrong with rollouts before one is made, with a stable code each. What goes wrong with one rollout is not
//! here: that is its outcome.

use std::path::PathBuf;

use greenroom_core::ErrorPage;
use greenroom_tokens::TokensError;

use crate::agent::AgentError;

/// Rollouts could not be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolloutError {
    /// Settings contradict each other or cannot work (GR0300).
    #[error("rollout settings: {}", problems.join("; "))]
    Config {
        /// One line for each problem, with its remedy.
        problems: Vec<String>,
    },
    /// A data set cannot be read at all (GR0301).
    #[error("{path} cannot be read ({reason}): give the path of a JSONL file with one task a line")]
    DatasetUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Rows of a data set are not tasks (GR0302).
    #[error("{}", problems.join("\n"))]
    DatasetInvalid {
        /// One line for each problem: file, line, what, remedy.
        problems: Vec<String>,
    },
    /// The agent file does not fit (its own codes).
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The agent file asks for tool calls, which need a parser of the policy's own call syntax (GR0303).
    #[error(
        "the agent file sets model_class to a tool-calling model; only text-based actions are trained: leave it out"
    )]
    ToolCalls,
    /// Tokenizer or template failed (their own codes).
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// A task needs a sandbox image that no pool has (GR0304).
    #[error(
        "task {task} needs a sandbox of image {image:?}, but there is no pool of it (there are: {pools}): add the pool"
    )]
    NoPool {
        /// The task.
        task: String,
        /// Its image.
        image: String,
        /// The images that have a pool.
        pools: String,
    },
}

impl RolloutError {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config { .. } => "GR0300",
            Self::DatasetUnreadable { .. } => "GR0301",
            Self::DatasetInvalid { .. } => "GR0302",
            Self::ToolCalls => "GR0303",
            Self::NoPool { .. } => "GR0304",
            Self::Tokens(error) => error.code(),
            Self::Agent(error) => agent_code(error),
        }
    }
}

fn agent_code(error: &AgentError) -> &'static str {
    match error {
        AgentError::Unreadable { .. } => "GR0310",
        AgentError::Invalid { .. } => "GR0311",
        AgentError::TemplateSyntax { .. } => "GR0312",
        AgentError::TemplateRender { .. } => "GR0313",
        AgentError::ActionRegex { .. } => "GR0314",
        AgentError::OutOfTurn { .. } => "GR0315",
    }
}

/// The pages of this crate's own codes; the agent's and the grading's are beside them.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0300",
        cause: "rollout settings contradict each other, such as a sandbox lifetime shorter than a rollout may take",
        remedy: "change the setting that the message names; it says which value would do",
    },
    ErrorPage {
        code: "GR0301",
        cause: "a data set's file is missing or not text",
        remedy: "correct the path; a data set is a JSONL file with one task a line",
    },
    ErrorPage {
        code: "GR0302",
        cause: "rows of a data set are not tasks: broken JSON, no prompt, no tests, a path outside the work directory",
        remedy: "each line of the message names file, line, what is wrong and what to do; mend or drop those rows",
    },
    ErrorPage {
        code: "GR0303",
        cause: "the agent file describes a tool-calling agent",
        remedy: "use a text-based agent file, such as config/agent/default.yaml",
    },
    ErrorPage {
        code: "GR0304",
        cause: "a task names a sandbox image for which no pool is configured",
        remedy: "add a pool of that image, or correct the task's image or pool",
    },
];
