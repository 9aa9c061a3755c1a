//! The trainer's own rules, without tensors: which request is allowed when.
//!
//! Steps are made one after the other and each exactly once; a checkpoint is of the present step; after its state was
//! lost a trainer does nothing but load.

use greenroom_messages::Step;

use crate::error::TrainerError;

/// Where a trainer stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainerState {
    step: Step,
    lost: Option<String>,
}

impl TrainerState {
    /// The last finished step.
    pub fn step(&self) -> Step {
        self.step
    }

    /// May anything be done with the weights?
    ///
    /// # Errors
    /// [`TrainerError::Lost`].
    pub fn usable(&self) -> Result<(), TrainerError> {
        match &self.lost {
            Some(cause) => Err(TrainerError::Lost { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// May this batch be trained on now?
    ///
    /// # Errors
    /// [`TrainerError::Lost`]; [`TrainerError::InvalidBatch`] when it is not the next step's.
    pub fn may_train(&self, step: Step) -> Result<(), TrainerError> {
        self.usable()?;
        if step == self.step.next() {
            return Ok(());
        }
        let reason = format!("the trainer is at {}; load the checkpoint of the step before", self.step);
        Err(TrainerError::batch(format!("batch of {step}"), reason))
    }

    /// May a warm start be made now? Only before the first step.
    ///
    /// # Errors
    /// [`TrainerError::Lost`], [`TrainerError::InvalidBatch`].
    pub fn may_warm_start(&self) -> Result<(), TrainerError> {
        self.usable()?;
        if self.step == Step::default() {
            return Ok(());
        }
        Err(TrainerError::batch("warm start", format!("the trainer is already at {}", self.step)))
    }

    /// May a checkpoint of this step be written now?
    ///
    /// # Errors
    /// [`TrainerError::Lost`]; [`TrainerError::InvalidBatch`] when the trainer is at another step.
    pub fn may_save(&self, step: Step) -> Result<(), TrainerError> {
        self.usable()?;
        if step == self.step {
            return Ok(());
        }
        Err(TrainerError::batch(format!("checkpoint of {step}"), format!("the trainer is at {}", self.step)))
    }

    /// Whether the weights are this version: version n is the policy after step n.
    ///
    /// # Errors
    /// [`TrainerError::Lost`], or [`TrainerError::InvalidBatch`] for another step's version.
    pub fn may_export(&self, version: u64) -> Result<(), TrainerError> {
        self.usable()?;
        if version == self.step.0 {
            return Ok(());
        }
        Err(TrainerError::batch(format!("export of version {version}"), format!("the trainer is at {}", self.step)))
    }

    /// The next step is done.
    pub fn step_finished(&mut self) {
        self.step = self.step.next();
    }

    /// Weights or moments may be half changed.
    pub fn lose(&mut self, cause: impl Into<String>) {
        self.lost = Some(cause.into());
    }

    /// A checkpoint made after `step` was loaded.
    pub fn loaded(&mut self, step: Step) {
        *self = Self { step, lost: None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_and_loss_allows_loading_only() {
        let mut state = TrainerState::default();
        assert!(state.may_warm_start().is_ok());
        assert!(state.may_train(Step(1)).is_ok());
        assert_eq!(state.may_train(Step(2)).unwrap_err().code(), "GR0702");
        state.step_finished();
        assert_eq!(state.may_warm_start().unwrap_err().code(), "GR0702");
        assert_eq!(state.may_train(Step(1)).unwrap_err().code(), "GR0702");
        assert!(state.may_save(Step(1)).is_ok());
        assert_eq!(state.may_save(Step(0)).unwrap_err().code(), "GR0702");
        state.lose("a panic");
        for refused in [state.usable(), state.may_train(Step(2)), state.may_save(Step(1)), state.may_warm_start()] {
            assert_eq!(refused.unwrap_err().code(), "GR0710");
        }
        state.loaded(Step(7));
        assert!(state.may_train(Step(8)).is_ok());
    }
}
