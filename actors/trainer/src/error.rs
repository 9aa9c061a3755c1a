//! What can go wrong in a trainer, each with a stable code.
//!
//! Every error leaves the weights and the optimizer as they were before the call, except [`TrainerError::Lost`]: after a
//! panic on the learner's thread nothing about the tensors is known any more, so a checkpoint must be loaded first.

use std::path::PathBuf;

use thiserror::Error;

/// Errors of the trainer; codes `GR0701` to `GR0712`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TrainerError {
    /// A configuration value is out of range or contradicts another one.
    #[error("trainer setting {field}: {reason}")]
    InvalidConfig {
        /// Dotted name of the setting, relative to the trainer's table.
        field: &'static str,
        /// What is wrong with it and what would be right.
        reason: String,
    },

    /// A batch or demonstration does not describe one consistent set of samples.
    #[error("{place}: {reason}")]
    InvalidBatch {
        /// Which rollout or sample.
        place: String,
        /// What is wrong with it.
        reason: String,
    },

    /// One sample has more tokens than a micro-batch may hold; samples are never split.
    #[error(
        "{place} has {tokens} tokens, more than tokens_per_micro_batch = {budget}; raise it or limit the rollout's context"
    )]
    SampleTooLong {
        /// Which sample.
        place: String,
        /// Its length in tokens.
        tokens: usize,
        /// The budget in tokens.
        budget: usize,
    },

    /// A gradient is infinite or not a number. The optimizer step was not applied.
    #[error("gradient of {parameter} is not finite at optimizer step {step}; the step was skipped")]
    NonFiniteGradient {
        /// First parameter (in name order) with such a gradient.
        parameter: String,
        /// Optimizer steps applied before this one.
        step: u64,
    },

    /// A tensor operation failed (shapes, memory, device).
    #[error("tensor operation failed: {detail}")]
    Tensor {
        /// First line of the tensor library's message.
        detail: String,
    },

    /// A file or directory of a checkpoint could not be read or written.
    #[error("checkpoint {path}: {reason}", path = path.display())]
    CheckpointIo {
        /// The path concerned.
        path: PathBuf,
        /// What failed.
        reason: String,
    },

    /// A checkpoint is damaged: a file is missing, a size or checksum is not the manifest's, or a file cannot be parsed.
    #[error("checkpoint {path} is damaged: {reason}", path = path.display())]
    CheckpointDamaged {
        /// The file concerned.
        path: PathBuf,
        /// What does not agree.
        reason: String,
    },

    /// A checkpoint is sound but belongs to another model or configuration.
    #[error("checkpoint {path} does not fit: {reason}", path = path.display())]
    CheckpointMismatch {
        /// The file concerned.
        path: PathBuf,
        /// What differs.
        reason: String,
    },

    /// The policy network could not be loaded, run or written.
    #[error("policy: {detail}")]
    Policy {
        /// The policy's own error with its code.
        detail: String,
    },

    /// The learner's thread panicked earlier, so its state is unknown.
    #[error("the learner lost its state ({cause}); load a checkpoint before training on")]
    Lost {
        /// The panic's message.
        cause: String,
    },

    /// The configured device does not exist or is not usable.
    #[error("device {device}: {reason}")]
    Device {
        /// The configured device.
        device: String,
        /// Why it cannot be used.
        reason: String,
    },

    /// The learner's thread is gone (it could not be started or has been stopped).
    #[error("the learner's thread is not running: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
}

impl TrainerError {
    /// The stable code, for `greenroom explain`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidConfig { .. } => "GR0701",
            Self::InvalidBatch { .. } => "GR0702",
            Self::SampleTooLong { .. } => "GR0703",
            Self::NonFiniteGradient { .. } => "GR0704",
            Self::Tensor { .. } => "GR0705",
            Self::CheckpointIo { .. } => "GR0706",
            Self::CheckpointDamaged { .. } => "GR0707",
            Self::CheckpointMismatch { .. } => "GR0708",
            Self::Policy { .. } => "GR0709",
            Self::Lost { .. } => "GR0710",
            Self::Device { .. } => "GR0711",
            Self::Stopped { .. } => "GR0712",
        }
    }

    pub(crate) fn batch(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidBatch { place: place.into(), reason: reason.into() }
    }

    pub(crate) fn config(field: &'static str, reason: impl Into<String>) -> Self {
        Self::InvalidConfig { field, reason: reason.into() }
    }
}

impl From<tch::TchError> for TrainerError {
    /// Keeps the first line only: the rest is a C++ backtrace.
    fn from(error: tch::TchError) -> Self {
        let text = error.to_string();
        Self::Tensor { detail: text.lines().next().unwrap_or_default().to_owned() }
    }
}
