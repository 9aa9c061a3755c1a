//! What came of one command, in the words the agent's templates use.
//!
//! A command that ran into its time-out or could not be started is an observation like any other. A box that broke is
//! not a result at all: the caller ends the rollout as an infrastructure failure and never builds one of these for it.

/// Fixed words before the cause of a failed command, part of what the model reads upstream.
const FAILURE_PREFIX: &str = "An error occurred while executing the command: ";

/// The outcome of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecResult {
    /// Standard output and standard error in order, decoded as UTF-8 with replacement, CRLF and CR turned into LF.
    pub output: String,
    /// Exit status; −n when signal n killed the shell; −1 when `failure` is set.
    pub returncode: i64,
    /// Set when the command timed out or did not start.
    pub failure: Option<ExecFailure>,
}

/// Why a command has no exit status of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecFailure {
    /// Name of the Python exception upstream records, such as `TimeoutExpired` or `FileNotFoundError`.
    pub exception_type: String,
    /// Text of that exception.
    pub exception: String,
}

impl ExecResult {
    /// A command that ran to its end.
    pub fn finished(output: impl Into<String>, returncode: i64) -> Self {
        Self { output: output.into(), returncode, failure: None }
    }

    /// A command that was killed after `timeout_seconds`; `output` is what it had printed so far.
    pub fn timed_out(command: &str, timeout_seconds: u64, output: impl Into<String>) -> Self {
        Self {
            output: output.into(),
            returncode: -1,
            failure: Some(ExecFailure {
                exception_type: "TimeoutExpired".to_owned(),
                exception: format!("Command '{command}' timed out after {timeout_seconds} seconds"),
            }),
        }
    }

    /// A command that could not be started. `exception_type` and `exception` are Python's words, for example
    /// `FileNotFoundError` and `[Errno 2] No such file or directory: '/gone'`.
    pub fn not_started(exception_type: impl Into<String>, exception: impl Into<String>) -> Self {
        Self {
            output: String::new(),
            returncode: -1,
            failure: Some(ExecFailure { exception_type: exception_type.into(), exception: exception.into() }),
        }
    }

    /// The text templates see as `output.exception_info`: empty unless the command failed to run to its end.
    pub fn exception_info(&self) -> String {
        match &self.failure {
            Some(failure) => format!("{FAILURE_PREFIX}{}", failure.exception),
            None => String::new(),
        }
    }
}
