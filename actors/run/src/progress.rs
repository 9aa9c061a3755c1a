//! How far each batch is: bookkeeping of groups, pure.

use std::collections::BTreeMap;

use greenroom_messages::rollout::{FinishedGroup, GroupOutcome};
use greenroom_messages::{BatchId, GroupId};

use crate::BatchMetrics;

/// What to do after a group finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AfterGroup {
    /// It belongs to no open batch, or came before: nothing changes.
    Ignore,
    /// The batch goes on.
    Wait,
    /// The batch is complete and enough of it may be used.
    Complete,
    /// Too few groups may be used, for these reasons: make the dropped ones again.
    Retry(String),
    /// Too few, for these reasons, and it was made again often enough.
    GiveUp(String),
}

/// A batch that is being generated or waits to be trained on.
#[derive(Clone, Debug)]
pub(crate) struct BatchProgress {
    pub(crate) groups: u32,
    pub(crate) oldest_version: u64,
    pub(crate) retries: u32,
    pub(crate) finished: BTreeMap<GroupId, FinishedGroup>,
}

impl BatchProgress {
    pub(crate) fn new(groups: u32, oldest_version: u64, finished: Vec<FinishedGroup>) -> Self {
        let finished = finished.into_iter().map(|group| (group.group, group)).collect();
        Self { groups, oldest_version, retries: 0, finished }
    }

    /// Takes a finished group.
    pub(crate) fn take(&mut self, group: FinishedGroup, min_trainable: f32, retries: u32) -> AfterGroup {
        if self.finished.contains_key(&group.group) || group.group.index >= self.groups {
            return AfterGroup::Ignore;
        }
        self.finished.insert(group.group, group);
        self.standing(min_trainable, retries)
    }

    /// What the finished groups amount to.
    pub(crate) fn standing(&mut self, min_trainable: f32, retries: u32) -> AfterGroup {
        if self.finished.len() < self.groups as usize {
            return AfterGroup::Wait;
        }
        let trainable = self.trainable().count();
        if trainable > 0 && trainable as f32 >= min_trainable * self.groups as f32 {
            return AfterGroup::Complete;
        }
        let reasons = self.reasons();
        if self.retries >= retries {
            return AfterGroup::GiveUp(reasons);
        }
        self.retries += 1;
        self.finished.retain(|_, group| group.outcome == GroupOutcome::Trainable);
        AfterGroup::Retry(reasons)
    }

    pub(crate) fn trainable(&self) -> impl Iterator<Item = &FinishedGroup> {
        self.finished.values().filter(|group| group.outcome == GroupOutcome::Trainable)
    }

    /// Why groups were dropped, if any were.
    pub(crate) fn left_out(&self) -> Option<String> {
        Some(self.reasons()).filter(|reasons| !reasons.is_empty())
    }

    /// Why groups were dropped: the first few.
    fn reasons(&self) -> String {
        let reasons = self.finished.values().filter_map(|group| match &group.outcome {
            GroupOutcome::Dropped(reason) => Some(format!("{}: {reason}", group.group)),
            GroupOutcome::Trainable => None,
        });
        reasons.take(3).collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn metrics(&self) -> BatchMetrics {
        let groups: Vec<FinishedGroup> = self.finished.values().cloned().collect();
        BatchMetrics::of(&groups)
    }
}

/// Sorts groups by batch.
pub(crate) fn by_batch(groups: Vec<FinishedGroup>) -> BTreeMap<BatchId, Vec<FinishedGroup>> {
    let mut sorted: BTreeMap<BatchId, Vec<FinishedGroup>> = BTreeMap::new();
    for group in groups {
        sorted.entry(group.group.batch).or_default().push(group);
    }
    sorted
}
