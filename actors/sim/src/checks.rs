//! What must hold of a simulated run besides the invariants of its history, as pure functions.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_messages::WeightVersion;
use greenroom_messages::run::RunEvent;
use greenroom_messages::trainer::TrainBatch;
use greenroom_run::check::{History, Violation};

use crate::ledger::Seen;

type Check = (&'static str, fn(&Seen, &History) -> Vec<String>);

const CHECKS: &[Check] = &[
    ("every box is destroyed", boxes_destroyed),
    ("every claimed lease ends, once", leases_end),
    ("every issued rollout ends, once", rollouts_end),
    ("every call to a simulated part ends", calls_end),
    ("a rollout holds one box at a time", one_box_at_a_time),
    ("whatever an agent does to its box is graded", all_graded),
    ("an export is of the step that its version names", exports_match_checkpoints),
    ("an engine generates with the weights that its label names", labels_tell_the_truth),
    ("the trainer is given sound batches", batches_sound),
    ("what is marked as trained is what the trainer was given last", trained_as_given),
    ("what is trained on ended as the history of events says", trained_ended_well),
];

/// Breaches of all checks.
pub(crate) fn violations(seen: &Seen, history: &History) -> Vec<Violation> {
    let breaches = CHECKS
        .iter()
        .flat_map(|(invariant, check)| check(seen, history).into_iter().map(|detail| Violation { invariant, detail }));
    breaches.collect()
}

/// What is wrong with a batch that the trainer is given.
pub(crate) fn batch_problems(batch: &TrainBatch) -> Vec<String> {
    let mut problems = Vec::new();
    for group in &batch.groups {
        let mut samples_seen = BTreeSet::new();
        for rollout in &group.rollouts {
            let id = rollout.rollout;
            let mut require = |holds: bool, what: &str| {
                if !holds {
                    problems.push(format!("{}: {id}: {what}", batch.step));
                }
            };
            require(id.group == group.group && id.group.batch.number == batch.step.0, "is of another batch");
            require(samples_seen.insert(id.sample), "is the second attempt at one sample");
            require(rollout.reward == 0.0 || rollout.reward == 1.0, "has an impossible reward");
            for sample in &rollout.samples {
                let tokens = sample.tokens.len();
                require(sample.loss_mask.len() == tokens && sample.logprobs.len() == tokens, "has uneven columns");
                require(sample.loss_mask.contains(&1), "has a sample without a trained token");
                let covered = |at: usize| {
                    let at = at as u32;
                    sample.versions.iter().filter(|span| span.start <= at && at < span.end).count()
                };
                let even = sample.loss_mask.iter().enumerate().all(|(at, mask)| covered(at) == usize::from(*mask != 0));
                require(even, "has tokens of which nobody knows the weights");
            }
        }
    }
    problems
}

fn boxes_destroyed(seen: &Seen, _: &History) -> Vec<String> {
    seen.open_boxes.iter().map(|id| format!("{id} is left")).collect()
}

fn leases_end(seen: &Seen, _: &History) -> Vec<String> {
    let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    for (_, event) in &seen.events {
        match event {
            RunEvent::LeaseClaimed { lease, .. } => counts.entry(lease.to_string()).or_default().0 += 1,
            RunEvent::LeaseEnded { lease, .. } => counts.entry(lease.to_string()).or_default().1 += 1,
            _ => {}
        }
    }
    uneven(counts, "claimed")
}

fn rollouts_end(seen: &Seen, history: &History) -> Vec<String> {
    // a run that failed or was stopped leaves its rollouts to the one who resumes it
    if !history.completed {
        return Vec::new();
    }
    let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    for (_, event) in &seen.events {
        match event {
            RunEvent::RolloutIssued { rollout, .. } => counts.entry(rollout.to_string()).or_default().0 += 1,
            RunEvent::RolloutEnded { rollout, .. } => counts.entry(rollout.to_string()).or_default().1 += 1,
            _ => {}
        }
    }
    uneven(counts, "issued")
}

fn one_box_at_a_time(seen: &Seen, _: &History) -> Vec<String> {
    let (mut holders, mut problems) = (BTreeMap::new(), Vec::new());
    for (_, event) in &seen.events {
        match event {
            RunEvent::LeaseClaimed { lease, rollout, .. } => {
                if let Some(held) = holders.values().find(|(holder, _)| *holder == rollout) {
                    problems.push(format!("{rollout} got {lease} and had {} still", held.1));
                }
                holders.insert(lease, (rollout, lease));
            }
            RunEvent::LeaseEnded { lease, .. } => drop(holders.remove(lease)),
            _ => {}
        }
    }
    problems
}

/// Simulated tasks can all be graded: only boxes and their set-up fail.
fn all_graded(seen: &Seen, _: &History) -> Vec<String> {
    let ungraded = seen.events.iter().filter_map(|(_, event)| match event {
        RunEvent::RolloutEnded { rollout, detail, .. } if detail.starts_with("Grading") => {
            Some(format!("{rollout}: {detail}"))
        }
        _ => None,
    });
    ungraded.collect()
}

fn uneven(counts: BTreeMap<String, (u32, u32)>, begun: &str) -> Vec<String> {
    let uneven = counts.into_iter().filter(|(_, counts)| *counts != (1, 1));
    uneven.map(|(id, (begins, ends))| format!("{id} was {begun} {begins} times and ended {ends} times")).collect()
}

fn calls_end(seen: &Seen, _: &History) -> Vec<String> {
    let open = seen.calls_open.iter().filter(|(_, open)| **open > 0);
    open.map(|(kind, open)| format!("{open} calls of {kind} are still waited for")).collect()
}

fn exports_match_checkpoints(seen: &Seen, _: &History) -> Vec<String> {
    let differs = seen.exported.iter().filter(|(version, content)| seen.checkpoints.get(version) != Some(content));
    differs.map(|(version, _)| format!("version {version} is not the checkpoint of that step")).collect()
}

fn labels_tell_the_truth(seen: &Seen, _: &History) -> Vec<String> {
    let lies = seen.generated_with.iter().filter(|(label, content)| {
        let version = label.parse::<WeightVersion>().ok();
        version.and_then(|version| seen.exported.get(&version.number)) != Some(content)
    });
    lies.map(|(label, _)| format!("tokens were made by other weights than {label}")).collect()
}

fn batches_sound(seen: &Seen, _: &History) -> Vec<String> {
    seen.bad_batches.clone()
}

fn trained_as_given(seen: &Seen, history: &History) -> Vec<String> {
    let committed: BTreeSet<u64> = history.steps.iter().map(|(step, _)| *step).collect();
    let mut problems = Vec::new();
    for (step, given) in seen.trained.iter().filter(|(step, _)| committed.contains(step)) {
        let given: BTreeSet<String> = given.iter().map(ToString::to_string).collect();
        let marked: BTreeSet<String> = history
            .rollouts
            .iter()
            .filter(|row| row.trained_step == Some(*step))
            .map(|row| row.rollout.clone())
            .collect();
        if given != marked {
            problems.push(format!("step {step}: given {given:?}, marked {marked:?}"));
        }
    }
    problems
}

fn trained_ended_well(seen: &Seen, history: &History) -> Vec<String> {
    let ends: BTreeMap<String, &str> = seen
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            RunEvent::RolloutEnded { rollout, outcome, .. } => Some((rollout.to_string(), outcome.as_str())),
            _ => None,
        })
        .collect();
    let trained = history.rollouts.iter().filter(|row| row.trained_step.is_some());
    let wrong = trained.filter(|row| !matches!(ends.get(&row.rollout), Some(&"completed" | &"truncated")));
    wrong.map(|row| format!("{} was trained on and had ended as {:?}", row.rollout, ends.get(&row.rollout))).collect()
}
