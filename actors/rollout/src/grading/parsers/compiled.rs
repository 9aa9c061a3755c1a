//! go, cargo, ctest and googletest.
//!
//! go's package lines become tests; cargo's ignored tests are absent; ctest's real failures come in only through the list
//! at its end, and synthetic names stand in where only a percentage was printed.

use super::super::grade::TestStatus;
use super::super::parser::StatusMap;
use super::{Pattern, captures, pattern};
use crate::agent::python_text::{lines, strip};

/// `go test -v`: the first rule that matches the stripped line counts.
pub fn go_test(log: &str) -> StatusMap {
    static RULES: [(Pattern, TestStatus); 4] = [
        (Pattern::new(|| pattern(r"^--- PASS: (\S+)")), TestStatus::Passed),
        (Pattern::new(|| pattern(r"^--- FAIL: (\S+)")), TestStatus::Failed),
        (Pattern::new(|| pattern(r"^FAIL:?\s?(.+?)\s")), TestStatus::Failed),
        (Pattern::new(|| pattern(r"^--- SKIP: (\S+)")), TestStatus::Skipped),
    ];
    let result = |line: &str| {
        let line = strip(line);
        RULES.iter().find_map(|(rule, status)| Some((captures(rule, line)?[1].to_owned(), *status)))
    };
    log.split('\n').filter_map(result).collect()
}

/// `cargo test`: `test NAME ... ok` and `... FAILED`, anything may follow.
pub fn cargo_test(log: &str) -> StatusMap {
    let result = |line: &str| {
        let line = line.strip_prefix("test ").unwrap_or(line);
        let status = if line.contains("... ok") {
            TestStatus::Passed
        } else if line.contains("... FAILED") {
            TestStatus::Failed
        } else {
            return None;
        };
        let name = line.rsplit_once(" ... ").map_or(line, |(name, _)| name);
        Some((strip(name).to_owned(), status))
    };
    lines(log).filter_map(result).collect()
}

/// ctest: its result lines, then its list of failures; without either, as many synthetic names as its percentage line counts.
pub fn ctest(log: &str) -> StatusMap {
    static RESULT: Pattern =
        Pattern::new(|| pattern(r"(?i)\s*\d+/\d+\s+Test\s+#\d+:\s+([\w\-/.]+)\s+\.+\s+(Passed|Failed)"));
    static FAILURE: Pattern = Pattern::new(|| pattern(r"^\s*\d+\s+-\s+([\w\-/.]+)\s+\((?:Failed|Timeout|[^)]*)\)"));
    static COUNTS: Pattern = Pattern::new(|| pattern(r"(?i)\d+% tests passed,\s+(\d+) tests? failed out of (\d+)"));
    let mut statuses = StatusMap::new();
    for line in log.split('\n') {
        if let Some(groups) = captures(&RESULT, line) {
            let passed = groups[2].eq_ignore_ascii_case("passed");
            statuses.insert(groups[1].to_owned(), if passed { TestStatus::Passed } else { TestStatus::Failed });
        }
    }
    let failures = log.split_once("The following tests FAILED:").map_or("", |(_, list)| list);
    for line in failures.split('\n').skip(1).map_while(|line| captures(&FAILURE, line)) {
        statuses.insert(line[1].to_owned(), TestStatus::Failed);
    }
    if !statuses.is_empty() {
        return statuses;
    }
    let Some(groups) = captures(&COUNTS, log) else { return statuses };
    let (failed, total) = (groups[1].parse().unwrap_or(0_u32), groups[2].parse().unwrap_or(0_u32));
    for index in 0..total.saturating_sub(failed).min(MOST_SYNTHETIC) {
        statuses.insert(format!("synthetic_pass_{index}"), TestStatus::Passed);
    }
    for index in 0..failed.min(MOST_SYNTHETIC) {
        statuses.insert(format!("synthetic_fail_{index}"), TestStatus::Failed);
    }
    statuses
}

/// A log cannot make this parser name more tests than this.
const MOST_SYNTHETIC: u32 = 100_000;

/// googletest: bracketed results of one test each.
pub fn gtest(log: &str) -> StatusMap {
    static RULES: [(Pattern, TestStatus); 3] = [
        (Pattern::new(|| pattern(r"^\[\s*(?:OK|PASSED)\s*\]\s+([\w/.:]+)(?:\s+\(.*\))?$")), TestStatus::Passed),
        (Pattern::new(|| pattern(r"^\[\s*FAILED\s*\]\s+([\w/.:]+)(?:\s+\(.*\))?$")), TestStatus::Failed),
        (Pattern::new(|| pattern(r"^\[\s*(?:SKIPPED|DISABLED)\s*\]\s+([\w/.:]+)(?:\s+\(.*\))?$")), TestStatus::Skipped),
    ];
    let result = |line: &str| {
        let line = strip(line);
        RULES.iter().find_map(|(rule, status)| {
            let name = captures(rule, line)?[1].to_owned();
            let is_count = name.bytes().all(|byte| byte.is_ascii_digit());
            (!is_count).then_some((name, *status))
        })
    };
    log.split('\n').filter_map(result).collect()
}
