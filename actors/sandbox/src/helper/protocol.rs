//! What greenroom and a box's init say to each other over their socket.
//!
//! One frame is: u32 LE length of a JSON header, u32 LE length of a payload, header, payload. Strictly one request, one
//! reply, except for [`Reply::Expired`], which init sends unasked as its last words. Greenroom trusts what init says: the
//! commands of a box run without privileges and cannot reach init's memory or socket.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::{BoxLimits, Isolation, WorkTreeStore};

/// A header longer than this is a broken peer.
pub(crate) const HEADER_LIMIT_BYTES: u32 = 16 << 20;
/// A payload longer than this is a broken peer (files and outputs are limited well below).
pub(crate) const PAYLOAD_LIMIT_BYTES: u32 = 1 << 30;

/// A time from a request as a duration; a year stands for all that is longer, which no clock overflows on.
pub(crate) fn bounded_duration(wait_ms: u64) -> Duration {
    Duration::from_millis(wait_ms.min(366 * 24 * 3_600_000))
}

/// All that a helper must know to make a box.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BoxSetup {
    pub box_id: String,
    pub isolation: Isolation,
    /// The box's own directory on the host.
    pub box_dir: PathBuf,
    /// Copied into the work tree; nothing is copied when absent.
    pub source_dir: Option<PathBuf>,
    /// The work tree's path inside the box.
    pub workdir: PathBuf,
    pub read_only_paths: Vec<PathBuf>,
    pub work_tree_store: WorkTreeStore,
    pub limits: BoxLimits,
    /// The whole environment of every command, before a request's own entries.
    pub env: BTreeMap<String, String>,
    pub lifetime_ms: u64,
    /// The host user that boxes run as when greenroom itself is root.
    pub box_user_id: u32,
}

/// What greenroom asks of a box.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Exec(Exec),
    /// The payload is the content.
    PutFile {
        path: String,
        mode: u32,
    },
    ReadFile {
        path: String,
        limit_bytes: u64,
    },
    Renew {
        lifetime_ms: u64,
    },
}

/// One command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Exec {
    pub shell: String,
    pub command: String,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub timeout_ms: u64,
    pub output_limit_bytes: u64,
}

/// What a box answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Ready,
    SetupFailed {
        stage: String,
        detail: String,
        namespaces_refused: bool,
        /// Whether the next box of the same image will fail in the same way.
        lasting: bool,
    },
    /// The payload is the output that was kept.
    Executed(Executed),
    FilePut,
    /// The payload is the content.
    FileRead,
    FileFailed {
        path: String,
        detail: String,
    },
    Renewed,
    Expired,
}

/// How a command ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Executed {
    pub returncode: i32,
    pub dropped_bytes: u64,
    /// Kind and text, as Python would name them.
    pub exception: Option<(String, String)>,
    pub elapsed_ms: u64,
}

/// A whole frame as bytes.
pub(crate) fn encode(header: &impl Serialize, payload: &[u8]) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(header)?;
    let (header_length, payload_length) = (json.len() as u64, payload.len() as u64);
    if header_length > u64::from(HEADER_LIMIT_BYTES) || payload_length > u64::from(PAYLOAD_LIMIT_BYTES) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the request is too large for a box"));
    }
    let mut frame = Vec::with_capacity(8 + json.len() + payload.len());
    frame.extend((header_length as u32).to_le_bytes());
    frame.extend((payload_length as u32).to_le_bytes());
    frame.extend(json);
    frame.extend(payload);
    Ok(frame)
}

/// The two lengths at the head of a frame, checked.
pub(crate) fn decode_lengths(head: [u8; 8]) -> io::Result<(usize, usize)> {
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (header, payload) = (word(0), word(4));
    if header > HEADER_LIMIT_BYTES || payload > PAYLOAD_LIMIT_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of a box is larger than any can be"));
    }
    Ok((header as usize, payload as usize))
}

/// The helper's end of the socket.
pub(crate) struct Channel {
    stream: UnixStream,
}

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(crate) fn receive_setup(&mut self) -> io::Result<BoxSetup> {
        Ok(self.receive()?.0)
    }

    /// Blocks for one whole frame; greenroom writes a frame in one go.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<(T, Vec<u8>)> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head)?;
        let (header_length, payload_length) = decode_lengths(head)?;
        let mut header = vec![0; header_length];
        self.stream.read_exact(&mut header)?;
        let mut payload = vec![0; payload_length];
        self.stream.read_exact(&mut payload)?;
        Ok((serde_json::from_slice(&header)?, payload))
    }

    pub(crate) fn send(&mut self, reply: &Reply, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&encode(reply, payload)?)
    }
}
