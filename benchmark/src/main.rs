//! `greenroom-benchmark`: what greenroom measures and against whom; see `benchmark/README.md`.
//!
//! * [`result`]: the format that all benches share; [`table`]: the page made from it.
//! * [`actors`], [`agent_path`], [`dataplane`], `policy_cpu`: the benches. Each runs ours and the peer by turns in one go.
//! * [`measure`], [`peer`]: time, processor time, and the other side.
//!
//! Talk goes to stderr; the results are files. A bench that fails writes nothing.

mod actors;
mod agent_path;
mod dataplane;
mod measure;
mod peer;
#[cfg(feature = "torch")]
mod policy_cpu;
mod result;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "greenroom-benchmark", about = "What greenroom measures and against whom")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Asks, messages and bulk between nodes, next to Ray's actors and bare TCP; very many AgentLoops.
    Actors(PeerOptions),
    /// The agent path with an instant engine and an instant sandbox, next to mini-swe-agent.
    AgentPath(PeerOptions),
    /// Bulk bytes by QUIC, TLS/TCP and a directory, next to plain TCP; a chain of receivers, next to one.
    Dataplane,
    /// Training and generation on the CPU, next to transformers.
    #[cfg(feature = "torch")]
    PolicyCpu(PeerOptions),
    /// Our side of the agent path alone, again and again, for a profiler; writes nothing.
    AgentPathProfile {
        /// How often 64 episodes are played.
        #[arg(long, default_value_t = 10)]
        rounds: u32,
    },
    /// A node of the bench `actors`: started by it, obeys requests line by line.
    #[command(hide = true)]
    ActorsNode {
        /// The node's settings as JSON; none: it belongs to no cluster.
        #[arg(long)]
        config: Option<String>,
    },
    /// Bring the table in benchmark/README.md up to date.
    Table,
}

#[derive(clap::Args)]
struct PeerOptions {
    /// The Python interpreter that has the peer's packages.
    #[arg(long, env = "GREENROOM_BENCH_PYTHON", default_value = "python3")]
    python: String,
}

fn run() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Actors(options) => actors::run(&options.python)?.write(),
        Command::ActorsNode { config } => actors::run_node(config.as_deref()),
        Command::AgentPath(options) => agent_path::run(&options.python)?.write(),
        Command::Dataplane => dataplane::run()?.write(),
        #[cfg(feature = "torch")]
        Command::PolicyCpu(options) => policy_cpu::run(&options.python)?.write(),
        Command::AgentPathProfile { rounds } => agent_path::profile(rounds),
        Command::Table => {
            let changed = table::update()?;
            eprintln!("benchmark/README.md {}", if changed { "is brought up to date" } else { "was up to date" });
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
