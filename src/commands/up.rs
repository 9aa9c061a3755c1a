//! `greenroom up`: a whole run on this machine.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use greenroom::config;
#[cfg(feature = "cluster")]
use greenroom::local_cluster::{self, Layout, LocalCluster};
use greenroom::messages::run::{ConductorMessage, StopMode};
use greenroom::run::RunEnd;
use greenroom::up::display::Display;
use greenroom::up::{Run, RunPlace, Talk, completed};
use tokio::sync::mpsc;

use crate::cli;
use crate::telemetry::LogFile;

/// The exit status of a run that was stopped and can be resumed.
pub(super) const STOPPED: u8 = 3;

pub(super) fn run(arguments: cli::Up, log_file: &LogFile) -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot start")?;
    // before anything that takes time: a wish to end is heard from the first moment on
    let wishes = {
        let _guard = runtime.enter();
        Wishes::hear()?
    };
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
    if place.resume {
        // the database needs a clock, and a clock needs a runtime
        let _guard = runtime.enter();
        if let Some(summary) = completed(&config, &place)? {
            eprintln!("the run {} is complete; its summary is {}", place.name, lies.join("summary.json").display());
            return super::print(&serde_json::to_string_pretty(&summary)?);
        }
    }
    let go_on =
        format!("go on with --resume: greenroom up --runs {} --name {} --resume", place.runs_dir.display(), place.name);
    #[cfg(feature = "cluster")]
    if nodes.is_some() || place.resume && local_cluster::is_of_nodes(&place) {
        let status = runtime.block_on(drive_nodes(config, &place, nodes.flatten(), log_file, wishes))?;
        runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        if status == STOPPED {
            eprintln!("stopped; {go_on}");
        } else if status != 0 && place.path().join("run.db").exists() {
            eprintln!("when that is mended, {go_on}");
        }
        return Ok(ExitCode::from(status));
    }
    let has_begun = place.path().join("run.db");
    let end = runtime.block_on(drive(config, place, log_file, wishes));
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    match end? {
        Some(end) => ended(end, &lies, &go_on),
        None if has_begun.exists() => {
            eprintln!("stopped while it started; {go_on}");
            Ok(ExitCode::from(STOPPED))
        }
        None => {
            eprintln!("stopped before the run had begun; give the same command again");
            Ok(ExitCode::from(STOPPED))
        }
    }
}

/// Wishes to end the run, heard from the program's start on.
struct Wishes {
    wishes: mpsc::UnboundedReceiver<StopMode>,
    talk: Arc<Mutex<Talk>>,
}

impl Wishes {
    fn hear() -> anyhow::Result<Self> {
        let plain: Talk = Arc::new(|line: &str| eprintln!("{line}"));
        let talk = Arc::new(Mutex::new(plain));
        let (sender, wishes) = mpsc::unbounded_channel();
        let said = talk.clone();
        let say: Talk = Arc::new(move |line: &str| {
            let talk = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
            talk(line);
        });
        // the task ends with the program
        super::signals::pass_on(say, move |mode| {
            // a run that has ended needs no word
            let _ = sender.send(mode);
        })?;
        Ok(Self { wishes, talk })
    }

    /// From here on it is said so that it was heard.
    fn say_by(&self, talk: Talk) {
        *self.talk.lock().unwrap_or_else(PoisonError::into_inner) = talk;
    }

    /// Resolves with the first wish that cannot wait.
    async fn wish_to_stop_now(&mut self, heard: &mut Vec<StopMode>) {
        while let Some(mode) = self.wishes.recv().await {
            heard.push(mode);
            if mode == StopMode::Now {
                return;
            }
        }
        std::future::pending().await
    }
}

/// Tells a person of a run's end, and by `go_on` how it goes on; it becomes the exit status.
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
                eprintln!("stopped; {go_on}");
            }
            ExitCode::from(STOPPED)
        }
        RunEnd::Failed(reason) if go_on.is_empty() => anyhow::bail!("{reason}"),
        RunEnd::Failed(reason) => {
            anyhow::bail!("{reason}\nthe run lies in {}; when that is mended, {go_on}", lies.display())
        }
    })
}

/// The run to its end; nothing where it was stopped while it started.
async fn drive(
    config: config::Config,
    place: RunPlace,
    log_file: &LogFile,
    mut wishes: Wishes,
) -> anyhow::Result<Option<RunEnd>> {
    let display = Display::new();
    wishes.say_by(display.talk());
    let mut heard = Vec::new();
    let run = tokio::select! {
        biased;
        run = Run::start(config, place, display.talk()) => run?,
        () = wishes.wish_to_stop_now(&mut heard) => return Ok(None),
    };
    log_file.open(&run.directory().path().join("logs").join("greenroom.log"))?;
    let following = display.follow(run.progress());
    let conductor = run.conductor();
    let passing = greenroom::core::spawn_named("wishes", async move {
        let mut wish = heard.pop();
        loop {
            if let Some(mode) = wish {
                // a Conductor that is gone has told the end already
                let _ = conductor.cast(ConductorMessage::Stop(mode));
            }
            wish = wishes.wishes.recv().await;
            if wish.is_none() {
                return;
            }
        }
    });
    let end = run.wait().await;
    passing.abort();
    following.abort();
    Ok(Some(end))
}

/// Several processes of this same program; what they say is told by this one.
#[cfg(feature = "cluster")]
async fn drive_nodes(
    config: config::Config,
    place: &RunPlace,
    layout: Option<Layout>,
    log_file: &LogFile,
    wishes: Wishes,
) -> anyhow::Result<u8> {
    let talk: Talk = Arc::new(|line: &str| eprintln!("{line}"));
    let program = std::env::current_exe().context("this program's own file")?;
    let cluster = LocalCluster::prepare(config, place, layout, program, talk)?;
    log_file.open(&cluster.dir().join("greenroom.log"))?;
    cluster.run(wishes.wishes).await
}
