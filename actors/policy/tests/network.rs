//! Promise: the forward passes compute what `transformers` computes, and agree with each other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use greenroom_policy::network::{KeyValueArena, Network, Row, RowPlan};
use greenroom_policy::{ModelConfig, Parameters, TinyModel, checkpoint};
use support::{MODELS, expected, fixture, max_abs_difference};
use tch::{Device, Kind, Tensor};

const TOLERANCE: f64 = 1e-4;

/// Every sequence through the cache, its rows cut into steps of `step` tokens; sequences are interleaved.
fn cached_logits(network: &Network, ids: &[i64], cu_seqlens: &[i64], step: usize, plan: RowPlan) -> Tensor {
    let slots = cu_seqlens.len() - 1;
    let mut arena = KeyValueArena::new(network.config(), slots, 128, Kind::Float, Device::Cpu).unwrap();
    let total = *cu_seqlens.last().unwrap();
    let logits = Tensor::zeros([total, network.config().vocab_size as i64], (Kind::Float, Device::Cpu));
    for start in (0..128).step_by(step) {
        let mut rows = Vec::new();
        let mut places = Vec::new();
        for (slot, pair) in cu_seqlens.windows(2).enumerate() {
            for position in start..(start + step).min((pair[1] - pair[0]) as usize) {
                let place = pair[0] as usize + position;
                rows.push(Row { slot, position, id: ids[place] as u32 });
                places.push(place as i64);
            }
        }
        if rows.is_empty() {
            continue;
        }
        let wanted: Vec<usize> = (0..rows.len()).collect();
        let found = network.forward_rows(&mut arena, &rows, &wanted, plan).unwrap().unwrap();
        let _ = logits.shallow_clone().index_copy_(0, &Tensor::from_slice(&places), &found);
    }
    logits
}

#[test]
fn packed_forward_agrees_with_transformers() {
    for name in MODELS {
        let expected = expected(name);
        let (config, parameters) = checkpoint::load(&fixture(name), Device::Cpu, Kind::Float).unwrap();
        let network = Network::new(&config, &parameters).unwrap();
        let positions = network.packed_positions(&expected.cu_seqlens).unwrap();
        let ids = Tensor::from_slice(&expected.ids);
        let hidden = network.forward_packed(&ids, &positions, &expected.cu_seqlens).unwrap();
        let difference = max_abs_difference(&network.logits(&hidden).unwrap(), &expected.logits);
        println!("{name}: packed differs by {difference:e}");
        assert!(difference <= TOLERANCE, "{name}: {difference}");
        let spread = expected.logits.std(true).double_value(&[]);
        assert!(spread > 0.1, "{name}: logits of spread {spread} would hide mistakes");
    }
}

#[test]
fn cached_forward_agrees_with_transformers_however_the_prompt_is_cut() {
    for name in MODELS {
        let expected = expected(name);
        let (config, parameters) = checkpoint::load(&fixture(name), Device::Cpu, Kind::Float).unwrap();
        let (network, _views) = Network::for_generation(&config, &parameters).unwrap();
        for plan in [RowPlan::Fast, RowPlan::Invariant] {
            for step in [1, 7, 128] {
                let logits = cached_logits(&network, &expected.ids, &expected.cu_seqlens, step, plan);
                let difference = max_abs_difference(&logits, &expected.logits);
                println!("{name}: {plan:?} in steps of {step} differs by {difference:e}");
                assert!(difference <= TOLERANCE, "{name} {plan:?} {step}: {difference}");
            }
        }
    }
}

#[test]
fn the_invariant_plan_gives_the_same_bits_however_the_prompt_is_cut() {
    // Heads alone and in groups, sizes that fill vector registers and sizes that do not.
    for (heads, key_heads, head_dim, hidden_size) in [(5, 1, 32, 160), (4, 4, 32, 128), (4, 2, 16, 48), (3, 1, 6, 36)] {
        let sizes = TinyModel {
            num_attention_heads: heads,
            num_key_value_heads: key_heads,
            head_dim,
            hidden_size,
            vocab_size: 1021,
            ..TinyModel::default()
        };
        let config = ModelConfig::tiny(&sizes).unwrap();
        let parameters = Parameters::init(&config, 5).unwrap();
        let (network, _views) = Network::for_generation(&config, &parameters).unwrap();
        let ids: Vec<i64> = (0..200).map(|n| (n * 7919) % 1021).collect();
        let reference = cached_logits(&network, &ids, &[0, 20, 80, 200], 1, RowPlan::Invariant);
        for step in [5, 16, 128] {
            let logits = cached_logits(&network, &ids, &[0, 20, 80, 200], step, RowPlan::Invariant);
            let difference = max_abs_difference(&logits, &reference);
            assert!(logits.equal(&reference), "{sizes:?}: step {step} differs by {difference}");
        }
        let alone = cached_logits(&network, &ids[80..], &[0, 120], 3, RowPlan::Invariant);
        assert!(alone.equal(&reference.narrow(0, 80, 120)), "{sizes:?}: alone and among others differ");
    }
}

#[test]
fn gradients_reach_every_parameter() {
    for name in MODELS {
        let expected = expected(name);
        let (config, parameters) = checkpoint::load(&fixture(name), Device::Cpu, Kind::Float).unwrap();
        let parameters = parameters.with_gradients(true);
        let network = Network::new(&config, &parameters).unwrap();
        let positions = network.packed_positions(&expected.cu_seqlens).unwrap();
        let ids = Tensor::from_slice(&expected.ids);
        let hidden = network.forward_packed(&ids, &positions, &expected.cu_seqlens).unwrap();
        let loss = network.logits(&hidden).unwrap().log_softmax(-1, Kind::Float).select(1, 3).sum(Kind::Float);
        loss.backward();
        for (parameter, tensor) in parameters.iter() {
            let gradient = tensor.grad();
            assert!(gradient.defined(), "{name}: {parameter} has no gradient");
            let size = gradient.abs().max().double_value(&[]);
            // A bias on k shifts all scores of a query alike, which softmax cancels.
            let cancels = parameter.ends_with("k_proj.bias");
            assert!(size.is_finite() && (size > 0.0 || cancels), "{name}: {parameter} has gradient {size}");
        }
    }
}

#[test]
fn an_optimizer_step_in_place_is_seen_by_the_network() {
    let config = ModelConfig::tiny(&TinyModel { num_hidden_layers: 1, ..TinyModel::default() }).unwrap();
    let parameters = Parameters::init(&config, 1).unwrap();
    let network = Network::new(&config, &parameters).unwrap();
    let (ids, positions) = (Tensor::from_slice(&[3_i64, 4]), Tensor::from_slice(&[0_i64, 1]));
    let before = network.forward_packed(&ids, &positions, &[0, 2]).unwrap();
    let _ = parameters.get("model.layers.0.mlp.down_proj.weight").unwrap().shallow_clone().g_mul_scalar_(3.0);
    let after = network.forward_packed(&ids, &positions, &[0, 2]).unwrap();
    assert!(max_abs_difference(&before, &after) > 1e-6);
}

#[test]
fn wrong_packings_are_refused() {
    let config = ModelConfig::tiny(&TinyModel { num_hidden_layers: 1, ..TinyModel::default() }).unwrap();
    let network = Network::new(&config, &Parameters::init(&config, 1).unwrap()).unwrap();
    let ids = Tensor::from_slice(&[3_i64, 4, 5]);
    for cu_seqlens in [&[0_i64, 2][..], &[1, 3], &[0, 3, 3], &[0], &[], &[0, 2, 1, 3]] {
        let error = network.forward_packed(&ids, &ids, cu_seqlens).unwrap_err();
        assert_eq!(error.code(), "GR0604", "{cu_seqlens:?}");
    }
    let float_ids = ids.to_kind(Kind::Float);
    assert_eq!(network.forward_packed(&float_ids, &ids, &[0, 3]).unwrap_err().code(), "GR0604");
    let outside = Tensor::from_slice(&[3_i64, 4, 5000]);
    assert_eq!(network.forward_packed(&outside, &ids, &[0, 3]).unwrap_err().code(), "GR0605");
}
