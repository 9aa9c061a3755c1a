//! The Trainer actor: ractor glue over the learner's thread.
//!
//! It starts when the policy is open, and fails to start with the reason otherwise. Requests go to the thread in order of
//! arrival; `Status` is answered at once, also during a step. When the actor stops, a running request is given up.

use std::path::{Path, PathBuf};

use greenroom_core::Deadline;
use greenroom_messages::trainer::TrainerMessage;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::config::TrainerConfig;
use crate::error::TrainerError;
use crate::learner::Learner;
use crate::worker::{LearnerThread, OpenLearner};

/// How long opening a policy may take: the largest models are read from slow shared volumes.
const OPEN_DEADLINE_MS: u64 = 30 * 60 * 1000;

/// The Trainer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trainer;

/// What a Trainer is started with.
pub struct TrainerArguments {
    open: OpenLearner,
    root: PathBuf,
}

/// A running Trainer.
#[derive(Debug)]
pub struct TrainerState {
    thread: LearnerThread,
    root: PathBuf,
}

impl TrainerArguments {
    /// A trainer of the policy in a Hugging Face directory.
    pub fn new(config: TrainerConfig, model_dir: PathBuf) -> Self {
        Self::with_learner(Box::new(move |progress| Learner::open(config, &model_dir, progress)))
    }

    /// A trainer over any learner; `open` runs on the learner's thread.
    pub fn with_learner(open: OpenLearner) -> Self {
        Self { open, root: PathBuf::new() }
    }

    /// Relative directories in requests lie in `root`; else in the process's working directory.
    #[must_use]
    pub fn rooted_at(self, root: PathBuf) -> Self {
        Self { root, ..self }
    }
}

/// The request with its directories made whole.
fn rooted(mut message: TrainerMessage, root: &Path) -> TrainerMessage {
    let join = |dir: &mut String| *dir = root.join(&*dir).to_string_lossy().into_owned();
    match &mut message {
        TrainerMessage::Export(export, _) => join(&mut export.dir),
        TrainerMessage::Save(save, _) => join(&mut save.dir),
        TrainerMessage::Load(dir, _) => join(dir),
        TrainerMessage::Forget(dirs) => dirs.iter_mut().for_each(join),
        TrainerMessage::Train(..) | TrainerMessage::WarmStart(..) | TrainerMessage::Status(_) => {}
    }
    message
}

impl Actor for Trainer {
    type Msg = TrainerMessage;
    type State = TrainerState;
    type Arguments = TrainerArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let (thread, opened) = LearnerThread::start(arguments.open)?;
        let deadline = Deadline::after_ms(OPEN_DEADLINE_MS);
        match tokio::time::timeout_at(deadline.instant(), opened).await {
            Ok(Ok(Ok(()))) => Ok(TrainerState { thread, root: arguments.root }),
            Ok(Ok(Err(error))) => Err(error.into()),
            Ok(Err(_)) => Err(stopped("its thread ended while opening the policy")),
            Err(_) => Err(stopped("opening the policy took longer than 30 minutes")),
        }
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.thread.handle(rooted(message, &state.root));
        Ok(())
    }
}

fn stopped(reason: &str) -> ActorProcessingErr {
    TrainerError::Stopped { reason: reason.to_owned() }.into()
}
