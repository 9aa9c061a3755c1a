//! What people see that is no plain table: the status on one screen, and the tree.

use std::collections::BTreeMap;

use greenroom_messages::steer::{EngineSight, NodeSight, StatusSight, WhyLine};

use super::words::clock_words;

/// The run on one screen.
pub(super) fn status(seen: &StatusSight) -> String {
    let reward = |reward: Option<f32>| reward.map_or_else(|| "-".to_owned(), |reward| format!("{reward:.3}"));
    let mut lines = vec![
        format!("run {}: step {} of {}, {}", seen.run, seen.step, seen.steps, or_nothing(&seen.phase)),
        format!("  reward     {} (before training {})", reward(seen.reward), reward(seen.eval_before)),
    ];
    if seen.groups > 0 {
        lines.push(format!("  groups     {} of {} finished", seen.groups_finished, seen.groups));
    }
    let states: Vec<String> = seen.rollout_states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let states = if states.is_empty() { String::new() } else { format!(" ({})", states.join(", ")) };
    lines.push(format!("  rollouts   {} running, {} queued{states}", seen.rollouts_running, seen.rollouts_queued));
    lines.push(format!(
        "  engines    {} of {} serve, {} turns in flight, {} queued",
        seen.engines_serving, seen.engines, seen.turns_in_flight, seen.turns_queued
    ));
    lines.push(format!(
        "  sandboxes  {} leased, {} warm, {} claims wait",
        seen.leases, seen.boxes_warm, seen.claims_waiting
    ));
    let weights = seen.weights.map_or_else(|| "-".to_owned(), |version| version.to_string());
    lines.push(format!("  weights    version {weights}; {} nodes up", seen.nodes_up));
    lines.extend(seen.unanswered.iter().map(|reason| format!("  no answer  {reason}")));
    lines.push(format!("  now        {}", seen.bottleneck));
    lines.join("\n")
}

fn or_nothing(phase: &str) -> &str {
    if phase.is_empty() { "not begun" } else { phase }
}

/// Nodes, their roles, and what runs there.
pub(super) fn tree(nodes: &[NodeSight], engines: &[EngineSight]) -> String {
    let mut lines = Vec::new();
    for node in nodes {
        lines.push(format!("{} ({}) {}", node.node, node.roles.join(", "), node.state));
        let mut below: Vec<String> = node.services.clone();
        let prefix = format!("{}/", node.node);
        let engines = engines.iter().filter(|engine| engine.engine.as_str().starts_with(&prefix));
        below.extend(engines.map(|engine| format!("engine {} {}", engine.engine, engine.state)));
        let last = below.len().saturating_sub(1);
        for (index, name) in below.iter().enumerate() {
            lines.push(format!("{} {name}", if index == last { "└─" } else { "├─" }));
        }
    }
    lines.join("\n")
}

/// Which node offers which service.
pub(super) fn services(nodes: &[NodeSight]) -> serde_json::Value {
    let mut rows = BTreeMap::new();
    for node in nodes {
        for service in &node.services {
            rows.insert((service.clone(), node.node.clone()), node.state.clone());
        }
    }
    let rows = rows
        .into_iter()
        .map(|((service, node), state)| serde_json::json!({ "service": service, "node": node, "state": state }));
    serde_json::Value::Array(rows.collect())
}

/// A rollout's history, a line each.
pub(super) fn story(lines: &[WhyLine]) -> String {
    lines.iter().map(|line| format!("{}  {}", clock_words(line.at_ms), line.text)).collect::<Vec<_>>().join("\n")
}
