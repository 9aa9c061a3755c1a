//! Whether steps had anything to learn from, and what is said when they had not; pure.
//!
//! A step has no signal when nothing of it could move the policy by its rewards: no token was trained on, or the rollouts
//! of every group earned the same. One such step is chance; several in a row are a run that goes nowhere, and it must not
//! end as if all were well. How the rollouts of such a step ended is kept with its line, so that a resumed run still knows.

use std::collections::BTreeMap;

use greenroom_messages::rollout::{FinishedGroup, FinishedRollout};
use greenroom_messages::trainer::TrainReport;
use serde::{Deserialize, Serialize};

use crate::report::StepLine;

/// The code of these warnings.
const CODE: &str = "GR0210";
/// The end that an agent is meant to have.
const SUBMITTED: &str = "Submitted";

/// How the rollouts of a step without a signal ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NoSignal {
    /// Rollouts that were trained on, or would have been.
    pub(crate) rollouts: u64,
    /// How many ended with which exit status.
    pub(crate) ends: BTreeMap<String, u64>,
    /// Of these, how many at their first turn.
    pub(crate) first_turn_ends: BTreeMap<String, u64>,
    /// Trainable groups.
    pub(crate) groups: u64,
    /// Of these, how many earned the same reward throughout, by that reward.
    pub(crate) equal_rewards: BTreeMap<String, u64>,
    /// Whether the gradient was not finite.
    pub(crate) not_finite: bool,
}

impl NoSignal {
    /// Of the groups that a step was trained on; `None` when they had something to teach.
    pub(crate) fn of<'a>(groups: impl Iterator<Item = &'a FinishedGroup>, report: &TrainReport) -> Option<Self> {
        let mut found = Self { not_finite: report.skipped, ..Self::default() };
        for group in groups {
            found.groups += 1;
            let trainable = group.rollouts.iter().filter(|rollout| rollout.outcome.is_trainable());
            let rewards: Vec<f32> = trainable.clone().filter_map(|rollout| rollout.reward).collect();
            if let Some(first) = rewards.first().filter(|first| rewards.iter().all(|reward| reward == *first)) {
                *found.equal_rewards.entry((first + 0.0).to_string()).or_default() += 1;
            }
            trainable.for_each(|rollout| found.count(rollout));
        }
        let is_silent = report.tokens_trained == 0 || u64::from(report.groups_without_signal) >= found.groups;
        is_silent.then_some(found)
    }

    fn count(&mut self, rollout: &FinishedRollout) {
        self.rollouts += 1;
        *self.ends.entry(rollout.exit_status.clone()).or_default() += 1;
        if rollout.turns <= 1 {
            *self.first_turn_ends.entry(rollout.exit_status.clone()).or_default() += 1;
        }
    }
}

/// What dominates, in numbers, over several steps.
fn reason(steps: &[&NoSignal]) -> String {
    let total = |count: fn(&NoSignal) -> u64| steps.iter().map(|step| count(step)).sum::<u64>();
    let merged = |table: fn(&NoSignal) -> &BTreeMap<String, u64>| {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, count) in steps.iter().flat_map(|step| table(step)) {
            *sums.entry(name).or_default() += count;
        }
        sums
    };
    let (rollouts, groups) = (total(|step| step.rollouts), total(|step| step.groups));
    let (ends, first_turn_ends) = (merged(|step| &step.ends), merged(|step| &step.first_turn_ends));
    let mut parts = Vec::new();
    let untimely = ends.iter().filter(|(status, _)| **status != SUBMITTED).max_by_key(|(_, count)| **count);
    if let Some((status, count)) = untimely.filter(|(_, count)| **count * 2 >= rollouts) {
        let at_first = first_turn_ends.get(status).copied().unwrap_or(0);
        parts.push(match at_first == *count {
            true => format!("{count} of {rollouts} rollouts ended at their first turn: {status}"),
            false => format!("{count} of {rollouts} rollouts ended by {status}"),
        });
    }
    let equal = merged(|step| &step.equal_rewards);
    let equal_groups: u64 = equal.values().sum();
    if equal_groups > 0 {
        let reward = equal.keys().next().filter(|_| equal.len() == 1);
        let which = reward.map_or_else(String::new, |reward| format!(" (all {reward})"));
        parts.push(format!("in {equal_groups} of {groups} groups all rewards are equal{which}"));
    }
    let not_finite = steps.iter().filter(|step| step.not_finite).count();
    if not_finite > 0 {
        parts.push(format!("in {not_finite} of {} steps the gradient was not finite", steps.len()));
    }
    if parts.is_empty() {
        parts.push(format!("no token of {rollouts} rollouts could be trained on"));
    }
    parts.join("; ")
}

/// Stretches of steps without a signal, in order: the first step and what is known of each.
fn stretches(lines: &[StepLine]) -> Vec<(u64, Vec<&NoSignal>)> {
    let mut found: Vec<(u64, Vec<&NoSignal>)> = Vec::new();
    for line in lines {
        let Some(no_signal) = &line.no_signal else { continue };
        match found.last_mut() {
            Some((first, stretch)) if *first + stretch.len() as u64 == line.step => stretch.push(no_signal),
            _ => found.push((line.step, vec![no_signal])),
        }
    }
    found
}

/// What is to be said after the last of these steps: when it is the `patience`-th in a row without a signal, and again each
/// time that the stretch has doubled. A patience of 0 says nothing.
pub(crate) fn warning_now(lines: &[StepLine], patience: u32) -> Option<String> {
    let (first, stretch) = stretches(lines).pop()?;
    let (steps, patience) = (stretch.len() as u64, u64::from(patience));
    let is_last = lines.last().is_some_and(|line| line.step + 1 == first + steps);
    let is_due = patience > 0 && steps.is_multiple_of(patience) && (steps / patience).is_power_of_two();
    let text =
        || format!("{CODE}: steps {first} to {} had nothing to learn from: {}", first + steps - 1, reason(&stretch));
    (is_last && is_due).then(text)
}

/// What a summary says: of the whole run when no step of it had a signal, else of each stretch of at least `patience` steps.
pub(crate) fn warnings(lines: &[StepLine], patience: u32) -> Vec<String> {
    let found = stretches(lines);
    if patience == 0 {
        return Vec::new();
    }
    if let [(_, stretch)] = &found[..]
        && stretch.len() == lines.len()
    {
        let steps = lines.len();
        return vec![format!("{CODE}: nothing was learnt: none of {steps} steps had a signal: {}", reason(stretch))];
    }
    let long = found.into_iter().filter(|(_, stretch)| stretch.len() >= patience as usize);
    let text = |(first, stretch): (u64, Vec<&NoSignal>)| {
        let last = first + stretch.len() as u64 - 1;
        format!("{CODE}: nothing was learnt in steps {first} to {last}: {}", reason(&stretch))
    };
    long.map(text).collect()
}

#[cfg(test)]
mod tests {
    use greenroom_messages::rollout::{GroupOutcome, RolloutOutcome, RolloutTimings};
    use greenroom_messages::{BatchId, GroupId, Purpose, RolloutId, TaskId};

    use super::*;

    fn group(index: u32, rewards: &[f32], status: &str, turns: u32) -> FinishedGroup {
        let group = GroupId { batch: BatchId { purpose: Purpose::Train, number: 1 }, index };
        let rollout = |(sample, reward): (usize, &f32)| FinishedRollout {
            rollout: RolloutId { group, sample: sample as u32, attempt: 0 },
            task: TaskId::new("task"),
            outcome: RolloutOutcome::Truncated,
            reward: Some(*reward),
            exit_status: status.to_owned(),
            graded: String::new(),
            samples: Vec::new(),
            turns,
            forks: 0,
            lease: None,
            warm: false,
            timings: RolloutTimings::default(),
            exec_calls_ms: Vec::new(),
        };
        let rollouts = rewards.iter().enumerate().map(rollout).collect();
        FinishedGroup { group, task: TaskId::new("task"), outcome: GroupOutcome::Trainable, rollouts }
    }

    fn silent(status: &str, turns: u32) -> Option<NoSignal> {
        let groups: Vec<FinishedGroup> = (0..12).map(|index| group(index, &[0.0; 8], status, turns)).collect();
        let report = TrainReport { groups_without_signal: 12, ..TrainReport::default() };
        NoSignal::of(groups.iter(), &report)
    }

    fn lines(signals: &[Option<NoSignal>]) -> Vec<StepLine> {
        let line = |(index, no_signal): (usize, &Option<NoSignal>)| StepLine {
            step: index as u64 + 1,
            no_signal: no_signal.clone(),
            ..StepLine::default()
        };
        signals.iter().enumerate().map(line).collect()
    }

    #[test]
    fn a_step_is_silent_when_no_reward_could_teach_it() {
        let rows = [
            ("rewards differ and tokens were trained", vec![1.0, 0.0], 10, 0, false),
            ("rewards differ, but there was no token", vec![1.0, 0.0], 0, 0, true),
            ("rewards are equal, though a KL term moved tokens", vec![1.0, 1.0], 10, 1, true),
        ];
        for (name, rewards, tokens_trained, groups_without_signal, is_silent) in rows {
            let groups = [group(0, &rewards, "Submitted", 3)];
            let report = TrainReport { tokens_trained, groups_without_signal, ..TrainReport::default() };
            assert_eq!(NoSignal::of(groups.iter(), &report).is_some(), is_silent, "{name}");
        }
    }

    #[test]
    fn the_dominating_reason_is_said_in_numbers() {
        let rows = [
            (
                "ContextWindowExceededError",
                0,
                "288 of 288 rollouts ended at their first turn: ContextWindowExceededError; \
                 in 36 of 36 groups all rewards are equal (all 0)",
            ),
            (
                "RepeatedFormatError",
                3,
                "288 of 288 rollouts ended by RepeatedFormatError; in 36 of 36 groups all rewards are equal (all 0)",
            ),
            ("Submitted", 4, "in 36 of 36 groups all rewards are equal (all 0)"),
        ];
        for (status, turns, expected) in rows {
            let lines = lines(&vec![silent(status, turns); 3]);
            let said = warning_now(&lines, 3).unwrap();
            assert_eq!(said, format!("GR0210: steps 1 to 3 had nothing to learn from: {expected}"));
            let summed = warnings(&lines, 3);
            assert_eq!(summed, [format!("GR0210: nothing was learnt: none of 3 steps had a signal: {expected}")]);
        }
    }

    #[test]
    fn it_is_said_at_the_patience_and_whenever_the_stretch_doubles() {
        let bad = silent("Submitted", 2);
        let said: Vec<usize> =
            (1..=13).filter(|count| warning_now(&lines(&vec![bad.clone(); *count]), 3).is_some()).collect();
        assert_eq!(said, [3, 6, 12]);
        let broken = lines(&[bad.clone(), bad.clone(), None, bad.clone(), bad.clone()]);
        assert_eq!((warning_now(&broken, 3), warnings(&broken, 3)), (None, Vec::new()), "never three in a row");
        let learns_again = lines(&[None, bad.clone(), bad.clone(), bad.clone(), None]);
        assert_eq!(warning_now(&learns_again, 3), None);
        assert!(warnings(&learns_again, 3)[0].contains("in steps 2 to 4"), "{:?}", warnings(&learns_again, 3));
        assert_eq!(warnings(&lines(std::slice::from_ref(&bad)), 3).len(), 1, "a short run that learnt nothing says so");
        assert_eq!((warning_now(&lines(&vec![bad; 3]), 0), warnings(&lines(&[None]), 3)), (None, Vec::new()));
    }
}
