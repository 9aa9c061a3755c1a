//! The invariants of a run's history, as pure functions.
//!
//! [`history`] reads `run.db` into plain rows; each function of [`INVARIANTS`] looks at them and names what breaks its
//! rule. The simulation calls them after every run, `greenroom check` on a real one.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_messages::{BatchId, GroupId, Purpose, RolloutId, WeightVersion};

use crate::{Database, RunError};

/// A rollout in the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutRow {
    /// Its name.
    pub rollout: String,
    /// Its group.
    pub group: String,
    /// The process that issued it.
    pub epoch: u64,
    /// How it ended; `None` while it has not.
    pub outcome: Option<String>,
    /// Its reward.
    pub reward: Option<f64>,
    /// The step that trained on it.
    pub trained_step: Option<u64>,
}

/// A group in the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupRow {
    /// Its name.
    pub group: String,
    /// Its batch.
    pub batch: String,
    /// `trainable` or `dropped`; `None` while it has not finished.
    pub outcome: Option<String>,
}

/// A lease in the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseRow {
    /// Its number.
    pub lease: u64,
    /// The process that claimed it.
    pub epoch: u64,
    /// The box.
    pub sandbox: String,
    /// When it was claimed, by order of events.
    pub claimed_seq: u64,
    /// When it ended, by order of events.
    pub ended_seq: Option<u64>,
}

/// Everything the invariants look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Whether the run has ended of its own will (completed).
    pub completed: bool,
    /// The process that began last.
    pub last_epoch: u64,
    /// The process that led the run last; one that still waits for others has not closed what those before it left.
    pub led_epoch: u64,
    /// All rollouts.
    pub rollouts: Vec<RolloutRow>,
    /// All groups.
    pub groups: Vec<GroupRow>,
    /// Batches: name, groups, oldest admissible version.
    pub batches: Vec<(String, u64, u64)>,
    /// Committed steps and their batches, in order.
    pub steps: Vec<(u64, Option<String>)>,
    /// Leases.
    pub leases: Vec<LeaseRow>,
    /// Turns: rollout, version.
    pub turns: Vec<(String, Option<u64>)>,
    /// Times that an engine began to serve: epoch, engine, version.
    pub serving: Vec<(u64, String, String)>,
    /// Rollouts as they were issued, in order.
    pub issued: Vec<String>,
}

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule's name.
    pub invariant: &'static str,
    /// What breaks it.
    pub detail: String,
}

/// A rule: its name and its function.
pub type Invariant = (&'static str, fn(&History) -> Vec<String>);

/// All rules.
pub const INVARIANTS: &[Invariant] = &[
    ("steps are committed one after the other", steps_in_order),
    ("a rollout is issued once", issued_once),
    ("a sample is trained on at most once, on its own batch's step", trained_once),
    ("only graded rollouts are trained on", only_graded_trained),
    ("an infrastructure failure has no reward", no_reward_for_failures),
    ("no group is lost", no_group_lost),
    ("every rollout ends", every_rollout_ends),
    ("no lease overlaps another one in the same box", no_lease_overlap),
    ("no lease leaks", no_lease_leak),
    ("an engine's version never goes back", versions_monotone),
    ("a trained turn is not staler than its batch allows", staleness_bound),
];

/// All breaches of all rules.
pub fn violations(history: &History) -> Vec<Violation> {
    let breaches = INVARIANTS
        .iter()
        .flat_map(|(invariant, check)| check(history).into_iter().map(|detail| Violation { invariant, detail }));
    breaches.collect()
}

fn steps_in_order(history: &History) -> Vec<String> {
    let mut problems = Vec::new();
    for (place, (step, batch)) in history.steps.iter().enumerate() {
        let expected = (place > 0).then(|| BatchId { purpose: Purpose::Train, number: place as u64 }.to_string());
        if *step != place as u64 || *batch != expected {
            problems.push(format!("step {step} on {batch:?} stands at place {place}"));
        }
    }
    problems
}

fn issued_once(history: &History) -> Vec<String> {
    let mut seen = BTreeSet::new();
    history.issued.iter().filter(|rollout| !seen.insert(*rollout)).map(|rollout| format!("{rollout} twice")).collect()
}

fn trained_once(history: &History) -> Vec<String> {
    let mut samples: BTreeMap<(GroupId, u32), String> = BTreeMap::new();
    let mut problems = Vec::new();
    for row in &history.rollouts {
        let Some(step) = row.trained_step else { continue };
        let Ok(rollout) = row.rollout.parse::<RolloutId>() else {
            problems.push(format!("{:?} is no rollout's name", row.rollout));
            continue;
        };
        let batch = rollout.group.batch;
        if batch.purpose != Purpose::Train || batch.number != step {
            problems.push(format!("{rollout} was trained on in step {step}"));
        }
        if let Some(other) = samples.insert((rollout.group, rollout.sample), row.rollout.clone()) {
            problems.push(format!("{rollout} and {other} are attempts at one sample, both trained on"));
        }
    }
    problems
}

fn only_graded_trained(history: &History) -> Vec<String> {
    let trained = history.rollouts.iter().filter(|row| row.trained_step.is_some());
    let wrong = trained
        .filter(|row| row.reward.is_none() || !matches!(row.outcome.as_deref(), Some("completed" | "truncated")));
    wrong.map(|row| format!("{} ended as {:?} with reward {:?}", row.rollout, row.outcome, row.reward)).collect()
}

fn no_reward_for_failures(history: &History) -> Vec<String> {
    let rewarded = history.rollouts.iter().filter(|row| row.reward.is_some());
    let wrong = rewarded.filter(|row| matches!(row.outcome.as_deref(), Some("infra_failed" | "cancelled" | "stale")));
    wrong.map(|row| format!("{} ended as {:?} with a reward", row.rollout, row.outcome)).collect()
}

fn no_group_lost(history: &History) -> Vec<String> {
    let committed = history.steps.len().saturating_sub(1) as u64;
    let mut problems = Vec::new();
    for (name, groups, _) in &history.batches {
        let of_batch: Vec<&GroupRow> = history.groups.iter().filter(|group| group.batch == *name).collect();
        if of_batch.len() as u64 != *groups {
            problems.push(format!("{name} has {} groups instead of {groups}", of_batch.len()));
        }
        let Ok(batch) = name.parse::<BatchId>() else { continue };
        let used = history.completed || (batch.purpose == Purpose::Train && batch.number <= committed);
        let open = of_batch.iter().filter(|group| used && group.outcome.is_none());
        problems.extend(open.map(|group| format!("{} never finished", group.group)));
    }
    problems
}

fn every_rollout_ends(history: &History) -> Vec<String> {
    let past = |row: &&RolloutRow| history.completed || row.epoch < history.led_epoch;
    let open = history.rollouts.iter().filter(past).filter(|row| row.outcome.is_none());
    open.map(|row| format!("{} never ended", row.rollout)).collect()
}

fn no_lease_overlap(history: &History) -> Vec<String> {
    let mut by_box: BTreeMap<&str, Vec<&LeaseRow>> = BTreeMap::new();
    for lease in &history.leases {
        by_box.entry(&lease.sandbox).or_default().push(lease);
    }
    let mut problems = Vec::new();
    for (sandbox, mut leases) in by_box {
        leases.sort_by_key(|lease| lease.claimed_seq);
        for pair in leases.windows(2) {
            let free =
                pair[0].ended_seq.is_some_and(|ended| ended < pair[1].claimed_seq) || pair[0].epoch < pair[1].epoch;
            if !free {
                problems.push(format!("lease-{} and lease-{} share {sandbox}", pair[0].lease, pair[1].lease));
            }
        }
    }
    problems
}

fn no_lease_leak(history: &History) -> Vec<String> {
    let open = history.leases.iter().filter(|lease| lease.ended_seq.is_none());
    let leaked = open.filter(|lease| history.completed && lease.epoch == history.last_epoch);
    leaked.map(|lease| format!("lease-{} never ended", lease.lease)).collect()
}

fn versions_monotone(history: &History) -> Vec<String> {
    let mut newest: BTreeMap<(u64, &str), u64> = BTreeMap::new();
    let mut problems = Vec::new();
    for (epoch, engine, version) in &history.serving {
        let Ok(version) = version.parse::<WeightVersion>() else {
            problems.push(format!("{engine} serves {version:?}, which is no version"));
            continue;
        };
        let before = newest.entry((*epoch, engine)).or_insert(version.number);
        if version.number < *before {
            problems.push(format!("{engine} went back from {before} to {}", version.number));
        }
        *before = version.number.max(*before);
    }
    problems
}

fn staleness_bound(history: &History) -> Vec<String> {
    let oldest: BTreeMap<&str, u64> =
        history.batches.iter().map(|(name, _, oldest)| (name.as_str(), *oldest)).collect();
    let batch_of: BTreeMap<&str, &str> =
        history.groups.iter().map(|group| (group.group.as_str(), group.batch.as_str())).collect();
    let trained: BTreeMap<&str, &str> = history
        .rollouts
        .iter()
        .filter(|row| row.trained_step.is_some())
        .map(|row| (row.rollout.as_str(), row.group.as_str()))
        .collect();
    let mut problems = Vec::new();
    for (rollout, version) in &history.turns {
        let bound = trained.get(rollout.as_str()).and_then(|group| oldest.get(batch_of.get(group)?));
        let Some(bound) = bound else { continue };
        if version.is_none_or(|version| version < *bound) {
            problems.push(format!("a turn of {rollout} was made by {version:?}, oldest admissible is {bound}"));
        }
    }
    problems
}

/// Reads a run's history.
pub fn history(database: &Database) -> Result<History, RunError> {
    database.history()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(name: &str, outcome: &str, reward: Option<f64>, trained_step: Option<u64>) -> RolloutRow {
        let group = name.rsplitn(3, '-').nth(2).unwrap().to_owned();
        RolloutRow { rollout: name.into(), group, epoch: 1, outcome: Some(outcome.into()), reward, trained_step }
    }

    /// A small history without a fault.
    fn sound() -> History {
        let group = |index: u32| GroupRow {
            group: format!("t00001-g{index:03}"),
            batch: "t00001".into(),
            outcome: Some("trainable".into()),
        };
        let lease = |lease, claimed_seq, ended_seq| LeaseRow {
            lease,
            epoch: 1,
            sandbox: "box-1".into(),
            claimed_seq,
            ended_seq: Some(ended_seq),
        };
        History {
            completed: true,
            last_epoch: 1,
            led_epoch: 1,
            rollouts: vec![
                rollout("t00001-g000-s00-a00", "infra_failed", None, None),
                rollout("t00001-g000-s00-a01", "completed", Some(1.0), Some(1)),
                rollout("t00001-g001-s00-a00", "truncated", Some(0.0), Some(1)),
            ],
            groups: vec![group(0), group(1)],
            batches: vec![("t00001".into(), 2, 0)],
            steps: vec![(0, None), (1, Some("t00001".into()))],
            leases: vec![lease(1, 1, 5), lease(2, 6, 9)],
            turns: vec![("t00001-g000-s00-a01".into(), Some(0))],
            serving: vec![(1, "engine-0".into(), "run:0".into()), (1, "engine-0".into(), "run:1".into())],
            issued: vec!["t00001-g000-s00-a00".into(), "t00001-g000-s00-a01".into(), "t00001-g001-s00-a00".into()],
        }
    }

    #[test]
    fn a_sound_history_breaks_no_rule() {
        assert_eq!(violations(&sound()), []);
        let mut interrupted = History { completed: false, last_epoch: 2, ..sound() };
        interrupted.rollouts[0].outcome = None;
        assert_eq!(violations(&interrupted), [], "who began last has not led yet: the run can go on");
    }

    #[test]
    fn every_rule_is_broken_by_its_own_fault() {
        type Fault = (&'static str, fn(&mut History));
        let faults: [Fault; 15] = [
            ("steps are committed one after the other", |history| history.steps.push((3, Some("t00003".into())))),
            ("a rollout is issued once", |history| history.issued.push("t00001-g000-s00-a00".into())),
            ("a sample is trained on at most once, on its own batch's step", |history| {
                history.rollouts[0] = rollout("t00001-g000-s00-a00", "completed", Some(1.0), Some(1));
            }),
            ("a sample is trained on at most once, on its own batch's step", |history| {
                history.rollouts[1].trained_step = Some(2);
            }),
            ("only graded rollouts are trained on", |history| history.rollouts[0].trained_step = Some(1)),
            ("only graded rollouts are trained on", |history| history.rollouts[1].reward = None),
            ("an infrastructure failure has no reward", |history| history.rollouts[0].reward = Some(0.0)),
            ("no group is lost", |history| history.groups[1].outcome = None),
            ("no group is lost", |history| drop(history.groups.pop())),
            ("every rollout ends", |history| history.rollouts[0].outcome = None),
            ("every rollout ends", |history| {
                (history.completed, history.led_epoch, history.rollouts[0].outcome) = (false, 2, None);
            }),
            ("no lease overlaps another one in the same box", |history| history.leases[1].claimed_seq = 4),
            ("no lease leaks", |history| history.leases[1].ended_seq = None),
            ("an engine's version never goes back", |history| history.serving.swap(0, 1)),
            ("a trained turn is not staler than its batch allows", |history| history.batches[0].2 = 1),
        ];
        for (invariant, fault) in faults {
            let mut history = sound();
            fault(&mut history);
            let broken = violations(&history);
            assert!(broken.iter().any(|violation| violation.invariant == invariant), "{invariant}: {broken:?}");
        }
    }
}
