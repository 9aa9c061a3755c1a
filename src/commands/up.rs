//! `greenroom up`: a whole run on this machine.

use std::process::ExitCode;

use anyhow::Context;
use greenroom::config;
#[cfg(feature = "cluster")]
use greenroom::local_cluster::{self, Layout, LocalCluster};
use greenroom::messages::run::ConductorMessage;
use greenroom::run::RunEnd;
#[cfg(feature = "cluster")]
use greenroom::up::Talk;
use greenroom::up::display::Display;
use greenroom::up::{Run, RunPlace, completed};

use crate::cli;
use crate::telemetry::LogFile;

/// The exit status of a run that was stopped and can be resumed.
pub(super) const STOPPED: u8 = 3;

pub(super) fn run(arguments: cli::Up, log_file: &LogFile) -> anyhow::Result<ExitCode> {
    let mut layers = super::layers(&arguments.layers);
    #[cfg(feature = "cluster")]
    let nodes = arguments.nodes;
    let place = RunPlace { runs_dir: arguments.runs, name: arguments.name, resume: arguments.resume };
    // before the configuration, which would be looked for in a run that is not there
    place.check()?;
    if place.resume && layers.files.is_empty() {
        layers.files.push(place.saved_config());
    }
    let config = config::load_for_run(&layers)?.config;
    let lies = std::path::absolute(place.path())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot start")?;
    if place.resume {
        // the database needs a clock, and a clock needs a runtime
        let _guard = runtime.enter();
        if let Some(summary) = completed(&config, &place)? {
            eprintln!("the run {} is complete; its summary is {}", place.name, lies.join("summary.json").display());
            return super::print(&serde_json::to_string_pretty(&summary)?);
        }
    }
    let go_on = format!("greenroom up --runs {} --name {} --resume", place.runs_dir.display(), place.name);
    #[cfg(feature = "cluster")]
    if nodes.is_some() || place.resume && local_cluster::is_of_nodes(&place) {
        let status = runtime.block_on(drive_nodes(config, &place, nodes.flatten(), log_file))?;
        runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        if status == STOPPED {
            eprintln!("stopped; go on with --resume: {go_on}");
        }
        return Ok(ExitCode::from(status));
    }
    let end = runtime.block_on(drive(config, place, log_file))?;
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    ended(end, &lies, &go_on)
}

/// Tells a person of a run's end; it becomes the exit status.
pub(super) fn ended(end: RunEnd, lies: &std::path::Path, go_on: &str) -> anyhow::Result<ExitCode> {
    Ok(match end {
        RunEnd::Completed(summary) => {
            // what makes a run worthless comes last, where it is seen
            eprintln!("the run lies in {}\n{}", lies.display(), summary.in_words());
            super::print(&serde_json::to_string_pretty(&summary)?)?
        }
        RunEnd::Stopped(summary) => {
            eprintln!("{}\nthe run lies in {}", summary.in_words(), lies.display());
            if !go_on.is_empty() {
                eprintln!("stopped; go on with --resume: {go_on}");
            }
            ExitCode::from(STOPPED)
        }
        RunEnd::Failed(reason) => anyhow::bail!("{reason}"),
    })
}

async fn drive(config: config::Config, place: RunPlace, log_file: &LogFile) -> anyhow::Result<RunEnd> {
    let display = Display::new();
    let run = Run::start(config, place, display.talk()).await?;
    log_file.open(&run.directory().path().join("logs").join("greenroom.log"))?;
    let following = display.follow(run.progress());
    let conductor = run.conductor();
    let signals = super::signals::pass_on(display.talk(), move |mode| {
        // a Conductor that is gone has told the end already
        let _ = conductor.cast(ConductorMessage::Stop(mode));
    })?;
    let end = run.wait().await;
    signals.abort();
    following.abort();
    Ok(end)
}

/// Several processes of this same program; what they say is told by this one.
#[cfg(feature = "cluster")]
async fn drive_nodes(
    config: config::Config,
    place: &RunPlace,
    layout: Option<Layout>,
    log_file: &LogFile,
) -> anyhow::Result<u8> {
    let talk: Talk = std::sync::Arc::new(|line: &str| eprintln!("{line}"));
    let program = std::env::current_exe().context("this program's own file")?;
    let cluster = LocalCluster::prepare(config, place, layout, program, talk.clone())?;
    log_file.open(&cluster.dir().join("greenroom.log"))?;
    let (sender, wishes) = tokio::sync::mpsc::unbounded_channel();
    let signals = super::signals::pass_on(talk, move |mode| {
        // nodes that have ended need no word
        let _ = sender.send(mode);
    })?;
    let end = cluster.run(wishes).await;
    signals.abort();
    end
}
