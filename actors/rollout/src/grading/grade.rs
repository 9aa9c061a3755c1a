//! The judgement over a test log.
//!
//! The reward is the seed workload's rule: every FAIL_TO_PASS and PASS_TO_PASS test must be exactly PASSED. SWE-smith's own
//! harness is more lenient (an expected failure counts as passed, a skipped test does not count at all); that judgement is
//! reported beside the reward and never replaces it.

use super::parser::StatusMap;

/// What a log says of one test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestStatus {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It did not run, on purpose.
    Skipped,
    /// It broke outside its own checks.
    Error,
    /// It failed as expected.
    ExpectedFailure,
}

impl TestStatus {
    /// The name in test logs and recorded status maps.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "PASSED",
            Self::Failed => "FAILED",
            Self::Skipped => "SKIPPED",
            Self::Error => "ERROR",
            Self::ExpectedFailure => "XFAIL",
        }
    }
}

/// How many of a list of tests passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TestCounts {
    /// Tests that are exactly PASSED.
    pub passed: usize,
    /// Tests in the list.
    pub total: usize,
}

/// A judgement. Only a finished judgement has this type; what could not be judged is a [`super::GradeError`].
#[derive(Debug, Clone, PartialEq)]
pub struct Grade {
    /// What the trainer sees: 1.0 when `strict` holds, else 0.0.
    pub reward: f64,
    /// Whether the task counts as solved; the same as `strict`.
    pub resolved: bool,
    /// The seed workload's rule: every named test is exactly PASSED, or the command's status is 0.
    pub strict: bool,
    /// The rule of SWE-smith's own harness.
    pub upstream: bool,
    /// Tests that the bug broke.
    pub fail_to_pass: TestCounts,
    /// Tests that must not break.
    pub pass_to_pass: TestCounts,
    /// Why it is this grade.
    pub reason: GradeReason,
}

/// Why a grade is what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GradeReason {
    /// Everything passed.
    Passed,
    /// These tests were not PASSED: the first few by name, with what the log says of them.
    TestsNotPassed(Vec<(String, Option<TestStatus>)>),
    /// The judging command had this exit status.
    CommandFailed {
        /// The status.
        returncode: i64,
    },
    /// The tests did not end in time.
    TestsTimedOut,
    /// The test run broke before any test had a result, by an import or syntax error for example.
    TestRunBroke,
    /// The agent's change could not be brought into an untouched box, or no test could be brought in beside it.
    ChangeNotApplicable,
    /// The agent's change is larger than the limit, in bytes.
    ChangeTooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// The agent left its box in a state in which its change cannot be taken: a full disk, files that nobody can read.
    ChangeNotTaken,
    /// The agent destroyed the repository it worked in.
    RepositoryDestroyed,
}

impl GradeReason {
    /// The name in the history of a run.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::TestsNotPassed(_) => "tests_not_passed",
            Self::CommandFailed { .. } => "command_failed",
            Self::TestsTimedOut => "tests_timed_out",
            Self::TestRunBroke => "test_run_broke",
            Self::ChangeNotApplicable => "change_not_applicable",
            Self::ChangeTooLarge { .. } => "change_too_large",
            Self::ChangeNotTaken => "change_not_taken",
            Self::RepositoryDestroyed => "repository_destroyed",
        }
    }
}

/// The name, and what there is to say beside it.
impl std::fmt::Display for GradeReason {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())?;
        match self {
            Self::TestsNotPassed(tests) => {
                for (number, (test, status)) in tests.iter().enumerate() {
                    let (comma, status) = (if number == 0 { ": " } else { "; " }, status.map(TestStatus::as_str));
                    write!(formatter, "{comma}{test} {}", status.unwrap_or("did not run"))?;
                }
                Ok(())
            }
            Self::CommandFailed { returncode } => write!(formatter, ": exit status {returncode}"),
            Self::ChangeTooLarge { limit_bytes } => write!(formatter, ": more than {limit_bytes} bytes"),
            Self::ChangeNotTaken => formatter.write_str(": the agent left its sandbox so that its work cannot be read"),
            _ => Ok(()),
        }
    }
}

/// So many test names are kept in [`GradeReason::TestsNotPassed`].
const NAMES_KEPT: usize = 8;

impl Grade {
    /// A grade whose reward follows from `strict`.
    pub(super) fn new(
        strict: bool,
        upstream: bool,
        reason: GradeReason,
        fail_to_pass: TestCounts,
        pass_to_pass: TestCounts,
    ) -> Self {
        let reward = if strict { 1.0 } else { 0.0 };
        Self { reward, resolved: strict, strict, upstream, fail_to_pass, pass_to_pass, reason }
    }

    /// A grade of 0 for something other than single tests.
    pub(super) fn unresolved(reason: GradeReason, fail_to_pass: usize, pass_to_pass: usize) -> Self {
        let none_of = |total| TestCounts { passed: 0, total };
        Self::new(false, false, reason, none_of(fail_to_pass), none_of(pass_to_pass))
    }
}

/// Judge the results of a test run. `statuses` should not be empty: a run without any result is for the caller to judge.
pub fn grade(statuses: &StatusMap, fail_to_pass: &[String], pass_to_pass: &[String]) -> Grade {
    let count = |tests: &[String]| TestCounts {
        passed: tests.iter().filter(|test| statuses.get(*test) == Some(&TestStatus::Passed)).count(),
        total: tests.len(),
    };
    let not_passed: Vec<_> = fail_to_pass
        .iter()
        .chain(pass_to_pass)
        .map(|test| (test.clone(), statuses.get(test).copied()))
        .filter(|(_, status)| *status != Some(TestStatus::Passed))
        .collect();
    let strict = not_passed.is_empty();
    let upstream =
        not_passed.iter().all(|(_, status)| matches!(status, Some(TestStatus::ExpectedFailure | TestStatus::Skipped)));
    let reason = if strict {
        GradeReason::Passed
    } else {
        GradeReason::TestsNotPassed(not_passed.into_iter().take(NAMES_KEPT).collect())
    };
    Grade::new(strict, upstream, reason, count(fail_to_pass), count(pass_to_pass))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_what_did_not_pass() {
        let failed = ("a::x".to_owned(), Some(TestStatus::Failed));
        let cases = [
            (GradeReason::Passed, "passed"),
            (
                GradeReason::TestsNotPassed(vec![failed, ("b".into(), None)]),
                "tests_not_passed: a::x FAILED; b did not run",
            ),
            (GradeReason::CommandFailed { returncode: 3 }, "command_failed: exit status 3"),
            (GradeReason::ChangeTooLarge { limit_bytes: 7 }, "change_too_large: more than 7 bytes"),
            (GradeReason::RepositoryDestroyed, "repository_destroyed"),
        ];
        for (reason, text) in cases {
            assert_eq!(reason.to_string(), text);
        }
    }

    #[test]
    fn only_exactly_passed_earns_the_reward() {
        let cases = [
            (Some(TestStatus::Passed), 1.0, true),
            (Some(TestStatus::ExpectedFailure), 0.0, true),
            (Some(TestStatus::Skipped), 0.0, true),
            (Some(TestStatus::Failed), 0.0, false),
            (Some(TestStatus::Error), 0.0, false),
            (None, 0.0, false),
        ];
        for (status, reward, upstream) in cases {
            let mut statuses = StatusMap::new();
            statuses.insert("kept".to_owned(), TestStatus::Passed);
            statuses.extend(status.map(|status| ("fixed".to_owned(), status)));
            let grade = grade(&statuses, &["fixed".to_owned()], &["kept".to_owned()]);
            assert_eq!((grade.reward, grade.upstream), (reward, upstream), "{status:?}");
            assert_eq!(grade.pass_to_pass, TestCounts { passed: 1, total: 1 });
            assert_eq!(grade.resolved, reward == 1.0);
        }
    }
}
