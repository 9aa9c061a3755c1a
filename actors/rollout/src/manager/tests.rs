//! Promises of the manager: admission, guard, re-issue, and each group reported once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_messages::rollout::{
    FinishedGroup, FinishedRollout, GroupOutcome, InfraFailure, InfraKind, RolloutOutcome, StartBatch,
};
use greenroom_messages::run::RunEvent;
use greenroom_messages::{BatchId, GroupId, Purpose, RolloutId};
use proptest::prelude::*;

use super::outcome::group_outcome;
use super::*;
use crate::Dataset;
use crate::dataset::Task;

const LIMITS: ManagerLimits = ManagerLimits {
    max_running: 3,
    max_attempts: 3,
    retry_backoff_ms: 100,
    guard_ms: 1000,
    min_trainable: 1,
    drop_stale: true,
};

fn tasks(count: usize) -> Vec<Arc<Task>> {
    let row = r#"{"text": "t", "label": "l", "metadata": {"eval_cmd": "x"}}"#;
    vec![Dataset::parse(row, "d").unwrap().tasks()[0].clone(); count]
}

fn start(number: u64, groups: u32, samples_per_group: u32) -> ManagerInput {
    let request = StartBatch {
        batch: BatchId { purpose: Purpose::Train, number },
        first_position: 0,
        groups,
        samples_per_group,
        temperature: 1.0,
        oldest_version: 0,
        finished_groups: Vec::new(),
        first_attempt: 0,
    };
    ManagerInput::StartBatch(request, tasks(groups as usize))
}

fn ended(rollout: RolloutId, is_good: bool) -> FinishedRollout {
    let failure = InfraFailure { kind: InfraKind::Engine, message: "lost".to_owned() };
    let outcome = if is_good { RolloutOutcome::Completed } else { RolloutOutcome::InfraFailed(failure) };
    FinishedRollout { reward: is_good.then_some(1.0), ..bare(rollout, tasks(1)[0].id.clone(), outcome) }
}

#[test]
fn what_was_lost_with_its_process_is_drawn_again_as_it_was_and_a_re_issue_is_not() {
    let tries = |effects: &[ManagerEffect]| -> Vec<(u32, u32)> {
        let issues = effects.iter().filter_map(|effect| match effect {
            ManagerEffect::Issue(issue) => Some((issue.rollout.attempt, issue.tries_before)),
            _ => None,
        });
        issues.collect()
    };
    let ManagerInput::StartBatch(request, tasks) = start(1, 1, 1) else { unreachable!() };
    // A process before this one made the attempts 0 to 2.
    let mut state = ManagerState::new(LIMITS);
    let effects = state.step(ManagerInput::StartBatch(StartBatch { first_attempt: 3, ..request }, tasks), 0);
    assert_eq!(tries(&effects), [(3, 0)]);
    let lost = ended(issued(&effects)[0], false);
    state.step(ManagerInput::Finished(Box::new(lost)), 0);
    let due_ms = state.next_due_ms().unwrap();
    assert_eq!(tries(&state.step(ManagerInput::Tick, due_ms)), [(4, 1)]);
}

#[test]
fn a_set_up_or_a_grading_that_fails_in_the_same_words_again_is_not_tried_a_third_time() {
    let (same, other) = ("no such branch", "another failure");
    let cases = [
        (InfraKind::SetUp, [same, same], 2),
        (InfraKind::Grading, [same, same], 2),
        (InfraKind::SetUp, [same, other], 3),
        (InfraKind::Sandbox, [same, same], 3),
    ];
    for (kind, messages, tries) in cases {
        let mut state = ManagerState::new(LIMITS);
        let mut issue = issued(&state.step(start(1, 1, 1), 0));
        let mut made = 0;
        for message in messages.iter().chain([&same]) {
            let Some(rollout) = issue.first() else { break };
            let outcome = RolloutOutcome::InfraFailed(InfraFailure { kind, message: (*message).to_owned() });
            let finished = bare(*rollout, tasks(1)[0].id.clone(), outcome);
            made += 1;
            state.step(ManagerInput::Finished(Box::new(finished)), 0);
            issue =
                state.next_due_ms().map(|due_ms| issued(&state.step(ManagerInput::Tick, due_ms))).unwrap_or_default();
        }
        assert_eq!((made, state.status().groups_open), (tries, 0), "{kind:?} {messages:?}");
    }
}

fn issued(effects: &[ManagerEffect]) -> Vec<RolloutId> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            ManagerEffect::Issue(issue) => Some(issue.rollout),
            _ => None,
        })
        .collect()
}

#[test]
fn re_issues_back_off_twice_as_long_each_time_and_then_the_sample_is_given_up() {
    let mut state = ManagerState::new(LIMITS);
    let mut rollouts = issued(&state.step(start(1, 1, 1), 0));
    let mut now_ms = 0;
    for (attempt, wait_ms) in [(1, 100), (2, 200)] {
        let effects = state.step(ManagerInput::Finished(Box::new(ended(rollouts[0], false))), now_ms);
        match (attempt, effects.as_slice()) {
            (1, [ManagerEffect::Record(RunEvent::RolloutEnded { .. }), ManagerEffect::Tell(text)]) => {
                assert!(text.contains("is tried again: engine: lost"), "{text}");
            }
            (2, [ManagerEffect::Record(RunEvent::RolloutEnded { .. })]) => {}
            _ => panic!("{effects:?}"),
        }
        assert_eq!(state.next_due_ms(), Some(now_ms + wait_ms));
        assert!(state.step(ManagerInput::Tick, now_ms + wait_ms - 1).is_empty());
        now_ms += wait_ms;
        rollouts = issued(&state.step(ManagerInput::Tick, now_ms));
        assert_eq!(rollouts[0].attempt, attempt);
    }
    let effects = state.step(ManagerInput::Finished(Box::new(ended(rollouts[0], false))), now_ms);
    let [_, ManagerEffect::Report(group)] = effects.as_slice() else { panic!("{effects:?}") };
    assert!(matches!(group.outcome, GroupOutcome::Dropped(_)));
    assert_eq!(state.next_due_ms(), None);
}

#[test]
fn earlier_batches_are_admitted_first_and_a_late_end_of_an_ended_rollout_is_ignored() {
    let mut state = ManagerState::new(ManagerLimits { max_running: 1, ..LIMITS });
    let first = issued(&state.step(start(9, 1, 2), 0));
    state.step(start(1, 1, 1), 0);
    let second = issued(&state.step(ManagerInput::Finished(Box::new(ended(first[0], true))), 1));
    assert_eq!(second[0].group.batch.number, 9);
    assert_eq!(state.step(ManagerInput::Finished(Box::new(ended(first[0], false))), 2), []);
    let third = issued(&state.step(ManagerInput::Finished(Box::new(ended(second[0], true))), 3));
    assert_eq!(third[0].group.batch.number, 1);
}

#[test]
fn fewer_or_more_may_run_from_now_on_and_what_runs_goes_on() {
    let at_most = |max_running| ManagerInput::SetLimits(ManagerLimits { max_running, ..LIMITS });
    let mut state = ManagerState::new(LIMITS);
    let first = issued(&state.step(start(1, 2, 4), 0));
    assert_eq!(first.len(), 3);
    assert!(state.step(at_most(1), 1).is_empty(), "nobody is ended");
    let mut finish =
        |rollout, now_ms| issued(&state.step(ManagerInput::Finished(Box::new(ended(rollout, true))), now_ms)).len();
    assert_eq!((finish(first[0], 2), finish(first[1], 3), finish(first[2], 4)), (0, 0, 1));
    assert_eq!(issued(&state.step(at_most(4), 5)).len(), 3);
}

#[test]
fn a_drained_manager_begins_nothing_and_forgets_what_another_one_makes() {
    let mut state = ManagerState::new(LIMITS);
    let first = issued(&state.step(start(1, 2, 6), 0));
    let drain = |drained, handed_over| ManagerInput::SetDrained { drained, handed_over };
    let finish = |state: &mut ManagerState, rollout, now_ms| {
        issued(&state.step(ManagerInput::Finished(Box::new(ended(rollout, true))), now_ms)).len()
    };
    assert_eq!(state.step(drain(true, false), 1), []);
    assert_eq!(finish(&mut state, first[0], 2), 0);
    let status = state.status();
    assert_eq!((status.drained, status.paused, status.running, status.queued), (true, false, 2, 9));
    assert_eq!(issued(&state.step(drain(false, false), 3)).len(), 1, "what waited goes on");
    assert_eq!(state.step(drain(true, true), 4), []);
    assert_eq!((state.status().groups_open, state.status().queued), (1, 2), "the other group had not begun");
    for rollout in state.running().collect::<Vec<_>>() {
        assert_eq!(finish(&mut state, rollout, 5), 0);
    }
    let status = state.status();
    assert_eq!(
        (status.running, status.queued, status.groups_open),
        (0, 0, 0),
        "the rest of the group is made elsewhere"
    );
    assert_eq!(state.step(start(1, 2, 6), 6), [], "and what is asked for meanwhile");
    state.step(drain(false, false), 7);
    let again = issued(&state.step(start(1, 2, 6), 8));
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|rollout| rollout.attempt > 0), "no id is issued twice");
}

#[test]
fn a_group_needs_enough_trainable_rollouts_but_never_more_than_it_has() {
    let rollout = |sample| RolloutId {
        group: GroupId { batch: BatchId { purpose: Purpose::Train, number: 1 }, index: 0 },
        sample,
        attempt: 0,
    };
    for (good, samples, min_trainable, is_trainable) in
        [(2, 4, 2, true), (1, 4, 2, false), (1, 1, 2, true), (0, 1, 2, false)]
    {
        let rollouts: Vec<_> = (0..samples).map(|sample| ended(rollout(sample), sample < good)).collect();
        let outcome = group_outcome(&rollouts, min_trainable, false);
        assert_eq!(outcome == GroupOutcome::Trainable, is_trainable, "{good} of {samples}, {min_trainable} needed");
    }
}

/// A step of a random life: which running rollout it concerns, and what happens.
#[derive(Clone, Debug)]
enum Happening {
    Start(u64, u32, u32),
    Good(usize),
    Bad(usize),
    Wait(u64),
    CancelBatch(u64),
    CancelOne(usize),
    Pause(bool),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        (1..4_u64, 1..4_u32, 1..4_u32).prop_map(|(number, groups, samples)| Happening::Start(number, groups, samples)),
        any::<usize>().prop_map(Happening::Good),
        any::<usize>().prop_map(Happening::Good),
        any::<usize>().prop_map(Happening::Bad),
        (0..800_u64).prop_map(Happening::Wait),
        (1..4_u64).prop_map(Happening::CancelBatch),
        any::<usize>().prop_map(Happening::CancelOne),
        any::<bool>().prop_map(Happening::Pause),
    ];
    prop::collection::vec(one, 1..60)
}

/// What a run of random happenings brought about.
#[derive(Default)]
struct Ledger {
    issued: BTreeSet<RolloutId>,
    ended: BTreeSet<RolloutId>,
    reports: BTreeMap<GroupId, u32>,
    begun: BTreeMap<GroupId, u32>,
}

impl Ledger {
    /// Books the effects of one input, and what follows from them.
    fn drive(&mut self, state: &mut ManagerState, input: ManagerInput, now_ms: u64) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let open_before = state.status().groups_open;
            let effects = state.step(input.clone(), now_ms);
            if let ManagerInput::StartBatch(request, _) = &input {
                let reports = effects.iter().filter(|effect| matches!(effect, ManagerEffect::Report(_))).count() as u32;
                let begun = state.status().groups_open + reports - open_before;
                *self.begun.entry(GroupId { batch: request.batch, index: u32::MAX }).or_default() += begun;
            }
            for effect in effects {
                match effect {
                    ManagerEffect::Issue(issue) => assert!(self.issued.insert(issue.rollout), "issued once"),
                    ManagerEffect::End(rollout, outcome) => {
                        let end = bare(rollout, tasks(1)[0].id.clone(), outcome);
                        inputs.push(ManagerInput::Finished(Box::new(end)));
                    }
                    ManagerEffect::Report(group) => self.report(&group),
                    ManagerEffect::Record(RunEvent::RolloutEnded { rollout, .. }) => {
                        assert!(self.ended.insert(rollout), "ended once");
                    }
                    ManagerEffect::Record(_) | ManagerEffect::Tell(_) => {}
                }
            }
        }
    }

    fn report(&mut self, group: &FinishedGroup) {
        *self.reports.entry(group.group).or_default() += 1;
        for rollout in &group.rollouts {
            assert_eq!(rollout.reward.is_some(), rollout.outcome.is_trainable(), "a reward exactly where trainable");
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_every_rollout_ends_once_and_every_group_is_reported(happenings in happenings()) {
        let mut state = ManagerState::new(LIMITS);
        let mut ledger = Ledger::default();
        let mut now_ms = 0;
        for happening in happenings {
            let running: Vec<RolloutId> = state.running().collect();
            let pick = |place: usize| (!running.is_empty()).then(|| running[place % running.len()]);
            let batch = |number| BatchId { purpose: Purpose::Train, number };
            let input = match happening {
                Happening::Start(number, groups, samples) => Some(start(number, groups, samples)),
                Happening::Good(place) => pick(place).map(|rollout| ManagerInput::Finished(Box::new(ended(rollout, true)))),
                Happening::Bad(place) => pick(place).map(|rollout| ManagerInput::Finished(Box::new(ended(rollout, false)))),
                Happening::Wait(wait_ms) => {
                    now_ms += wait_ms;
                    Some(ManagerInput::Tick)
                }
                Happening::CancelBatch(number) => Some(ManagerInput::CancelBatch(batch(number))),
                Happening::CancelOne(place) => pick(place).map(ManagerInput::CancelRollout),
                Happening::Pause(is_paused) => Some(ManagerInput::SetPaused(is_paused)),
            };
            if let Some(input) = input {
                ledger.drive(&mut state, input, now_ms);
            }
            prop_assert_eq!(state.violations(), Vec::<String>::new());
        }
        // Time alone brings everything to an end: guards end what runs.
        ledger.drive(&mut state, ManagerInput::SetPaused(false), now_ms);
        while let Some(due_ms) = state.next_due_ms() {
            now_ms = due_ms;
            ledger.drive(&mut state, ManagerInput::Tick, now_ms);
        }
        let status = state.status();
        prop_assert_eq!((status.queued, status.running, status.groups_open), (0, 0, 0));
        prop_assert_eq!(&ledger.issued, &ledger.ended);
        let (begun, reported): (u32, u32) = (ledger.begun.values().sum(), ledger.reports.values().sum());
        prop_assert_eq!(begun, reported);
    }
}
