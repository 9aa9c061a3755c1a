//! Grading: from what the agent left in its sandbox to a reward, as plans and judgements without I/O.
//!
//! When the agent has ended, its change is taken out of its box ([`GradingTask::take_command`]), the box is given back, and
//! a [`Grader`] names the steps in a fresh one, where nothing else of the agent's is: no process, setting or full disk. It
//! ends with a [`Grade`] or a [`GradeError`]. Both kinds follow the seed workload's rules: `cmd` rewards an exit status of
//! 0, `swesmith` rewards all named tests having passed. What the agent must not find is withheld ([`withhold_command`]).
//!
//! What the policy did, however badly, is a grade of 0; what infrastructure or row did is an error, never a reward:
//!
//! | what happens | it is |
//! |---|---|
//! | a box is not to be had, is lost or expires; its set-up fails, or gives another commit | an error |
//! | the change cannot be taken: too large, repository or disk destroyed, never-ending | 0, if an untouched box gives its own |
//! | the change does not apply, or does not fit into the box | 0 |
//! | hidden files cannot be written beside it | 0, if an untouched box takes them |
//! | the tests do not end, break on import, fill disk or memory | 0 |
//! | the tests give no result at all; `eval_cmd` ends with 127, "not found"; nothing starts | 0, if an untouched box does better |
//! | the same without the agent's work | an error: the row's command, runner or image is wrong |

mod cmd;
mod commits;
mod error;
mod grade;
mod grader;
mod parser;
pub mod parsers;
mod plan;
mod swesmith;
mod taking;
mod withhold;

pub use cmd::{CmdTask, RESTORED};
pub use commits::InstanceCommits;
pub use error::{GRADING_ERRORS, GradeError};
pub use grade::{Grade, GradeReason, TestCounts, TestStatus, grade};
pub use grader::{Grader, GradingKind, GradingTask};
pub use parser::{LogParser, StatusMap};
pub use plan::{CHANGE_PATH, CommandOutcome, GradeCommand, GradeStep, shell_quote};
pub use swesmith::SweSmithTask;
pub use taking::{TAKEN, Taken, Work};
pub use withhold::{Keep, parse_withheld, withhold_command};
