//! Taking what the agent made out of its box: one shell command that leaves it in a file, and what its output says.
//!
//! The box is the agent's, so the command trusts nothing that the agent could have set: git gets a repository of its own
//! that borrows only the objects. The file lies in one of the places that are apart from the work tree, for that may be
//! full. What cannot be taken is not judged here: whether that was the agent's doing shows in a box that it never touched.

use std::path::Path;

use super::commits::InstanceCommits;
use super::grade::GradeReason;
use super::plan::{CommandOutcome, shell_quote};

/// Begins the last line of a taking's output: what came of it.
pub const TAKEN: &str = "greenroom-taken:";

/// What the agent made, for a box that it never touched.
#[derive(Clone, PartialEq, Eq)]
pub enum Work {
    /// The content of the file that the taking left: a difference, or an archive of the working directory.
    Change(Vec<u8>),
    /// It could not be taken. Once an untouched box shows that this was the agent's doing, it is a grade of 0 for this reason.
    NotTaken(GradeReason),
}

impl std::fmt::Debug for Work {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Change(bytes) => write!(formatter, "Change({} bytes)", bytes.len()),
            Self::NotTaken(reason) => write!(formatter, "NotTaken({reason:?})"),
        }
    }
}

/// What a taking left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// A file of the box, to be read.
    File(String),
    /// Nothing, for this reason.
    Not(GradeReason),
}

impl Taken {
    /// Reads the outcome of a taking with this limit.
    pub(super) fn read(outcome: &CommandOutcome, limit_bytes: u64) -> Self {
        let last_line = outcome.output.trim_end().rsplit('\n').next().unwrap_or_default();
        let said = last_line.strip_prefix(TAKEN).map(str::trim).unwrap_or_default();
        match said.split_once(' ').unwrap_or((said, "")) {
            ("file", path) if outcome.returncode == 0 && Path::new(path).is_absolute() => Self::File(path.to_owned()),
            ("too-large", _) => Self::Not(GradeReason::ChangeTooLarge { limit_bytes }),
            ("destroyed", _) => Self::Not(GradeReason::RepositoryDestroyed),
            _ => Self::Not(GradeReason::ChangeNotTaken),
        }
    }
}

/// `take` is a shell function that writes `$scratch/change` and gives up with a status other than 0; it runs once in each
/// place until it succeeds.
fn script(workdir: &str, limit_bytes: u64, take: &str) -> String {
    format!(
        "cd {workdir} || {{ echo '{TAKEN} destroyed'; exit 0; }}\n\
         limit={limit_bytes}\n\
         {take}\
         for place in /tmp /dev/shm; do\n\
         scratch=$(mktemp -d \"$place/greenroom.XXXXXX\") || continue\n\
         if take; then\n\
         [ \"$(wc -c < \"$scratch/change\")\" -le \"$limit\" ] || {{ echo '{TAKEN} too-large'; exit 0; }}\n\
         echo \"{TAKEN} file $scratch/change\"; exit 0\n\
         fi\n\
         rm -rf \"$scratch\"\n\
         done\n\
         echo '{TAKEN} failed'\n",
        workdir = shell_quote(workdir),
    )
}

/// The difference of the work tree from the instance's commit, binary, with everything that is not ignored. Repositories inside
/// it are taken for plain directories, where the project itself has none. New files count by their size before they are read: a gibibyte of them is too large at once.
pub(super) fn difference(commits: &InstanceCommits, limit_bytes: u64) -> String {
    let format = if commits.instance.len() == 64 { "--object-format=sha256" } else { "" };
    let take = format!(
        "base={base}; top=$PWD; store={store}\n\
         export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1\n\
         git() {{ GIT_DIR=\"$scratch/own\" GIT_WORK_TREE=\"$top\" command git --no-replace-objects -c core.fsync=none \
         -c core.looseCompression=1 -c core.attributesFile=/dev/null -c pack.threads=1 -c index.threads=1 \
         -c advice.addEmbeddedRepo=false \"$@\"; }}\n\
         take() {{\n\
         command git init -q --bare --template= {format} \"$scratch/own\" || return 1\n\
         mkdir -p \"$scratch/own/info\" && echo \"$store/objects\" > \"$scratch/own/objects/info/alternates\" || return 1\n\
         if [ -f \"$store/info/exclude\" ]; then cp \"$store/info/exclude\" \"$scratch/own/info/exclude\" || return 1; fi\n\
         git read-tree \"$base\" || {{\n\
         git cat-file -e \"$base^{{tree}}\" || {{ echo '{TAKEN} destroyed'; exit 0; }}\n\
         return 1\n\
         }}\n\
         git ls-files -s | grep -q '^160000 ' || find . -mindepth 2 -name .git -prune -exec rm -rf -- {{}} +\n\
         added=$(git ls-files -z --others --exclude-standard | xargs -0 -r stat -c %s -- \
         | awk '{{ sum += $1 }} END {{ printf \"%.0f\", sum }}')\n\
         [ \"$added\" -le \"$limit\" ] || {{ echo '{TAKEN} too-large'; exit 0; }}\n\
         git add -A || return 1\n\
         {{ git diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames --src-prefix=a/ --dst-prefix=b/ \
         \"$base\"; echo $? > \"$scratch/status\"; }} | head -c $((limit + 1)) > \"$scratch/change\" || return 1\n\
         [ \"$(wc -c < \"$scratch/change\")\" -gt \"$limit\" ] || [ \"$(cat \"$scratch/status\")\" = 0 ]\n\
         }}\n",
        base = shell_quote(&commits.instance),
        store = shell_quote(&commits.store),
    );
    script(&commits.top, limit_bytes, &take)
}

/// An archive of the working directory with all that is in it.
pub(super) fn archive(workdir: &str, limit_bytes: u64) -> String {
    // What tar cannot read nobody could have read in the box either; a write that fails is head's.
    let take =
        "take() { tar -cf - --exclude=\"./${scratch##*/}\" . | head -c $((limit + 1)) > \"$scratch/change\"; }\n";
    format!("mkdir -p {}\n{}", shell_quote(workdir), script(workdir, limit_bytes, take))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_line_tells_what_was_taken() {
        let read = |output: &str| Taken::read(&CommandOutcome::finished(0, output), 7);
        let not = |reason| Taken::Not(reason);
        assert_eq!(read("warning: x\ngreenroom-taken: file /tmp/a b\n"), Taken::File("/tmp/a b".to_owned()));
        assert_eq!(read("greenroom-taken: too-large\n"), not(GradeReason::ChangeTooLarge { limit_bytes: 7 }));
        assert_eq!(read("greenroom-taken: destroyed"), not(GradeReason::RepositoryDestroyed));
        for nothing in
            ["", "greenroom-taken: file relative", "greenroom-taken: file /tmp/a\nKilled", "greenroom-taken:"]
        {
            assert_eq!(read(nothing), not(GradeReason::ChangeNotTaken), "{nothing:?}");
        }
        let late = CommandOutcome::timed_out("greenroom-taken: file /tmp/a");
        assert_eq!(Taken::read(&late, 7), not(GradeReason::ChangeNotTaken));
    }
}
