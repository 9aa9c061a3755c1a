//! pytest's outputs.
//!
//! Statuses are matched as prefixes (`PASSEDX` counts as passed), XPASS is none of them, ids with blanks are lost, and a
//! teardown ERROR replaces PASSED.

use super::super::grade::TestStatus;
use super::super::parser::StatusMap;
use super::{Pattern, captures, pattern};
use crate::agent::python_text::{is_space, strip};

/// The five statuses in the order they are tried.
const STATUSES: [TestStatus; 5] =
    [TestStatus::Failed, TestStatus::Passed, TestStatus::Skipped, TestStatus::Error, TestStatus::ExpectedFailure];

/// The status `text` begins with, and what follows it.
fn leading_status(text: &str) -> Option<(TestStatus, &str)> {
    STATUSES.iter().find_map(|status| Some((*status, text.strip_prefix(status.as_str())?)))
}

/// The first word, when there is one right at the start.
fn leading_word(text: &str) -> Option<&str> {
    let word = &text[..text.find(is_space).unwrap_or(text.len())];
    (!word.is_empty()).then_some(word)
}

/// `id STATUS` at the start of a line.
pub fn verbose(log: &str) -> StatusMap {
    let result = |line: &str| {
        let id = leading_word(line)?;
        let rest = &line[id.len()..];
        let (status, _) = leading_status(rest.trim_start_matches(is_space))?;
        rest.starts_with(is_space).then(|| (id.to_owned(), status))
    };
    log.split('\n').filter_map(result).collect()
}

/// `STATUS id` at the start of a line, exactly one blank between them.
pub fn status_first(log: &str) -> StatusMap {
    log.split('\n').filter_map(status_then_id).collect()
}

/// `[gwN] STATUS id` at the start of a line, N of one digit.
pub fn xdist(log: &str) -> StatusMap {
    let result = |line: &str| {
        let rest = line.strip_prefix("[gw")?;
        let mut characters = rest.chars();
        let numbered = characters.next()?.is_ascii_digit() && characters.next()? == ']' && is_space(characters.next()?);
        if numbered { status_then_id(characters.as_str()) } else { None }
    };
    log.split('\n').filter_map(result).collect()
}

fn status_then_id(text: &str) -> Option<(String, TestStatus)> {
    let (status, rest) = leading_status(text)?;
    let id = leading_word(rest.strip_prefix(is_space)?)?;
    Some((id.to_owned(), status))
}

/// Any line with PASSED, else with FAILED, in it: its last word is the id.
pub fn last_word(log: &str) -> StatusMap {
    let result = |line: &str| {
        let status =
            [TestStatus::Passed, TestStatus::Failed].into_iter().find(|status| line.contains(status.as_str()))?;
        Some((strip(line).rsplit(is_space).next()?.to_owned(), status))
    };
    log.split('\n').filter_map(result).collect()
}

/// Whether pytest itself reports that it ran: its closing summary after a session, or a conftest that it could not import.
pub fn run_took_place(log: &str) -> bool {
    static SUMMARY: Pattern = Pattern::new(|| pattern(r"(?m)^=+ .*\bin [0-9.]+s\b.*=+\s*$"));
    let ended = log.contains(" test session starts ") && captures(&SUMMARY, log).is_some();
    ended || log.contains("ImportError while loading conftest")
}
