//! The protocol between shells and the desk: the service of a run's controller that people look and steer through.
//!
//! A look changes nothing and may be repeated. Steering needs the role `operator` where certificates are used, and is
//! written into the run's history before it is done. All answers are plain data; times that end in `_at_ms` are dates,
//! milliseconds since 1970, other `_ms` are durations.

use greenroom_core::Reply;
use serde::{Deserialize, Serialize};

use crate::engine::EngineSpec;
use crate::run::StopMode;
use crate::{EngineId, RolloutId};

/// Messages to the desk. From shells.
#[derive(Debug, Serialize, Deserialize)]
pub enum DeskMessage {
    /// Show something. Repeatable.
    Look(Look, Reply<Result<Sight, DeskRefusal>>),
    /// Do something; the answer says what was done. Repeatable.
    Steer(Steer, Reply<Result<String, DeskRefusal>>),
}

greenroom_core::local_message!(DeskMessage);

/// Why the desk does not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum DeskRefusal {
    /// Whoever asks may only look.
    #[error("{who} is {role}: steering needs a certificate of the role operator")]
    NeedsOperator {
        /// Who asked.
        who: String,
        /// What its certificate lets it do, with its article.
        role: String,
    },
    /// It cannot be done, for this reason.
    #[error("{reason}")]
    Cannot {
        /// The reason and the remedy.
        reason: String,
    },
    /// Too much is asked at once.
    #[error("the desk answers {limit} questions at a time, and has them: ask again")]
    Busy {
        /// How many it answers at a time.
        limit: u32,
    },
}

/// What can be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look {
    /// The run on one screen.
    Status,
    /// The nodes.
    Nodes,
    /// Every actor of the run, by node.
    Actors,
    /// The fleet.
    Engines,
    /// The pools of sandboxes, by node.
    Pools,
    /// Rollouts: those that are under way, or those in one state or of one outcome.
    Rollouts {
        /// A state or an outcome.
        state: Option<String>,
        /// Only those that were issued at least so long ago.
        older_than_ms: u64,
    },
    /// Claimed sandboxes.
    Leases,
    /// Who holds which weights.
    Weights,
    /// The settings that may change while the run goes on.
    Settings,
    /// What can be named: for completion.
    Names,
    /// Whether engines and their hosts hold the weights that were published.
    Checksums,
    /// Events.
    Events {
        /// Those with larger numbers only; `None` for the last ones.
        after: Option<u64>,
        /// At most so many.
        limit: u32,
    },
    /// All that one service or engine says of itself.
    Inspect(String),
    /// The whole history of one rollout.
    Why(RolloutId),
    /// What the run's database says to one query that only reads.
    Sql(String),
    /// Files for whoever is to find out what went wrong; secrets are taken out.
    Bundle,
}

/// What was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Sight {
    /// Of [`Look::Status`].
    Status(Box<StatusSight>),
    /// Of [`Look::Nodes`].
    Nodes(Vec<NodeSight>),
    /// Of [`Look::Actors`].
    Actors(Vec<ActorSight>),
    /// Of [`Look::Engines`].
    Engines(Vec<EngineSight>),
    /// Of [`Look::Pools`].
    Pools(Vec<PoolSight>),
    /// Of [`Look::Rollouts`].
    Rollouts(Vec<RolloutSight>),
    /// Of [`Look::Leases`].
    Leases(Vec<LeaseSight>),
    /// Of [`Look::Weights`].
    Weights(Vec<WeightSight>),
    /// Of [`Look::Settings`].
    Settings(Vec<SettingSight>),
    /// Of [`Look::Checksums`].
    Checksums(Vec<ChecksumSight>),
    /// Of [`Look::Names`].
    Names(NamesSight),
    /// Of [`Look::Events`], in their order.
    Events(Vec<EventSight>),
    /// Of [`Look::Inspect`].
    Inspect(InspectSight),
    /// Of [`Look::Why`], in order of time.
    Why(Vec<WhyLine>),
    /// Of [`Look::Sql`].
    Sql(SqlAnswer),
    /// Of [`Look::Bundle`]: names and texts.
    Bundle(Vec<(String, String)>),
}

/// A run on one screen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusSight {
    /// The run.
    pub run: String,
    /// The last committed step.
    pub step: u64,
    /// The steps it is to make.
    pub steps: u64,
    /// What is going on, in words.
    pub phase: String,
    /// Groups finished of the batch under way.
    pub groups_finished: u32,
    /// Groups of the batch under way.
    pub groups: u32,
    /// Mean reward of the last trained batch.
    pub reward: Option<f32>,
    /// Mean reward of the evaluation before training.
    pub eval_before: Option<f32>,
    /// Whether an operator holds training.
    pub training_paused: bool,
    /// Whether an operator holds rollouts.
    pub rollouts_paused: bool,
    /// Whether the node that rolls out is drained, and no other one does.
    pub rollouts_drained: bool,
    /// Rollouts that run.
    pub rollouts_running: u32,
    /// Rollouts that are not admitted yet.
    pub rollouts_queued: u32,
    /// Rollouts that ended since their manager started.
    pub rollouts_ended: u64,
    /// How many of those under way are in which state, in the run's database.
    pub rollout_states: Vec<(String, u32)>,
    /// Engines in the fleet.
    pub engines: u32,
    /// Those that serve.
    pub engines_serving: u32,
    /// Turns in flight at engines.
    pub turns_in_flight: u32,
    /// Turns that wait for an engine.
    pub turns_queued: u32,
    /// Claimed sandboxes.
    pub leases: u32,
    /// Sandboxes that are ready to be claimed.
    pub boxes_warm: u32,
    /// Claims that wait for a sandbox.
    pub claims_waiting: u32,
    /// The newest published weights.
    pub weights: Option<u64>,
    /// Nodes that are up, shells not counted.
    pub nodes_up: u32,
    /// What holds the run up at present, in one sentence.
    pub bottleneck: String,
    /// Parts that gave no answer, each with the reason.
    pub unanswered: Vec<String>,
}

/// A node, as the controller sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeSight {
    /// Its name.
    pub node: String,
    /// `alive`, `suspect`, `dead` or `left`.
    pub state: String,
    /// The roles it plays.
    pub roles: Vec<String>,
    /// How much it has to do, in words: rollouts that run, turns in flight of how many, claimed sandboxes, the trainer's step.
    pub load: String,
    /// What is still under way on a node that is drained; `idle` when nothing is.
    pub drained: Option<String>,
    /// Which start of the node this is.
    pub incarnation: u64,
    /// How long ago it was last heard of.
    pub heard_ago_ms: u64,
    /// How far its clock is ahead of the controller's.
    pub clock_skew_ms: Option<i64>,
    /// How long a heartbeat takes to it and back.
    pub round_trip_ms: Option<f64>,
    /// The version it was built from.
    pub version: String,
    /// The role of its certificate.
    pub certificate: Option<String>,
    /// For how many days more its certificate holds.
    pub certificate_days: Option<i64>,
    /// Free bytes where its state lies.
    pub disk_free_bytes: Option<u64>,
    /// All bytes there.
    pub disk_bytes: Option<u64>,
    /// Its process.
    pub pid: Option<u32>,
    /// Where it can be dialled; empty for a shell.
    pub address: String,
    /// The services it offers.
    pub services: Vec<String>,
}

/// An actor of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorSight {
    /// The node that it runs on.
    pub node: String,
    /// Its name.
    pub actor: String,
    /// Who supervises it.
    pub under: String,
    /// Where it is in its life; of an AgentLoop, what it waits for.
    pub state: String,
    /// For how long it has been there.
    pub for_ms: u64,
    /// How often it was started again, where it is.
    pub restarts: Option<u64>,
    /// What it does, or what befell it, in words.
    pub doing: String,
}

/// An engine of the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineSight {
    /// Its name.
    pub engine: EngineId,
    /// Where it is in its life.
    pub state: String,
    /// The weights it confirmed.
    pub version: Option<u64>,
    /// How many versions it is behind the newest published one.
    pub lag: Option<u64>,
    /// Turns in flight.
    pub in_flight: u32,
    /// How many may be.
    pub max_in_flight: u32,
    /// The context length, once known.
    pub context_tokens: Option<u32>,
    /// Its address.
    pub url: String,
    /// The last thing that went wrong.
    pub trouble: Option<String>,
}

/// The sandboxes of one image on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSight {
    /// The node.
    pub node: String,
    /// The image.
    pub image: String,
    /// Boxes ready to be claimed.
    pub warm: u32,
    /// Boxes being made.
    pub creating: u32,
    /// Boxes claimed.
    pub leased: u32,
    /// Claims that wait.
    pub waiting: u32,
    /// Boxes made since the start.
    pub created: u64,
    /// Failed creations since the start.
    pub failed: u64,
    /// Why it gave no answer, if it did not.
    pub trouble: Option<String>,
}

/// A rollout, as the run's database has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutSight {
    /// The rollout.
    pub rollout: String,
    /// Where it is in its life.
    pub state: String,
    /// Its task.
    pub task: String,
    /// How long ago it was issued.
    pub age_ms: u64,
    /// Turns generated so far.
    pub turns: u64,
    /// Who generated the last one.
    pub engine: Option<String>,
    /// How it ended.
    pub outcome: Option<String>,
    /// Its reward.
    pub reward: Option<f64>,
}

/// A claimed sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseSight {
    /// The lease.
    pub lease: u64,
    /// Who holds it.
    pub rollout: String,
    /// The image.
    pub image: String,
    /// The box.
    pub sandbox: String,
    /// How long ago it was claimed.
    pub age_ms: u64,
    /// Whether the box was ready before.
    pub warm: bool,
    /// How long the claim waited.
    pub waited_ms: u64,
}

/// Who holds which weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightSight {
    /// `publisher`, `receiver` or `engine`.
    pub kind: String,
    /// Its name.
    pub holder: String,
    /// The version's number.
    pub version: Option<u64>,
    /// How many versions it is behind the newest published one.
    pub lag: Option<u64>,
    /// Where an engine is in its life; empty for others.
    pub state: String,
}

/// A setting that may change while the run goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingSight {
    /// Its key.
    pub key: String,
    /// Its value at present; `None` where the part that reads it gave no answer.
    pub value: Option<u64>,
    /// What the configuration says, which counts again when the part that reads it is started anew.
    pub configured: Option<u64>,
    /// What it means, and from when on a change counts.
    pub meaning: String,
}

/// Whether a holder of weights holds those that were published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChecksumSight {
    /// `receiver`: the checksum of all its tensors, as it was when the version was applied; `engine`: a sample of the numbers
    /// that it holds now.
    pub kind: String,
    /// Its name.
    pub holder: String,
    /// The version's number.
    pub version: Option<u64>,
    /// `same`, `different` or `not_compared`.
    pub found: String,
    /// What differs, with the tensor's name; or why nothing was compared.
    pub detail: String,
}

/// What can be named in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesSight {
    /// Nodes that are up, shells left out.
    pub nodes: Vec<String>,
    /// Engines of the fleet.
    pub engines: Vec<String>,
    /// Services.
    pub services: Vec<String>,
    /// Rollouts: those under way, then the newest of those that have ended.
    pub rollouts: Vec<String>,
}

/// An event of the run's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventSight {
    /// Its number.
    pub seq: u64,
    /// When.
    pub at_ms: u64,
    /// Its kind.
    pub event: String,
    /// All of it, as JSON.
    pub body: String,
}

/// What a service says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectSight {
    /// Its name.
    pub service: String,
    /// The nodes that offer it.
    pub nodes: Vec<String>,
    /// Its state, as JSON.
    pub state: String,
}

/// One thing that befell a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyLine {
    /// When.
    pub at_ms: u64,
    /// What, in words.
    pub text: String,
}

/// What the database says to a query.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SqlAnswer {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
    /// Whether there was more than may be answered.
    pub more: bool,
}

/// One value of a database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Cell {
    /// None.
    Null,
    /// A whole number.
    Integer(i64),
    /// A number.
    Real(f64),
    /// A text; for bytes, how many there are.
    Text(String),
}

/// What can be done to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Steer {
    /// Hold rollouts or training, or let them go on.
    Hold {
        /// What.
        what: Held,
        /// Whether it is held from now on.
        held: bool,
    },
    /// Give an engine or a node no new work, or give it work again.
    Drain {
        /// The engine's or the node's name.
        what: String,
        /// Whether it is drained from now on.
        drained: bool,
    },
    /// One more engine.
    AddEngine(EngineSpec),
    /// Drain an engine and forget it.
    RemoveEngine(EngineId),
    /// Change a setting while the run goes on.
    Set {
        /// Its key, such as `rollout.max_running`.
        key: String,
        /// Its value, as a text.
        value: String,
    },
    /// End one rollout as cancelled.
    Cancel(RolloutId),
    /// Bring the present weights to the engines again.
    Publish,
    /// Save the trainer's state.
    Checkpoint,
    /// End the run.
    Stop(StopMode),
}

/// What can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The admission of rollouts.
    Rollouts,
    /// Optimizer steps.
    Training,
}

impl Held {
    /// Its name, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollouts => "rollouts",
            Self::Training => "training",
        }
    }

    /// What people are told while it is held.
    pub fn notice(self) -> String {
        let name = self.name();
        format!("an operator holds {name}: `resume {name}` goes on with it")
    }
}

impl std::fmt::Display for Steer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hold { what, held } => {
                let verb = if *held { "pause" } else { "resume" };
                write!(formatter, "{verb} {}", what.name())
            }
            Self::Drain { what, drained: true } => write!(formatter, "drain {what}"),
            Self::Drain { what, drained: false } => write!(formatter, "undrain {what}"),
            Self::AddEngine(spec) => write!(formatter, "add-engine {} {}", spec.engine, spec.url),
            Self::RemoveEngine(engine) => write!(formatter, "rm-engine {engine}"),
            Self::Set { key, value } => write!(formatter, "set {key} {value}"),
            Self::Cancel(rollout) => write!(formatter, "cancel {rollout}"),
            Self::Publish => formatter.write_str("publish"),
            Self::Checkpoint => formatter.write_str("checkpoint"),
            Self::Stop(StopMode::AfterStep) => formatter.write_str("stop --after-step"),
            Self::Stop(StopMode::Now) => formatter.write_str("stop --now"),
        }
    }
}
