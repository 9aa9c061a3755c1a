//! Everything that can be wrong is found here, before any actor runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use greenroom_core::Seam;
use greenroom_engine::SecretSource;
use greenroom_messages::{Purpose, RunId};
use greenroom_rollout::Dataset;
use greenroom_run::{Database, RunDirectory};
use greenroom_sandbox::{ImageSpec, LocalProvider, Provider};
use greenroom_tokens::{ChatTemplate, Tokenizer};

use super::inputs::{self, Inputs};
use super::model::{ModelUse, check_model, initial_model};
use super::{RunPlace, Talk, data};
use crate::StartError;
use crate::config::Config;
use crate::files::{self, Limit};
use crate::parts;

/// A run that may be started.
pub(super) struct Prepared {
    pub(super) config: Config,
    pub(super) run: RunId,
    pub(super) directory: RunDirectory,
    pub(super) database: Database,
    pub(super) seam: Seam,
    pub(super) datasets: BTreeMap<Purpose, Arc<Dataset>>,
    pub(super) images: Vec<ImageSpec>,
    pub(super) model_dir: PathBuf,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) template: Arc<ChatTemplate>,
    pub(super) warm_start: Option<greenroom_messages::trainer::WarmStart>,
    pub(super) agent: greenroom_rollout::agent::AgentFile,
    pub(super) provider: Arc<dyn Provider>,
}

/// What a run is made of, read and checked; nothing of it is begun.
struct Checked {
    config: Config,
    seam: Seam,
    inputs: Inputs,
    source_dir: PathBuf,
    datasets: BTreeMap<Purpose, Arc<Dataset>>,
    images: Vec<ImageSpec>,
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    warm_start: Option<greenroom_messages::trainer::WarmStart>,
    agent: greenroom_rollout::agent::AgentFile,
}

/// Checks what a run needs without beginning it; gives the settings with absolute paths.
#[cfg(feature = "cluster")]
pub(crate) fn check(config: Config, place: &RunPlace) -> anyhow::Result<Config> {
    Ok(read(config, place)?.config)
}

/// Reads and checks; the order is from cheap to dear, so that a typing error is told before a model is loaded.
fn read(config: Config, place: &RunPlace) -> anyhow::Result<Checked> {
    let problems = config.problems();
    if !problems.is_empty() {
        return Err(crate::config::ConfigError { problems }.into());
    }
    place.check()?;
    let config = config.with_absolute_paths().context("the current directory")?;
    let seam = parts::seam(config.seed)?;
    check_credentials(&config)?;
    let source_dir = checked_model(&config)?;
    let datasets = data::datasets(&config)?;
    data::check_walls(&config, &datasets)?;
    let images = data::images(&config, &datasets)?;
    let inputs = Inputs::of(&config, &images)?;
    if place.resume {
        inputs.check(&place.path())?;
    }
    let tokenizer = Arc::new(Tokenizer::from_dir(&source_dir)?);
    let template = Arc::new(ChatTemplate::from_dir(&source_dir)?);
    let agent = data::agent(&config)?;
    let warm_start = data::warm_start(&config, &tokenizer, &template)?;
    Ok(Checked { config, seam, inputs, source_dir, datasets, images, tokenizer, template, warm_start, agent })
}

/// Reads and checks, then makes what of the run lies in its directory.
pub(super) async fn prepare(config: Config, place: &RunPlace, talk: &Talk) -> anyhow::Result<Prepared> {
    let checked = read(config, place)?;
    let path = place.path();
    let directory = if place.resume { RunDirectory::resume(&path) } else { RunDirectory::create(&path) }?;
    let lies = std::path::absolute(&path).unwrap_or(path);
    talk(&format!("the run {} in {}", if place.resume { "goes on" } else { "begins" }, lies.display()));
    let run = RunId::new(place.name.clone());
    let furnished = furnish(&checked, &directory, &run, talk).await;
    let (database, provider, model_dir) = furnished.inspect_err(|_| abandon(directory.clone()))?;
    let Checked { config, seam, datasets, images, tokenizer, template, warm_start, agent, .. } = checked;
    Ok(Prepared {
        config,
        run,
        directory,
        database,
        seam,
        datasets,
        images,
        model_dir,
        tokenizer,
        template,
        warm_start,
        agent,
        provider: Arc::new(provider),
    })
}

/// Files of credentials can be read; what is in them is not looked at here.
fn check_credentials(config: &Config) -> Result<(), StartError> {
    let credentials = &config.engine.client.credentials;
    let both = [("api_key", &credentials.api_key), ("admin_key", &credentials.admin_key)];
    for (name, source) in both {
        if let Some(SecretSource::File(file)) = source {
            files::check(&format!("engine.client.credentials.{name}"), file, Limit::SMALL)?;
        }
    }
    Ok(())
}

/// The model's directory, and rollouts that fit into what the model can read.
fn checked_model(config: &Config) -> Result<PathBuf, StartError> {
    let dir = config.path(&config.model.dir);
    let used = ModelUse {
        setting: "model.dir",
        given: &config.model.dir,
        needs_weights: !config.model.init_weights,
        without_weights: "or, to begin with random weights of config.json's shape, set model.init_weights = true",
    };
    let positions = check_model(&dir, used)?;
    #[cfg(feature = "torch")]
    if let Some(reference) = config.trainer.reference_dir.as_ref().filter(|_| config.trainer.loss.kl_coefficient != 0.0)
    {
        let needs = "without trainer.reference_dir the policy as it was at the start is the reference";
        let used = ModelUse {
            setting: "trainer.reference_dir",
            given: reference,
            needs_weights: true,
            without_weights: needs,
        };
        check_model(reference, used)?;
    }
    let wanted = u64::from(config.rollout.max_context_tokens);
    match positions.filter(|most| wanted > *most) {
        Some(most) => Err(StartError::Context { wanted, most, path: dir.join("config.json") }),
        None => Ok(dir),
    }
}

/// What of the run lies in its directory: the configuration, the database, the sandboxes, the initial weights.
async fn furnish(
    checked: &Checked,
    directory: &RunDirectory,
    run: &RunId,
    talk: &Talk,
) -> anyhow::Result<(Database, LocalProvider, PathBuf)> {
    let Checked { config, seam, inputs, source_dir, .. } = checked;
    let text = toml::to_string_pretty(config).context("the configuration cannot be written down")?;
    for (name, text) in [("config.toml", text.as_str()), (inputs::FILE, &inputs.to_text())] {
        // what a resumed run was begun with stays
        if directory.is_new() || !directory.path().join(name).exists() {
            directory.replace(name, text.as_bytes())?;
        }
    }
    let database = Database::open(&directory.database(), run, config.seed, &text, seam.clock)?;
    for what in database.held()? {
        database.hold(what, false)?;
        talk(&format!("{} was held by an operator, and goes on: a run in one process has no shell", what.name()));
    }
    let provider = LocalProvider::new(config.sandbox.local.clone(), directory.path().join("sandboxes"))?;
    let swept = provider.sweep().await?;
    if !swept.removed.is_empty() {
        talk(&format!("{} sandboxes that a lost process left behind were removed", swept.removed.len()));
    }
    provider.check().await.context("this machine cannot make sandboxes")?;
    data::check_images(&provider, &checked.images, &checked.datasets).await?;
    let model_dir = initial_model(config, source_dir.clone(), directory.path())?;
    Ok((database, provider, model_dir))
}

/// Takes a run back that could not be begun; what made it fail is told, not what went wrong here.
pub(super) fn abandon(directory: RunDirectory) {
    if let Err(error) = directory.abandon() {
        tracing::warn!(%error, "the begun run could not be removed");
    }
}
