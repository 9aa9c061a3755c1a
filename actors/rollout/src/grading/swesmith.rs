//! Grading a bug-fixing task: the agent's change is put onto the commit that still has the hidden tests, which then run.
//!
//! The plan differs from the seed workload's where that loses right answers or lets tests be edited (all measured):
//! the difference is taken against the instance's commit, so committed work counts; it is binary; hidden files and files
//! that hold named tests are left out of it, so re-created or edited tests neither conflict nor count; git runs without
//! the agent's hooks, configuration, attributes and index, and Python without what it put into its home. What remains
//! possible is what upstream's rule allows: the tests import the agent's code, which may change the test framework. What
//! the agent breaks on the way (repository, imports, endless tests) is a grade of 0; a missing git, shell or runner is an
//! error.

use std::collections::BTreeSet;
use std::time::Duration;

use super::error::GradeError;
use super::grade::{Grade, GradeReason, grade};
use super::parser::LogParser;
use super::plan::{self, CommandOutcome, GradeCommand, shell_quote};
use super::withhold::WithheldHistory;

/// A task of SWE-smith's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweSmithTask {
    /// The row's id, which is also the name of the branch that holds the bug.
    pub instance_id: String,
    /// The repository's path in the sandbox.
    pub workdir: String,
    /// The commits, found out before the agent began ([`Self::resolve_command`]); `None` trusts the branch's name, which
    /// moves when the agent commits on it.
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
}

/// The two commits of an instance: what the agent starts from, and the same with the hidden tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceCommits {
    /// Full hash of the instance's commit.
    pub instance: String,
    /// Full hash of its parent, which has the tests.
    pub with_tests: String,
    /// The objects of `with_tests` that the sandbox lacks; `None` where it has its whole history.
    pub withheld: Option<WithheldHistory>,
}

const PREPARATION_TIMEOUT: Duration = Duration::from_secs(180);
const START_MARKER: &str = ">>>>> Start Test Output";
const END_MARKER: &str = ">>>>> End Test Output";
/// Last line of the preparation's output: how far it came.
const PREPARED: &str = "greenroom-prepared:";
/// The test script could not enter the work tree.
const NO_WORKDIR: i64 = 97;

/// Takes back what the agent may have set to rewrite files as they are checked out, or to hide its changes: filters and
/// attributes outside of the tree, sparse check-outs, other configuration. The object format alone is kept.
const TRUSTED_REPOSITORY: &str = "\
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1
if [ -d .git ]; then
format=$(command git config -f .git/config extensions.objectformat 2>/dev/null)
rm -rf .git/config .git/config.worktree .git/info/attributes .git/info/sparse-checkout
{ echo '[core]'; echo 'bare = false'; echo 'filemode = true'
if [ \"$format\" = sha256 ]; then
echo 'repositoryformatversion = 1'; echo '[extensions]'; echo 'objectformat = sha256'
else echo 'repositoryformatversion = 0'; fi; } > .git/config
fi
";

/// Names of the plan's commands in logs and errors.
const RESOLUTION: &str = "resolving the commits";
const PREPARATION: &str = "preparation";
const TESTS: &str = "test run";

impl InstanceCommits {
    /// Read what [`SweSmithTask::resolve_command`] printed. A repository in which the instance has no commit with tests of
    /// its own is refused: its parent would be the original code, and an empty change would earn the reward.
    pub fn parse(instance_id: &str, outcome: &CommandOutcome) -> Result<Self, GradeError> {
        let refused = |detail: String| GradeError::UngradableTask { instance_id: instance_id.to_owned(), detail };
        let too_slow = outcome.timed_out.then(|| format!("it took longer than {} s", PREPARATION_TIMEOUT.as_secs()));
        if let Some(detail) = plan::could_not_run(outcome).or(too_slow) {
            let instance_id = instance_id.to_owned();
            return Err(GradeError::CouldNotRun { instance_id, purpose: RESOLUTION, detail });
        }
        let words: Vec<_> = outcome.output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match words.as_slice() {
            [instance, with_tests, rest @ ..]
                if outcome.returncode == 0 && is_hash(instance) && is_hash(with_tests) =>
            {
                match rest.first() {
                    Some(count) if *count != "2" => Err(refused(format!(
                        "needs exactly two commits over main (the bug, then the removal of its tests), it has {count}"
                    ))),
                    _ => Ok(Self {
                        instance: (*instance).to_owned(),
                        with_tests: (*with_tests).to_owned(),
                        withheld: None,
                    }),
                }
            }
            _ => Err(refused(format!("its branch has no commit with tests: {}", plan::tail(&outcome.output, 300)))),
        }
    }
}

fn is_hash(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl SweSmithTask {
    /// Refuse a row that any answer would solve, or none could.
    pub(super) fn check(&self) -> Result<(), GradeError> {
        let lacking = if self.fail_to_pass.is_empty() {
            "has no FAIL_TO_PASS tests"
        } else if self.test_cmd.trim().is_empty() {
            "has no test_cmd"
        } else {
            return Ok(());
        };
        Err(GradeError::UngradableTask { instance_id: self.instance_id.clone(), detail: lacking.to_owned() })
    }

    /// Run before the agent begins; feed the outcome to [`InstanceCommits::parse`]. Prints both commits and, where there is
    /// a branch main, how many commits the instance is ahead of it.
    pub fn resolve_command(workdir: &str, instance_id: &str) -> GradeCommand {
        let script = format!(
            "cd {workdir} || exit {NO_WORKDIR}\n\
             git -c safe.directory='*' rev-parse --verify {instance}^{{commit}} || exit 1\n\
             git -c safe.directory='*' rev-parse --verify {instance}~1^{{commit}} || exit 1\n\
             if git -c safe.directory='*' rev-parse -q --verify refs/heads/main >/dev/null; then\n\
             git -c safe.directory='*' rev-list --count refs/heads/main..{instance}\nfi\n",
            workdir = shell_quote(workdir),
            instance = shell_quote(instance_id),
        );
        GradeCommand { purpose: RESOLUTION, command: script, timeout: PREPARATION_TIMEOUT }
    }

    /// What must be brought back before [`Self::preparation_command`], if anything.
    pub(super) fn withheld(&self) -> Option<&WithheldHistory> {
        self.commits.as_ref()?.withheld.as_ref()
    }

    /// Move the agent's change onto the commit with tests.
    pub fn preparation_command(&self) -> GradeCommand {
        let (instance, with_tests) = match &self.commits {
            Some(commits) => (commits.instance.clone(), commits.with_tests.clone()),
            None => (self.instance_id.clone(), format!("{}~1", self.instance_id)),
        };
        let files = self.test_files();
        let excluded: Vec<_> = files.iter().map(|file| shell_quote(&format!(":(top,exclude,literal){file}"))).collect();
        let restored: Vec<_> = files.iter().map(|file| shell_quote(file)).collect();
        // `git apply` is all or nothing, so a change that does not fit leaves the tree as it was checked out.
        let command = format!(
            "cd {workdir} || {{ echo '{PREPARED} destroyed'; exit 0; }}\n\
             command -v git >/dev/null || {{ echo 'git: not found'; exit 127; }}\n\
             git() {{ command git --no-replace-objects -c safe.directory='*' -c core.hooksPath=/dev/null \
             -c core.fsmonitor=false -c core.fsync=none -c core.quotePath=true -c advice.detachedHead=false \"$@\"; }}\n\
             {TRUSTED_REPOSITORY}\
             {put_back}\
             base={base}; tests={tests}\n\
             git cat-file -e \"$tests^{{commit}}\" && git cat-file -e \"$base^{{commit}}\" \
             || {{ echo '{PREPARED} destroyed'; exit 0; }}\n\
             store=$(git rev-parse --absolute-git-dir) || {{ echo '{PREPARED} destroyed'; exit 0; }}\n\
             rm -f \"$store/index.lock\" \"$store/HEAD.lock\"\n\
             rm -rf \"$store/greenroom.patch\" \"$store/greenroom.hidden\"\n\
             rm -f \"$store/index\"\n\
             git read-tree \"$base\" && git add -A . || exit 1\n\
             git diff --no-renames --diff-filter=A --name-only -z \"$base\" \"$tests\" > \"$store/greenroom.hidden\" || exit 1\n\
             xargs -0 -r rm -rf -- < \"$store/greenroom.hidden\"\n\
             xargs -0 -r git --no-replace-objects --literal-pathspecs -c safe.directory='*' rm -r -q --cached --ignore-unmatch -- \
             < \"$store/greenroom.hidden\" || exit 1\n\
             git diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames --src-prefix=a/ --dst-prefix=b/ \
             \"$base\" -- . {excluded} > \"$store/greenroom.patch\" || exit 1\n\
             git checkout -q -f --detach \"$tests\" || exit 1\n\
             applied=empty\n\
             if [ -s \"$store/greenroom.patch\" ]; then\n\
             applied=applied\n\
             git apply --whitespace=nowarn \"$store/greenroom.patch\" || applied=rejected\n\
             fi\n\
             for file in {restored}; do\n\
             if git cat-file -e \"$tests:$file\" 2>/dev/null; then\n\
             git checkout -q -f \"$tests\" -- \":(top,literal)$file\" || exit 1\n\
             fi\n\
             done\n\
             echo \"{PREPARED} $applied\"\n",
            workdir = shell_quote(&self.workdir),
            put_back = self.withheld().map(WithheldHistory::put_back_lines).unwrap_or_default(),
            base = shell_quote(&instance),
            tests = shell_quote(&with_tests),
            excluded = excluded.join(" "),
            restored = restored.join(" "),
        );
        GradeCommand { purpose: PREPARATION, command, timeout: PREPARATION_TIMEOUT }
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
            return Err(broke(format!("it took longer than {} s", PREPARATION_TIMEOUT.as_secs())));
        }
        let last_line = outcome.output.trim_end().rsplit('\n').next().unwrap_or_default();
        match last_line.strip_prefix(PREPARED).map(str::trim) {
            Some("applied" | "empty") if outcome.returncode == 0 => Ok(None),
            Some("rejected") => Ok(Some(self.unresolved(GradeReason::ChangeNotApplicable))),
            // Known commits that are gone were there when the episode began.
            Some("destroyed") if self.commits.is_some() => Ok(Some(self.unresolved(GradeReason::RepositoryDestroyed))),
            _ => Err(broke(format!("status {}: {}", outcome.returncode, plan::tail(&outcome.output, 300)))),
        }
    }

    /// Run the tests under bash, both streams in one, between markers.
    pub fn test_command(&self) -> GradeCommand {
        let script = format!(
            "cd {workdir} || exit {NO_WORKDIR}\n\
             exec 2>&1\n\
             export PYTHONNOUSERSITE=1\n\
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

    fn unresolved(&self, reason: GradeReason) -> Grade {
        Grade::unresolved(reason, self.fail_to_pass.len(), self.pass_to_pass.len())
    }

    /// Files that may hold named tests; the plan asks git which of them exist.
    fn test_files(&self) -> BTreeSet<String> {
        let ids = self.fail_to_pass.iter().chain(&self.pass_to_pass);
        let files = ids.flat_map(|id| files_of_test(id));
        files.filter(|file| !file.is_empty() && !file.starts_with('/')).collect()
    }
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
