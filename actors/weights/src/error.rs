//! What can go wrong with weights, with a stable code each.

use std::path::{Path, PathBuf};

use greenroom_core::ErrorPage;
use greenroom_messages::WeightVersion;
use greenroom_messages::weights::WeightFailure;

/// An error of publishing or applying weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// A file could not be read or written (GR0801).
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// A checkpoint is not a whole Hugging Face directory with safetensors (GR0802).
    #[error("{path} is no usable checkpoint: {reason}")]
    Checkpoint {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A payload or manifest is damaged (GR0803).
    #[error("{what} is damaged: {reason}")]
    Damaged {
        /// Which part of which version.
        what: String,
        /// How that was noticed.
        reason: String,
    },
    /// A version is not with the carrier (GR0804).
    #[error("weight version {version} is not published")]
    Unpublished {
        /// The version.
        version: WeightVersion,
    },
    /// No chain of versions leads from what is held to what is wanted (GR0805).
    #[error("no chain of published versions leads to {version}")]
    NoChain {
        /// The wanted version.
        version: WeightVersion,
    },
    /// A fault was injected by a test (GR0806).
    #[error("injected fault at {point}")]
    Injected {
        /// The fault point.
        point: &'static str,
    },
    /// The node of the publisher did not give what was asked for (GR0808).
    #[error("{publisher}: {reason}")]
    Remote {
        /// Who was asked.
        publisher: String,
        /// What happened.
        reason: String,
    },
    /// The work panicked (GR0807).
    #[error("{what} panicked; see the log")]
    Panicked {
        /// Which work.
        what: &'static str,
    },
}

impl WeightsError {
    pub(crate) fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File { path: path.to_owned(), reason: error.to_string() }
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::File { .. } => "GR0801",
            Self::Checkpoint { .. } => "GR0802",
            Self::Damaged { .. } => "GR0803",
            Self::Unpublished { .. } => "GR0804",
            Self::NoChain { .. } => "GR0805",
            Self::Injected { .. } => "GR0806",
            Self::Panicked { .. } => "GR0807",
            Self::Remote { .. } => "GR0808",
        }
    }
}

impl From<WeightsError> for WeightFailure {
    fn from(error: WeightsError) -> Self {
        Self { code: error.code().to_owned(), message: error.to_string() }
    }
}

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0801",
        cause: "a file of the weights could not be read or written",
        remedy: "the message names the file and the system's reason: often a full disk or missing permission",
    },
    ErrorPage {
        code: "GR0802",
        cause: "a checkpoint to be published is incomplete or its safetensors header cannot be read",
        remedy: "a Hugging Face directory needs *.safetensors, and every file that its index names; fetch it again",
    },
    ErrorPage {
        code: "GR0803",
        cause: "published weights do not have the checksum their manifest promises",
        remedy: "nothing was applied; look for a failing disk or network volume. The next full version heals it",
    },
    ErrorPage {
        code: "GR0804",
        cause: "a receiver was asked for a version that nobody has committed",
        remedy: "see the table `weight_versions` of run.db; a version is committed when its manifest is there",
    },
    ErrorPage {
        code: "GR0805",
        cause: "the deltas between a receiver's version and the wanted one are gone and no full version is left",
        remedy: "publish again: the next version is full where no receiver has acknowledged a base",
    },
    ErrorPage { code: "GR0806", cause: "a test injected this fault", remedy: "unset GREENROOM_FAULTS" },
    ErrorPage {
        code: "GR0807",
        cause: "publishing or applying weights panicked: a defect",
        remedy: "the log holds the place; keep the run directory and report it",
    },
    ErrorPage {
        code: "GR0808",
        cause: "the publisher's node did not answer, or its data plane did not give the bytes",
        remedy: "see whether that node is alive and its data plane's port can be reached; the receiver tries again with the next update",
    },
];
