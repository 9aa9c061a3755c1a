//! How a command's output submits the work.
//!
//! The rule of mini-swe-agent's local environment: leading white space is skipped, lines end where Python's `splitlines`
//! ends them, the first line without surrounding blanks must be exactly the sentinel, and the command must have
//! succeeded. Anything printed before the sentinel, on either stream, prevents the submission.

use super::exec::ExecResult;
use super::python_text;

/// The line that ends an episode.
pub const SUBMIT_SENTINEL: &str = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

/// The submission, when this result is one: everything after the sentinel's line, unchanged (empty when nothing follows).
pub fn submission(result: &ExecResult) -> Option<&str> {
    if result.returncode != 0 {
        return None;
    }
    let (first, rest) = python_text::split_first_line(python_text::strip_start(&result.output));
    (python_text::strip(first) == SUBMIT_SENTINEL).then_some(rest)
}
