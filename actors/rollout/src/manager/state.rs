//! The decisions of the RolloutManager: a pure function of state, input and time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_messages::rollout::{
    FinishedGroup, FinishedRollout, InfraFailure, InfraKind, RolloutOutcome, RolloutStatus, StartBatch,
};
use greenroom_messages::run::RunEvent;
use greenroom_messages::{BatchId, GroupId, RolloutId, TaskId};

use super::batch::{Batch, Group, Slot};
use super::outcome::{bare, group_outcome, settle};
use crate::dataset::Task;
use crate::{MAX_BACKOFF_MS, RolloutConfig};

/// The settings that the decisions depend on; fields as in [`RolloutConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerLimits {
    /// Rollouts that run at once.
    pub max_running: usize,
    /// Tries of one sample.
    pub max_attempts: u32,
    /// First wait before a re-issue.
    pub retry_backoff_ms: u64,
    /// The longest a rollout may run.
    pub guard_ms: u64,
    /// Trainable rollouts that a group needs.
    pub min_trainable: u32,
    /// Whether too old tokens make a rollout stale.
    pub drop_stale: bool,
}

impl From<&RolloutConfig> for ManagerLimits {
    fn from(config: &RolloutConfig) -> Self {
        Self {
            max_running: config.max_running as usize,
            max_attempts: config.max_attempts,
            retry_backoff_ms: config.retry_backoff_ms,
            guard_ms: config.guard_ms(),
            min_trainable: config.min_trainable,
            drop_stale: config.drop_stale,
        }
    }
}

/// What the decisions are made on.
#[derive(Clone, Debug)]
pub enum ManagerInput {
    /// Make this batch; `tasks` are those of its groups, in order.
    StartBatch(StartBatch, Vec<Arc<Task>>),
    /// End what is left of a batch.
    CancelBatch(BatchId),
    /// End one rollout.
    CancelRollout(RolloutId),
    /// Hold admission, or let it go on.
    SetPaused(bool),
    /// The node is drained, or is so no more; a second hold on admission. Another manager may take over.
    SetDrained {
        /// Whether it is drained from now on.
        drained: bool,
        /// Whether groups of which nothing runs are another manager's now.
        handed_over: bool,
    },
    /// These limits hold from now on; what runs goes on.
    SetLimits(ManagerLimits),
    /// A rollout ended.
    Finished(Box<FinishedRollout>),
    /// Time has passed; see [`ManagerState::next_due_ms`].
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum ManagerEffect {
    /// Start an AgentLoop.
    Issue(Issue),
    /// End an AgentLoop, whatever it does, and report its rollout as [`ManagerInput::Finished`] with this outcome.
    End(RolloutId, RolloutOutcome),
    /// Tell the Conductor.
    Report(Box<FinishedGroup>),
    /// Tell the Journal.
    Record(RunEvent),
    /// Tell whoever looks on: the first failure of its kind of a task, which a run could else hide until it gives up.
    Tell(String),
}

/// A rollout to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Issue {
    /// The rollout.
    pub rollout: RolloutId,
    /// Its task.
    pub task: Arc<Task>,
    /// Softmax temperature.
    pub temperature: f32,
    /// Engines with older weights may not serve it.
    pub oldest_version: u64,
    /// How often this process has tried this sample before: part of what its tokens are drawn from. The attempt's number
    /// is not, for a sample that was lost with its process is to be drawn again as it was.
    pub tries_before: u32,
}

/// Where every rollout of every batch is.
#[derive(Clone, Debug)]
pub struct ManagerState {
    limits: ManagerLimits,
    is_paused: bool,
    is_drained: bool,
    is_handed_over: bool,
    batches: BTreeMap<BatchId, Batch>,
    batches_begun: u64,
    /// Waits for admission, in order of batches, then of ids.
    queue: BTreeSet<(u64, RolloutId)>,
    /// Waits for the end of a back-off.
    delayed: BTreeSet<(u64, RolloutId)>,
    running: BTreeSet<RolloutId>,
    /// How many may run by what was allowed when they were admitted.
    allowed_running: usize,
    /// When running rollouts are ended; those that are being ended are no longer here.
    guards: BTreeSet<(u64, RolloutId)>,
    ended: u64,
    /// Failures that were told of; one of a kind for each task.
    told: BTreeSet<(TaskId, InfraKind)>,
}

impl ManagerState {
    /// Nothing under way.
    pub fn new(limits: ManagerLimits) -> Self {
        Self {
            allowed_running: limits.max_running,
            limits,
            is_paused: false,
            is_drained: false,
            is_handed_over: false,
            batches: BTreeMap::new(),
            batches_begun: 0,
            queue: BTreeSet::new(),
            delayed: BTreeSet::new(),
            running: BTreeSet::new(),
            guards: BTreeSet::new(),
            ended: 0,
            told: BTreeSet::new(),
        }
    }

    /// Takes an input at a time (milliseconds from any fixed origin) and says what is to be done, in order.
    pub fn step(&mut self, input: ManagerInput, now_ms: u64) -> Vec<ManagerEffect> {
        let mut effects = Vec::new();
        match input {
            ManagerInput::StartBatch(request, tasks) => self.start_batch(request, tasks),
            ManagerInput::CancelBatch(batch) => self.cancel_batch(batch, &mut effects),
            ManagerInput::CancelRollout(rollout) => self.cancel_rollout(rollout, &mut effects),
            ManagerInput::SetPaused(is_paused) => self.is_paused = is_paused,
            ManagerInput::SetDrained { drained, handed_over } => {
                (self.is_drained, self.is_handed_over) = (drained, drained && handed_over);
            }
            ManagerInput::SetLimits(limits) => {
                self.limits = limits;
                self.allowed_running = self.limits.max_running.max(self.running.len());
            }
            ManagerInput::Finished(finished) => self.finish(*finished, now_ms, &mut effects),
            ManagerInput::Tick => {}
        }
        self.end_overdue(now_ms, &mut effects);
        self.requeue_due(now_ms);
        if self.is_handed_over {
            self.forget_what_does_not_run();
        }
        self.admit(now_ms, &mut effects);
        debug_assert!(self.violations().is_empty(), "{:?}", self.violations());
        effects
    }

    /// When the next [`ManagerInput::Tick`] is due, if one is.
    pub fn next_due_ms(&self) -> Option<u64> {
        let first = |set: &BTreeSet<(u64, RolloutId)>| set.first().map(|(due_ms, _)| *due_ms);
        first(&self.guards).into_iter().chain(first(&self.delayed)).min()
    }

    /// How everything stands.
    pub fn status(&self) -> RolloutStatus {
        RolloutStatus {
            paused: self.is_paused,
            drained: self.is_drained,
            queued: (self.queue.len() + self.delayed.len()) as u32,
            running: self.running.len() as u32,
            ended: self.ended,
            groups_open: self.batches.values().map(|batch| batch.open.len() as u32).sum(),
        }
    }

    /// Whether this very rollout waits or runs.
    pub fn is_open(&self, rollout: RolloutId) -> bool {
        self.group(rollout.group).is_some_and(|group| group.open_rollouts().any(|open| open == rollout))
    }

    /// The rollouts that run.
    pub fn running(&self) -> impl Iterator<Item = RolloutId> {
        self.running.iter().copied()
    }

    fn group(&self, id: GroupId) -> Option<&Group> {
        self.batches.get(&id.batch)?.open.get(&id)
    }

    /// Groups that the request lists as finished, or that are under way, are left alone; all others are begun.
    fn start_batch(&mut self, request: StartBatch, tasks: Vec<Arc<Task>>) {
        let id = request.batch;
        if !self.batches.contains_key(&id) {
            self.batches_begun += 1;
            let order = self.batches_begun;
            let batch = Batch {
                order,
                base_attempt: request.first_attempt,
                request: request.clone(),
                is_cancelled: false,
                open: BTreeMap::new(),
                next_attempt: 0,
            };
            self.batches.insert(id, batch);
        }
        let Some(batch) = self.batches.get_mut(&id) else { return };
        if batch.is_cancelled && !batch.open.is_empty() {
            return;
        }
        let first_attempt = request.first_attempt.max(batch.next_attempt);
        batch.is_cancelled = false;
        for (index, task) in (0..request.groups).zip(tasks) {
            let group = GroupId { batch: id, index };
            if request.finished_groups.contains(&group) || batch.open.contains_key(&group) {
                continue;
            }
            let begun = Group::new(group, task, request.samples_per_group, first_attempt);
            self.queue.extend(begun.open_rollouts().map(|rollout| (batch.order, rollout)));
            batch.open.insert(group, begun);
            batch.next_attempt = batch.next_attempt.max(first_attempt + 1);
        }
        batch.request = request;
    }

    fn cancel_batch(&mut self, id: BatchId, effects: &mut Vec<ManagerEffect>) {
        let Some(batch) = self.batches.get_mut(&id) else { return };
        batch.is_cancelled = true;
        let open: Vec<RolloutId> = batch.open.values().flat_map(Group::open_rollouts).collect();
        for rollout in open {
            self.cancel_rollout(rollout, effects);
        }
    }

    fn cancel_rollout(&mut self, rollout: RolloutId, effects: &mut Vec<ManagerEffect>) {
        let Some(group) = self.group(rollout.group).filter(|_| self.is_open(rollout)) else { return };
        let task = group.task.id.clone();
        if self.running.contains(&rollout) {
            self.end(rollout, RolloutOutcome::Cancelled, effects);
        } else {
            self.queue.retain(|(_, queued)| *queued != rollout);
            self.delayed.retain(|(_, delayed)| *delayed != rollout);
            self.close(bare(rollout, task, RolloutOutcome::Cancelled), effects);
        }
    }

    /// Ends a running rollout, once.
    fn end(&mut self, rollout: RolloutId, outcome: RolloutOutcome, effects: &mut Vec<ManagerEffect>) {
        let guarded = self.guards.len();
        self.guards.retain(|(_, guarded)| *guarded != rollout);
        if self.guards.len() < guarded {
            effects.push(ManagerEffect::End(rollout, outcome));
        }
    }

    fn end_overdue(&mut self, now_ms: u64, effects: &mut Vec<ManagerEffect>) {
        while let Some((_, rollout)) = self.guards.first().copied().filter(|(due_ms, _)| *due_ms <= now_ms) {
            let message = format!("the rollout did not end within its guard time of {} ms", self.limits.guard_ms);
            let failure = InfraFailure { kind: InfraKind::Guard, message };
            self.end(rollout, RolloutOutcome::InfraFailed(failure), effects);
        }
    }

    fn requeue_due(&mut self, now_ms: u64) {
        while let Some((due_ms, rollout)) = self.delayed.first().copied().filter(|(due_ms, _)| *due_ms <= now_ms) {
            self.delayed.remove(&(due_ms, rollout));
            let order = self.batches.get(&rollout.group.batch).map_or(0, |batch| batch.order);
            self.queue.insert((order, rollout));
        }
    }

    /// Groups of which nothing runs are made elsewhere: nobody hears of them from here.
    fn forget_what_does_not_run(&mut self) {
        let running = &self.running;
        for batch in self.batches.values_mut() {
            batch.open.retain(|_, group| group.open_rollouts().any(|open| running.contains(&open)));
        }
        let batches = &self.batches;
        let is_open = |rollout: &RolloutId| {
            batches.get(&rollout.group.batch).is_some_and(|batch| batch.open.contains_key(&rollout.group))
        };
        self.queue.retain(|(_, rollout)| is_open(rollout));
        self.delayed.retain(|(_, rollout)| is_open(rollout));
    }

    fn admit(&mut self, now_ms: u64, effects: &mut Vec<ManagerEffect>) {
        while !self.is_paused && !self.is_drained && self.running.len() < self.limits.max_running {
            let Some((_, rollout)) = self.queue.pop_first() else { return };
            let Some(batch) = self.batches.get(&rollout.group.batch) else { continue };
            let Some(group) = batch.open.get(&rollout.group) else { continue };
            let issue = Issue {
                rollout,
                task: group.task.clone(),
                temperature: batch.request.temperature,
                oldest_version: batch.request.oldest_version,
                tries_before: rollout.attempt.saturating_sub(batch.base_attempt),
            };
            self.running.insert(rollout);
            self.guards.insert((now_ms + self.limits.guard_ms, rollout));
            effects.push(ManagerEffect::Record(RunEvent::RolloutIssued { rollout, task: group.task.id.clone() }));
            effects.push(ManagerEffect::Issue(issue));
        }
    }

    /// A rollout ended: settle its outcome, then try again or close its sample. A second end of the same one is ignored.
    fn finish(&mut self, finished: FinishedRollout, now_ms: u64, effects: &mut Vec<ManagerEffect>) {
        let rollout = finished.rollout;
        if !self.running.remove(&rollout) {
            return;
        }
        self.guards.retain(|(_, guarded)| *guarded != rollout);
        self.ended += 1;
        let Some(batch) = self.batches.get_mut(&rollout.group.batch) else { return };
        let Some(group) = batch.open.get_mut(&rollout.group) else { return };
        let finished = settle(finished, batch.request.oldest_version, self.limits.drop_stale);
        effects.push(ManagerEffect::Record(RunEvent::RolloutEnded {
            rollout,
            outcome: finished.outcome.name().to_owned(),
            reward: finished.reward,
            detail: finished.detail(),
            turns: finished.turns,
        }));
        let tries = rollout.attempt + 1 - group.first_attempt;
        let RolloutOutcome::InfraFailed(failure) = &finished.outcome else { return self.close(finished, effects) };
        let is_hopeless = group.fails_again(rollout.sample, failure);
        if is_hopeless || batch.is_cancelled || tries >= self.limits.max_attempts {
            return self.close(finished, effects);
        }
        let again = RolloutId { attempt: rollout.attempt + 1, ..rollout };
        if let Some(slot) = group.samples.get_mut(rollout.sample as usize) {
            *slot = Slot::Open(again);
        }
        batch.next_attempt = batch.next_attempt.max(again.attempt + 1);
        let backoff_ms = self.limits.retry_backoff_ms.saturating_mul(1 << (tries - 1).min(16)).min(MAX_BACKOFF_MS);
        self.delayed.insert((now_ms + backoff_ms, again));
        if self.told.insert((finished.task.clone(), failure.kind)) {
            effects.push(ManagerEffect::Tell(format!("{rollout} is tried again: {}", finished.detail())));
        }
    }

    /// A sample ended for good; its group is reported when it was the last.
    fn close(&mut self, finished: FinishedRollout, effects: &mut Vec<ManagerEffect>) {
        let id = finished.rollout.group;
        let Some(batch) = self.batches.get_mut(&id.batch) else { return };
        let Some(group) = batch.open.get_mut(&id) else { return };
        if let Some(slot) = group.samples.get_mut(finished.rollout.sample as usize) {
            *slot = Slot::Done(Box::new(finished));
        }
        if !group.is_done() {
            return;
        }
        let Some(group) = batch.open.remove(&id) else { return };
        let task = group.task.id.clone();
        let rollouts = group.into_rollouts();
        let outcome = group_outcome(&rollouts, self.limits.min_trainable, batch.is_cancelled);
        effects.push(ManagerEffect::Report(Box::new(FinishedGroup { group: id, task, outcome, rollouts })));
    }

    /// Everything about this state that may never be; empty in a sound one.
    pub fn violations(&self) -> Vec<String> {
        let mut violations = Vec::new();
        if self.running.len() > self.allowed_running {
            violations.push(format!("{} rollouts run, at most {} may", self.running.len(), self.allowed_running));
        }
        let waiting = self.queue.iter().chain(&self.delayed).map(|(_, rollout)| *rollout);
        let mut placed: Vec<RolloutId> = waiting.chain(self.running.iter().copied()).collect();
        placed.sort();
        let groups = || self.batches.values().flat_map(|batch| &batch.open);
        let mut open: Vec<RolloutId> = groups().flat_map(|(_, group)| group.open_rollouts()).collect();
        open.sort();
        if placed != open {
            violations.push("open samples are not exactly those that wait or run".to_owned());
        }
        violations.extend(
            groups().filter(|(_, group)| group.is_done()).map(|(id, _)| format!("{id} is done and was not reported")),
        );
        let unguarded = self.guards.iter().filter(|(_, rollout)| !self.running.contains(rollout));
        violations.extend(unguarded.map(|(_, rollout)| format!("{rollout} is guarded and does not run")));
        let reissued = open.iter().filter(|rollout| {
            self.batches.get(&rollout.group.batch).is_none_or(|batch| rollout.attempt >= batch.next_attempt)
        });
        violations.extend(reissued.map(|rollout| format!("the attempt of {rollout} is not counted")));
        violations
    }
}
