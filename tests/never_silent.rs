//! A run is never silent about what makes it worthless: nothing to learn from, an engine that takes no weights. It goes on
//! and ends well, but says so as soon as it is plain, in numbers, and again at its end.

#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)] // a test fails by panicking, and waits in real time

mod support;

use serde_json::Value;
use support::{Run, succeed, text};

fn summary(run: &Run) -> Value {
    serde_json::from_slice(&std::fs::read(run.dir().join("summary.json")).unwrap()).unwrap()
}

/// The very last line, which must be a warning.
fn last_words(said: &str) -> &str {
    said.lines().last().filter(|line| line.starts_with("WARNING ")).unwrap_or_else(|| panic!("no warning last: {said}"))
}

/// No prompt fits: the agents end before their first turn, and every step is made of nothing.
#[test]
fn a_run_in_which_nothing_can_be_learnt_says_so_in_numbers_when_it_is_plain_and_at_its_end() {
    let run = Run::new(&[
        "run.steps=3",
        "run.groups_per_batch=2",
        "run.samples_per_group=3",
        "rollout.max_context_tokens=24",
        "rollout.max_new_tokens=8",
        "run.warn_after_steps_without_signal=2",
    ]);
    let output = succeed(&mut run.begin());
    let said = text(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let why = |rollouts: u64| {
        format!("{rollouts} of {rollouts} rollouts ended at their first turn: ContextWindowExceededError")
    };
    let second = lines.iter().position(|line| line.starts_with("[metrics] step=2/3 ")).unwrap();
    let warned = lines.iter().position(|line| line.starts_with("[WARN] GR0210: steps 1 to 2 ")).unwrap();
    assert_eq!(warned, second + 1, "as soon as it is plain: {said}");
    assert!(lines[warned].contains(&why(12)), "{}", lines[warned]);
    assert_eq!(lines.iter().filter(|line| line.starts_with("[WARN] GR0210")).count(), 1, "once: {said}");
    assert!(last_words(&said).contains("nothing was learnt") && last_words(&said).contains(&why(18)), "{said}");
    let warnings = summary(&run)["warnings"].clone();
    let [Value::String(warning)] = warnings.as_array().unwrap().as_slice() else { panic!("{warnings}") };
    assert!(warning.starts_with("GR0210: nothing was learnt") && warning.contains(&why(18)), "{warning}");
}

/// One engine of two is not there: no step waits for it for longer than its patience (the whole time of an update is longer
/// than this test may take), and the end still tells of it.
#[test]
fn an_engine_that_is_not_there_is_told_of_and_holds_nothing_up() {
    let run = Run::new(&[
        "run.steps=2",
        "run.groups_per_batch=1",
        "run.samples_per_group=2",
        "engine.external.far.url=http://127.0.0.1:1",
        "engine.client.lost_patience_ms=700",
    ]);
    let output = succeed(&mut run.begin());
    let said = text(&output.stderr);
    let warned = said.lines().filter(|line| line.starts_with("[WARN] GR0211: the run goes on without engine far"));
    assert_eq!(warned.count(), 1, "once: {said}");
    assert!(last_words(&said).contains("GR0211: engine far serves nothing"), "{said}");
}
