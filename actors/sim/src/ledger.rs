//! What the simulated world saw, for the checks after a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greenroom_messages::RolloutId;
use greenroom_messages::run::RunEvent;

/// A checksum of a file of weights.
pub(crate) type ContentHash = u64;

#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Every event as it was sent to the Journal, with its virtual time.
    pub(crate) events: Vec<(u64, RunEvent)>,
    /// Boxes that were made and are not destroyed.
    pub(crate) open_boxes: BTreeSet<String>,
    pub(crate) boxes_made: u64,
    /// What the trainer exported, by version number.
    pub(crate) exported: BTreeMap<u64, ContentHash>,
    /// The checkpoint's weights after each step, for what an export must be.
    pub(crate) checkpoints: BTreeMap<u64, ContentHash>,
    /// Weights that engines generated with: label and content.
    pub(crate) generated_with: BTreeSet<(String, ContentHash)>,
    /// The rollouts of the last training of each step.
    pub(crate) trained: BTreeMap<u64, Vec<RolloutId>>,
    /// What is wrong with batches that the trainer was given.
    pub(crate) bad_batches: Vec<String>,
    /// Calls to simulated parts that have begun and not ended, by kind.
    pub(crate) calls_open: BTreeMap<&'static str, u64>,
}

/// Shared by all simulated parts of a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<Seen>>);

impl Ledger {
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call as open until the guard is dropped, by its end or because nobody waits for it any more.
    pub(crate) fn open_call(&self, kind: &'static str) -> OpenCall {
        *self.seen().calls_open.entry(kind).or_default() += 1;
        OpenCall { ledger: self.clone(), kind }
    }
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct OpenCall {
    ledger: Ledger,
    kind: &'static str,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if let Some(open) = self.ledger.seen().calls_open.get_mut(self.kind) {
            *open -= 1;
        }
    }
}
