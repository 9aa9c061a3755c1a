//! What can go wrong in this room, with stable codes GR06xx.
//!
//! Two families: [`PolicyError`] for configurations, checkpoints and the network, [`GenerationError`] for requests to the
//! generator. Every text names the input, the place in it and what to do.

use std::path::PathBuf;

/// A model, a checkpoint or a tensor operation is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A file cannot be read or written.
    #[error("cannot {action} {path}: {reason}", path = path.display())]
    File {
        /// `read`, `write`, `rename`, …
        action: &'static str,
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// `config.json` is broken or describes a model that this program would compute wrongly.
    #[error("model configuration {path}: {reason}", path = path.display())]
    Config {
        /// The file, or `<memory>`.
        path: PathBuf,
        /// The key, its value and what is accepted.
        reason: String,
    },
    /// A weight file or its index is truncated or inconsistent, or holds other tensors than the model needs.
    #[error("checkpoint {path}: {reason}", path = path.display())]
    Checkpoint {
        /// The file or directory.
        path: PathBuf,
        /// The tensor and what is wrong with it.
        reason: String,
    },
    /// The caller gave tensors or sizes that do not fit together.
    #[error("wrong input to the network: {0}")]
    Input(String),
    /// libtorch refused an operation.
    #[error("libtorch: {0}")]
    Torch(String),
}

impl PolicyError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::File { .. } => "GR0601",
            Self::Config { .. } => "GR0602",
            Self::Checkpoint { .. } => "GR0603",
            Self::Input(_) => "GR0604",
            Self::Torch(_) => "GR0605",
        }
    }
}

impl From<tch::TchError> for PolicyError {
    /// Keeps the first line: what follows is a C++ backtrace.
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.to_string().lines().next().unwrap_or_default().to_owned())
    }
}

/// A request to the generator cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerationError {
    /// A sampling parameter is out of range.
    #[error("{message}")]
    InvalidParameter {
        /// SGLang's wording.
        message: String,
    },
    /// The prompt is empty or holds an id outside the vocabulary.
    #[error("{message}")]
    InvalidPrompt {
        /// Which id and what is accepted.
        message: String,
    },
    /// Prompt, or prompt and output together, exceed the context.
    #[error("prompt of {prompt_tokens} tokens and {max_new_tokens} new ones exceed the context of {context_length}")]
    TooLong {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// What was asked for on top.
        max_new_tokens: usize,
        /// What fits.
        context_length: usize,
    },
    /// A live request has the same id.
    #[error("duplicate request id {rid}: wait for the first to end or choose another id")]
    DuplicateRequest {
        /// The id.
        rid: String,
    },
    /// Stop strings were given, but the generator was started without a decoder.
    #[error("stop strings need a tokenizer, and this generator was started without one: use stop_token_ids")]
    StopNeedsDecoder,
    /// The cache is in use.
    #[error("flush refused: {running} running and {waiting} waiting requests")]
    Busy {
        /// Requests running or standing still.
        running: usize,
        /// Requests waiting.
        waiting: usize,
    },
    /// The new weights were not taken; the old ones serve on.
    #[error("weights not updated, the old ones serve on: {reason}")]
    UpdateRefused {
        /// The file, the tensor and what is wrong.
        reason: String,
    },
    /// No weight of that name.
    #[error("the model has no weight named {name}")]
    UnknownWeight {
        /// The name asked for.
        name: String,
    },
    /// A forward pass failed; the requests that took part ended with an abort.
    #[error("generation failed: {reason}")]
    Failed {
        /// What the network said.
        reason: String,
    },
    /// The generator thread is gone.
    #[error("the generator has stopped")]
    GeneratorStopped,
}

impl GenerationError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidParameter { .. } => "GR0620",
            Self::InvalidPrompt { .. } => "GR0621",
            Self::TooLong { .. } => "GR0622",
            Self::DuplicateRequest { .. } => "GR0623",
            Self::StopNeedsDecoder => "GR0624",
            Self::Busy { .. } => "GR0625",
            Self::UpdateRefused { .. } => "GR0626",
            Self::UnknownWeight { .. } => "GR0627",
            Self::Failed { .. } => "GR0628",
            Self::GeneratorStopped => "GR0629",
        }
    }
}
