//! The learner: owner of all tensors, with one synchronous method for each thing a trainer can be asked.
//!
//! It lives on one thread. Each method first checks that it is allowed ([`TrainerState`]) and that its input is sound, and
//! only then touches a weight. An error before the first change leaves everything as it was; an error after it (out of
//! memory half-way, a stop inside a warm start) makes the state `Lost`, and only loading a checkpoint helps.
//! Same weights, same batch, same settings and thread count give the same bits.

use std::path::{Path, PathBuf};

use greenroom_messages::trainer::{ExportWeights, SaveCheckpoint, TrainBatch, WarmStart, WarmStartReport};
use greenroom_messages::{Step, WeightVersion};
use tch::{Device, Kind, Tensor};

use crate::batch::{self, ReadyBatch};
use crate::checkpoint::{self, CheckpointState};
use crate::config::{DtypeChoice, OldLogprobs, OptimizerConfig, ScheduleConfig, TrainerConfig};
use crate::device::DeviceChoice;
use crate::error::TrainerError;
use crate::gradient_norm;
use crate::loss::LossSettings;
use crate::loss_sums::LossSums;
use crate::metrics::StepMetrics;
use crate::model::PolicyModel;
use crate::optimizer::AdamW;
use crate::parameters::ParameterSet;
use crate::passes;
use crate::policy_model::DecoderModel;
use crate::progress::Progress;
use crate::samples::{Limits, ReadySample};
use crate::schedule;
use crate::state::TrainerState;
use crate::warm_start;

/// A trainer's tensors and what may be done with them.
pub struct Learner {
    config: TrainerConfig,
    /// The directory that the policy was opened from, where it was.
    origin: Option<PathBuf>,
    model: Box<dyn PolicyModel>,
    export_kind: Kind,
    parameters: ParameterSet,
    optimizer: AdamW,
    reference: Option<Box<dyn PolicyModel>>,
    state: TrainerState,
    weight_version: Option<WeightVersion>,
    progress: Progress,
    /// Whether the present call has changed a weight or moment.
    changed: bool,
}

impl Learner {
    /// Opens the policy of a Hugging Face directory on the configured device.
    ///
    /// # Errors
    /// [`TrainerError::InvalidConfig`], [`TrainerError::Device`], [`TrainerError::Policy`].
    pub fn open(config: TrainerConfig, model_dir: &Path, progress: Progress) -> Result<Self, TrainerError> {
        config.validate()?;
        tch::set_num_threads(config.cpu_threads);
        let device = DeviceChoice::parse(&config.device)?.resolve()?;
        let kind = kind_on(config.compute_dtype, device);
        let export_kind =
            if config.export_dtype == DtypeChoice::Auto { kind } else { kind_on(config.export_dtype, device) };
        let model = DecoderModel::open(model_dir, device, kind)?;
        let learner = Self::with_model(config, Box::new(model), export_kind, progress)?;
        Ok(Self { origin: Some(model_dir.to_owned()), ..learner })
    }

    /// Trains any model; `export_kind` is the element type of exported weights.
    ///
    /// # Errors
    /// [`TrainerError::InvalidConfig`], [`TrainerError::Tensor`].
    pub fn with_model(
        config: TrainerConfig,
        model: Box<dyn PolicyModel>,
        export_kind: Kind,
        progress: Progress,
    ) -> Result<Self, TrainerError> {
        config.validate()?;
        let parameters = ParameterSet::new(model.named_parameters())?;
        let optimizer = AdamW::new(&parameters)?;
        Ok(Self {
            config,
            origin: None,
            model,
            export_kind,
            parameters,
            optimizer,
            reference: None,
            state: TrainerState::default(),
            weight_version: None,
            progress,
            changed: false,
        })
    }

    /// The last finished step.
    pub fn step(&self) -> Step {
        self.state.step()
    }

    /// The f32 parameters by name, for comparison.
    pub fn masters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.parameters.masters()
    }

    /// Nothing is known of the tensors any more (a panic on the learner's thread).
    pub fn lose(&mut self, cause: &str) {
        self.state.lose(cause);
    }

    /// Trains on one batch. A step whose gradient is not finite is left out and counted in
    /// [`StepMetrics::skipped_steps`]; the batch then counts as done.
    ///
    /// # Errors
    /// [`TrainerError::InvalidBatch`], [`TrainerError::SampleTooLong`], [`TrainerError::Lost`],
    /// [`TrainerError::Stopped`], [`TrainerError::Tensor`], [`TrainerError::Policy`].
    pub fn train(&mut self, batch: &TrainBatch) -> Result<StepMetrics, TrainerError> {
        self.state.may_train(batch.step)?;
        self.guarded(format!("training on the batch of {}", batch.step), |learner| {
            let metrics = learner.train_batch(batch)?;
            learner.state.step_finished();
            learner.progress.settle();
            Ok(metrics)
        })
    }

    /// Learns demonstrations by supervised learning with an optimizer of its own.
    ///
    /// # Errors
    /// As [`Learner::train`]; [`TrainerError::NonFiniteGradient`] too.
    pub fn warm_start(&mut self, request: &WarmStart) -> Result<WarmStartReport, TrainerError> {
        self.warm_start_while(request, &|| true)
    }

    /// As [`Learner::warm_start`], but stops at the next optimizer step once `is_wanted` says no: the state is then `Lost`,
    /// since half a warm start is no policy that a run could go on with.
    ///
    /// # Errors
    /// As [`Learner::warm_start`]; [`TrainerError::Stopped`] when it was not wanted any more.
    pub fn warm_start_while(
        &mut self,
        request: &WarmStart,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<WarmStartReport, TrainerError> {
        self.begin_anew()?;
        self.state.may_warm_start()?;
        self.guarded("warm start".to_owned(), |learner| {
            let report = learner.learn_demonstrations(request, is_wanted)?;
            learner.progress.settle();
            Ok(report)
        })
    }

    /// What a warm start that broke off left is thrown away: the policy is opened again. Anything else is left alone.
    fn begin_anew(&mut self) -> Result<(), TrainerError> {
        let Some(origin) = self.origin.clone() else { return Ok(()) };
        if self.state.usable().is_err() && self.progress.status().fresh {
            *self = Self::open(self.config.clone(), &origin, self.progress.clone())?;
        }
        Ok(())
    }

    /// Writes the weights as a Hugging Face directory.
    ///
    /// # Errors
    /// [`TrainerError::Lost`], [`TrainerError::InvalidBatch`] for a version that is not of the learner's own step,
    /// [`TrainerError::Policy`], [`TrainerError::CheckpointIo`].
    pub fn export(&mut self, request: &ExportWeights) -> Result<(), TrainerError> {
        self.state.may_export(request.version.number)?;
        let dir = Path::new(&request.dir);
        refuse_foreign_export(dir)?;
        self.guarded(format!("exporting {}", request.version), |learner| {
            let masters: Vec<(String, Tensor)> = learner
                .parameters
                .masters()
                .map(|(name, master)| Ok((name.to_owned(), master.f_detach()?)))
                .collect::<Result<_, TrainerError>>()?;
            learner.model.write(&masters, learner.export_kind, dir)?;
            learner.weight_version = Some(request.version.clone());
            Ok(())
        })
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// [`TrainerError::Lost`], [`TrainerError::InvalidBatch`] for another step, [`TrainerError::CheckpointIo`].
    pub fn save(&mut self, request: &SaveCheckpoint) -> Result<(), TrainerError> {
        self.state.may_save(request.step)?;
        self.guarded(format!("saving {}", request.step), |learner| {
            let state = CheckpointState {
                step: request.step.0,
                optimizer_steps: learner.optimizer.steps(),
                weight_version: learner.weight_version.as_ref().map(WeightVersion::to_string),
                optimizer: learner.config.optimizer.clone(),
                schedule: learner.config.schedule.clone(),
                ..CheckpointState::default()
            };
            let own_reference = learner.config.reference_dir.is_none();
            let reference = learner.reference.as_ref().filter(|_| own_reference).map(|model| model.named_parameters());
            let dir = Path::new(&request.dir);
            checkpoint::save(dir, &state, &learner.parameters, &learner.optimizer, reference.as_deref())?;
            learner.progress.settle();
            Ok(())
        })
    }

    /// Replaces everything by a checkpoint; also the way out of `Lost`.
    ///
    /// # Errors
    /// [`TrainerError::CheckpointIo`], [`TrainerError::CheckpointDamaged`], [`TrainerError::CheckpointMismatch`].
    pub fn load(&mut self, dir: &Path) -> Result<Step, TrainerError> {
        self.guarded(format!("loading {}", dir.display()), |learner| {
            let loaded = checkpoint::load(dir, &learner.parameters)?;
            let version = match &loaded.state.weight_version {
                Some(text) => Some(text.parse().map_err(|_| TrainerError::CheckpointDamaged {
                    path: dir.to_owned(),
                    reason: format!("weight version {text:?}"),
                })?),
                None => None,
            };
            warn_of_changed_settings(&loaded.state, &learner.config);
            let reference = match &loaded.reference {
                Some(tensors) => Some(learner.model.frozen(tensors)?),
                None => None,
            };
            learner.changed = true;
            learner.parameters.clear_gradients();
            learner.parameters.restore(&loaded.masters)?;
            learner.optimizer.restore(&loaded.first, &loaded.second, loaded.state.optimizer_steps)?;
            learner.reference = reference;
            learner.weight_version = version;
            learner.state.loaded(Step(loaded.state.step));
            learner.progress.settle();
            Ok(learner.state.step())
        })
    }

    /// Runs one request: progress around it, and `Lost` when it fails after its first change.
    fn guarded<T>(
        &mut self,
        activity: String,
        work: impl FnOnce(&mut Self) -> Result<T, TrainerError>,
    ) -> Result<T, TrainerError> {
        self.progress.begin(activity.clone());
        self.changed = false;
        let result = work(self);
        if let (Err(error), true) = (&result, self.changed) {
            self.state.lose(format!("{activity} failed half-way: {error}"));
        }
        self.progress.idle(self.state.step());
        result
    }

    fn limits(&self) -> Limits {
        Limits { vocabulary: self.model.vocabulary(), max_tokens: self.model.max_tokens() }
    }

    fn train_batch(&mut self, batch: &TrainBatch) -> Result<StepMetrics, TrainerError> {
        let mut ready = batch::prepare(batch, &self.config, self.limits())?;
        let settings = LossSettings {
            loss: self.config.loss.clone(),
            temperature: f64::from(batch.temperature),
            chunk_tokens: self.config.logits_chunk_tokens,
        };
        let parts = self.config.optimizer_steps_per_batch.min(ready.rollouts).max(1);
        passes::plan(&ready.samples, self.config.tokens_per_micro_batch)?;
        self.add_other_logprobs(&mut ready, parts, &settings)?;

        let mut metrics = StepMetrics::of(&ready.advantages);
        let mut sums = LossSums::default();
        for index in 0..parts {
            let samples = batch::part(&ready, index, parts, &self.config.loss);
            self.train_part(&samples, &settings, &mut metrics, &mut sums)?;
        }
        metrics.set_means(&sums, parts);
        Ok(metrics)
    }

    /// Forward passes that the loss compares with: the reference policy, and the policy before this batch.
    fn add_other_logprobs(
        &mut self,
        ready: &mut ReadyBatch,
        parts: usize,
        settings: &LossSettings,
    ) -> Result<(), TrainerError> {
        let loss = &self.config.loss;
        let needs_reference = loss.kl_coefficient != 0.0;
        // With one optimizer step the policy before the batch is the one of the training pass itself.
        let needs_old_pass = loss.old_logprobs == OldLogprobs::Recompute && parts > 1;
        if loss.old_logprobs == OldLogprobs::Rollout {
            for sample in &mut ready.samples {
                sample.old_logprobs = Some(sample.rollout_logprobs.clone());
            }
        }
        if !needs_reference && !needs_old_pass {
            return Ok(());
        }
        let active: Vec<usize> =
            (0..ready.samples.len()).filter(|index| batch::has_gradient(&ready.samples[*index], loss)).collect();
        let samples: Vec<ReadySample> = active.iter().map(|index| ready.samples[*index].clone()).collect();
        let micro_batches = passes::plan(&samples, self.config.tokens_per_micro_batch)?;
        if needs_old_pass {
            let scores = passes::score(self.model.as_ref(), &samples, &micro_batches, settings, &self.progress)?;
            for (index, values) in active.iter().zip(scores) {
                ready.samples[*index].old_logprobs = Some(values);
            }
        }
        if needs_reference {
            let reference = match self.reference.take() {
                Some(reference) => reference,
                None => self.make_reference()?,
            };
            let scores = passes::score(reference.as_ref(), &samples, &micro_batches, settings, &self.progress);
            self.reference = Some(reference);
            for (index, values) in active.iter().zip(scores?) {
                ready.samples[*index].reference_logprobs = Some(values);
            }
        }
        Ok(())
    }

    fn make_reference(&self) -> Result<Box<dyn PolicyModel>, TrainerError> {
        match &self.config.reference_dir {
            Some(dir) => self.model.frozen_from(dir),
            None if self.optimizer.steps() == 0 => self.model.frozen(&self.model.named_parameters()),
            None => Err(TrainerError::config(
                "loss.kl_coefficient",
                "the run began without a reference policy; set reference_dir to the model it began with",
            )),
        }
    }

    fn train_part(
        &mut self,
        samples: &[ReadySample],
        settings: &LossSettings,
        metrics: &mut StepMetrics,
        sums: &mut LossSums,
    ) -> Result<(), TrainerError> {
        if samples.is_empty() {
            // No group differs within itself: there is nothing to learn, and moments must not move the weights either.
            return Ok(());
        }
        let micro_batches = passes::plan(samples, self.config.tokens_per_micro_batch)?;
        let model = self.model.as_ref();
        let found = passes::backward(model, &mut self.parameters, samples, &micro_batches, settings, &self.progress)?;
        metrics.micro_batches += micro_batches.len() as u64;
        metrics.tokens_total += micro_batches.iter().map(|micro_batch| micro_batch.tokens as u64).sum::<u64>();

        let (optimizer, schedule) = (self.config.optimizer.clone(), self.config.schedule.clone());
        metrics.learning_rate = schedule::learning_rate(optimizer.learning_rate, &schedule, self.optimizer.steps());
        let applied =
            apply(&mut self.parameters, &mut self.optimizer, &optimizer, metrics.learning_rate, &mut self.changed);
        self.parameters.clear_gradients();
        match applied {
            Ok(norm) => {
                sums.merge(&found);
                metrics.gradient_norm = norm;
                metrics.optimizer_steps += 1;
                Ok(())
            }
            Err(error @ TrainerError::NonFiniteGradient { .. }) => {
                // Its sums are as broken as its gradient: they stay out of the report, which must remain plain numbers.
                tracing::warn!(code = error.code(), loss = found.loss, "{error}");
                metrics.skipped_steps += 1;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn learn_demonstrations(
        &mut self,
        request: &WarmStart,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<WarmStartReport, TrainerError> {
        let samples = warm_start::prepare(request, self.limits())?;
        passes::plan(&samples, self.config.tokens_per_micro_batch)?;
        let lengths: Vec<usize> = samples.iter().map(|sample| sample.input.len()).collect();
        let passes = warm_start::plan(&lengths, request.epochs, request.tokens_per_step as usize, request.seed);
        let total: usize = passes.iter().map(Vec::len).sum();

        let settings = self.config.warm_start.optimizer(f64::from(request.learning_rate));
        let schedule = self.config.warm_start.schedule(settings.learning_rate, total as u64);
        let mut optimizer = AdamW::new(&self.parameters)?;
        let mut losses = Vec::with_capacity(total);
        for (pass, steps) in passes.iter().enumerate() {
            for indices in steps {
                self.progress.advance(losses.len(), total)?;
                if !is_wanted() {
                    return Err(TrainerError::Stopped {
                        reason: "nobody waits for the warm start any more".to_owned(),
                    });
                }
                let chosen = warm_start::step_samples(&samples, indices);
                let loss = self.demonstration_step(&chosen, &mut optimizer, &settings, &schedule)?;
                let learnt: usize = chosen.iter().map(|sample| sample.rows.len()).sum();
                losses.push((loss, learnt));
            }
            let (_, loss) = warm_start::losses_at_the_ends(&losses);
            tracing::info!(pass, loss, steps = losses.len(), "pass over the demonstrations done");
        }
        let (first_loss, last_loss) = warm_start::losses_at_the_ends(&losses);
        let tokens = losses.iter().map(|(_, tokens)| *tokens as u64).sum();
        Ok(WarmStartReport { steps: losses.len() as u32, first_loss, last_loss, tokens, elapsed_ms: 0 })
    }

    fn demonstration_step(
        &mut self,
        samples: &[ReadySample],
        optimizer: &mut AdamW,
        settings: &OptimizerConfig,
        schedule: &ScheduleConfig,
    ) -> Result<f64, TrainerError> {
        let micro_batches = passes::plan(samples, self.config.tokens_per_micro_batch)?;
        let (model, chunk) = (self.model.as_ref(), self.config.logits_chunk_tokens);
        let loss = passes::backward_demonstrations(
            model,
            &mut self.parameters,
            samples,
            &micro_batches,
            chunk,
            &self.progress,
        )?;
        let rate = schedule::learning_rate(settings.learning_rate, schedule, optimizer.steps());
        let applied = apply(&mut self.parameters, optimizer, settings, rate, &mut self.changed);
        self.parameters.clear_gradients();
        applied.map(|_| loss)
    }
}

/// Measures, checks and clips the gradients and applies them; returns their norm. Sets `changed` before the first change.
fn apply(
    parameters: &mut ParameterSet,
    optimizer: &mut AdamW,
    config: &OptimizerConfig,
    learning_rate: f64,
    changed: &mut bool,
) -> Result<f64, TrainerError> {
    let mut gradients = parameters.gradients()?;
    let names = parameters.masters().map(|(name, _)| name);
    let norm = gradient_norm::checked_norm(names, &gradients, optimizer.steps())?;
    gradient_norm::clip(&mut gradients, norm, config.max_gradient_norm)?;
    *changed = true;
    optimizer.step(parameters, &gradients, config, learning_rate)?;
    Ok(norm)
}

fn kind_on(choice: DtypeChoice, device: Device) -> Kind {
    match choice {
        DtypeChoice::F32 => Kind::Float,
        DtypeChoice::Bf16 => Kind::BFloat16,
        DtypeChoice::Auto if device.is_cuda() => Kind::BFloat16,
        DtypeChoice::Auto => Kind::Float,
    }
}

/// An export replaces its directory as a whole, so it may only be one that holds a model.
fn refuse_foreign_export(dir: &Path) -> Result<(), TrainerError> {
    let empty = std::fs::read_dir(dir).map(|mut entries| entries.next().is_none()).unwrap_or(true);
    if empty || dir.join("config.json").is_file() {
        return Ok(());
    }
    let reason = "it exists and holds no model; choose another directory".to_owned();
    Err(TrainerError::CheckpointIo { path: dir.to_owned(), reason })
}

fn warn_of_changed_settings(saved: &CheckpointState, config: &TrainerConfig) {
    if saved.optimizer != config.optimizer || saved.schedule != config.schedule {
        tracing::warn!(
            saved = ?(&saved.optimizer, &saved.schedule),
            now = ?(&config.optimizer, &config.schedule),
            "the checkpoint was made with other optimizer settings; the present ones are used"
        );
    }
}
