//! The standard library's unittest, verbose.
//!
//! With a docstring, the docstring is the id. Output printed by a test between its name and `ok` hides the result.

use super::super::grade::TestStatus;
use super::super::parser::StatusMap;
use super::{Pattern, captures, pattern};
use crate::agent::python_text::is_space;

/// `name ... ok|FAIL|ERROR`, the whole line; names of letters, digits and `_-,.()'` and blanks.
pub fn slugify(log: &str) -> StatusMap {
    static LINE: Pattern =
        Pattern::new(|| pattern(r"^([a-zA-Z0-9_\-,.\s\x1c-\x1f()']+)[\s\x1c-\x1f]\.{3}[\s\x1c-\x1f](ok|FAIL|ERROR)$"));
    let result = |line: &str| {
        let groups = captures(&LINE, line)?;
        let status = match groups[2] {
            "ok" => TestStatus::Passed,
            "FAIL" => TestStatus::Failed,
            _ => TestStatus::Error,
        };
        Some((groups[1].to_owned(), status))
    };
    log.split('\n').filter_map(result).collect()
}

/// `name ... ok`, `name ... skipped …`, and the headings `ERROR: name` and `FAIL: name` of the failure list.
pub fn tornado(log: &str) -> StatusMap {
    const BETWEEN: &str = " ... ";
    let result = |line: &str| {
        let name = line.split(BETWEEN).next().unwrap_or_default();
        if line.ends_with("... ok") {
            Some((name.to_owned(), TestStatus::Passed))
        } else if line.contains(" ... skipped ") {
            Some((name.to_owned(), TestStatus::Skipped))
        } else if line.starts_with("ERROR:") || line.starts_with("FAIL:") {
            let words = line.split(is_space).filter(|word| !word.is_empty());
            Some((words.skip(1).take(2).collect::<Vec<_>>().join(" "), TestStatus::Failed))
        } else {
            None
        }
    };
    log.split('\n').filter_map(result).collect()
}

/// Whether unittest reports that it ran, or Python that the test program's own imports broke. A missing runner is neither.
pub fn run_took_place(log: &str) -> bool {
    static COUNT: Pattern = Pattern::new(|| pattern(r"(?m)^Ran [0-9]+ tests? in "));
    let broke = log.contains("Traceback (most recent call last):") && !log.contains("No module named unittest");
    captures(&COUNT, log).is_some() || broke
}
