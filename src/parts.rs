//! The actors' arguments, made of the configuration and of addresses: the same for a run in one process and for the nodes
//! of a cluster. Who they are introduced to is for the caller to say.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use greenroom_core::{Address, Faults, Seam};
use greenroom_engine::{EnginePoolArguments, http_api_factory};
use greenroom_messages::engine::{EnginePoolMessage, EngineSpec};
use greenroom_messages::run::{ConductorMessage, JournalMessage};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_messages::{EngineId, Purpose, RunId};
use greenroom_rollout::Dataset;
use greenroom_rollout::agent::{AgentFile, HostFacts, Uname};
use greenroom_rollout::manager::RolloutManagerArguments;
use greenroom_sandbox::{ImageSpec, LeaseNumbers, Provider, SandboxPoolArguments};
use greenroom_tokens::{ChatTemplate, Tokenizer};

use crate::config::Config;

/// The data sets of a run, by purpose.
pub(crate) type Datasets = BTreeMap<Purpose, Arc<Dataset>>;

/// The seam of a real process, with the faults that GREENROOM_FAULTS asks for.
pub(crate) fn seam(seed: u64) -> anyhow::Result<Seam> {
    let faults = std::env::var("GREENROOM_FAULTS").unwrap_or_default();
    Ok(Seam::system(seed, Faults::parse(&faults).context("GREENROOM_FAULTS")?))
}

/// What all parts of a run share.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) config: Config,
    pub(crate) run: RunId,
    pub(crate) seam: Seam,
    /// Where events go.
    pub(crate) journal: Address<JournalMessage>,
}

/// What episodes are made of.
#[derive(Clone)]
pub(crate) struct RolloutInputs {
    pub(crate) datasets: Datasets,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Arc<ChatTemplate>,
    pub(crate) agent: AgentFile,
}

impl Common {
    /// The engines that run already, as the configuration names them.
    pub(crate) fn external_engines(&self) -> Vec<EngineSpec> {
        let spec = |(name, engine): (&String, &crate::config::ExternalEngine)| EngineSpec {
            engine: EngineId::new(name.clone()),
            url: engine.url.clone(),
            max_in_flight: engine.max_in_flight,
        };
        self.config.engine.external.iter().map(spec).collect()
    }

    /// The fleet, with these engines at first.
    pub(crate) fn engine_pool(&self, model_dir: &Path, specs: Vec<EngineSpec>) -> anyhow::Result<EnginePoolArguments> {
        Ok(EnginePoolArguments {
            specs,
            api: http_api_factory(&self.config.engine.client)?,
            config: self.config.engine.client.clone(),
            seam: self.seam.clone(),
            run: self.run.clone(),
            vocabulary_tokens: vocabulary(model_dir)?,
            journal: self.journal.clone(),
        })
    }

    /// The pool of one image.
    pub(crate) fn sandbox_pool(
        &self,
        image: &ImageSpec,
        provider: Arc<dyn Provider>,
        lease_numbers: LeaseNumbers,
    ) -> SandboxPoolArguments {
        SandboxPoolArguments {
            image: image.clone(),
            config: self.config.sandbox.pool.clone(),
            provider,
            labels: BTreeMap::from([("run".to_owned(), self.run.to_string())]),
            seam: self.seam.clone(),
            journal: Some(self.journal.clone()),
            lease_numbers,
        }
    }

    /// The manager of rollouts.
    pub(crate) fn rollout_manager(
        &self,
        inputs: RolloutInputs,
        engines: Address<EnginePoolMessage>,
        sandboxes: BTreeMap<String, Address<SandboxPoolMessage>>,
        conductor: Address<ConductorMessage>,
    ) -> anyhow::Result<RolloutManagerArguments> {
        let arguments = RolloutManagerArguments {
            config: self.config.rollout.clone(),
            datasets: inputs.datasets,
            tokenizer: inputs.tokenizer,
            template: inputs.template,
            agent: inputs.agent,
            host: HostFacts { uname: host_name(), process_environment: BTreeMap::new() },
            engines,
            sandboxes,
            conductor,
            journal: self.journal.clone(),
            trajectories: None,
            seam: self.seam.clone(),
        };
        arguments.check()?;
        Ok(arguments)
    }

    /// How many tasks a measurement of this purpose takes.
    pub(crate) fn measured_tasks(&self, datasets: &Datasets, purpose: Purpose) -> u32 {
        let tasks = datasets.get(&purpose).map_or(0, |dataset| dataset.tasks().len() as u32);
        match self.config.run.evaluation.tasks {
            0 => tasks,
            limit => tasks.min(limit),
        }
    }
}

/// Rows of the model's embedding: a token id outside of them would kill an engine.
fn vocabulary(model_dir: &Path) -> anyhow::Result<u32> {
    let path = model_dir.join("config.json");
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
