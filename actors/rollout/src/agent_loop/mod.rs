//! One episode: claim a sandbox, set it up, let the agent act turn by turn, grade what it left in a fresh one, report.
//!
//! An [`AgentLoop`] is a local actor, one per rollout, whose one message is the whole episode; its parts are the agent
//! ([`crate::agent`]), the token history ([`crate::tokens`]) and the grader ([`crate::grading`]), all pure. Every failure
//! has its outcome: what the policy did is `Completed` or `Truncated` and graded, what the infrastructure did is
//! `InfraFailed` with the part that failed. Ending the actor at any moment (guard, cancellation, panic) releases the
//! sandbox and the engine, because their handles do so when they are dropped.

mod actor;
mod engine;
mod episode;
mod grading;
mod life;
mod observation;
mod progress;
mod sandbox;
mod trajectory;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use greenroom_core::{Address, Seam};
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_tokens::{ChatTemplate, Tokenizer};

use crate::RolloutConfig;
use crate::agent::{AgentDefinition, HostFacts};

pub use actor::{AgentLoop, AgentLoopArguments, AgentLoopMessage};
pub use life::may_follow;
pub use progress::Progress;

/// What all episodes of a run share.
#[derive(Clone, Debug)]
pub struct EpisodeSetting {
    /// The settings.
    pub config: RolloutConfig,
    /// The agent, limits already those of the settings.
    pub definition: Arc<AgentDefinition>,
    /// What prompts may state about the host.
    pub host: HostFacts,
    /// The policy's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The policy's chat template.
    pub template: Arc<ChatTemplate>,
    /// The fleet.
    pub engines: Address<EnginePoolMessage>,
    /// The sandboxes, by image.
    pub sandboxes: BTreeMap<String, Address<SandboxPoolMessage>>,
    /// The run's history.
    pub journal: Address<JournalMessage>,
    /// Where trajectory files are written, if they are.
    pub trajectories: Option<PathBuf>,
    /// Time and randomness.
    pub seam: Seam,
}

impl EpisodeSetting {
    /// Tells the Journal. A journal that is gone ends the run elsewhere; an episode goes on.
    pub(crate) fn record(&self, event: RunEvent) {
        if let Err(gone) = self.journal.cast(JournalMessage::Record(event)) {
            tracing::warn!(%gone, "an event of a rollout was not recorded");
        }
    }
}
