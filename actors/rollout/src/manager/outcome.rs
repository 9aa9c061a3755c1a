//! What becomes of rollouts and groups: pure rules.

use std::collections::BTreeMap;

use greenroom_messages::RolloutId;
use greenroom_messages::TaskId;
use greenroom_messages::rollout::{
    FinishedRollout, GroupOutcome, InfraFailure, InfraKind, RolloutOutcome, RolloutTimings,
};

/// The end of a rollout of which nothing is known but its outcome.
pub(crate) fn bare(rollout: RolloutId, task: TaskId, outcome: RolloutOutcome) -> FinishedRollout {
    FinishedRollout {
        rollout,
        task,
        outcome,
        reward: None,
        exit_status: String::new(),
        graded: String::new(),
        samples: Vec::new(),
        turns: 0,
        forks: 0,
        lease: None,
        warm: false,
        timings: RolloutTimings::default(),
        exec_calls_ms: Vec::new(),
    }
}

/// A finished rollout as the trainer may see it: a reward exactly where the outcome is trainable, nothing to train on
/// elsewhere, and stale where a token is older than `oldest_version`.
pub(super) fn settle(mut finished: FinishedRollout, oldest_version: u64, drop_stale: bool) -> FinishedRollout {
    if finished.outcome.is_trainable() {
        if finished.reward.is_none() {
            let message = "the rollout ended without a reward".to_owned();
            finished.outcome = RolloutOutcome::InfraFailed(InfraFailure { kind: InfraKind::Grading, message });
        } else if drop_stale && oldest_token(&finished).is_some_and(|oldest| oldest < oldest_version) {
            finished.outcome = RolloutOutcome::Stale;
        }
    }
    if !finished.outcome.is_trainable() {
        finished.reward = None;
        finished.samples.clear();
    }
    finished
}

/// The oldest weights that made a trained token.
fn oldest_token(finished: &FinishedRollout) -> Option<u64> {
    finished.samples.iter().flat_map(|sample| &sample.versions).filter_map(|span| span.number).min()
}

/// How a group ends whose samples all ended like this.
pub(super) fn group_outcome(rollouts: &[FinishedRollout], min_trainable: u32, is_cancelled: bool) -> GroupOutcome {
    let trainable = rollouts.iter().filter(|rollout| rollout.outcome.is_trainable()).count();
    let needed = (min_trainable as usize).min(rollouts.len());
    if is_cancelled {
        return GroupOutcome::Dropped("its batch was cancelled".to_owned());
    }
    if trainable >= needed {
        return GroupOutcome::Trainable;
    }
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    for rollout in rollouts.iter().filter(|rollout| !rollout.outcome.is_trainable()) {
        *counts.entry(rollout.outcome.name()).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let example = rollouts.iter().find_map(|rollout| match &rollout.outcome {
        RolloutOutcome::InfraFailed(failure) => Some(format!("; {:?}: {}", failure.kind, failure.message)),
        _ => None,
    });
    GroupOutcome::Dropped(format!(
        "{trainable} of {} rollouts can be trained on, {needed} are needed ({}{})",
        rollouts.len(),
        counts.join(", "),
        example.unwrap_or_default()
    ))
}
