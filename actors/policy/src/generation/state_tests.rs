//! The state machine under random commands, with made-up logits: what must hold whatever comes in which order.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_core::{Random, Seed};
use rand::Rng;

use super::options::GeneratorOptions;
use super::request::{FinishReason, GenerationEvent, GenerationRequest, PauseMode};
use super::slots::SlotTable;
use super::state::{Announcement, GeneratorState, Limits, StepPlan};

const VOCABULARY: usize = 12;
const CONTEXT: usize = 60;
const SLOTS: usize = 5;

/// Drives a state and watches it.
struct Driver {
    state: GeneratorState,
    random: Random,
    submitted: BTreeMap<u64, GenerationRequest>,
    tokens: BTreeMap<u64, usize>,
    started: BTreeMap<u64, usize>,
    finished: BTreeMap<u64, FinishReason>,
    /// What an arena would hold: for each slot the tokens written at each position.
    arena: Vec<Vec<Option<u32>>>,
    versions: u64,
}

impl Driver {
    fn new(seed: u64) -> Self {
        let limits = Limits { vocabulary_size: VOCABULARY, context_length: CONTEXT, eos: vec![0] };
        let options = GeneratorOptions { max_running: 3, max_prompt_rows_per_step: 7, ..GeneratorOptions::default() };
        Self {
            state: GeneratorState::new(limits, SlotTable::new(SLOTS), &options),
            random: Seed::new(seed).random(),
            submitted: BTreeMap::new(),
            tokens: BTreeMap::new(),
            started: BTreeMap::new(),
            finished: BTreeMap::new(),
            arena: vec![vec![None; CONTEXT]; SLOTS],
            versions: 0,
        }
    }

    fn hear(&mut self, announcements: Vec<Announcement>) {
        for Announcement { key, event } in announcements {
            assert!(!self.finished.contains_key(&key), "request {key} speaks after its end");
            match event {
                GenerationEvent::Started { cached_tokens } => {
                    assert!(self.submitted[&key].stream && !self.tokens.contains_key(&key), "once, before its tokens");
                    assert!(self.started.insert(key, cached_tokens).is_none());
                }
                GenerationEvent::Tokens(tokens) => {
                    assert!(!tokens.is_empty());
                    *self.tokens.entry(key).or_insert(0) += tokens.len();
                }
                GenerationEvent::Finished(finished) => {
                    let request = &self.submitted[&key];
                    assert_eq!(finished.completion_tokens, self.tokens.get(&key).copied().unwrap_or(0));
                    assert!(finished.completion_tokens <= request.params.max_new_tokens as usize);
                    assert!(finished.cached_tokens < finished.prompt_tokens.max(1));
                    assert!(self.started.get(&key).is_none_or(|cached| *cached == finished.cached_tokens));
                    if let (Some(start), FinishReason::Length { .. }) = (request.logprob_start_len, &finished.reason) {
                        assert_eq!(finished.prompt_logprobs.len(), request.input_ids.len().saturating_sub(start));
                    }
                    self.finished.insert(key, finished.reason);
                }
            }
        }
    }

    fn submit(&mut self) {
        let length = self.random.random_range(1..40);
        // Few different tokens, so that prefixes are shared.
        let ids = (0..length).map(|place| if place < 30 { 1 } else { self.random.random_range(1..3) }).collect();
        let mut request = GenerationRequest::new(format!("r{}", self.random.random_range(0..1000)), ids);
        request.params.max_new_tokens = self.random.random_range(0..15);
        request.stream = self.random.random_bool(0.5);
        request.cache_key = ["", "other"][usize::from(self.random.random_bool(0.2))].to_owned();
        request.return_logprob = self.random.random_bool(0.5);
        if request.return_logprob && self.random.random_bool(0.5) {
            request.logprob_start_len = Some(self.random.random_range(0..length as usize));
        }
        if let Ok(key) = self.state.submit(request.clone()) {
            self.submitted.insert(key, request);
        }
    }

    /// What the arena's tensors would go through; rows must find all that lies before them.
    fn compute(&mut self, plan: &StepPlan) -> Vec<f32> {
        for copy in &plan.copies {
            let prefix = self.arena[copy.from][..copy.tokens].to_vec();
            assert!(prefix.iter().all(Option::is_some), "a copy of what was never computed");
            self.arena[copy.to][..copy.tokens].copy_from_slice(&prefix);
        }
        let mut seen = BTreeSet::new();
        for row in &plan.rows {
            assert!(seen.insert((row.slot, row.position)), "a row is computed twice");
            self.arena[row.slot][row.position] = Some(row.id);
            assert!(self.arena[row.slot][..row.position].iter().all(Option::is_some), "a hole before {row:?}");
        }
        let running: BTreeSet<usize> = plan.rows.iter().map(|row| row.slot).collect();
        assert!(running.len() <= 3, "more requests than may run");
        (0..plan.outputs.len() * VOCABULARY).map(|_| self.random.random_range(-2.0..2.0)).collect()
    }

    fn step(&mut self) {
        let had_work = self.state.has_work();
        let plan = self.state.plan();
        assert_eq!(plan.rows.is_empty(), !had_work, "work and rows go together");
        let mut logits = self.compute(&plan);
        let announcements = if self.random.random_bool(0.01) {
            self.state.fail("made up")
        } else {
            self.state.complete(&plan, &mut logits)
        };
        self.hear(announcements);
    }

    fn command(&mut self) {
        match self.random.random_range(0..40) {
            0..8 => self.submit(),
            8 => {
                let mode = [PauseMode::Abort, PauseMode::Retract, PauseMode::InPlace][self.random.random_range(0..3)];
                let announcements = self.state.pause(mode);
                self.hear(announcements);
            }
            9..12 => self.state.resume(),
            12 => {
                let prefix = format!("r{}", self.random.random_range(0..10));
                let (_, announcements) = self.state.abort(|sequence| sequence.request.rid.starts_with(&prefix));
                self.hear(announcements);
            }
            13 => {
                if self.state.flush_cache().is_ok() {
                    self.arena = vec![vec![None; CONTEXT]; SLOTS];
                }
            }
            14 => {
                if self.state.await_update() {
                    self.versions += 1;
                    self.state.set_weight_version(&self.versions.to_string());
                    self.state.update_over();
                }
            }
            _ => self.step(),
        }
    }

    fn drain(&mut self) {
        self.state.resume();
        self.state.update_over();
        for _ in 0..100_000 {
            if !self.state.has_work() {
                return;
            }
            self.step();
        }
        panic!("the generator does not come to rest");
    }
}

#[test]
fn every_request_ends_exactly_once_whatever_is_commanded() {
    for seed in 0..200 {
        let mut driver = Driver::new(seed);
        for _ in 0..400 {
            driver.command();
        }
        driver.drain();
        let ended: BTreeSet<&u64> = driver.finished.keys().collect();
        let submitted: BTreeSet<&u64> = driver.submitted.keys().collect();
        assert_eq!(ended, submitted, "seed {seed}");
        assert_eq!(driver.state.live(), 0);
        let loads = driver.state.loads();
        assert_eq!((loads.running, loads.waiting, loads.used_tokens), (0, 0, 0), "seed {seed}");
        driver.state.flush_cache().unwrap();
        assert_eq!(driver.state.loads().cached_tokens, 0);
    }
}

#[test]
fn siblings_wait_for_the_first_to_compute_their_common_prompt() {
    let mut driver = Driver::new(1);
    for number in 0..3 {
        let mut ids = vec![1; 40];
        ids.push(2 + number);
        let mut request = GenerationRequest::new(format!("s{number}"), ids);
        request.params.max_new_tokens = 15;
        request.params.ignore_eos = true;
        let key = driver.state.submit(request.clone()).unwrap();
        driver.submitted.insert(key, request);
    }
    let mut rows = 0;
    while driver.state.has_work() {
        let plan = driver.state.plan();
        rows += plan.rows.len();
        let mut logits = driver.compute(&plan);
        let announcements = driver.state.complete(&plan, &mut logits);
        driver.hear(announcements);
    }
    let prompts_alone = 3 * 41;
    let sampled_rows = 3 * 14;
    assert!(rows < prompts_alone + sampled_rows - 60, "{rows} rows: the common prompt was computed more than once");
}
