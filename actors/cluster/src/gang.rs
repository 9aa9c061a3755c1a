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

/// Since when each role has been short of nodes.
#[derive(Debug)]
pub(crate) struct GangWatch {
    required: Vec<(String, usize)>,
    short_since_ms: BTreeMap<String, u64>,
}

impl GangWatch {
    pub(crate) fn new(required: &[(String, usize)]) -> Self {
        Self { required: required.to_vec(), short_since_ms: BTreeMap::new() }
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
