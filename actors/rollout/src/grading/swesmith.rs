//! Grading a bug-fixing task: the agent's change is put onto the commit that still has the hidden tests, which then run.
//!
//! The plan differs from the seed workload's where that loses right answers or lets tests be edited (all measured): the
//! difference is taken against the instance's commit, so committed work counts; it is binary; it is laid over that commit in
//! a box that the agent never touched, and hidden files and files that hold named tests are left out there, so re-created or
//! edited tests neither conflict nor count. What remains possible is what upstream's rule allows: the tests import the
//! agent's code, which may change the test framework.

use std::collections::BTreeSet;
use std::time::Duration;

use super::commits::InstanceCommits;
use super::error::GradeError;
use super::grade::{Grade, GradeReason, grade};
use super::parser::LogParser;
use super::plan::{self, CHANGE_PATH, CommandOutcome, GradeCommand, shell_quote};
use super::taking;

/// A task of SWE-smith's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweSmithTask {
    /// The row's id, which is also the name of the branch that holds the bug.
    pub instance_id: String,
    /// The repository's path in the sandbox.
    pub workdir: String,
    /// The commits in this box, found out when it was set up. A task without them cannot be graded.
    pub commits: Option<InstanceCommits>,
    /// The repository's test command, for bash.
    pub test_cmd: String,
    /// How its output is read.
    pub parser: LogParser,
    /// Tests the bug broke; at least one.
    pub fail_to_pass: Vec<String>,
    /// Tests that must not break.
    pub pass_to_pass: Vec<String>,
    /// When the test command is killed.
    pub test_timeout: Duration,
    /// When taking the change, or laying it over the tests, is given up.
    pub moving_timeout: Duration,
    /// The largest change of an agent, in bytes of its difference.
    pub change_limit_bytes: u64,
}

const START_MARKER: &str = ">>>>> Start Test Output";
const END_MARKER: &str = ">>>>> End Test Output";
/// Last line of the preparation's output: how far it came.
const PREPARED: &str = "greenroom-prepared:";
/// The test script could not enter the work tree.
const NO_WORKDIR: i64 = 97;

/// Of the preparation, with a change: `protect` prints files that hold named tests, each ended by a zero byte.
const MERGE: &str = r#"mkdir -p "$own" && protect "$@" > "$own/protected" || exit 1
git diff --no-renames --diff-filter=A --name-only -z "$base" "$tests" >> "$own/protected" || exit 1
export GIT_INDEX_FILE="$own/index"
listed() { xargs -0 -r git --no-replace-objects -c safe.directory='*' ls-tree -r -z --full-tree "$1" -- < "$own/protected"; }
git read-tree "$base" || exit 1
git apply --cached --whitespace=nowarn "$change" || rejected
xargs -0 -r git --no-replace-objects --literal-pathspecs -c safe.directory='*' rm -r -f -q --cached --ignore-unmatch -- \
< "$own/protected" || rejected
listed "$base" | git update-index -z --index-info || rejected
git diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames --src-prefix=a/ --dst-prefix=b/ "$base" \
> "$own/change" || rejected
git read-tree "$tests" || exit 1
[ ! -s "$own/change" ] || git apply --cached --whitespace=nowarn "$own/change" || rejected
listed "$tests" | git update-index -z --index-info || rejected
final=$(git write-tree) || rejected
unset GIT_INDEX_FILE
"#;

/// What would stand in for the test runner, or be loaded before it, if it lay at the top of the repository.
const RUNNERS: &[&str] =
    &["unittest.py", "unittest", "pytest.py", "pytest", "_pytest", "pluggy", "sitecustomize.py", "usercustomize.py"];

/// Names of the plan's commands in logs and errors.
const TAKING: &str = "taking the change";
const PREPARATION: &str = "preparation";
const TESTS: &str = "test run";

impl SweSmithTask {
    /// Refuse a row that any answer would solve, or none could.
    pub(super) fn check(&self) -> Result<(), GradeError> {
        let lacking = if self.fail_to_pass.is_empty() {
            "has no FAIL_TO_PASS tests"
        } else if self.test_cmd.trim().is_empty() {
            "has no test_cmd"
        } else if self.commits.is_none() {
            "has no known commits"
        } else {
            return Ok(());
        };
        Err(GradeError::UngradableTask { instance_id: self.instance_id.clone(), detail: lacking.to_owned() })
    }

    /// Take the agent's change out of its box; what came of it is read by [`super::Taken`].
    pub(super) fn take_command(&self) -> GradeCommand {
        let command = match &self.commits {
            Some(commits) => taking::difference(commits, self.change_limit_bytes),
            None => "exit 1".to_owned(),
        };
        GradeCommand { purpose: TAKING, command, timeout: self.moving_timeout }
    }

    /// In an untouched box: check out the tests, with the change in [`CHANGE_PATH`] over them where there is one.
    pub fn preparation_command(&self, has_change: bool) -> GradeCommand {
        let command = match &self.commits {
            Some(commits) => self.preparation_script(commits, has_change),
            None => "exit 1".to_owned(),
        };
        GradeCommand { purpose: PREPARATION, command, timeout: self.moving_timeout }
    }

    /// The change is laid over the instance's commit, which is what it was taken from; what it does to hidden files and to
    /// files that hold named tests is undone there; the rest goes onto the commit with tests. All of this happens in an index
    /// of its own, so the work tree changes once, at the end. Before the change is read an error is nobody's; then it is the
    /// change's.
    fn preparation_script(&self, commits: &InstanceCommits, has_change: bool) -> String {
        let tests = self.test_files();
        let protected: Vec<_> = tests.union(&beside_tests(&tests)).map(|file| shell_quote(file)).collect();
        // a file that the repository has itself may be part of the answer
        let protect = format!(
            "[ $# = 0 ] || printf '%s\\0' \"$@\"\n\
             for name in {}; do git cat-file -e \"$base:$name\" 2>/dev/null || printf '%s\\0' \"$name\"; done",
            RUNNERS.join(" ")
        );
        let merge = match has_change {
            true => format!("protect() {{ {protect}\n}}\nset -- {}\n{MERGE}", protected.join(" ")),
            false => String::new(),
        };
        format!(
            "cd {top} || exit {NO_WORKDIR}\n\
             command -v git >/dev/null || {{ echo 'git: not found'; exit 127; }}\n\
             git() {{ command git --no-replace-objects -c safe.directory='*' -c core.hooksPath=/dev/null \
             -c core.fsmonitor=false -c core.fsync=none -c core.quotePath=true -c advice.detachedHead=false \"$@\"; }}\n\
             rejected() {{ echo '{PREPARED} rejected'; exit 0; }}\n\
             base={base}; tests={tests}; change={CHANGE_PATH}; own={store}/greenroom\n\
             final=$tests\n\
             {merge}\
             git checkout -q -f --detach \"$tests\" || exit 1\n\
             [ \"$final\" = \"$tests\" ] || git read-tree --reset -u \"$final\" || rejected\n\
             echo '{PREPARED} applied'\n",
            top = shell_quote(&commits.top),
            base = shell_quote(&commits.instance),
            tests = shell_quote(&commits.with_tests),
            store = shell_quote(&commits.store),
        )
    }

    /// The grade that the preparation already decides, if it does; `None` means the tests run next.
    pub fn judge_preparation(&self, outcome: &CommandOutcome) -> Result<Option<Grade>, GradeError> {
        let broke = |detail: String| GradeError::CouldNotRun {
            instance_id: self.instance_id.clone(),
            purpose: PREPARATION,
            detail,
        };
        if let Some(detail) = plan::could_not_run(outcome) {
            return Err(broke(detail));
        }
        if outcome.timed_out {
            return Err(broke(format!("it took longer than {} s", self.moving_timeout.as_secs())));
        }
        let last_line = outcome.output.trim_end().rsplit('\n').next().unwrap_or_default();
        match last_line.strip_prefix(PREPARED).map(str::trim) {
            Some("applied") if outcome.returncode == 0 => Ok(None),
            Some("rejected") => Ok(Some(self.unresolved(GradeReason::ChangeNotApplicable))),
            _ => Err(broke(format!("status {}: {}", outcome.returncode, plan::tail(&outcome.output, 300)))),
        }
    }

    /// Run the tests under bash, both streams in one, between markers.
    pub fn test_command(&self) -> GradeCommand {
        let script = format!(
            "cd {workdir} || exit {NO_WORKDIR}\n\
             exec 2>&1\n\
             echo '{START_MARKER}'\n\
             (\n{command}\n)\n\
             status=$?\n\
             echo\n\
             echo '{END_MARKER}'\n\
             exit $status\n",
            workdir = shell_quote(&self.workdir),
            command = self.test_cmd,
        );
        GradeCommand {
            purpose: TESTS,
            command: format!("bash -c {}", shell_quote(&script)),
            timeout: self.test_timeout,
        }
    }

    /// The grade for what came of [`Self::test_command`].
    pub fn judge_tests(&self, outcome: &CommandOutcome) -> Result<Grade, GradeError> {
        let broke =
            |detail: String| GradeError::CouldNotRun { instance_id: self.instance_id.clone(), purpose: TESTS, detail };
        if let Some(detail) = &outcome.not_started {
            return Err(broke(detail.clone()));
        }
        let Some(log) = test_output(&outcome.output) else {
            return Err(broke(format!("status {}: {}", outcome.returncode, plan::tail(&outcome.output, 300))));
        };
        if outcome.timed_out {
            return Ok(self.unresolved(GradeReason::TestsTimedOut));
        }
        self.grade_log(log)
    }

    /// The grade for a test log. A log without one result is a grade of 0 only where the runner itself says that it ran.
    pub fn grade_log(&self, log: &str) -> Result<Grade, GradeError> {
        let statuses = self.parser.parse(log);
        if !statuses.is_empty() {
            return Ok(grade(&statuses, &self.fail_to_pass, &self.pass_to_pass));
        }
        if self.parser.run_took_place(log) {
            return Ok(self.unresolved(GradeReason::TestRunBroke));
        }
        let (instance_id, parser) = (self.instance_id.clone(), self.parser.name());
        Err(GradeError::NoResults { instance_id, parser, tail: plan::tail(log, 300) })
    }

    pub(super) fn unresolved(&self, reason: GradeReason) -> Grade {
        Grade::unresolved(reason, self.fail_to_pass.len(), self.pass_to_pass.len())
    }

    /// Files that may hold named tests; the plan asks git which of them exist.
    fn test_files(&self) -> BTreeSet<String> {
        let ids = self.fail_to_pass.iter().chain(&self.pass_to_pass);
        let files = ids.flat_map(|id| files_of_test(id));
        let is_inside =
            |file: &String| !file.starts_with('/') && file.split('/').all(|part| !part.is_empty() && part != "..");
        files.filter(is_inside).collect()
    }
}

/// What is loaded beside these test files without being one: the packages' own files of test directories, and pytest's
/// `conftest.py` of every directory above.
fn beside_tests(tests: &BTreeSet<String>) -> BTreeSet<String> {
    let mut beside = BTreeSet::from(["conftest.py".to_owned()]);
    for file in tests {
        let directories = file.match_indices('/').map(|(end, _)| &file[..end]);
        for directory in directories {
            beside.insert(format!("{directory}/conftest.py"));
            let name = directory.rsplit('/').next().unwrap_or(directory);
            if ["test", "tests", "testing"].contains(&name) {
                beside.insert(format!("{directory}/__init__.py"));
            }
        }
    }
    beside
}

/// Of `tests/a.py::T::t` the part before `::`; of unittest's `t (tests.a.T.t)` every leading part of the dotted name as a
/// file, of which at most one can be a module that holds a test.
fn files_of_test(id: &str) -> Vec<String> {
    if let Some((file, _)) = id.split_once("::") {
        return vec![file.to_owned()];
    }
    let Some((_, dotted)) = id.strip_suffix(')').and_then(|id| id.rsplit_once(" (")) else { return Vec::new() };
    let parts: Vec<_> = dotted.split('.').collect();
    if parts.iter().any(|part| part.is_empty() || part.contains(['/', ' '])) {
        return Vec::new();
    }
    (1..parts.len()).map(|count| format!("{}.py", parts[..count].join("/"))).collect()
}

/// What stands between the markers; to the end of the output when the second is missing. `None` when the first is.
fn test_output(output: &str) -> Option<&str> {
    let (_, after) = output.split_once(START_MARKER)?;
    let after = after.strip_prefix('\n').unwrap_or(after);
    Some(after.rsplit_once(END_MARKER).map_or(after, |(log, _)| log))
}
