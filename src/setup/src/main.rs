//! The two commands of a fresh clone: `cargo quickstart` and `cargo verify`.
//!
//! Both set up what greenroom needs first. This crate is built before any of that exists, so it has few dependencies and none
//! of the workspace; what needs the network or an archive is done by small scripts of Python's standard library, because a
//! Python with pip is there in any case. Everything that happens twice changes nothing the second time; everything that is
//! interrupted goes on where it was. All talk goes to stderr.

mod cargo;
mod libtorch;
mod progress;
mod python;
mod quickstart;
mod test_needs;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo", bin_name = "cargo", about = "greenroom's two commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up what is needed, then train a small policy on bug-fixing tasks: the first run to look at.
    ///
    /// Fetches libtorch into a cache unless a fitting PyTorch is installed, builds greenroom, makes the tasks, trains.
    /// A run that was stopped goes on; a run that is complete is left as it is.
    ///
    /// LIBTORCH names a libtorch to use; GREENROOM_CACHE names the cache's folder.
    Quickstart(quickstart::Options),
    /// Run every check and test of the workspace, as CI does.
    ///
    /// Formatting, clippy, a build without libtorch, all tests. What cannot be tested on this machine is named at the end.
    Verify(verify::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Quickstart(options) => quickstart::run(options),
        Command::Verify(options) => verify::run(&options),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
