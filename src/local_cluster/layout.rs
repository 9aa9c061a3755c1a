//! Which nodes a local cluster has, and which roles each plays, as one short text.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::StartError;
use crate::node::ROLES;

/// The layout that is taken where none is named.
const USUAL: &str = "controller+rollout,trainer,engine*2,sandbox";
/// More processes than this on one machine are a typing error.
const MOST_NODES: usize = 64;

/// The nodes of a local cluster, such as `controller+rollout,trainer,engine*2,sandbox`: nodes are parted by commas, the
/// roles of a node by `+`, and `*N` makes N of one. A number alone is the usual layout with so many engine nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    text: String,
    nodes: Vec<LayoutNode>,
}

/// One node of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LayoutNode {
    /// Its name: its first role, with a number where several nodes would have the same.
    pub(super) name: String,
    pub(super) roles: Vec<String>,
}

impl LayoutNode {
    pub(super) fn plays(&self, role: &str) -> bool {
        self.roles.iter().any(|played| played == role)
    }
}

impl Layout {
    /// The nodes, the controller first.
    pub(super) fn nodes(&self) -> &[LayoutNode] {
        &self.nodes
    }

    /// How many nodes play each role.
    pub(super) fn gang(&self) -> BTreeMap<String, usize> {
        let mut gang = BTreeMap::new();
        for role in self.nodes.iter().flat_map(|node| &node.roles) {
            *gang.entry(role.clone()).or_insert(0) += 1;
        }
        gang
    }
}

impl Default for Layout {
    fn default() -> Self {
        // the usual text is a layout: a test holds it to that
        USUAL.parse().unwrap_or(Self { text: String::new(), nodes: Vec::new() })
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl FromStr for Layout {
    type Err = StartError;

    fn from_str(text: &str) -> Result<Self, StartError> {
        let wrong = |reason: String| StartError::Layout { text: text.to_owned(), reason, usual: USUAL };
        let text = match text.trim().parse::<usize>() {
            Ok(engines) => USUAL.replace("engine*2", &format!("engine*{engines}")),
            Err(_) => text.split_whitespace().collect(),
        };
        let mut role_lists: Vec<Vec<String>> = Vec::new();
        for part in text.split(',') {
            let (roles, count) = part.split_once('*').unwrap_or((part, "1"));
            let count = count.parse::<usize>().ok().filter(|count| (1..=MOST_NODES).contains(count));
            let count = count.ok_or_else(|| wrong(format!("{part:?} is not ROLES*N with N from 1 to {MOST_NODES}")))?;
            let roles: Vec<String> = roles.split('+').map(str::to_owned).collect();
            if let Some(unknown) = roles.iter().find(|role| !ROLES.contains(&role.as_str())) {
                return Err(wrong(format!("there is no role {unknown:?}: the roles are {}", ROLES.join(", "))));
            }
            role_lists.extend(std::iter::repeat_n(roles, count));
        }
        if role_lists.len() > MOST_NODES {
            return Err(wrong(format!("{} nodes are more than {MOST_NODES}", role_lists.len())));
        }
        role_lists.sort_by_key(|roles| !roles.iter().any(|role| role == "controller"));
        let layout = Self { nodes: named(role_lists), text };
        let gang = layout.gang();
        for role in ROLES {
            let nodes = gang.get(role).copied().unwrap_or(0);
            let may_be_many = ["engine", "sandbox"].contains(&role);
            if nodes == 0 || nodes > 1 && !may_be_many {
                let wanted = if may_be_many { "at least one" } else { "exactly one" };
                return Err(wrong(format!("{nodes} nodes play {role}, and it must be {wanted}")));
            }
        }
        Ok(layout)
    }
}

fn named(role_lists: Vec<Vec<String>>) -> Vec<LayoutNode> {
    let first = |roles: &[String]| match roles.iter().any(|role| role == "controller") {
        true => "controller".to_owned(),
        false => roles.first().cloned().unwrap_or_default(),
    };
    let firsts: Vec<String> = role_lists.iter().map(|roles| first(roles)).collect();
    let name = |at: usize| {
        let same = |others: &[String]| others.iter().filter(|other| **other == firsts[at]).count();
        match same(&firsts) {
            1 => firsts[at].clone(),
            _ => format!("{}-{}", firsts[at], same(&firsts[..at])),
        }
    };
    let names: Vec<String> = (0..firsts.len()).map(name).collect();
    names.into_iter().zip(role_lists).map(|(name, roles)| LayoutNode { name, roles }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> Vec<String> {
        let layout: Layout = text.parse().unwrap();
        layout.nodes().iter().map(|node| format!("{}={}", node.name, node.roles.join("+"))).collect()
    }

    #[test]
    fn a_layout_names_its_nodes_with_the_controller_first() {
        let usual = ["controller=controller+rollout", "trainer=trainer", "engine-0=engine", "engine-1=engine"];
        let usual: Vec<String> = usual.iter().chain(&["sandbox=sandbox"]).map(|node| (*node).to_owned()).collect();
        assert_eq!(nodes(USUAL), usual);
        assert_eq!(nodes("2"), usual);
        assert_eq!(nodes(&Layout::default().to_string()), usual);
        assert_eq!(
            nodes("trainer+engine, rollout+controller + sandbox"),
            ["controller=rollout+controller+sandbox", "trainer=trainer+engine"]
        );
        assert_eq!(nodes("controller+rollout+trainer+engine+sandbox").len(), 1);
    }

    #[test]
    fn what_cannot_run_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "no role \"\""),
            ("controller+rollout,trainer,engine", "0 nodes play sandbox"),
            ("controller*2+rollout,trainer,engine,sandbox", "ROLES*N"),
            ("controller+rollout,trainer*2,engine,sandbox", "2 nodes play trainer, and it must be exactly one"),
            ("controller+rollout,trainer,engine*0,sandbox", "ROLES*N"),
            ("0", "ROLES*N"),
            ("controler+rollout,trainer,engine,sandbox", "no role \"controler\""),
            ("controller+rollout,trainer,engine*40,sandbox*40", "82 nodes"),
        ] {
            let error = text.parse::<Layout>().unwrap_err();
            assert_eq!(error.code(), "GR0912");
            assert!(error.to_string().contains(reason), "{text:?}: {error}");
        }
    }
}
