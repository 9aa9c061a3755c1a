//! What can go wrong between messages and token ids, with a stable code each.

use std::path::{Path, PathBuf};

use greenroom_core::ErrorPage;

/// Messages could not become token ids, or the reverse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokensError {
    /// A file that must be there is not (GR0370).
    #[error("{path} is missing ({reason}): {remedy}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A file is not what its name says (GR0371).
    #[error("{path} cannot be read ({reason}): fetch the model's directory again, or compare its checksums")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer refused a text or a list of ids (GR0372).
    #[error("the tokenizer could not {action}: {reason}")]
    Tokenizer {
        /// What it was asked to do.
        action: &'static str,
        /// What it said.
        reason: String,
    },
    /// The chat template refused these messages (GR0373).
    #[error("the chat template could not be rendered: {reason}")]
    Template {
        /// What it said, with the line of the template.
        reason: String,
    },
}

impl TokensError {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "GR0370",
            Self::Damaged { .. } => "GR0371",
            Self::Tokenizer { .. } => "GR0372",
            Self::Template { .. } => "GR0373",
        }
    }

    pub(crate) fn damaged(path: &Path, reason: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0370",
        cause: "a model's directory has no tokenizer.json or no chat template",
        remedy: "point the configuration at a complete Hugging Face model directory; the message names the file",
    },
    ErrorPage {
        code: "GR0371",
        cause: "a tokenizer or template file is truncated or not of the expected form",
        remedy: "fetch the model's directory again; the message names the file and what is wrong with it",
    },
    ErrorPage {
        code: "GR0372",
        cause: "the tokenizer could not encode a text or decode token ids",
        remedy: "check that tokenizer.json belongs to the model: ids must lie inside its vocabulary",
    },
    ErrorPage {
        code: "GR0373",
        cause: "the model's chat template refused the messages, or uses something that is not supported",
        remedy: "the message holds the template's own words and line; many templates demand alternating roles",
    },
];
