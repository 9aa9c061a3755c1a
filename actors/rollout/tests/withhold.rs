//! Promise: while the agent acts, neither the hidden tests nor the original code can be found in its sandbox, by git or by
//! reading git's files; what the agent works with is a plain repository in order.
//!
//! The repository is in SWE-smith's shape with everything that real ones drag along: sibling branches, tags, a stash, logs,
//! remotes, notes, other work trees, bytecode. Each search is first shown to find what it is there for.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and tells what it did"
)]

use std::path::Path;
use std::process::{Command, Stdio};

use greenroom_rollout::grading::{CommandOutcome, Keep, parse_withheld, withhold_command};

const INSTANCE: &str = "owner__calc.12345678.func_pm__abcd1234";

/// `hiddenfact` stands in the hidden test, `rightanswer` in the original code; commits and branches tell of both.
const REPOSITORY: &str = r#"
set -e
git init -q -b main . && git config user.name t && git config user.email t@example.invalid
mkdir tests && touch tests/__init__.py
printf 'def add(a, b):\n    rightanswer = a + b\n    return rightanswer\n' > calc.py
printf 'def test_add():\n    hiddenfact = 3\n' > tests/test_add.py
printf 'def test_zero():\n    pass\n' > tests/test_zero.py
printf 'build/\n__pycache__/\n' > .gitignore
git add -A && git commit -q -m 'original rightanswer' && git tag -m 'v1 rightanswer' v1
git notes add -m 'rightanswer'
echo '# hiddenfact' >> tests/test_add.py && git stash -q
for sibling in one two three; do
git checkout -q -b owner__calc.12345678.func_pm__$sibling main
sed -i "s/b):/b, $sibling=0):/" calc.py && git commit -q -am "bug $sibling" && git rm -q tests/test_zero.py && git commit -q -m 'remove tests'
done
git repack -q -a -d
git checkout -q -b owner__calc.12345678.func_pm__abcd1234 main
printf 'def add(a, b):\n    return a - b\n' > calc.py && git commit -q -am 'bug, not rightanswer'
git rm -q tests/test_add.py && git commit -q -m 'remove hiddenfact tests'
git remote add origin "file:///srv/rightanswer" && git update-ref refs/remotes/origin/main main
git config branch.main.remote origin && git config branch.main.merge refs/heads/rightanswer
git worktree add -q "$PWD.other" owner__calc.12345678.func_pm__two
git fetch -q . main && git update-ref ORIG_HEAD main
mkdir -p tests/__pycache__ .pytest_cache build
printf 'hiddenfact' > tests/__pycache__/test_add.cpython-311.pyc
printf 'rightanswer' > .pytest_cache/nodeids
printf '#!/bin/sh\n' > .git/hooks/pre-push
echo '/scratch' >> .git/info/exclude
"#;

/// Ways to look for what is hidden; each finds it where the history is whole.
const SEARCHES: [(&str, &str); 10] = [
    ("all of the log", "git log --all -p --format=raw; git log -g --all --format=%s"),
    ("lost objects", "git fsck --lost-found --full; cat .git/lost-found/*/* 2>/dev/null; git rev-list --objects --all"),
    ("every object", "git cat-file --batch-all-objects --batch --unordered"),
    ("names of refs and remotes", "git for-each-ref; git remote -v; git branch -a -v; git stash list"),
    ("earlier commits", "git show HEAD~1 HEAD@{1} main~1 ORIG_HEAD FETCH_HEAD 2>&1; git show v1; git show stash@{0}"),
    ("an object by its hash", "git cat-file -p {test}; git cat-file -p {code}"),
    ("git's files as they are", "grep -r -a -h -e hiddenfact -e rightanswer .git"),
    (
        "git's files uncompressed",
        "python3 -c \"import os, zlib\nfor d, _, fs in os.walk('.git'):\n  for f in fs:\n    b = open(os.path.join(d, f), 'rb').read()\n    for i in range(min(len(b), 20000)):\n      try: print(zlib.decompressobj().decompress(b[i:]))\n      except zlib.error: pass\"",
    ),
    ("the work tree", "grep -r -a -h -e hiddenfact -e rightanswer --exclude-dir=.git ."),
    ("another work tree", "grep -r -a -h -e hiddenfact -e rightanswer \"$PWD.other\""),
];

fn run(folder: &Path, command: &str) -> CommandOutcome {
    let output = Command::new("/bin/sh")
        .args(["-c", &format!("exec 2>&1\n{command}")])
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    CommandOutcome::finished(output.status.code().unwrap().into(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn succeed(folder: &Path, command: &str) -> String {
    let outcome = run(folder, command);
    assert_eq!(outcome.returncode, 0, "{command}: {}", outcome.output);
    outcome.output
}

/// What of the hidden things each search finds. A hash that is known from before is told to the search.
fn found(folder: &Path, test: &str, code: &str) -> Vec<(&'static str, bool)> {
    let finds = |search: &str| {
        let output = run(folder, &search.replace("{test}", test).replace("{code}", code)).output;
        ["hiddenfact", "rightanswer", "owner__calc", test, code].iter().any(|secret| {
            // An error repeats the name that was asked for.
            output.lines().any(|line| line.contains(secret) && !line.contains("fatal:"))
        })
    };
    SEARCHES.iter().map(|(name, search)| (*name, finds(search))).collect()
}

fn made(folder: &Path, more: &str) -> (String, String) {
    succeed(folder, REPOSITORY);
    let hash = |name: &str| succeed(folder, &format!("git rev-parse {name}")).trim().to_owned();
    let hashes = (hash("main:tests/test_add.py"), hash("main:calc.py"));
    succeed(folder, &format!("set -e\n{more}"));
    hashes
}

fn withhold(folder: &Path) {
    let outcome = run(folder, &withhold_command(folder.to_str().unwrap(), INSTANCE, Keep::Nothing).command);
    let commits = parse_withheld(INSTANCE, &outcome).unwrap_or_else(|error| panic!("{error}: {}", outcome.output));
    assert_eq!(succeed(folder, "git rev-parse HEAD").trim(), commits.instance);
    assert_ne!(run(folder, &format!("git cat-file -e {}", commits.with_tests)).returncode, 0, "it is gone");
}

#[test]
fn nothing_hidden_is_found_in_a_sandbox() {
    let shapes = [
        ("as it is", ""),
        ("packed", "git repack -q -a -d -f && git pack-refs --all && git commit-graph write --reachable"),
        (
            "cut to two commits",
            "git clone -q --bare --depth 2 -b owner__calc.12345678.func_pm__abcd1234 \"file://$PWD\" .git.own; \
          rm -rf .git \"$PWD.other\"; mv .git.own .git; git config core.bare false; git reset -q",
        ),
        (
            "with the store elsewhere",
            "mv .git \"$PWD.store\" && echo \"gitdir: $PWD.store\" > .git && git -C . worktree repair -q 2>/dev/null || true",
        ),
        (
            "with a borrowed store",
            "mkdir \"$PWD.lent\" && cp -r .git/objects \"$PWD.lent/objects\" && rm -rf .git/objects/pack/* .git/objects/??\n\
          echo \"$PWD.lent/objects\" > .git/objects/info/alternates",
        ),
        (
            "in another work tree of it",
            "git checkout -q main && git worktree add -q .inner owner__calc.12345678.func_pm__abcd1234",
        ),
    ];
    for (shape, more) in shapes {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("testbed");
        std::fs::create_dir(&path).unwrap();
        let (test, code) = made(&path, more);
        let before = found(&path, &test, &code);
        if shape == "as it is" {
            let blind: Vec<_> = before.iter().filter(|(_, finds)| !finds).collect();
            assert!(blind.is_empty(), "these searches find nothing even in a whole history: {blind:?}");
        }
        let workdir = if shape.starts_with("in another") { path.join(".inner") } else { path.clone() };
        withhold(&workdir);
        let after: Vec<_> = found(&workdir, &test, &code).into_iter().filter(|(_, finds)| *finds).collect();
        assert!(after.is_empty(), "{shape}: {after:?} find what is hidden");
        succeed(&workdir, "git fsck --full --strict");
    }
}

#[test]
fn the_box_in_which_tests_run_does_not_hold_the_original_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("testbed");
    std::fs::create_dir(&path).unwrap();
    let (test, code) = made(&path, "git repack -q -a -d -f");
    let outcome = run(&path, &withhold_command(path.to_str().unwrap(), INSTANCE, Keep::Tests).command);
    let commits = parse_withheld(INSTANCE, &outcome).unwrap();
    succeed(&path, &format!("git show {}:tests/test_add.py | grep -q hiddenfact", commits.with_tests));
    succeed(&path, "git fsck --full --strict");
    for (name, search) in SEARCHES {
        let output = run(&path, &search.replace("{test}", &test).replace("{code}", &code)).output;
        let finds = output.lines().any(|line| line.contains("rightanswer") && !line.contains("fatal:"));
        assert!(!finds, "{name} finds the original code");
    }
}

#[test]
fn the_agent_has_a_repository_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("testbed");
    std::fs::create_dir(&path).unwrap();
    made(&path, "git config core.autocrlf input");
    withhold(&path);
    assert_eq!(succeed(&path, "git status --porcelain"), "");
    assert_eq!(succeed(&path, "git log --all --format='%an %s' | cat").trim(), "greenroom Initial commit");
    assert_eq!(
        succeed(&path, "git config user.name; git config core.autocrlf; git config core.bare"),
        "t\ninput\nfalse\n"
    );
    assert_eq!(
        succeed(&path, "ls .git/hooks/pre-push; tail -n 1 .git/info/exclude; ls -d build"),
        ".git/hooks/pre-push\n/scratch\nbuild\n"
    );
    succeed(
        &path,
        "sed -i 's/a - b/a + b/' calc.py && git diff HEAD | grep -q '^+    return a + b' && git commit -q -am fix",
    );
    succeed(&path, "git checkout -q -b mine HEAD~1 && git merge -q main && git stash list && git gc -q --prune=now");
}

#[test]
fn the_same_instance_has_the_same_commits_in_every_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let commits = ["", "git repack -q -a -d -f", "echo x > calc.py && git add -A"].map(|more| {
        let path = folder.path().join(more.len().to_string());
        std::fs::create_dir(&path).unwrap();
        made(&path, more);
        let outcome = run(&path, &withhold_command(path.to_str().unwrap(), INSTANCE, Keep::Nothing).command);
        let commits = parse_withheld(INSTANCE, &outcome).unwrap();
        succeed(&path, "git fsck --full --strict && git diff --cached --quiet");
        (commits.instance, commits.with_tests)
    });
    assert!(commits[0] == commits[1] && commits[1] == commits[2], "{commits:?}");
}

#[test]
fn what_is_no_repository_of_the_instance_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let withheld = |path: &Path| {
        parse_withheld(INSTANCE, &run(path, &withhold_command(path.to_str().unwrap(), INSTANCE, Keep::Nothing).command))
    };
    assert!(withheld(path).is_err());
    succeed(path, "git init -q -b main . && git -c user.name=t -c user.email=t commit -q --allow-empty -m first");
    assert!(withheld(path).is_err());
    assert_eq!(succeed(path, "git log --format=%s"), "first\n");
}
