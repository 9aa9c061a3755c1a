//! Everything that can be wrong is found here, before any actor runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use greenroom_core::{Faults, Seam};
use greenroom_messages::{Purpose, RunId};
use greenroom_rollout::Dataset;
use greenroom_run::{Database, RunDirectory, RunError};
use greenroom_sandbox::{ImageSpec, LocalProvider, Provider};
use greenroom_tokens::{ChatTemplate, Tokenizer};

use super::{RunPlace, Talk, data};
use crate::config::Config;

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

/// Reads and checks; the order is from cheap to dear, so that a typing error is told before a model is loaded.
pub(super) async fn prepare(config: Config, place: &RunPlace, talk: &Talk) -> anyhow::Result<Prepared> {
    let problems = config.problems();
    if !problems.is_empty() {
        return Err(crate::config::ConfigError { problems }.into());
    }
    let faults = std::env::var("GREENROOM_FAULTS").unwrap_or_default();
    let seam = Seam::system(config.seed, Faults::parse(&faults).context("GREENROOM_FAULTS")?);
    let datasets = data::datasets(&config)?;
    let images = data::images(&config, &datasets)?;
    let source_dir = config.path(&config.model.dir);
    let tokenizer = Arc::new(Tokenizer::from_dir(&source_dir)?);
    let template = Arc::new(ChatTemplate::from_dir(&source_dir)?);
    let agent = data::agent(&config)?;
    let warm_start = data::warm_start(&config, &tokenizer, &template)?;

    check_name(&place.name)?;
    let path = place.runs_dir.join(&place.name);
    let directory = if place.resume { RunDirectory::resume(&path) } else { RunDirectory::create(&path) };
    let directory = directory.map_err(coded)?;
    let run = RunId::new(place.name.clone());
    let furnished = furnish(&config, &directory, &run, &seam, source_dir, talk).await;
    let (database, provider, model_dir) = furnished.inspect_err(|_| abandon(directory.clone()))?;
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

/// A run's name is a directory's name, and stands in every label of its weights: it must not lead elsewhere.
fn check_name(name: &str) -> anyhow::Result<()> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let begins_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    anyhow::ensure!(
        is_plain && begins_well && name.len() <= 100,
        "GR0906: {name:?} cannot be a run's name: use at most 100 letters, digits and . _ -, the first a letter or digit"
    );
    Ok(())
}

/// What of the run lies in its directory: the configuration, the database, the sandboxes, the initial weights.
async fn furnish(
    config: &Config,
    directory: &RunDirectory,
    run: &RunId,
    seam: &Seam,
    model_source: PathBuf,
    talk: &Talk,
) -> anyhow::Result<(Database, LocalProvider, PathBuf)> {
    let text = toml::to_string_pretty(config).context("the configuration cannot be written down")?;
    if !directory.path().join("config.toml").exists() {
        directory.replace("config.toml", text.as_bytes())?;
    }
    let database = Database::open(&directory.database(), run, config.seed, &text, seam.clock).map_err(coded)?;
    let provider = LocalProvider::new(config.sandbox.local.clone(), directory.path().join("sandboxes"))?;
    let swept = provider.sweep().await?;
    if !swept.removed.is_empty() {
        talk(&format!("{} sandboxes that a lost process left behind were removed", swept.removed.len()));
    }
    provider.check().await.context("this machine cannot make sandboxes")?;
    let model_dir = model(config, directory, model_source)?;
    Ok((database, provider, model_dir))
}

/// The error with its code before it, for `greenroom explain`.
fn coded(error: RunError) -> anyhow::Error {
    anyhow::anyhow!("{}: {error}", error.code())
}

/// Takes a run back that could not be begun; what made it fail is told, not what went wrong here.
pub(super) fn abandon(directory: RunDirectory) {
    if let Err(error) = directory.abandon() {
        tracing::warn!(%error, "the begun run could not be removed");
    }
}

/// The directory with the initial weights: the configured one, or one that is made at random in the run's directory.
fn model(config: &Config, directory: &RunDirectory, source: PathBuf) -> anyhow::Result<PathBuf> {
    if !config.model.init_weights {
        return Ok(source);
    }
    let made = directory.path().join("model");
    if !made.exists() {
        #[cfg(feature = "torch")]
        super::embedded::init_model(&source, &made, config.seed)?;
        #[cfg(not(feature = "torch"))]
        anyhow::bail!("GR0902: model.init_weights needs libtorch, and this binary was built without it");
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn a_name_stays_in_the_directory_of_runs() {
        for name in ["mine", "quickstart-seed0", "a.b_c-1", "7"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "x".repeat(101);
        for name in
            ["", ".", "..", "../x", "a/b", "/tmp/x", ".hidden", "-x", "a b", "a:1", "new\nline", "n\u{e4}h", &long]
        {
            let refused = check_name(name).map_err(|error| error.to_string());
            assert!(refused.is_err_and(|text| text.starts_with("GR0906")), "{name:?}");
        }
    }
}
