//! What must not be found in a box: before the agent begins, the hidden tests and the original code are taken out of its
//! repository; before its work is graded, the original code is taken out of the fresh box, for the tests run the agent's code.
//!
//! [`withhold_command`] replaces the repository by a new one with a single commit of the instance's tree on a branch
//! `main`, and with [`Keep::Tests`] the commit with the tests beside it; it has no other ref, log, object or remote, and
//! settings, hooks and exclusions stay. Both commits have fixed authors and dates, so an instance has the same ones in every
//! box. Bytecode beside the tracked sources, other work trees of the repository and pytest's cache go, too, for they may
//! hold the same. Not removed is what lies outside of the repository: an object store that was borrowed as an alternate, or
//! an installed copy of the code. A step that fails leaves a box that must not be used: it is an error, never a grade.

use std::time::Duration;

use super::commits::InstanceCommits;
use super::error::GradeError;
use super::plan::{self, CommandOutcome, GradeCommand, shell_quote};

const WITHHOLDING: &str = "withholding the history";
const TIMEOUT: Duration = Duration::from_secs(180);
/// The report follows: what [`InstanceCommits::resolve_command`] prints.
const REPORT: &str = "greenroom-commits:";

/// What of the history a box keeps besides the instance's commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nothing: the agent works there.
    Nothing,
    /// The commit with the hidden tests: grading takes place there.
    Tests,
}

/// Run when a box is set up, in the place of [`InstanceCommits::resolve_command`]; feed the outcome to [`parse_withheld`].
pub fn withhold_command(workdir: &str, instance_id: &str, keep: Keep) -> GradeCommand {
    let keep = if keep == Keep::Tests { "\"$tests\"" } else { "" };
    let (workdir, instance) = (shell_quote(workdir), shell_quote(instance_id));
    let command =
        format!("kept() {{ printf '%s\\n' \"$base\" {keep}; }}\nworkdir={workdir}; instance={instance}\n{SCRIPT}");
    GradeCommand { purpose: WITHHOLDING, command, timeout: TIMEOUT }
}

/// Some twelve short processes: it runs twice for each rollout. Nothing is synced to disk, for a box that is lost is not
/// used again. Objects are packed by name, so whatever else the old store holds stays behind.
const SCRIPT: &str = r#"cd "$workdir" || exit 97
command -v git >/dev/null || { echo 'git: not found'; exit 127; }
set -e
git() {
command git --no-replace-objects -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false \
-c core.fsync=none -c pack.threads=1 "$@"
}
found=$(git rev-parse --show-toplevel --absolute-git-dir --git-common-dir \
"$instance^{commit}" "$instance^{tree}" "$instance~1^{tree}" --glob='refs/heads/mai[n]')
{
read -r top; read -r store; read -r common; read -r commit; read -r tree; read -r tests_tree; read -r main || main=
} <<END
$found
END
ahead=
[ -z "$main" ] || ahead=$(git rev-list --count "$main..$commit")
common=$(cd "$common" && pwd)
cd "$top"
export GIT_AUTHOR_NAME=greenroom GIT_AUTHOR_EMAIL=greenroom@localhost GIT_AUTHOR_DATE='946684800 +0000'
export GIT_COMMITTER_NAME=greenroom GIT_COMMITTER_EMAIL=greenroom@localhost GIT_COMMITTER_DATE='946684800 +0000'
base=$(git commit-tree -m 'Initial commit' "$tree")
tests=$(git commit-tree -m 'With tests' -p "$base" "$tests_tree")
own="$top/.git.greenroom"
rm -rf "$own"
mkdir -p "$own/objects/pack" "$own/objects/info" "$own/refs/heads" "$own/refs/tags"
kept | git pack-objects -q --revs "$own/objects/pack/pack" >/dev/null
# The index knows the files' times, so that git need not read them all again; a staged change would miss its objects.
if ! git diff-index --cached --quiet "$base" || ! mv "$store/index" "$own/index"; then
GIT_INDEX_FILE="$own/index" git read-tree "$base"
fi
set --
for part in info hooks modules description; do
[ ! -e "$common/$part" ] || set -- "$@" "$common/$part"
done
[ $# = 0 ] || mv "$@" "$own/"
{
keep=1
while read -r line || [ -n "$line" ]; do
case $line in
\[[Rr]emote* | \[[Bb]ranch*) keep=0 ;;
\[*) keep=1 ;;
bare* | worktree[\ =]* | partial[Cc]lone* | ref[Ss]torage*) continue ;;
esac
[ $keep = 0 ] || printf '%s\n' "$line"
done
printf '[core]\nbare = false\n'
} < "$common/config" > "$own/config"
echo 'ref: refs/heads/main' > "$own/HEAD"
echo "$base" > "$own/refs/heads/main"
if [ -n "$(find . -name .git -prune -o -name __pycache__ -print -quit)" ]; then
git ls-tree -r -z --name-only "$tests" | tr '\0' '\n' | sed -n '/\.py$/s|[^/]*$|__pycache__|p' | sort -u \
| tr '\n' '\0' | xargs -0 -r rm -rf --
fi
if [ -d "$common/worktrees" ]; then
git worktree list --porcelain | sed -n 's/^worktree //p' | while read -r other; do
case "$top/" in "$other"/*) ;; *) rm -rf -- "$other" ;; esac
done
fi
rm -rf .pytest_cache "$own/info/refs" "$own/info/grafts" "$store" "$common" .git
mv "$own" .git
printf 'greenroom-commits:\n%s\n%s\n%s\n%s\n%s\n' "$base" "$tests" "$top" "$top/.git" "$ahead"
"#;

/// Read what [`withhold_command`] printed. Refuses the same instances as [`InstanceCommits::parse`].
pub fn parse_withheld(instance_id: &str, outcome: &CommandOutcome) -> Result<InstanceCommits, GradeError> {
    let broke =
        |detail: String| GradeError::CouldNotRun { instance_id: instance_id.to_owned(), purpose: WITHHOLDING, detail };
    if let Some(detail) = plan::could_not_run(outcome) {
        return Err(broke(detail));
    }
    if outcome.timed_out {
        return Err(broke(format!("it took longer than {} s", TIMEOUT.as_secs())));
    }
    let report =
        outcome.output.split_once(&format!("{REPORT}\n")).map_or(outcome.output.as_str(), |(_, report)| report);
    InstanceCommits::parse(instance_id, &CommandOutcome { output: report.to_owned(), ..outcome.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_report_is_accepted() {
        let (base, tests) = ("a".repeat(40), "b".repeat(40));
        let report = |count: &str| {
            let text = format!("warning: odd\n{REPORT}\n{base}\n{tests}\n/testbed\n/testbed/.git\n{count}\n");
            CommandOutcome::finished(0, text)
        };
        let commits = parse_withheld("i", &report("2")).unwrap();
        assert_eq!((&commits.instance, &commits.with_tests), (&base, &tests));
        assert_eq!((commits.top.as_str(), commits.store.as_str()), ("/testbed", "/testbed/.git"));
        assert!(parse_withheld("i", &report("")).is_ok(), "a repository without main");
        let half = CommandOutcome::finished(0, format!("{REPORT}\n{base}\n{tests}\n"));
        for outcome in [report("1"), half, CommandOutcome { returncode: 1, ..report("2") }] {
            let refused = parse_withheld("i", &outcome);
            assert!(matches!(refused, Err(GradeError::UngradableTask { .. })), "{outcome:?}: {refused:?}");
        }
        for outcome in [CommandOutcome::finished(127, "sh: git: not found"), CommandOutcome::timed_out("")] {
            let broken = parse_withheld("i", &outcome);
            assert!(matches!(broken, Err(GradeError::CouldNotRun { .. })), "{outcome:?}: {broken:?}");
        }
    }
}
