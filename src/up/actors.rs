//! The actors of a run, under one supervisor, introduced to each other by addresses that survive a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use greenroom_core::{
    Address, ChildFailure, ChildSpec, RestartPolicy, Supervisor, SupervisorArguments, SupervisorMessage, startup_cause,
};
use greenroom_engine::{EnginePool, EnginePoolArguments, http_api_factory};
use greenroom_messages::Purpose;
use greenroom_messages::engine::{EnginePoolMessage, EngineSpec};
use greenroom_messages::run::{ConductorMessage, JournalMessage, RunStatus};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_rollout::agent::{HostFacts, Uname};
use greenroom_rollout::manager::{RolloutManager, RolloutManagerArguments};
use greenroom_run::{Conductor, ConductorArguments, ConductorParts, Journal, JournalArguments, RunEnd};
use greenroom_sandbox::{LeaseNumbers, SandboxPool, SandboxPoolArguments};
use greenroom_weights::{DirectoryCarrier, PublisherArguments, ReceiverArguments, WeightPublisher, WeightReceiver};
use ractor::{Actor, ActorRef};
use tokio::sync::watch;

use super::preparation::Prepared;
use super::{End, Talk};

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
) -> anyhow::Result<RunningActors> {
    let prepared = Arc::new(prepared);
    #[cfg(feature = "torch")]
    let (mut specs, embedded): (Vec<EngineSpec>, Vec<_>) =
        super::embedded::start(&prepared.config.engine.embedded, &prepared.model_dir, prepared.config.seed)
            .await?
            .into_iter()
            .unzip();
    #[cfg(not(feature = "torch"))]
    let mut specs: Vec<EngineSpec> = Vec::new();
    specs.extend(prepared.config.engine.external.iter().map(|(name, engine)| EngineSpec {
        engine: greenroom_messages::EngineId::new(name.clone()),
        url: engine.url.clone(),
        max_in_flight: engine.max_in_flight,
    }));

    let wiring = Wiring::new(&prepared);
    let mut children = vec![wiring.journal(&prepared)];
    children.push(wiring.trainer(&prepared)?);
    children.extend(wiring.weights(&prepared)?);
    children.push(wiring.engine_pool(&prepared, specs)?);
    children.extend(wiring.sandbox_pools(&prepared)?);
    children.push(wiring.rollout_manager(&prepared)?);
    children.push(wiring.conductor(&prepared, progress, talk, end.clone()));
    let on_give_up = Box::new(move |failure: ChildFailure| end.tell(RunEnd::Failed(format!("GR0005: {failure}"))));
    let arguments = SupervisorArguments { children, on_give_up };
    let (supervisor, _) = Actor::spawn(None, Supervisor, arguments)
        .await
        .map_err(|error| anyhow::anyhow!("GR0903: the run could not be started: {}", startup_cause(error)))?;
    Ok(RunningActors {
        supervisor,
        conductor: wiring.parts_conductor,
        engines: wiring.parts.engines,
        journal: wiring.parts.journal,
        sandboxes: wiring.sandboxes,
        #[cfg(feature = "torch")]
        embedded,
    })
}

/// The addresses by which the actors know each other; bound when each starts.
struct Wiring {
    parts: ConductorParts,
    parts_conductor: Address<ConductorMessage>,
    sandboxes: BTreeMap<String, Address<SandboxPoolMessage>>,
}

impl Wiring {
    fn new(prepared: &Prepared) -> Self {
        let pool = |name: &String| Address::unbound(&format!("sandbox pool {name}"));
        Self {
            parts: ConductorParts {
                rollouts: Address::unbound("rollout manager"),
                engines: Address::unbound("engine pool"),
                trainer: Address::unbound("trainer"),
                publisher: Address::unbound("weight publisher"),
                receivers: vec![(RECEIVER.to_owned(), Address::unbound("weight receiver"))],
                journal: Address::unbound("journal"),
            },
            parts_conductor: Address::unbound("conductor"),
            sandboxes: prepared.images.iter().map(|image| (image.name.clone(), pool(&image.name))).collect(),
        }
    }

    fn journal(&self, prepared: &Arc<Prepared>) -> ChildSpec {
        let (prepared, address) = (prepared.clone(), self.parts.journal.clone());
        let arguments =
            move || JournalArguments { database: prepared.database.clone(), clock: prepared.seam.clock, feed: None };
        // a journal that cannot write must not be papered over
        ChildSpec::of_actor("journal", RestartPolicy::NEVER, || Journal, arguments, move |actor| address.rebind(actor))
    }

    #[cfg(feature = "torch")]
    fn trainer(&self, prepared: &Arc<Prepared>) -> anyhow::Result<ChildSpec> {
        use greenroom_trainer::{Trainer, TrainerArguments};
        let (prepared, address) = (prepared.clone(), self.parts.trainer.clone());
        let arguments = move || TrainerArguments::new(prepared.config.trainer.clone(), prepared.model_dir.clone());
        Ok(ChildSpec::of_actor(
            "trainer",
            RestartPolicy::PATIENT,
            || Trainer,
            arguments,
            move |actor| address.rebind(actor),
        ))
    }

    #[cfg(not(feature = "torch"))]
    fn trainer(&self, _: &Arc<Prepared>) -> anyhow::Result<ChildSpec> {
        anyhow::bail!("GR0902: training needs libtorch, and this binary was built without the feature `torch`")
    }

    fn weights(&self, prepared: &Arc<Prepared>) -> anyhow::Result<Vec<ChildSpec>> {
        let dir = prepared.directory.path().join("weights");
        let carrier = Arc::new(DirectoryCarrier::new(&dir.join("published"))?);
        let publisher = PublisherArguments {
            config: prepared.config.weights.clone(),
            carrier: carrier.clone(),
            bases_dir: dir.join("bases"),
            receivers: vec![RECEIVER.to_owned()],
            seam: prepared.seam.clone(),
        };
        let receiver = ReceiverArguments {
            receiver: RECEIVER.to_owned(),
            carrier,
            dir: std::path::absolute(dir.join("received"))?,
            seam: prepared.seam.clone(),
        };
        let address = self.parts.publisher.clone();
        let bind = move |actor: &_| address.rebind(actor);
        let mut children = vec![ChildSpec::of_actor(
            "publisher",
            RestartPolicy::PATIENT,
            || WeightPublisher,
            move || publisher.clone(),
            bind,
        )];
        for (name, address) in self.parts.receivers.clone() {
            let (receiver, bind) = (receiver.clone(), move |actor: &_| address.rebind(actor));
            let name = format!("receiver {name}");
            children.push(ChildSpec::of_actor(
                &name,
                RestartPolicy::PATIENT,
                || WeightReceiver,
                move || receiver.clone(),
                bind,
            ));
        }
        Ok(children)
    }

    fn engine_pool(&self, prepared: &Arc<Prepared>, specs: Vec<EngineSpec>) -> anyhow::Result<ChildSpec> {
        let arguments = EnginePoolArguments {
            specs,
            api: http_api_factory(&prepared.config.engine.client)?,
            config: prepared.config.engine.client.clone(),
            seam: prepared.seam.clone(),
            run: prepared.run.clone(),
            vocabulary_tokens: vocabulary(prepared)?,
            journal: self.parts.journal.clone(),
        };
        let address = self.parts.engines.clone();
        let bind = move |actor: &_| address.rebind(actor);
        Ok(ChildSpec::of_actor("engine pool", RestartPolicy::PATIENT, || EnginePool, move || arguments.clone(), bind))
    }

    fn sandbox_pools(&self, prepared: &Arc<Prepared>) -> anyhow::Result<Vec<ChildSpec>> {
        let lease_numbers = LeaseNumbers::starting_at(prepared.database.next_lease()?.0);
        let pool = |image: &greenroom_sandbox::ImageSpec| {
            let arguments = SandboxPoolArguments {
                image: image.clone(),
                config: prepared.config.sandbox.pool.clone(),
                provider: prepared.provider.clone(),
                labels: BTreeMap::from([("run".to_owned(), prepared.run.to_string())]),
                seam: prepared.seam.clone(),
                journal: Some(self.parts.journal.clone()),
                lease_numbers: lease_numbers.clone(),
            };
            let address = self.sandboxes[&image.name].clone();
            let bind = move |actor: &_| address.rebind(actor);
            let name = format!("sandbox pool {}", image.name);
            ChildSpec::of_actor(&name, RestartPolicy::PATIENT, || SandboxPool, move || arguments.clone(), bind)
        };
        Ok(prepared.images.iter().map(pool).collect())
    }

    fn rollout_manager(&self, prepared: &Arc<Prepared>) -> anyhow::Result<ChildSpec> {
        let arguments = RolloutManagerArguments {
            config: prepared.config.rollout.clone(),
            datasets: prepared.datasets.clone(),
            tokenizer: prepared.tokenizer.clone(),
            template: prepared.template.clone(),
            agent: prepared.agent.clone(),
            host: HostFacts { uname: host_name(), process_environment: BTreeMap::new() },
            engines: self.parts.engines.clone(),
            sandboxes: self.sandboxes.clone(),
            conductor: self.parts_conductor.clone(),
            journal: self.parts.journal.clone(),
            trajectories: None,
            seam: prepared.seam.clone(),
        };
        arguments.check()?;
        let address = self.parts.rollouts.clone();
        let bind = move |actor: &_| address.rebind(actor);
        Ok(ChildSpec::of_actor(
            "rollout manager",
            RestartPolicy::PATIENT,
            || RolloutManager,
            move || arguments.clone(),
            bind,
        ))
    }

    fn conductor(
        &self,
        prepared: &Arc<Prepared>,
        progress: watch::Sender<RunStatus>,
        talk: Talk,
        end: End,
    ) -> ChildSpec {
        let tasks = |purpose| prepared.datasets.get(&purpose).map_or(0, |dataset| dataset.tasks().len() as u32);
        let limit = prepared.config.run.evaluation.tasks;
        let limited = |tasks: u32| if limit > 0 { tasks.min(limit) } else { tasks };
        let arguments = ConductorArguments {
            run: prepared.run.clone(),
            config: prepared.config.run.clone(),
            parts: self.parts.clone(),
            database: prepared.database.clone(),
            directory: Some(prepared.directory.clone()),
            warm_start: prepared.warm_start.clone(),
            evaluation_tasks: limited(tasks(Purpose::Train)),
            held_out_tasks: limited(tasks(Purpose::HeldOut)),
            seam: prepared.seam.clone(),
            progress,
            talk,
            on_end: Arc::new(move |ended| end.tell(ended)),
        };
        let address = self.parts_conductor.clone();
        let bind = move |actor: &_| address.rebind(actor);
        ChildSpec::of_actor("conductor", RestartPolicy::PATIENT, || Conductor, move || arguments.clone(), bind)
    }
}

/// Rows of the model's embedding: a token id outside of them would kill an engine.
fn vocabulary(prepared: &Prepared) -> anyhow::Result<u32> {
    let path = prepared.model_dir.join("config.json");
    let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let json: serde_json::Value = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    let rows = json.get("vocab_size").and_then(serde_json::Value::as_u64).and_then(|rows| u32::try_from(rows).ok());
    rows.with_context(|| format!("{}: vocab_size is missing or no number", path.display()))
}

/// What prompts may state about the host, as `uname` tells it.
fn host_name() -> Uname {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    Uname {
        system: read("ostype"),
        node: read("hostname"),
        release: read("osrelease"),
        version: read("version"),
        machine: std::env::consts::ARCH.to_owned(),
    }
}
