//! The protocol between the controller of a run and its nodes.

use greenroom_core::Reply;
use serde::{Deserialize, Serialize};

use crate::RunId;

/// Messages to the controller.
#[derive(Debug, Serialize, Deserialize)]
pub enum ControllerMessage {
    /// From a node that is about to start its roles: is it right here, and what must it know? Repeatable.
    Enlist(Enlist, Reply<Result<Enlisted, String>>),
}

greenroom_core::local_message!(ControllerMessage);

/// A node that wants to take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enlist {
    /// Its name.
    pub node: String,
    /// Its roles.
    pub roles: Vec<String>,
    /// The settings that all nodes must share, as TOML.
    pub settings: String,
}

/// What a node must know of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enlisted {
    /// The run.
    pub run: RunId,
    /// The first number of a block of lease numbers that no other node is given.
    pub first_lease: u64,
}

/// Messages to a node. From the controller and from shells.
#[derive(Debug, Serialize, Deserialize)]
pub enum NodeMessage {
    /// The run has ended: take the roles down and end. Repeatable.
    End {
        /// How the run ended, in words.
        outcome: String,
    },
    /// From the controller: how this node stands, with so many of the last bytes of its log. Repeatable.
    Report(u64, Reply<NodeReport>),
}

greenroom_core::local_message!(NodeMessage);

/// How a node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its process.
    pub pid: u32,
    /// Where it keeps what is its own.
    pub state_dir: String,
    /// Free bytes there, for one who is no administrator; `None` where that cannot be told.
    pub disk_free_bytes: Option<u64>,
    /// All bytes there.
    pub disk_bytes: Option<u64>,
    /// When its certificate ends, milliseconds since 1970; `None` without TLS.
    pub certificate_ends_at_ms: Option<u64>,
    /// The end of its log.
    pub log: String,
}

/// How many lease numbers a block holds.
pub const LEASE_BLOCK: u64 = 1 << 20;
