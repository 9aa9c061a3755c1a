//! A simulated trainer: the rules of the real one, tiny real weights, and its misfortunes.
//!
//! It is at one step at a time, refuses what does not fit to it, and after a failure that may have changed its weights it
//! does nothing but load. A crash loses everything but the checkpoints: started again it is at step 0.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greenroom_core::{Reply, spawn_named};
use greenroom_messages::Step;
use greenroom_messages::trainer::{
    ExportWeights, SaveCheckpoint, TrainBatch, TrainReport, TrainerFailure, TrainerMessage, TrainerStatus,
    WarmStartReport,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::chance::Chance;
use crate::checks::batch_problems;
use crate::ledger::Ledger;
use crate::weights_file::SimulatedWeights;

const FIRST_SKILL: f32 = 0.2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// An error; nothing changed.
    Fails,
    /// An error in the middle of a step: the state is lost.
    LosesItself,
    Slow,
    Crash,
}

/// What a simulated trainer starts with.
#[derive(Clone, Debug)]
pub struct TrainerArguments {
    pub(crate) chance: Arc<Mutex<Chance>>,
    pub(crate) ledger: Ledger,
    pub(crate) train_ms: u64,
    /// A step slower than this is given up by whoever asked for it.
    pub(crate) deadline_ms: u64,
}

impl TrainerArguments {
    fn chance(&self) -> MutexGuard<'_, Chance> {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn misfortunes_met(&self) -> BTreeMap<String, u32> {
        self.chance().met()
    }
}

/// The actor.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimulatedTrainer;

/// What does the work, one message after the other.
#[derive(Debug)]
struct Worker {
    arguments: TrainerArguments,
    held: Checkpoint,
    is_lost: bool,
    status: watch::Sender<TrainerStatus>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Checkpoint {
    step: u64,
    skill: f32,
}

impl Checkpoint {
    fn weights(self) -> SimulatedWeights {
        SimulatedWeights { skill: self.skill, step: self.step }
    }
}

fn failure<T>(message: impl Into<String>) -> Result<T, TrainerFailure> {
    Err(TrainerFailure { code: "GR0702".to_owned(), message: message.into() })
}

impl Worker {
    async fn train(&mut self, batch: TrainBatch, trouble: Option<Trouble>) -> Result<TrainReport, TrainerFailure> {
        if batch.step.0 != self.held.step + 1 {
            return failure(format!("batch of {}: the trainer is at step {}", batch.step, self.held.step));
        }
        self.arguments.ledger.seen().bad_batches.extend(batch_problems(&batch));
        tokio::time::sleep(Duration::from_millis(self.arguments.train_ms)).await;
        if trouble == Some(Trouble::LosesItself) {
            self.is_lost = true;
            return failure("out of memory in the middle of the step");
        }
        let mixed = batch.groups.iter().filter(|group| {
            let first = group.rollouts.first().map(|rollout| rollout.reward);
            group.rollouts.iter().any(|rollout| Some(rollout.reward) != first)
        });
        let (groups, learnt) = (batch.groups.len() as u32, mixed.count() as u32);
        self.held.step += 1;
        self.held.skill += (1.0 - self.held.skill) * (0.1 + 0.1 * learnt.min(3) as f32);
        let rollouts = || batch.groups.iter().flat_map(|group| &group.rollouts);
        let trained = rollouts().map(|rollout| rollout.rollout).collect();
        self.arguments.ledger.seen().trained.insert(self.held.step, trained);
        let samples = rollouts().flat_map(|rollout| &rollout.samples);
        let (mut tokens_trained, mut tokens_total) = (0, 0);
        for sample in samples {
            tokens_total += sample.tokens.len() as u64;
            tokens_trained += sample.loss_mask.iter().filter(|mask| **mask != 0).count() as u64;
        }
        let (groups_without_signal, elapsed_ms) = (groups - learnt, self.arguments.train_ms);
        Ok(TrainReport { tokens_trained, tokens_total, groups_without_signal, elapsed_ms, ..TrainReport::default() })
    }

    fn save(&self, request: &SaveCheckpoint) -> Result<(), TrainerFailure> {
        if request.step.0 != self.held.step {
            return failure(format!("checkpoint of {}: the trainer is at step {}", request.step, self.held.step));
        }
        let write = || {
            std::fs::create_dir_all(&request.dir)?;
            std::fs::write(state_file(&request.dir), serde_json::to_vec(&self.held)?)
        };
        write().or_else(|error: std::io::Error| failure(error.to_string()))?;
        let content = self.held.weights().content().or_else(failure)?;
        self.arguments.ledger.seen().checkpoints.insert(self.held.step, content);
        Ok(())
    }

    fn load(&mut self, dir: &str) -> Result<Step, TrainerFailure> {
        let read = || serde_json::from_slice(&std::fs::read(state_file(dir))?).map_err(std::io::Error::from);
        self.held = read().or_else(|error: std::io::Error| failure(error.kind().to_string()))?;
        self.is_lost = false;
        Ok(Step(self.held.step))
    }

    fn export(&self, request: &ExportWeights) -> Result<(), TrainerFailure> {
        self.held.weights().write(Path::new(&request.dir)).or_else(failure)?;
        let content = self.held.weights().content().or_else(failure)?;
        self.arguments.ledger.seen().exported.insert(request.version.number, content);
        Ok(())
    }

    fn warm_start(&mut self) -> Result<WarmStartReport, TrainerFailure> {
        if self.held.step != 0 {
            return failure(format!("warm start: the trainer is at step {}", self.held.step));
        }
        self.held.skill += 0.1;
        Ok(WarmStartReport { steps: 1, ..WarmStartReport::default() })
    }

    async fn answer(&mut self, message: TrainerMessage, trouble: Option<Trouble>) {
        let is_lost = self.is_lost && !matches!(message, TrainerMessage::Load(..));
        if is_lost || trouble == Some(Trouble::Fails) {
            return refuse(message, if is_lost { "its state is lost: load a checkpoint" } else { "a CUDA error" });
        }
        // an asker that is gone needs no answer
        match message {
            TrainerMessage::Train(batch, reply) => {
                let report = self.train(batch, trouble).await;
                self.tell(report.is_ok());
                reply.send(report);
            }
            TrainerMessage::WarmStart(_, reply) => {
                let report = self.warm_start();
                self.tell(report.is_ok());
                reply.send(report);
            }
            TrainerMessage::Save(request, reply) => {
                let saved = self.save(&request);
                self.tell(saved.is_ok());
                reply.send(saved);
            }
            TrainerMessage::Load(dir, reply) => {
                let step = self.load(&dir);
                self.tell(step.is_ok());
                reply.send(step);
            }
            TrainerMessage::Forget(_) => {}
            TrainerMessage::Export(request, reply) => drop(reply.send(self.export(&request))),
            TrainerMessage::Status(reply) => drop(reply.send(TrainerStatus::default())),
        }
    }

    /// Says where it stands; not as it was opened any more when something worked that changes that.
    fn tell(&self, is_settled: bool) {
        self.status.send_modify(|status| {
            status.step = Step(self.held.step);
            status.fresh &= !is_settled;
        });
    }

    /// Works on one message; `false` when it crashed over it.
    async fn work(&mut self, message: TrainerMessage) -> bool {
        let _open = self.arguments.ledger.open_call("trainer");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let troubles = [Trouble::Fails, Trouble::LosesItself, Trouble::Slow, Trouble::Crash];
        let trouble = self.arguments.chance().strikes(&troubles);
        match trouble {
            // the message and its reply port fall with the trainer
            Some(Trouble::Crash) => return false,
            Some(Trouble::Slow) => {
                let longest_ms = self.arguments.deadline_ms * 3 / 2;
                let wait_ms = self.arguments.chance().between(1_000, longest_ms);
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            }
            _ => {}
        }
        self.answer(message, trouble).await;
        true
    }
}

fn refuse(message: TrainerMessage, reason: &str) {
    fn send<T>(reply: Reply<Result<T, TrainerFailure>>, reason: &str) {
        reply.send(failure(reason));
    }
    match message {
        TrainerMessage::Train(_, reply) => send(reply, reason),
        TrainerMessage::WarmStart(_, reply) => send(reply, reason),
        TrainerMessage::Export(_, reply) => send(reply, reason),
        TrainerMessage::Save(_, reply) => send(reply, reason),
        TrainerMessage::Load(_, reply) => send(reply, reason),
        TrainerMessage::Status(reply) => drop(reply.send(TrainerStatus::default())),
        TrainerMessage::Forget(_) => {}
    }
}

fn state_file(dir: &str) -> PathBuf {
    Path::new(dir).join("state.json")
}

/// What reaches the trainer.
#[derive(Debug)]
pub enum TrainerInput {
    /// A message from another actor.
    Message(TrainerMessage),
    /// From its own worker: it crashed.
    Crashed,
}

greenroom_core::local_message!(TrainerInput);

impl From<TrainerMessage> for TrainerInput {
    fn from(message: TrainerMessage) -> Self {
        Self::Message(message)
    }
}

/// The state of the running actor: the way to its worker.
#[derive(Debug)]
pub struct TrainerState {
    work: mpsc::UnboundedSender<TrainerMessage>,
    status: watch::Receiver<TrainerStatus>,
}

impl Actor for SimulatedTrainer {
    type Msg = TrainerInput;
    type State = TrainerState;
    type Arguments = TrainerArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let (work, mut messages) = mpsc::unbounded_channel();
        let (tell, status) = watch::channel(TrainerStatus { fresh: true, ..TrainerStatus::default() });
        let held = Checkpoint { step: 0, skill: FIRST_SKILL };
        let mut worker = Worker { arguments, held, is_lost: false, status: tell };
        spawn_named("simulated-trainer", async move {
            while let Some(message) = messages.recv().await {
                if !worker.work(message).await {
                    // an actor that is gone need not fail
                    let _ = myself.send_message(TrainerInput::Crashed);
                    return;
                }
            }
        });
        Ok(TrainerState { work, status })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        input: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match input {
            TrainerInput::Message(TrainerMessage::Status(reply)) => drop(reply.send(state.status.borrow().clone())),
            // a worker that crashed drops what it is given, reply port and all
            TrainerInput::Message(message) => drop(state.work.send(message)),
            TrainerInput::Crashed => return Err("the trainer crashed".into()),
        }
        Ok(())
    }
}
