//! How peers and objects are named in messages between nodes.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::ObjectId;

/// Where one holder of objects can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeerAddress {
    /// The node's name, which its certificate must have; without it any node of the authority may answer.
    pub node: Option<String>,
    /// `HOST:PORT` of its server, the same number for TCP and UDP; looked up again each time. Empty without a server.
    pub address: String,
    /// The directory of its store, if it lies on a volume that others may have mounted.
    pub directory: Option<PathBuf>,
}

impl PeerAddress {
    /// A server at `HOST:PORT` whose certificate must have this name.
    pub fn node(name: &str, address: impl fmt::Display) -> Self {
        Self { node: Some(name.to_owned()), address: address.to_string(), directory: None }
    }

    /// A server at `HOST:PORT`, whichever node of the authority it is.
    pub fn at(address: impl fmt::Display) -> Self {
        Self { node: None, address: address.to_string(), directory: None }
    }

    /// A store in a shared directory, without a server.
    pub fn directory(directory: impl Into<PathBuf>) -> Self {
        Self { node: None, address: String::new(), directory: Some(directory.into()) }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.node, &self.directory) {
            (Some(node), _) => write!(formatter, "{node} at {}", self.address),
            (None, Some(directory)) if self.address.is_empty() => write!(formatter, "{}", directory.display()),
            (None, _) => formatter.write_str(&self.address),
        }
    }
}

/// What the control plane passes on instead of the bytes: which object, how large, and who has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectHandle {
    /// The object.
    pub object: ObjectId,
    /// Its length; the fetch allows no more.
    pub bytes: u64,
    /// Who has it, the one to be asked first standing first.
    pub holders: Vec<PeerAddress>,
}
