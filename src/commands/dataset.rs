//! `greenroom dataset`: data sets, made and checked.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use greenroom::core::Seed;
use greenroom::rollout::dataset::make::{self, BugsData, BugsRequest, MakeProgress};
use greenroom::sandbox::LocalProviderConfig;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::{DatasetCommand, MakeBugs};

pub(super) fn run(command: DatasetCommand) -> anyhow::Result<ExitCode> {
    match command {
        DatasetCommand::Quickstart { out, seed } => quickstart(&out, seed),
        DatasetCommand::MakeBugs(arguments) => make_bugs(&arguments),
        DatasetCommand::Check(arguments) => super::dataset_check::run(&arguments),
    }
}

fn quickstart(out: &Path, seed: u64) -> anyhow::Result<ExitCode> {
    let bar = bar()?;
    let made = make::quickstart(out, Seed::new(seed), &|progress| show(&bar, progress)).map_err(coded)?;
    bar.finish_and_clear();
    eprintln!(
        "{} tasks to train on, {} held out, each checked: its fix earns 1, nothing earns 0",
        made.rl_tasks, made.heldout_tasks
    );
    super::print(&out.display().to_string())
}

fn make_bugs(arguments: &MakeBugs) -> anyhow::Result<ExitCode> {
    let packages: Result<_, make::MakeError> = arguments.packages.iter().map(|package| package.parse()).collect();
    let request = BugsRequest {
        packages: packages.map_err(coded)?,
        tasks_per_package: arguments.tasks_per_package,
        seed: Seed::new(arguments.seed),
        python: arguments.python.clone(),
    };
    let bar = bar()?;
    let made = make::bugs(&arguments.out, &request, &|progress| show(&bar, progress)).map_err(coded)?;
    bar.finish_and_clear();
    let settings = write_settings(&made)?;
    let total: u32 = made.counts.values().sum();
    for (package, count) in &made.counts {
        eprintln!("{count:4} tasks of {package}");
    }
    for problem in made.failed.values() {
        eprintln!("   no tasks: {problem}");
    }
    eprintln!(
        "{total:4} tasks, each checked twice: its fix earns 1, nothing earns 0. To check them in sandboxes, then train:"
    );
    eprintln!("  greenroom dataset check {}", made.tasks.display());
    eprintln!(
        "  greenroom up --config config/bugs/bugs.toml --config {} --set model.dir=DIR --name NAME",
        settings.display()
    );
    super::print(&arguments.out.display().to_string())?;
    // what was asked for is not all there
    Ok(if made.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes `data.toml` beside the tasks: where they are, and what sandboxes must see of the tests' Python.
fn write_settings(made: &BugsData) -> anyhow::Result<PathBuf> {
    let root = made.tasks.parent().context("the tasks lie in no folder")?;
    let mut paths = LocalProviderConfig::default().read_only_paths;
    for path in &made.python_paths {
        if !paths.iter().any(|known| path.starts_with(known)) {
            paths.push(path.clone());
        }
    }
    let settings = serde_json::json!({
        "data": { "root": root, "train": "tasks.jsonl", "images_dir": "images" },
        "sandbox": { "local": { "read_only_paths": paths } },
    });
    let text = format!(
        "# Where the tasks are, and what sandboxes see of this machine: the system, and the Python that runs the tests.\n\n{}",
        toml::to_string_pretty(&settings)?
    );
    let file = root.join("data.toml");
    std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    Ok(file)
}

/// The error with its code before it, for `greenroom explain`.
fn coded(error: make::MakeError) -> anyhow::Error {
    anyhow::anyhow!("{}: {error}", error.code())
}

pub(super) fn bar() -> anyhow::Result<ProgressBar> {
    let bar = ProgressBar::new(1);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}")?);
    Ok(bar)
}

fn show(bar: &ProgressBar, progress: MakeProgress) {
    bar.set_length(progress.total.into());
    bar.set_position(progress.done.into());
    bar.set_message(progress.what);
}
