//! A whole run on one machine: every actor of it, introduced to each other.
//!
//! [`Run::start`] reads and checks everything that can be wrong before anything is begun, then starts the actors under one
//! supervisor. [`Run::wait`] gives the end: completed, stopped, or failed with the part and the reason. Whatever happens,
//! [`Run::wait`] then takes the actors down in order, each with a deadline, and leaves no sandbox behind.

mod actor;
mod actors;
pub(crate) mod data;
pub mod display;
#[cfg(feature = "torch")]
pub(crate) mod embedded;
pub(crate) mod end;
pub(crate) mod history;
pub(crate) mod inputs;
pub(crate) mod model;
mod place;
pub(crate) mod preparation;

pub use actor::{RunActor, RunActorState, RunArguments, RunMessage};
pub use data::{dataset, images_of};
#[cfg(feature = "torch")]
pub use embedded::device;
pub use model::{ModelUse, check_model};
#[cfg(feature = "cluster")]
pub(crate) use place::check_name;
pub use place::{RunPlace, check_history, check_not_lost, completed};

use std::sync::Arc;

use greenroom_core::{Deadline, ask};
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::run::{ConductorMessage, JournalMessage, RunStatus, StopMode};
use greenroom_run::{RunDirectory, RunEnd};
use tokio::sync::{oneshot, watch};

use crate::config::Config;
use crate::down::{self, LAST_WORDS_MS};
use actors::RunningActors;
use end::End;

/// A line for people, wherever they are.
pub type Talk = Arc<dyn Fn(&str) + Send + Sync>;

/// A run that is under way.
pub struct Run {
    actors: RunningActors,
    directory: RunDirectory,
    progress: watch::Receiver<RunStatus>,
    ended: oneshot::Receiver<RunEnd>,
}

impl Run {
    /// Checks everything and starts the run.
    ///
    /// # Errors
    /// Whatever is wrong with the configuration and what it names, with its code; nothing is begun then.
    pub async fn start(config: Config, place: RunPlace, talk: Talk) -> anyhow::Result<Self> {
        Self::start_under(config, place, talk, None).await
    }

    /// The same, with its actors linked under another one.
    async fn start_under(
        config: Config,
        place: RunPlace,
        talk: Talk,
        parent: Option<ractor::ActorCell>,
    ) -> anyhow::Result<Self> {
        let prepared = preparation::prepare(config, &place, &talk).await?;
        let says = talk.clone();
        let (end, ended) = End::new();
        let (progress_sender, progress) = watch::channel(RunStatus::default());
        let (directory, text) = (prepared.directory.clone(), toml::to_string_pretty(&prepared.config)?);
        let started = actors::start(prepared, progress_sender, talk, end, parent).await;
        let actors = started.inspect_err(|_| preparation::abandon(directory.clone()))?;
        // a resumed run keeps its configuration until another one is known to work; a new one has it already
        if !directory.is_new() {
            directory.replace("config.toml", text.as_bytes())?;
        }
        history::watch(&directory.database(), progress.clone(), says);
        Ok(Self { actors, directory, progress, ended })
    }

    /// The run's directory.
    pub fn directory(&self) -> &RunDirectory {
        &self.directory
    }

    /// How the run stands, as it changes.
    pub fn progress(&self) -> watch::Receiver<RunStatus> {
        self.progress.clone()
    }

    /// The Conductor: to stop the run, or to ask how it stands.
    pub fn conductor(&self) -> greenroom_core::Address<ConductorMessage> {
        self.actors.conductor.clone()
    }

    /// Waits for the end and takes the actors down.
    pub async fn wait(self) -> RunEnd {
        let end = self.ended.await.unwrap_or_else(|_| RunEnd::Failed("the Conductor ended without a word".to_owned()));
        self.actors.stop().await;
        // whoever goes on with the run in this same process need not wait for the last clone of the directory
        self.directory.release();
        end
    }

    /// Tells the run to stop; [`Run::wait`] then gives the end.
    pub fn stop(&self, mode: StopMode) {
        // a Conductor that is gone has told the end already
        let _ = self.actors.conductor.cast(ConductorMessage::Stop(mode));
    }
}

impl RunningActors {
    async fn stop(self) {
        let deadline = || Deadline::after_ms(LAST_WORDS_MS);
        if let Err(error) = ask(&self.engines, deadline(), EnginePoolMessage::Shutdown).await {
            tracing::warn!(%error, "the engines' pool was not shut down in time");
        }
        down::drain_pools(self.sandboxes.values()).await;
        if let Err(error) = ask(&self.journal, deadline(), JournalMessage::Flush).await {
            tracing::warn!(%error, "the last events may not be in the run database");
        }
        down::stop_actors(&self.supervisor, "the run has ended").await;
        #[cfg(feature = "torch")]
        down::shut_down_engines(self.embedded).await;
    }
}
