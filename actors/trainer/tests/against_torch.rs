//! Loss, gradients and optimizer agree with PyTorch (recorded by `tests/fixtures/trainer/record.py`).

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking, its helpers too

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use greenroom_trainer::config::{OptimizerConfig, ScheduleConfig};
use greenroom_trainer::loss::{LossSettings, backward_loss};
use greenroom_trainer::model::PolicyModel;
use greenroom_trainer::optimizer::AdamW;
use greenroom_trainer::parameters::ParameterSet;
use greenroom_trainer::samples::{Limits, ReadySample, join, ready};
use greenroom_trainer::{DecoderModel, Progress, gradient_norm, passes, schedule, warm_start};
use serde::Deserialize;
use support::{Recorded, RecordedCase, assert_close, fixture, json, relative_error, tensors};
use tch::{Device, Kind, Tensor};

const TOLERANCE: f64 = 1e-5;

fn settings(case: &RecordedCase, chunk_tokens: usize) -> LossSettings {
    LossSettings { loss: case.loss.clone(), temperature: case.temperature, chunk_tokens }
}

#[test]
fn every_switch_of_the_loss_agrees_in_value_and_gradient() {
    let recorded: Recorded = json("loss.json");
    let tensors = tensors("loss.safetensors");
    // In the recording a sample's hidden states are as long as the sample; here rows are counted over inputs.
    let mut offsets = Vec::new();
    let mut offset = 0;
    for sample in &recorded.samples {
        if sample.loss_mask.contains(&1) {
            offsets.push(offset);
        }
        offset += sample.tokens.len() as i64;
    }
    for case in &recorded.cases {
        for chunk_tokens in [1000, 5] {
            let samples = recorded.ready(case);
            let mut trained = join(&samples.iter().collect::<Vec<_>>()).trained;
            trained.rows = samples
                .iter()
                .zip(&offsets)
                .flat_map(|(sample, offset)| sample.rows.iter().map(move |row| row + offset))
                .collect();
            let hidden = tensors["hidden"].copy().set_requires_grad(true);
            let head = tensors["head"].copy().set_requires_grad(true);
            let sums = backward_loss(&hidden, &head, &trained, &settings(case, chunk_tokens)).unwrap();

            let name = &case.name;
            assert_close(name, sums.loss, case.expected_loss, TOLERANCE);
            for (leaf, suffix) in [(&hidden, "hidden_grad"), (&head, "head_grad")] {
                let error = relative_error(&leaf.grad(), &tensors[&format!("{name}.{suffix}")]);
                assert!(error <= TOLERANCE, "{name}.{suffix} in chunks of {chunk_tokens}: relative error {error:.2e}");
            }
        }
    }
    assert!(recorded.cases.len() >= 15);
}

fn model() -> (DecoderModel, ParameterSet) {
    let model = DecoderModel::open(&fixture("model"), Device::Cpu, Kind::Float).unwrap();
    let parameters = ParameterSet::new(model.named_parameters()).unwrap();
    (model, parameters)
}

fn assert_gradients(name: &str, parameters: &ParameterSet, expected: &BTreeMap<String, Tensor>) {
    let gradients = parameters.gradients().unwrap();
    assert_eq!(gradients.len(), expected.len() / 3, "all parameters take part");
    for ((parameter, _), gradient) in parameters.masters().zip(gradients) {
        let error = relative_error(&gradient.unwrap(), &expected[&format!("{name}/{parameter}")]);
        assert!(error <= TOLERANCE, "{name}: gradient of {parameter}: relative error {error:.2e}");
    }
}

/// Packed in one, in few and in many micro-batches: always the gradient of samples that were computed alone.
const BUDGETS: [(usize, usize); 3] = [(1000, 1000), (20, 4), (11, 3)];

#[test]
fn packed_and_micro_batched_gradients_of_a_network_agree() {
    let recorded: Recorded = json("model.json");
    let expected = tensors("model_gradients.safetensors");
    for case in &recorded.cases {
        for (budget, chunk_tokens) in BUDGETS {
            let (model, mut parameters) = model();
            let samples = recorded.ready(case);
            let plan = passes::plan(&samples, budget).unwrap();
            assert!(budget == 1000 || plan.len() > 1);
            let settings = settings(case, chunk_tokens);
            let progress = Progress::default();
            let sums = passes::backward(&model, &mut parameters, &samples, &plan, &settings, &progress).unwrap();
            assert_close(&case.name, sums.loss, case.expected_loss, TOLERANCE);
            assert_gradients(&case.name, &parameters, &expected);
        }
    }
}

#[test]
fn cross_entropy_of_demonstrations_agrees() {
    let recorded: Recorded = json("model.json");
    let expected = tensors("model_gradients.safetensors");
    let limits = Limits { vocabulary: 96, max_tokens: 64 };
    for (budget, chunk_tokens) in BUDGETS {
        let (model, mut parameters) = model();
        let samples: Vec<ReadySample> = (0..recorded.samples.len())
            .filter_map(|index| ready("demonstration", index, &recorded.sample(index), limits, false).unwrap())
            .collect();
        let all: Vec<usize> = (0..samples.len()).collect();
        let samples = warm_start::step_samples(&samples, &all);
        let plan = passes::plan(&samples, budget).unwrap();
        let progress = Progress::default();
        let loss = passes::backward_demonstrations(&model, &mut parameters, &samples, &plan, chunk_tokens, &progress);
        assert_close("sft", loss.unwrap(), recorded.sft_loss, TOLERANCE);
        assert_gradients("sft", &parameters, &expected);
    }
}

#[test]
fn scores_do_not_depend_on_packing_and_match_the_training_pass() {
    let recorded: Recorded = json("model.json");
    let case = &recorded.cases[0];
    let (model, mut parameters) = model();
    let mut samples = recorded.ready(case);
    let progress = Progress::default();
    let scores = |budget: usize, chunk: usize| {
        let plan = passes::plan(&samples, budget).unwrap();
        passes::score(&model, &samples, &plan, &settings(case, chunk), &progress).unwrap()
    };
    let reference = scores(1000, 1000);
    for (budget, chunk) in BUDGETS {
        for (found, expected) in scores(budget, chunk).iter().flatten().zip(reference.iter().flatten()) {
            assert!((found - expected).abs() < 1e-5);
        }
    }
    // Against its own scores the policy's ratio is 1 and nothing is clipped.
    for (sample, scores) in samples.iter_mut().zip(reference) {
        sample.old_logprobs = Some(scores);
    }
    let plan = passes::plan(&samples, 1000).unwrap();
    let sums = passes::backward(&model, &mut parameters, &samples, &plan, &settings(case, 7), &progress).unwrap();
    assert!((sums.ratio / sums.tokens as f64 - 1.0).abs() < 1e-5 && sums.weighted_clipped == 0.0, "{sums:?}");
}

#[derive(Deserialize)]
struct RecordedAdamW {
    optimizer: OptimizerConfig,
    warmup_steps: u64,
    norms: Vec<f64>,
}

#[test]
fn ten_steps_of_adamw_agree() {
    let recorded: RecordedAdamW = json("adamw.json");
    let tensors = tensors("adamw.safetensors");
    let names = ["a.weight", "b.bias", "c.weight"];
    let start = names.map(|name| (name.to_owned(), tensors[&format!("start/{name}")].copy()));
    let mut parameters = ParameterSet::new(start.into()).unwrap();
    let mut optimizer = AdamW::new(&parameters).unwrap();
    let course = ScheduleConfig { warmup_steps: recorded.warmup_steps, ..ScheduleConfig::default() };
    for (step, expected_norm) in recorded.norms.iter().enumerate() {
        let mut gradients: Vec<Option<Tensor>> =
            names.iter().map(|name| Some(tensors[&format!("gradient/{step}/{name}")].copy())).collect();
        let norm = gradient_norm::checked_norm(names.into_iter(), &gradients, step as u64).unwrap();
        assert_close("norm", norm, *expected_norm, TOLERANCE);
        gradient_norm::clip(&mut gradients, norm, recorded.optimizer.max_gradient_norm).unwrap();
        let rate = schedule::learning_rate(recorded.optimizer.learning_rate, &course, optimizer.steps());
        optimizer.step(&mut parameters, &gradients, &recorded.optimizer, rate).unwrap();
        for (name, master) in parameters.masters() {
            let error = relative_error(master, &tensors[&format!("after/{step}/{name}")]);
            assert!(error <= 1e-6, "{name} after step {step}: relative error {error:.2e}");
        }
    }
    assert_eq!(optimizer.steps(), 10);
}

#[test]
fn the_fixtures_are_complete() {
    for name in ["loss.json", "loss.safetensors", "model/config.json", "model_gradients.safetensors", "record.py"] {
        assert!(Path::new(&fixture(name)).is_file(), "{name} is missing");
    }
}
