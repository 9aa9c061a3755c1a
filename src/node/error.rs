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
    #[error("no controller of the run answered within {waited_s} s ({seen})")]
    NoController {
        /// How long it was waited for, seconds.
        waited_s: u64,
        /// What came of dialling the seeds, and of asking the controller.
        seen: String,
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
    /// The run has another controller (GR0927).
    #[error("the run has a controller already: the node {node} at {address}, and this node has that role, too")]
    SecondController {
        /// The other one.
        node: String,
        /// Where it can be reached.
        address: String,
    },
    /// The node's own directory cannot be used (GR0928).
    #[error("state_dir {path}: {reason}", path = path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// Why not, and what to do.
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
            Self::SecondController { .. } => "GR0927",
            Self::StateDir { .. } => "GR0928",
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
        remedy: "the message says what each of cluster.seeds answered: see that the controller runs, that a seed leads to a node of its run, and that both have the same cookie and authority",
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
    ErrorPage {
        code: "GR0927",
        cause: "two nodes of one run have the role controller; the one that does not lead yet, or that came later, gives way",
        remedy: "take `controller` out of this node's roles, or end the other node first; one that died is held for dead after cluster.dead_ms. Nodes obey the controller with which they entered the run until they are started again",
    },
    ErrorPage {
        code: "GR0928",
        cause: "the directory of a node's own cannot be made or written, or another process works in it",
        remedy: "give every node a state_dir of its own, in a place where it may write; end the other process if it is an earlier start of this node",
    },
    ErrorPage {
        code: "GR0929",
        cause: "the threads of a node's actors did not get to what waited for them: the machine is overloaded or was stopped, or something blocks them",
        remedy: "others hold a node for dead when it is silent for cluster.dead_ms: give it more processors, or raise its actor_threads where that one is busy all the time (top -H shows it as `actors`)",
    },
];
