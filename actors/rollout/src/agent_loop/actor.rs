//! The AgentLoop actor: ractor glue around an episode.

use std::sync::Arc;

use greenroom_core::Address;
use greenroom_messages::rollout::RolloutManagerMessage;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::{EpisodeSetting, Progress, episode};
use crate::manager::Issue;

/// One rollout's loop. Killing it ends the episode where it is and releases what it holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct AgentLoop;

/// What an AgentLoop starts with.
#[derive(Debug)]
pub struct AgentLoopArguments {
    /// What all episodes share.
    pub setting: Arc<EpisodeSetting>,
    /// Which rollout, of which task.
    pub issue: Issue,
    /// Where others see how far it is.
    pub progress: Progress,
    /// Who is told of its end, once.
    pub manager: Address<RolloutManagerMessage>,
}

/// Messages of an AgentLoop.
#[derive(Debug)]
pub enum AgentLoopMessage {
    /// From itself, once: play the episode.
    Play,
}

greenroom_core::local_message!(AgentLoopMessage);

impl Actor for AgentLoop {
    type Msg = AgentLoopMessage;
    type State = AgentLoopArguments;
    type Arguments = AgentLoopArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        myself.send_message(AgentLoopMessage::Play)?;
        Ok(arguments)
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let AgentLoopMessage::Play = message;
        let finished = episode::play(&state.setting, &state.issue, &state.progress).await;
        if let Err(gone) = state.manager.cast(RolloutManagerMessage::Finished(Box::new(finished))) {
            tracing::warn!(rollout = %state.issue.rollout, %gone, "a finished rollout has nobody to hear of it");
        }
        myself.stop(None);
        Ok(())
    }
}
