//! The order of a grading: which step comes next, when it is over, and whose doing it is when a step fails.
//!
//! A [`Grader`] begins by asking for a box that the agent never touched, and brings the agent's work into it. When a step
//! fails after that in a way that does not tell whose doing it is, the grader asks for another box and takes the same steps
//! there without the work: what fails there, too, is an error of the row or of the infrastructure; what does not was the
//! agent's doing and is a grade of 0. [`Grader::next`] may be asked again and gives the same step until its outcome is
//! reported.

use std::collections::BTreeMap;

use super::cmd::CmdTask;
use super::error::GradeError;
use super::grade::{Grade, GradeReason};
use super::plan::{self, CHANGE_PATH, CommandOutcome, GradeCommand, GradeStep};
use super::swesmith::SweSmithTask;
use super::taking::{Taken, Work};

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

/// What is graded, in one box.
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

    /// Run in the box in which the agent acted, when it has ended; feed the outcome to [`Self::taken`].
    pub fn take_command(&self) -> GradeCommand {
        match self {
            Self::Cmd(cmd) => cmd.take_command(),
            Self::SweSmith(swesmith) => swesmith.take_command(),
        }
    }

    /// Where the agent's work lies in its box, or why it could not be taken.
    pub fn taken(&self, outcome: &CommandOutcome) -> Taken {
        let limit_bytes = match self {
            Self::Cmd(cmd) => cmd.change_limit_bytes,
            Self::SweSmith(swesmith) => swesmith.change_limit_bytes,
        };
        Taken::read(outcome, limit_bytes)
    }

    fn check(&self) -> Result<(), GradeError> {
        match self {
            Self::Cmd(cmd) => cmd.check(),
            Self::SweSmith(swesmith) => swesmith.check(),
        }
    }

    fn instance_id(&self) -> &str {
        match self {
            Self::Cmd(cmd) => &cmd.instance_id,
            Self::SweSmith(swesmith) => &swesmith.instance_id,
        }
    }

    fn unresolved(&self, reason: GradeReason) -> Grade {
        match self {
            Self::Cmd(cmd) => cmd.unresolved(reason),
            Self::SweSmith(swesmith) => swesmith.unresolved(reason),
        }
    }
}

/// One grading.
#[derive(Debug, Clone)]
pub struct Grader {
    trial: Trial,
    stage: Stage,
}

/// What the box holds besides the task.
#[derive(Debug, Clone)]
enum Trial {
    /// It is the agent's own.
    InPlace,
    /// The agent's work.
    OfWork(Vec<u8>),
    /// Nothing: the grade is 0 for this reason if the steps, or with `retake` the taking, succeed.
    Untouched { reason: GradeReason, retake: bool },
}

#[derive(Debug, Clone)]
enum Stage {
    NeedsBox,
    InBox(Box<GradingTask>, Step),
    Done(Grade),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Taking,
    WritingChange,
    Preparing,
    Clearing,
    WritingHidden,
    Judging,
}

impl Grader {
    /// Begin with what was taken out of the agent's box.
    pub fn new(work: Work) -> Self {
        let trial = match work {
            Work::Change(bytes) => Trial::OfWork(bytes),
            Work::NotTaken(reason) => Trial::Untouched { reason, retake: true },
        };
        Self { trial, stage: Stage::NeedsBox }
    }

    /// Begin in the agent's own box; a task that cannot be graded is refused.
    pub fn in_place(task: CmdTask) -> Result<Self, GradeError> {
        let task = GradingTask::Cmd(task);
        task.check()?;
        let step = begin_judging(&task);
        Ok(Self { trial: Trial::InPlace, stage: Stage::InBox(Box::new(task), step) })
    }

    /// What to do next.
    pub fn next(&self) -> GradeStep {
        let (task, step) = match &self.stage {
            Stage::NeedsBox => return GradeStep::FreshBox,
            Stage::Done(grade) => return GradeStep::Done(grade.clone()),
            Stage::InBox(task, step) => (&**task, *step),
        };
        match (step, task) {
            (Step::Taking, _) => GradeStep::Run(task.take_command()),
            (Step::WritingChange, _) => {
                GradeStep::WriteFiles(BTreeMap::from([(CHANGE_PATH.to_owned(), self.change().to_vec())]))
            }
            (Step::Preparing, GradingTask::Cmd(cmd)) => GradeStep::Run(cmd.restore_command()),
            (Step::Preparing, GradingTask::SweSmith(swesmith)) => {
                GradeStep::Run(swesmith.preparation_command(!self.change().is_empty()))
            }
            (Step::Clearing, GradingTask::Cmd(cmd)) => {
                GradeStep::Run(cmd.clear_command().unwrap_or_else(|| cmd.evaluation_command()))
            }
            (Step::WritingHidden, GradingTask::Cmd(cmd)) => {
                let files = cmd.eval_files.iter().map(|(path, text)| (path.clone(), text.clone().into_bytes()));
                GradeStep::WriteFiles(files.collect())
            }
            (_, GradingTask::Cmd(cmd)) => GradeStep::Run(cmd.evaluation_command()),
            (_, GradingTask::SweSmith(swesmith)) => GradeStep::Run(swesmith.test_command()),
        }
    }

    fn change(&self) -> &[u8] {
        if let Trial::OfWork(bytes) = &self.trial { bytes } else { &[] }
    }

    /// The box of [`GradeStep::FreshBox`] is there and set up; `task` is the task in it.
    pub fn on_fresh_box(&mut self, task: GradingTask) -> Result<(), GradeError> {
        if !matches!(self.stage, Stage::NeedsBox) {
            return Err(GradeError::OutOfTurn { given: "a box" });
        }
        task.check()?;
        let step = match (&self.trial, task.kind()) {
            (Trial::Untouched { retake: true, .. }, _) => Step::Taking,
            (Trial::OfWork(change), GradingKind::SweSmith) if change.is_empty() => Step::Preparing,
            (Trial::OfWork(_), _) => Step::WritingChange,
            (_, GradingKind::SweSmith) => Step::Preparing,
            (_, GradingKind::Cmd) => begin_judging(&task),
        };
        self.stage = Stage::InBox(Box::new(task), step);
        Ok(())
    }

    /// The files of [`GradeStep::WriteFiles`] are written.
    pub fn on_files_written(&mut self) -> Result<(), GradeError> {
        match &mut self.stage {
            Stage::InBox(_, step @ Step::WritingChange) => *step = Step::Preparing,
            Stage::InBox(_, step @ Step::WritingHidden) => *step = Step::Judging,
            _ => return Err(GradeError::OutOfTurn { given: "written files" }),
        }
        Ok(())
    }

    /// The box refused the files of [`GradeStep::WriteFiles`], for this reason.
    pub fn on_files_refused(&mut self, detail: &str) -> Result<(), GradeError> {
        let Stage::InBox(task, step @ (Step::WritingChange | Step::WritingHidden)) = &self.stage else {
            return Err(GradeError::OutOfTurn { given: "refused files" });
        };
        let (instance_id, detail) = (task.instance_id().to_owned(), detail.to_owned());
        let error = GradeError::CouldNotRun { instance_id, purpose: "writing files", detail };
        // The change goes to a place that a fresh box has empty: nothing of the agent's is in the way.
        if *step == Step::WritingChange { Err(error) } else { self.doubt(GradeReason::ChangeNotApplicable, error) }
    }

    /// The command of [`GradeStep::Run`] ended like this.
    pub fn on_outcome(&mut self, outcome: &CommandOutcome) -> Result<(), GradeError> {
        let Stage::InBox(task, step) = &self.stage else {
            return Err(GradeError::OutOfTurn { given: "a command's outcome" });
        };
        let after = match (step, &**task) {
            (Step::Taking, _) => return self.on_untouched_taken(outcome),
            (Step::Preparing, GradingTask::Cmd(cmd)) => match cmd.judge_restoring(outcome) {
                Ok(None) => After::Step(begin_judging(task)),
                Ok(Some(grade)) => After::Grade(grade),
                Err(error) => After::Doubt(GradeReason::ChangeNotApplicable, error),
            },
            (Step::Preparing, GradingTask::SweSmith(swesmith)) => match swesmith.judge_preparation(outcome) {
                Ok(None) => After::Step(Step::Judging),
                Ok(Some(grade)) => After::Grade(grade),
                Err(error) => After::Doubt(GradeReason::ChangeNotApplicable, error),
            },
            (Step::Clearing, GradingTask::Cmd(cmd)) => match cmd.judge_clearing(outcome) {
                Ok(()) => After::Step(Step::WritingHidden),
                Err(error) => After::Doubt(GradeReason::ChangeNotApplicable, error),
            },
            (Step::Judging, GradingTask::Cmd(cmd)) => match cmd.judge(outcome) {
                Ok(grade) => After::Grade(grade),
                Err(error) => After::Doubt(GradeReason::CommandFailed { returncode: outcome.returncode }, error),
            },
            (Step::Judging, GradingTask::SweSmith(swesmith)) => match swesmith.judge_tests(outcome) {
                Ok(grade) => After::Grade(grade),
                Err(error) => After::Doubt(GradeReason::TestRunBroke, error),
            },
            _ => return Err(GradeError::OutOfTurn { given: "a command's outcome" }),
        };
        match after {
            After::Step(next) => {
                if let Stage::InBox(_, step) = &mut self.stage {
                    *step = next;
                }
                Ok(())
            }
            After::Grade(grade) => {
                self.settle(grade);
                Ok(())
            }
            After::Doubt(reason, error) => self.doubt(reason, error),
        }
    }

    /// Whether an untouched box gives what the agent's did not.
    fn on_untouched_taken(&mut self, outcome: &CommandOutcome) -> Result<(), GradeError> {
        let (Stage::InBox(task, _), Trial::Untouched { reason, .. }) = (&self.stage, &self.trial) else {
            return Err(GradeError::OutOfTurn { given: "a taking's outcome" });
        };
        let detail = match task.taken(outcome) {
            Taken::File(_) => {
                self.stage = Stage::Done(task.unresolved(reason.clone()));
                return Ok(());
            }
            Taken::Not(GradeReason::ChangeTooLarge { limit_bytes }) => format!(
                "what lies in the working directory before an agent begins is already larger than {limit_bytes} bytes: \
                 raise rollout.max_change_bytes, or clean the image"
            ),
            Taken::Not(_) => plan::describe(outcome),
        };
        let instance_id = task.instance_id().to_owned();
        Err(GradeError::CouldNotRun { instance_id, purpose: "taking from an untouched sandbox", detail })
    }

    /// A judgement was made. Without the agent's work in the box it shows only that judging is possible there.
    fn settle(&mut self, grade: Grade) {
        let grade = match (&self.stage, &self.trial) {
            (Stage::InBox(task, _), Trial::Untouched { reason, .. }) => task.unresolved(reason.clone()),
            _ => grade,
        };
        self.stage = Stage::Done(grade);
    }

    /// A step failed: with the agent's work in a fresh box the same is tried without it.
    fn doubt(&mut self, reason: GradeReason, error: GradeError) -> Result<(), GradeError> {
        if !matches!(self.trial, Trial::OfWork(_)) {
            return Err(error);
        }
        self.trial = Trial::Untouched { reason, retake: false };
        self.stage = Stage::NeedsBox;
        Ok(())
    }
}

/// What an outcome leads to.
enum After {
    Step(Step),
    Grade(Grade),
    Doubt(GradeReason, GradeError),
}

/// The first step with everything of the agent's in place.
fn begin_judging(task: &GradingTask) -> Step {
    match task {
        GradingTask::Cmd(cmd) if !cmd.eval_files.is_empty() => Step::Clearing,
        _ => Step::Judging,
    }
}
