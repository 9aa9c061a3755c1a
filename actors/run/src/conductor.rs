//! What the Conductor knows and does on each input.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_core::spawn_named;
use greenroom_messages::rollout::{BatchAccepted, FinishedGroup, RolloutManagerMessage, StartBatch};
use greenroom_messages::run::{RunEvent, RunStatus, StopMode};
use greenroom_messages::trainer::{TrainBatch, TrainGroup, TrainReport, TrainRollout, WarmStartReport};
use greenroom_messages::{BatchId, GroupId, Purpose, RolloutId, Step, WeightVersion};
use ractor::ActorRef;

use crate::actor::{ConductorArguments, ConductorInput, RunEnd};
use crate::policy_step::{Held, PolicyStep, put, record};
use crate::progress::{AfterGroup, BatchProgress, Batches};
use crate::report::{StepLine, talk_measurement};
use crate::{
    BatchMetrics, BatchState, Effect, Facts, RunError, RunSummary, Schedule, StepCommit, resume_point, schedule,
};

const START_BATCH_WAIT_MS: u64 = 30_000;
const REASSERT_MS: u64 = 30_000;
const RETRY_WAIT_MS: u64 = 2_000;

/// The state of a running Conductor.
pub struct ConductorState {
    arguments: ConductorArguments,
    myself: ActorRef<ConductorInput>,
    schedule: Schedule,
    facts: Facts,
    batches: Batches,
    /// Where each training batch begins, and where the one after it does.
    positions: BTreeMap<u64, (u64, u64)>,
    measured: BTreeMap<BatchId, BatchMetrics>,
    steps: Vec<StepLine>,
    checkpoint: Option<String>,
    /// The rollouts of the step that is being trained.
    training: Vec<RolloutId>,
    training_metrics: BatchMetrics,
    failures: u32,
    /// When something last went on, and when batches were last asserted; milliseconds of the seam's clock.
    progress_ms: u64,
    asserted_ms: u64,
    phase: String,
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
        let committed = point.facts.committed.unwrap_or(0);
        let now_ms = arguments.seam.clock.elapsed_ms();
        let mut state = Self {
            schedule,
            facts: point.facts,
            batches: Batches::default(),
            positions: BTreeMap::from([(committed, (0, point.next_position))]),
            measured: BTreeMap::new(),
            steps: point.metrics.iter().filter_map(|line| serde_json::from_str(line).ok()).collect(),
            checkpoint: point.checkpoint,
            training: Vec::new(),
            training_metrics: BatchMetrics::default(),
            failures: 0,
            progress_ms: now_ms,
            asserted_ms: now_ms,
            phase: String::new(),
            ended: false,
            myself,
            arguments,
        };
        state.restore(point.groups);
        Ok(state)
    }

    /// Takes groups that finished before this process began.
    fn restore(&mut self, groups: Vec<FinishedGroup>) {
        for (batch, finished) in Batches::sorted(groups) {
            let groups = self.groups_of(batch);
            let oldest = if batch.purpose == Purpose::Train {
                (batch.number - 1).saturating_sub(self.arguments.config.schedule.lag())
            } else {
                batch.number
            };
            let mut progress = BatchProgress::new(groups, oldest, finished);
            let standing = self.standing(&mut progress);
            if standing == AfterGroup::Complete && batch.purpose != Purpose::Train {
                self.measured.insert(batch, progress.metrics());
                self.facts.measured.push(batch);
                continue;
            }
            if standing == AfterGroup::Complete {
                self.facts.batches.insert(batch, BatchState::Complete);
            }
            self.batches.0.insert(batch, progress);
        }
    }

    fn standing(&self, progress: &mut BatchProgress) -> AfterGroup {
        let config = &self.arguments.config;
        progress.standing(config.min_trainable_fraction, config.batch_retries)
    }

    /// Starts: first the checkpoint, if there is one, then whatever the schedule says.
    pub(crate) fn begin(&mut self) -> Result<(), RunError> {
        let Some(held) = self.held() else { return self.drive() };
        self.facts.trainer_busy = true;
        self.enter(format!("loading the checkpoint of {}", held.step), None);
        let chain = self.chain();
        self.run("conductor-load", async move { chain.bring_to(&held, true).await }, ConductorInput::Loaded);
        Ok(())
    }

    /// Starts what the schedule says.
    pub(crate) fn drive(&mut self) -> Result<(), RunError> {
        for effect in self.schedule.next(&mut self.facts) {
            match effect {
                Effect::Prepare => self.prepare(),
                Effect::Publish(version) => self.publish(version),
                Effect::StartBatch { batch, oldest_version } => self.start_batch(batch, oldest_version)?,
                Effect::Train(step) => self.train(step)?,
                Effect::End => self.end()?,
            }
        }
        self.show();
        Ok(())
    }

    fn prepare(&mut self) {
        let warm_start = self.arguments.warm_start.clone();
        let what = if warm_start.is_some() { "warm start" } else { "preparing the initial policy" };
        self.enter(what.to_owned(), None);
        let (chain, dir) = (self.chain(), self.checkpoint_dir(&checkpoint_name(0)));
        self.run("conductor-prepare", async move { chain.prepare(warm_start, dir).await }, ConductorInput::Prepared);
    }

    fn publish(&mut self, number: u64) {
        self.enter(format!("publishing weights {number}"), None);
        let version = WeightVersion { run: self.arguments.run.clone(), number };
        let export = self
            .arguments
            .directory
            .as_ref()
            .map_or_else(String::new, |directory| directory.export(number).to_string_lossy().into_owned());
        let (chain, held, mistrusted) = (self.chain(), self.held(), self.failures > 0);
        let work = async move {
            if let Some(held) = held {
                chain.bring_to(&held, mistrusted).await?;
            }
            chain.publish(version, export).await
        };
        self.run("conductor-publish", work, move |result| ConductorInput::Published(number, result));
    }

    fn train(&mut self, step: u64) -> Result<(), RunError> {
        let batch = schedule::training_batch(step);
        let Some(progress) = self.batches.0.get(&batch) else {
            return Err(RunError::CommitRefused { step: Step(step), reason: format!("{batch} is not at hand") });
        };
        self.training_metrics = progress.metrics();
        let groups: Vec<TrainGroup> = progress.trainable().map(train_group).collect();
        let rollouts = groups.iter().flat_map(|group| &group.rollouts);
        self.training = rollouts.map(|rollout| rollout.rollout).collect();
        self.enter(format!("training step {step}"), Some(batch));
        let temperature = self.arguments.config.temperature;
        let train = TrainBatch { step: Step(step), groups, temperature };
        let (chain, dir) = (self.chain(), self.checkpoint_dir(&checkpoint_name(step)));
        let (held, mistrusted) = (self.held(), self.failures > 0);
        let work = async move {
            if let Some(held) = held {
                chain.bring_to(&held, mistrusted).await?;
            }
            chain.train(train, dir).await
        };
        self.run("conductor-train", work, move |result| ConductorInput::Trained(step, result));
        Ok(())
    }

    fn start_batch(&mut self, batch: BatchId, oldest_version: u64) -> Result<(), RunError> {
        let groups = self.groups_of(batch);
        self.batches.0.entry(batch).or_insert_with(|| BatchProgress::new(groups, oldest_version, Vec::new()));
        self.enter(format!("rolling out {}", name_of(batch)), Some(batch));
        self.progress_ms = self.arguments.seam.clock.elapsed_ms();
        self.assert_batch(batch)
    }

    /// Asks the RolloutManager for what is missing of a batch; repeatable.
    fn assert_batch(&mut self, batch: BatchId) -> Result<(), RunError> {
        let Some(progress) = self.batches.0.get(&batch) else { return Ok(()) };
        let config = &self.arguments.config;
        let samples =
            if batch.purpose == Purpose::Train { config.samples_per_group } else { config.evaluation.samples_per_task };
        let request = StartBatch {
            batch,
            first_position: self.first_position(batch)?,
            groups: progress.groups,
            samples_per_group: samples,
            temperature: config.temperature,
            oldest_version: progress.oldest_version,
            finished_groups: progress.finished.keys().copied().collect::<Vec<GroupId>>(),
            first_attempt: self.arguments.database.next_attempt(batch)?,
        };
        let accepted = BatchAccepted {
            groups: (0..request.groups).map(|index| GroupId { batch, index }).collect(),
            next_position: request.first_position + u64::from(request.groups),
            tasks: 0,
        };
        self.arguments.database.start_batch(&request, &accepted)?;
        if batch.purpose == Purpose::Train {
            self.positions.insert(batch.number, (request.first_position, accepted.next_position));
        }
        let rollouts = self.arguments.parts.rollouts.clone();
        let ask = async move {
            put(&rollouts, START_BATCH_WAIT_MS, |reply| RolloutManagerMessage::StartBatch(request, reply)).await
        };
        self.run("conductor-start-batch", ask, move |result| ConductorInput::Accepted(batch, result));
        Ok(())
    }

    /// Where a batch begins. Measurements always begin at 0; a training batch begins where the one before it ended.
    fn first_position(&self, batch: BatchId) -> Result<u64, RunError> {
        if batch.purpose != Purpose::Train {
            return Ok(0);
        }
        if let Some((first, _)) = self.arguments.database.batch_position(batch)? {
            return Ok(first);
        }
        Ok(self.positions.get(&(batch.number - 1)).map_or(0, |(_, next)| *next))
    }

    fn groups_of(&self, batch: BatchId) -> u32 {
        match batch.purpose {
            Purpose::Train => self.arguments.config.groups_per_batch,
            Purpose::Evaluate => self.arguments.evaluation_tasks,
            Purpose::HeldOut => self.arguments.held_out_tasks,
        }
    }

    pub(crate) fn on_accepted(
        &mut self,
        batch: BatchId,
        result: Result<BatchAccepted, RunError>,
    ) -> Result<(), RunError> {
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
        let Some(progress) = self.batches.0.get_mut(&batch) else { return Ok(()) };
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
            AfterGroup::Retry => {
                self.note(format!("too few groups of {} may be used; the dropped ones are made again", name_of(batch)));
                return self.assert_batch(batch);
            }
            AfterGroup::GiveUp => {
                let reason = format!("{} could not be made: {}", name_of(batch), progress.reasons());
                return Err(RunError::Part { part: "rollouts".to_owned(), reason });
            }
        }
        Ok(())
    }

    fn on_complete(&mut self, batch: BatchId) -> Result<(), RunError> {
        if batch.purpose == Purpose::Train {
            self.facts.batches.insert(batch, BatchState::Complete);
        } else if let Some(progress) = self.batches.0.remove(&batch) {
            let metrics = progress.metrics();
            (self.arguments.talk)(&talk_measurement(batch, &metrics));
            self.facts.batches.remove(&batch);
            self.facts.measured.push(batch);
            self.measured.insert(batch, metrics);
        }
        self.drive()
    }

    pub(crate) fn on_loaded(&mut self, result: Result<(), RunError>) -> Result<(), RunError> {
        result?;
        self.facts.trainer_busy = false;
        self.drive()
    }

    pub(crate) fn on_prepared(&mut self, result: Result<WarmStartReport, RunError>) -> Result<(), RunError> {
        let report = match result {
            Ok(report) => report,
            Err(error) => return self.try_again(error),
        };
        self.failures = 0;
        if report.steps > 0 {
            (self.arguments.talk)(&format!(
                "warm start: {} steps over {} tokens, loss {:.3} at first, {:.3} at last, {:.0} s",
                report.steps,
                report.tokens,
                report.first_loss,
                report.last_loss,
                report.elapsed_ms as f64 / 1_000.0
            ));
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
        let line = StepLine::new(step, &self.training_metrics, report);
        (self.arguments.talk)(&line.in_words(self.arguments.config.steps));
        let batch = schedule::training_batch(step);
        let rollouts = std::mem::take(&mut self.training);
        self.commit(step, Some(batch), rollouts, line.to_json())?;
        if let Some(directory) = &self.arguments.directory {
            directory.append_metrics(&line)?;
        }
        self.steps.push(line);
        self.batches.0.remove(&batch);
        self.prune()?;
        self.drive()
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
        self.facts.trainer_busy = false;
        self.checkpoint = Some(checkpoint);
        if step == 0 { self.drive() } else { Ok(()) }
    }

    fn prune(&self) -> Result<(), RunError> {
        let keep = self.arguments.config.keep_checkpoints as usize;
        let Some(directory) = self.arguments.directory.as_ref().filter(|_| keep > 0) else { return Ok(()) };
        let steps = self.arguments.database.committed_steps()?;
        let kept: Vec<String> = steps.iter().rev().take(keep).map(|step| step.checkpoint.clone()).collect();
        directory.prune(&kept, self.facts.committed.unwrap_or(0).saturating_sub(1))
    }

    pub(crate) fn on_published(&mut self, version: u64, result: Result<(), RunError>) -> Result<(), RunError> {
        if let Err(error) = result {
            return self.try_again(error);
        }
        self.failures = 0;
        self.facts.trainer_busy = false;
        self.facts.serving = Some(version);
        self.drive()
    }

    /// Starts the failed chain again after a wait, unless it failed too often.
    fn try_again(&mut self, error: RunError) -> Result<(), RunError> {
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
        self.drive()
    }

    pub(crate) fn on_pause(&mut self, paused: bool) -> Result<(), RunError> {
        self.facts.training_paused = paused;
        self.drive()
    }

    pub(crate) fn on_tick(&mut self) -> Result<(), RunError> {
        let now_ms = self.arguments.seam.clock.elapsed_ms();
        let running: Vec<BatchId> = self.running().collect();
        let silence_ms = now_ms.saturating_sub(self.progress_ms);
        if !running.is_empty() && silence_ms > self.arguments.config.batch_silence_ms {
            let names: Vec<String> = running.iter().map(|batch| name_of(*batch)).collect();
            let reason = format!("no group of {} finished for {} s", names.join(", "), silence_ms / 1_000);
            return Err(RunError::Part { part: "rollouts".to_owned(), reason });
        }
        if now_ms.saturating_sub(self.asserted_ms) >= REASSERT_MS {
            self.asserted_ms = now_ms;
            for batch in running {
                self.assert_batch(batch)?;
            }
        }
        Ok(())
    }

    fn running(&self) -> impl Iterator<Item = BatchId> {
        self.facts.batches.iter().filter(|(_, state)| **state == BatchState::Running).map(|(batch, _)| *batch)
    }

    /// The run is over, as planned or as told.
    fn end(&mut self) -> Result<(), RunError> {
        for batch in self.running().collect::<Vec<_>>() {
            let _ = self.arguments.parts.rollouts.cast(RolloutManagerMessage::CancelBatch(batch));
        }
        let summary = self.summary()?;
        let stopped = self.facts.stop.is_some() && self.facts.committed != Some(self.arguments.config.steps);
        if let Some(directory) = &self.arguments.directory {
            let text = serde_json::to_string_pretty(&summary).unwrap_or_default();
            directory.replace("summary.json", text.as_bytes())?;
        }
        let ending = if stopped { "stopped" } else { "completed" };
        self.arguments.database.end_process(ending)?;
        self.finish(ending, if stopped { RunEnd::Stopped(summary) } else { RunEnd::Completed(summary) });
        Ok(())
    }

    fn summary(&self) -> Result<RunSummary, RunError> {
        let reward = |purpose, number| self.measured.get(&BatchId { purpose, number }).map(|metrics| metrics.reward);
        let last = self.facts.committed.filter(|committed| *committed > 0);
        let mut summary = RunSummary {
            steps: self.facts.committed.unwrap_or(0),
            eval_before: reward(Purpose::Evaluate, 0),
            eval_after: last.and_then(|step| reward(Purpose::Evaluate, step)),
            held_out_before: reward(Purpose::HeldOut, 0),
            held_out_after: last.and_then(|step| reward(Purpose::HeldOut, step)),
            pass_at_1_first: self.steps.first().map(|line| line.rollout.pass_at_1),
            pass_at_1_last: self.steps.last().map(|line| line.rollout.pass_at_1),
            ..RunSummary::default()
        };
        summary.count(&self.arguments.database, self.arguments.seam.clock.now_ms())?;
        Ok(summary)
    }

    /// A part failed for good: end the run and say which and why.
    pub(crate) fn fail(&mut self, error: &RunError) {
        let text = format!("{}: {error}", error.code());
        tracing::error!(code = error.code(), %error, "the run ends");
        if let Err(second) = self.arguments.database.end_process(&text) {
            tracing::error!(%second, "the end could not be written");
        }
        self.finish("failed", RunEnd::Failed(text));
    }

    fn finish(&mut self, phase: &str, end: RunEnd) {
        self.ended = true;
        self.enter(phase.to_owned(), None);
        self.show();
        (self.arguments.on_end)(end);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn status(&self) -> RunStatus {
        let batch = self.running().next().and_then(|batch| self.batches.0.get(&batch));
        RunStatus {
            phase: self.phase.clone(),
            step: Step(self.facts.committed.unwrap_or(0)),
            steps: self.arguments.config.steps,
            groups_finished: batch.map_or(0, |batch| batch.finished.len() as u32),
            groups: batch.map_or(0, |batch| batch.groups),
            reward: self.steps.last().map(|line| line.rollout.reward as f32),
            eval_before: self
                .measured
                .get(&BatchId { purpose: Purpose::Evaluate, number: 0 })
                .map(|metrics| metrics.reward as f32),
            ended: self.ended,
        }
    }

    fn show(&self) {
        self.arguments.progress.send_replace(self.status());
    }

    fn enter(&mut self, phase: String, batch: Option<BatchId>) {
        self.phase.clone_from(&phase);
        record(&self.arguments.parts.journal, RunEvent::PhaseChanged { phase, batch });
        self.show();
    }

    fn note(&self, text: String) {
        tracing::warn!(text, "conductor");
        record(&self.arguments.parts.journal, RunEvent::Note { source: "conductor".to_owned(), text });
    }

    fn chain(&self) -> PolicyStep {
        PolicyStep { parts: self.arguments.parts.clone(), config: self.arguments.config.clone() }
    }

    /// Where the run is, once its initial policy is committed.
    fn held(&self) -> Option<Held> {
        let checkpoint = self.checkpoint_dir(self.checkpoint.as_deref()?);
        Some(Held { step: Step(self.facts.committed?), checkpoint })
    }

    fn checkpoint_dir(&self, name: &str) -> String {
        self.arguments
            .directory
            .as_ref()
            .map_or_else(|| name.to_owned(), |directory| directory.checkpoint(name).to_string_lossy().into_owned())
    }

    /// Runs work as a task; its result comes back as an input. A panic in it comes back as a failed part.
    fn run<T: Send + 'static>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, RunError>> + Send + 'static,
        finished: impl FnOnce(Result<T, RunError>) -> ConductorInput + Send + 'static,
    ) {
        let myself = self.myself.clone();
        let part = name.to_owned();
        let task = spawn_named(name, work);
        spawn_named(format!("{name}-result"), async move {
            let result = match task.await {
                Ok(Some(result)) => result,
                _ => Err(RunError::Part { part, reason: "the task panicked; see the log".to_owned() }),
            };
            let _ = myself.send_message(finished(result));
        });
    }
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

fn train_group(group: &FinishedGroup) -> TrainGroup {
    let rollouts = group.rollouts.iter().filter(|rollout| rollout.outcome.is_trainable()).filter_map(|rollout| {
        Some(TrainRollout { rollout: rollout.rollout, reward: rollout.reward?, samples: rollout.samples.clone() })
    });
    TrainGroup { group: group.group, rollouts: rollouts.collect() }
}
