//! One task: what the agent is asked, where it works, and how its work is graded.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_messages::TaskId;

use crate::grading::{CmdTask, GradingTask, InstanceCommits, LogParser, SweSmithTask};

/// One task of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its identity; unique in the data set.
    pub id: TaskId,
    /// What the agent is asked.
    pub prompt: String,
    /// The image of its sandbox: the row's `image`, else its `pool`, else `default`.
    pub image: String,
    /// The working directory in the sandbox; the image's own where the row has none.
    pub workdir: Option<String>,
    /// Files written before the agent begins: path (relative to the working directory) → content.
    pub files: BTreeMap<String, String>,
    /// A command that makes the sandbox ready before the agent begins.
    pub setup_cmd: Option<String>,
    /// How its work is graded.
    pub grading: TaskGrading,
    /// The repository, for people.
    pub repo: Option<String>,
}

/// How a task's work is graded.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskGrading {
    /// `cmd`: a command's exit status.
    Cmd {
        /// The command.
        eval_cmd: String,
        /// Files that appear only for grading.
        eval_files: BTreeMap<String, String>,
    },
    /// `swesmith`: named tests of a repository.
    SweSmith {
        /// The repository's test command.
        test_cmd: String,
        /// How its output is read.
        parser: LogParser,
        /// Tests the bug broke.
        fail_to_pass: Vec<String>,
        /// Tests that must not break.
        pass_to_pass: Vec<String>,
    },
}

/// What grading may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradingLimits {
    /// When the tests are killed.
    pub timeout: Duration,
    /// When taking an agent's change, or bringing it into another sandbox, is given up.
    pub moving_timeout: Duration,
    /// The largest change of an agent, in bytes.
    pub change_bytes: u64,
}

impl Task {
    /// Whether the commits of the task's branch must be found out before the agent begins.
    pub fn needs_commits(&self) -> bool {
        matches!(self.grading, TaskGrading::SweSmith { .. })
    }

    /// The task in one box, for grading. `workdir` is the directory in that box; `commits` are those found there.
    pub fn grading_task(&self, workdir: &str, limits: GradingLimits, commits: Option<InstanceCommits>) -> GradingTask {
        let (instance_id, workdir) = (self.id.as_str().to_owned(), workdir.to_owned());
        let GradingLimits { timeout, moving_timeout, change_bytes: change_limit_bytes } = limits;
        match self.grading.clone() {
            TaskGrading::Cmd { eval_cmd, eval_files } => GradingTask::Cmd(CmdTask {
                instance_id,
                workdir,
                eval_files,
                eval_cmd,
                eval_timeout: timeout,
                moving_timeout,
                change_limit_bytes,
            }),
            TaskGrading::SweSmith { test_cmd, parser, fail_to_pass, pass_to_pass } => {
                GradingTask::SweSmith(SweSmithTask {
                    instance_id,
                    workdir,
                    commits,
                    test_cmd,
                    parser,
                    fail_to_pass,
                    pass_to_pass,
                    test_timeout: timeout,
                    moving_timeout,
                    change_limit_bytes,
                })
            }
        }
    }
}
