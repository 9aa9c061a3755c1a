//! What is known of a node, and what happens to it.

use greenroom_identity::CertificateRole;
use serde::{Deserialize, Serialize};

use crate::SHELL;

/// Whether a node lives, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It was heard of lately.
    Alive,
    /// It has been silent for `suspect_ms`; what it serves still counts.
    Suspect,
    /// It is held for dead: every question to it has failed.
    Dead,
    /// It said good-bye.
    Left,
}

/// A node of the cluster, as seen from here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Which start of the node this is; a later one is larger.
    pub incarnation: u64,
    /// The roles it plays.
    pub roles: Vec<String>,
    /// Where it can be dialled; empty for a shell.
    pub address: String,
    /// Whether it lives.
    pub state: MemberState,
    /// When that became so, milliseconds since 1970.
    pub since_ms: u64,
    /// The services it offers, sorted.
    pub services: Vec<String>,
    /// The role of its certificate; `None` without TLS.
    pub certificate: Option<CertificateRole>,
    /// The version it was built from.
    pub build: String,
    /// How far its clock is ahead of ours, in milliseconds; includes half a round trip of doubt.
    pub clock_skew_ms: Option<i64>,
    /// When it was last heard of, milliseconds since 1970.
    pub last_heard_ms: u64,
    /// How long its last heartbeat was under way, as the other way round trip half, in milliseconds.
    pub round_trip_ms: Option<f64>,
}

impl Member {
    /// Whether what it serves still counts.
    pub fn is_up(&self) -> bool {
        matches!(self.state, MemberState::Alive | MemberState::Suspect)
    }

    /// Whether it has a part in the run: not a shell, nor a node that only looks.
    pub fn plays_a_role(&self) -> bool {
        self.roles.iter().any(|role| role != SHELL)
    }
}

/// Something that happened to a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MemberEvent {
    /// A node is in: new, restarted, or back after it was held for dead.
    Joined(Member),
    /// A node has been silent for `suspect_ms`.
    Suspect {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: u64,
    },
    /// A suspected node was heard of again in time.
    Recovered {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: u64,
    },
    /// A node is held for dead.
    Died {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: u64,
        /// Why.
        reason: String,
    },
    /// A node said good-bye.
    Left {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: u64,
    },
    /// What a node offers has changed.
    Services {
        /// The node.
        node: String,
        /// All that it offers now, sorted.
        services: Vec<String>,
    },
    /// A peer was not let in, or did not let us in.
    Refused {
        /// Its name where it said one, else its address.
        peer: String,
        /// Why, with the code.
        reason: String,
    },
    /// A newer incarnation of this very node is in the cluster: this one must stop acting. All its lines have ended.
    Fenced {
        /// The newer incarnation.
        by: u64,
    },
}
