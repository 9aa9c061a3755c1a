//! The commands. Each prints data on stdout and talks on stderr; its result becomes the exit status.

#[cfg(feature = "cluster")]
mod ca;
mod check;
#[cfg(feature = "cluster")]
mod completion;
#[cfg(feature = "cluster")]
mod ctl;
mod dataset;
mod dataset_check;
mod engine;
#[cfg(feature = "cluster")]
mod node;
#[cfg(feature = "cluster")]
mod shell;
mod signals;
mod up;

use std::io::Write;
use std::process::ExitCode;

use greenroom::config::{self, Layers};

use crate::cli::{self, Command, ConfigCommand};
use crate::telemetry::LogFile;

/// Runs a command.
pub(crate) fn run(command: Command, log_file: &LogFile) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(up) => up::run(up, log_file),
        Command::Config { command: ConfigCommand::Show { layers, origin } } => show(&layers, origin),
        Command::Dataset { command } => dataset::run(command),
        Command::Check { run } => check::run(&run),
        Command::Engine(engine) => engine::run(engine),
        #[cfg(feature = "cluster")]
        Command::Node(node) => node::run(node, log_file),
        #[cfg(feature = "cluster")]
        Command::Shell(way) => shell::run(&way),
        #[cfg(feature = "cluster")]
        Command::Ctl(ctl) => ctl::run(ctl),
        #[cfg(feature = "cluster")]
        Command::Ca { command } => ca::run(command),
        Command::Explain { code } => explain(code.as_deref()),
    }
}

/// The layers that the command line names, with this process's environment.
fn layers(named: &cli::Layers) -> Layers {
    Layers { files: named.config.clone(), environment: std::env::vars().collect(), settings: named.set.clone() }
}

fn show(named: &cli::Layers, origin: bool) -> anyhow::Result<ExitCode> {
    let loaded = config::load(&layers(named))?;
    let shown = print(&if origin { loaded.with_origins() } else { loaded.to_toml() })?;
    let problems = loaded.problems();
    if problems.is_empty() { Ok(shown) } else { Err(config::ConfigError { problems }.into()) }
}

fn explain(code: Option<&str>) -> anyhow::Result<ExitCode> {
    let Some(code) = code else {
        let lines: Vec<String> =
            greenroom::explain::pages().iter().map(|page| format!("{}  {}", page.code, page.cause)).collect();
        return print(&lines.join("\n"));
    };
    match greenroom::explain::page(code) {
        Some(page) => print(&format!("{}\ncause:  {}\nremedy: {}", page.code, page.cause, page.remedy)),
        None => anyhow::bail!("{code:?} is no error code; `greenroom explain` lists them all"),
    }
}

/// Prints data. A reader that went away (`| head`) is no error.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}
