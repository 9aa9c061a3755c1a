//! Grading by command: hidden files are written after the episode, a command runs, exit status 0 earns 1.
//!
//! The working directory as the agent left it, and nothing else of its box, goes into a fresh box that was set up in the
//! same way. Any other status and a time-out earn 0, as in the seed workload: an endless loop in the answer is the policy's
//! doing. A command that cannot be started is an infrastructure failure, which the seed rewards with 0.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::GradeError;
use super::grade::{Grade, GradeReason, TestCounts};
use super::plan::{self, CHANGE_PATH, CommandOutcome, GradeCommand, shell_quote};
use super::taking;

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
    /// When moving the working directory, or clearing places in it, is given up.
    pub moving_timeout: Duration,
    /// The largest working directory that an agent may leave, in bytes of its archive.
    pub change_limit_bytes: u64,
}

/// Names of the plan's commands in logs and errors.
const TAKING: &str = "taking the working directory";
const RESTORING: &str = "restoring the working directory";
const CLEARING: &str = "clearing";
const EVALUATION: &str = "evaluation";

/// Last line of a restoring's output: how far it came.
pub const RESTORED: &str = "greenroom-restored:";

impl CmdTask {
    /// Refuse a task without a command.
    pub(super) fn check(&self) -> Result<(), GradeError> {
        if self.eval_cmd.trim().is_empty() {
            let detail = "has no eval_cmd".to_owned();
            return Err(GradeError::UngradableTask { instance_id: self.instance_id.clone(), detail });
        }
        Ok(())
    }

    /// Take the working directory out of the agent's box; what came of it is read by [`super::Taken`].
    pub(super) fn take_command(&self) -> GradeCommand {
        let command = taking::archive(&self.workdir, self.change_limit_bytes);
        GradeCommand { purpose: TAKING, command, timeout: self.moving_timeout }
    }

    /// In an untouched box: put the content of [`CHANGE_PATH`] in the place of all that is in the working directory.
    pub fn restore_command(&self) -> GradeCommand {
        let command = format!(
            "mkdir -p {workdir} && cd {workdir} || exit 1\n\
             find . -mindepth 1 -maxdepth 1 -exec rm -rf -- {{}} + || exit 1\n\
             tar -xpof {CHANGE_PATH} || {{ echo '{RESTORED} rejected'; exit 0; }}\n\
             chmod u+rwx . && rm -f {CHANGE_PATH}\n\
             echo '{RESTORED} whole'\n",
            workdir = shell_quote(&self.workdir),
        );
        GradeCommand { purpose: RESTORING, command, timeout: self.moving_timeout }
    }

    /// The grade that the restoring already decides, if it does; `None` means that grading goes on.
    pub(super) fn judge_restoring(&self, outcome: &CommandOutcome) -> Result<Option<Grade>, GradeError> {
        let last_line = outcome.output.trim_end().rsplit('\n').next().unwrap_or_default();
        match last_line.strip_prefix(RESTORED).map(str::trim) {
            Some("whole") if outcome.returncode == 0 => Ok(None),
            Some("rejected") => Ok(Some(self.unresolved(GradeReason::ChangeNotApplicable))),
            _ => Err(self.could_not_run(RESTORING, plan::describe(outcome))),
        }
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
        Some(GradeCommand { purpose: CLEARING, command, timeout: self.moving_timeout })
    }

    /// Whether the places of the hidden files are free.
    pub(super) fn judge_clearing(&self, outcome: &CommandOutcome) -> Result<(), GradeError> {
        let is_clear = outcome.returncode == 0 && !outcome.timed_out && outcome.not_started.is_none();
        if is_clear { Ok(()) } else { Err(self.could_not_run(CLEARING, plan::describe(outcome))) }
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
            return Err(self.could_not_run(EVALUATION, detail));
        }
        let passed = outcome.returncode == 0 && !outcome.timed_out;
        let reason = match (passed, outcome.timed_out) {
            (true, _) => GradeReason::Passed,
            (false, true) => GradeReason::TestsTimedOut,
            (false, false) => GradeReason::CommandFailed { returncode: outcome.returncode },
        };
        Ok(Grade::new(passed, passed, reason, TestCounts::default(), TestCounts::default()))
    }

    pub(super) fn unresolved(&self, reason: GradeReason) -> Grade {
        Grade::unresolved(reason, 0, 0)
    }

    fn could_not_run(&self, purpose: &'static str, detail: String) -> GradeError {
        GradeError::CouldNotRun { instance_id: self.instance_id.clone(), purpose, detail }
    }
}
