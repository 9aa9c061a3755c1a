//! The protocol of the RolloutManager, and what a finished rollout is.

use greenroom_core::Reply;
use greenroom_core::codec::Schema;
use serde::{Deserialize, Serialize};

use crate::engine::VersionSpan;
use crate::{BatchId, GroupId, LeaseId, RolloutId, TaskId};

/// Messages to the RolloutManager.
#[derive(Debug, Serialize, Deserialize)]
pub enum RolloutManagerMessage {
    /// From the Conductor: make this batch. The reply says only that it was accepted; each group is then sent to the
    /// Conductor as it finishes. Repeatable: a batch that is under way or finished is not started again.
    StartBatch(StartBatch, Reply<Result<(), RolloutFailure>>),
    /// From the Conductor or the shell: end what is left of a batch; its unfinished groups come back as dropped.
    CancelBatch(BatchId),
    /// From the shell: end one rollout as cancelled.
    CancelRollout(RolloutId, Reply<bool>),
    /// From the shell: hold admission of new rollouts, or let it go on.
    SetPaused(bool),
    /// From the shell: a [hot key](crate::setting::HOT_KEYS) of `rollout` has this value from now on, until the manager is
    /// started again; or why it cannot. Repeatable.
    Set(String, u64, Reply<Result<(), String>>),
    /// From the shell: the present values of those keys. Repeatable.
    Settings(Reply<Vec<(String, u64)>>),
    /// From the node that it runs on: begin no more rollouts (`true`), or begin them again; those that run go on. Where
    /// another manager takes over, groups of which nothing runs are forgotten. Repeatable.
    SetDrained {
        /// Whether it is drained from now on.
        drained: bool,
        /// Whether another manager takes over.
        handed_over: bool,
    },
    /// From the shell: how it stands.
    Status(Reply<RolloutStatus>),
    /// From the shell: the AgentLoops that run. Repeatable.
    Loops(Reply<Vec<LoopStatus>>),
    /// From an AgentLoop, once: how its rollout ended.
    Finished(Box<FinishedRollout>),
}

greenroom_core::local_message!(RolloutManagerMessage);

/// A batch to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartBatch {
    /// The batch.
    pub batch: BatchId,
    /// Where in the (endless, shuffled) order of its data set the batch begins; a pure function of the run's seed.
    pub first_position: u64,
    /// How many groups, one task each.
    pub groups: u32,
    /// Rollouts per group.
    pub samples_per_group: u32,
    /// Softmax temperature.
    pub temperature: f32,
    /// Engines with older weights than this version number may not serve it.
    pub oldest_version: u64,
    /// Groups of this batch that are finished already (a resumed run) and are not made again.
    pub finished_groups: Vec<GroupId>,
    /// The first attempt number to use: one more than any attempt of this batch issued before (a resumed run), so that
    /// no rollout id is ever issued twice.
    pub first_attempt: u32,
}

/// The RolloutManager could not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RolloutFailure {
    /// What happened, in words.
    pub message: String,
}

/// How a rollout ended: exactly one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutOutcome {
    /// The agent ended by itself and was graded.
    Completed,
    /// A limit (turns, tokens, wall time of the agent) ended it; it was graded.
    Truncated,
    /// Its weights were too old when it finished; it is not trained on.
    Stale,
    /// Somebody cancelled it, or the run ended.
    Cancelled,
    /// Infrastructure failed. Never trained on, never a reward.
    InfraFailed(InfraFailure),
}

impl RolloutOutcome {
    /// Whether the trainer may see it.
    pub fn is_trainable(&self) -> bool {
        matches!(self, Self::Completed | Self::Truncated)
    }

    /// A short, stable name for tables: `completed`, `truncated`, `stale`, `cancelled`, `infra_failed`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Truncated => "truncated",
            Self::Stale => "stale",
            Self::Cancelled => "cancelled",
            Self::InfraFailed(_) => "infra_failed",
        }
    }
}

/// What part of the infrastructure failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfraFailure {
    /// The part.
    pub kind: InfraKind,
    /// What happened, in words.
    pub message: String,
}

/// Parts of the infrastructure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InfraKind {
    /// Claiming, losing or outliving a sandbox.
    Sandbox,
    /// The task's set-up command failed.
    SetUp,
    /// Generating a turn.
    Engine,
    /// Grading could not be done (no test ran, the parser found nothing).
    Grading,
    /// The rollout's guard time passed.
    Guard,
    /// The AgentLoop itself failed.
    Agent,
}

impl InfraKind {
    /// The name in the history of a run.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::SetUp => "set_up",
            Self::Engine => "engine",
            Self::Grading => "grading",
            Self::Guard => "guard",
            Self::Agent => "agent",
        }
    }
}

/// A token sequence to train on: one linear history of one rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Token ids: prompt, turns and observations in order. Length T.
    pub tokens: Vec<u32>,
    /// Length T: 1 where the policy sampled the token and it is trained on, else 0.
    #[serde(with = "serde_bytes")]
    pub loss_mask: Vec<u8>,
    /// Length T: the log-probability that the engine returned, in nats; 0 where the mask is 0.
    pub logprobs: Vec<f32>,
    /// Which weights made which tokens: spans over positions in `tokens`, only where the mask is 1.
    pub versions: Vec<VersionSpan>,
}

/// Times of one rollout, in milliseconds; each part is a sum over the rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutTimings {
    /// Waiting for the sandbox in which the agent acts.
    pub claim_ms: u64,
    /// The task's set-up there.
    pub set_up_ms: u64,
    /// Generating.
    pub generate_ms: u64,
    /// The agent's commands.
    pub exec_ms: u64,
    /// How many commands the agent ran.
    pub execs: u32,
    /// Grading: taking the work out of its sandbox, claiming and setting up the one that it is graded in, the tests.
    pub grade_ms: u64,
    /// From issue to end.
    pub total_ms: u64,
}

/// How one rollout ended, with everything learnt from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishedRollout {
    /// The rollout.
    pub rollout: RolloutId,
    /// Its task.
    pub task: TaskId,
    /// The end.
    pub outcome: RolloutOutcome,
    /// The reward; present exactly when the outcome is trainable.
    pub reward: Option<f32>,
    /// What the agent said at its end: `Submitted`, `LimitsExceeded`, …
    pub exit_status: String,
    /// Why the reward is what it is: `tests_not_passed: …`, `change_not_taken: …`; empty where nothing was graded.
    pub graded: String,
    /// The sequences to train on; several where the history forked.
    pub samples: Vec<Sample>,
    /// Turns taken.
    pub turns: u32,
    /// How often the history could not be extended and a new sample was begun.
    pub forks: u32,
    /// The sandbox in which the agent acted, if one was claimed.
    pub lease: Option<LeaseId>,
    /// Whether that sandbox was warm.
    pub warm: bool,
    /// Times.
    pub timings: RolloutTimings,
    /// How long each of the agent's commands took, in order, milliseconds.
    pub exec_calls_ms: Vec<u64>,
}

impl FinishedRollout {
    /// What a table of rollouts says about its end: how the agent ended and why the grade is what it is, or the failure in
    /// words.
    pub fn detail(&self) -> String {
        match &self.outcome {
            RolloutOutcome::InfraFailed(failure) => format!("{}: {}", failure.kind.name(), failure.message),
            _ if self.graded.is_empty() => self.exit_status.clone(),
            _ => format!("{}, {}", self.exit_status, self.graded),
        }
    }
}

/// How a group ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GroupOutcome {
    /// Enough of its rollouts may be trained on.
    Trainable,
    /// Too few could be finished, for this reason; nothing of it is trained on.
    Dropped(String),
}

/// A finished group: every sample of it ended, re-issues included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishedGroup {
    /// The group.
    pub group: GroupId,
    /// Its task.
    pub task: TaskId,
    /// How it ended.
    pub outcome: GroupOutcome,
    /// The last attempt of every sample, in order of samples.
    pub rollouts: Vec<FinishedRollout>,
}

impl Schema for FinishedGroup {
    const SCHEMA: &'static str = "finished-group/1";
}

/// Where a rollout is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// Waits for admission.
    Queued,
    /// Waits for a sandbox.
    Claiming,
    /// Its task is set up in the sandbox.
    SettingUp,
    /// A turn is generated.
    Generating,
    /// A command runs.
    Executing,
    /// It is graded, in a sandbox of its own.
    Grading,
    /// It ended.
    Ended,
}

/// How the RolloutManager stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutStatus {
    /// Whether admission is held.
    pub paused: bool,
    /// Whether its node is drained.
    pub drained: bool,
    /// Rollouts not yet admitted.
    pub queued: u32,
    /// Rollouts that run.
    pub running: u32,
    /// Rollouts that ended since the start, re-issues counted each.
    pub ended: u64,
    /// Groups under way.
    pub groups_open: u32,
}

/// How one AgentLoop stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopStatus {
    /// Its rollout.
    pub rollout: RolloutId,
    /// Its task.
    pub task: TaskId,
    /// Turns generated so far.
    pub turns: u32,
    /// What it waits for: the part of its life that it is in.
    pub state: RolloutState,
    /// For how long it has been there, milliseconds.
    pub for_ms: u64,
    /// How long ago it was started, milliseconds.
    pub age_ms: u64,
}
