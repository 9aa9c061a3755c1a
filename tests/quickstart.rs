//! A quickstart in small: from the commands a user gives to a checked history and a summary that says what is promised.
//!
//! Its data are made as `cargo quickstart` makes them. Its policy was warm-started a little and learns from a few more
//! demonstrations; batches and measurements are a fraction of the quickstart's own.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]

mod support;

use std::collections::BTreeSet;

use serde_json::Value;
use support::{Run, finish, greenroom, succeed, text};

const STEPS: u64 = 2;

/// The keys of `summary.json`, which scripts read.
const SUMMARY: &[&str] = &[
    "steps",
    "wall_s",
    "eval_before",
    "eval_after",
    "held_out_before",
    "held_out_after",
    "pass_at_1_first",
    "pass_at_1_last",
    "rollouts",
    "weight_versions",
    "tokens_trained",
    "tokens_generated",
    "warnings",
];
const ROLLOUTS: &[&str] = &["completed", "truncated", "stale", "cancelled", "infra_failed"];

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_small_quickstart_completes_passes_its_check_and_sums_up_what_is_promised() {
    let run = Run::new(&[
        "run.steps=2",
        "run.groups_per_batch=2",
        "run.samples_per_group=3",
        "run.evaluation.before_and_after=true",
        "run.evaluation.samples_per_task=1",
        "run.evaluation.tasks=2",
    ]);
    let output = succeed(&mut run.begin());
    let log = text(&output.stderr);
    assert!(log.lines().any(|line| line.starts_with("[warm start] steps=")), "no word of the warm start:\n{log}");
    let greppable = log.lines().filter(|line| line.starts_with("[metrics] step=")).count();
    assert_eq!(greppable as u64, STEPS, "one greppable line a step:\n{log}");

    let summary: Value = serde_json::from_slice(&std::fs::read(run.dir().join("summary.json")).unwrap()).unwrap();
    assert_eq!(summary, serde_json::from_slice::<Value>(&output.stdout).unwrap(), "stdout is the summary");
    assert_eq!(keys(&summary), SUMMARY.iter().copied().collect());
    assert_eq!(keys(&summary["rollouts"]), ROLLOUTS.iter().copied().collect());
    for key in SUMMARY.iter().filter(|key| !["rollouts", "warnings"].contains(*key)) {
        assert!(summary[key].is_number(), "{key} is {}", summary[key]);
    }
    assert!(summary["warnings"].is_array(), "{summary:#}");
    assert_eq!(summary["steps"], STEPS);
    assert_eq!(summary["weight_versions"], STEPS + 1, "the initial version and one a step");
    for failed in ["stale", "cancelled", "infra_failed"] {
        assert_eq!(summary["rollouts"][failed], 0, "{summary:#}");
    }
    let ended = summary["rollouts"]["completed"].as_u64().unwrap() + summary["rollouts"]["truncated"].as_u64().unwrap();
    assert_eq!(ended, STEPS * 2 * 3 + 2 * (2 + 2), "batches, and both measurements of training and held-out tasks");
    assert!(summary["tokens_generated"].as_u64() > Some(0));

    let metrics = run.metrics();
    let steps: Vec<&Value> = metrics.iter().map(|line| &line["step"]).collect();
    assert_eq!(steps, [1, 2], "one line a step, in order");
    let trained: u64 = metrics.iter().map(|line| line["train"]["tokens_trained"].as_u64().unwrap()).sum();
    assert_eq!(
        summary["tokens_trained"], trained,
        "the sum over the steps: a group without a signal is not trained on"
    );

    let check = finish(greenroom().arg("check").arg(run.dir()));
    assert!(check.status.success(), "{}{}", text(&check.stdout), text(&check.stderr));
    run.assert_no_sandbox_processes();
    run.assert_no_sandbox_directories();
    a_complete_run_is_not_begun_again(&run, &summary);
}

fn a_complete_run_is_not_begun_again(run: &Run, summary: &Value) {
    let resumed = succeed(&mut run.resume());
    assert!(text(&resumed.stderr).contains("is complete"), "{}", text(&resumed.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&resumed.stdout).unwrap(), *summary);
    let again = finish(&mut run.begin());
    assert!(!again.status.success());
    let log = text(&again.stderr);
    assert_eq!(log.lines().filter(|line| line.starts_with("error:")).count(), 1, "{log}");
    let now: Value = serde_json::from_slice(&std::fs::read(run.dir().join("summary.json")).unwrap()).unwrap();
    assert_eq!(now, *summary, "nothing of it has changed");
}
