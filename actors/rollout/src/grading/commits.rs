//! The two commits of an instance, and where its repository lies: found out in each box before anything else is done there.

use std::time::Duration;

use super::error::GradeError;
use super::plan::{self, CommandOutcome, GradeCommand, shell_quote};

const RESOLUTION: &str = "resolving the commits";
const TIMEOUT: Duration = Duration::from_secs(180);

/// An instance in a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceCommits {
    /// Full hash of the instance's commit: what the agent starts from.
    pub instance: String,
    /// Full hash of the commit that still has the hidden tests.
    pub with_tests: String,
    /// The top of the work tree; an absolute path in the box.
    pub top: String,
    /// The repository's own directory; an absolute path in the box.
    pub store: String,
}

impl InstanceCommits {
    /// Finds out the commits and changes nothing; feed the outcome to [`Self::parse`]. Prints both commits, the two places
    /// and, where there is a branch main, how many commits the instance is ahead of it.
    pub fn resolve_command(workdir: &str, instance_id: &str) -> GradeCommand {
        let command = format!(
            "cd {workdir} || exit 97\n\
             git() {{ command git -c safe.directory='*' \"$@\"; }}\n\
             git rev-parse --verify {instance}^{{commit}} || exit 1\n\
             git rev-parse --verify {instance}~1^{{commit}} || exit 1\n\
             git rev-parse --show-toplevel || exit 1\n\
             (cd \"$(git rev-parse --git-common-dir)\" && pwd) || exit 1\n\
             if git rev-parse -q --verify refs/heads/main >/dev/null; then\n\
             git rev-list --count refs/heads/main..{instance}\nfi\n",
            workdir = shell_quote(workdir),
            instance = shell_quote(instance_id),
        );
        GradeCommand { purpose: RESOLUTION, command, timeout: TIMEOUT }
    }

    /// Reads what [`Self::resolve_command`] printed. A repository in which the instance has no commit with tests of its own
    /// is refused: its parent would be the original code, and an empty change would earn the reward.
    pub fn parse(instance_id: &str, outcome: &CommandOutcome) -> Result<Self, GradeError> {
        let refused = |detail: String| GradeError::UngradableTask { instance_id: instance_id.to_owned(), detail };
        let too_slow = outcome.timed_out.then(|| format!("it took longer than {} s", TIMEOUT.as_secs()));
        if let Some(detail) = plan::could_not_run(outcome).or(too_slow) {
            let instance_id = instance_id.to_owned();
            return Err(GradeError::CouldNotRun { instance_id, purpose: RESOLUTION, detail });
        }
        let lines: Vec<_> = outcome.output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match lines.as_slice() {
            [instance, with_tests, top, store, rest @ ..]
                if outcome.returncode == 0 && is_hash(instance) && is_hash(with_tests) =>
            {
                match rest.first() {
                    Some(count) if *count != "2" => Err(refused(format!(
                        "needs exactly two commits over main (the bug, then the removal of its tests), it has {count}"
                    ))),
                    _ => Ok(Self {
                        instance: (*instance).to_owned(),
                        with_tests: (*with_tests).to_owned(),
                        top: (*top).to_owned(),
                        store: (*store).to_owned(),
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
