//! Bookkeeping of one batch and its groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_messages::rollout::{FinishedRollout, InfraFailure, InfraKind, StartBatch};
use greenroom_messages::{GroupId, RolloutId};

use crate::dataset::Task;

/// A batch that was asked for; kept after its last group, so that no rollout id is issued twice.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    /// Its place among the batches: earlier ones are admitted first.
    pub(super) order: u64,
    /// The first attempt that this process makes of the batch.
    pub(super) base_attempt: u32,
    /// What was asked for.
    pub(super) request: StartBatch,
    pub(super) is_cancelled: bool,
    /// Groups under way.
    pub(super) open: BTreeMap<GroupId, Group>,
    /// One more than the highest attempt issued.
    pub(super) next_attempt: u32,
}

/// A group under way.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) task: Arc<Task>,
    /// The attempt number of its first rollouts.
    pub(super) first_attempt: u32,
    pub(super) samples: Vec<Slot>,
    /// Why each sample that is tried again was not made the last time.
    pub(super) failures: BTreeMap<u32, InfraFailure>,
}

/// One sample of a group.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    /// This rollout of it is queued, delayed, or runs.
    Open(RolloutId),
    /// It ended for good.
    Done(Box<FinishedRollout>),
}

impl Group {
    pub(super) fn new(id: GroupId, task: Arc<Task>, samples: u32, first_attempt: u32) -> Self {
        let rollout = |sample| RolloutId { group: id, sample, attempt: first_attempt };
        let samples = (0..samples).map(|sample| Slot::Open(rollout(sample))).collect();
        Self { task, first_attempt, samples, failures: BTreeMap::new() }
    }

    pub(super) fn open_rollouts(&self) -> impl Iterator<Item = RolloutId> {
        self.samples.iter().filter_map(|slot| match slot {
            Slot::Open(rollout) => Some(*rollout),
            Slot::Done(_) => None,
        })
    }

    /// Keeps why a sample failed. Says whether it is of no use to try again: a set-up or a grading that fails in the same
    /// words in another sandbox will go on to do so, for nothing in either depends on chance or on the agent.
    pub(super) fn fails_again(&mut self, sample: u32, failure: &InfraFailure) -> bool {
        let before = self.failures.insert(sample, failure.clone());
        matches!(failure.kind, InfraKind::SetUp | InfraKind::Grading) && before.as_ref() == Some(failure)
    }

    pub(super) fn is_done(&self) -> bool {
        self.open_rollouts().next().is_none()
    }

    /// The ends of all samples, in order; empty while one is open.
    pub(super) fn into_rollouts(self) -> Vec<FinishedRollout> {
        let ends = self.samples.into_iter().map(|slot| match slot {
            Slot::Done(finished) => Some(*finished),
            Slot::Open(_) => None,
        });
        ends.collect::<Option<Vec<_>>>().unwrap_or_default()
    }
}
