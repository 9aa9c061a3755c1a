//! Promise: the right fix earns 1 however it is left behind, anything else earns 0, and a broken sandbox earns nothing.
//!
//! Each case is a real repository in SWE-smith's shape (bug with tests, then the hidden tests removed), a shell script that
//! plays the agent, and the grading plan run by a real shell: once with the history in the sandbox, once with it withheld.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and tells what it did"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use greenroom_rollout::grading::{
    CmdTask, CommandOutcome, Grade, GradeError, GradeReason, GradeStep, Grader, GradingTask, InstanceCommits,
    LogParser, SweSmithTask, parse_withheld, withhold_command,
};

const INSTANCE: &str = "owner__calc.12345678.func_pm__abcd1234";

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

fn run(folder: &Path, command: &str) -> CommandOutcome {
    let output = Command::new("/bin/sh")
        .args(["-c", &format!("exec 2>&1\n{command}")])
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    CommandOutcome::finished(output.status.code().unwrap().into(), text)
}

fn task(folder: &Path) -> SweSmithTask {
    SweSmithTask {
        instance_id: INSTANCE.to_owned(),
        workdir: folder.to_str().unwrap().to_owned(),
        commits: None,
        test_cmd: "python3 -m unittest -v".to_owned(),
        parser: LogParser::UnittestTornado,
        fail_to_pass: vec![test_id(folder, "test_add")],
        pass_to_pass: vec![test_id(folder, "test_zero")],
        test_timeout: Duration::from_secs(60),
    }
}

/// unittest writes `test_add (tests.test_add.T)` before Python 3.11 and repeats the method's name since.
fn test_id(folder: &Path, name: &str) -> String {
    let new_style = run(folder, "python3 -c 'import sys; print(sys.version_info >= (3, 11))'").output.trim() == "True";
    if new_style { format!("{name} (tests.{name}.T.{name})") } else { format!("{name} (tests.{name}.T)") }
}

/// The grade, which is the same whether the history is withheld or not.
fn grade_after(agent: &str, change: impl Fn(&mut SweSmithTask)) -> Result<Grade, GradeError> {
    let withheld = grade_with(true, agent, &change);
    assert_eq!(format!("{withheld:?}"), format!("{:?}", grade_with(false, agent, &change)), "{agent}");
    withheld
}

fn find_commits(path: &Path, withhold: bool) -> Result<InstanceCommits, GradeError> {
    let workdir = path.to_str().unwrap();
    if withhold {
        return parse_withheld(INSTANCE, &run(path, &withhold_command(workdir, INSTANCE).command));
    }
    InstanceCommits::parse(INSTANCE, &run(path, &SweSmithTask::resolve_command(workdir, INSTANCE).command))
}

fn grade_with(withhold: bool, agent: &str, change: impl Fn(&mut SweSmithTask)) -> Result<Grade, GradeError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let made = run(path, REPOSITORY);
    assert_eq!(made.returncode, 0, "{}", made.output);
    let mut task = task(path);
    task.commits = Some(find_commits(path, withhold)?);
    let acted = run(path, agent);
    assert_eq!(acted.returncode, 0, "agent: {}", acted.output);
    change(&mut task);
    let mut grader = Grader::new(GradingTask::SweSmith(task))?;
    loop {
        match grader.next() {
            GradeStep::Run(command) => {
                let outcome = run(path, &command.command);
                println!("{}: {}\n{}", command.purpose, outcome.returncode, outcome.output);
                grader.on_outcome(&outcome)?;
            }
            GradeStep::WriteFiles(files) => {
                for (name, content) in files {
                    std::fs::write(path.join(name), content).unwrap();
                }
                grader.on_files_written()?;
            }
            GradeStep::Done(grade) => return Ok(grade),
        }
    }
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
    let cases: [(&str, &str, Expected); 8] = [
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
        ("the tests in the place of a link", "rm -r tests; ln -s /tmp tests", |reason| {
            *reason == GradeReason::ChangeNotApplicable
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
    let no_folder = grade_after(FIX, |task| {
        task.workdir = "/nonexistent".to_owned();
        task.commits = None;
    });
    assert!(matches!(no_folder, Err(GradeError::CouldNotRun { .. })), "{no_folder:?}");
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
        let refused = find_commits(folder.path(), withhold);
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
    let folder = tempfile::tempdir().unwrap();
    // The agent has put a directory where the hidden file will go.
    run(folder.path(), "mkdir check.sh; touch check.sh/x; echo 42 > answer");
    let task = |eval_cmd: &str| CmdTask {
        instance_id: "c1".to_owned(),
        workdir: folder.path().to_str().unwrap().to_owned(),
        eval_files: BTreeMap::from([("check.sh".to_owned(), "test \"$(cat answer)\" = 42\n".to_owned())]),
        eval_cmd: eval_cmd.to_owned(),
        eval_timeout: Duration::from_secs(60),
    };
    let cases = [
        ("sh check.sh", Some(1.0)),
        ("[[ -f check.sh ]] && sh check.sh; exit $?", Some(1.0)),
        ("sh check.sh && exit 3", Some(0.0)),
        ("no-such-program", None),
    ];
    for (eval_cmd, reward) in cases {
        let mut grader = Grader::new(GradingTask::Cmd(task(eval_cmd))).unwrap();
        let ours = loop {
            match grader.next() {
                GradeStep::WriteFiles(files) => {
                    for (path, content) in files {
                        std::fs::write(folder.path().join(path), content).unwrap();
                    }
                    grader.on_files_written().unwrap();
                }
                GradeStep::Run(command) => {
                    if let Err(error) = grader.on_outcome(&run(folder.path(), &command.command)) {
                        assert!(matches!(error, GradeError::CouldNotRun { .. }), "{error}");
                        break None;
                    }
                }
                GradeStep::Done(grade) => break Some(grade.reward),
            }
        };
        assert_eq!(ours, reward, "{eval_cmd}");
    }
    let endless = task("x").judge(&CommandOutcome::timed_out("")).unwrap();
    assert_eq!((endless.reward, endless.reason), (0.0, GradeReason::TestsTimedOut));
    assert!(Grader::new(GradingTask::Cmd(task(" "))).is_err());
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
            let path = folder.path().join("testbed");
            let cloned = run(
                folder.path(),
                &format!(
                    "git clone -q '{}' testbed && cd testbed && git branch -q -f main origin/main; git checkout -q '{instance}'",
                    bundle.display()
                ),
            );
            assert_eq!(cloned.returncode, 0, "{}", cloned.output);
            let resolved = run(&path, &SweSmithTask::resolve_command(path.to_str().unwrap(), instance).command);
            let task = SweSmithTask {
                instance_id: instance.to_owned(),
                workdir: path.to_str().unwrap().to_owned(),
                commits: Some(InstanceCommits::parse(instance, &resolved).unwrap()),
                test_cmd: profile["test_cmd"].as_str().unwrap().to_owned(),
                parser: LogParser::from_name(profile["log_parser"].as_str().unwrap()).unwrap(),
                fail_to_pass: texts(&row["FAIL_TO_PASS"]),
                pass_to_pass: texts(&row["PASS_TO_PASS"]),
                test_timeout: Duration::from_secs(90),
            };
            let acted = run(&path, &agent);
            assert_eq!(acted.returncode, 0, "{}", acted.output);
            let prepared = run(&path, &task.preparation_command().command);
            assert_eq!(task.judge_preparation(&prepared), Ok(None), "{}", prepared.output);
            let grade = task.judge_tests(&run(&path, &task.test_command().command)).unwrap();
            println!("{instance}: {} ({:?} {:?})", grade.reward, grade.fail_to_pass, grade.pass_to_pass);
            assert_eq!(grade.reward, reward, "{instance}: {:?}", grade.reason);
        }
    }
}
