//! Starting what the schedule says: each effect becomes a task whose result comes back as an input.

use greenroom_core::spawn_named;
use greenroom_messages::rollout::{FinishedGroup, RolloutManagerMessage, StartBatch};
use greenroom_messages::trainer::{TrainBatch, TrainGroup, TrainRollout};
use greenroom_messages::{BatchId, GroupId, Purpose, Step, WeightVersion};

use super::{ConductorState, checkpoint_name, name_of};
use crate::actor::{ConductorArguments, ConductorInput};
use crate::policy_step::{PolicyStep, Reached, put};
use crate::progress::BatchProgress;
use crate::{Effect, RunError, schedule};

const START_BATCH_WAIT_MS: u64 = 30_000;

impl ConductorState {
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

    pub(super) fn prepare(&mut self) {
        let warm_start = self.arguments.warm_start.clone();
        let what = if warm_start.is_some() { "warm start" } else { "preparing the initial policy" };
        self.enter(what.to_owned(), None);
        self.learning = warm_start.is_some().then_some(0.0);
        let myself = self.myself.clone();
        // a Conductor that is gone shows nothing
        let show = move |progress| drop(myself.send_message(ConductorInput::Learning(progress)));
        let (chain, dir) = (self.chain(), self.checkpoint_dir(&checkpoint_name(0)));
        self.run(
            "conductor-prepare",
            async move { chain.prepare(warm_start, dir, show).await },
            ConductorInput::Prepared,
        );
    }

    pub(super) fn publish(&mut self, number: u64) {
        self.enter(format!("publishing weights {number}"), None);
        let version = WeightVersion { run: self.arguments.run.clone(), number };
        let export = self.export_dir(number);
        let (chain, reached, mistrusted) = (self.chain(), self.reached(), self.failures > 0);
        let work = async move {
            if let Some(reached) = reached {
                chain.bring_to(&reached, mistrusted).await?;
            }
            chain.publish(version, export).await
        };
        self.run("conductor-publish", work, move |result| ConductorInput::Published(number, result));
    }

    pub(super) fn train(&mut self, step: u64) -> Result<(), RunError> {
        let batch = schedule::training_batch(step);
        let Some(progress) = self.batches.get(&batch) else {
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
        let (reached, mistrusted) = (self.reached(), self.failures > 0);
        let work = async move {
            if let Some(reached) = reached {
                chain.bring_to(&reached, mistrusted).await?;
            }
            chain.train(train, dir).await
        };
        self.run("conductor-train", work, move |result| ConductorInput::Trained(step, result));
        Ok(())
    }

    pub(super) fn start_batch(&mut self, batch: BatchId, oldest_version: u64) -> Result<(), RunError> {
        let groups = self.groups_of(batch);
        self.batches.entry(batch).or_insert_with(|| BatchProgress::new(groups, oldest_version, Vec::new()));
        self.enter(format!("rolling out {}", name_of(batch)), Some(batch));
        self.progress_ms = self.arguments.seam.clock.elapsed_ms();
        self.assert_batch(batch)
    }

    /// Asks the RolloutManager for what is missing of a batch; repeatable.
    pub(super) fn assert_batch(&mut self, batch: BatchId) -> Result<(), RunError> {
        let Some(progress) = self.batches.get(&batch) else { return Ok(()) };
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
        let next_position = request.first_position + u64::from(request.groups);
        self.arguments.database.start_batch(&request, next_position)?;
        if batch.purpose == Purpose::Train {
            self.positions.insert(batch.number, (request.first_position, next_position));
        }
        self.tell_whether_paused();
        let rollouts = self.arguments.parts.rollouts.clone();
        let ask = async move {
            put(&rollouts, START_BATCH_WAIT_MS, |reply| RolloutManagerMessage::StartBatch(request, reply)).await
        };
        self.run("conductor-start-batch", ask, move |result| ConductorInput::Accepted(batch, result));
        Ok(())
    }

    /// Where a batch begins. Measurements always begin at 0; a training batch begins where the one before it ended.
    pub(super) fn first_position(&self, batch: BatchId) -> Result<u64, RunError> {
        if batch.purpose != Purpose::Train {
            return Ok(0);
        }
        if let Some((first, _)) = self.arguments.database.batch_position(batch)? {
            return Ok(first);
        }
        Ok(self.positions.get(&(batch.number - 1)).map_or(0, |(_, next)| *next))
    }

    pub(super) fn groups_of(&self, batch: BatchId) -> u32 {
        match batch.purpose {
            Purpose::Train => self.arguments.config.groups_per_batch,
            Purpose::Evaluate => self.arguments.evaluation_tasks,
            Purpose::HeldOut => self.arguments.held_out_tasks,
        }
    }

    pub(super) fn chain(&self) -> PolicyStep {
        let ConductorArguments { parts, config, talk, .. } = &self.arguments;
        let stopping = self.stopping.subscribe();
        PolicyStep { parts: parts.clone(), config: config.clone(), talk: talk.clone(), stopping }
    }

    /// Where the run is, once its initial policy is committed.
    pub(super) fn reached(&self) -> Option<Reached> {
        let checkpoint = self.checkpoint_dir(self.checkpoint.as_deref()?);
        Some(Reached { step: Step(self.facts.committed?), checkpoint })
    }

    /// A checkpoint as the trainer names it.
    pub(super) fn checkpoint_dir(&self, name: &str) -> String {
        self.arguments.trainer_root.join("checkpoints").join(name).to_string_lossy().into_owned()
    }

    /// An export for the publisher, as the trainer names it.
    pub(super) fn export_dir(&self, version: u64) -> String {
        let exports = self.arguments.trainer_root.join("weights").join("export");
        exports.join(format!("{version:06}")).to_string_lossy().into_owned()
    }

    /// Runs work as a task; its result comes back as an input. A panic in it comes back as a failed part.
    pub(super) fn run<T: Send + 'static>(
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

fn train_group(group: &FinishedGroup) -> TrainGroup {
    let rollouts = group.rollouts.iter().filter(|rollout| rollout.outcome.is_trainable()).filter_map(|rollout| {
        Some(TrainRollout { rollout: rollout.rollout, reward: rollout.reward?, samples: rollout.samples.clone() })
    });
    TrainGroup { group: group.group, rollouts: rollouts.collect() }
}
