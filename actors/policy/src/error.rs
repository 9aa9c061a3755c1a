//! What can go wrong in this room, with stable codes GR06xx.
//!
//! Two families: [`PolicyError`] for configurations, checkpoints and the network, [`GenerationError`] for requests to the
//! generator. Every text names the input, the place in it and what to do.

use std::path::PathBuf;

use greenroom_core::ErrorPage;

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

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0601",
        cause: "a file of a model cannot be read or written",
        remedy: "the message names file and reason: check that it exists, its permissions and the free space",
    },
    ErrorPage {
        code: "GR0602",
        cause: "config.json is broken, or describes a model that would be computed wrongly",
        remedy: "use a dense Qwen2, Qwen2.5, Qwen3 or Llama model; remove a key only if you know that it is a mere note",
    },
    ErrorPage {
        code: "GR0603",
        cause: "a weight file or its index is truncated or inconsistent, or holds other tensors than config.json promises",
        remedy: "fetch or write the checkpoint again; the message names file and tensor",
    },
    ErrorPage {
        code: "GR0604",
        cause: "tensors or sizes given to the network do not fit together",
        remedy: "this is a mistake in the calling program: the message says what was expected",
    },
    ErrorPage {
        code: "GR0605",
        cause: "libtorch refused an operation, most often for want of memory or for a token id outside the vocabulary",
        remedy: "read libtorch's words in the message; lower the token budget if memory ran out",
    },
    ErrorPage {
        code: "GR0620",
        cause: "a sampling parameter is out of range",
        remedy: "the message names the parameter and the accepted range",
    },
    ErrorPage {
        code: "GR0621",
        cause: "a prompt is empty or holds a token id outside the vocabulary",
        remedy: "use the tokenizer that belongs to the served model",
    },
    ErrorPage {
        code: "GR0622",
        cause: "prompt, or prompt and output together, are longer than the context",
        remedy: "lower max_new_tokens or shorten the prompt; the message says what fits",
    },
    ErrorPage {
        code: "GR0623",
        cause: "a request has the same id as one that is still alive",
        remedy: "use a fresh id for each request, or wait until the first has ended",
    },
    ErrorPage {
        code: "GR0624",
        cause: "stop strings were given to a generator that has no tokenizer",
        remedy: "give stop_token_ids, or start the engine with a tokenizer",
    },
    ErrorPage {
        code: "GR0625",
        cause: "the prefix cache cannot be emptied while requests need it",
        remedy: "wait until they have ended, or pause with mode abort or retract first",
    },
    ErrorPage {
        code: "GR0626",
        cause: "new weights were refused; the old ones serve on",
        remedy: "the message names what is wrong with the new checkpoint; publish it again",
    },
    ErrorPage {
        code: "GR0627",
        cause: "the model has no weight of the name asked for",
        remedy: "use the names of the checkpoint, such as model.layers.0.mlp.down_proj.weight",
    },
    ErrorPage {
        code: "GR0628",
        cause: "a forward pass failed, and the requests that took part in it ended with an abort",
        remedy: "read libtorch's words in the message; if the weights are not finite, load a good checkpoint",
    },
    ErrorPage {
        code: "GR0629",
        cause: "the generator thread has ended",
        remedy: "it was shut down, or died of a defect that the log shows; start the engine again",
    },
];
