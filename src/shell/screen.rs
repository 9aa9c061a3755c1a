//! What people see that is no plain table: the status on one screen, and the tree.

use greenroom_messages::steer::{ActorSight, NodeSight, StatusSight, WhyLine};
use serde_json::Value;

use super::words::{clock_words, duration_words};

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

/// Nodes, and every actor on them below whoever supervises it.
pub(super) fn tree(nodes: &[NodeSight], actors: &[ActorSight]) -> String {
    let mut lines = Vec::new();
    for node in nodes {
        let drained = node.drained.as_ref().map_or_else(String::new, |left| format!(", drained: {left}"));
        lines.push(format!("{} ({}) {}{drained}", node.node, node.roles.join(", "), node.state));
        let here: Vec<&ActorSight> = actors.iter().filter(|actor| actor.node == node.node).collect();
        branch(&here, &roots(&here), "", &mut lines);
    }
    lines.join("\n")
}

/// Those whose supervisor is no actor of the node that is shown.
fn roots<'a>(here: &[&'a ActorSight]) -> Vec<&'a ActorSight> {
    let is_shown = |name: &str| here.iter().any(|actor| actor.actor == name);
    here.iter().filter(|actor| !is_shown(&actor.under)).copied().collect()
}

fn below<'a>(here: &[&'a ActorSight], over: &ActorSight) -> Vec<&'a ActorSight> {
    here.iter().filter(|actor| actor.under == over.actor && actor.actor != over.actor).copied().collect()
}

fn branch(here: &[&ActorSight], level: &[&ActorSight], before: &str, lines: &mut Vec<String>) {
    for (index, actor) in level.iter().enumerate() {
        let is_last = index + 1 == level.len();
        let restarts = match actor.restarts {
            Some(restarts @ 1..) => format!(", started again {restarts} times"),
            _ => String::new(),
        };
        let doing = if actor.doing.is_empty() { String::new() } else { format!(": {}", actor.doing) };
        let (turn, further) = if is_last { ("└─", "   ") } else { ("├─", "│  ") };
        let since = duration_words(actor.for_ms as f64);
        lines.push(format!("{before}{turn} {} {} for {since}{restarts}{doing}", actor.actor, actor.state));
        branch(here, &below(here, actor), &format!("{before}{further}"), lines);
    }
}

/// The tree as values.
pub(super) fn tree_value(nodes: &[NodeSight], actors: &[ActorSight]) -> Value {
    let rows = nodes.iter().map(|node| {
        let here: Vec<&ActorSight> = actors.iter().filter(|actor| actor.node == node.node).collect();
        let (roles, state) = (&node.roles, &node.state);
        serde_json::json!({
            "node": node.node, "roles": roles, "state": state, "drained": node.drained,
            "actors": branch_value(&here, &roots(&here)),
        })
    });
    Value::Array(rows.collect())
}

fn branch_value(here: &[&ActorSight], level: &[&ActorSight]) -> Value {
    let rows = level.iter().map(|actor| {
        let mut value = serde_json::to_value(actor).unwrap_or_default();
        let below = below(here, actor);
        if let Some(fields) = value.as_object_mut() {
            fields.shift_remove("node");
            fields.shift_remove("under");
            if !below.is_empty() {
                fields.insert("actors".to_owned(), branch_value(here, &below));
            }
        }
        value
    });
    Value::Array(rows.collect())
}

/// A rollout's history, a line each.
pub(super) fn story(lines: &[WhyLine]) -> String {
    lines.iter().map(|line| format!("{}  {}", clock_words(line.at_ms), line.text)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(name: &str, under: &str, state: &str) -> ActorSight {
        ActorSight {
            node: "roll".into(),
            actor: name.into(),
            under: under.into(),
            state: state.into(),
            for_ms: 1_500,
            restarts: (under == "supervisor").then_some(1),
            doing: String::new(),
        }
    }

    #[test]
    fn a_tree_shows_each_actor_below_its_supervisor() {
        let node = NodeSight {
            node: "roll".into(),
            roles: vec!["rollout".into()],
            state: "alive".into(),
            drained: Some("1 rollouts run".into()),
            ..NodeSight::default()
        };
        let actors = [
            actor("rollout manager", "supervisor", "running"),
            actor("t1", "rollout manager", "generating"),
            actor("t2", "rollout manager", "grading"),
            actor("other", "supervisor", "restarting"),
        ];
        let expected = "roll (rollout) alive, drained: 1 rollouts run\n\
                        ├─ rollout manager running for 1.5 s, started again 1 times\n\
                        │  ├─ t1 generating for 1.5 s\n\
                        │  └─ t2 grading for 1.5 s\n\
                        └─ other restarting for 1.5 s, started again 1 times";
        assert_eq!(tree(std::slice::from_ref(&node), &actors), expected);
        let value = tree_value(&[node], &actors);
        assert_eq!(value[0]["actors"][0]["actors"][1]["state"], "grading");
    }
}
