//! The Trainer actor answers everything: results, typed failures, also after a panic and during a step.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking, its helpers too

mod support;

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use greenroom_core::{Address, Deadline, ask};
use greenroom_messages::Step;
use greenroom_messages::trainer::{SaveCheckpoint, TrainerMessage, WarmStart};
use greenroom_trainer::model::PolicyModel;
use greenroom_trainer::{DecoderModel, Learner, Trainer, TrainerArguments, TrainerConfig, TrainerError};
use ractor::Actor;
use support::{decoder, made_up_batch, small_model};
use tch::{Kind, Tensor};

/// What the next forward pass does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Panic,
    Wait,
}

/// A network that does what it is told before each forward pass: it panics, or waits to be told on.
struct MoodyModel {
    inner: DecoderModel,
    moods: Mutex<Receiver<Mood>>,
    begun: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl PolicyModel for MoodyModel {
    fn vocabulary(&self) -> usize {
        self.inner.vocabulary()
    }
    fn max_tokens(&self) -> usize {
        self.inner.max_tokens()
    }
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        self.inner.named_parameters()
    }
    fn hidden(&self, tokens: &[i64], lengths: &[usize]) -> Result<Tensor, TrainerError> {
        let mood = self.moods.lock().unwrap_or_else(PoisonError::into_inner).try_recv();
        match mood {
            Ok(Mood::Panic) => panic!("the network broke on purpose"),
            Ok(Mood::Wait) => {
                self.begun.send(()).unwrap();
                self.go_on.lock().unwrap().recv().unwrap();
            }
            Err(_) => {}
        }
        self.inner.hidden(tokens, lengths)
    }
    fn head(&self) -> Result<Tensor, TrainerError> {
        self.inner.head()
    }
    fn frozen(&self, parameters: &[(String, Tensor)]) -> Result<Box<dyn PolicyModel>, TrainerError> {
        self.inner.frozen(parameters)
    }
    fn frozen_from(&self, dir: &Path) -> Result<Box<dyn PolicyModel>, TrainerError> {
        self.inner.frozen_from(dir)
    }
    fn write(&self, parameters: &[(String, Tensor)], kind: Kind, dir: &Path) -> Result<(), TrainerError> {
        self.inner.write(parameters, kind, dir)
    }
}

struct Rig {
    trainer: Address<TrainerMessage>,
    actor: ractor::ActorRef<TrainerMessage>,
    moods: Sender<Mood>,
    begun: Receiver<()>,
    go_on: Sender<()>,
}

async fn start() -> Rig {
    let ((moods, hear_moods), (begun, hear_begun), (go_on, hear_go_on)) = (channel(), channel(), channel());
    let arguments = TrainerArguments::with_learner(Box::new(move |progress| {
        let (config, parameters) = small_model(5);
        let inner = decoder(&config, &parameters);
        let model = MoodyModel { inner, moods: Mutex::new(hear_moods), begun, go_on: Mutex::new(hear_go_on) };
        let config = TrainerConfig { tokens_per_micro_batch: 16, ..TrainerConfig::default() };
        Learner::with_model(config, Box::new(model), Kind::Float, progress)
    }));
    let (actor, _) = Actor::spawn(None, Trainer, arguments).await.unwrap();
    Rig { trainer: Address::of(&actor), actor, moods, begun: hear_begun, go_on }
}

fn soon() -> Deadline {
    Deadline::after_ms(60_000)
}

#[tokio::test]
async fn a_panic_is_answered_and_a_checkpoint_brings_the_trainer_back() {
    let rig = start().await;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("step-1").to_str().unwrap().to_owned();
    let train = |step: u64| ask(&rig.trainer, soon(), move |reply| TrainerMessage::Train(made_up_batch(step), reply));

    let report = train(1).await.unwrap().unwrap();
    assert!(report.grad_norm > 0.0 && report.tokens_trained > 0 && !report.skipped, "{report:?}");
    assert_eq!(train(1).await.unwrap().unwrap_err().code, "GR0702", "a step is made once");
    let save = SaveCheckpoint { step: Step(1), dir: dir.clone() };
    ask(&rig.trainer, soon(), |reply| TrainerMessage::Save(save, reply)).await.unwrap().unwrap();

    rig.moods.send(Mood::Panic).unwrap();
    let failure = train(2).await.unwrap().unwrap_err();
    assert!(failure.code == "GR0710" && failure.message.contains("broke on purpose"), "{failure}");
    assert_eq!(train(2).await.unwrap().unwrap_err().code, "GR0710");

    let step = ask(&rig.trainer, soon(), |reply| TrainerMessage::Load(dir, reply)).await.unwrap();
    assert_eq!(step, Ok(Step(1)));
    train(2).await.unwrap().unwrap();
    let status = ask(&rig.trainer, soon(), TrainerMessage::Status).await.unwrap();
    assert_eq!((status.step, status.activity.as_str()), (Step(2), ""));
}

#[tokio::test]
async fn status_is_answered_during_a_step_and_stopping_gives_the_step_up() {
    let rig = start().await;
    rig.moods.send(Mood::Wait).unwrap();
    let (trainer, begun) = (rig.trainer.clone(), rig.begun);
    let step = greenroom_core::spawn_named("asker", async move {
        ask(&trainer, soon(), |reply| TrainerMessage::Train(made_up_batch(1), reply)).await
    });
    greenroom_core::spawn_blocking_named("wait", move || begun.recv().unwrap()).await.unwrap().unwrap();
    let status = ask(&rig.trainer, soon(), TrainerMessage::Status).await.unwrap();
    assert!(status.activity.contains("step-1") && status.step == Step(0), "{status:?}");

    rig.actor.stop_and_wait(None, None).await.unwrap();
    rig.go_on.send(()).unwrap();
    let failure = step.await.unwrap().unwrap().unwrap().unwrap_err();
    assert_eq!(failure.code, "GR0712", "{failure}");
}

#[tokio::test]
async fn a_warm_start_shows_how_far_it_is_and_stops_when_nobody_waits_for_it_any_more() {
    let rig = start().await;
    let sample = made_up_batch(1).groups[0].rollouts[0].samples[0].clone();
    let samples = vec![sample; 40];
    let request = WarmStart { samples, epochs: 1, tokens_per_step: 16, learning_rate: 1e-3, seed: 1 };
    for _ in 0..3 {
        rig.moods.send(Mood::Wait).unwrap();
    }
    let (trainer, asked) = (rig.trainer.clone(), request.clone());
    let asker = greenroom_core::spawn_named("asker", async move {
        ask(&trainer, soon(), |reply| TrainerMessage::WarmStart(asked, reply)).await
    });
    let (begun, go_on) = (rig.begun, rig.go_on);
    // Two optimizer steps, then it waits inside of the third.
    let played = greenroom_core::spawn_blocking_named("wait", move || {
        for step in 0..3 {
            begun.recv().unwrap();
            if step < 2 {
                go_on.send(()).unwrap();
            }
        }
        go_on
    });
    let go_on = played.await.unwrap().unwrap();
    let status = ask(&rig.trainer, soon(), TrainerMessage::Status).await.unwrap();
    assert_eq!((status.activity.as_str(), status.progress), ("warm start", 2.0 / 20.0));
    asker.abort();
    assert!(asker.await.unwrap_err().is_cancelled());
    go_on.send(()).unwrap();
    // Requests are served in order: this one is answered when the warm start has stopped, after 3 of 20 steps.
    let refused = ask(&rig.trainer, soon(), |reply| TrainerMessage::WarmStart(request, reply)).await.unwrap();
    let failure = refused.unwrap_err();
    assert!(failure.code == "GR0710" && failure.message.contains("nobody waits"), "{failure}");
}

#[tokio::test]
async fn a_policy_that_cannot_be_opened_is_heard_of_at_the_start() {
    let root = tempfile::tempdir().unwrap();
    let arguments = TrainerArguments::new(TrainerConfig::default(), root.path().join("nothing"));
    let error = Actor::spawn(None, Trainer, arguments).await.err().unwrap().to_string();
    assert!(error.contains("nothing") && error.contains("config.json"), "{error}");

    let config = TrainerConfig { device: "cuda:63".to_owned(), ..TrainerConfig::default() };
    let arguments = TrainerArguments::new(config, root.path().to_owned());
    let error = Actor::spawn(None, Trainer, arguments).await.err().unwrap().to_string();
    assert!(error.contains("cuda:63"), "{error}");
}
