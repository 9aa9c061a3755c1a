//! The generator as a pure state machine: who waits, who runs, what the next step computes, what its logits mean.
//!
//! No tensors, threads, clocks: the thread asks for a [`StepPlan`], computes it, and hands the logits back; what callers
//! shall hear comes out as [`Announcement`]s.
//!
//! Invariants: a request is in exactly one of `waiting` and `running`; only running ones have slots; each announces
//! `Finished` once and is then gone. While paused no plan has rows. A request that arrived after a pending update does not
//! start before it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::options::{GeneratorOptions, TextDecoder};
use super::request::{FinishReason, GenerationEvent, GenerationRequest, LoadReport, PauseMode};
use super::sequence::Sequence;
use super::slots::{SlotTable, common_prefix};
use crate::error::GenerationError;
use crate::network::Row;

/// A waiting request is worth holding back when a running one is about to compute at least this many tokens that it could
/// then copy.
const WORTH_WAITING_TOKENS: usize = 8;

/// Something to tell the caller of request `key`.
#[derive(Debug)]
pub struct Announcement {
    /// Which request.
    pub key: u64,
    /// What.
    pub event: GenerationEvent,
}

/// What the logits of a row are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The next token.
    Sample,
    /// The score of the prompt token after this position.
    Score {
        /// Position of the row.
        position: usize,
    },
}

/// One step: prefixes to copy, then rows to compute, some of which give logits.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// Prefixes to copy between slots first.
    pub copies: Vec<PrefixCopy>,
    /// Rows, those of a request together and ascending.
    pub rows: Vec<Row>,
    /// Indexes of rows whose logits are wanted, ascending, with the request (index among the running) and the purpose.
    pub outputs: Vec<(usize, usize, Purpose)>,
    /// Rows per running request.
    counts: Vec<usize>,
}

/// Keys and values to copy from the beginning of one slot to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixCopy {
    /// Source slot.
    pub from: usize,
    /// Target slot.
    pub to: usize,
    /// Tokens.
    pub tokens: usize,
}

/// Fixed facts about the model that requests are checked against.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Token ids are below this.
    pub vocabulary_size: usize,
    /// Prompt and output together.
    pub context_length: usize,
    /// End-of-text ids.
    pub eos: Vec<u32>,
}

/// All requests of a generator.
pub struct GeneratorState {
    limits: Limits,
    max_running: usize,
    max_prompt_rows: usize,
    seed: u64,
    decoder: Option<TextDecoder>,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    slots: SlotTable,
    paused: Option<PauseMode>,
    barrier: Option<u64>,
    next_key: u64,
    weight_version: Arc<str>,
    totals: LoadReport,
}

impl std::fmt::Debug for GeneratorState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waiting, running) = (self.waiting.len(), self.running.len());
        write!(formatter, "GeneratorState({waiting} waiting, {running} running, paused {:?})", self.paused)
    }
}

impl GeneratorState {
    /// An idle generator.
    #[must_use]
    pub fn new(limits: Limits, slots: SlotTable, options: &GeneratorOptions) -> Self {
        Self {
            limits,
            max_running: options.max_running,
            max_prompt_rows: options.max_prompt_rows_per_step.max(1),
            seed: options.seed,
            decoder: options.decoder.clone(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            slots,
            paused: None,
            barrier: None,
            next_key: 0,
            weight_version: Arc::from(options.weight_version.as_str()),
            totals: LoadReport::default(),
        }
    }

    /// Takes a request in; answers its key.
    ///
    /// # Errors
    /// See [`super::GeneratorHandle::submit`].
    pub fn submit(&mut self, request: GenerationRequest) -> Result<u64, GenerationError> {
        self.check(&request)?;
        let key = self.next_key;
        self.next_key += 1;
        self.totals.total_requests += 1;
        self.totals.total_prompt_tokens += request.input_ids.len() as u64;
        self.waiting.push_back(Sequence::new(key, request, self.seed));
        Ok(key)
    }

    fn check(&self, request: &GenerationRequest) -> Result<(), GenerationError> {
        request.params.validate()?;
        let invalid = |message: String| Err(GenerationError::InvalidPrompt { message });
        if request.input_ids.is_empty() {
            return invalid("input_ids is empty: at least one token is needed".to_owned());
        }
        let vocabulary_size = self.limits.vocabulary_size;
        let of_request = request.input_ids.iter().chain(&request.token_ids_logprob);
        if let Some(id) = of_request.copied().find(|&id| id as usize >= vocabulary_size) {
            return invalid(format!("token id {id} is outside the vocabulary of {vocabulary_size}"));
        }
        let (prompt_tokens, context_length) = (request.input_ids.len(), self.limits.context_length);
        let max_new_tokens = request.params.max_new_tokens as usize;
        if prompt_tokens >= context_length || prompt_tokens + max_new_tokens > context_length {
            return Err(GenerationError::TooLong { prompt_tokens, max_new_tokens, context_length });
        }
        if !request.params.stop.is_empty() && self.decoder.is_none() {
            return Err(GenerationError::StopNeedsDecoder);
        }
        if self.waiting.iter().chain(&self.running).any(|sequence| sequence.request.rid == request.rid) {
            return Err(GenerationError::DuplicateRequest { rid: request.rid.clone() });
        }
        Ok(())
    }

    /// Whether a step would compute something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let may_start = self.waiting.iter().any(|sequence| self.barrier.is_none_or(|barrier| sequence.key < barrier));
        self.paused.is_none() && (may_start || !self.running.is_empty())
    }

    /// Plans the next step: admits waiting requests, one row for each decoding request, prompt rows up to the limit.
    pub fn plan(&mut self) -> StepPlan {
        let mut plan = StepPlan::default();
        if self.paused.is_some() {
            return plan;
        }
        plan.copies = self.admit();
        let mut prompt_rows_left = self.max_prompt_rows;
        for (index, sequence) in self.running.iter().enumerate() {
            let Some(slot) = sequence.slot else {
                plan.counts.push(0);
                continue;
            };
            let count = match sequence.remaining() {
                1 => 1,
                more => more.min(prompt_rows_left),
            };
            prompt_rows_left -= if sequence.remaining() > 1 { count } else { 0 };
            for position in sequence.computed..sequence.computed + count {
                let row = plan.rows.len();
                if position + 1 == sequence.tokens.len() {
                    plan.outputs.push((row, index, Purpose::Sample));
                } else if sequence.scores_at(position) {
                    plan.outputs.push((row, index, Purpose::Score { position }));
                }
                plan.rows.push(Row { slot, position, id: sequence.tokens[position] });
            }
            plan.counts.push(count);
        }
        plan
    }

    fn admit(&mut self) -> Vec<PrefixCopy> {
        let mut copies = Vec::new();
        let mut index = 0;
        while index < self.waiting.len() && self.running.len() < self.max_running {
            let candidate = &self.waiting[index];
            if self.barrier.is_some_and(|barrier| candidate.key >= barrier) {
                break;
            }
            if self.should_wait_for_prefix(candidate) {
                index += 1;
                continue;
            }
            let Some(placement) =
                self.slots.place(&candidate.tokens, candidate.reusable(), &candidate.request.cache_key)
            else {
                break;
            };
            let Some(mut sequence) = self.waiting.remove(index) else { break };
            if let Some(from) = placement.copy_from {
                copies.push(PrefixCopy { from, to: placement.slot, tokens: placement.cached });
            }
            sequence.slot = Some(placement.slot);
            sequence.computed = placement.cached;
            if sequence.cached_tokens.is_none() {
                let cached = placement.cached.min(sequence.prompt_tokens());
                sequence.cached_tokens = Some(cached);
                self.totals.total_cached_tokens += cached as u64;
            }
            self.running.push(sequence);
        }
        copies
    }

    /// Whether a running request is still computing a prompt whose beginning this one shares: soon it can be copied.
    fn should_wait_for_prefix(&self, candidate: &Sequence) -> bool {
        let wanted = &candidate.tokens[..candidate.reusable()];
        let key = &candidate.request.cache_key;
        let now = self.slots.longest_prefix(wanted, key);
        let computing =
            self.running.iter().filter(|sequence| sequence.remaining() > 1 && sequence.request.cache_key == *key);
        let soon = computing.map(|sequence| common_prefix(&sequence.tokens, wanted)).max().unwrap_or(0);
        soon >= now + WORTH_WAITING_TOKENS
    }

    /// Takes the logits of a plan: one row of `vocabulary_size` per output, in order. They are changed by penalties.
    pub fn complete(&mut self, plan: &StepPlan, logits: &mut [f32]) -> Vec<Announcement> {
        for (sequence, &count) in self.running.iter_mut().zip(&plan.counts) {
            if let (Some(slot), true) = (sequence.slot, count > 0) {
                self.slots.extend(slot, &sequence.tokens[sequence.computed..sequence.computed + count]);
                sequence.computed += count;
            }
        }
        let mut announcements = Vec::new();
        let mut ended: Vec<(usize, FinishReason)> = Vec::new();
        let rows = logits.chunks_exact_mut(self.limits.vocabulary_size);
        for (&(_, index, purpose), row) in plan.outputs.iter().zip(rows) {
            let sequence = &mut self.running[index];
            if ended.last().is_some_and(|(last, _)| *last == index) {
                continue;
            }
            let outcome = match purpose {
                Purpose::Score { position } => sequence.score(position, row).map(|()| None),
                // Nothing but the prompt's scores was wanted.
                Purpose::Sample if sequence.request.params.max_new_tokens == 0 => {
                    Ok(Some(FinishReason::Length { length: 0 }))
                }
                Purpose::Sample => sequence.sample(row, &self.limits.eos, &self.weight_version).map(|_| {
                    self.totals.total_generated_tokens += 1;
                    sequence.finish_reason(&self.limits.eos, self.decoder.as_ref())
                }),
            };
            if sequence.request.stream && !sequence.held.is_empty() {
                if !std::mem::replace(&mut sequence.start_announced, true) {
                    let event = GenerationEvent::Started { cached_tokens: sequence.cached_tokens.unwrap_or(0) };
                    announcements.push(Announcement { key: sequence.key, event });
                }
                let event = GenerationEvent::Tokens(std::mem::take(&mut sequence.held));
                announcements.push(Announcement { key: sequence.key, event });
            }
            match outcome {
                Ok(None) => {}
                Ok(Some(reason)) => ended.push((index, reason)),
                Err(message) => ended.push((index, FinishReason::Abort { message })),
            }
        }
        for (index, reason) in ended.into_iter().rev() {
            let sequence = self.running.remove(index);
            self.finish(sequence, reason, false, &mut announcements);
        }
        announcements
    }

    /// The step could not be computed: every running request ends, and nothing it left behind is reused.
    pub fn fail(&mut self, reason: &str) -> Vec<Announcement> {
        let mut announcements = Vec::new();
        for sequence in std::mem::take(&mut self.running) {
            let message = GenerationError::Failed { reason: reason.to_owned() }.to_string();
            self.finish(sequence, FinishReason::Abort { message }, true, &mut announcements);
        }
        announcements
    }

    fn finish(&mut self, mut sequence: Sequence, reason: FinishReason, forget: bool, to: &mut Vec<Announcement>) {
        if let Some(slot) = sequence.slot {
            self.slots.release(slot, forget);
        }
        if matches!(reason, FinishReason::Abort { .. }) {
            self.totals.total_aborted += 1;
        }
        if !sequence.held.is_empty() {
            let event = GenerationEvent::Tokens(std::mem::take(&mut sequence.held));
            to.push(Announcement { key: sequence.key, event });
        }
        let finished = sequence.finished(reason, &self.weight_version);
        to.push(Announcement { key: sequence.key, event: GenerationEvent::Finished(Box::new(finished)) });
    }

    /// Ends the requests that `matches` says, waiting ones too; answers how many.
    pub fn abort(&mut self, matches: impl Fn(&Sequence) -> bool) -> (usize, Vec<Announcement>) {
        let mut announcements = Vec::new();
        let mut count = 0;
        let (ending, staying) = std::mem::take(&mut self.running).into_iter().partition(&matches);
        self.running = staying;
        let ending: Vec<Sequence> = ending;
        let (ending_waiting, staying) = std::mem::take(&mut self.waiting).into_iter().partition(&matches);
        self.waiting = staying;
        let ending_waiting: VecDeque<Sequence> = ending_waiting;
        for sequence in ending.into_iter().chain(ending_waiting) {
            let never_ran = sequence.slot.is_none() && sequence.retractions == 0;
            let message = if never_ran { "Abort in waiting queue" } else { "Aborted" }.to_owned();
            self.finish(sequence, FinishReason::Abort { message }, false, &mut announcements);
            count += 1;
        }
        (count, announcements)
    }

    /// Stops decoding.
    pub fn pause(&mut self, mode: PauseMode) -> Vec<Announcement> {
        self.paused = Some(mode);
        match mode {
            PauseMode::InPlace => Vec::new(),
            PauseMode::Abort => self.abort(|_| true).1,
            PauseMode::Retract => {
                for mut sequence in std::mem::take(&mut self.running).into_iter().rev() {
                    if let Some(slot) = sequence.slot {
                        self.slots.release(slot, true);
                    }
                    sequence.retract();
                    self.totals.total_retractions += 1;
                    self.waiting.push_front(sequence);
                }
                Vec::new()
            }
        }
    }

    /// Goes on.
    pub fn resume(&mut self) {
        self.paused = None;
    }

    /// Whether a pause is in force.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Empties the prefix cache.
    ///
    /// # Errors
    /// `Busy` when a request has keys and values, or waits for its turn in an engine that is not paused.
    pub fn flush_cache(&mut self) -> Result<(), GenerationError> {
        let (running, waiting) = (self.running.len(), self.waiting.len());
        if running > 0 || (waiting > 0 && self.paused.is_none()) {
            return Err(GenerationError::Busy { running, waiting });
        }
        self.slots.clear_free();
        Ok(())
    }

    /// From now on requests that arrive wait for an update; answers whether the update can be done at once.
    pub fn await_update(&mut self) -> bool {
        let barrier = *self.barrier.get_or_insert(self.next_key);
        let earlier_waits = self.waiting.iter().any(|sequence| sequence.key < barrier);
        self.paused.is_some() || (self.running.is_empty() && !earlier_waits)
    }

    /// An update is over (done or refused): requests start again.
    pub fn update_over(&mut self) {
        self.barrier = None;
    }

    /// Sets the version of the weights in force.
    pub fn set_weight_version(&mut self, version: &str) {
        self.weight_version = Arc::from(version);
    }

    /// The version of the weights in force.
    #[must_use]
    pub fn weight_version(&self) -> Arc<str> {
        Arc::clone(&self.weight_version)
    }

    /// Requests that have not ended.
    #[must_use]
    pub fn live(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// How busy it is; throughput and capacity are the thread's to fill in.
    #[must_use]
    pub fn loads(&self) -> LoadReport {
        let (used_tokens, cached_tokens) = self.slots.token_counts();
        let totals = &self.totals;
        let prompts = totals.total_prompt_tokens.max(1) as f64;
        LoadReport {
            running: self.running.len(),
            waiting: self.waiting.len(),
            retracted: self.waiting.iter().filter(|sequence| sequence.retractions > 0).count(),
            used_tokens,
            cached_tokens,
            max_running: self.max_running,
            cache_hit_rate: totals.total_cached_tokens as f64 / prompts,
            paused: self.paused.is_some(),
            ..totals.clone()
        }
    }
}
