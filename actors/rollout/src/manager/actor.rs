//! The RolloutManager actor: starts and ends AgentLoops, keeps the timer, sends what [`ManagerState`] decided.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use greenroom_core::{Address, Seam};
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::rollout::{
    InfraFailure, InfraKind, RolloutFailure, RolloutManagerMessage, RolloutOutcome, StartBatch,
};
use greenroom_messages::run::{ConductorMessage, JournalMessage};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_messages::{Purpose, RolloutId, setting};
use greenroom_tokens::{ChatTemplate, Tokenizer};
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, MessagingErr, SupervisionEvent};
use tokio::task::JoinHandle;
use tokio::time::Duration;

use super::state::{Issue, ManagerEffect, ManagerInput, ManagerLimits, ManagerState};
use crate::agent::{ActionProtocol, AgentDefinition, AgentFile, HostFacts};
use crate::agent_loop::{AgentLoop, AgentLoopArguments, EpisodeSetting, Progress};
use crate::dataset::{Dataset, Task};
use crate::tokens::{TemplateStability, probe_template};
use crate::{RolloutConfig, RolloutError};

/// The actor; one per run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RolloutManager;

/// What a RolloutManager starts with.
#[derive(Clone, Debug)]
pub struct RolloutManagerArguments {
    /// The settings.
    pub config: RolloutConfig,
    /// The tasks by purpose. Evaluation takes the training tasks where it has none of its own.
    pub datasets: BTreeMap<Purpose, Arc<Dataset>>,
    /// The policy's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The policy's chat template.
    pub template: Arc<ChatTemplate>,
    /// The agent; its step limit and time-out are replaced by those of the settings, its cost limit is switched off.
    pub agent: AgentFile,
    /// What prompts may state about the host.
    pub host: HostFacts,
    /// The fleet.
    pub engines: Address<EnginePoolMessage>,
    /// The sandbox pools, by image.
    pub sandboxes: BTreeMap<String, Address<SandboxPoolMessage>>,
    /// Who is told of finished groups.
    pub conductor: Address<ConductorMessage>,
    /// The run's history.
    pub journal: Address<JournalMessage>,
    /// Where trajectory files are written, if they are.
    pub trajectories: Option<PathBuf>,
    /// Time and randomness.
    pub seam: Seam,
}

impl RolloutManagerArguments {
    /// Checks settings, agent, template and pools; the same check is made when the actor starts. Gives what episodes share
    /// and says how the chat template behaves.
    pub fn check(&self) -> Result<(EpisodeSetting, TemplateStability), RolloutError> {
        let problems = self.config.problems();
        if !problems.is_empty() {
            return Err(RolloutError::Config { problems });
        }
        if self.agent.model.protocol == ActionProtocol::ToolCall {
            return Err(RolloutError::ToolCalls);
        }
        for task in self.datasets.values().flat_map(|dataset| dataset.tasks()) {
            if !self.sandboxes.contains_key(&task.image) {
                let pools: Vec<&str> = self.sandboxes.keys().map(String::as_str).collect();
                let (task, image) = (task.id.to_string(), task.image.clone());
                return Err(RolloutError::NoPool { task, image, pools: pools.join(", ") });
            }
        }
        let stability = probe_template(&self.tokenizer, &self.template, &self.config.template_variables)?;
        let mut agent = self.agent.clone();
        agent.agent.step_limit = self.config.max_turns.into();
        agent.agent.cost_limit = 0.0;
        agent.environment.timeout_seconds = (self.config.exec_timeout_ms / 1000).max(1);
        let setting = EpisodeSetting {
            config: self.config.clone(),
            definition: Arc::new(AgentDefinition::new(agent)?),
            host: self.host.clone(),
            tokenizer: self.tokenizer.clone(),
            template: self.template.clone(),
            engines: self.engines.clone(),
            sandboxes: self.sandboxes.clone(),
            journal: self.journal.clone(),
            trajectories: self.trajectories.clone(),
            seam: self.seam.clone(),
        };
        Ok((setting, stability))
    }

    fn dataset(&self, purpose: Purpose) -> Option<&Arc<Dataset>> {
        let fallback = (purpose == Purpose::Evaluate).then_some(Purpose::Train);
        self.datasets.get(&purpose).or_else(|| self.datasets.get(&fallback?))
    }
}

/// Messages of the actor: the published ones, and its own timer.
#[derive(Debug)]
pub enum RolloutManagerInput {
    /// From others.
    Message(RolloutManagerMessage),
    /// From its timer.
    Tick,
    /// From itself: this loop's actor ended, for this reason. Comes after whatever the loop itself has said.
    LoopEnded(ActorId, String),
}

greenroom_core::local_message!(RolloutManagerInput);

impl From<RolloutManagerMessage> for RolloutManagerInput {
    fn from(message: RolloutManagerMessage) -> Self {
        Self::Message(message)
    }
}

/// The state of a running RolloutManager.
pub struct RolloutManagerState {
    arguments: RolloutManagerArguments,
    setting: Arc<EpisodeSetting>,
    state: ManagerState,
    loops: BTreeMap<RolloutId, RunningLoop>,
    rollouts: BTreeMap<ActorId, RolloutId>,
    timer: Option<Timer>,
}

/// What the actor's timer is set for, in milliseconds of the seam's clock, and the timer itself.
type Timer = (u64, JoinHandle<Result<(), MessagingErr<RolloutManagerInput>>>);

struct RunningLoop {
    cell: ActorCell,
    issue: Issue,
    progress: Progress,
}

impl RolloutManagerState {
    fn now_ms(&self) -> u64 {
        self.arguments.seam.clock.elapsed_ms()
    }

    /// Takes an input and carries out everything that follows from it.
    async fn step(&mut self, input: ManagerInput, myself: &ActorRef<RolloutManagerInput>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for effect in self.state.step(input, self.now_ms()) {
                inputs.extend(self.carry_out(effect, myself).await);
            }
        }
        self.set_timer(myself);
    }

    /// Carries out one effect; what it brings about at once is given back as an input.
    async fn carry_out(
        &mut self,
        effect: ManagerEffect,
        myself: &ActorRef<RolloutManagerInput>,
    ) -> Option<ManagerInput> {
        match effect {
            ManagerEffect::Issue(issue) => self.issue(issue, myself).await,
            ManagerEffect::End(rollout, outcome) => self.end(rollout, outcome),
            ManagerEffect::Report(group) => {
                if let Err(gone) = self.arguments.conductor.cast(ConductorMessage::GroupFinished(group)) {
                    tracing::info!(%gone, "a finished group has nobody to hear of it: the run is ending, or will ask for the group again");
                }
                None
            }
            ManagerEffect::Record(event) => {
                self.setting.record(event);
                None
            }
            ManagerEffect::Tell(text) => {
                tracing::warn!("{text}");
                None
            }
        }
    }

    async fn issue(&mut self, issue: Issue, myself: &ActorRef<RolloutManagerInput>) -> Option<ManagerInput> {
        let progress = Progress::new(self.arguments.seam.clock);
        let arguments = AgentLoopArguments {
            setting: self.setting.clone(),
            issue: issue.clone(),
            progress: progress.clone(),
            manager: Address::adapted(myself),
        };
        match Actor::spawn_linked(None, AgentLoop, arguments, myself.get_cell()).await {
            Ok((actor, _)) => {
                self.rollouts.insert(actor.get_id(), issue.rollout);
                self.loops.insert(issue.rollout, RunningLoop { cell: actor.get_cell(), issue, progress });
                None
            }
            Err(error) => {
                let outcome = agent_failed(format!("the loop did not start: {error}"));
                let finished = progress.finished(issue.rollout, issue.task.id.clone(), outcome);
                Some(ManagerInput::Finished(Box::new(finished)))
            }
        }
    }

    /// Ends a loop where it is; what it holds is released as it falls.
    fn end(&mut self, rollout: RolloutId, outcome: RolloutOutcome) -> Option<ManagerInput> {
        let ended = self.forget(rollout)?;
        ended.cell.kill();
        let finished = ended.progress.finished(rollout, ended.issue.task.id.clone(), outcome);
        Some(ManagerInput::Finished(Box::new(finished)))
    }

    fn forget(&mut self, rollout: RolloutId) -> Option<RunningLoop> {
        let ended = self.loops.remove(&rollout)?;
        self.rollouts.remove(&ended.cell.get_id());
        Some(ended)
    }

    /// One timer, for the earliest thing that is due.
    fn set_timer(&mut self, myself: &ActorRef<RolloutManagerInput>) {
        let due_ms = self.state.next_due_ms();
        if self.timer.as_ref().map(|(set_for_ms, _)| *set_for_ms) == due_ms {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            timer.abort();
        }
        self.timer = due_ms.map(|due_ms| {
            let wait = Duration::from_millis(due_ms.saturating_sub(self.now_ms()));
            (due_ms, myself.send_after(wait, || RolloutManagerInput::Tick))
        });
    }

    async fn on_message(&mut self, message: RolloutManagerMessage, myself: &ActorRef<RolloutManagerInput>) {
        let input = match message {
            RolloutManagerMessage::StartBatch(request, reply) => match self.accept(&request) {
                Ok(tasks) => {
                    reply.send(Ok(()));
                    ManagerInput::StartBatch(request, tasks)
                }
                Err(message) => {
                    reply.send(Err(RolloutFailure { message }));
                    return;
                }
            },
            RolloutManagerMessage::CancelBatch(batch) => ManagerInput::CancelBatch(batch),
            RolloutManagerMessage::CancelRollout(rollout, reply) => {
                reply.send(self.state.is_open(rollout));
                ManagerInput::CancelRollout(rollout)
            }
            RolloutManagerMessage::SetPaused(is_paused) => ManagerInput::SetPaused(is_paused),
            RolloutManagerMessage::Set(key, value, reply) => match self.set(&key, value) {
                Ok(limits) => {
                    reply.send(Ok(()));
                    ManagerInput::SetLimits(limits)
                }
                Err(reason) => {
                    reply.send(Err(reason));
                    return;
                }
            },
            RolloutManagerMessage::Settings(reply) => {
                let config = &self.arguments.config;
                let told = RolloutConfig { guard_ms: Some(config.guard_ms()), ..config.clone() };
                reply.send(setting::values(&told, "rollout"));
                return;
            }
            RolloutManagerMessage::SetDrained { drained, handed_over } => {
                ManagerInput::SetDrained { drained, handed_over }
            }
            RolloutManagerMessage::Status(reply) => {
                reply.send(self.state.status());
                return;
            }
            RolloutManagerMessage::Loops(reply) => {
                let running = self.loops.iter();
                let status = |(rollout, running): (&RolloutId, &RunningLoop)| {
                    running.progress.status(*rollout, running.issue.task.id.clone())
                };
                reply.send(running.map(status).collect());
                return;
            }
            RolloutManagerMessage::Finished(finished) => {
                self.forget(finished.rollout);
                ManagerInput::Finished(finished)
            }
        };
        self.step(input, myself).await;
    }

    /// Changes a setting, for rollouts that begin from now on. Sandboxes live as long as before.
    fn set(&mut self, key: &str, value: u64) -> Result<ManagerLimits, String> {
        let before = &self.arguments.config;
        let mut config: RolloutConfig = setting::changed(before, "rollout", key, value)?;
        config.sandbox_lifetime_ms = Some(before.sandbox_lifetime_ms());
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        self.setting = Arc::new(EpisodeSetting { config: config.clone(), ..(*self.setting).clone() });
        self.arguments.config = config;
        Ok(ManagerLimits::from(&self.arguments.config))
    }

    /// Whether a batch can be made, and of which tasks.
    fn accept(&self, request: &StartBatch) -> Result<Vec<Arc<Task>>, String> {
        let batch = request.batch;
        let Some(dataset) = self.arguments.dataset(batch.purpose) else {
            return Err(format!("batch {batch} needs a data set for {:?}, and there is none", batch.purpose));
        };
        if request.groups == 0 || request.samples_per_group == 0 {
            return Err(format!("batch {batch} would have no rollouts: ask for at least one group and one sample"));
        }
        if !(request.temperature.is_finite() && request.temperature >= 0.0) {
            return Err(format!("batch {batch} has temperature {}; it must be 0 or more", request.temperature));
        }
        let seed = self.arguments.seam.seed.child("dataset").child(match batch.purpose {
            Purpose::HeldOut => "held_out",
            Purpose::Train | Purpose::Evaluate => "train",
        });
        let shuffle = self.arguments.config.shuffle;
        Ok(dataset.tasks_from(seed, shuffle, request.first_position, request.groups))
    }

    /// An AgentLoop ended. If it did so without a word, it failed or was stopped from outside.
    fn fallen(&mut self, actor: ActorId, reason: &str) -> Option<ManagerInput> {
        let rollout = self.rollouts.get(&actor).copied()?;
        let fallen = self.forget(rollout)?;
        let outcome = agent_failed(format!("the loop failed: {reason}"));
        let finished = fallen.progress.finished(rollout, fallen.issue.task.id.clone(), outcome);
        Some(ManagerInput::Finished(Box::new(finished)))
    }
}

fn agent_failed(message: String) -> RolloutOutcome {
    RolloutOutcome::InfraFailed(InfraFailure { kind: InfraKind::Agent, message })
}

impl Actor for RolloutManager {
    type Msg = RolloutManagerInput;
    type State = RolloutManagerState;
    type Arguments = RolloutManagerArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let (setting, stability) = arguments.check()?;
        if stability == TemplateStability::Forks {
            tracing::warn!("the chat template cannot be extended: every turn becomes a training sample of its own");
        }
        Ok(RolloutManagerState {
            state: ManagerState::new(ManagerLimits::from(&arguments.config)),
            setting: Arc::new(setting),
            arguments,
            loops: BTreeMap::new(),
            rollouts: BTreeMap::new(),
            timer: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RolloutManagerInput::Message(message) => state.on_message(message, &myself).await,
            RolloutManagerInput::Tick => {
                state.timer = None;
                state.step(ManagerInput::Tick, &myself).await;
            }
            RolloutManagerInput::LoopEnded(actor, reason) => {
                if let Some(input) = state.fallen(actor, &reason) {
                    state.step(input, &myself).await;
                }
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        _: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        // Supervision events overtake messages: the loop's own last message may still be in the mailbox.
        let ended = match event {
            SupervisionEvent::ActorFailed(actor, error) => Some((actor.get_id(), error.to_string())),
            SupervisionEvent::ActorTerminated(actor, _, reason) => {
                Some((actor.get_id(), reason.unwrap_or_else(|| "it stopped".to_owned())))
            }
            _ => None,
        };
        if let Some((actor, reason)) = ended {
            myself.send_message(RolloutManagerInput::LoopEnded(actor, reason))?;
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Self::Msg>, state: &mut Self::State) -> Result<(), ActorProcessingErr> {
        for running in state.loops.values() {
            running.cell.kill();
        }
        Ok(())
    }
}
