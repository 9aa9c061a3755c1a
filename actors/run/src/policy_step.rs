//! The chains of questions that make a new policy and bring it to the engines.
//!
//! Each is a plain sequence of asks with deadlines; the first that fails ends the chain with the part's name and the
//! reason. All of it may be repeated from the start: trainer, publisher and receivers answer for work already done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::{Address, AskError, Deadline, Reply, ask};
use greenroom_messages::engine::{EnginePoolMessage, PauseMode, UpdateWeights};
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::trainer::{
    ExportWeights, SaveCheckpoint, TrainBatch, TrainReport, TrainerMessage, TrainerStatus, WarmStart, WarmStartReport,
};
use greenroom_messages::weights::{PublishWeights, WeightPublisherMessage, WeightReceiverMessage};
use greenroom_messages::{EngineId, Step, WeightVersion};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{RunConfig, RunError};

/// The parts of a run that the Conductor speaks to.
#[derive(Clone, Debug)]
pub struct ConductorParts {
    /// Who rolls out.
    pub rollouts: Address<greenroom_messages::rollout::RolloutManagerMessage>,
    /// The fleet of engines.
    pub engines: Address<EnginePoolMessage>,
    /// Who trains.
    pub trainer: Address<TrainerMessage>,
    /// Who publishes weights.
    pub publisher: Address<WeightPublisherMessage>,
    /// Who receives weights, by name: one per engine host. Empty where each engine's host receives by itself, before it
    /// hands an update to its engine.
    pub receivers: Vec<(String, Address<WeightReceiverMessage>)>,
    /// Who writes the history.
    pub journal: Address<JournalMessage>,
}

/// How long the trainer may take to say how it stands: it answers at once, also during a step.
const STATUS_WAIT_MS: u64 = 30_000;

/// A person is told what an update waits for when nothing was heard for this long.
const SILENCE: Duration = Duration::from_secs(15);

/// How often a warm start is asked how far it is, and after how many looks a person is told: soon, then now and then.
const LOOK: Duration = Duration::from_secs(1);
const FIRST_LINE: u32 = 2;
const LOOKS_PER_LINE: u32 = 10;

/// How often a part that is not there is looked for.
const ABSENCE_LOOK: Duration = Duration::from_millis(200);

/// Which engines took a version, and which did not and why.
#[derive(Debug, Default)]
pub struct Taken {
    pub(crate) by: BTreeSet<EngineId>,
    pub(crate) late: BTreeMap<EngineId, String>,
}

/// Where the run is: the last committed step, and the directory of its checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    pub(crate) step: Step,
    pub(crate) checkpoint: String,
}

/// The newest checkpoint that is sound, and what is wrong with newer ones.
#[derive(Clone, Debug)]
pub struct Found {
    pub(crate) reached: Reached,
    pub(crate) damaged: Vec<String>,
}

/// The trainer's code of a checkpoint that is damaged, so that an older one may be tried. What else keeps it from loading,
/// such as a file that may not be read, can be mended, and steps are not undone for it.
const DAMAGED: &str = "GR0707";

/// The chains' settings and parts, cheap to clone into a task.
#[derive(Clone)]
pub(crate) struct PolicyStep {
    pub(crate) parts: ConductorParts,
    pub(crate) config: RunConfig,
    pub(crate) talk: Arc<dyn Fn(&str) + Send + Sync>,
    /// Turns true when the run is to stop: waits that may be long and lose nothing are given up then.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl PolicyStep {
    /// Makes and saves the initial policy. A trainer that is not fresh has learnt the demonstrations at an attempt whose
    /// save failed: they are not learnt twice. `show` hears how far the learning is.
    pub(crate) async fn prepare(
        &self,
        warm_start: Option<WarmStart>,
        checkpoint: String,
        show: impl Fn(f32),
    ) -> Result<WarmStartReport, RunError> {
        self.present(&self.parts.trainer).await?;
        let report = match warm_start {
            Some(warm_start) if self.status().await?.fresh => self.learn(warm_start, show).await?,
            _ => WarmStartReport::default(),
        };
        self.save(Step(0), checkpoint).await?;
        Ok(report)
    }

    /// The warm start. When the run is to stop, the question is dropped, and a trainer that nobody asks any more stops at
    /// its next optimizer step.
    async fn learn(&self, warm_start: WarmStart, show: impl Fn(f32)) -> Result<WarmStartReport, RunError> {
        let demonstrations = warm_start.samples.len();
        let begun = Instant::now();
        let wait_ms = self.config.warm_start_timeout_ms;
        let mut learnt = std::pin::pin!(self.trainer(wait_ms, |reply| TrainerMessage::WarmStart(warm_start, reply)));
        for look in 1_u32.. {
            tokio::select! {
                biased;
                report = &mut learnt => return report,
                () = self.told_to_stop() => break,
                () = tokio::time::sleep(LOOK) => {}
            }
            let Ok(status) = self.status().await else { continue };
            show(status.progress);
            if look == FIRST_LINE || look.is_multiple_of(LOOKS_PER_LINE) {
                (self.talk)(&crate::report::talk_learning(demonstrations, status.progress, begun.elapsed()));
            }
        }
        let reason = "the warm start was stopped".to_owned();
        Err(RunError::Part { part: self.parts.trainer.name().to_owned(), reason })
    }

    async fn told_to_stop(&self) {
        let mut stopping = self.stopping.clone();
        if stopping.wait_for(|stopping| *stopping).await.is_err() {
            // the Conductor is gone: nobody can tell any more
            std::future::pending().await
        }
    }

    /// Brings the trainer to where the run is. After a restart it holds another state, and says so; after a failure
    /// (`mistrusted`) nothing it holds is believed.
    pub(crate) async fn bring_to(&self, reached: &Reached, mistrusted: bool) -> Result<(), RunError> {
        self.present(&self.parts.trainer).await?;
        let status = self.status().await?;
        if status.step == reached.step && !status.fresh && !mistrusted {
            return Ok(());
        }
        let wait_ms = self.config.weights_timeout_ms;
        let load = |reply| TrainerMessage::Load(reached.checkpoint.clone(), reply);
        let loaded: Step = self.trainer(wait_ms, load).await?;
        if loaded == reached.step {
            return Ok(());
        }
        let reason = format!("{} is of {loaded}, the run database says {}", reached.checkpoint, reached.step);
        Err(RunError::Part { part: self.parts.trainer.name().to_owned(), reason })
    }

    /// Brings the trainer to the newest of these checkpoints (newest first) that is sound; tells why the ones before it are
    /// not. Nothing that the trainer holds is believed.
    pub(crate) async fn bring_to_newest(&self, candidates: Vec<Reached>) -> Result<Found, RunError> {
        self.present(&self.parts.trainer).await?;
        let failed = |reason: String| RunError::Part { part: self.parts.trainer.name().to_owned(), reason };
        let mut damaged = Vec::new();
        for reached in candidates {
            let deadline = Deadline::after_ms(self.config.weights_timeout_ms);
            let load = |reply| TrainerMessage::Load(reached.checkpoint.clone(), reply);
            match ask(&self.parts.trainer, deadline, load).await.map_err(|error| failed(error.to_string()))? {
                Ok(loaded) if loaded == reached.step => return Ok(Found { reached, damaged }),
                Ok(loaded) => {
                    damaged
                        .push(format!("{} is of {loaded}, the run database says {}", reached.checkpoint, reached.step));
                }
                Err(failure) if failure.code == DAMAGED => damaged.push(failure.message),
                Err(failure) => return Err(failed(failure.to_string())),
            }
        }
        Err(RunError::NoCheckpoint { newest: damaged.into_iter().next().unwrap_or_default() })
    }

    async fn status(&self) -> Result<TrainerStatus, RunError> {
        let deadline = Deadline::after_ms(STATUS_WAIT_MS);
        let status = ask(&self.parts.trainer, deadline, TrainerMessage::Status).await;
        let part = || self.parts.trainer.name().to_owned();
        status.map_err(|error| RunError::Part { part: part(), reason: error.to_string() })
    }

    /// Trains one step from where the run is, and saves the checkpoint.
    pub(crate) async fn train(&self, batch: TrainBatch, checkpoint: String) -> Result<TrainReport, RunError> {
        let step = batch.step;
        let wait_ms = self.config.train_timeout_ms;
        let report = self.trainer(wait_ms, |reply| TrainerMessage::Train(batch, reply)).await?;
        self.save(step, checkpoint).await?;
        Ok(report)
    }

    async fn save(&self, step: Step, dir: String) -> Result<(), RunError> {
        let wait_ms = self.config.weights_timeout_ms;
        self.trainer(wait_ms, |reply| TrainerMessage::Save(SaveCheckpoint { step, dir }, reply)).await
    }

    async fn trainer<T, Failure: std::fmt::Display>(
        &self,
        wait_ms: u64,
        question: impl FnOnce(Reply<Result<T, Failure>>) -> TrainerMessage,
    ) -> Result<T, RunError> {
        put(&self.parts.trainer, wait_ms, question).await
    }

    /// Publishes a version, has every receiver hold it, then brings the engines to it. At least one engine must confirm;
    /// those that did not are given, with why.
    pub(crate) async fn publish(&self, version: WeightVersion, export_dir: String) -> Result<Taken, RunError> {
        let wait_ms = self.config.weights_timeout_ms;
        let export = ExportWeights { version: version.clone(), dir: export_dir.clone() };
        self.trainer(wait_ms, |reply| TrainerMessage::Export(export, reply)).await?;
        self.present(&self.parts.publisher).await?;
        let publish = PublishWeights { version: version.clone(), source_dir: export_dir };
        let report =
            put(&self.parts.publisher, wait_ms, |reply| WeightPublisherMessage::Publish(publish, reply)).await?;
        self.record(RunEvent::WeightsPublished {
            version: version.clone(),
            mode: crate::database::snake(&report.mode),
            bytes: report.bytes,
            root_hash: report.root_hash,
        });
        let model_dir = self.apply(&version, wait_ms).await?;
        self.any_engine().await?;
        self.update_engines(version, model_dir).await
    }

    /// Waits until a part is there: one on another node may be on its way back. A person hears of a long wait.
    async fn present<M: Send + 'static>(&self, part: &Address<M>) -> Result<(), RunError> {
        let mut absence = Absence::new(part.name());
        while !part.is_bound() {
            absence.wait(self).await?;
        }
        Ok(())
    }

    /// Waits until the fleet has an engine, in whatever state.
    async fn any_engine(&self) -> Result<(), RunError> {
        let mut absence = Absence::new("an engine");
        loop {
            let deadline = Deadline::after_ms(STATUS_WAIT_MS);
            let engines = ask(&self.parts.engines, deadline, EnginePoolMessage::Status).await;
            match engines.map_err(|error| self.failed_ask(self.parts.engines.name(), &error))?.is_empty() {
                true => absence.wait(self).await?,
                false => return Ok(()),
            }
        }
    }

    async fn apply(&self, version: &WeightVersion, wait_ms: u64) -> Result<String, RunError> {
        let mut model_dir = None;
        if self.parts.receivers.is_empty() {
            return Ok(String::new());
        }
        for (receiver, address) in &self.parts.receivers {
            let apply = |reply| WeightReceiverMessage::Apply(version.clone(), reply);
            let applied = put(address, wait_ms, apply).await?;
            self.record(RunEvent::WeightsApplied {
                receiver: receiver.clone(),
                version: applied.version.clone(),
                root_hash: applied.root_hash.clone(),
            });
            // an acknowledgement that is lost costs a larger delta next time, nothing else
            let _ = self.parts.publisher.cast(WeightPublisherMessage::Acknowledge {
                receiver: receiver.clone(),
                version: applied.version,
                root_hash: applied.root_hash,
            });
            model_dir.get_or_insert(applied.model_dir);
        }
        model_dir.ok_or_else(|| RunError::Part {
            part: "weight receivers".to_owned(),
            reason: "the run has none, so no engine can be brought to new weights".to_owned(),
        })
    }

    async fn update_engines(&self, version: WeightVersion, model_dir: String) -> Result<Taken, RunError> {
        let timeout_ms = self.config.update_timeout_ms;
        let pause: PauseMode = self.config.pause;
        let update = UpdateWeights { version, model_dir, pause, timeout_ms };
        let deadline = Deadline::after_ms(timeout_ms + 5_000);
        let engines = &self.parts.engines;
        let number = update.version.number;
        let mut asked = std::pin::pin!(ask(engines, deadline, |reply| EnginePoolMessage::UpdateWeights(update, reply)));
        let updates = loop {
            tokio::select! {
                biased;
                updates = &mut asked => break updates.map_err(|error| self.failed_ask(engines.name(), &error))?,
                // the version is committed: a resumed run brings the engines to it
                () = self.told_to_stop() => {
                    let reason = format!("the wait for weights {number} was given up, the run is to stop");
                    return Err(RunError::Part { part: engines.name().to_owned(), reason });
                }
                () = tokio::time::sleep(SILENCE) => self.talk_of_engines(number).await,
            }
        };
        let mut taken = Taken::default();
        for update in updates {
            match update.result {
                Ok(_) => drop(taken.by.insert(update.engine)),
                Err(failure) => drop(taken.late.insert(update.engine, failure.to_string())),
            }
        }
        if !taken.by.is_empty() {
            return Ok(taken);
        }
        let failures: Vec<String> = taken.late.iter().map(|(engine, failure)| format!("{engine}: {failure}")).collect();
        let reason = format!("no engine confirmed the new weights ({})", failures.join("; "));
        Err(RunError::Part { part: engines.name().to_owned(), reason })
    }

    /// Says which engines a long update waits for, and what is known of them.
    async fn talk_of_engines(&self, number: u64) {
        let deadline = Deadline::after_ms(STATUS_WAIT_MS);
        let Ok(engines) = ask(&self.parts.engines, deadline, EnginePoolMessage::Status).await else { return };
        let late =
            engines.iter().filter(|engine| engine.version.as_ref().map(|version| version.number) != Some(number));
        let late: Vec<String> = late
            .map(|engine| {
                let trouble = engine.trouble.as_deref().unwrap_or("no trouble reported");
                format!("{} at {} is {} ({trouble})", engine.engine, engine.url, crate::database::snake(&engine.state))
            })
            .collect();
        if !late.is_empty() {
            (self.talk)(&format!("[waiting] weights {number} are not at every engine yet: {}", late.join("; ")));
        }
    }

    fn failed_ask(&self, part: &str, error: &AskError) -> RunError {
        self.record(RunEvent::AskFailed { asker: "conductor".to_owned(), error: error.to_string() });
        RunError::Part { part: part.to_owned(), reason: error.to_string() }
    }

    fn record(&self, event: RunEvent) {
        record(&self.parts.journal, event);
    }
}

/// A wait for something that is not there.
struct Absence<'a> {
    what: &'a str,
    begun: Instant,
    said: Instant,
}

impl<'a> Absence<'a> {
    fn new(what: &'a str) -> Self {
        let now = Instant::now();
        Self { what, begun: now, said: now }
    }

    /// Waits a moment more, unless it was long enough or the run is to stop.
    async fn wait(&mut self, chain: &PolicyStep) -> Result<(), RunError> {
        let waited = self.begun.elapsed();
        let failed = |reason: String| Err(RunError::Part { part: self.what.to_owned(), reason });
        if *chain.stopping.borrow() {
            return failed("it is not there, and the run is to stop".to_owned());
        }
        if waited > Duration::from_millis(chain.config.absence_timeout_ms) {
            return failed(format!("it was not there for {} s", waited.as_secs()));
        }
        if self.said.elapsed() >= SILENCE {
            self.said = Instant::now();
            (chain.talk)(&format!("[waiting] {} is not there, for {} s now", self.what, waited.as_secs()));
        }
        tokio::time::sleep(ABSENCE_LOOK).await;
        Ok(())
    }
}

/// Sends an event to the Journal. Where the Journal is gone its supervisor ends the run, so nothing more is done here.
pub(crate) fn record(journal: &Address<JournalMessage>, event: RunEvent) {
    let _ = journal.cast(JournalMessage::Record(event));
}

/// Asks a part and turns both kinds of failure, of the question and of the work, into the part's error.
pub(crate) async fn put<M: Send + 'static, T, Failure: std::fmt::Display>(
    target: &Address<M>,
    wait_ms: u64,
    question: impl FnOnce(Reply<Result<T, Failure>>) -> M,
) -> Result<T, RunError> {
    let failed = |reason: String| RunError::Part { part: target.name().to_owned(), reason };
    let answer = ask(target, Deadline::after_ms(wait_ms), question).await.map_err(|error| failed(error.to_string()))?;
    answer.map_err(|failure| failed(failure.to_string()))
}
