//! Promise: every task of the quickstart is a real one: its fix earns 1 and doing nothing earns 0 by the same grading that
//! rollouts use, in a sandbox's tree made as rollouts make it, and that tree does not hold the answer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and tells what it did"
)]

mod folders;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use greenroom_core::Seed;
use greenroom_rollout::dataset::make::{BugsRequest, QuickstartData, bugs, quickstart};
use greenroom_rollout::grading::{CommandOutcome, Grader, InstanceCommits, Keep, parse_withheld, withhold_command};
use greenroom_rollout::{Dataset, GradingLimits, Task};
use serde_json::Value;

const LIMITS: GradingLimits =
    GradingLimits { timeout: Duration::from_secs(60), moving_timeout: Duration::from_secs(60), change_bytes: 1 << 20 };

fn run(folder: &Path, command: &str, input: &str) -> CommandOutcome {
    let mut child = Command::new("bash")
        .args(["-c", &format!("exec 2>&1\n{command}")])
        .current_dir(folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    CommandOutcome::finished(output.status.code().unwrap().into(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn succeed(folder: &Path, command: &str, input: &str) -> String {
    let outcome = run(folder, command, input);
    assert_eq!(outcome.returncode, 0, "{command}: {}", outcome.output);
    outcome.output
}

/// A sandbox's work tree: a copy of the image, files staged, set up.
fn work_tree(images: &BTreeMap<String, PathBuf>, task: &Task, folder: &Path, keep: Keep) -> Option<InstanceCommits> {
    folders::copy(&images[&task.image], folder);
    for (path, text) in &task.files {
        std::fs::write(folder.join(path), text).unwrap();
    }
    succeed(folder, task.setup_cmd.as_deref()?, "");
    let withhold = withhold_command(folder.to_str().unwrap(), task.id.as_str(), keep);
    Some(parse_withheld(task.id.as_str(), &run(folder, &withhold.command, "")).unwrap())
}

/// What the agent left in a folder is worth, graded in another one.
fn reward(images: &BTreeMap<String, PathBuf>, task: &Task, folder: &Path, commits: Option<InstanceCommits>) -> f64 {
    let work = folders::take(&task.grading_task(folder.to_str().unwrap(), LIMITS, commits), folder);
    let mut boxes = 0;
    let fresh = || {
        boxes += 1;
        let made = PathBuf::from(format!("{}-fresh-{boxes}", folder.display()));
        let commits = work_tree(images, task, &made, Keep::Tests);
        let task = task.grading_task(made.to_str().unwrap(), LIMITS, commits);
        (made, task)
    };
    folders::grade(Grader::new(work), fresh).unwrap().reward
}

fn rows(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_task_is_worth_1_with_its_fix_and_0_without() {
    let folder = tempfile::tempdir().unwrap();
    let data = quickstart(&folder.path().join("data"), Seed::new(7), &|_| ()).unwrap();
    let mut ids = BTreeSet::new();
    for file in [&data.rl, &data.heldout] {
        let dataset = Dataset::load(file).unwrap();
        for (task, row) in dataset.tasks().iter().zip(rows(file)) {
            assert!(ids.insert(task.id.clone()), "{} is in both splits", task.id.as_str());
            let box_of = |name: &str| folder.path().join(format!("{name}-{}", ids.len()));
            let idle = box_of("idle");
            let commits = work_tree(&data.images, task, &idle, Keep::Nothing);
            assert_eq!(
                reward(&data.images, task, &idle, commits),
                0.0,
                "{} is worth something untouched",
                task.id.as_str()
            );
            let Some(patch) = row["metadata"]["bug_patch"].as_str() else { continue };
            let fixed = box_of("fixed");
            let commits = work_tree(&data.images, task, &fixed, Keep::Nothing);
            let history =
                succeed(&fixed, "git log --all --oneline | wc -l; git cat-file --batch-all-objects --batch", "");
            assert_eq!(history.lines().next().unwrap().trim(), "1", "one commit is left, without the hidden tests");
            let right = patch.lines().find(|line| line.starts_with('-') && !line.starts_with("---")).unwrap();
            let contents: String = history.lines().filter(|line| *line == &right[1..]).collect();
            assert!(
                contents.is_empty() || patch.matches(&right[1..]).count() > 1,
                "the fix can be found in {}",
                task.id.as_str()
            );
            succeed(&fixed, "git apply -R", patch);
            assert_eq!(
                reward(&data.images, task, &fixed, commits),
                1.0,
                "{} is not worth 1 when mended",
                task.id.as_str()
            );
        }
    }
    assert!(data.rl_tasks >= 16 && data.heldout_tasks >= 12);
    demonstrations_are_of_other_instances(&data);
}

fn demonstrations_are_of_other_instances(data: &QuickstartData) {
    let tasks: Vec<Value> = rows(&data.rl).into_iter().chain(rows(&data.heldout)).collect();
    let texts: BTreeSet<&str> = tasks.iter().filter_map(|row| row["text"].as_str()).collect();
    let demonstrations = rows(&data.sft);
    assert!(demonstrations.len() > 1000);
    for row in &demonstrations {
        let messages = row["messages"].as_array().unwrap();
        assert!(!texts.contains(messages[1]["content"].as_str().unwrap()), "{row} shows a task");
        assert_eq!(messages.last().unwrap()["role"], "assistant");
    }
}

#[test]
fn same_seed_gives_the_same_data() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, seed: u64| {
        let data = quickstart(&folder.path().join(name), Seed::new(seed), &|_| ()).unwrap();
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        (text(&data.rl), text(&data.heldout), text(&data.model.join("tokenizer.json")), text(&data.sft))
    };
    let (first, second, other) = (make("a", 1), make("b", 1), make("c", 2));
    assert_eq!(first, second);
    assert_eq!((first.0, first.1, first.2), (other.0, other.1, other.2), "the seed changes only the demonstrations");
    assert_ne!(first.3, other.3);
}

#[test]
#[ignore = "fetches a project from PyPI; GREENROOM_TEST_PYTHON names a Python with pytest"]
fn tasks_from_a_real_project_are_worth_1_with_their_fix_and_0_without() {
    let folder = tempfile::tempdir().unwrap();
    let python = std::env::var("GREENROOM_TEST_PYTHON").ok();
    let request = BugsRequest {
        packages: vec!["inflection==0.5.1".parse().unwrap()],
        tasks_per_package: 3,
        seed: Seed::new(7),
        python: python.map(PathBuf::from),
    };
    let data = bugs(&folder.path().join("data"), &request, &|step| println!("{}", step.what)).unwrap();
    let dataset = Dataset::load(&data.tasks).unwrap();
    assert_eq!(dataset.tasks().len(), 3);
    for (number, (task, row)) in dataset.tasks().iter().zip(rows(&data.tasks)).enumerate() {
        for (name, patch, worth) in [("idle", None, 0.0), ("fixed", row["metadata"]["bug_patch"].as_str(), 1.0)] {
            let tree = folder.path().join(format!("{name}-{number}"));
            let commits = work_tree(&data.images, task, &tree, Keep::Nothing);
            if let Some(patch) = patch {
                succeed(&tree, "git apply -R", patch);
            }
            assert_eq!(reward(&data.images, task, &tree, commits), worth, "{} {name}", task.id.as_str());
        }
    }
}
