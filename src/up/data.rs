//! Tasks, images, demonstrations and the agent of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use greenroom_messages::Purpose;
use greenroom_messages::trainer::WarmStart;
use greenroom_rollout::Dataset;
use greenroom_rollout::agent::{AgentDefinition, AgentFile};
use greenroom_rollout::dataset::load_demonstrations;
use greenroom_sandbox::{ImageSpec, Isolation, LocalProvider, SandboxError};
use greenroom_tokens::{ChatTemplate, Tokenizer};

use crate::StartError;
use crate::config::{Config, ImageConfig};
use crate::files::{self, Limit};

/// The data sets by purpose.
pub(crate) fn datasets(config: &Config) -> anyhow::Result<BTreeMap<Purpose, Arc<Dataset>>> {
    let load = |setting: &'static str, path: &Path| -> anyhow::Result<Arc<Dataset>> {
        let path = config.path(path);
        files::check(setting, &path, Limit::LARGE)?;
        Ok(Arc::new(Dataset::load(&path).context(setting)?))
    };
    let mut datasets = BTreeMap::from([(Purpose::Train, load("data.train", &config.data.train)?)]);
    if let Some(held_out) = &config.data.held_out {
        datasets.insert(Purpose::HeldOut, load("data.held_out", held_out)?);
    }
    Ok(datasets)
}

/// The tasks of a file that is looked at before it is read; `setting` names it in errors.
///
/// # Errors
/// [`StartError::File`] (GR0907), or what is wrong with its rows.
pub fn dataset(setting: &str, path: &Path) -> anyhow::Result<Dataset> {
    files::check(setting, path, Limit::LARGE)?;
    Ok(Dataset::load(path)?)
}

/// The images that the tasks of a data set need, by name.
///
/// # Errors
/// GR0905: some are missing; or one's directory cannot be read.
pub fn images_of(config: &Config, dataset: &Dataset) -> anyhow::Result<BTreeMap<String, ImageSpec>> {
    let images = needed_images(config, &dataset.images())?;
    Ok(images.into_iter().map(|image| (image.name.clone(), image)).collect())
}

/// The images that the tasks need.
pub(crate) fn images(config: &Config, datasets: &BTreeMap<Purpose, Arc<Dataset>>) -> anyhow::Result<Vec<ImageSpec>> {
    needed_images(config, &datasets.values().flat_map(|dataset| dataset.images()).collect())
}

fn needed_images(config: &Config, needed: &BTreeSet<String>) -> anyhow::Result<Vec<ImageSpec>> {
    let known = known_images(config)?;
    let missing: Vec<&str> = needed.iter().filter(|name| !known.contains_key(*name)).map(String::as_str).collect();
    if !missing.is_empty() {
        return Err(StartError::Images { text: lacking(&missing, &known) }.into());
    }
    known.into_iter().filter(|(name, _)| needed.contains(name)).map(|(name, image)| spec(config, name, image)).collect()
}

/// Which images are missing, which there are, and what to do.
fn lacking(missing: &[&str], known: &BTreeMap<String, ImageConfig>) -> String {
    let known: Vec<&str> = known.keys().map(String::as_str).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    // the name that a task has which names none
    let unnamed = if missing.contains(&"default") {
        "; a task whose metadata names no image needs the one called default: name it in the task, or configure \
         data.images.default (an empty table for an empty directory)"
    } else {
        ""
    };
    format!(
        "tasks need images that are not configured: {}; configured are: {known}. Name each under \
         data.images.NAME.source_dir, or put a directory of its name into data.images_dir{unnamed}",
        missing.join(", ")
    )
}

fn known_images(config: &Config) -> anyhow::Result<BTreeMap<String, ImageConfig>> {
    let mut known = BTreeMap::new();
    if let Some(dir) = &config.data.images_dir {
        let dir = config.path(dir);
        let entries =
            std::fs::read_dir(&dir).map_err(|error| StartError::file("data.images_dir", &dir, error.to_string()))?;
        for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let source_dir = Some(std::path::absolute(entry.path())?);
            known.insert(name, ImageConfig { source_dir, ..ImageConfig::default() });
        }
    }
    known.extend(config.data.images.clone());
    Ok(known)
}

fn spec(config: &Config, name: String, image: ImageConfig) -> anyhow::Result<ImageSpec> {
    let mut source_dir = None;
    if let Some(dir) = image.source_dir {
        let dir = std::path::absolute(config.path(&dir))?;
        if !dir.is_dir() {
            let setting = format!("data.images.{name}.source_dir");
            return Err(StartError::file(&setting, &dir, "it is no directory".to_owned()).into());
        }
        source_dir = Some(dir);
    }
    let mut spec = ImageSpec::new(name, source_dir);
    spec.workdir = image.workdir.unwrap_or(spec.workdir);
    spec.env = image.env;
    Ok(spec)
}

/// Boxes without walls have no directory of a given name, and none that the agent cannot reach: tasks that need either are
/// refused.
pub(crate) fn check_walls(config: &Config, datasets: &BTreeMap<Purpose, Arc<Dataset>>) -> Result<(), StartError> {
    if config.sandbox.local.isolation == Isolation::Namespaces {
        return Ok(());
    }
    for task in datasets.values().flat_map(|dataset| dataset.tasks()) {
        let why = match (&task.workdir, task.needs_commits()) {
            (_, true) => "is graded in an untouched sandbox (eval_kind swesmith)",
            (Some(_), _) => "names a workdir",
            (None, false) => continue,
        };
        return Err(StartError::Walls { task: task.id.to_string(), why });
    }
    Ok(())
}

/// Makes a sandbox of each image once: one that cannot be used is told before anything is rolled out, with a task that
/// needs it.
pub(crate) async fn check_images(
    provider: &LocalProvider,
    images: &[ImageSpec],
    datasets: &BTreeMap<Purpose, Arc<Dataset>>,
) -> anyhow::Result<()> {
    let Err(error) = provider.check_images(images).await else { return Ok(()) };
    let SandboxError::CreateFailed { image, .. } = &error else { return Err(error.into()) };
    let mut tasks = datasets.values().flat_map(|dataset| dataset.tasks());
    let needed_by = tasks.find(|task| task.image == *image).map(|task| format!("the image of task {}", task.id));
    Err(anyhow::Error::from(error).context(needed_by.unwrap_or_default()))
}

/// The agent file, or the built-in one.
pub(crate) fn agent(config: &Config) -> anyhow::Result<AgentFile> {
    let Some(file) = &config.agent.file else {
        return Ok(AgentFile::from_yaml(include_str!("../../config/agent/default.yaml"), "the built-in agent file")?);
    };
    let path = config.path(file);
    let text = files::read_text("agent.file", &path, Limit::SMALL)?;
    let agent = AgentFile::from_yaml(&text, &path.display().to_string())?;
    // its templates are compiled again by those who use them; here the file can still be named
    AgentDefinition::new(agent.clone()).with_context(|| format!("agent.file {}", path.display()))?;
    Ok(agent)
}

/// The demonstrations, as the trainer takes them.
pub(crate) fn warm_start(
    config: &Config,
    tokenizer: &Arc<Tokenizer>,
    template: &Arc<ChatTemplate>,
) -> anyhow::Result<Option<WarmStart>> {
    let Some(path) = &config.data.demonstrations else { return Ok(None) };
    let path = config.path(path);
    files::check("data.demonstrations", &path, Limit::LARGE)?;
    let samples = load_demonstrations(&path, tokenizer, template, &config.rollout.template_variables)
        .context("data.demonstrations")?;
    Ok(Some(WarmStart {
        samples,
        epochs: config.warm_start.epochs,
        tokens_per_step: config.warm_start.tokens_per_step,
        learning_rate: config.warm_start.learning_rate,
        seed: config.seed,
    }))
}
