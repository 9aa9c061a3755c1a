//! What can go wrong while tasks are made.

use std::path::{Path, PathBuf};

use greenroom_core::ErrorPage;

use crate::agent::AgentError;

/// Tasks could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The built-in content contradicts itself (GR0330).
    #[error("built-in content, {place}: {reason}: mend the file under config/quickstart")]
    Content {
        /// File and line or name.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A program that is needed is missing, failed or took too long (GR0331).
    #[error("`{command}` failed ({reason}): git and python3 must be installed and work from a terminal")]
    Program {
        /// The command.
        command: String,
        /// Exit status and the end of its output.
        reason: String,
    },
    /// A task does not hold what it promises (GR0332).
    #[error("task {task} is not usable: {reason}")]
    Check {
        /// The task.
        task: String,
        /// Which promise broke.
        reason: String,
    },
    /// A file or folder cannot be read or written (GR0333).
    #[error("{path}: {reason}: choose another folder, or make room and give write access")]
    File {
        /// The path.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The tokenizer could not be trained (GR0334).
    #[error("the tokenizer could not be made: {reason}")]
    Tokenizer {
        /// What the library said.
        reason: String,
    },
    /// The Python that should run tests cannot (GR0335).
    #[error("the Python {python}: {reason}")]
    Python {
        /// As it was named.
        python: PathBuf,
        /// What it lacks, and what to do.
        reason: String,
    },
    /// A project cannot be fetched or used (GR0336).
    #[error("project {package}: {reason}")]
    Package {
        /// As `name==version`.
        package: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The agent file does not fit (its own codes).
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl MakeError {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Content { .. } => "GR0330",
            Self::Program { .. } => "GR0331",
            Self::Check { .. } => "GR0332",
            Self::File { .. } => "GR0333",
            Self::Tokenizer { .. } => "GR0334",
            Self::Python { .. } => "GR0335",
            Self::Package { .. } => "GR0336",
            Self::Agent(_) => "GR0311",
        }
    }

    pub(super) fn content(place: impl Into<String>, reason: impl ToString) -> Self {
        Self::Content { place: place.into(), reason: reason.to_string() }
    }

    pub(super) fn file(path: &Path, reason: impl ToString) -> Self {
        Self::File { path: path.to_owned(), reason: reason.to_string() }
    }

    pub(super) fn python(python: &Path, reason: impl Into<String>) -> Self {
        Self::Python { python: python.to_owned(), reason: reason.into() }
    }

    pub(super) fn check(task: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Check { task: task.into(), reason: reason.into() }
    }
}

/// The pages of these codes.
pub const MAKE_ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0330",
        cause: "the quickstart's own content (projects, bugs, commands, agent file) contradicts itself",
        remedy: "the message names file and line under config/quickstart; it was edited, or this is a defect",
    },
    ErrorPage {
        code: "GR0331",
        cause: "git, python3, sh or timeout is missing, failed, or took too long while tasks were made",
        remedy: "install git, python3 and coreutils and try the command of the message in a terminal",
    },
    ErrorPage {
        code: "GR0332",
        cause: "a made task does not hold what it promises: the fix must earn 1, doing nothing 0, in every run",
        remedy: "the message says which promise broke; a machine under heavy load may need another try",
    },
    ErrorPage {
        code: "GR0333",
        cause: "a folder for tasks cannot be written, or holds something that was not made here",
        remedy: "choose an empty folder with some free space",
    },
    ErrorPage {
        code: "GR0334",
        cause: "the quickstart's tokenizer could not be trained from its text",
        remedy: "this is a defect of the build; report the message",
    },
    ErrorPage {
        code: "GR0335",
        cause: "the Python that should run the tests of projects does not run, or lacks pip or pytest",
        remedy: "name another with --python, or leave it away: an environment with pytest is then made from python3",
    },
    ErrorPage {
        code: "GR0336",
        cause: "a project from the package index cannot be fetched at that version, or its own tests cannot be used",
        remedy: "take a version that has a source distribution with tests that need nothing but pytest",
    },
];
