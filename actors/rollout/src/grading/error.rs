//! Why a rollout could not be graded. None of these is a reward: the rollout is an infrastructure failure, or its row is
//! refused before it is ever run.

use greenroom_core::ErrorPage;

/// Why there is no grade.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GradeError {
    /// The task has nothing that could be graded.
    #[error("GR0320: task {instance_id}: {detail}")]
    UngradableTask {
        /// The task.
        instance_id: String,
        /// What it lacks.
        detail: String,
    },
    /// A grading command could not run.
    #[error("GR0321: {purpose} of {instance_id}: {detail}")]
    CouldNotRun {
        /// The task.
        instance_id: String,
        /// Which command it was.
        purpose: &'static str,
        /// What the sandbox or the shell said.
        detail: String,
    },
    /// The test command ran and not one result could be read from its output.
    #[error("GR0322: no test result found in the output of {instance_id} (parser {parser}); it ends with {tail:?}")]
    NoResults {
        /// The task.
        instance_id: String,
        /// The parser's name.
        parser: &'static str,
        /// The end of the output.
        tail: String,
    },
    /// A row names a parser that does not exist.
    #[error("GR0323: log parser {name} is not known{}", nearest.as_ref().map(|name| format!("; did you mean {name}?")).unwrap_or_default())]
    UnknownParser {
        /// The name given.
        name: String,
        /// The nearest known name.
        nearest: Option<&'static str>,
    },
    /// The caller reported an outcome that no step asked for.
    #[error("GR0324: the grader was given {given} out of turn")]
    OutOfTurn {
        /// What was reported.
        given: &'static str,
    },
}

/// Pages for `greenroom explain`.
pub const GRADING_ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0320",
        cause: "a row has no tests, no grading command, or a repository without the two commits a hidden-test task needs",
        remedy: "correct or drop the row; grading it would reward any answer, or none",
    },
    ErrorPage {
        code: "GR0321",
        cause: "a command of the grading plan could not be started, broke off, or ran out of time before the tests began",
        remedy: "look at the sandbox's log; git, bash and the row's interpreter must exist in the image",
    },
    ErrorPage {
        code: "GR0322",
        cause: "the test command printed nothing that the row's parser reads as a result, and no sign that a test run took place",
        remedy: "run the command by hand in the image; check the row's test_cmd and log_parser",
    },
    ErrorPage {
        code: "GR0323",
        cause: "a row names a log parser that does not exist",
        remedy: "use the name in the message, or leave it out for pytest's verbose output",
    },
    ErrorPage {
        code: "GR0324",
        cause: "a grading outcome was reported that no step had asked for: a defect of the caller",
        remedy: "report it with the rollout's log",
    },
];
