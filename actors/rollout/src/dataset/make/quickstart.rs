//! Everything a first run needs, made in one folder.
//!
//! `images/<project>` are clean git work trees (and `images/blank` for `cmd` tasks), `rl.jsonl` and `heldout.jsonl` the
//! tasks, `swesmith.jsonl` the same bugs in SWE-smith's own columns, `sft.jsonl` the demonstrations, `model/` tokenizer, chat
//! template and configuration. A folder that was made before is made anew; one that holds anything else is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use greenroom_core::Seed;
use serde_json::Value;

use super::MakeProgress;
use super::command_task::{self, BLANK_IMAGE, CommandTask};
use super::content::{self, Bug, PROJECTS, Project, Split};
use super::demonstration::Demonstrator;
use super::error::MakeError;
use super::instance::{Instance, Nursery, TestRun};
use super::repository::Repository;
use super::tokenizer;

/// Demonstrations for the warm start.
const DEMONSTRATIONS: u32 = 4800;
/// Demonstrations the tokenizer is trained on; they do not depend on the run's seed, so neither does the tokenizer.
const CORPUS_DEMONSTRATIONS: u32 = 600;
/// Stands in a folder that was made here.
const MARKER: &str = ".quickstart";

/// Where everything is.
#[derive(Clone, Debug)]
pub struct QuickstartData {
    /// Tasks for reinforcement, in the sample schema.
    pub rl: PathBuf,
    /// Tasks that are never trained on, in the sample schema.
    pub heldout: PathBuf,
    /// The bugs of both, in SWE-smith's columns.
    pub swesmith: PathBuf,
    /// Demonstrations: `{instance_id, messages: [{role, content}]}` a line.
    pub sft: PathBuf,
    /// Name of an image, as in the rows → the folder that a sandbox's work tree is a copy of.
    pub images: BTreeMap<String, PathBuf>,
    /// `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` and the policy's `config.json`; no weights.
    pub model: PathBuf,
    /// The agent file.
    pub agent: PathBuf,
    /// Size of the vocabulary.
    pub vocabulary: u32,
    /// Number of tasks for reinforcement.
    pub rl_tasks: u32,
    /// Number of tasks that are never trained on.
    pub heldout_tasks: u32,
}

/// One project's image and instances.
struct Made {
    image: String,
    folder: PathBuf,
    instances: Vec<(Split, Instance)>,
}

/// Makes the quickstart's data in `folder`. `seed` changes only which demonstrations are drawn. `progress` is called from
/// several threads.
///
/// # Errors
/// [`MakeError`]: a missing git or python3, a folder that cannot be written, a task that fails its check.
pub fn quickstart(
    folder: &Path,
    seed: Seed,
    progress: &(dyn Fn(MakeProgress) + Sync),
) -> Result<QuickstartData, MakeError> {
    prepare(folder, MARKER)?;
    let bugs = content::bugs()?;
    let tasks = command_task::all(&content::commands()?);
    let wanted = bugs.iter().filter(|bug| bug.split != Split::Sft).count() as u32;
    let (total, done) = (wanted + 3, AtomicU32::new(0));
    let step = |what: String| {
        progress(MakeProgress { done: done.fetch_add(1, Ordering::Relaxed) + 1, total, what });
    };
    let made = projects(&folder.join("images"), &bugs, &step)?;
    let demonstrator = Demonstrator::new(&bugs, &tasks)?;
    write_rows(&folder.join("sft.jsonl"), &demonstrator.draw(seed, DEMONSTRATIONS)?)?;
    step("demonstrations".to_owned());
    let corpus = corpus(&demonstrator, &bugs, &tasks)?;
    let vocabulary = tokenizer::write(&folder.join("model"), &corpus)?;
    step("tokenizer".to_owned());
    let data = finish(folder, made, &tasks, vocabulary)?;
    step("command tasks".to_owned());
    Ok(data)
}

/// Makes an empty folder that says that it may be made anew.
pub(super) fn prepare(folder: &Path, marker: &str) -> Result<(), MakeError> {
    let is_empty = std::fs::read_dir(folder).map(|mut entries| entries.next().is_none()).unwrap_or(true);
    if !is_empty {
        if !folder.join(marker).is_file() {
            return Err(MakeError::file(folder, "holds files that were not made here"));
        }
        std::fs::remove_dir_all(folder).map_err(|error| MakeError::file(folder, error))?;
    }
    std::fs::create_dir_all(folder).map_err(|error| MakeError::file(folder, error))?;
    let marker = folder.join(marker);
    std::fs::write(&marker, "This folder was made by greenroom and may be made anew.\n")
        .map_err(|error| MakeError::file(&marker, error))
}

/// All projects, two at a time.
fn projects(images: &Path, bugs: &[Bug], step: &(dyn Fn(String) + Sync)) -> Result<Vec<Made>, MakeError> {
    let half = PROJECTS.len().div_ceil(2);
    let results = std::thread::scope(|scope| {
        let workers: Vec<_> = PROJECTS
            .chunks(half)
            .map(|some| scope.spawn(move || some.iter().map(|project| make(project, images, bugs, step)).collect()))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_default())
            .collect::<Vec<Vec<Result<Made, MakeError>>>>()
    });
    let made = results.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
    match made.len() == PROJECTS.len() {
        true => Ok(made),
        false => Err(MakeError::check("projects", "a thread that made them ended early; see the log")),
    }
}

fn make(project: &Project, images: &Path, bugs: &[Bug], step: &dyn Fn(String)) -> Result<Made, MakeError> {
    let repository = Repository::of_project(project, &images.join(project.name))?;
    let mut nursery = Nursery::new(repository, "greenroom", project.name, TestRun::unittest(), 2)?;
    let mut instances = Vec::new();
    for bug in bugs.iter().filter(|bug| bug.project == project.name && bug.split != Split::Sft) {
        nursery.repository.write(project.module, &bug.wrong_source())?;
        let name = || format!("{}.{} ({})", bug.project, bug.function, bug.family);
        let verdict = nursery.verdict()?.ok_or_else(|| {
            MakeError::check(name(), "its bug must fail some tests and pass others, the same ones in two runs")
        })?;
        // `Bug::check` has shown that the fix gives the text of main, whose tests pass.
        instances.push((bug.split, nursery.keep(verdict, &bug.family, &bug.problem_statement)?));
        step(name());
    }
    let image = nursery.image.clone();
    Ok(Made { image, folder: nursery.repository.finish()?, instances })
}

/// The text the tokenizer is trained on.
fn corpus(demonstrator: &Demonstrator<'_>, bugs: &[Bug], tasks: &[CommandTask]) -> Result<Vec<String>, MakeError> {
    let mut corpus = Vec::new();
    for row in demonstrator.draw(Seed::new(0), CORPUS_DEMONSTRATIONS)? {
        let messages = row["messages"].as_array().cloned().unwrap_or_default();
        corpus.extend(messages.iter().filter_map(|message| Some(message["content"].as_str()?.to_owned())));
    }
    corpus.extend(bugs.iter().map(|bug| bug.problem_statement.clone()));
    corpus.extend(tasks.iter().map(|task| task.text.clone()));
    corpus.extend(PROJECTS.iter().map(|project| project.source().to_owned()));
    corpus.extend(["system\n", "user\n", "assistant\n"].map(str::to_owned));
    Ok(corpus)
}

fn finish(folder: &Path, made: Vec<Made>, tasks: &[CommandTask], vocabulary: u32) -> Result<QuickstartData, MakeError> {
    let mut samples: BTreeMap<bool, Vec<Value>> = BTreeMap::new();
    let mut instances = Vec::new();
    let mut images = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for project in made {
        images.insert(project.image, project.folder);
        for (split, instance) in project.instances {
            if !ids.insert(instance.instance_id.clone()) {
                return Err(MakeError::check(instance.instance_id, "is there twice"));
            }
            samples.entry(split == Split::Rl).or_default().push(instance.sample());
            let row = serde_json::to_value(&instance)
                .map_err(|error| MakeError::check(&instance.instance_id, error.to_string()))?;
            instances.push(row);
        }
    }
    let scratch = folder.join("scratch");
    for task in tasks.iter().filter(|task| task.split != Split::Sft) {
        samples.entry(task.split == Split::Rl).or_default().push(task.sample(&scratch)?);
    }
    let blank = folder.join("images/blank");
    std::fs::create_dir_all(&blank).map_err(|error| MakeError::file(&blank, error))?;
    images.insert(BLANK_IMAGE.to_owned(), blank);
    let write = |name: &str, rows: &[Value]| write_rows(&folder.join(name), rows);
    let rows = |is_rl: bool| samples.get(&is_rl).map(Vec::as_slice).unwrap_or_default();
    let agent = folder.join("agent.yaml");
    std::fs::write(&agent, content::AGENT_FILE).map_err(|error| MakeError::file(&agent, error))?;
    Ok(QuickstartData {
        rl: write("rl.jsonl", rows(true))?,
        heldout: write("heldout.jsonl", rows(false))?,
        swesmith: write("swesmith.jsonl", &instances)?,
        sft: folder.join("sft.jsonl"),
        images,
        model: folder.join("model"),
        agent,
        vocabulary,
        rl_tasks: rows(true).len() as u32,
        heldout_tasks: rows(false).len() as u32,
    })
}

pub(super) fn write_rows(path: &Path, rows: &[Value]) -> Result<PathBuf, MakeError> {
    let text: String = rows.iter().flat_map(|row| [row.to_string(), "\n".to_owned()]).collect();
    std::fs::write(path, text).map_err(|error| MakeError::file(path, error))?;
    Ok(path.to_owned())
}
