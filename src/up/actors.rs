//! The actors of a run, under one supervisor, introduced to each other by addresses that survive a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_core::{
    Address, ChildFailure, ChildSpec, RestartPolicy, Supervisor, SupervisorArguments, SupervisorMessage, startup_cause,
};
use greenroom_engine::EnginePool;
use greenroom_messages::Purpose;
use greenroom_messages::engine::{EnginePoolMessage, EngineSpec};
use greenroom_messages::run::{ConductorMessage, JournalMessage, RunStatus};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_rollout::manager::RolloutManager;
use greenroom_run::{Conductor, ConductorArguments, ConductorParts, Journal, JournalArguments, RunEnd};
use greenroom_sandbox::{LeaseNumbers, SandboxPool};
use greenroom_weights::{DirectoryCarrier, PublisherArguments, ReceiverArguments, WeightPublisher, WeightReceiver};
use ractor::{Actor, ActorCell, ActorRef};
use tokio::sync::watch;

use super::Talk;
use super::end::End;
use super::preparation::Prepared;
use crate::parts::{Common, RolloutInputs};

/// The one receiver of a single-machine run: all its engines read the same local checkpoint.
const RECEIVER: &str = "this-host";

/// Everything that must be taken down again.
pub(super) struct RunningActors {
    pub(super) supervisor: ActorRef<SupervisorMessage>,
    pub(super) conductor: Address<ConductorMessage>,
    pub(super) engines: Address<EnginePoolMessage>,
    pub(super) journal: Address<JournalMessage>,
    pub(super) sandboxes: BTreeMap<String, Address<SandboxPoolMessage>>,
    #[cfg(feature = "torch")]
    pub(super) embedded: Vec<greenroom_policy::server::RunningEngine>,
}

/// Starts the engines that the run brings itself, then every actor.
pub(super) async fn start(
    prepared: Prepared,
    progress: watch::Sender<RunStatus>,
    talk: Talk,
    end: End,
    parent: Option<ActorCell>,
) -> anyhow::Result<RunningActors> {
    let wiring = Wiring::new(Arc::new(prepared));
    #[cfg(feature = "torch")]
    let (mut specs, embedded): (Vec<EngineSpec>, Vec<_>) = {
        let (config, model_dir) = (&wiring.prepared.config, &wiring.prepared.model_dir);
        super::embedded::start(&config.engine.embedded, model_dir, config.seed).await?.into_iter().unzip()
    };
    #[cfg(not(feature = "torch"))]
    let mut specs: Vec<EngineSpec> = Vec::new();
    specs.extend(wiring.common.external_engines());

    let mut children = vec![wiring.journal(), wiring.trainer()?];
    children.extend(wiring.weights()?);
    children.push(wiring.engine_pool(specs)?);
    children.extend(wiring.sandbox_pools()?);
    children.push(wiring.rollout_manager()?);
    children.push(wiring.conductor(progress, talk, end.clone()));
    let on_give_up = Box::new(move |failure: ChildFailure| end.tell(RunEnd::Failed(format!("GR0005: {failure}"))));
    let arguments = SupervisorArguments { children, on_give_up };
    let started = match parent {
        Some(parent) => Actor::spawn_linked(None, Supervisor, arguments, parent).await,
        None => Actor::spawn(None, Supervisor, arguments).await,
    };
    let (supervisor, _) =
        started.map_err(|error| anyhow::anyhow!("GR0903: the run could not be started: {}", startup_cause(error)))?;
    Ok(RunningActors {
        supervisor,
        conductor: wiring.conductor,
        engines: wiring.parts.engines,
        journal: wiring.parts.journal,
        sandboxes: wiring.sandboxes,
        #[cfg(feature = "torch")]
        embedded,
    })
}

/// The addresses by which the actors know each other; bound when each starts.
struct Wiring {
    prepared: Arc<Prepared>,
    common: Common,
    parts: ConductorParts,
    conductor: Address<ConductorMessage>,
    sandboxes: BTreeMap<String, Address<SandboxPoolMessage>>,
}

impl Wiring {
    fn new(prepared: Arc<Prepared>) -> Self {
        let pool = |name: &String| Address::unbound(&format!("sandbox pool {name}"));
        let parts = ConductorParts {
            rollouts: Address::unbound("rollout manager"),
            engines: Address::unbound("engine pool"),
            trainer: Address::unbound("trainer"),
            publisher: Address::unbound("weight publisher"),
            receivers: vec![(RECEIVER.to_owned(), Address::unbound("weight receiver"))],
            journal: Address::unbound("journal"),
        };
        let common = Common {
            config: prepared.config.clone(),
            run: prepared.run.clone(),
            seam: prepared.seam.clone(),
            journal: parts.journal.clone(),
        };
        let sandboxes = prepared.images.iter().map(|image| (image.name.clone(), pool(&image.name))).collect();
        Self { prepared, common, parts, conductor: Address::unbound("conductor"), sandboxes }
    }

    fn journal(&self) -> ChildSpec {
        let prepared = self.prepared.clone();
        let arguments =
            move || JournalArguments { database: prepared.database.clone(), clock: prepared.seam.clock, feed: None };
        // a journal that cannot write must not be papered over
        ChildSpec::at_address("journal", RestartPolicy::NEVER, || Journal, arguments, &self.parts.journal)
    }

    #[cfg(feature = "torch")]
    fn trainer(&self) -> anyhow::Result<ChildSpec> {
        use greenroom_trainer::{Trainer, TrainerArguments};
        let prepared = self.prepared.clone();
        let arguments = move || TrainerArguments::new(prepared.config.trainer.clone(), prepared.model_dir.clone());
        Ok(ChildSpec::at_address("trainer", RestartPolicy::PATIENT, || Trainer, arguments, &self.parts.trainer))
    }

    #[cfg(not(feature = "torch"))]
    fn trainer(&self) -> anyhow::Result<ChildSpec> {
        anyhow::bail!("GR0902: training needs libtorch, and this binary was built without the feature `torch`")
    }

    fn weights(&self) -> anyhow::Result<Vec<ChildSpec>> {
        let dir = self.prepared.directory.path().join("weights");
        let carrier = Arc::new(DirectoryCarrier::new(&dir.join("published"))?);
        let publisher = PublisherArguments {
            config: self.prepared.config.weights.clone(),
            carrier: carrier.clone(),
            bases_dir: dir.join("bases"),
            receivers: Some(vec![RECEIVER.to_owned()]),
            source_root: std::path::PathBuf::new(),
            seam: self.prepared.seam.clone(),
        };
        let receiver = ReceiverArguments {
            receiver: RECEIVER.to_owned(),
            carrier,
            dir: std::path::absolute(dir.join("received"))?,
            seam: self.prepared.seam.clone(),
        };
        let policy = RestartPolicy::PATIENT;
        let publish = move || publisher.clone();
        let mut children =
            vec![ChildSpec::at_address("publisher", policy, || WeightPublisher, publish, &self.parts.publisher)];
        for (name, address) in &self.parts.receivers {
            let (name, receiver) = (format!("receiver {name}"), receiver.clone());
            children.push(ChildSpec::at_address(&name, policy, || WeightReceiver, move || receiver.clone(), address));
        }
        Ok(children)
    }

    fn engine_pool(&self, specs: Vec<EngineSpec>) -> anyhow::Result<ChildSpec> {
        let arguments = self.common.engine_pool(&self.prepared.model_dir, specs)?;
        let (policy, arguments) = (RestartPolicy::PATIENT, move || arguments.clone());
        Ok(ChildSpec::at_address("engine pool", policy, || EnginePool, arguments, &self.parts.engines))
    }

    fn sandbox_pools(&self) -> anyhow::Result<Vec<ChildSpec>> {
        let lease_numbers = LeaseNumbers::starting_at(self.prepared.database.next_lease()?.0);
        let pool = |image: &greenroom_sandbox::ImageSpec| {
            let arguments = self.common.sandbox_pool(image, self.prepared.provider.clone(), lease_numbers.clone());
            let (policy, arguments) = (RestartPolicy::PATIENT, move || arguments.clone());
            let address = &self.sandboxes[&image.name];
            ChildSpec::at_address(address.name(), policy, || SandboxPool, arguments, address)
        };
        Ok(self.prepared.images.iter().map(pool).collect())
    }

    fn rollout_manager(&self) -> anyhow::Result<ChildSpec> {
        let inputs = RolloutInputs {
            datasets: self.prepared.datasets.clone(),
            tokenizer: self.prepared.tokenizer.clone(),
            template: self.prepared.template.clone(),
            agent: self.prepared.agent.clone(),
        };
        let (engines, sandboxes) = (self.parts.engines.clone(), self.sandboxes.clone());
        let arguments = self.common.rollout_manager(inputs, engines, sandboxes, self.conductor.clone())?;
        let (policy, arguments) = (RestartPolicy::PATIENT, move || arguments.clone());
        Ok(ChildSpec::at_address("rollout manager", policy, || RolloutManager, arguments, &self.parts.rollouts))
    }

    fn conductor(&self, progress: watch::Sender<RunStatus>, talk: Talk, end: End) -> ChildSpec {
        let prepared = &self.prepared;
        let tasks = |purpose| self.common.measured_tasks(&prepared.datasets, purpose);
        let arguments = ConductorArguments {
            run: prepared.run.clone(),
            config: prepared.config.run.clone(),
            parts: self.parts.clone(),
            database: prepared.database.clone(),
            directory: Some(prepared.directory.clone()),
            trainer_root: prepared.directory.path().to_owned(),
            warm_start: prepared.warm_start.clone(),
            evaluation_tasks: tasks(Purpose::Train),
            held_out_tasks: tasks(Purpose::HeldOut),
            seam: prepared.seam.clone(),
            progress,
            talk,
            on_end: Arc::new(move |ended| end.tell(ended)),
        };
        let (policy, arguments) = (RestartPolicy::PATIENT, move || arguments.clone());
        ChildSpec::at_address("conductor", policy, || Conductor, arguments, &self.conductor)
    }
}
