//! Readers of test logs, one file per family of test runners.
//!
//! Each follows the rule of SWE-smith's parser of that name to the letter, oddities included, because the lists of tests in
//! its rows were made with it. Logs are split at `\n` only unless a rule says otherwise.

pub mod browser;
pub mod compiled;
pub mod jvm;
pub mod pytest;
pub mod unittest;

use std::sync::LazyLock;

use regex::Regex;

/// A regular expression of this crate's own, compiled at first use.
pub(crate) type Pattern = LazyLock<Option<Regex>>;

/// Compile a pattern written in this crate. A mistake in one reads as "never matches", which its tests catch.
pub(crate) fn pattern(source: &str) -> Option<Regex> {
    Regex::new(source).ok()
}

/// The groups of the first match; a missing group is the empty text.
pub(crate) fn captures<'t>(pattern: &Pattern, text: &'t str) -> Option<Vec<&'t str>> {
    let captures = pattern.as_ref()?.captures(text)?;
    Some(captures.iter().map(|group| group.map_or("", |found| found.as_str())).collect())
}
