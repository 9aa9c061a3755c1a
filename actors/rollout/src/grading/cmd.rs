//! Grading by command: hidden files are written after the episode, a command runs, exit status 0 earns 1.
//!
//! Any other status and a time-out earn 0, as in the seed workload: an endless loop in the answer is the policy's doing.
//! A command that cannot be started is an infrastructure failure, which the seed rewards with 0.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::GradeError;
use super::grade::{Grade, GradeReason, TestCounts};
use super::plan::{self, CommandOutcome, GradeCommand, shell_quote};

/// A task graded by a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CmdTask {
    /// The task's id, for messages.
    pub instance_id: String,
    /// Working directory in the sandbox.
    pub workdir: String,
    /// Files that appear only for grading: path relative to the working directory → content.
    pub eval_files: BTreeMap<String, String>,
    /// The command; its exit status is the judgement.
    pub eval_cmd: String,
    /// When it is killed.
    pub eval_timeout: Duration,
}

/// Name of the judging command in logs and errors.
const EVALUATION: &str = "evaluation";

impl CmdTask {
    /// Refuse a task without a command.
    pub(super) fn check(&self) -> Result<(), GradeError> {
        if self.eval_cmd.trim().is_empty() {
            let detail = "has no eval_cmd".to_owned();
            return Err(GradeError::UngradableTask { instance_id: self.instance_id.clone(), detail });
        }
        Ok(())
    }

    /// Remove whatever the agent put in the places of the hidden files, directories and links included.
    pub fn clear_command(&self) -> Option<GradeCommand> {
        if self.eval_files.is_empty() {
            return None;
        }
        let paths = self.eval_files.keys().map(|path| shell_quote(path)).collect::<Vec<_>>().join(" ");
        // The agent may have removed the working directory itself; the files make it again in any case.
        let workdir = shell_quote(&self.workdir);
        let command = format!("mkdir -p {workdir} && cd {workdir} && rm -rf -- {paths}");
        Some(GradeCommand { purpose: "clearing", command, timeout: Duration::from_secs(60) })
    }

    /// The command that judges, run by bash where there is one: the seed workload's rows are written for it.
    pub fn evaluation_command(&self) -> GradeCommand {
        let workdir = shell_quote(&self.workdir);
        let script = shell_quote(&self.eval_cmd);
        let command = format!(
            "mkdir -p {workdir} && cd {workdir} || {{ echo 'working directory not found'; exit 127; }}\n\
             if command -v bash >/dev/null 2>&1; then exec bash -c {script}; else exec sh -c {script}; fi\n"
        );
        GradeCommand { purpose: EVALUATION, command, timeout: self.eval_timeout }
    }

    /// The grade for what came of [`Self::evaluation_command`].
    pub fn judge(&self, outcome: &CommandOutcome) -> Result<Grade, GradeError> {
        if let Some(detail) = plan::could_not_run(outcome) {
            return Err(GradeError::CouldNotRun { instance_id: self.instance_id.clone(), purpose: EVALUATION, detail });
        }
        let passed = outcome.returncode == 0 && !outcome.timed_out;
        let reason = match (passed, outcome.timed_out) {
            (true, _) => GradeReason::Passed,
            (false, true) => GradeReason::TestsTimedOut,
            (false, false) => GradeReason::CommandFailed { returncode: outcome.returncode },
        };
        Ok(Grade::new(passed, passed, reason, TestCounts::default(), TestCounts::default()))
    }
}
