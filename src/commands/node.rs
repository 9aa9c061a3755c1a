//! `greenroom node`: this machine's part of a run over several.

use std::process::ExitCode;

use anyhow::Context;
use greenroom::config;
use greenroom::messages::node::RunOver;
use greenroom::node::{Node, NodeConfig, NodeEnd};
use greenroom::up::display::Display;
use tokio::sync::mpsc;

use crate::cli;
use crate::telemetry::LogFile;

/// The exit status of a node whose gang, or whose controller, did not come in time.
const NOT_COMPLETE: u8 = 4;

pub(super) fn run(arguments: cli::NodeCommand, log_file: &LogFile) -> anyhow::Result<ExitCode> {
    if let Some(parent) = arguments.parent {
        greenroom::local_cluster::end_with_parent(parent)?;
    }
    let node = NodeConfig::load(&arguments.config)?;
    let layers = config::Layers {
        files: node.config.clone(),
        environment: std::env::vars().collect(),
        settings: arguments.set.clone(),
    };
    let config = config::load_for_run(&layers)?.config;
    let runtime = greenroom::core::runtime(node.actor_threads).context("the runtime cannot start")?;
    let lies = node.run_directory();
    let go_on = match arguments.parent {
        // who started the node says how
        Some(_) => String::new(),
        None => format!("go on with the same command: greenroom node --config {}", arguments.config.display()),
    };
    let end = runtime.block_on(drive(node, config, log_file));
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    match end {
        Ok(NodeEnd::Run { end: Some(end), .. }) => super::up::ended(end, &lies, &go_on),
        Ok(NodeEnd::Run { over, end: None }) => Ok(over_with(&over)),
        Ok(NodeEnd::Left) => {
            eprintln!("{}", if go_on.is_empty() { "left".to_owned() } else { format!("left; {go_on}") });
            Ok(ExitCode::from(super::up::STOPPED))
        }
        Ok(NodeEnd::Failed(error)) => failed(error.into()),
        Err(error) => failed(error),
    }
}

/// Says how the run ended; a node ends as the run did.
fn over_with(over: &RunOver) -> ExitCode {
    eprintln!("the run has ended: {}", over.outcome);
    ExitCode::from(over.status)
}

/// A gang that is not complete has a status of its own, so that who starts nodes can tell it from a fault.
fn failed(error: anyhow::Error) -> anyhow::Result<ExitCode> {
    use greenroom::node::NodeError;
    match error.downcast_ref::<NodeError>() {
        Some(missing @ (NodeError::Gang { .. } | NodeError::NoController { .. })) => {
            eprintln!("error: {}: {missing}", missing.code());
            Ok(ExitCode::from(NOT_COMPLETE))
        }
        Some(NodeError::Over { over }) => Ok(over_with(over)),
        Some(known) => anyhow::bail!("{}: {known}", known.code()),
        None => Err(error),
    }
}

async fn drive(node: NodeConfig, config: config::Config, log_file: &LogFile) -> anyhow::Result<NodeEnd> {
    let display = Display::new();
    node.make_state_dir()?;
    log_file.open(&node.state_dir.join("greenroom.log"))?;
    let (sender, mut leave) = mpsc::unbounded_channel();
    // from the first moment on: a node that waits for its gang must be stoppable, too
    let words = if node.plays("controller") { super::signals::STOPPING } else { super::signals::LEAVING };
    let signals = super::signals::pass_on_saying(words, display.talk(), move |mode| {
        // a node that has ended leaves without being told
        let _ = sender.send(mode);
    })?;
    let started = tokio::select! {
        started = Node::start(node, config, display.talk()) => started,
        Some(_) = leave.recv() => {
            signals.abort();
            return Ok(NodeEnd::Left);
        }
    };
    let node = started.inspect_err(|_| signals.abort())?;
    let following = node.progress().map(|progress| display.follow(progress));
    let end = node.wait(leave).await;
    signals.abort();
    if let Some(following) = following {
        following.abort();
    }
    Ok(end)
}
