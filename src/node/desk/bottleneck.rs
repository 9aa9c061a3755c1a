//! What holds a run up at present, in one sentence.
//!
//! A pure function of the facts on the screen. The first that applies is said: what keeps everything from going on comes
//! before what is merely slowest.

use greenroom_messages::steer::{Held, StatusSight};

/// What holds the run up. `missing` names roles that too few nodes play; `troubles` what engines that do not serve say.
pub(super) fn bottleneck(seen: &StatusSight, missing: &[String], troubles: &[String]) -> String {
    let first = [
        not_begun(seen, missing),
        held(seen),
        no_engine(seen, troubles),
        trainer_or_weights(seen),
        waits_in_line(seen),
        not_admitted(seen),
        slowest(seen),
    ];
    first.into_iter().flatten().next().unwrap_or_else(|| "nothing holds the run up".to_owned())
}

fn not_begun(seen: &StatusSight, missing: &[String]) -> Option<String> {
    if !missing.is_empty() {
        return Some(format!("the run waits for nodes: {}", missing.join(", ")));
    }
    let conductor = seen.unanswered.iter().find(|part| part.starts_with("conductor"));
    conductor.map(|reason| format!("the run is not led at present: {reason}"))
}

fn held(seen: &StatusSight) -> Option<String> {
    if seen.rollouts_paused {
        return Some(Held::Rollouts.notice());
    }
    if seen.rollouts_drained {
        return Some("the node that rolls out is drained, and no other one does: `undrain` it".to_owned());
    }
    seen.training_paused.then(|| Held::Training.notice())
}

fn no_engine(seen: &StatusSight, troubles: &[String]) -> Option<String> {
    // engines that take new weights do not serve, and that is as it should be
    if seen.engines_serving > 0 || seen.phase.starts_with("publishing") || seen.rollouts_running == 0 {
        return None;
    }
    let why = if troubles.is_empty() { String::new() } else { format!(" ({})", troubles.join("; ")) };
    Some(format!("nothing can generate: 0 of {} engines serve{why}", seen.engines))
}

fn trainer_or_weights(seen: &StatusSight) -> Option<String> {
    if seen.rollouts_running > 0 {
        return None;
    }
    let phase = &seen.phase;
    let is = |starts: &[&str]| starts.iter().any(|start| phase.starts_with(start));
    if is(&["training", "warm start", "preparing", "loading"]) {
        return Some(format!("rollouts wait for the trainer: {phase}"));
    }
    is(&["publishing"]).then(|| {
        format!("rollouts wait for weights: {phase}, {} of {} engines serve", seen.engines_serving, seen.engines)
    })
}

fn waits_in_line(seen: &StatusSight) -> Option<String> {
    // where a box is ready, a rollout merely passes through that state
    let without_box = if seen.boxes_warm == 0 { in_state(seen, "claiming") } else { 0 };
    let claiming = seen.claims_waiting.max(without_box);
    let queued = seen.turns_queued;
    if claiming > queued && claiming > 0 {
        let (running, leases) = (seen.rollouts_running, seen.leases);
        return Some(format!(
            "rollouts wait for sandboxes: {claiming} of {running} rollouts wait for a box, {leases} boxes are leased"
        ));
    }
    (queued > 0).then(|| {
        let turns = queued + seen.turns_in_flight;
        let (serving, engines) = (seen.engines_serving, seen.engines);
        format!("rollouts wait for engines: {queued} of {turns} turns queued, {serving} of {engines} engines serve")
    })
}

/// Rollouts are there, and none runs: admission is not held, so that a failed attempt delays them, or they are just let in.
fn not_admitted(seen: &StatusSight) -> Option<String> {
    let queued = seen.rollouts_queued;
    if seen.rollouts_running > 0 || queued == 0 {
        return None;
    }
    let words = if queued == 1 { "1 rollout waits for its" } else { &format!("{queued} rollouts wait for their") };
    Some(format!("no rollout runs: {words} next attempt (rollout.retry_backoff_ms) or turn"))
}

fn slowest(seen: &StatusSight) -> Option<String> {
    let running = seen.rollouts_running;
    if running == 0 {
        return None;
    }
    let most = seen.rollout_states.iter().filter(|(state, _)| state != "queued").max_by_key(|(_, count)| *count);
    let (state, count) = most?;
    let what = match state.as_str() {
        "generating" => "have turns generated",
        "executing" => "run commands in their sandboxes",
        "setting_up" => "have their tasks set up",
        "grading" => "are being graded",
        "claiming" => "are being given a sandbox",
        other => return Some(format!("{count} of {running} rollouts are {other}")),
    };
    let admission = match seen.rollouts_queued {
        0 => String::new(),
        queued => format!("; {queued} more wait for admission (rollout.max_running)"),
    };
    Some(format!("most time goes where rollouts are: {count} of {running} {what}{admission}"))
}

fn in_state(seen: &StatusSight, name: &str) -> u32 {
    seen.rollout_states.iter().find(|(state, _)| state == name).map_or(0, |(_, count)| *count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rolling() -> StatusSight {
        StatusSight {
            phase: "rolling out batch 4".to_owned(),
            rollouts_running: 16,
            engines: 2,
            engines_serving: 2,
            turns_in_flight: 13,
            boxes_warm: 2,
            leases: 16,
            rollout_states: vec![("executing".into(), 3), ("generating".into(), 13), ("queued".into(), 40)],
            ..StatusSight::default()
        }
    }

    #[test]
    fn the_first_thing_that_holds_a_run_up_is_said() {
        let states =
            |states: &[(&str, u32)]| states.iter().map(|(state, count)| ((*state).to_owned(), *count)).collect();
        let idle = |phase: &str| StatusSight { phase: phase.into(), rollouts_running: 0, ..rolling() };
        let cases = [
            (rolling(), "most time goes where rollouts are: 13 of 16 have turns generated"),
            (
                StatusSight { rollouts_queued: 40, ..rolling() },
                "13 of 16 have turns generated; 40 more wait for admission (rollout.max_running)",
            ),
            (
                StatusSight { engines_serving: 1, turns_queued: 3, ..rolling() },
                "rollouts wait for engines: 3 of 16 turns queued, 1 of 2 engines serve",
            ),
            (
                StatusSight { claims_waiting: 5, turns_queued: 3, boxes_warm: 0, leases: 11, ..rolling() },
                "rollouts wait for sandboxes: 5 of 16 rollouts wait for a box, 11 boxes are leased",
            ),
            (
                StatusSight { engines_serving: 0, ..rolling() },
                "nothing can generate: 0 of 2 engines serve (eng0: lost)",
            ),
            (StatusSight { rollouts_paused: true, engines_serving: 0, ..rolling() }, "an operator holds rollouts"),
            (StatusSight { rollouts_drained: true, ..rolling() }, "the node that rolls out is drained"),
            (StatusSight { training_paused: true, ..rolling() }, "an operator holds training"),
            (idle("training step 4"), "rollouts wait for the trainer: training step 4"),
            (idle("warm start 40 %"), "rollouts wait for the trainer: warm start 40 %"),
            (
                StatusSight { engines_serving: 0, ..idle("publishing weights 4") },
                "rollouts wait for weights: publishing weights 4, 0 of 2 engines serve",
            ),
            (
                StatusSight { unanswered: vec!["conductor is not running".into()], ..rolling() },
                "the run is not led at present: conductor is not running",
            ),
            (StatusSight { rollout_states: states(&[("grading", 9)]), ..rolling() }, "9 of 16 are being graded"),
            (
                StatusSight { rollout_states: states(&[("claiming", 9)]), ..rolling() },
                "most time goes where rollouts are: 9 of 16 are being given a sandbox",
            ),
            (
                StatusSight { rollout_states: states(&[("claiming", 9)]), boxes_warm: 0, ..rolling() },
                "rollouts wait for sandboxes: 9 of 16 rollouts wait for a box, 16 boxes are leased",
            ),
            (
                StatusSight { rollouts_queued: 3, turns_in_flight: 0, ..idle("rolling out batch 4") },
                "no rollout runs: 3 rollouts wait for their next attempt (rollout.retry_backoff_ms) or turn",
            ),
            (
                StatusSight { rollouts_queued: 1, ..idle("rolling out batch 4") },
                "no rollout runs: 1 rollout waits for its next attempt (rollout.retry_backoff_ms) or turn",
            ),
            (StatusSight { rollouts_queued: 3, ..idle("training step 4") }, "rollouts wait for the trainer"),
            (StatusSight { rollouts_queued: 3, rollouts_paused: true, ..idle("x") }, "an operator holds rollouts"),
            (StatusSight::default(), "nothing holds the run up"),
        ];
        for (seen, expected) in cases {
            let said = bottleneck(&seen, &[], &["eng0: lost".to_owned()]);
            assert!(said.contains(expected), "{said}\nshould say {expected}");
        }
        let missing = ["1 more engine".to_owned()];
        assert_eq!(bottleneck(&rolling(), &missing, &[]), "the run waits for nodes: 1 more engine");
    }
}
