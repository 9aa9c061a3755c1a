//! The protocol between the controller of a run and its nodes.

use greenroom_core::Reply;
use serde::{Deserialize, Serialize};

use crate::RunId;
use crate::steer::ActorSight;

/// Messages to the controller.
#[derive(Debug, Serialize, Deserialize)]
pub enum ControllerMessage {
    /// From a node that is about to start its roles: is it right here, and what must it know? Repeatable.
    Enlist(Enlist, Reply<Result<Enlisted, NotEnlisted>>),
    /// From a node that plays its roles, once to each start of the controller, which may have other settings than the one that
    /// enlisted it: is it still right here? Repeatable.
    Confirm(Enlist, Reply<Result<(), NotEnlisted>>),
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

/// Why a node is not to start its roles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotEnlisted {
    /// It does not fit, for this reason.
    Refused(String),
    /// There is nothing left to do.
    Over(RunOver),
}

/// How a run ended, as its nodes are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOver {
    /// In words: `completed`, `stopped`, `failed: ` and the reason.
    pub outcome: String,
    /// The exit status that every node ends with: 0 completed, 3 stopped, 1 failed.
    pub status: u8,
}

/// Messages to a node. From the controller and from shells.
#[derive(Debug, Serialize, Deserialize)]
pub enum NodeMessage {
    /// From the controller: the run has ended; let what is under way end, for so long at most, then take the roles down and
    /// end. Repeatable: the last word counts, and one that leaves no time ends the node now.
    End {
        /// How the run ended.
        over: RunOver,
        /// How long what is under way may take, milliseconds.
        within_ms: u64,
    },
    /// From the controller: how this node stands, with so many of the last bytes of its log. Repeatable.
    Report(u64, Reply<NodeReport>),
    /// From the controller: take no new work (`true`), or take it again. What is under way goes on. Answers at once, with
    /// what that leaves to be wished for; or why it cannot be. A node that is started again takes work. Repeatable.
    SetDrained(bool, Reply<Result<String, String>>),
    /// From the controller: the actors that run here. Repeatable.
    Actors(Reply<Vec<ActorSight>>),
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
    /// What is still under way on a node that takes no new work; `None` on one that does.
    pub drained: Option<Drained>,
    /// The end of its log.
    pub log: String,
}

/// What is under way on a node that takes no new work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Boxes that are leased, and claims that wait for one.
    pub leases: u32,
    /// Rollouts that run.
    pub rollouts: u32,
}

/// How many lease numbers a block holds.
pub const LEASE_BLOCK: u64 = 1 << 20;
