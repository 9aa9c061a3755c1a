//! `greenroom up`: a whole run on this machine.

use std::process::ExitCode;

use anyhow::Context;
use greenroom::config;
use greenroom::messages::run::StopMode;
use greenroom::run::RunEnd;
use greenroom::up::display::Display;
use greenroom::up::{Run, RunPlace};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli;
use crate::telemetry::LogFile;

/// The exit status of a run that was stopped and can be resumed.
const STOPPED: u8 = 3;

pub(super) fn run(arguments: cli::Up, log_file: &LogFile) -> anyhow::Result<ExitCode> {
    let mut layers = super::layers(&arguments.layers);
    if arguments.resume && layers.files.is_empty() {
        layers.files.push(arguments.runs.join(&arguments.name).join("config.toml"));
    }
    let config = config::load(&layers)?.config;
    let go_on = format!("greenroom up --runs {} --name {} --resume", arguments.runs.display(), arguments.name);
    let place = RunPlace { runs_dir: arguments.runs, name: arguments.name, resume: arguments.resume };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot start")?;
    let end = runtime.block_on(drive(config, place, log_file))?;
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    Ok(match end {
        RunEnd::Completed(summary) => {
            eprintln!("{}", summary.in_words());
            super::print(&serde_json::to_string_pretty(&summary)?)?
        }
        RunEnd::Stopped(summary) => {
            eprintln!("{}\nstopped; go on with --resume: {go_on}", summary.in_words());
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
    let talk = display.talk();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let signals = greenroom::core::spawn_named("signals", async move {
        for (mode, words) in [
            (StopMode::AfterStep, "stopping after the step under way; once more to stop now"),
            (StopMode::Now, "stopping now"),
        ] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            talk(words);
            // a Conductor that is gone has told the end already
            let _ = conductor.cast(greenroom::messages::run::ConductorMessage::Stop(mode));
        }
    });
    let end = run.wait().await;
    signals.abort();
    following.abort();
    Ok(end)
}
