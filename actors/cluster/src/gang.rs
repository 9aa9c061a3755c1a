//! Waiting for a gang: enough nodes of each required role.
//!
//! A pure count over the members; who waits says what is missing and since when, and gives up at a stated time.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Member;

/// Nodes of a role that are not there yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The role.
    pub role: String,
    /// How many nodes of it are missing.
    pub missing: usize,
    /// How many are required.
    pub required: usize,
    /// For how long they have been waited for, in milliseconds.
    pub waited_ms: u64,
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, missing, required, waited_ms } = self;
        write!(formatter, "{missing} of {required} {role} missing for {} s", waited_ms / 1000)
    }
}

/// How often it is said again what is missing.
pub(crate) const SAID_AGAIN_MS: u64 = 5_000;

/// Since when each role has been short of nodes, and what was said of it.
#[derive(Debug)]
pub(crate) struct GangWatch {
    required: Vec<(String, usize)>,
    short_since_ms: BTreeMap<String, u64>,
    said: Option<(u64, Vec<(String, usize)>)>,
}

impl GangWatch {
    pub(crate) fn new(required: &[(String, usize)]) -> Self {
        Self { required: required.to_vec(), short_since_ms: BTreeMap::new(), said: None }
    }

    /// Whether to say what is missing: it is not what was said last, or that was a while ago.
    pub(crate) fn is_to_be_said(&mut self, missing: &[Missing], now_ms: u64) -> bool {
        let short: Vec<_> = missing.iter().map(|missing| (missing.role.clone(), missing.missing)).collect();
        let is_stale = |(when_ms, what): &(u64, _)| now_ms.saturating_sub(*when_ms) >= SAID_AGAIN_MS || *what != short;
        let is_to_be_said = self.said.as_ref().is_none_or(is_stale);
        if is_to_be_said {
            self.said = Some((now_ms, short));
        }
        is_to_be_said
    }

    /// What is missing among `members` at `now_ms`; empty when the gang is complete.
    pub(crate) fn missing(&mut self, members: &[Member], now_ms: u64) -> Vec<Missing> {
        let mut missing = Vec::new();
        for (role, required) in &self.required {
            let plays = |member: &&Member| member.is_up() && member.roles.contains(role);
            let there = members.iter().filter(plays).count();
            if there >= *required {
                self.short_since_ms.remove(role);
                continue;
            }
            let since_ms = *self.short_since_ms.entry(role.clone()).or_insert(now_ms);
            let waited_ms = now_ms.saturating_sub(since_ms);
            missing.push(Missing { role: role.clone(), missing: required - there, required: *required, waited_ms });
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_when_it_changes_and_every_few_seconds() {
        let mut watch = GangWatch::new(&[("engine".to_owned(), 2), ("trainer".to_owned(), 1)]);
        let short = |engines| {
            let missing = |role: &str, missing| Missing { role: role.to_owned(), missing, required: 2, waited_ms: 7 };
            vec![missing("engine", engines), missing("trainer", 1)]
        };
        let cases = [
            (0, 2, true),
            (1, 2, false),
            (SAID_AGAIN_MS - 1, 2, false),
            (SAID_AGAIN_MS, 2, true),
            (SAID_AGAIN_MS + 1, 1, true),
            (SAID_AGAIN_MS + 2, 1, false),
            (2 * SAID_AGAIN_MS + 1, 1, true),
        ];
        for (now_ms, engines, is_to_be_said) in cases {
            assert_eq!(watch.is_to_be_said(&short(engines), now_ms), is_to_be_said, "at {now_ms}");
        }
    }
}
