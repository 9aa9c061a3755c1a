//! Running git, python3 and the shell while tasks are made: always with a deadline, never with the user's git settings.

use std::path::Path;
use std::process::{Command, Stdio};

use super::error::MakeError;

/// Longest time for one git or shell command.
const COMMAND_SECONDS: u32 = 60;
/// Where programs are looked for.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Exit status by which `timeout` says that the time was up.
const TIMED_OUT: i32 = 124;

/// What came of a program.
pub(super) struct Finished {
    /// Exit status; −1 for a signal.
    pub(super) status: i32,
    /// Standard output.
    pub(super) stdout: String,
    /// Standard error.
    pub(super) stderr: String,
}

/// Runs a program to its end, or kills it and says so with status 124.
pub(super) fn run(
    directory: &Path,
    words: &[&str],
    variables: &[(&str, &str)],
    seconds: u32,
) -> Result<Finished, MakeError> {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", &seconds.to_string()]).args(words).current_dir(directory).stdin(Stdio::null());
    // The programs of the system, as in a sandbox: another Python could name tests otherwise.
    command.env("PATH", SYSTEM_PATH).env("LC_ALL", "C").env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
    for (name, value) in variables {
        command.env(name, value);
    }
    let output = command.output().map_err(|error| failed(words, error.to_string()))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Finished {
        status: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    })
}

/// Runs git, which must succeed; gives its standard output. `hour` stands in the dates of commits, so that they do not
/// depend on when they are made.
pub(super) fn git(directory: &Path, words: &[&str], hour: u32) -> Result<String, MakeError> {
    let date = format!("2026-01-{:02}T{:02}:00:00+00:00", 1 + hour / 24, hour % 24);
    let variables = [
        ("GIT_AUTHOR_NAME", "taskmaker"),
        ("GIT_AUTHOR_EMAIL", "taskmaker@example.invalid"),
        ("GIT_COMMITTER_NAME", "taskmaker"),
        ("GIT_COMMITTER_EMAIL", "taskmaker@example.invalid"),
        ("GIT_AUTHOR_DATE", date.as_str()),
        ("GIT_COMMITTER_DATE", date.as_str()),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
    ];
    let all: Vec<&str> = ["git"].iter().chain(words).copied().collect();
    must_succeed(&all, run(directory, &all, &variables, COMMAND_SECONDS)?)
}

/// Runs a shell command, which must succeed; gives its standard output.
pub(super) fn shell(directory: &Path, script: &str) -> Result<String, MakeError> {
    let words = ["sh", "-c", script];
    must_succeed(&words, run(directory, &words, &[], COMMAND_SECONDS)?)
}

fn must_succeed(words: &[&str], finished: Finished) -> Result<String, MakeError> {
    if finished.status == 0 {
        return Ok(finished.stdout);
    }
    let reason = match finished.status {
        TIMED_OUT => format!("not done after {COMMAND_SECONDS} s"),
        status => format!("status {status}: {}", finished.stderr.trim_end()),
    };
    Err(failed(words, reason))
}

fn failed(words: &[&str], reason: String) -> MakeError {
    MakeError::Program { command: words.join(" "), reason }
}
