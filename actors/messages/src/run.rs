//! The protocol of the Conductor and the Journal, and the events that make up a run's history.

use greenroom_core::{Address, Reply};
use serde::{Deserialize, Serialize};

use crate::engine::{EngineState, FinishReason};
use crate::rollout::{FinishedGroup, RolloutState};
use crate::steer::Held;
use crate::{BatchId, EngineId, LeaseId, RolloutId, RunId, Step, TaskId, WeightVersion};

/// Messages to the Conductor.
#[derive(Debug, Serialize, Deserialize)]
pub enum ConductorMessage {
    /// From the RolloutManager, once per group: it finished.
    GroupFinished(Box<FinishedGroup>),
    /// From the shell or a signal: end the run. Repeatable; `Now` overrides `AfterStep`.
    Stop(StopMode),
    /// From the shell: hold this, or let it go on; holds also when the Conductor or the RolloutManager is started again.
    /// Answers when that is written down and done, or why it cannot be. Repeatable.
    Hold(Held, bool, Reply<Result<(), String>>),
    /// From the shell: bring the present weights to the engines again, as soon as nothing generates. Repeatable.
    Republish,
    /// From the shell: a [hot key](crate::setting::HOT_KEYS) of `run` has this value from now on, until the Conductor is
    /// started again; or why it cannot. Repeatable.
    Set(String, u64, Reply<Result<(), String>>),
    /// From the shell: the present values of those keys. Repeatable.
    Settings(Reply<Vec<(String, u64)>>),
    /// From the shell and the live display: how the run stands.
    Status(Reply<RunStatus>),
    /// From anybody: tell this address of every step that is finished from now on, until it leads nowhere. Answers how the
    /// run stands. A Conductor that was started again knows no subscribers, so this is repeated every few seconds; a
    /// subscription of the same name takes the place of the one before.
    Subscribe(Subscription, Reply<RunStatus>),
}

greenroom_core::local_message!(ConductorMessage);

/// Who wants to be told of finished steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Subscription {
    /// The subscriber's name, one of its own.
    pub subscriber: String,
    /// Where events go.
    pub to: Address<StepFinished>,
}

/// A step was trained and committed. Events are told at most once: one that is lost shows by a gap in the steps, and is in
/// the run database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepFinished {
    /// The run.
    pub run: RunId,
    /// The step, from 1.
    pub step: Step,
    /// The version of the weights that it made; engines serve it a moment later.
    pub version: WeightVersion,
    /// Mean reward of the batch's rollouts.
    pub reward: f64,
    /// pass@1 of the batch.
    pub pass_at_1: f64,
}

impl StepFinished {
    /// The event of a step, whose version of the weights has its number.
    pub fn new(run: RunId, step: Step, reward: f64, pass_at_1: f64) -> Self {
        let version = WeightVersion { run: run.clone(), number: step.0 };
        Self { run, step, version, reward, pass_at_1 }
    }
}

/// When a run ends that was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// After the step under way; the run can be resumed.
    AfterStep,
    /// Now; what is in flight is re-issued by a resume.
    Now,
}

/// How a run stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// What is going on, in words: `rolling out batch 4`, `training step 4`, …
    pub phase: String,
    /// The last committed step.
    pub step: Step,
    /// The steps the run is to make.
    pub steps: u64,
    /// Groups finished of the batch under way.
    pub groups_finished: u32,
    /// Groups of the batch under way.
    pub groups: u32,
    /// Mean reward of the last trained batch.
    pub reward: Option<f32>,
    /// Mean reward of the evaluation before training.
    pub eval_before: Option<f32>,
    /// Whether the admission of rollouts is held.
    pub rollouts_paused: bool,
    /// Whether training is held.
    pub training_paused: bool,
    /// Whether the run has ended.
    pub ended: bool,
}

/// Messages to the Journal, the one writer of the run database.
#[derive(Debug, Serialize, Deserialize)]
pub enum JournalMessage {
    /// From any actor: something happened. Written in order of arrival, in small transactions.
    Record(#[serde(with = "as_json")] RunEvent),
    /// From whoever ends the run: answers when everything recorded before is written. Repeatable.
    Flush(Reply<()>),
    /// From another node: what happened there. Answers when it is written; what was written before is not written again, so
    /// it is repeatable.
    RecordAll(EventsFrom, Reply<()>),
}

greenroom_core::local_message!(JournalMessage);

/// Events of one node, in order.
#[derive(Debug, Serialize, Deserialize)]
pub struct EventsFrom {
    /// The node and its incarnation.
    pub source: String,
    /// The number of the first event here; a source numbers its events from 1.
    pub first: u64,
    /// The events.
    pub events: Vec<NumberedEvent>,
}

/// An event as it crosses to another node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NumberedEvent(#[serde(with = "as_json")] pub RunEvent);

/// Something that happened. Dates are added by the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum RunEvent {
    /// A rollout was admitted.
    RolloutIssued {
        /// The rollout.
        rollout: RolloutId,
        /// Its task.
        task: TaskId,
    },
    /// A rollout went on in its life.
    RolloutMoved {
        /// The rollout.
        rollout: RolloutId,
        /// Where it is now.
        state: RolloutState,
    },
    /// A turn of a rollout ended.
    TurnFinished {
        /// The rollout.
        rollout: RolloutId,
        /// The turn, from 0.
        turn: u32,
        /// Who generated it.
        engine: EngineId,
        /// Prompt tokens.
        prompt_tokens: u32,
        /// New tokens.
        new_tokens: u32,
        /// Why generation ended.
        finish: FinishReason,
        /// The number of the newest weights that took part.
        version: Option<u64>,
        /// Generating, milliseconds.
        generate_ms: u64,
    },
    /// A rollout ended.
    RolloutEnded {
        /// The rollout.
        rollout: RolloutId,
        /// `completed`, `truncated`, `stale`, `cancelled` or `infra_failed`.
        outcome: String,
        /// The reward, when graded.
        reward: Option<f32>,
        /// Exit status of the agent, or the failure in words.
        detail: String,
        /// Turns taken.
        turns: u32,
    },
    /// A sandbox was claimed.
    LeaseClaimed {
        /// The lease.
        lease: LeaseId,
        /// For whom.
        rollout: RolloutId,
        /// The image.
        image: String,
        /// The box: two leases that overlap in time never share one.
        sandbox: String,
        /// Whether it was ready before.
        warm: bool,
        /// How long the claim waited, milliseconds.
        waited_ms: u64,
    },
    /// A sandbox is destroyed; nothing of it is left.
    LeaseEnded {
        /// The lease.
        lease: LeaseId,
        /// `released`, `expired`, `lost`, `owner_gone`.
        reason: String,
    },
    /// An engine went on in its life.
    EngineMoved {
        /// The engine.
        engine: EngineId,
        /// Where it is now.
        state: EngineState,
        /// The weights it confirmed.
        version: Option<WeightVersion>,
        /// What went wrong, if anything.
        trouble: Option<String>,
    },
    /// A version of the weights was committed by the publisher.
    WeightsPublished {
        /// The version.
        version: WeightVersion,
        /// `full` or `delta`.
        mode: String,
        /// Bytes written.
        bytes: u64,
        /// Checksum of all tensors.
        root_hash: String,
    },
    /// A receiver holds a version.
    WeightsApplied {
        /// Who.
        receiver: String,
        /// The version.
        version: WeightVersion,
        /// Checksum of all tensors.
        root_hash: String,
    },
    /// The Conductor went on.
    PhaseChanged {
        /// What it does now, in words.
        phase: String,
        /// The batch concerned.
        batch: Option<BatchId>,
    },
    /// A question had no answer: who asked whom, and what became of it.
    AskFailed {
        /// Who asked.
        asker: String,
        /// What happened.
        error: String,
    },
    /// A person steers the run; written before it is done.
    Steered {
        /// Who: the shell's node, and the role of its certificate.
        by: String,
        /// What, as the shell's verb.
        what: String,
    },
    /// Something a person should know.
    Note {
        /// Who says so.
        source: String,
        /// What.
        text: String,
    },
}

/// An event names its kind beside its fields, which only a format that describes itself can read back.
mod as_json {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::RunEvent;

    pub(super) fn serialize<S: Serializer>(event: &RunEvent, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&serde_json::to_string(event).map_err(S::Error::custom)?)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RunEvent, D::Error> {
        serde_json::from_str(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
