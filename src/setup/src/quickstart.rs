//! `cargo quickstart`: from a fresh clone to a trained policy.
//!
//! Each stage leaves a mark of its end, so that a second call does only what is missing. The last stage takes this process's
//! place: an interrupt from the terminal reaches the run itself, and the run's exit status is the command's.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use clap::Args;

use crate::cargo;
use crate::libtorch::{self, Libtorch};
use crate::progress::say;

#[derive(Args)]
pub(crate) struct Options {
    /// Seed of everything random: tasks, weights, sampling.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The directory of all runs [default: `runs` in the repository].
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
    /// The run's name [default: quickstart-seedN].
    #[arg(long, value_parser = name)]
    name: Option<String>,
    /// Run over several nodes, each a process of this machine: controller, trainer, two engines, sandboxes.
    #[arg(long)]
    nodes: bool,
    /// Build with all optimisations, as for real runs: takes longer, into `target/release`.
    #[arg(long)]
    release: bool,
    /// Stop before the training: only set up and build.
    #[arg(long)]
    set_up_only: bool,
}

/// A run's name becomes the name of a folder.
fn name(text: &str) -> Result<String, String> {
    let plain = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    if text.is_empty() || text.starts_with('.') || !text.chars().all(plain) {
        return Err("a name is made of letters, digits, '.', '_' and '-', and does not begin with '.'".to_owned());
    }
    Ok(text.to_owned())
}

/// What is known of the run from its folder.
#[derive(Debug, PartialEq)]
enum State {
    New,
    Incomplete,
    Complete,
}

pub(crate) fn run(options: Options) -> anyhow::Result<ExitCode> {
    let root = cargo::root();
    let runs = std::path::absolute(options.runs.unwrap_or_else(|| root.join("runs")))?;
    let name = options.name.unwrap_or_else(|| format!("quickstart-seed{}", options.seed));
    if !options.set_up_only {
        writable(&runs)?;
    }
    let libtorch = libtorch::provide()?;
    say("building greenroom (the first time takes some minutes)");
    let greenroom = cargo::build_greenroom(&libtorch, options.release)?;
    if options.set_up_only {
        say(&format!("all is set up; the program is {}", greenroom.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let place = runs.join(&name);
    let summary = place.join("summary.json");
    let state = state(&place);
    if state == State::Complete {
        say(&format!("the run {} is complete already: its summary is {}", place.display(), summary.display()));
        say("another --seed or --name makes another run");
        return Ok(ExitCode::SUCCESS);
    }
    let mut up = program(&greenroom, &libtorch);
    up.arg("up").arg("--runs").arg(&runs).args(["--name", &name]);
    if options.nodes {
        up.arg("--nodes");
    }
    if state == State::Incomplete {
        say(&format!("the run {} is there and not complete: going on with it", place.display()));
        up.arg("--resume");
    } else {
        let data = runs.join(format!("{name}.data"));
        make_data(&greenroom, &libtorch, &data, options.seed)?;
        up.arg("--config").arg(root.join("config/quickstart/quickstart.toml"));
        up.args(["--set", &format!("data.root={}", quoted(&data)?), "--set", &format!("seed={}", options.seed)]);
        say(&format!("training in {}", place.display()));
    }
    say(&format!("the summary will be {}; an interrupted run goes on with the same command", summary.display()));
    // returns only when it fails
    Err(up.exec()).with_context(|| format!("{} does not start", greenroom.display()))
}

/// The greenroom binary with what it needs around it.
fn program(greenroom: &Path, libtorch: &Libtorch) -> Command {
    let mut command = Command::new(greenroom);
    cargo::with_libtorch(&mut command, libtorch);
    command
}

/// The path as the value of `--set`, which is TOML.
fn quoted(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not Unicode: choose another --runs", path.display()))?;
    if text.contains(['"', '\\', '\n']) {
        bail!("{text} has characters that cannot stand in a configuration: choose another --runs");
    }
    Ok(format!("\"{text}\""))
}

/// It is better to hear of a folder that cannot be written before the build than after it.
fn writable(runs: &Path) -> anyhow::Result<()> {
    let probe = runs.join(format!(".probe-{}", std::process::id()));
    let tried = std::fs::create_dir_all(runs).and_then(|()| std::fs::write(&probe, ""));
    tried.with_context(|| format!("{} cannot be written: choose another --runs", runs.display()))?;
    std::fs::remove_file(&probe).ok();
    Ok(())
}

/// A run that was stopped has a summary, too, but no evaluation after its last step.
fn state(place: &Path) -> State {
    let summary = std::fs::read_to_string(place.join("summary.json")).unwrap_or_default();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap_or_default();
    if summary["eval_after"].is_number() {
        State::Complete
    } else if place.join("run.db").exists() {
        State::Incomplete
    } else {
        State::New
    }
}

/// Makes the tasks, unless they are there. They are made aside: a folder with the right name is whole.
fn make_data(greenroom: &Path, libtorch: &Libtorch, data: &Path, seed: u64) -> anyhow::Result<()> {
    if data.exists() {
        say(&format!("the tasks are in {} already", data.display()));
        return Ok(());
    }
    say(&format!("making the tasks in {}", data.display()));
    let part = data.with_extension("data.part");
    if part.exists() {
        std::fs::remove_dir_all(&part).with_context(|| format!("{} cannot be removed", part.display()))?;
    }
    let mut make = program(greenroom, libtorch);
    make.args(["dataset", "quickstart", "--seed", &seed.to_string(), "--out"]).arg(&part).stdin(Stdio::null());
    // it prints where they are, which is told here in other words
    let status =
        make.stdout(Stdio::null()).status().with_context(|| format!("{} does not start", greenroom.display()))?;
    if !status.success() {
        bail!("the tasks cannot be made ({status}); greenroom says above why");
    }
    std::fs::rename(&part, data).with_context(|| format!("{} cannot be put in place", data.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_new_then_incomplete_then_complete() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        assert_eq!(state(place), State::New);
        std::fs::write(place.join("run.db"), "").unwrap();
        assert_eq!(state(place), State::Incomplete);
        std::fs::write(place.join("summary.json"), r#"{"steps": 3, "eval_before": 0.1, "eval_after": null}"#).unwrap();
        assert_eq!(state(place), State::Incomplete);
        std::fs::write(place.join("summary.json"), r#"{"steps": 20, "eval_before": 0.1, "eval_after": 0.7}"#).unwrap();
        assert_eq!(state(place), State::Complete);
    }

    #[test]
    fn names_and_paths_that_would_be_misread_are_refused() {
        assert!(name("quickstart-seed0").is_ok());
        for wrong in ["", ".", "..", "a/b", "a b", ".hidden"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
        assert_eq!(quoted(Path::new("/a b/c")).unwrap(), "\"/a b/c\"");
        assert!(quoted(Path::new("/a\"b")).is_err());
    }

    #[test]
    fn an_unwritable_folder_is_named_before_anything_is_built() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = writable(&file.join("runs")).unwrap_err();
        assert!(format!("{error:#}").contains("file/runs cannot be written: choose another --runs"));
        writable(&folder.path().join("runs")).unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("runs")).unwrap().count(), 0);
    }
}
