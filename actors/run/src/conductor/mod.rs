//! What the Conductor knows, and what it does on each input: note the fact, then start what the schedule says.

mod finish;
mod hold;
mod settings;
mod start;

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_core::Address;
use greenroom_messages::rollout::FinishedGroup;
use greenroom_messages::run::{StepFinished, StopMode, Subscription};
use greenroom_messages::trainer::{TrainReport, TrainerMessage, WarmStartReport};
use greenroom_messages::{BatchId, EngineId, Purpose, RolloutId, Step, WeightVersion};
use ractor::ActorRef;
use tokio::sync::watch;

use crate::actor::{ConductorArguments, ConductorInput};
use crate::policy_step::{Found, Reached, Taken};
use crate::progress::{AfterGroup, BatchProgress, by_batch};
use crate::report::{StepLine, talk_measurement, talk_warm_start};
use crate::signal::{self, NoSignal};
use crate::{BatchMetrics, BatchState, Facts, ResumePoint, RunError, Schedule, StepCommit, resume_point, schedule};

/// How often the batches under way are asked for again: a RolloutManager that was started anew knows of none before.
const REASSERT_MS: u64 = 5_000;
const RETRY_WAIT_MS: u64 = 2_000;
/// How many of those that are to be forgotten are named again.
const FORGOTTEN_AGAIN: usize = 8;
/// More than these cannot be told of steps: a subscriber that takes a new name each time must not fill the memory.
const MOST_SUBSCRIBERS: usize = 1_000;

/// The state of a running Conductor.
pub struct ConductorState {
    arguments: ConductorArguments,
    myself: ActorRef<ConductorInput>,
    schedule: Schedule,
    facts: Facts,
    batches: BTreeMap<BatchId, BatchProgress>,
    /// Where each training batch begins, and where the one after it does.
    positions: BTreeMap<u64, (u64, u64)>,
    measured: BTreeMap<BatchId, BatchMetrics>,
    steps: Vec<StepLine>,
    checkpoint: Option<String>,
    /// The rollouts of the step that is being trained.
    training: Vec<RolloutId>,
    training_metrics: BatchMetrics,
    failures: u32,
    /// Tells the chains under way that the run is to stop.
    stopping: watch::Sender<bool>,
    /// How far the warm start is, while there is one.
    learning: Option<f32>,
    /// Engines that did not take the newest weights, and why.
    late: BTreeMap<EngineId, String>,
    /// When the step under way began: its predecessor was committed, or measured.
    step_begun_ms: u64,
    /// When something last went on, and when batches were last asserted; milliseconds of the seam's clock.
    progress_ms: u64,
    asserted_ms: u64,
    /// Whether somebody rolled out at the last look.
    rollouts_there: bool,
    /// Whether a person holds the admission of rollouts.
    rollouts_paused: bool,
    phase: String,
    /// Who is told of finished steps, by name.
    subscribers: BTreeMap<String, Address<StepFinished>>,
    ended: bool,
}

impl std::fmt::Debug for ConductorState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ConductorState").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl ConductorState {
    /// Reads where the run goes on.
    pub(crate) fn resume(arguments: ConductorArguments, myself: ActorRef<ConductorInput>) -> Result<Self, RunError> {
        let config = &arguments.config;
        let schedule = Schedule::new(config, arguments.held_out_tasks > 0);
        let point = resume_point(&arguments.database, arguments.directory.as_ref(), &schedule, config)?;
        let now_ms = arguments.seam.clock.elapsed_ms();
        let mut state = Self {
            schedule,
            facts: Facts::default(),
            batches: BTreeMap::new(),
            positions: BTreeMap::new(),
            measured: BTreeMap::new(),
            steps: Vec::new(),
            checkpoint: None,
            training: Vec::new(),
            training_metrics: BatchMetrics::default(),
            failures: 0,
            stopping: watch::channel(false).0,
            learning: None,
            late: BTreeMap::new(),
            step_begun_ms: now_ms,
            progress_ms: now_ms,
            asserted_ms: now_ms,
            rollouts_there: true,
            rollouts_paused: false,
            phase: String::new(),
            subscribers: BTreeMap::new(),
            ended: false,
            myself,
            arguments,
        };
        state.go_on_from(point)?;
        state.keep_holding()?;
        Ok(state)
    }

    /// Takes over where the run goes on.
    fn go_on_from(&mut self, point: ResumePoint) -> Result<(), RunError> {
        let committed = point.facts.committed.unwrap_or(0);
        let stop = self.facts.stop;
        self.facts = Facts { stop, training_paused: self.facts.training_paused, ..point.facts };
        self.positions = BTreeMap::from([(committed, (0, point.next_position))]);
        self.steps = trained_steps(&point.metrics);
        self.checkpoint = point.checkpoint;
        self.batches.clear();
        self.measured.clear();
        if let Some(directory) = &self.arguments.directory {
            // a process that was lost between a commit and its line left the file one line short
            directory.replace_metrics(&self.steps)?;
        }
        for error in &point.lost {
            self.warn(format!("GR0212: {error}; what it held is made again, or left out"));
        }
        self.restore(point.groups);
        Ok(())
    }

    /// Takes groups that finished before this process began.
    fn restore(&mut self, groups: Vec<FinishedGroup>) {
        for (batch, finished) in by_batch(groups) {
            let groups = self.groups_of(batch);
            let mut progress = BatchProgress::new(groups, self.schedule.oldest_version(batch), finished);
            let standing = self.standing(&mut progress);
            if standing == AfterGroup::Complete && batch.purpose != Purpose::Train {
                self.measured.insert(batch, progress.metrics());
                self.facts.measured.push(batch);
                continue;
            }
            if standing == AfterGroup::Complete {
                self.facts.batches.insert(batch, BatchState::Complete);
            }
            self.batches.insert(batch, progress);
        }
    }

    fn standing(&self, progress: &mut BatchProgress) -> AfterGroup {
        let config = &self.arguments.config;
        progress.standing(config.min_trainable_fraction, config.batch_retries)
    }

    /// Starts: first the checkpoint, if there is one, then whatever the schedule says.
    pub(crate) fn begin(&mut self) -> Result<(), RunError> {
        let Some(reached) = self.reached() else { return self.drive() };
        self.facts.trainer_busy = true;
        self.enter(format!("loading the checkpoint of {}", reached.step), None);
        let chain = self.chain();
        let steps = self.arguments.database.committed_steps()?;
        let newest_first = steps
            .iter()
            .rev()
            .map(|step| Reached { step: Step(step.step), checkpoint: self.checkpoint_dir(&step.checkpoint) });
        let candidates = newest_first.collect();
        self.run("conductor-load", async move { chain.bring_to_newest(candidates).await }, ConductorInput::Loaded);
        Ok(())
    }

    pub(crate) fn on_accepted(&mut self, batch: BatchId, result: Result<(), RunError>) -> Result<(), RunError> {
        if let Err(error) = result {
            // the next tick asserts the batch again; a silence that lasts ends the run
            self.note(format!("{} was not accepted yet: {error}", name_of(batch)));
        }
        Ok(())
    }

    pub(crate) fn on_group(&mut self, group: FinishedGroup) -> Result<(), RunError> {
        let batch = group.group.batch;
        if self.facts.batches.get(&batch) != Some(&BatchState::Running) {
            return Ok(());
        }
        let Some(progress) = self.batches.get_mut(&batch) else { return Ok(()) };
        if progress.finished.contains_key(&group.group) {
            return Ok(());
        }
        let file = self.arguments.directory.as_ref().map(|directory| directory.write_group(&group)).transpose()?;
        self.arguments.database.finish_group(&group, file.as_deref().unwrap_or_default())?;
        self.progress_ms = self.arguments.seam.clock.elapsed_ms();
        let config = &self.arguments.config;
        match progress.take(group, config.min_trainable_fraction, config.batch_retries) {
            AfterGroup::Ignore | AfterGroup::Wait => self.show(),
            AfterGroup::Complete => return self.on_complete(batch),
            AfterGroup::Retry(reasons) => {
                let name = name_of(batch);
                self.note(format!("too few groups of {name} may be used; the dropped ones are made again: {reasons}"));
                return self.assert_batch(batch);
            }
            AfterGroup::GiveUp(reasons) => {
                let reason = format!("{} could not be made: {reasons}", name_of(batch));
                return Err(RunError::Part { part: "rollouts".to_owned(), reason });
            }
        }
        Ok(())
    }

    fn on_complete(&mut self, batch: BatchId) -> Result<(), RunError> {
        if let Some(reasons) = self.batches.get(&batch).and_then(BatchProgress::left_out) {
            self.warn(format!("{} goes on without groups that were dropped: {reasons}", name_of(batch)));
        }
        if batch.purpose == Purpose::Train {
            self.facts.batches.insert(batch, BatchState::Complete);
        } else if let Some(progress) = self.batches.remove(&batch) {
            let metrics = progress.metrics();
            (self.arguments.talk)(&talk_measurement(batch, &metrics));
            self.facts.batches.remove(&batch);
            self.facts.measured.push(batch);
            self.measured.insert(batch, metrics);
            self.step_begun_ms = self.arguments.seam.clock.elapsed_ms();
        }
        self.drive()
    }

    pub(crate) fn on_loaded(&mut self, result: Result<Found, RunError>) -> Result<(), RunError> {
        let found = result?;
        if let Some(newest) = found.damaged.first() {
            self.go_back_to(found.reached.step, newest)?;
        }
        self.facts.trainer_busy = false;
        self.step_begun_ms = self.arguments.seam.clock.elapsed_ms();
        self.drive()
    }

    /// The checkpoints after this step are lost: so are the steps, which are made again.
    fn go_back_to(&mut self, step: Step, damage: &str) -> Result<(), RunError> {
        let (first, last) = (step.0 + 1, self.facts.committed.unwrap_or(0));
        let undone = if first == last { format!("step {last} is") } else { format!("steps {first} to {last} are") };
        self.warn(format!("GR0212: {damage}; the run goes on from {step}, and {undone} made again"));
        let ConductorArguments { database, directory, config, .. } = &self.arguments;
        database.rewind_to(step.0)?;
        let point = resume_point(database, directory.as_ref(), &self.schedule, config)?;
        self.go_on_from(point)
    }

    pub(crate) fn on_learning(&mut self, progress: f32) -> Result<(), RunError> {
        self.learning = Some(progress);
        self.show();
        Ok(())
    }

    pub(crate) fn on_prepared(&mut self, result: Result<WarmStartReport, RunError>) -> Result<(), RunError> {
        self.learning = None;
        let report = match result {
            Ok(report) => report,
            Err(error) => return self.try_again(error),
        };
        self.failures = 0;
        if report.steps > 0 {
            (self.arguments.talk)(&talk_warm_start(&report));
        }
        let metrics = serde_json::json!({ "step": 0, "warm_start": report });
        self.commit(0, None, Vec::new(), metrics.to_string())
    }

    pub(crate) fn on_trained(&mut self, step: u64, result: Result<TrainReport, RunError>) -> Result<(), RunError> {
        let report = match result {
            Ok(report) => report,
            Err(error) => {
                self.facts.batches.insert(schedule::training_batch(step), BatchState::Complete);
                return self.try_again(error);
            }
        };
        self.failures = 0;
        let batch = schedule::training_batch(step);
        let wall_ms = self.arguments.seam.clock.elapsed_ms().saturating_sub(self.step_begun_ms);
        let trained = self.batches.get(&batch).into_iter().flat_map(BatchProgress::trainable);
        let line = StepLine {
            no_signal: NoSignal::of(trained, &report),
            infra_failed: self.arguments.database.infra_failed(batch)?,
            ..StepLine::new(step, &self.training_metrics, report, wall_ms)
        };
        (self.arguments.talk)(&line.in_words(self.arguments.config.steps));
        let rollouts = std::mem::take(&mut self.training);
        self.commit(step, Some(batch), rollouts, line.to_json())?;
        if let Some(directory) = &self.arguments.directory {
            directory.append_metrics(&line)?;
        }
        self.tell_subscribers(&line);
        self.steps.push(line);
        if let Some(text) = signal::warning_now(&self.steps, self.arguments.config.warn_after_steps_without_signal) {
            self.warn(text);
        }
        self.batches.remove(&batch);
        self.prune()?;
        self.drive()
    }

    pub(crate) fn on_subscribe(&mut self, subscription: Subscription) {
        let Subscription { subscriber, to } = subscription;
        let is_known = self.subscribers.contains_key(&subscriber);
        if !is_known && self.subscribers.len() >= MOST_SUBSCRIBERS {
            tracing::warn!(
                subscriber,
                "there are {MOST_SUBSCRIBERS} subscribers already: this one is not told of steps"
            );
            return;
        }
        self.subscribers.insert(subscriber, to);
    }

    /// Tells of a step; who is gone is told no more.
    fn tell_subscribers(&mut self, line: &StepLine) {
        let run = self.arguments.run.clone();
        let event = StepFinished::new(run, Step(line.step), line.rollout.reward, line.rollout.pass_at_1);
        self.subscribers.retain(|_, to| to.cast(event.clone()).is_ok());
    }

    fn commit(
        &mut self,
        step: u64,
        batch: Option<BatchId>,
        rollouts: Vec<RolloutId>,
        metrics: String,
    ) -> Result<(), RunError> {
        let checkpoint = checkpoint_name(step);
        self.arguments.seam.faults.hit("run.commit.before");
        self.arguments.database.commit_step(&StepCommit {
            step: Step(step),
            batch,
            rollouts,
            checkpoint: checkpoint.clone(),
            version: WeightVersion { run: self.arguments.run.clone(), number: step },
            next_position: self.positions.get(&step).map_or(0, |(_, next)| *next),
            metrics,
        })?;
        self.arguments.seam.faults.hit("run.commit.after");
        self.facts.committed = Some(step);
        self.step_begun_ms = self.arguments.seam.clock.elapsed_ms();
        self.facts.trainer_busy = false;
        self.checkpoint = Some(checkpoint);
        if step == 0 { self.drive() } else { Ok(()) }
    }

    /// Lets the trainer forget what the run can no longer need: checkpoints before the newest few, exports before the one
    /// that is served. A message that is lost is made up for by the next, which names the last ones again.
    fn prune(&self) -> Result<(), RunError> {
        let keep = self.arguments.config.keep_checkpoints as usize;
        let steps = self.arguments.database.committed_steps()?;
        let newest_first = || steps.iter().rev();
        let checkpoints = newest_first().skip(keep).take(FORGOTTEN_AGAIN).filter(|_| keep > 0);
        let exports = newest_first().skip(2).take(FORGOTTEN_AGAIN).map(|step| self.export_dir(step.step));
        let forgotten = checkpoints.map(|step| self.checkpoint_dir(&step.checkpoint)).chain(exports).collect();
        // a trainer that is gone forgets with the next message
        let _ = self.arguments.parts.trainer.cast(TrainerMessage::Forget(forgotten));
        Ok(())
    }

    pub(crate) fn on_published(&mut self, version: u64, result: Result<Taken, RunError>) -> Result<(), RunError> {
        match result {
            Ok(taken) => self.hear_of_late_engines(version, taken),
            Err(error) => return self.try_again(error),
        }
        self.failures = 0;
        self.facts.trainer_busy = false;
        self.facts.serving = Some(version);
        self.drive()
    }

    /// Says which engines fell behind with this version, each once, and which have caught up.
    fn hear_of_late_engines(&mut self, version: u64, taken: Taken) {
        let before = std::mem::replace(&mut self.late, taken.late);
        for (engine, reason) in self.late.iter().filter(|(engine, _)| !before.contains_key(*engine)) {
            self.warn(format!(
                "GR0211: the run goes on without engine {engine}, which did not take weights {version}: {reason}"
            ));
        }
        for engine in before.keys().filter(|engine| taken.by.contains(*engine)) {
            self.note(format!("engine {engine} has taken weights {version} and serves again"));
        }
    }

    /// Starts the failed chain again after a wait, unless it failed too often or the run is to stop.
    fn try_again(&mut self, error: RunError) -> Result<(), RunError> {
        if self.facts.stop.is_some() {
            self.facts.trainer_busy = false;
            return self.drive();
        }
        self.failures += 1;
        if self.failures > self.arguments.config.step_retries {
            return Err(error);
        }
        self.note(format!("{error}; tried again ({} of {})", self.failures, self.arguments.config.step_retries));
        // the trainer stays busy in the meantime, or the schedule would start the same chain at once
        self.facts.trainer_busy = true;
        let wait = Duration::from_millis(RETRY_WAIT_MS * u64::from(self.failures));
        self.myself.send_after(wait, || ConductorInput::Retry);
        Ok(())
    }

    /// The wait after a failure is over.
    pub(crate) fn on_retry(&mut self) -> Result<(), RunError> {
        self.facts.trainer_busy = false;
        self.drive()
    }

    pub(crate) fn on_stop(&mut self, mode: StopMode) -> Result<(), RunError> {
        self.facts.stop = Some(mode);
        if self.learning.is_some() {
            let text =
                "the warm start stops at its next optimizer step; it cannot go on half-way: --resume starts it anew";
            self.note(text.to_owned());
        }
        self.stopping.send_replace(true);
        self.drive()
    }

    /// The engines count as not having the present weights, so that the schedule publishes them next.
    pub(crate) fn on_republish(&mut self) -> Result<(), RunError> {
        self.facts.serving = None;
        self.drive()
    }

    pub(crate) fn on_tick(&mut self) -> Result<(), RunError> {
        let now_ms = self.arguments.seam.clock.elapsed_ms();
        let running: Vec<BatchId> = self.running().collect();
        let silence_ms = now_ms.saturating_sub(self.progress_ms);
        if !running.is_empty() && !self.rollouts_paused && silence_ms > self.arguments.config.batch_silence_ms {
            let names: Vec<String> = running.iter().map(|batch| name_of(*batch)).collect();
            let reason = format!("no group of {} finished for {} s", names.join(", "), silence_ms / 1_000);
            return Err(RunError::Part { part: "rollouts".to_owned(), reason });
        }
        let there = self.arguments.parts.rollouts.is_bound();
        let is_back = there && !std::mem::replace(&mut self.rollouts_there, there);
        if is_back || now_ms.saturating_sub(self.asserted_ms) >= REASSERT_MS {
            self.asserted_ms = now_ms;
            self.tell_whether_paused();
            for batch in running {
                self.assert_batch(batch)?;
            }
        }
        Ok(())
    }

    fn running(&self) -> impl Iterator<Item = BatchId> {
        self.facts.batches.iter().filter(|(_, state)| **state == BatchState::Running).map(|(batch, _)| *batch)
    }
}

/// The lines of trained steps; that of step 0 tells of the warm start only.
fn trained_steps(metrics: &[String]) -> Vec<StepLine> {
    let lines = metrics.iter().filter_map(|line| serde_json::from_str::<StepLine>(line).ok());
    lines.filter(|line| line.step > 0).collect()
}

fn checkpoint_name(step: u64) -> String {
    format!("step-{step:06}")
}

fn name_of(batch: BatchId) -> String {
    match batch.purpose {
        Purpose::Train => format!("batch {}", batch.number),
        Purpose::Evaluate => format!("the evaluation after step {}", batch.number),
        Purpose::HeldOut => format!("the held-out tasks after step {}", batch.number),
    }
}
