//! Grading: from what the agent left in its sandbox to a reward, as plans and judgements without I/O.
//!
//! A [`Grader`] names the next step (files to write, a command to run) and is told what came of it. It ends with a
//! [`Grade`] or a [`GradeError`]. What the policy did, however badly, is a grade; what the infrastructure did is an error
//! and never a reward of zero. Before the agent begins, [`withhold_command`] takes out of its sandbox what it must not
//! find. Both kinds follow the seed workload's rules: `cmd` rewards an exit status of 0, `swesmith`
//! rewards all named tests having passed.

mod cmd;
mod error;
mod grade;
mod grader;
mod parser;
pub mod parsers;
mod plan;
mod swesmith;
mod withhold;

pub use cmd::CmdTask;
pub use error::{GRADING_ERRORS, GradeError};
pub use grade::{Grade, GradeReason, TestCounts, TestStatus, grade};
pub use grader::{Grader, GradingKind, GradingTask};
pub use parser::{LogParser, StatusMap};
pub use plan::{CommandOutcome, GradeCommand, GradeStep, shell_quote};
pub use swesmith::{InstanceCommits, SweSmithTask};
pub use withhold::{WithheldHistory, parse_withheld, withhold_command};
