//! Steps of grading as data: what to write, what to run, and what is told about it afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

/// Where a box gets the change that it is graded with. Apart from the work tree, in a place that a fresh box has empty.
pub const CHANGE_PATH: &str = "/tmp/greenroom.change";

/// The next thing to do for a grade.
#[derive(Debug, Clone, PartialEq)]
pub enum GradeStep {
    /// Give back the box, claim and set up another one that the agent never touched, then report with
    /// [`super::Grader::on_fresh_box`].
    FreshBox,
    /// Write these files (absolute path, or one relative to the task's working directory → content), replacing what is
    /// there, then report with [`super::Grader::on_files_written`] or [`super::Grader::on_files_refused`].
    WriteFiles(BTreeMap<String, Vec<u8>>),
    /// Run this command, then report with [`super::Grader::on_outcome`].
    Run(GradeCommand),
    /// Grading is over.
    Done(super::Grade),
}

/// A command of a grading plan. It is text for `/bin/sh -c` in the task's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GradeCommand {
    /// What it is for, for logs and errors.
    pub purpose: &'static str,
    /// The text.
    pub command: String,
    /// When it is killed.
    pub timeout: Duration,
}

/// What came of a command. A sandbox that broke has no outcome: the caller ends the rollout as an infrastructure failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutcome {
    /// Exit status; negative for a signal.
    pub returncode: i64,
    /// Standard output and standard error.
    pub output: String,
    /// Whether it was killed at its time-out.
    pub timed_out: bool,
    /// Why it did not start, if it did not.
    pub not_started: Option<String>,
}

impl CommandOutcome {
    /// A command that ran to its end.
    pub fn finished(returncode: i64, output: impl Into<String>) -> Self {
        Self { returncode, output: output.into(), timed_out: false, not_started: None }
    }

    /// A command that was killed at its time-out.
    pub fn timed_out(output: impl Into<String>) -> Self {
        Self { returncode: -1, output: output.into(), timed_out: true, not_started: None }
    }
}

/// `text` as one word of a POSIX shell.
pub fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The last `limit` characters of a text, for messages.
pub(super) fn tail(text: &str, limit: usize) -> String {
    let text = text.trim_end();
    let skipped = text.chars().count().saturating_sub(limit);
    text.chars().skip(skipped).collect()
}

/// How a command of the plan ended that should have succeeded.
pub(super) fn describe(outcome: &CommandOutcome) -> String {
    match &outcome.not_started {
        Some(why) => why.clone(),
        None if outcome.timed_out => format!("it did not end in time: {}", tail(&outcome.output, 300)),
        None => format!("status {}: {}", outcome.returncode, tail(&outcome.output, 300)),
    }
}

/// Why a command that ended like this never ran at all, if that is so.
pub(super) fn could_not_run(outcome: &CommandOutcome) -> Option<String> {
    if let Some(why) = &outcome.not_started {
        return Some(why.clone());
    }
    // 127 is also a status programs may choose; the shell always says so as well.
    let missing = outcome.returncode == 127 && outcome.output.contains("not found");
    missing.then(|| tail(&outcome.output, 300))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_a_quote() {
        assert_eq!(shell_quote("a'b \"$x\""), r#"'a'\''b "$x"'"#);
        assert_eq!(tail("abc\n", 2), "bc");
    }
}
