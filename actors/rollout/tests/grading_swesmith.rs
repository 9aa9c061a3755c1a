//! Promise: the right fix earns 1 however it is left behind, anything else earns 0, and a broken sandbox earns nothing.
//!
//! Each case is a real repository in SWE-smith's shape (bug with tests, then the hidden tests removed), a shell script that
//! plays the agent, and the grading plan run by a real shell: once with the history in the box, once with it withheld. The
//! work is taken out of the agent's folder and graded in a copy that the agent never touched.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and tells what it did"
)]

mod folders;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use folders::{copy, grade, run, take};
use greenroom_rollout::grading::{
    CmdTask, CommandOutcome, Grade, GradeError, GradeReason, Grader, GradingTask, InstanceCommits, Keep, LogParser,
    SweSmithTask, Work, parse_withheld, withhold_command,
};

const INSTANCE: &str = "owner__calc.12345678.func_pm__abcd1234";

const LIMIT_BYTES: u64 = 1 << 20;

const REPOSITORY: &str = r#"
git init -q -b main . && git config user.name t && git config user.email t@example.invalid
mkdir tests && touch tests/__init__.py
printf 'def add(a, b):\n    return a + b\n' > calc.py
printf 'import unittest, calc\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(calc.add(1, 2), 3)\n' > tests/test_add.py
printf 'import unittest, calc\nclass T(unittest.TestCase):\n    def test_zero(self):\n        self.assertEqual(calc.add(0, 0), 0)\n' > tests/test_zero.py
git add -A && git commit -q -m original
git checkout -q -b owner__calc.12345678.func_pm__abcd1234
sed -i 's/a + b/a - b/' calc.py && git commit -q -am bug
git rm -q tests/test_add.py && git commit -q -m 'remove tests'
"#;

static IMAGE: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::create_dir(&image).unwrap();
    let made = run(&image, REPOSITORY);
    assert_eq!(made.returncode, 0, "{}", made.output);
    folder
});

/// unittest repeats a method's name in its class since Python 3.11.
static IS_NEW_STYLE: LazyLock<bool> = LazyLock::new(|| {
    run(IMAGE.path(), "python3 -c 'import sys; print(sys.version_info >= (3, 11))'").output.trim() == "True"
});

fn task(folder: &Path) -> SweSmithTask {
    SweSmithTask {
        instance_id: INSTANCE.to_owned(),
        workdir: folder.to_str().unwrap().to_owned(),
        commits: None,
        test_cmd: "python3 -m unittest -v".to_owned(),
        parser: LogParser::UnittestTornado,
        fail_to_pass: vec![test_id("test_add")],
        pass_to_pass: vec![test_id("test_zero")],
        test_timeout: Duration::from_secs(60),
        moving_timeout: Duration::from_secs(60),
        change_limit_bytes: LIMIT_BYTES,
    }
}

fn test_id(name: &str) -> String {
    if *IS_NEW_STYLE { format!("{name} (tests.{name}.T.{name})") } else { format!("{name} (tests.{name}.T)") }
}

/// The grade, which is the same whether the history is withheld or not.
fn grade_after(agent: &str, change: impl Fn(&mut SweSmithTask)) -> Result<Grade, GradeError> {
    let withheld = grade_with(true, agent, &change);
    assert_eq!(format!("{withheld:?}"), format!("{:?}", grade_with(false, agent, &change)), "{agent}");
    withheld
}

fn find_commits(path: &Path, withhold: bool, keep: Keep) -> Result<InstanceCommits, GradeError> {
    let workdir = path.to_str().unwrap();
    if withhold {
        return parse_withheld(INSTANCE, &run(path, &withhold_command(workdir, INSTANCE, keep).command));
    }
    InstanceCommits::parse(INSTANCE, &run(path, &InstanceCommits::resolve_command(workdir, INSTANCE).command))
}

fn grade_with(withhold: bool, agent: &str, change: impl Fn(&mut SweSmithTask)) -> Result<Grade, GradeError> {
    let scratch = tempfile::tempdir().unwrap();
    let image = IMAGE.path().join("image");
    let box_of = |name: &str, keep: Keep| {
        let path = scratch.path().join(name);
        copy(&image, &path);
        let mut task = task(&path);
        task.commits = Some(find_commits(&path, withhold, keep).unwrap());
        change(&mut task);
        (path, task)
    };
    let (agents, task) = box_of("agents", Keep::Nothing);
    let instance = task.commits.as_ref().unwrap().instance.clone();
    let acted = run(&agents, agent);
    assert_eq!(acted.returncode, 0, "agent: {}", acted.output);
    let work = take(&GradingTask::SweSmith(task), &agents);
    let mut boxes = 0;
    grade(Grader::new(work), || {
        boxes += 1;
        let (path, task) = box_of(&format!("fresh-{boxes}"), Keep::Tests);
        assert_eq!(task.commits.as_ref().unwrap().instance, instance, "set-up is repeatable");
        (path, GradingTask::SweSmith(task))
    })
}

const FIX: &str = "sed -i 's/a - b/a + b/' calc.py";

#[test]
fn a_right_fix_earns_one_however_it_is_left_behind() {
    let ways = [
        ("in the work tree", ""),
        ("committed on the branch", "; git commit -q -am fix"),
        ("committed in pieces", "; git commit -q -am fix; echo '# x' >> calc.py; git add -A"),
        ("on another branch", "; git checkout -q -b mine; git commit -q -am fix"),
        ("with an untracked binary", "; printf '\\000\\377\\001' > blob.bin"),
        ("with the hidden test re-created", "; echo 'raise SystemExit(1)' > tests/test_add.py"),
        ("with a directory in the hidden test's place", "; mkdir tests/test_add.py; touch tests/test_add.py/x"),
        ("with a visible test edited", "; echo 'raise SystemExit(1)' > tests/test_zero.py"),
        ("with a visible test deleted", "; rm tests/test_zero.py"),
        ("with a lock left by a killed git", "; touch .git/index.lock"),
        (
            "with a hook that ends every checkout",
            "; printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout",
        ),
        ("with the repository called bare", "; git config core.bare true"),
        ("with the change hidden from git", "; git update-index --skip-worktree calc.py"),
        (
            "with a sparse check-out",
            "; git sparse-checkout set nothing; git sparse-checkout disable; git sparse-checkout set --no-cone '/calc.py'",
        ),
        ("with settings that break git", "; printf '[core\\n' > .git/config"),
        ("with everything ignored", "; echo '*' > .git/info/attributes; git config core.excludesFile /dev/null"),
        (
            "with a filter that spoils what is added",
            "; git config filter.e.clean false; git config filter.e.required true; echo '* filter=e' > .git/info/attributes",
        ),
        (
            "with a repository of its own inside",
            "; git init -q own && git -C own -c user.name=t -c user.email=t commit -q --allow-empty -m x",
        ),
        ("with another runner beside it", "; echo 'import os; os._exit(0)' > unittest.py"),
        ("with odd file names", "; mkdir 'a b'; echo 1 > 'a b/ü*.txt'"),
        (
            "with odd settings of git",
            "; git config diff.noprefix true; git config diff.external /bin/false; git config color.ui always",
        ),
    ];
    for (way, more) in ways {
        let grade = grade_after(&format!("{FIX}{more}"), |_| {}).unwrap();
        assert_eq!((grade.reward, &grade.reason), (1.0, &GradeReason::Passed), "{way}");
    }
}

#[test]
fn anything_else_earns_zero() {
    type Expected = fn(&GradeReason) -> bool;
    let tests_fail: Expected = |reason| matches!(reason, GradeReason::TestsNotPassed(_));
    let too_large: Expected = |reason| *reason == GradeReason::ChangeTooLarge { limit_bytes: LIMIT_BYTES };
    let cases: [(&str, &str, Expected); 14] = [
        ("nothing done", "true", tests_fail),
        ("another mistake", "sed -i 's/a - b/a * b/' calc.py", tests_fail),
        ("a syntax error", "echo '(' >> calc.py", tests_fail),
        (
            "an easier hidden test",
            "printf 'import unittest\\nclass T(unittest.TestCase):\\n    def test_add(self): pass\\n' > tests/test_add.py",
            tests_fail,
        ),
        (
            "a filter that rewrites tests as they are checked out",
            "git config filter.e.smudge \"sed 's/self.assert.*/pass/'\"; mkdir -p .git/info; \
             echo 'tests/*.py filter=e' > .git/info/attributes",
            tests_fail,
        ),
        ("the tests in the place of a link", "rm -r tests; ln -s /tmp tests", tests_fail),
        ("another runner, which says nothing", "echo 'import os; os._exit(0)' > unittest.py", tests_fail),
        (
            "the right fix, and an end of the runner in it",
            "sed -i 's/a - b/a + b/' calc.py; echo 'import os; os._exit(0)' >> calc.py",
            |reason| *reason == GradeReason::TestRunBroke,
        ),
        ("a gibibyte that takes no room", "sed -i 's/a - b/a + b/' calc.py; truncate -s 1G zeros", too_large),
        ("more than the limit", "sed -i 's/a - b/a + b/' calc.py; head -c 2M /dev/urandom > noise", too_large),
        (
            "a difference beyond the limit",
            "head -c 900K /dev/urandom > tests/test_zero.py; sed -i 's/a - b/a + b/' calc.py; head -c 900K /dev/urandom > calc.bin; git add -A; head -c 900K /dev/urandom >> calc.py",
            too_large,
        ),
        ("the commit's objects removed", "sed -i 's/a - b/a + b/' calc.py; rm -rf .git/objects/*", |reason| {
            *reason == GradeReason::RepositoryDestroyed
        }),
        ("the work tree removed", "cd .. && rm -rf \"$OLDPWD\"/.git \"$OLDPWD\"/*", |reason| {
            *reason == GradeReason::RepositoryDestroyed
        }),
        ("the repository removed", "rm -rf .git", |reason| *reason == GradeReason::RepositoryDestroyed),
    ];
    for (what, agent, expected) in cases {
        let grade = grade_after(agent, |_| {}).unwrap();
        assert!(grade.reward == 0.0 && expected(&grade.reason), "{what}: {grade:?}");
    }
}

#[test]
fn what_the_policy_did_not_do_is_never_a_reward() {
    let no_runner = grade_after(FIX, |task| task.test_cmd = "python3 -m no_such_runner -v".to_owned());
    assert!(matches!(no_runner, Err(GradeError::NoResults { .. })), "{no_runner:?}");
    let no_repository = grade_after(FIX, |task| {
        if let Some(commits) = &mut task.commits {
            commits.top = "/nonexistent".to_owned();
        }
    });
    assert!(matches!(no_repository, Err(GradeError::CouldNotRun { .. })), "{no_repository:?}");
    let no_room = grade_after("true", |task| task.change_limit_bytes = 0);
    assert_eq!(no_room.unwrap().reward, 0.0, "nothing fits into nothing");
    let mut grader = Grader::new(Work::Change(Vec::new()));
    let no_commits = grader.on_fresh_box(GradingTask::SweSmith(task(Path::new("/"))));
    assert!(matches!(no_commits, Err(GradeError::UngradableTask { .. })), "{no_commits:?}");
    let no_tests = grade_after(FIX, |task| task.fail_to_pass.clear());
    assert!(matches!(no_tests, Err(GradeError::UngradableTask { .. })), "{no_tests:?}");
}

#[test]
fn a_row_without_a_commit_of_its_tests_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), REPOSITORY);
    // The branch ends at the bug: its parent would be the original code.
    run(folder.path(), "git reset -q --hard HEAD~1");
    for withhold in [false, true] {
        let refused = find_commits(folder.path(), withhold, Keep::Nothing);
        let is_refused =
            matches!(&refused, Err(GradeError::UngradableTask { detail, .. }) if detail.contains("it has 1"));
        assert!(is_refused, "{refused:?}");
    }
}

#[test]
fn time_outs_and_broken_runs_are_told_apart() {
    let task = task(Path::new("/"));
    let started = ">>>>> Start Test Output\n";
    let timed_out = task.judge_tests(&CommandOutcome::timed_out(started)).unwrap();
    assert_eq!((timed_out.reward, timed_out.reason), (0.0, GradeReason::TestsTimedOut));
    let never_began = task.judge_tests(&CommandOutcome::timed_out(""));
    assert!(matches!(never_began, Err(GradeError::CouldNotRun { .. })), "{never_began:?}");
    let slow_preparation = task.judge_preparation(&CommandOutcome::timed_out(""));
    assert!(matches!(slow_preparation, Err(GradeError::CouldNotRun { .. })), "{slow_preparation:?}");
    let slow_resolution = InstanceCommits::parse(INSTANCE, &CommandOutcome::timed_out(""));
    assert!(matches!(slow_resolution, Err(GradeError::CouldNotRun { .. })), "{slow_resolution:?}");
    let mut pytest = task;
    pytest.parser = LogParser::PytestVerbose;
    let collection_error = "===== test session starts =====\ncollected 3 items / 1 error\n\nERROR tests/test_a.py\n\
                            !!!!! Interrupted: 1 error during collection !!!!!\n===== 1 error in 0.68s =====\n";
    assert_eq!(pytest.grade_log(collection_error).unwrap().reason, GradeReason::TestRunBroke);
    assert!(matches!(
        pytest.grade_log("/usr/bin/python3: No module named pytest\n"),
        Err(GradeError::NoResults { .. })
    ));
    assert!(matches!(pytest.grade_log(""), Err(GradeError::NoResults { .. })));
}

#[test]
fn a_command_rewards_only_status_zero() {
    let task = |folder: &Path, eval_cmd: &str| CmdTask {
        instance_id: "c1".to_owned(),
        workdir: folder.to_str().unwrap().to_owned(),
        eval_files: BTreeMap::from([("check.sh".to_owned(), "test \"$(cat answer)\" = 42\n".to_owned())]),
        eval_cmd: eval_cmd.to_owned(),
        eval_timeout: Duration::from_secs(60),
        moving_timeout: Duration::from_secs(60),
        change_limit_bytes: LIMIT_BYTES,
    };
    // The agent has put a directory where the hidden file will go.
    let honest = "mkdir check.sh; touch check.sh/x; echo 42 > answer";
    let cases = [
        (honest, "sh check.sh", Some(1.0)),
        (honest, "[[ -f check.sh ]] && sh check.sh; exit $?", Some(1.0)),
        ("rm -f given; ln -s /nowhere link; mkfifo pipe", "test ! -e given && test -L link && test -p pipe", Some(1.0)),
        (honest, "sh check.sh && exit 3", Some(0.0)),
        ("true", "sh check.sh", Some(0.0)),
        ("rm tool", "echo; ./tool", Some(0.0)),
        ("printf 'no-such-program' > tool", "sh tool", Some(0.0)),
        ("truncate -s 1G answer", "true", Some(0.0)),
        (honest, "no-such-program", None),
        (honest, "sh check.sh; no-such-program", None),
    ];
    for (agent, eval_cmd, reward) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let mut boxes = 0;
        let mut fresh = || {
            boxes += 1;
            let folder = scratch.path().join(format!("box-{boxes}"));
            std::fs::create_dir(&folder).unwrap();
            let made = run(&folder, "echo 1 > given; printf '#!/bin/sh\n' > tool; chmod +x tool");
            assert_eq!(made.returncode, 0, "{}", made.output);
            folder
        };
        let agents = fresh();
        run(&agents, agent);
        let work = take(&GradingTask::Cmd(task(&agents, eval_cmd)), &agents);
        run(&agents, "chmod u+rwx .");
        let graded = grade(Grader::new(work), || {
            let folder: PathBuf = fresh();
            let task = GradingTask::Cmd(task(&folder, eval_cmd));
            (folder, task)
        });
        match (reward, graded) {
            (Some(reward), Ok(grade)) => assert_eq!(grade.reward, reward, "{agent}: {eval_cmd}: {grade:?}"),
            (None, Err(GradeError::CouldNotRun { .. })) => {}
            (_, other) => panic!("{agent}: {eval_cmd}: {other:?}"),
        }
    }
    let endless = task(Path::new("/"), "x").judge(&CommandOutcome::timed_out("")).unwrap();
    assert_eq!((endless.reward, endless.reason), (0.0, GradeReason::TestsTimedOut));
    assert!(Grader::in_place(task(Path::new("/"), " ")).is_err());
}

#[test]
fn a_command_can_be_judged_in_the_agents_own_box() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("box");
    std::fs::create_dir(&path).unwrap();
    run(&path, "mkdir check.sh; echo 42 > ../answer");
    let task = |eval_cmd: &str| CmdTask {
        instance_id: "c1".to_owned(),
        workdir: path.to_str().unwrap().to_owned(),
        eval_files: BTreeMap::from([("check.sh".to_owned(), "test \"$(cat ../answer)\" = 42\n".to_owned())]),
        eval_cmd: eval_cmd.to_owned(),
        eval_timeout: Duration::from_secs(60),
        moving_timeout: Duration::from_secs(60),
        change_limit_bytes: LIMIT_BYTES,
    };
    for (eval_cmd, reward) in [("sh check.sh", Some(1.0)), ("exit 3", Some(0.0)), ("no-such-program", None)] {
        let mut grader = Grader::in_place(task(eval_cmd)).unwrap();
        let graded = loop {
            use greenroom_rollout::grading::GradeStep;
            match grader.next() {
                GradeStep::FreshBox => panic!("it is graded in place"),
                GradeStep::WriteFiles(files) => {
                    files.iter().for_each(|(name, content)| std::fs::write(path.join(name), content).unwrap());
                    grader.on_files_written().unwrap();
                }
                GradeStep::Run(command) => {
                    if grader.on_outcome(&run(&path, &command.command)).is_err() {
                        break None;
                    }
                }
                GradeStep::Done(grade) => break Some(grade.reward),
            }
        };
        assert_eq!(graded, reward, "{eval_cmd}");
    }
}

/// Grades the folder of real tasks that `GREENROOM_SWESMITH_TASKS` names (`tasks.jsonl`, `gold/ID.diff`, `profiles.json` and
/// bundles): for each the fix must earn 1 and nothing 0. Their projects must be able to run under `python3`.
#[test]
#[ignore = "needs a folder of tasks: set GREENROOM_SWESMITH_TASKS"]
fn given_tasks_are_solved_by_their_fix_and_by_nothing_less() {
    let root = std::env::var_os("GREENROOM_SWESMITH_TASKS").map(std::path::PathBuf::from).unwrap();
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let profiles: serde_json::Value = serde_json::from_str(&read("profiles.json")).unwrap();
    let texts = |value: &serde_json::Value| serde_json::from_value::<Vec<String>>(value.clone()).unwrap();
    for line in read("tasks.jsonl").lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let instance = row["instance_id"].as_str().unwrap();
        let profile = &profiles[instance.rsplit_once('.').unwrap().0];
        let bundle = root.join(profile["bundle"].as_str().unwrap());
        for (reward, agent) in [
            (1.0, format!("git apply '{}'", root.join(format!("gold/{instance}.diff")).display())),
            (0.0, "true".to_owned()),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut boxes = 0;
            let mut fresh = || {
                boxes += 1;
                let path = folder.path().join(format!("testbed-{boxes}"));
                let cloned = run(
                    folder.path(),
                    &format!(
                        "git clone -q '{}' '{path}' && cd '{path}' && git branch -q -f main origin/main; git checkout -q '{instance}'",
                        bundle.display(),
                        path = path.display()
                    ),
                );
                assert_eq!(cloned.returncode, 0, "{}", cloned.output);
                let resolve = InstanceCommits::resolve_command(path.to_str().unwrap(), instance);
                let task = SweSmithTask {
                    instance_id: instance.to_owned(),
                    workdir: path.to_str().unwrap().to_owned(),
                    commits: Some(InstanceCommits::parse(instance, &run(&path, &resolve.command)).unwrap()),
                    test_cmd: profile["test_cmd"].as_str().unwrap().to_owned(),
                    parser: LogParser::from_name(profile["log_parser"].as_str().unwrap()).unwrap(),
                    fail_to_pass: texts(&row["FAIL_TO_PASS"]),
                    pass_to_pass: texts(&row["PASS_TO_PASS"]),
                    test_timeout: Duration::from_secs(90),
                    moving_timeout: Duration::from_secs(90),
                    change_limit_bytes: 64 << 20,
                };
                (path, GradingTask::SweSmith(task))
            };
            let (path, task) = fresh();
            let acted = run(&path, &agent);
            assert_eq!(acted.returncode, 0, "{}", acted.output);
            let grade = grade(Grader::new(take(&task, &path)), fresh).unwrap();
            println!("{instance}: {} ({:?} {:?})", grade.reward, grade.fail_to_pass, grade.pass_to_pass);
            assert_eq!(grade.reward, reward, "{instance}: {:?}", grade.reason);
        }
    }
}
