//! What can be wrong with an agent's definition or with how the agent is driven. Each error has a stable code.

use greenroom_core::ErrorPage;

/// Why an agent could not be made or driven.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The agent file is not valid YAML or not a mapping.
    #[error("GR0310: {source_name}: {detail}")]
    Unreadable {
        /// The file, or what stands for it.
        source_name: String,
        /// What the reader said, with line and column where known.
        detail: String,
    },
    /// Keys or values of the agent file are wrong; all of them are listed.
    #[error("GR0311: {source_name}: {}", problems.join("; "))]
    Invalid {
        /// The file, or what stands for it.
        source_name: String,
        /// One line for each problem.
        problems: Vec<String>,
    },
    /// A template does not compile.
    #[error("GR0312: template {template}: {detail}")]
    TemplateSyntax {
        /// The key that holds the template.
        template: &'static str,
        /// What the template engine said.
        detail: String,
    },
    /// A template cannot be rendered for this task.
    #[error("GR0313: template {template}: {kind}: {detail}")]
    TemplateRender {
        /// The key that holds the template.
        template: &'static str,
        /// The Python exception type upstream would have raised.
        kind: &'static str,
        /// What is wrong, with the variable's name where it is an undefined one.
        detail: String,
    },
    /// The action regex cannot be used.
    #[error("GR0314: model.action_regex: {detail}")]
    ActionRegex {
        /// What the regex engine said, or which rule is broken.
        detail: String,
    },
    /// The caller fed the agent with something it had not asked for.
    #[error("GR0315: the agent was given {given} while it waited for {expected}")]
    OutOfTurn {
        /// What was handed in.
        given: &'static str,
        /// What the agent waits for.
        expected: &'static str,
    },
}

/// Pages for `greenroom explain`.
pub const AGENT_ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0310",
        cause: "the agent file cannot be read as a YAML mapping with the sections agent, environment and model",
        remedy: "compare it with config/agent/default.yaml; the message names the line",
    },
    ErrorPage {
        code: "GR0311",
        cause: "the agent file has unknown keys, missing templates or values of the wrong type",
        remedy: "correct every listed key; for a misspelt one the nearest known key is named",
    },
    ErrorPage {
        code: "GR0312",
        cause: "a template of the agent file is not valid Jinja",
        remedy: "correct the template; the message names its line",
    },
    ErrorPage {
        code: "GR0313",
        cause: "a template uses a variable that is not defined, or an operation its value does not support",
        remedy: "use only the agent's, environment's and model's keys, task, the five uname fields and the call counters",
    },
    ErrorPage {
        code: "GR0314",
        cause: "model.action_regex does not compile, uses look-around or has more than one group",
        remedy: "use at most one capturing group, and no look-around or back-references",
    },
    ErrorPage {
        code: "GR0315",
        cause: "a reply or a command result reached the agent when it had not asked for one: a defect of the caller",
        remedy: "report it with the rollout's log",
    },
];
