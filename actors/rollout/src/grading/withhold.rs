//! What must not be found while the agent acts: the hidden tests and the original code are taken out of the sandbox's
//! repository before the agent begins, and the tests come back for grading.
//!
//! [`withhold_command`] replaces the repository by a new one with a single commit of the instance's tree on a branch
//! `main`; it has no other ref, log, object or remote, and settings, hooks and exclusions stay. The objects of the commit
//! with tests that the instance lacks are printed as a pack, in text, and kept by the caller ([`WithheldHistory`]). Both
//! commits have fixed authors and dates, so an instance has the same ones in every sandbox. Bytecode beside the tracked
//! sources, other work trees of the repository and pytest's cache go, too, for they may hold the same.
//! Not removed is what lies outside of the repository: an object store that was borrowed as an alternate, or an installed
//! copy of the code. A step that fails leaves a sandbox that must not be used: it is an error, never a grade.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::error::GradeError;
use super::plan::{self, CommandOutcome, GradeCommand, shell_quote};
use super::swesmith::InstanceCommits;

const WITHHOLDING: &str = "withholding the history";
const TIMEOUT: Duration = Duration::from_secs(180);
/// Before the two commits and, where there is a branch main, how many commits the instance is ahead of it.
const COMMITS: &str = "greenroom-commits:";
const PACK: &str = "greenroom-pack:";
const PACK_END: &str = "greenroom-pack-end:";

/// The objects of the commit with tests that a sandbox does not have while the agent acts.
#[derive(Clone, PartialEq, Eq)]
pub struct WithheldHistory {
    /// A pack in base64.
    pack: String,
}

impl std::fmt::Debug for WithheldHistory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "WithheldHistory({} characters)", self.pack.len())
    }
}

impl WithheldHistory {
    /// The file that brings the objects back: path relative to the working directory → content. The agent could not know
    /// its name, which follows from what it does not know.
    pub fn files(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(self.file_name(), self.pack.clone())])
    }

    fn file_name(&self) -> String {
        let digest = format!("{:x}", Sha256::digest(self.pack.as_bytes()));
        format!(".greenroom-{}", digest.get(..32).unwrap_or_default())
    }

    /// Shell lines that move the objects from that file into the repository, in the working directory and with the shell
    /// function `git`. A repository that cannot take them lacks the commit afterwards.
    pub(super) fn put_back_lines(&self) -> String {
        let file = self.file_name();
        format!("base64 -d < {file} | git unpack-objects -q\nrm -f {file}\n")
    }
}

/// Run before the agent begins, in the place of [`super::SweSmithTask::resolve_command`]; feed the outcome to
/// [`parse_withheld`].
pub fn withhold_command(workdir: &str, instance_id: &str) -> GradeCommand {
    let command = format!("workdir={}; instance={}\n{WITHHOLD_SCRIPT}", shell_quote(workdir), shell_quote(instance_id));
    GradeCommand { purpose: WITHHOLDING, command, timeout: TIMEOUT }
}

/// Some thirteen short processes: it runs once for each rollout. Nothing is synced to disk, for a sandbox that is lost is
/// not used again. Objects are packed by name, so whatever else the old store holds stays behind.
const WITHHOLD_SCRIPT: &str = r#"cd "$workdir" || exit 97
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
echo "greenroom-commits: $base $tests $ahead"
own="$top/.git.greenroom"
rm -rf "$own"
mkdir -p "$own/objects/pack" "$own/objects/info" "$own/refs/heads" "$own/refs/tags"
echo "$base" | git pack-objects -q --revs "$own/objects/pack/pack" >/dev/null
printf '%s\n^%s\n' "$tests" "$base" | git pack-objects -q --revs --stdout > "$own/withheld"
echo 'greenroom-pack:'
base64 < "$own/withheld"
echo 'greenroom-pack-end:'
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
rm -rf .pytest_cache "$own/withheld" "$own/info/refs" "$own/info/grafts" "$store" "$common" .git
mv "$own" .git
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
    let Some(commits) = outcome.output.lines().find_map(|line| line.strip_prefix(COMMITS)) else {
        return InstanceCommits::parse(instance_id, outcome);
    };
    if outcome.returncode != 0 {
        return Err(broke(format!("status {}: {}", outcome.returncode, plan::tail(&outcome.output, 300))));
    }
    let words: Vec<&str> = commits.split_whitespace().collect();
    let mut commits = InstanceCommits::parse(instance_id, &CommandOutcome::finished(0, words.join("\n")))?;
    let lines = outcome.output.lines().skip_while(|line| *line != PACK).skip(1);
    let pack: String = lines.take_while(|line| *line != PACK_END).map(str::trim).collect();
    let is_whole = outcome.output.lines().any(|line| line == PACK_END);
    let is_base64 = pack.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
    if pack.is_empty() || !is_whole || !is_base64 {
        return Err(broke("the pack of its tests did not arrive whole".to_owned()));
    }
    commits.withheld = Some(WithheldHistory { pack });
    Ok(commits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_report_is_accepted() {
        let hash = |letter: &str| letter.repeat(40);
        let report = |count: &str, rest: &str| {
            CommandOutcome::finished(0, format!("{COMMITS} {} {} {count}\n{rest}", hash("a"), hash("b")))
        };
        let pack = format!("{PACK}\nUEFD\nSw==\n{PACK_END}\n");
        let commits = parse_withheld("i", &report("2", &pack)).unwrap();
        assert_eq!((&commits.instance, &commits.with_tests), (&hash("a"), &hash("b")));
        let files = commits.withheld.unwrap().files();
        assert_eq!(files.values().collect::<Vec<_>>(), ["UEFDSw=="]);
        assert!(parse_withheld("i", &report("", &pack)).is_ok(), "a repository without main");
        let refused = parse_withheld("i", &report("1", &pack));
        assert!(matches!(refused, Err(GradeError::UngradableTask { .. })), "{refused:?}");
        let broken = [
            report("2", ""),
            report("2", &format!("{PACK}\n{PACK_END}\n")),
            report("2", &format!("{PACK}\nUEFD\n")),
            report("2", &format!("{PACK}\nwarning: odd\n{PACK_END}\n")),
            CommandOutcome { returncode: 1, ..report("2", &pack) },
            CommandOutcome::finished(127, "sh: git: not found"),
            CommandOutcome::timed_out(""),
        ];
        for outcome in broken {
            let parsed = parse_withheld("i", &outcome);
            assert!(matches!(parsed, Err(GradeError::CouldNotRun { .. })), "{outcome:?}: {parsed:?}");
        }
    }
}
