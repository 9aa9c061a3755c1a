//! jest, mocha, vitest and node's own runner.
//!
//! Names stand without their suites, so equal names collide; vitest 1.x marks failures with a sign that is not read, and
//! every `❯` line is a failure, stack frames included.

use super::super::grade::TestStatus;
use super::super::parser::StatusMap;
use super::{Pattern, captures, pattern};
use crate::agent::python_text::strip;

/// The status a mark stands for.
fn marked(mark: &str) -> TestStatus {
    match mark {
        "✓" | "✔" => TestStatus::Passed,
        "○" | "-" => TestStatus::Skipped,
        _ => TestStatus::Failed,
    }
}

/// jest: `✓ name (5 ms)`.
pub fn jest(log: &str) -> StatusMap {
    static LINE: Pattern = Pattern::new(|| pattern(r"^\s*(✓|✕|○)\s(.+?)(?:\s\((\d+\s*m?s)\))?$"));
    let result = |line: &str| {
        let groups = captures(&LINE, strip(line))?;
        Some((groups[2].to_owned(), marked(groups[1])))
    };
    log.split('\n').filter_map(result).collect()
}

/// mocha: `✓ name`, `- pending`, and `1) name` for a failure.
pub fn mocha(log: &str) -> StatusMap {
    static MARKED: Pattern = Pattern::new(|| pattern(r"^\s*([✓✔]|✖|-)\s(.+?)(?:\s\((\d+\s*m?s)\))?$"));
    static NUMBERED: Pattern = Pattern::new(|| pattern(r"^\s*\d+\)\s+(.+?)(?:\s\((\d+\s*m?s)\))?$"));
    let result = |line: &str| {
        let line = strip(line);
        if let Some(groups) = captures(&MARKED, line) {
            return Some((groups[2].to_owned(), marked(groups[1])));
        }
        Some((captures(&NUMBERED, line)?[1].to_owned(), TestStatus::Failed))
    };
    log.split('\n').filter_map(result).collect()
}

/// vitest: a mark, then a name up to the first parenthesis.
pub fn vitest(log: &str) -> StatusMap {
    static LINE: Pattern = Pattern::new(|| pattern(r"^(✓|❯|✗|○)\s+(.+?)(?:\s\([\d.]+\s*m?s\))?$"));
    let result = |line: &str| {
        let groups = captures(&LINE, strip(line))?;
        let name = groups[2].split('(').next().unwrap_or_default();
        Some((strip(name).to_owned(), marked(groups[1])))
    };
    log.split('\n').filter_map(result).collect()
}

/// node's runner: `✖ name (1.2ms)` and `✔ name (1.2ms)`.
pub fn marked_node(log: &str) -> StatusMap {
    static LINE: Pattern = Pattern::new(|| pattern(r"^\s*(✖|✔)\s(.*?)\s\([.\d]+ms\)"));
    let result = |line: &str| {
        let groups = captures(&LINE, line)?;
        Some((groups[2].to_owned(), marked(groups[1])))
    };
    log.split('\n').filter_map(result).collect()
}
