//! What the trainer's tests share: recorded fixtures, batches built from them, small models, distances.
#![allow(dead_code)] // each test binary uses a part

use std::collections::BTreeMap;
use std::path::PathBuf;

use greenroom_messages::rollout::Sample;
use greenroom_messages::trainer::{TrainBatch, TrainGroup, TrainRollout};
use greenroom_messages::{BatchId, GroupId, Purpose, RolloutId, Step};
use greenroom_policy::{ModelConfig, Parameters, TinyModel};
use greenroom_trainer::config::LossConfig;
use greenroom_trainer::samples::{Limits, ReadySample};
use greenroom_trainer::{DecoderModel, TrainerConfig, batch};
use serde::Deserialize;
use tch::{Kind, Tensor};

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/trainer")).join(name)
}

pub fn tensors(name: &str) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(fixture(name)).unwrap().into_iter().collect()
}

pub fn json<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

#[derive(Debug, Deserialize)]
pub struct RecordedSample {
    pub rollout: usize,
    pub tokens: Vec<u32>,
    pub loss_mask: Vec<u8>,
    pub old_logprobs: Vec<f32>,
    pub rollout_logprobs: Vec<f32>,
    pub reference_logprobs: Vec<f32>,
}

#[derive(Debug, Deserialize)]
pub struct RecordedCase {
    pub name: String,
    pub loss: LossConfig,
    pub normalise_by_std: bool,
    pub temperature: f64,
    pub old_logprobs_given: bool,
    pub expected_loss: f64,
}

/// A recorded batch: prompt group and reward of each rollout, samples, cases.
#[derive(Debug, Deserialize)]
pub struct Recorded {
    pub groups: Vec<u32>,
    pub rewards: Vec<f32>,
    pub samples: Vec<RecordedSample>,
    pub cases: Vec<RecordedCase>,
    #[serde(default)]
    pub sft_loss: f64,
}

impl Recorded {
    pub fn sample(&self, index: usize) -> Sample {
        let recorded = &self.samples[index];
        // Noise has pushed some recorded values above 0, which a real engine's cannot be.
        Sample {
            tokens: recorded.tokens.clone(),
            loss_mask: recorded.loss_mask.clone(),
            logprobs: vec![0.0; recorded.tokens.len()],
            versions: Vec::new(),
        }
    }

    pub fn batch(&self, temperature: f64) -> TrainBatch {
        let mut groups: BTreeMap<u32, TrainGroup> = BTreeMap::new();
        for (rollout, (group, reward)) in self.groups.iter().zip(&self.rewards).enumerate() {
            let id = rollout_id(*group, rollout as u32);
            let samples = (0..self.samples.len()).filter(|index| self.samples[*index].rollout == rollout);
            let rollout = TrainRollout {
                rollout: id,
                reward: *reward,
                samples: samples.map(|index| self.sample(index)).collect(),
            };
            let empty = TrainGroup { group: id.group, rollouts: Vec::new() };
            groups.entry(*group).or_insert(empty).rollouts.push(rollout);
        }
        TrainBatch { step: Step(1), groups: groups.into_values().collect(), temperature: temperature as f32 }
    }

    /// The samples of a case as the learner would make them, with the recorded log-probabilities put in.
    pub fn ready(&self, case: &RecordedCase) -> Vec<ReadySample> {
        let mut config = TrainerConfig { loss: case.loss.clone(), ..TrainerConfig::default() };
        config.advantage.normalise_by_std = case.normalise_by_std;
        let limits = Limits { vocabulary: 96, max_tokens: 64 };
        let mut ready = batch::prepare(&self.batch(case.temperature), &config, limits).unwrap();
        let trainable = self.samples.iter().filter(|sample| sample.loss_mask.contains(&1));
        for (sample, recorded) in ready.samples.iter_mut().zip(trainable) {
            let at_targets =
                |values: &[f32]| sample.rows.iter().map(|row| values[*row as usize + 1]).collect::<Vec<_>>();
            sample.rollout_logprobs = at_targets(&recorded.rollout_logprobs);
            let old = if case.loss.old_logprobs == greenroom_trainer::config::OldLogprobs::Rollout {
                Some(sample.rollout_logprobs.clone())
            } else {
                case.old_logprobs_given.then(|| at_targets(&recorded.old_logprobs))
            };
            (sample.old_logprobs, sample.reference_logprobs) = (old, Some(at_targets(&recorded.reference_logprobs)));
        }
        batch::part(&ready, 0, 1, &case.loss)
    }
}

pub fn rollout_id(group: u32, sample: u32) -> RolloutId {
    let batch = BatchId { purpose: Purpose::Train, number: 1 };
    RolloutId { group: GroupId { batch, index: group }, sample, attempt: 0 }
}

/// ‖found − expected‖ / ‖expected‖.
pub fn relative_error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    ((&found - &expected).norm() / expected.norm()).double_value(&[])
}

pub fn assert_close(what: &str, found: f64, expected: f64, tolerance: f64) {
    let error = (found - expected).abs() / expected.abs();
    assert!(error <= tolerance, "{what}: {found} instead of {expected}, relative error {error:.2e}");
}

pub const VOCABULARY: usize = 16;

/// A network of some ten thousand parameters, and the parameters themselves.
pub fn small_model(seed: u64) -> (ModelConfig, Parameters) {
    let sizes = TinyModel {
        vocab_size: VOCABULARY,
        hidden_size: 32,
        intermediate_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 16,
        max_position_embeddings: 64,
        eos_token_ids: vec![0],
    };
    let config = ModelConfig::tiny(&sizes).unwrap();
    let parameters = Parameters::init(&config, seed).unwrap();
    (config, parameters)
}

pub fn decoder(config: &ModelConfig, parameters: &Parameters) -> DecoderModel {
    DecoderModel::new(config.clone(), parameters.shallow_clone(), None).unwrap()
}

/// Rollouts of two groups with made-up but plausible content; different for each step.
pub fn made_up_batch(step: u64) -> TrainBatch {
    let group = |index: u32| {
        let rollouts = (0..3_u32).map(|member| {
            let token = |position: u32| (u64::from(position * 5 + member * 3 + index) + step * 7) % VOCABULARY as u64;
            let tokens: Vec<u32> = (0..7 + member).map(|position| token(position) as u32).collect();
            let loss_mask: Vec<u8> =
                (0..tokens.len()).map(|position| u8::from(position > 2 && position != 5)).collect();
            let logprobs = loss_mask.iter().map(|mask| -2.7 * f32::from(*mask)).collect();
            let sample = Sample { tokens, loss_mask, logprobs, versions: Vec::new() };
            let reward = ((member + index + step as u32) % 3) as f32 / 2.0;
            TrainRollout { rollout: rollout_id(index, member), reward, samples: vec![sample] }
        });
        TrainGroup { group: rollout_id(index, 0).group, rollouts: rollouts.collect() }
    };
    TrainBatch { step: Step(step), groups: vec![group(0), group(1)], temperature: 1.0 }
}
