//! `cargo verify`: every check and test of the workspace, as CI does it.
//!
//! A stage that fails does not keep the next from running: one call tells everything. The last lines say how each stage went
//! and what could not be tested on this machine.

use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::cargo;
use crate::libtorch;
use crate::progress::say;
use crate::test_needs::TestNeeds;

#[derive(Args)]
pub(crate) struct Options {
    /// Only the tests: no formatting, no clippy, no build without libtorch.
    #[arg(long)]
    fast: bool,
    /// Only tests whose names have one of these in them.
    #[arg(last = true, value_name = "FILTER")]
    filters: Vec<String>,
}

/// A stage's end.
struct Stage {
    name: &'static str,
    passed: bool,
    took: Duration,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let libtorch = libtorch::provide()?;
    let mut needs = TestNeeds::provide();
    let mut stages = Vec::new();
    if !options.fast {
        stages.push(stage("formatting", cargo::command().args(["fmt", "--all", "--check"]))?);
        let mut clippy = cargo::command();
        clippy.args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]);
        stages.push(stage("clippy", cargo::with_libtorch(&mut clippy, &libtorch))?);
        // whatever the user has set, this build must do without
        let mut without = cargo::command();
        without.args(["check", "--package", "greenroom", "--no-default-features"]);
        without.env_remove("LIBTORCH").env_remove("LIBTORCH_USE_PYTORCH");
        stages.push(stage("build without libtorch", &mut without)?);
    }
    let mut tests = tests(&options.filters);
    tests.envs(needs.environment.drain(..));
    stages.push(stage("tests", cargo::with_libtorch(&mut tests, &libtorch))?);
    Ok(tell(&stages, &needs.skipped, options))
}

/// All tests: through cargo-nextest if it is installed.
fn tests(filters: &[String]) -> Command {
    let mut tests = cargo::command();
    if nextest() {
        tests.args(["nextest", "run", "--workspace", "--no-fail-fast", "--"]).args(filters);
    } else {
        say("cargo-nextest is not installed: taking cargo test");
        tests.args(["test", "--workspace", "--no-fail-fast", "--"]).args(filters);
    }
    tests
}

fn nextest() -> bool {
    cargo::command().args(["nextest", "--version"]).output().is_ok_and(|output| output.status.success())
}

fn stage(name: &'static str, command: &mut Command) -> anyhow::Result<Stage> {
    say(name);
    let (status, took) = timed(|| command.status());
    let status = status.with_context(|| format!("{name}: cargo does not start"))?;
    Ok(Stage { name, passed: status.success(), took })
}

/// Runs a command and takes its time.
#[allow(clippy::disallowed_methods, reason = "how long a build took is not a decision; no actor is near")]
fn timed(run: impl FnOnce() -> std::io::Result<ExitStatus>) -> (std::io::Result<ExitStatus>, Duration) {
    let begin = std::time::Instant::now();
    let status = run();
    (status, begin.elapsed())
}

fn tell(stages: &[Stage], skipped: &[String], options: &Options) -> ExitCode {
    say("verify:");
    for Stage { name, passed, took } in stages {
        let word = if *passed { "passed" } else { "FAILED" };
        say(&format!("  {word}  {name} ({} s)", took.as_secs()));
    }
    if options.fast {
        say("  skipped formatting, clippy, build without libtorch (--fast)");
    }
    for what in skipped {
        say(&format!("  skipped {what}"));
    }
    let failed = stages.iter().filter(|stage| !stage.passed).count();
    if failed == 0 {
        say(&format!("verify: all {} stages passed", stages.len()));
        ExitCode::SUCCESS
    } else {
        say(&format!("verify: {failed} of {} stages FAILED", stages.len()));
        ExitCode::FAILURE
    }
}
