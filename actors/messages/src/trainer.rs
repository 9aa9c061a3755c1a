//! The protocol of the Trainer's leader.

use greenroom_core::Reply;
use serde::{Deserialize, Serialize};

use crate::rollout::Sample;
use crate::{GroupId, RolloutId, Step, WeightVersion};

/// Messages to the Trainer. All from the Conductor. The trainer works on one at a time, in order.
#[derive(Debug, Serialize, Deserialize)]
pub enum TrainerMessage {
    /// One optimizer step on these groups. Not repeatable without a `Load` before.
    Train(TrainBatch, Reply<Result<TrainReport, TrainerFailure>>),
    /// A warm start by supervised learning. Not repeatable without a `Load` before. When nobody waits for the answer any
    /// more it stops at its next optimizer step.
    WarmStart(WarmStart, Reply<Result<WarmStartReport, TrainerFailure>>),
    /// Write the weights as a Hugging Face directory (atomically: it exists only when complete). Repeatable.
    Export(ExportWeights, Reply<Result<(), TrainerFailure>>),
    /// Write weights, optimizer and random state to a directory (atomically). Repeatable.
    Save(SaveCheckpoint, Reply<Result<(), TrainerFailure>>),
    /// The run needs these directories of checkpoints and exports no more: remove them. Repeatable.
    Forget(Vec<String>),
    /// Replace everything by a checkpoint; answers with the step it was made after. Repeatable.
    Load(String, Reply<Result<Step, TrainerFailure>>),
    /// How it stands; answered at once, also during a step.
    Status(Reply<TrainerStatus>),
}

greenroom_core::local_message!(TrainerMessage);

/// The rollouts of one group that may be trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainGroup {
    /// The group.
    pub group: GroupId,
    /// Its trainable rollouts.
    pub rollouts: Vec<TrainRollout>,
}

/// One trainable rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainRollout {
    /// The rollout.
    pub rollout: RolloutId,
    /// Its reward.
    pub reward: f32,
    /// Its sequences.
    pub samples: Vec<Sample>,
}

/// The input of one optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainBatch {
    /// The step that this makes, from 1: one more than the trainer's own.
    pub step: Step,
    /// The groups.
    pub groups: Vec<TrainGroup>,
    /// The temperature at which the tokens were sampled.
    pub temperature: f32,
}

/// What one optimizer step did. Means are over trained tokens unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainReport {
    /// Policy loss.
    pub loss: f32,
    /// Norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Learning rate used.
    pub learning_rate: f32,
    /// Entropy of the policy, nats.
    pub entropy: f32,
    /// Low-variance KL to the reference, nats; 0 when not computed.
    pub kl: f32,
    /// Fraction of tokens whose ratio was clipped.
    pub clip_fraction: f32,
    /// Mean absolute difference between the trainer's and the engine's log-probabilities, nats.
    pub logprob_mismatch: f32,
    /// Tokens with mask 1 that were trained on.
    pub tokens_trained: u64,
    /// All tokens that passed through the network.
    pub tokens_total: u64,
    /// Groups whose rewards were all equal: they give no gradient.
    pub groups_without_signal: u32,
    /// Whether the optimizer step was left out because the gradient was not finite.
    pub skipped: bool,
    /// Wall time, milliseconds.
    pub elapsed_ms: u64,
}

/// Demonstrations for a warm start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WarmStart {
    /// Token sequences with the mask of the tokens to learn; log-probabilities are ignored.
    pub samples: Vec<Sample>,
    /// Passes over them.
    pub epochs: u32,
    /// Tokens per optimizer step.
    pub tokens_per_step: u32,
    /// Peak learning rate.
    pub learning_rate: f32,
    /// Seed of the order.
    pub seed: u64,
}

/// What a warm start did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WarmStartReport {
    /// Optimizer steps.
    pub steps: u32,
    /// Mean loss of the first tenth of the steps (at least one), nats per token.
    pub first_loss: f32,
    /// Mean loss of the last tenth.
    pub last_loss: f32,
    /// Tokens learnt from, all passes.
    pub tokens: u64,
    /// Wall time, milliseconds.
    pub elapsed_ms: u64,
}

/// A wish for the weights as files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportWeights {
    /// The version they are.
    pub version: WeightVersion,
    /// The directory to be made; must not exist or be an export of the same version. A relative one, here and elsewhere,
    /// lies in the trainer's own directory.
    pub dir: String,
}

/// A wish for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveCheckpoint {
    /// The step it is made after; must be the trainer's own.
    pub step: Step,
    /// The directory to be made.
    pub dir: String,
}

/// The trainer could not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct TrainerFailure {
    /// The stable code, `GR07xx`.
    pub code: String,
    /// What happened, in words.
    pub message: String,
}

/// How the trainer stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainerStatus {
    /// The last finished step.
    pub step: Step,
    /// Opened and nothing more: it holds neither a checkpoint nor anything it learnt, as after a restart. It must be
    /// brought to where the run is by `Load` (or `WarmStart` and `Save`) before it trains or exports.
    pub fresh: bool,
    /// What it does now, in words; empty when idle.
    pub activity: String,
    /// How far that is, 0 to 1.
    pub progress: f32,
}
