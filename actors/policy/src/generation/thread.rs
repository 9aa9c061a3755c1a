//! The thread that owns network, weights and arena, and drives [`GeneratorState`].
//!
//! Between two steps it handles every command that has come; without work it sleeps in the channel. It ends when it is told
//! to, or when nobody holds a handle any more and the last request has ended.
//!
//! What fails: a forward pass that libtorch refuses ends the running requests with an abort and the thread goes on; an
//! update is read and checked completely before the first live weight changes.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use tch::{Device, Kind};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::handle::{Command, GeneratorHandle, ModelInfo};
use super::options::GeneratorOptions;
use super::request::{GenerationEvent, UpdateReport, WeightExcerpt};
use super::slots::SlotTable;
use super::state::{Announcement, GeneratorState, Limits, Purpose, StepPlan};
use crate::checkpoint;
use crate::error::{GenerationError, PolicyError};
use crate::model::{ModelConfig, Parameters};
use crate::network::{KeyValueArena, Network, RowPlan};

/// Throughput is taken over this time.
const THROUGHPUT_WINDOW: Duration = Duration::from_secs(5);

/// Loads a Hugging Face directory and serves it on a thread of its own.
///
/// # Errors
/// What [`checkpoint::load`] and [`start`] report.
pub fn start_from_directory(directory: &Path, options: GeneratorOptions) -> Result<GeneratorHandle, PolicyError> {
    let (config, parameters) = checkpoint::load(directory, options.device, options.kind)?;
    start(&config, &parameters, directory, options)
}

/// Serves given weights on a thread of its own; they are copied where they have to be. `model_path` is for
/// [`ModelInfo`] only.
///
/// # Errors
/// [`PolicyError::Input`] for options that make no sense, [`PolicyError::Torch`] when memory runs out,
/// [`PolicyError::File`] when the system refuses a thread.
pub fn start(
    config: &ModelConfig,
    parameters: &Parameters,
    model_path: &Path,
    options: GeneratorOptions,
) -> Result<GeneratorHandle, PolicyError> {
    if options.max_running == 0 {
        return Err(PolicyError::Input("max_running is 0: nothing could ever run".to_owned()));
    }
    let parameters = parameters.copy_to(options.kind, options.device)?;
    let (network, parameters) = Network::for_generation(config, &parameters)?;
    let known = config.max_position_embeddings;
    let context_length = options.context_length.map_or(known, |wanted| wanted.min(known));
    let slots = options.max_running + options.prefix_slots;
    let arena = KeyValueArena::new(config, slots, context_length, options.kind, options.device)?;
    let limits = Limits { vocabulary_size: config.vocab_size, context_length, eos: config.eos_token_ids.clone() };
    let state = GeneratorState::new(limits, SlotTable::of(&arena), &options);
    let (handle, commands) = GeneratorHandle::channel();
    let thread = GeneratorThread {
        network,
        parameters,
        arena,
        state,
        commands,
        events: BTreeMap::new(),
        updates: VecDeque::new(),
        model_path: model_path.to_owned(),
        logits: Vec::new(),
        sampled: VecDeque::new(),
        options,
        context_length,
        ending: None,
    };
    std::thread::Builder::new().name("generator".to_owned()).spawn(move || thread.run()).map_err(|error| {
        PolicyError::File { action: "start a thread for", path: model_path.to_owned(), reason: error.to_string() }
    })?;
    Ok(handle)
}

struct PendingUpdate {
    directory: PathBuf,
    version: Option<String>,
    flush_cache: bool,
    reply: oneshot::Sender<Result<UpdateReport, GenerationError>>,
}

struct GeneratorThread {
    network: Network,
    parameters: Parameters,
    arena: KeyValueArena,
    state: GeneratorState,
    commands: Receiver<Command>,
    events: BTreeMap<u64, UnboundedSender<GenerationEvent>>,
    updates: VecDeque<PendingUpdate>,
    model_path: PathBuf,
    logits: Vec<f32>,
    /// When how many tokens were sampled, within the window.
    sampled: VecDeque<(Instant, usize)>,
    options: GeneratorOptions,
    context_length: usize,
    ending: Option<oneshot::Sender<Result<(), GenerationError>>>,
}

impl GeneratorThread {
    fn run(mut self) {
        tch::set_num_threads(self.options.threads);
        let mut connected = true;
        while self.ending.is_none() && (connected || self.state.has_work()) {
            connected = self.take_commands(connected);
            self.drop_deserted();
            self.run_updates();
            if self.state.has_work() {
                self.step();
            }
        }
        let (_, announcements) = self.state.abort(|_| true);
        self.announce(announcements);
        if let Some(reply) = self.ending.take() {
            let _ = reply.send(Ok(()));
        }
    }

    /// Handles all commands that are there, waiting for one if there is nothing else to do; `false` when no handle is left.
    fn take_commands(&mut self, connected: bool) -> bool {
        if !connected {
            return false;
        }
        if !self.state.has_work() && self.updates.is_empty() {
            match self.commands.recv() {
                Ok(command) => self.handle(command),
                Err(_) => return false,
            }
        }
        while self.ending.is_none() {
            match self.commands.try_recv() {
                Ok(command) => self.handle(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    fn handle(&mut self, command: Command) {
        // A reply nobody waits for any more is no fault of ours.
        match command {
            Command::Submit(request, events, reply) => {
                let accepted = self.state.submit(*request).map(|key| {
                    self.events.insert(key, events);
                });
                let _ = reply.send(accepted);
            }
            Command::Abort(prefix, reply) => {
                let matches = |rid: &str| prefix.as_ref().is_none_or(|prefix| rid.starts_with(prefix.as_str()));
                let (count, announcements) = self.state.abort(|sequence| matches(&sequence.request.rid));
                self.announce(announcements);
                let _ = reply.send(Ok(count));
            }
            Command::Pause(mode, reply) => {
                let announcements = self.state.pause(mode);
                self.announce(announcements);
                let _ = reply.send(Ok(()));
            }
            Command::Resume(reply) => {
                self.state.resume();
                let _ = reply.send(Ok(()));
            }
            Command::FlushCache(reply) => {
                let _ = reply.send(self.state.flush_cache());
            }
            Command::UpdateWeights { directory, version, flush_cache, reply } => {
                // Requests that come after this command start after the update.
                let _ = self.state.await_update();
                self.updates.push_back(PendingUpdate { directory, version, flush_cache, reply });
            }
            Command::SetVersion(version, reply) => {
                self.state.set_weight_version(&version);
                let _ = reply.send(Ok(()));
            }
            Command::Loads(reply) => {
                let mut report = self.state.loads();
                report.capacity_tokens = self.arena.slots() * self.arena.slot_length();
                report.throughput_tokens_per_s = self.throughput();
                let _ = reply.send(Ok(report));
            }
            Command::GetWeight { name, rows, reply } => {
                let _ = reply.send(self.weight(&name, rows));
            }
            Command::ModelInfo(reply) => {
                let _ = reply.send(Ok(self.model_info()));
            }
            Command::Shutdown(reply) => self.ending = Some(reply),
        }
    }

    fn announce(&mut self, announcements: Vec<Announcement>) {
        for Announcement { key, event } in announcements {
            let is_last = matches!(event, GenerationEvent::Finished(_));
            if let Some(events) = self.events.get(&key) {
                // A deserted request is found by `drop_deserted`.
                let _ = events.send(event);
            }
            if is_last {
                self.events.remove(&key);
            }
        }
    }

    /// Aborts requests whose caller has dropped the stream.
    fn drop_deserted(&mut self) {
        let deserted: Vec<u64> =
            self.events.iter().filter(|(_, events)| events.is_closed()).map(|(&key, _)| key).collect();
        if !deserted.is_empty() {
            let (_, announcements) = self.state.abort(|sequence| deserted.contains(&sequence.key));
            self.announce(announcements);
        }
    }

    fn step(&mut self) {
        let plan = self.state.plan();
        let announcements = match self.compute(&plan) {
            Ok(()) => {
                let sampled = plan.outputs.iter().filter(|(_, _, purpose)| *purpose == Purpose::Sample).count();
                self.note_sampled(sampled);
                self.state.complete(&plan, &mut self.logits)
            }
            Err(error) => {
                tracing::error!(%error, "a step of the generator failed; its requests end");
                self.state.fail(&error.to_string())
            }
        };
        self.announce(announcements);
    }

    /// Computes a plan; the logits it wants are then in `self.logits`.
    fn compute(&mut self, plan: &StepPlan) -> Result<(), PolicyError> {
        let _guard = tch::no_grad_guard();
        for copy in &plan.copies {
            self.arena.copy_prefix(copy.from, copy.to, copy.tokens)?;
        }
        let wanted: Vec<usize> = plan.outputs.iter().map(|(row, _, _)| *row).collect();
        let row_plan = if self.options.batch_invariant { RowPlan::Invariant } else { RowPlan::Fast };
        let logits = self.network.forward_rows(&mut self.arena, &plan.rows, &wanted, row_plan)?;
        self.logits.clear();
        if let Some(logits) = logits {
            let logits = logits.f_to(Device::Cpu)?.f_contiguous()?;
            self.logits.resize(logits.numel(), 0.0);
            logits.f_copy_data(&mut self.logits, logits.numel())?;
        }
        Ok(())
    }

    fn note_sampled(&mut self, count: usize) {
        let now = Instant::now();
        self.sampled.push_back((now, count));
        while self.sampled.front().is_some_and(|(when, _)| now.duration_since(*when) > THROUGHPUT_WINDOW) {
            self.sampled.pop_front();
        }
    }

    fn throughput(&self) -> f64 {
        let now = Instant::now();
        let inside = self.sampled.iter().filter(|(when, _)| now.duration_since(*when) <= THROUGHPUT_WINDOW);
        let (mut count, mut first) = (0, now);
        for (when, sampled) in inside {
            count += sampled;
            first = first.min(*when);
        }
        // Within the first instants the quotient would be noise.
        let seconds = now.duration_since(first).as_secs_f64().max(0.1);
        count as f64 / seconds
    }

    fn run_updates(&mut self) {
        while let Some(update) = self.updates.pop_front() {
            if !self.state.await_update() {
                self.updates.push_front(update);
                return;
            }
            let outcome =
                self.update(&update).map_err(|error| GenerationError::UpdateRefused { reason: error.to_string() });
            if self.updates.is_empty() {
                self.state.update_over();
            }
            let _ = update.reply.send(outcome);
        }
    }

    fn update(&mut self, update: &PendingUpdate) -> Result<UpdateReport, PolicyError> {
        let _guard = tch::no_grad_guard();
        let config = self.network.config();
        let config_path = update.directory.join("config.json");
        if config_path.is_file() {
            config.check_same_mathematics(&checkpoint::load_config(&update.directory)?, &config_path)?;
        }
        let (device, kind) = (self.options.device, self.options.kind);
        let (fresh, read) = checkpoint::load_parameters(&update.directory, config, device, kind)?;
        // Everything is in memory and fits: from here on nothing can fail for want of input.
        for (name, tensor) in fresh.iter() {
            self.parameters.require(name)?.shallow_clone().f_copy_(tensor)?;
        }
        if let Some(version) = &update.version {
            self.state.set_weight_version(version);
        }
        self.model_path.clone_from(&update.directory);
        let cache_flushed = update.flush_cache && self.state.flush_cache().is_ok();
        let weight_version = self.state.weight_version();
        tracing::info!(version = %weight_version, tensors = read.tensors, bytes = read.bytes, "weights updated");
        Ok(UpdateReport { tensors: read.tensors, bytes: read.bytes, weight_version, cache_flushed })
    }

    fn weight(&self, name: &str, rows: usize) -> Result<WeightExcerpt, GenerationError> {
        let tied = name == "lm_head.weight" && self.network.config().tie_word_embeddings;
        let stored = if tied { "model.embed_tokens.weight" } else { name };
        let tensor =
            self.parameters.get(stored).ok_or_else(|| GenerationError::UnknownWeight { name: name.to_owned() })?;
        let read = || -> Result<WeightExcerpt, PolicyError> {
            let _guard = tch::no_grad_guard();
            let rows = (rows as i64).min(tensor.size()[0]);
            let excerpt = tensor.f_narrow(0, 0, rows)?.f_to_device_(Device::Cpu, Kind::Float, false, false)?;
            let values = Vec::<f32>::try_from(excerpt.f_contiguous()?.f_view([-1])?)?;
            let shape = excerpt.size().iter().map(|&length| length as usize).collect();
            Ok(WeightExcerpt { name: name.to_owned(), shape, values })
        };
        read().map_err(|error| GenerationError::Failed { reason: error.to_string() })
    }

    fn model_info(&self) -> ModelInfo {
        let config = self.network.config();
        ModelInfo {
            model_path: self.model_path.clone(),
            model_type: config.architecture.model_type().to_owned(),
            architecture: config.architecture.class_name().to_owned(),
            vocabulary_size: config.vocab_size,
            context_length: self.context_length,
            eos_token_ids: config.eos_token_ids.clone(),
            weight_version: self.state.weight_version(),
            parameters: self.parameters.weight_count(),
            batch_invariant: self.options.batch_invariant,
        }
    }
}
