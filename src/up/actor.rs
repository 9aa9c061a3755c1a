//! A whole run as one actor: a child of somebody else's supervisor.
//!
//! [`RunActor`] starts a [`Run`] under itself, so that who links it has the whole run: the actor ends well when the run was
//! completed or stopped, and fails with the reason when the run failed or its parts gave up. When it is stopped it stops the
//! run at once and takes it down first; when it is killed the run's actors die with it, and a later start goes on from the
//! run database.

use std::fmt;
use std::time::Duration;

use greenroom_core::{Address, Reply, spawn_named};
use greenroom_messages::run::{ConductorMessage, RunStatus, StopMode};
use greenroom_run::RunEnd;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::task::JoinHandle;

use super::{Run, RunPlace, Talk};
use crate::config::Config;

/// How long a run that is stopped with its actor may take to be taken down.
const TAKE_DOWN: Duration = Duration::from_secs(60);

/// The actor of a whole run on one machine; see the module's page.
#[derive(Debug, Default)]
pub struct RunActor;

/// What a [`RunActor`] is started with; cloneable, so that a supervisor can start it again.
#[derive(Clone)]
#[non_exhaustive]
pub struct RunArguments {
    /// The run's settings.
    pub config: Config,
    /// Where it lies.
    pub place: RunPlace,
    /// Go on with the run if it was begun before, as a supervisor that starts the actor again wants.
    pub go_on: bool,
    /// Lines for people.
    pub talk: Talk,
    /// Told of the end: completed, stopped, failed.
    pub on_end: Option<Address<RunEnd>>,
}

impl RunArguments {
    /// A run at this place, which goes on if it was begun before; what it says is logged.
    pub fn new(config: Config, place: RunPlace) -> Self {
        let talk: Talk = std::sync::Arc::new(|line: &str| tracing::info!("{line}"));
        Self { config, place, go_on: true, talk, on_end: None }
    }
}

impl fmt::Debug for RunArguments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RunArguments").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Messages to a [`RunActor`]: what the shell and signals send to a run.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunMessage {
    /// How the run stands. Repeatable.
    Status(Reply<RunStatus>),
    /// End the run; the actor ends with it. Repeatable; `Now` overrides `AfterStep`.
    Stop(StopMode),
    /// Any other message to the run's Conductor, such as a subscription.
    ToConductor(ConductorMessage),
    /// The run has ended. From the actor to itself.
    Ended(RunEnd),
}

greenroom_core::local_message!(RunMessage);

impl From<ConductorMessage> for RunMessage {
    fn from(message: ConductorMessage) -> Self {
        Self::ToConductor(message)
    }
}

/// The state of a running [`RunActor`].
#[derive(Debug)]
pub struct RunActorState {
    conductor: Address<ConductorMessage>,
    on_end: Option<Address<RunEnd>>,
    waiting: Option<JoinHandle<Option<()>>>,
}

impl RunActorState {
    /// Passes a message on; a Conductor that is gone has told the end already.
    fn pass(&self, message: ConductorMessage) {
        let _ = self.conductor.cast(message);
    }
}

impl Actor for RunActor {
    type Msg = RunMessage;
    type State = RunActorState;
    type Arguments = RunArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let RunArguments { config, mut place, go_on, talk, on_end } = arguments;
        place.resume |= go_on && place.path().join("run.db").exists();
        let run = Run::start_under(config, place, talk, Some(myself.get_cell())).await;
        let run = run.map_err(|error| ActorProcessingErr::from(crate::explain::in_words(&error)))?;
        let conductor = run.conductor();
        let waiting = spawn_named("run", async move {
            let end = run.wait().await;
            // an actor that is gone hears of no end
            let _ = myself.send_message(RunMessage::Ended(end));
        });
        Ok(RunActorState { conductor, on_end, waiting: Some(waiting) })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RunMessage::Status(reply) => state.pass(ConductorMessage::Status(reply)),
            RunMessage::Stop(mode) => state.pass(ConductorMessage::Stop(mode)),
            RunMessage::ToConductor(message) => state.pass(message),
            RunMessage::Ended(end) => {
                state.waiting = None;
                if let Some(on_end) = &state.on_end {
                    // whoever wanted to know may be gone
                    let _ = on_end.cast(end.clone());
                }
                match end {
                    RunEnd::Failed(reason) => return Err(reason.into()),
                    RunEnd::Completed(_) => myself.stop(Some("the run is completed".to_owned())),
                    RunEnd::Stopped(_) => myself.stop(Some("the run was stopped".to_owned())),
                }
            }
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Self::Msg>, state: &mut Self::State) -> Result<(), ActorProcessingErr> {
        let Some(waiting) = state.waiting.take() else { return Ok(()) };
        state.pass(ConductorMessage::Stop(StopMode::Now));
        if tokio::time::timeout(TAKE_DOWN, waiting).await.is_err() {
            tracing::warn!("the run was not taken down within {} s", TAKE_DOWN.as_secs());
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        _: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        // how the run's own supervisor ends is told as the run's end
        tracing::debug!(%event, "of the run's supervisor");
        Ok(())
    }
}
