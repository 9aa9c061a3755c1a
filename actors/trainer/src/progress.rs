//! How far the learner is: written by its thread, read by the actor at any time, also while a step runs.
//!
//! The same object carries the wish to stop; the thread looks at it between micro-batches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use greenroom_messages::Step;
use greenroom_messages::trainer::TrainerStatus;

use crate::error::TrainerError;

#[derive(Debug)]
struct Shared {
    status: Mutex<TrainerStatus>,
    stop: AtomicBool,
}

impl Default for Shared {
    fn default() -> Self {
        let status = TrainerStatus { fresh: true, ..TrainerStatus::default() };
        Self { status: Mutex::new(status), stop: AtomicBool::new(false) }
    }
}

/// Shared progress; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Shared>);

impl Progress {
    /// The present status.
    pub fn status(&self) -> TrainerStatus {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut TrainerStatus)) {
        change(&mut self.0.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A new activity begins, in words.
    pub fn begin(&self, activity: impl Into<String>) {
        let activity = activity.into();
        self.change(|status| (status.activity, status.progress) = (activity, 0.0));
    }

    /// The activity has ended after this step.
    pub fn idle(&self, step: Step) {
        self.change(|status| *status = TrainerStatus { step, fresh: status.fresh, ..TrainerStatus::default() });
    }

    /// The learner holds what it learnt, or a checkpoint: it is not as it was opened any more, or that was made official.
    pub fn settle(&self) {
        self.change(|status| status.fresh = false);
    }

    /// `done` of `total` parts of the activity are done.
    ///
    /// # Errors
    /// [`TrainerError::Stopped`] when the work is to be given up.
    pub fn advance(&self, done: usize, total: usize) -> Result<(), TrainerError> {
        self.change(|status| status.progress = done as f32 / total.max(1) as f32);
        self.check()
    }

    /// Whether the work may go on.
    ///
    /// # Errors
    /// [`TrainerError::Stopped`] when it is to be given up.
    pub fn check(&self) -> Result<(), TrainerError> {
        if self.0.stop.load(Ordering::Relaxed) {
            return Err(TrainerError::Stopped { reason: "the trainer was told to stop".to_owned() });
        }
        Ok(())
    }

    /// Lets the thread give up at its next look.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}
