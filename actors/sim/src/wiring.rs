//! The actors of a simulated run under one supervisor: those of a real run, at their usual places.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use greenroom_core::{Address, ChildSpec, Clock, RestartPolicy, Seam};
use greenroom_engine::{ApiFactory, EngineApi, EnginePool, EnginePoolArguments};
use greenroom_messages::engine::{EnginePoolMessage, EngineSpec};
use greenroom_messages::rollout::{FinishedRollout, GroupOutcome, RolloutOutcome, Sample};
use greenroom_messages::run::{ConductorMessage, JournalMessage};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_messages::trainer::WarmStart;
use greenroom_messages::{EngineId, Purpose, RunId};
use greenroom_rollout::agent::{HostFacts, Uname};
use greenroom_rollout::{RolloutManager, RolloutManagerArguments};
use greenroom_run::{
    Conductor, ConductorArguments, ConductorParts, Database, Journal, JournalArguments, JournalInput, RunDirectory,
    RunEnd,
};
use greenroom_sandbox::{ImageSpec, LeaseNumbers, SandboxPool, SandboxPoolArguments};
use greenroom_weights::{DirectoryCarrier, PublisherArguments, ReceiverArguments, WeightPublisher, WeightReceiver};
use ractor::{Actor, ActorRef};
use tokio::sync::{mpsc, watch};

use crate::agent::{agent, dataset, language};
use crate::chance::Chance;
use crate::engine::{EngineSettings, SimulatedEngine};
use crate::ledger::Ledger;
use crate::policy::Policy;
use crate::sandbox::SimulatedProvider;
use crate::trainer::{SimulatedTrainer, TrainerArguments};
use crate::{Sabotage, Scenario, SimError};

const RECEIVER: &str = "host";
const IMAGE: &str = "default";

/// The parts of a world, before its actors run.
pub(crate) struct Wiring {
    pub(crate) scenario: Scenario,
    pub(crate) seam: Seam,
    pub(crate) run: RunId,
    pub(crate) database: Database,
    pub(crate) ledger: Ledger,
    pub(crate) engines: BTreeMap<EngineId, Arc<SimulatedEngine>>,
    pub(crate) provider: Arc<SimulatedProvider>,
    pub(crate) trainer: TrainerArguments,
    parts: ConductorParts,
    conductor: Address<ConductorMessage>,
    sandboxes: Address<SandboxPoolMessage>,
}

impl Wiring {
    pub(crate) fn new(scenario: &Scenario, seam: &Seam) -> Result<Self, SimError> {
        let run = RunId::new("simulated");
        let database = Database::in_memory(&run, seam.seed.value(), seam.clock);
        let database = database.map_err(|error| SimError::of("run database")(error.to_string()))?;
        let ledger = Ledger::default();
        let (tokenizer, _) = language()?;
        let policy = Arc::new(Policy::new(tokenizer, seam.seed.child("policy")));
        let bad = scenario.misfortunes;
        let chance = |part: &str, number: u64, left: u32| {
            Chance::new(seam.seed.child_numbered(&format!("misfortunes.{part}"), number), left, bad.probability)
        };
        let sabotaged = |sabotage: Sabotage| scenario.sabotage == Some(sabotage);
        let engine = |number: u32| {
            let settings = EngineSettings {
                url: format!("http://engine-{number}"),
                version: scenario.engine_version,
                token_ms: scenario.token_ms,
                lost_at_ms: scenario.engines_lost_at_ms,
                keeps_old_weights: sabotaged(Sabotage::StaleWeights),
                clock: seam.clock,
                ledger: ledger.clone(),
                policy: policy.clone(),
            };
            let engine = SimulatedEngine::new(settings, chance("engine", number.into(), bad.engine));
            (EngineId::new(format!("engine-{number}")), Arc::new(engine))
        };
        let provider = SimulatedProvider::new(
            ledger.clone(),
            chance("sandbox", 0, bad.sandbox),
            sabotaged(Sabotage::BoxHandedOutTwice),
            sabotaged(Sabotage::BoxesLeak),
        );
        let trainer = TrainerArguments {
            chance: Arc::new(Mutex::new(chance("trainer", 0, bad.trainer))),
            ledger: ledger.clone(),
            train_ms: scenario.train_ms,
            deadline_ms: scenario.run.train_timeout_ms,
        };
        Ok(Self {
            engines: (0..scenario.engines).map(engine).collect(),
            provider: Arc::new(provider),
            trainer,
            parts: ConductorParts {
                rollouts: Address::unbound("rollout manager"),
                engines: Address::unbound("engine pool"),
                trainer: Address::unbound("trainer"),
                publisher: Address::unbound("weight publisher"),
                receivers: vec![(RECEIVER.to_owned(), Address::unbound("weight receiver"))],
                journal: Address::unbound("journal"),
            },
            conductor: Address::unbound("conductor"),
            sandboxes: Address::unbound("sandbox pool"),
            scenario: scenario.clone(),
            seam: seam.clone(),
            run,
            database,
            ledger,
        })
    }

    pub(crate) fn engine_pool(&self) -> &Address<EnginePoolMessage> {
        &self.parts.engines
    }

    pub(crate) fn journal(&self) -> &Address<JournalMessage> {
        &self.parts.journal
    }

    pub(crate) fn sandbox_pool(&self) -> &Address<SandboxPoolMessage> {
        &self.sandboxes
    }

    /// All actors, in the order in which they are started.
    pub(crate) fn children(
        &self,
        directory: &RunDirectory,
        ended: mpsc::UnboundedSender<RunEnd>,
    ) -> Result<Vec<ChildSpec>, SimError> {
        let mut children = vec![self.journal_child(), self.trainer_child()];
        children.extend(self.weights_children(directory.path())?);
        children.push(self.engine_pool_child()?);
        children.push(self.sandbox_pool_child());
        children.push(self.rollout_manager_child()?);
        children.push(self.conductor_child(directory, ended));
        Ok(children)
    }

    /// The Journal, with a look at every event on its way there.
    fn journal_child(&self) -> ChildSpec {
        let (database, clock) = (self.database.clone(), self.seam.clock);
        let arguments = move || JournalArguments { database: database.clone(), clock, feed: None };
        let (address, ledger) = (self.parts.journal.clone(), self.ledger.clone());
        ChildSpec::of_actor(
            "journal",
            RestartPolicy::NEVER,
            || Journal,
            arguments,
            move |actor: &ActorRef<JournalInput>| {
                let (actor, ledger) = (actor.clone(), ledger.clone());
                address.rebind_function(move |message| {
                    if let JournalMessage::Record(event) = &message {
                        ledger.seen().events.push((clock.elapsed_ms(), event.clone()));
                    }
                    actor.send_message(message.into()).map_err(|_| ())
                });
            },
        )
    }

    fn trainer_child(&self) -> ChildSpec {
        let arguments = self.trainer.clone();
        child(|| SimulatedTrainer, move || arguments.clone(), &self.parts.trainer)
    }

    fn weights_children(&self, dir: &Path) -> Result<Vec<ChildSpec>, SimError> {
        let dir = dir.join("weights");
        let carrier = DirectoryCarrier::new(&dir.join("published"));
        let carrier = Arc::new(carrier.map_err(|error| SimError::of("carrier")(error.to_string()))?);
        let publisher = PublisherArguments {
            config: self.scenario.weights.clone(),
            carrier: carrier.clone(),
            bases_dir: dir.join("bases"),
            receivers: Some(vec![RECEIVER.to_owned()]),
            source_root: std::path::PathBuf::new(),
            seam: self.seam.clone(),
        };
        let receiver = ReceiverArguments {
            receiver: RECEIVER.to_owned(),
            carrier,
            dir: dir.join("received"),
            seam: self.seam.clone(),
        };
        let mut children = vec![child(|| WeightPublisher, move || publisher.clone(), &self.parts.publisher)];
        for (_, address) in &self.parts.receivers {
            let receiver = receiver.clone();
            children.push(child(|| WeightReceiver, move || receiver.clone(), address));
        }
        Ok(children)
    }

    fn engine_pool_child(&self) -> Result<ChildSpec, SimError> {
        let spec = |(name, engine): (&EngineId, &Arc<SimulatedEngine>)| EngineSpec {
            engine: name.clone(),
            url: engine.settings.url.clone(),
            max_in_flight: self.scenario.max_in_flight,
        };
        let engines = self.engines.clone();
        let api: ApiFactory = Arc::new(move |spec| {
            let engine = engines.get(&spec.engine).cloned();
            let missing = greenroom_engine::EngineConfigError::Value {
                setting: "engine",
                value: spec.engine.to_string(),
                message: "is not simulated",
            };
            Ok(engine.ok_or(missing)? as Arc<dyn EngineApi>)
        });
        let arguments = EnginePoolArguments {
            specs: self.engines.iter().map(spec).collect(),
            api,
            config: self.scenario.engine.clone(),
            seam: self.seam.clone(),
            run: self.run.clone(),
            vocabulary_tokens: language()?.0.vocabulary_size(),
            journal: self.parts.journal.clone(),
        };
        Ok(child(|| EnginePool, move || arguments.clone(), &self.parts.engines))
    }

    fn sandbox_pool_child(&self) -> ChildSpec {
        let arguments = SandboxPoolArguments {
            image: ImageSpec::new(IMAGE, None),
            config: self.scenario.pool.clone(),
            provider: self.provider.clone(),
            labels: BTreeMap::from([("run".to_owned(), self.run.to_string())]),
            seam: self.seam.clone(),
            journal: Some(self.parts.journal.clone()),
            lease_numbers: LeaseNumbers::starting_at(1),
        };
        child(|| SandboxPool, move || arguments.clone(), &self.sandboxes)
    }

    fn rollout_manager_child(&self) -> Result<ChildSpec, SimError> {
        let (tokenizer, template) = language()?;
        let [system, node, release, version, machine] = ["Linux", "node", "6", "#1", "x86_64"].map(str::to_owned);
        let mut datasets = BTreeMap::from([(Purpose::Train, dataset("train", self.scenario.tasks)?)]);
        if self.scenario.held_out_tasks > 0 {
            datasets.insert(Purpose::HeldOut, dataset("held-out", self.scenario.held_out_tasks)?);
        }
        let arguments = RolloutManagerArguments {
            config: self.scenario.rollout.clone(),
            datasets,
            tokenizer,
            template,
            agent: agent()?,
            host: HostFacts {
                uname: Uname { system, node, release, version, machine },
                process_environment: BTreeMap::new(),
            },
            engines: self.parts.engines.clone(),
            sandboxes: BTreeMap::from([(IMAGE.to_owned(), self.sandboxes.clone())]),
            conductor: self.conductor_for_manager(),
            journal: self.parts.journal.clone(),
            trajectories: None,
            seam: self.seam.clone(),
        };
        arguments.check().map_err(|error| SimError::of("rollouts")(error.to_string()))?;
        Ok(child(|| RolloutManager, move || arguments.clone(), &self.parts.rollouts))
    }

    /// The Conductor as the RolloutManager knows it; with sabotage, someone in between.
    fn conductor_for_manager(&self) -> Address<ConductorMessage> {
        let conductor = self.conductor.clone();
        match self.scenario.sabotage {
            Some(Sabotage::GroupsLost) => Address::of_function("conductor", move |message| match &message {
                ConductorMessage::GroupFinished(group) if group.group.index == 0 => Ok(()),
                _ => conductor.cast(message).map_err(|_| ()),
            }),
            Some(Sabotage::FailuresDressedAsRollouts) => Address::of_function("conductor", move |mut message| {
                if let ConductorMessage::GroupFinished(group) = &mut message {
                    group.outcome = GroupOutcome::Trainable;
                    group.rollouts.iter_mut().for_each(dress);
                }
                conductor.cast(message).map_err(|_| ())
            }),
            _ => conductor,
        }
    }

    fn conductor_child(&self, directory: &RunDirectory, ended: mpsc::UnboundedSender<RunEnd>) -> ChildSpec {
        let (progress, _) = watch::channel(Default::default());
        let arguments = ConductorArguments {
            run: self.run.clone(),
            config: self.scenario.run.clone(),
            parts: self.parts.clone(),
            database: self.database.clone(),
            directory: Some(directory.clone()),
            trainer_root: directory.path().to_owned(),
            warm_start: self.scenario.warm_start.then(|| WarmStart {
                samples: Vec::new(),
                epochs: 1,
                tokens_per_step: 1,
                learning_rate: 1e-3,
                seed: 1,
            }),
            evaluation_tasks: self.scenario.tasks,
            held_out_tasks: self.scenario.held_out_tasks,
            seam: self.seam.clone(),
            progress,
            talk: Arc::new(|line| tracing::debug!(line, "conductor")),
            // a world that does not listen any more has ended
            on_end: Arc::new(move |end| drop(ended.send(end))),
        };
        child(|| Conductor, move || arguments.clone(), &self.conductor)
    }
}

/// An actor of the run at its address, whose name it has.
fn child<A, M>(
    actor: impl Fn() -> A + Send + Sync + 'static,
    arguments: impl Fn() -> A::Arguments + Send + Sync + 'static,
    address: &Address<M>,
) -> ChildSpec
where
    A: Actor,
    A::Msg: From<M>,
    M: Send + 'static,
{
    ChildSpec::at_address(address.name(), RestartPolicy::PATIENT, actor, arguments, address)
}

/// Makes a failure look like a rollout that earned nothing.
fn dress(rollout: &mut FinishedRollout) {
    if matches!(rollout.outcome, RolloutOutcome::InfraFailed(_)) {
        rollout.outcome = RolloutOutcome::Completed;
        rollout.reward = Some(0.0);
        rollout.samples =
            vec![Sample { tokens: vec![1, 2], loss_mask: vec![0, 1], logprobs: vec![0.0, -0.5], versions: Vec::new() }];
    }
}

/// The clock of a simulation begins at this date: 2026-01-01, in milliseconds since 1970.
pub(crate) const EPOCH_MS: u64 = 1_767_225_600_000;

pub(crate) fn clock() -> Clock {
    Clock::simulated(EPOCH_MS)
}
