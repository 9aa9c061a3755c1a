//! Grading what an agent left, in a box that it never touched: its work is taken out of its own box, which is given back
//! before another one is claimed.
//!
//! A rollout holds one box at a time. What became of the agent's own box cannot spoil the grading; what the grader asks for
//! besides (a look at an untouched box) costs a box more, and only where something failed.

use greenroom_core::in_place;
use greenroom_messages::rollout::{InfraFailure, InfraKind};
use greenroom_messages::sandbox::Shell;

use super::episode::Episode;
use super::observation::command_outcome;
use super::sandbox::{ExecCall, HeldBox, sandbox_failed};
use crate::GradeIn;
use crate::grading::{
    CommandOutcome, Grade, GradeCommand, GradeError, GradeStep, Grader, GradingTask, InstanceCommits, Keep, Taken, Work,
};

/// How much of a grading command's output is kept: a lost line of a test log is a lost result.
const GRADING_OUTPUT_BYTES: u64 = 64 << 20;
/// A command that does not end by itself within a millisecond.
const OUTLIVES_ITS_DEADLINE: &str = "sleep 60";

/// What an agent left in its box.
#[derive(Debug)]
pub(super) enum Left {
    /// It was graded there, as the settings want it.
    Graded(Grade),
    /// Its work, to be graded in another box.
    Work(LeftWork),
}

/// Work, and what it was made from.
#[derive(Debug)]
pub(super) struct LeftWork {
    work: Work,
    commits: Option<InstanceCommits>,
}

fn failed(error: GradeError) -> InfraFailure {
    InfraFailure { kind: InfraKind::Grading, message: error.to_string() }
}

impl Episode<'_> {
    /// Grades in the agent's box where that is wanted, else takes the agent's work out of it.
    pub(super) async fn leave(&self, held: &HeldBox, commits: Option<InstanceCommits>) -> Result<Left, InfraFailure> {
        self.end_leftovers(held).await?;
        match (self.task_in(held, commits.clone()), self.setting.config.grade_in) {
            (GradingTask::Cmd(task), GradeIn::SameBox) => {
                let mut grader = Grader::in_place(task).map_err(failed)?;
                match self.drive(held, &mut grader).await? {
                    Some(grade) => Ok(Left::Graded(grade)),
                    None => Err(failed(GradeError::OutOfTurn { given: "a wish for another box" })),
                }
            }
            (task, _) => Ok(Left::Work(LeftWork { work: self.take(held, &task).await?, commits })),
        }
    }

    async fn take(&self, held: &HeldBox, task: &GradingTask) -> Result<Work, InfraFailure> {
        let outcome = self.run(held, &task.take_command()).await?;
        let path = match task.taken(&outcome) {
            Taken::File(path) => path,
            Taken::Not(reason) => return Ok(Work::NotTaken(reason)),
        };
        // Written a moment ago, with nothing of the agent's running: a box that does not give it is not the agent's doing.
        let change = held.read_file(path, self.setting.config.max_change_bytes).await?;
        change.map(Work::Change).map_err(|refusal| sandbox_failed("reading what the agent left", refusal))
    }

    /// The grade, found in boxes of its own, one after the other.
    pub(super) async fn grade(&self, left: LeftWork) -> Result<Grade, InfraFailure> {
        let mut grader = Grader::new(left.work);
        loop {
            let held = self.claim(self.setting.config.grading_lifetime_ms()).await?;
            let graded = self.grade_in(&held, &mut grader, left.commits.as_ref()).await;
            self.release(held).await;
            if let Some(grade) = graded? {
                return Ok(grade);
            }
        }
    }

    async fn grade_in(
        &self,
        held: &HeldBox,
        grader: &mut Grader,
        of_agent: Option<&InstanceCommits>,
    ) -> Result<Option<Grade>, InfraFailure> {
        let commits = self.set_up(held, Keep::Tests).await?;
        let instance = |commits: Option<&InstanceCommits>| commits.map(|commits| commits.instance.clone());
        let (agents, ours) = (instance(of_agent), instance(commits.as_ref()));
        if agents != ours {
            let message =
                format!("set-up is not repeatable: it gave commit {agents:?}, and {ours:?} in another sandbox");
            return Err(InfraFailure { kind: InfraKind::SetUp, message });
        }
        grader.on_fresh_box(self.task_in(held, commits)).map_err(failed)?;
        self.drive(held, grader).await
    }

    /// Does what the grader says, until there is a grade or another box is needed.
    async fn drive(&self, held: &HeldBox, grader: &mut Grader) -> Result<Option<Grade>, InfraFailure> {
        loop {
            match grader.next() {
                GradeStep::FreshBox => return Ok(None),
                GradeStep::WriteFiles(files) => match held.offer_files(files).await? {
                    Ok(()) => grader.on_files_written().map_err(failed)?,
                    Err(refusal) => grader.on_files_refused(&refusal).map_err(failed)?,
                },
                GradeStep::Run(command) => {
                    let outcome = self.run(held, &command).await?;
                    // a test log may have megabytes
                    in_place(|| grader.on_outcome(&outcome)).map_err(failed)?;
                }
                GradeStep::Done(grade) => return Ok(Some(grade)),
            }
        }
    }

    async fn run(&self, held: &HeldBox, command: &GradeCommand) -> Result<CommandOutcome, InfraFailure> {
        let call = ExecCall {
            output_limit_bytes: GRADING_OUTPUT_BYTES,
            ..self.call(&command.command, Shell::Sh, command.timeout.as_millis() as u64)
        };
        Ok(command_outcome(held.exec(call).await?))
    }

    /// Ends what the agent's commands left running, so that nothing changes while it is taken: a box kills every process in
    /// it when a command outlives its deadline.
    async fn end_leftovers(&self, held: &HeldBox) -> Result<(), InfraFailure> {
        held.exec(self.call(OUTLIVES_ITS_DEADLINE, Shell::Sh, 1)).await.map(drop)
    }

    fn task_in(&self, held: &HeldBox, commits: Option<InstanceCommits>) -> GradingTask {
        let config = &self.setting.config;
        self.issue.task.grading_task(held.workdir(), config.grading_limits(), commits)
    }
}
