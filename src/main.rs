//! The `greenroom` binary: parses the command line, runs the command, turns its end into an exit status.

mod cli;
mod commands;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // A sandbox's helper is this same binary; it must stay single-threaded, so it is told apart before anything starts.
    if std::env::args_os().nth(1).is_some_and(|word| word == "box-init") {
        return greenroom::sandbox::box_init_main();
    }
    let arguments = cli::Cli::parse();
    let log_file = telemetry::start(arguments.verbose, arguments.command.tells_all());
    match commands::run(arguments.command, &log_file) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", greenroom::explain::in_words(&error));
            ExitCode::FAILURE
        }
    }
}
