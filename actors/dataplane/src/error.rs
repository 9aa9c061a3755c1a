//! What can go wrong with bulk bytes, with a stable code each.
//!
//! What a single peer does wrong is a [`PeerFailure`]: the next peer is asked, and only when none is left does it become
//! part of an error.

use std::path::{Path, PathBuf};

use greenroom_core::ErrorPage;
use greenroom_identity::Refusal;

use crate::{ObjectId, WireError};

/// An error of the data plane.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataplaneError {
    /// A file could not be read or written (GR1101).
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// Bytes do not have the hash or the form that was promised, and nobody has better ones (GR1102).
    #[error("{what} is damaged: {reason}")]
    Damaged {
        /// What.
        what: String,
        /// How that was noticed.
        reason: String,
    },
    /// None of the peers has the object (GR1103).
    #[error("none of {peers} has the object {object}")]
    Unknown {
        /// The object.
        object: ObjectId,
        /// Who was asked.
        peers: String,
    },
    /// The deadline passed first (GR1104).
    #[error("{object} did not arrive in time: {held} of {chunks} chunks are here; {told}")]
    Deadline {
        /// The object.
        object: ObjectId,
        /// How many of its chunks are here; the next fetch asks for the others only.
        held: u32,
        /// How many it has; 0 while its manifest was not here.
        chunks: u32,
        /// What each peer said last.
        told: String,
    },
    /// The object is larger than was allowed (GR1105).
    #[error("{object} has {bytes} bytes, more than the {limit_bytes} allowed")]
    TooLarge {
        /// The object.
        object: ObjectId,
        /// Its length.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The store's memory is full (GR1106).
    #[error(
        "{bytes} more bytes do not fit into the {limit_bytes} bytes of memory for bulk data, {held_bytes} of which are taken"
    )]
    MemoryFull {
        /// How much was wanted.
        bytes: u64,
        /// How much is taken.
        held_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A setting cannot be (GR1107).
    #[error("{key} {reason}")]
    Config {
        /// Which.
        key: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// An address cannot be listened at (GR1108).
    #[error("{address} cannot be listened at: {reason}")]
    Listen {
        /// The address.
        address: String,
        /// The system's reason.
        reason: String,
    },
    /// The object was removed from the store while it was being fetched (GR1109).
    #[error("{object} was removed while it was being fetched")]
    Removed {
        /// The object.
        object: ObjectId,
    },
    /// Every peer was refused, or refused us (GR1110).
    #[error("no peer may be spoken with: {told}")]
    Refused {
        /// What each peer said.
        told: String,
    },
    /// There is no peer that the chosen transport can reach (GR1111).
    #[error("there is nobody to fetch {object} from: {reason}")]
    NoPeer {
        /// The object.
        object: ObjectId,
        /// Why.
        reason: String,
    },
    /// The work panicked (GR1112).
    #[error("{what} panicked; see the log")]
    Panicked {
        /// Which work.
        what: &'static str,
    },
}

impl DataplaneError {
    pub(crate) fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File { path: path.to_owned(), reason: error.to_string() }
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::File { .. } => "GR1101",
            Self::Damaged { .. } => "GR1102",
            Self::Unknown { .. } => "GR1103",
            Self::Deadline { .. } => "GR1104",
            Self::TooLarge { .. } => "GR1105",
            Self::MemoryFull { .. } => "GR1106",
            Self::Config { .. } => "GR1107",
            Self::Listen { .. } => "GR1108",
            Self::Removed { .. } => "GR1109",
            Self::Refused { .. } => "GR1110",
            Self::NoPeer { .. } => "GR1111",
            Self::Panicked { .. } => "GR1112",
        }
    }
}

/// Why one peer gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PeerFailure {
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("was cut off: {0}")]
    Cut(String),
    /// It is well, but has not what was asked for.
    #[error("{0}")]
    Nothing(String),
    #[error("stalled for {0} ms")]
    Stalled(u64),
    /// It is well, but others may give more.
    #[error("gave {0} KiB a second only")]
    Slow(u64),
    #[error("{0}")]
    Refused(Refusal),
    #[error("sent garbage: {0}")]
    Malformed(#[from] WireError),
    #[error("sent damaged bytes: {0}")]
    Damaged(String),
}

impl PeerFailure {
    /// Whether nothing is wrong with the peer or its connection: it only does not give what is wanted now.
    pub(crate) fn is_well(&self) -> bool {
        matches!(self, Self::Nothing(_) | Self::Slow(_))
    }
}

const fn page(code: &'static str, cause: &'static str, remedy: &'static str) -> ErrorPage {
    ErrorPage { code, cause, remedy }
}

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    page(
        "GR1101",
        "a file of the bulk store could not be read or written",
        "the message names the file and the system's reason: often a full disk or missing permission",
    ),
    page(
        "GR1102",
        "bulk bytes do not have the hash they were promised with, and no peer has better ones",
        "nothing of it was used; look for a failing disk or memory on the peers that the log names, and publish again",
    ),
    page(
        "GR1103",
        "an object was asked for that none of the named peers has",
        "it was removed or has expired: ask its owner for a new handle",
    ),
    page(
        "GR1104",
        "an object did not arrive before its deadline",
        "the message says what each peer said last; what did arrive is kept, and the next fetch asks only for the rest",
    ),
    page(
        "GR1105",
        "an object is larger than the one who fetches it allows",
        "raise the limit if the size is meant; else look for who made the handle",
    ),
    page(
        "GR1106",
        "the memory set aside for bulk data is full",
        "objects leave it when they expire: let their users fetch sooner, or raise the limit",
    ),
    page("GR1107", "a setting of the data plane cannot be", "the message names the setting and what it may be"),
    page(
        "GR1108",
        "the data plane cannot listen at its address",
        "the message has the system's reason: the port is taken (TCP and UDP are both needed), or the address is not this host's",
    ),
    page("GR1109", "an object was removed while it was still arriving", "fetch it again if it is still wanted"),
    page(
        "GR1110",
        "no peer that has an object accepts this node, or is accepted by it",
        "the message says why for each; give all nodes certificates of one authority (`greenroom ca issue`)",
    ),
    page(
        "GR1111",
        "there is no peer for the chosen transport",
        "with `transport = \"directory\"` each peer needs a directory that exists here; with the others, an address",
    ),
    page(
        "GR1112",
        "work of the data plane panicked: a defect",
        "the log holds the place; keep the run directory and report it",
    ),
];
