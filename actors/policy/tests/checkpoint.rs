//! Promise: what is saved is what is loaded, bit for bit; what is broken is refused with one line that names file and tensor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use greenroom_policy::checkpoint::{SaveOptions, load, load_config, save};
use greenroom_policy::{ModelConfig, Parameters, PolicyError, TinyModel};
use serde_json::{Value, json};
use support::{MODELS, fixture};
use tch::{Device, Kind, Tensor};

fn tiny() -> (ModelConfig, Parameters) {
    let sizes =
        TinyModel { vocab_size: 50, hidden_size: 16, intermediate_size: 24, head_dim: 4, ..TinyModel::default() };
    let config = ModelConfig::tiny(&sizes).unwrap();
    let parameters = Parameters::init(&config, 4).unwrap();
    (config, parameters)
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
    tensor.contiguous().copy_data_u8(&mut bytes, tensor.numel());
    bytes
}

fn assert_same(left: &Parameters, right: &Parameters) {
    assert_eq!(left.len(), right.len());
    for ((left_name, left), (right_name, right)) in left.iter().zip(right.iter()) {
        assert_eq!((left_name, left.size(), left.kind()), (right_name, right.size(), right.kind()));
        assert!(bytes(left) == bytes(right), "{left_name} differs");
    }
}

fn weight_files(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".safetensors")).collect();
    names.sort();
    names
}

#[test]
fn a_round_trip_is_bit_identical_in_every_kind_whole_and_in_shards() {
    let directory = tempfile::tempdir().unwrap();
    let (config, parameters) = tiny();
    for kind in [Kind::Float, Kind::BFloat16, Kind::Half] {
        let stored = parameters.copy_to(kind, Device::Cpu).unwrap();
        for (max_shard_bytes, files) in [(u64::MAX, 1), (4000, 4), (1, stored.len())] {
            let path = directory.path().join(format!("{kind:?}-{max_shard_bytes}"));
            let options = SaveOptions { kind, max_shard_bytes, companions_from: None };
            save(&path, &config, &parameters, &options).unwrap();
            let (loaded_config, loaded) = load(&path, Device::Cpu, kind).unwrap();
            assert_same(&stored, &loaded);
            loaded_config.check_same_mathematics(&config, &path).unwrap();
            let found = weight_files(&path);
            assert!(if files == 4 { found.len() >= 3 } else { found.len() == files }, "{found:?}");
            assert_eq!(path.join("model.safetensors.index.json").exists(), files > 1);
            let again = directory.path().join("again");
            save(&again, &loaded_config, &loaded, &options).unwrap();
            for name in found.iter().map(String::as_str).chain(["config.json"]) {
                assert_eq!(fs::read(path.join(name)).unwrap(), fs::read(again.join(name)).unwrap(), "{name}");
            }
        }
    }
}

#[test]
fn models_written_by_transformers_survive_a_round_trip() {
    let directory = tempfile::tempdir().unwrap();
    for name in MODELS {
        let (config, parameters) = load(&fixture(name), Device::Cpu, Kind::Float).unwrap();
        let path = directory.path().join(name);
        let options = SaveOptions { kind: Kind::Float, ..SaveOptions::default() };
        save(&path, &config, &parameters, &options).unwrap();
        assert_same(&parameters, &load(&path, Device::Cpu, Kind::Float).unwrap().1);
        let json = |path: &Path| serde_json::from_slice::<Value>(&fs::read(path.join("config.json")).unwrap()).unwrap();
        assert_eq!(json(&path), json(&fixture(name)), "{name}: config.json changed");
    }
}

#[test]
fn saving_replaces_a_checkpoint_and_copies_what_belongs_to_the_model() {
    let directory = tempfile::tempdir().unwrap();
    let (config, parameters) = tiny();
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("tokenizer.json"), "{}").unwrap();
    fs::write(source.join("generation_config.json"), r#"{"eos_token_id": [0, 7]}"#).unwrap();
    fs::write(source.join("optimizer.bin"), "no").unwrap();
    let path = directory.path().join("model");
    save(&path, &config, &parameters, &SaveOptions { max_shard_bytes: 1, ..SaveOptions::default() }).unwrap();
    let options = SaveOptions { kind: Kind::Float, companions_from: Some(source), ..SaveOptions::default() };
    save(&path, &config, &parameters, &options).unwrap();
    assert_eq!(weight_files(&path), ["model.safetensors"], "old shards are gone");
    assert!(path.join("tokenizer.json").exists() && !path.join("optimizer.bin").exists());
    let (loaded, _) = load(&path, Device::Cpu, Kind::Float).unwrap();
    assert_eq!(loaded.eos_token_ids, [0, 7]);
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing partial is left: {left:?}");
}

/// Damages a copy of a sharded checkpoint and expects words in the one-line error.
fn check_damage(damage: impl Fn(&Path), code: &str, words: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let (config, parameters) = tiny();
    let path = directory.path().join("model");
    let options = SaveOptions { kind: Kind::Float, max_shard_bytes: 4000, companions_from: None };
    save(&path, &config, &parameters, &options).unwrap();
    damage(&path);
    let error = load(&path, Device::Cpu, Kind::Float).map(|_| ()).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.code(), code, "{text}");
    assert!(!text.contains('\n'), "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

fn cut(path: &Path, keep: impl Fn(usize) -> usize) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..keep(bytes.len())]).unwrap();
}

#[test]
fn broken_checkpoints_are_refused_by_file_and_tensor() {
    let first = |path: &Path| path.join(&weight_files(path)[0]);
    let second = |path: &Path| path.join(&weight_files(path)[1]);
    let name = "model-00001-of-";
    check_damage(|p| cut(&first(p), |n| n - 1), "GR0603", &[name, "truncated", "layernorm", "cut off"]);
    check_damage(|p| cut(&first(p), |_| 20), "GR0603", &[name, "truncated"]);
    check_damage(|p| cut(&first(p), |_| 3), "GR0603", &[name, "truncated: 3 bytes"]);
    check_damage(|p| cut(&first(p), |_| 0), "GR0603", &[name, "truncated: 0 bytes"]);
    check_damage(|p| fs::write(first(p), [b'x'; 200]).unwrap(), "GR0603", &[name, "no safetensors file"]);
    check_damage(|p| fs::remove_file(first(p)).unwrap(), "GR0601", &[name, "No such file"]);
    let longer = |p: &Path| fs::write(first(p), [fs::read(first(p)).unwrap(), vec![0]].concat()).unwrap();
    check_damage(longer, "GR0603", &[name, "too long"]);
    let doubled = |p: &Path| {
        fs::copy(first(p), p.join("stray.safetensors")).unwrap();
        fs::remove_file(p.join("model.safetensors.index.json")).unwrap();
    };
    check_damage(doubled, "GR0603", &["embed_tokens", "is also in"]);
    let swapped = |p: &Path| fs::rename(first(p), second(p)).unwrap();
    check_damage(swapped, "GR0601", &[name, "No such file"]);
    let edit_index = |from: &'static str, to: &'static str| {
        move |p: &Path| {
            let index = p.join("model.safetensors.index.json");
            fs::write(&index, fs::read_to_string(&index).unwrap().replace(from, to)).unwrap();
        }
    };
    check_damage(edit_index("weight_map", "map"), "GR0603", &["index.json", "weight_map"]);
    check_damage(edit_index("model.norm.weight", "model.gone.weight"), "GR0603", &["model.gone.weight", "missing"]);
    check_damage(edit_index("model-00001", "../model-00001"), "GR0603", &["embed_tokens", "no file name"]);
    check_damage(|p| fs::write(p.join("config.json"), "{").unwrap(), "GR0602", &["config.json", "broken JSON"]);
    check_damage(|p| fs::remove_file(p.join("config.json")).unwrap(), "GR0601", &["config.json", "No such file"]);
}

#[test]
fn tensors_that_are_not_the_models_are_refused() {
    let edit_config = |change: fn(&mut Value)| {
        move |p: &Path| {
            let path = p.join("config.json");
            let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            change(&mut value);
            fs::write(path, value.to_string()).unwrap();
        }
    };
    let more_layers = edit_config(|value| value["num_hidden_layers"] = json!(4));
    check_damage(more_layers, "GR0602", &["config.json", "`num_hidden_layers` is 4", "have 3 layers"]);
    let fewer_layers = edit_config(|value| value["num_hidden_layers"] = json!(2));
    check_damage(fewer_layers, "GR0602", &["config.json", "`num_hidden_layers` is 2", "have 3 layers"]);
    let absurd = edit_config(|value| value["num_hidden_layers"] = json!(2_000_000_000));
    check_damage(absurd, "GR0602", &["config.json", "`num_hidden_layers` is 2000000000", "have 3 layers"]);
    let wider = edit_config(|value| value["hidden_size"] = json!(2_000_000_000));
    check_damage(wider, "GR0602", &["config.json", "`hidden_size` is 2000000000", "[50, 16]", ".safetensors"]);
    let inner = edit_config(|value| value["intermediate_size"] = json!(2_147_483_647));
    check_damage(inner, "GR0602", &["config.json", "`intermediate_size` is 2147483647", "[24, 16]", ".safetensors"]);
    let heads = edit_config(|value| value["num_attention_heads"] = json!(2_000_000_000));
    check_damage(heads, "GR0602", &["`num_attention_heads` is 2000000000", "q_proj", "20, 4 for each"]);
    let long = edit_config(|value| value["max_position_embeddings"] = json!(2_000_000_000));
    check_damage(long, "GR0602", &["`max_position_embeddings` is 2000000000", "at most 4194304"]);
    let wider = edit_config(|value| value["vocab_size"] = json!(51));
    check_damage(wider, "GR0602", &["`vocab_size` is 51", "embed_tokens", "[50, 16]"]);
    let untied = edit_config(|value| value["tie_word_embeddings"] = json!(false));
    check_damage(untied, "GR0603", &["lm_head.weight", "missing"]);
    let integers = |p: &Path| {
        let path = p.join("model.safetensors");
        for name in weight_files(p) {
            fs::remove_file(p.join(name)).unwrap();
        }
        fs::remove_file(p.join("model.safetensors.index.json")).unwrap();
        let (_, parameters) = tiny();
        let data: Vec<(String, Vec<usize>, Vec<u8>)> = parameters
            .iter()
            .map(|(name, tensor)| {
                (name.to_owned(), tensor.size().iter().map(|&n| n as usize).collect(), vec![0; tensor.numel() * 4])
            })
            .collect();
        let views: BTreeMap<&str, safetensors::tensor::TensorView<'_>> = data
            .iter()
            .map(|(name, shape, bytes)| {
                let view = safetensors::tensor::TensorView::new(safetensors::Dtype::I32, shape.clone(), bytes);
                (name.as_str(), view.unwrap())
            })
            .collect();
        safetensors::serialize_to_file(views, None, &path).unwrap();
    };
    check_damage(integers, "GR0603", &["model.safetensors", "embed_tokens", "I32"]);
}

#[test]
fn a_model_is_counted_without_being_made() {
    let (config, parameters) = tiny();
    assert_eq!(config.parameters(), parameters.iter().map(|(_, tensor)| tensor.numel() as u128).sum());
    let absurd = TinyModel { num_hidden_layers: 2_000_000_000, hidden_size: 2_000_000_000, ..TinyModel::default() };
    assert!(ModelConfig::tiny(&absurd).unwrap().parameters() > 1 << 70);
}

#[test]
fn configurations_that_would_be_computed_wrongly_are_refused() {
    let base = || serde_json::from_slice::<Value>(&fs::read(fixture("llama").join("config.json")).unwrap()).unwrap();
    let check = |key: &str, value: Value, words: &str| {
        let mut json = base();
        json[key] = value;
        let error = ModelConfig::from_json(&json, Path::new("c/config.json")).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, PolicyError::Config { .. }) && text.contains("c/config.json"), "{text}");
        assert!(text.contains(words), "{key}: `{words}` is not in: {text}");
    };
    check("architectures", json!(["MixtralForCausalLM"]), "MixtralForCausalLM");
    check("hidden_act", json!("gelu"), "gelu");
    check("use_sliding_window", json!(true), "use_sliding_window");
    check("layer_types", json!(["full_attention", "sliding_attention"]), "layer_types");
    check("quantization_config", json!({"bits": 4}), "quantised");
    check("logit_scale", json!(0.5), "`logit_scale` is unknown");
    check("rope_parameters", json!({"rope_type": "yarn", "factor": 4.0}), "yarn");
    check("rope_parameters", json!({"rope_type": "llama3", "factor": 4.0}), "low_freq_factor");
    check("partial_rotary_factor", json!(0.5), "partial_rotary_factor");
    check("num_key_value_heads", json!(3), "not a multiple");
    check("hidden_size", json!("64"), "positive integer");
    check("vocab_size", Value::Null, "`vocab_size` is missing");
    check("head_dim", json!(15), "odd");
    check("eos_token_id", json!("end"), "token ids");
    let mut harmless = base();
    harmless["_name_or_path"] = json!("x");
    harmless["some_key_of_tomorrow"] = Value::Null;
    harmless["max_window_layers"] = json!(3);
    ModelConfig::from_json(&harmless, Path::new("c")).unwrap();
}

#[test]
fn both_spellings_of_rope_mean_the_same() {
    let new = load_config(&fixture("llama")).unwrap();
    let mut old = serde_json::Value::Object(new.json.clone());
    let mut scaling = old["rope_parameters"].clone();
    old["rope_theta"] = scaling["rope_theta"].take();
    scaling.as_object_mut().unwrap().remove("rope_theta");
    old["rope_scaling"] = scaling;
    old.as_object_mut().unwrap().remove("rope_parameters");
    let old = ModelConfig::from_json(&old, Path::new("old")).unwrap();
    new.check_same_mathematics(&old, Path::new("old")).unwrap();
    let plain = ModelConfig { rope_theta: 1.0, ..old };
    assert!(new.check_same_mathematics(&plain, Path::new("p")).unwrap_err().to_string().contains("rope_theta: 1.0"));
}

#[test]
fn the_same_seed_initialises_the_same_bits() {
    let (config, parameters) = tiny();
    assert_same(&parameters, &Parameters::init(&config, 4).unwrap());
    let other = Parameters::init(&config, 5).unwrap();
    let name = "model.embed_tokens.weight";
    assert!(bytes(parameters.get(name).unwrap()) != bytes(other.get(name).unwrap()));
    let spread = parameters.get(name).unwrap().std(true).double_value(&[]);
    assert!((spread - 0.02).abs() < 0.002, "{spread}");
}
