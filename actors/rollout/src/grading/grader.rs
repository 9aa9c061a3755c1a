//! The order of a grading: which step comes next, and when it is over.
//!
//! [`Grader::next`] may be asked again and gives the same step until its outcome is reported.

use super::cmd::CmdTask;
use super::error::GradeError;
use super::grade::Grade;
use super::plan::{CommandOutcome, GradeStep};
use super::swesmith::SweSmithTask;
use super::withhold::WithheldHistory;

/// How a task is graded, by the name rows use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GradingKind {
    /// `cmd`: a command's exit status.
    #[default]
    Cmd,
    /// `swesmith`: named tests of a repository.
    SweSmith,
}

impl GradingKind {
    /// The kind a row's `eval_kind` names.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "cmd" => Some(Self::Cmd),
            "swesmith" => Some(Self::SweSmith),
            _ => None,
        }
    }

    /// The name rows use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cmd => "cmd",
            Self::SweSmith => "swesmith",
        }
    }
}

/// What is graded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GradingTask {
    /// By command.
    Cmd(CmdTask),
    /// By named tests.
    SweSmith(SweSmithTask),
}

impl GradingTask {
    /// Which kind it is.
    pub fn kind(&self) -> GradingKind {
        match self {
            Self::Cmd(_) => GradingKind::Cmd,
            Self::SweSmith(_) => GradingKind::SweSmith,
        }
    }
}

/// One grading.
#[derive(Debug, Clone)]
pub struct Grader {
    task: GradingTask,
    stage: Stage,
}

#[derive(Debug, Clone)]
enum Stage {
    Clearing,
    Writing,
    Preparing,
    Judging,
    Done(Grade),
}

impl Grader {
    /// Begin; a task that cannot be graded is refused.
    pub fn new(task: GradingTask) -> Result<Self, GradeError> {
        let stage = match &task {
            GradingTask::Cmd(cmd) => {
                cmd.check()?;
                if cmd.eval_files.is_empty() { Stage::Judging } else { Stage::Clearing }
            }
            GradingTask::SweSmith(swesmith) => {
                swesmith.check()?;
                if swesmith.withheld().is_some() { Stage::Writing } else { Stage::Preparing }
            }
        };
        Ok(Self { task, stage })
    }

    /// What to do next.
    pub fn next(&self) -> GradeStep {
        match (&self.stage, &self.task) {
            (Stage::Done(grade), _) => GradeStep::Done(grade.clone()),
            (Stage::Clearing, GradingTask::Cmd(cmd)) => {
                cmd.clear_command().map_or_else(|| GradeStep::Run(cmd.evaluation_command()), GradeStep::Run)
            }
            (Stage::Writing, GradingTask::Cmd(cmd)) => GradeStep::WriteFiles(cmd.eval_files.clone()),
            (_, GradingTask::Cmd(cmd)) => GradeStep::Run(cmd.evaluation_command()),
            (Stage::Writing, GradingTask::SweSmith(swesmith)) => {
                GradeStep::WriteFiles(swesmith.withheld().map(WithheldHistory::files).unwrap_or_default())
            }
            (Stage::Judging, GradingTask::SweSmith(swesmith)) => GradeStep::Run(swesmith.test_command()),
            (_, GradingTask::SweSmith(swesmith)) => GradeStep::Run(swesmith.preparation_command()),
        }
    }

    /// The files of [`GradeStep::WriteFiles`] are written.
    pub fn on_files_written(&mut self) -> Result<(), GradeError> {
        if !matches!(self.stage, Stage::Writing) {
            return Err(GradeError::OutOfTurn { given: "written files" });
        }
        self.stage = match self.task {
            GradingTask::Cmd(_) => Stage::Judging,
            GradingTask::SweSmith(_) => Stage::Preparing,
        };
        Ok(())
    }

    /// The command of [`GradeStep::Run`] ended like this.
    pub fn on_outcome(&mut self, outcome: &CommandOutcome) -> Result<(), GradeError> {
        self.stage = match (&self.stage, &self.task) {
            (Stage::Clearing, GradingTask::Cmd(cmd)) => {
                if outcome.returncode != 0 || outcome.timed_out || outcome.not_started.is_some() {
                    return Err(GradeError::CouldNotRun {
                        instance_id: cmd.instance_id.clone(),
                        purpose: "clearing",
                        detail: outcome.not_started.clone().unwrap_or_else(|| outcome.output.clone()),
                    });
                }
                Stage::Writing
            }
            (Stage::Judging, GradingTask::Cmd(cmd)) => Stage::Done(cmd.judge(outcome)?),
            (Stage::Preparing, GradingTask::SweSmith(swesmith)) => match swesmith.judge_preparation(outcome)? {
                Some(grade) => Stage::Done(grade),
                None => Stage::Judging,
            },
            (Stage::Judging, GradingTask::SweSmith(swesmith)) => Stage::Done(swesmith.judge_tests(outcome)?),
            _ => return Err(GradeError::OutOfTurn { given: "a command's outcome" }),
        };
        Ok(())
    }
}
