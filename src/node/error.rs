//! Why a node cannot take part, or stops doing so, with a stable code each.

use std::path::PathBuf;

use greenroom_core::ErrorPage;
use greenroom_messages::node::RunOver;

/// A node cannot take part in its run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The node's file cannot be used (GR0920).
    #[error("{path}: {reason}", path = path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The gang was not complete in time (GR0921).
    #[error("the gang was not complete within {waited_s} s: {missing}")]
    Gang {
        /// How long the controller waited, seconds.
        waited_s: u64,
        /// What is missing, in words.
        missing: String,
    },
    /// No controller answered in time (GR0922).
    #[error("no controller of the run answered within {waited_s} s")]
    NoController {
        /// How long it was waited for, seconds.
        waited_s: u64,
    },
    /// The controller does not want this node (GR0923).
    #[error("the controller refuses this node: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// Another process has taken this node's name (GR0924).
    #[error("a later start of this node (incarnation {by}) is in the cluster: this process ends")]
    Fenced {
        /// The later incarnation.
        by: u64,
    },
    /// A part of this node failed too often (GR0925).
    #[error("{reason}")]
    Part {
        /// Which, and how.
        reason: String,
    },
    /// The run has ended: there is nothing to take part in (GR0926).
    #[error("the run has ended: {outcome}", outcome = over.outcome)]
    Over {
        /// How it ended.
        over: RunOver,
    },
}

impl NodeError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config { .. } => "GR0920",
            Self::Gang { .. } => "GR0921",
            Self::NoController { .. } => "GR0922",
            Self::Refused { .. } => "GR0923",
            Self::Fenced { .. } => "GR0924",
            Self::Part { .. } => "GR0925",
            Self::Over { .. } => "GR0926",
        }
    }
}

/// The pages of nodes' codes.
pub const NODE_ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0920",
        cause: "a node's file cannot be read, or says something that cannot be",
        remedy: "the message names the key; the README shows a whole file",
    },
    ErrorPage {
        code: "GR0921",
        cause: "the controller waited for nodes of every required role, and some did not come",
        remedy: "the message names the missing roles: look at those nodes' logs, or raise gang_wait_s",
    },
    ErrorPage {
        code: "GR0922",
        cause: "a node found no controller of its run",
        remedy: "see that the controller runs, that cluster.seeds leads to a node of its cluster, and that both have the same cookie and authority",
    },
    ErrorPage {
        code: "GR0923",
        cause: "a node's settings of the run differ from the controller's, or it is of another run",
        remedy: "give every node the same configuration files and data; the message names the first difference",
    },
    ErrorPage {
        code: "GR0924",
        cause: "two processes have been started with the same node name; the later one counts",
        remedy: "give every node its own cluster.node; if this process was replaced on purpose, nothing is to be done",
    },
    ErrorPage {
        code: "GR0925",
        cause: "an actor of this node failed more often than its restart intensity allows",
        remedy: "the message holds the last failure; mend its cause and start the node again: the run waits for it",
    },
    ErrorPage {
        code: "GR0926",
        cause: "the run of this node was over when the node was started: its controller says so, or the file `ended` in its state_dir",
        remedy: "nothing is to be done; to begin a run of this name anew, start the controller first, or remove that file",
    },
];
