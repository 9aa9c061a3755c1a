//! Promise: test logs are read as SWE-smith reads them, so that the lists of tests in its rows mean the same here.
//!
//! The logs come from real test runs, the status maps from SWE-smith 0.0.9's parser of the same name.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and tells what it did"
)]

use std::path::{Path, PathBuf};

use greenroom_rollout::grading::LogParser;
use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/test-logs")
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// What is wrong with our reading of a log; `None` for a log whose parser does not exist here.
fn difference(case: &Value) -> Option<Option<String>> {
    let parser = LogParser::from_name(case["parser"].as_str().unwrap()).ok()?;
    let statuses = parser.parse(case["log"].as_str().unwrap());
    let ours: Value = statuses.iter().map(|(name, status)| (name.clone(), Value::from(status.as_str()))).collect();
    Some(
        (ours != case["status_map"])
            .then(|| format!("{}: recorded {}, ours {ours}", parser.name(), case["status_map"])),
    )
}

#[test]
fn real_logs_are_read_as_recorded() {
    let mut read = 0;
    let mut failures = Vec::new();
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| name == "vectors.json") {
            continue;
        }
        let difference = difference(&read_json(&path));
        read += 1;
        assert!(difference.is_some(), "{} has no parser", path.display());
        failures.extend(difference.flatten());
    }
    assert!(read >= 16, "only {read} logs");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn odd_lines_are_read_as_recorded() {
    let vectors = read_json(&fixtures().join("vectors.json"));
    let mut read = 0;
    let mut failures = Vec::new();
    for case in vectors["vectors"].as_array().unwrap() {
        let Some(difference) = difference(case) else { continue };
        read += 1;
        failures.extend(difference.map(|difference| format!("{} in {}", difference, case["log"])));
    }
    println!("{read} of {} vectors have a parser here", vectors["vectors"].as_array().unwrap().len());
    assert!(read >= 85 && failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn an_unknown_parser_is_refused_with_the_nearest_name() {
    let error = LogParser::from_name("pytest_verbos").unwrap_err().to_string();
    assert!(error.contains("did you mean pytest_verbose?"), "{error}");
    assert_eq!(LogParser::for_repository("swesmith/tornadoweb__tornado.d5ac65c1").name(), "unittest_tornado");
    assert_eq!(json!(LogParser::for_repository("swesmith/pallets__markupsafe.2e9ad7dd").name()), "pytest_verbose");
}
