//! The Conductor: ractor glue over [`Schedule`] and the books of open batches.
//!
//! It starts what the schedule says, as tasks whose results come back as messages, writes every fact into the run database
//! before it acts on it, and ends the run: with a summary, or with the part that failed and why. A crash of the actor, or
//! of the process, is answered by [`resume_point`]: nothing is kept in memory that the database does not know.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::Seam;
use greenroom_messages::run::{ConductorMessage, RunStatus};
use greenroom_messages::trainer::{TrainReport, WarmStart, WarmStartReport};
use greenroom_messages::{BatchId, RunId};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::watch;

use crate::conductor::ConductorState;
pub use crate::policy_step::ConductorParts;
use crate::policy_step::{Found, Taken};
use crate::{Database, RunConfig, RunDirectory, RunError, RunSummary};

const TICK: Duration = Duration::from_secs(1);

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEnd {
    /// All steps are made.
    Completed(RunSummary),
    /// Somebody stopped it; it can be resumed.
    Stopped(RunSummary),
    /// A part failed for good; it can be resumed when that is mended.
    Failed(String),
}

/// What the Conductor starts with; cloneable, so that a supervisor can start it again.
#[derive(Clone)]
pub struct ConductorArguments {
    /// The run.
    pub run: RunId,
    /// The schedule's settings.
    pub config: RunConfig,
    /// The parts it speaks to.
    pub parts: ConductorParts,
    /// The run database.
    pub database: Database,
    /// The run's directory; `None` in a simulation, which keeps no files.
    pub directory: Option<RunDirectory>,
    /// The run's directory as the trainer and the publisher name it: checkpoints and exports lie there. The same as
    /// `directory` in one process; empty where they have a directory of their own, on another node.
    pub trainer_root: PathBuf,
    /// Demonstrations for the warm start, if there is to be one.
    pub warm_start: Option<WarmStart>,
    /// Training tasks that an evaluation measures.
    pub evaluation_tasks: u32,
    /// Held-out tasks; 0 where the run has none.
    pub held_out_tasks: u32,
    /// Time and randomness.
    pub seam: Seam,
    /// Told how the run stands, for displays.
    pub progress: watch::Sender<RunStatus>,
    /// Told lines for people: one per step and measurement.
    pub talk: Arc<dyn Fn(&str) + Send + Sync>,
    /// Told once when the run ends.
    pub on_end: Arc<dyn Fn(RunEnd) + Send + Sync>,
}

impl fmt::Debug for ConductorArguments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ConductorArguments").field("run", &self.run).finish_non_exhaustive()
    }
}

/// What reaches the Conductor.
#[derive(Debug)]
pub enum ConductorInput {
    /// A message from another actor.
    Message(ConductorMessage),
    /// The trainer holds the newest sound checkpoint of the resumed run.
    Loaded(Result<Found, RunError>),
    /// The initial policy is saved.
    Prepared(Result<WarmStartReport, RunError>),
    /// The warm start is so far, 0 to 1.
    Learning(f32),
    /// The RolloutManager took a batch, or did not.
    Accepted(BatchId, Result<(), RunError>),
    /// A step is trained and saved.
    Trained(u64, Result<TrainReport, RunError>),
    /// The engines serve a version; those that do not, and why, are named.
    Published(u64, Result<Taken, RunError>),
    /// Time to start again what failed.
    Retry,
    /// Time to look at the clock.
    Tick,
}

greenroom_core::local_message!(ConductorInput);

impl From<ConductorMessage> for ConductorInput {
    fn from(message: ConductorMessage) -> Self {
        Self::Message(message)
    }
}

/// The actor.
#[derive(Debug, Default)]
pub struct Conductor;

impl Actor for Conductor {
    type Msg = ConductorInput;
    type State = ConductorState;
    type Arguments = ConductorArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let state = ConductorState::resume(arguments, myself.clone())?;
        myself.send_interval(TICK, || ConductorInput::Tick);
        Ok(state)
    }

    async fn post_start(&self, _: ActorRef<Self::Msg>, state: &mut Self::State) -> Result<(), ActorProcessingErr> {
        state.begin()?;
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        input: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if state.has_ended() {
            return Ok(());
        }
        let handled = match input {
            ConductorInput::Message(ConductorMessage::GroupFinished(group)) => state.on_group(*group),
            ConductorInput::Message(ConductorMessage::Stop(mode)) => state.on_stop(mode),
            ConductorInput::Message(ConductorMessage::Hold(what, held, reply)) => state.on_hold(what, held, reply),
            ConductorInput::Message(ConductorMessage::Republish) => state.on_republish(),
            ConductorInput::Message(ConductorMessage::Set(key, value, reply)) => {
                reply.send(state.set(&key, value));
                Ok(())
            }
            ConductorInput::Message(ConductorMessage::Settings(reply)) => {
                reply.send(state.settings());
                Ok(())
            }
            ConductorInput::Message(ConductorMessage::Status(reply)) => {
                reply.send(state.status());
                Ok(())
            }
            ConductorInput::Message(ConductorMessage::Subscribe(subscription, reply)) => {
                state.on_subscribe(subscription);
                reply.send(state.status());
                Ok(())
            }
            ConductorInput::Loaded(result) => state.on_loaded(result),
            ConductorInput::Prepared(result) => state.on_prepared(result),
            ConductorInput::Learning(progress) => state.on_learning(progress),
            ConductorInput::Accepted(batch, result) => state.on_accepted(batch, result),
            ConductorInput::Trained(step, result) => state.on_trained(step, result),
            ConductorInput::Published(version, result) => state.on_published(version, result),
            ConductorInput::Retry => state.on_retry(),
            ConductorInput::Tick => state.on_tick(),
        };
        if let Err(error) = handled {
            state.fail(&error);
        }
        if state.has_ended() {
            myself.stop(Some("the run has ended".to_owned()));
        }
        Ok(())
    }
}
