//! What a maker of sandboxes must offer. The local provider does it with namespaces, the simulation without a machine.
//!
//! Pools and leases know boxes by these two traits only. Implementations keep to three rules: a failure is a
//! [`SandboxError`], never an outcome; a box ends by itself at the end of its lifetime, whatever happens to greenroom; and
//! when [`SandboxBox::destroy`] returns `Ok`, neither processes nor files of the box are left.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use greenroom_messages::sandbox::{ExecOutcome, ExecRequest, SandboxFile};
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;

/// Names and values attached to a box, by which it is found again.
pub type Labels = BTreeMap<String, String>;

/// What a box is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// The image's name: one pool serves one image.
    pub name: String,
    /// A directory of the host whose content each box gets a private copy of, as its work tree. None: an empty one.
    #[serde(default)]
    pub source_dir: Option<PathBuf>,
    /// Where the work tree lies inside the box; absolute, and not below a read-only system path.
    #[serde(default = "default_workdir")]
    pub workdir: PathBuf,
    /// Variables of every command in boxes of this image.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

fn default_workdir() -> PathBuf {
    PathBuf::from("/testbed")
}

impl ImageSpec {
    /// An image with its work tree at `/testbed`.
    pub fn new(name: impl Into<String>, source_dir: Option<PathBuf>) -> Self {
        Self { name: name.into(), source_dir, workdir: default_workdir(), env: BTreeMap::new() }
    }
}

/// A box that a provider knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxSummary {
    /// The box's name, unique in the run.
    pub box_id: String,
    /// Its labels.
    pub labels: Labels,
    /// Whether the greenroom process that made it still lives.
    pub owner_lives: bool,
}

/// What a sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Boxes whose owner is gone, now removed.
    pub removed: Vec<String>,
    /// Boxes that belong to a living greenroom, left alone.
    pub kept: Vec<String>,
    /// Processes that had to be killed.
    pub killed_processes: u32,
}

/// A maker of boxes.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Makes a box that ends by itself after `lifetime_ms`.
    async fn create(
        &self,
        image: &ImageSpec,
        labels: &Labels,
        lifetime_ms: u64,
    ) -> Result<Box<dyn SandboxBox>, SandboxError>;

    /// The boxes that carry all of `labels`.
    async fn list(&self, labels: &Labels) -> Result<Vec<BoxSummary>, SandboxError>;

    /// Removes what greenroom processes that are gone have left behind.
    async fn sweep(&self) -> Result<SweepReport, SandboxError>;
}

/// One box.
#[async_trait]
pub trait SandboxBox: Send + Sync {
    /// The box's name, unique in the run.
    fn box_id(&self) -> &str;

    /// Where the work tree lies for a command, where that is not the image's `workdir`: a box without walls cannot have it there.
    fn workdir(&self) -> Option<String> {
        None
    }

    /// Runs a command. Commands of one box run one after the other.
    async fn exec(&self, request: ExecRequest) -> Result<ExecOutcome, SandboxError>;

    /// Writes files, with their parent directories; a link in a file's place is replaced, not followed.
    async fn put_files(&self, files: Vec<SandboxFile>) -> Result<(), SandboxError>;

    /// Reads a regular file of at most `limit_bytes`.
    async fn read_file(&self, path: &str, limit_bytes: u64) -> Result<Vec<u8>, SandboxError>;

    /// Lets the box live this long from now.
    async fn renew(&self, lifetime_ms: u64) -> Result<(), SandboxError>;

    /// Resolves when the box has ended, by itself (lost, expired) or destroyed, and says how.
    async fn ended(&self) -> SandboxError;

    /// Ends the box; returns when nothing of it is left. Repeatable.
    async fn destroy(&self) -> Result<(), SandboxError>;
}
