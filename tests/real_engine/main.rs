//! The fleet drives the embedded engine by the very contract that it drives an unmodified SGLang by: real turns, every pause
//! mode, weights that change and are compared by their numbers, a failed load.
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, its helpers too"
)]

#[path = "../../actors/engine/tests/contract/mod.rs"]
mod contract;

use std::path::Path;
use std::time::Duration;

use contract::{Subject, the_fleet_drives};
use greenroom_policy::server::{EngineServer, EngineServerConfig};
use greenroom_policy::{ModelConfig, Parameters, TinyModel, checkpoint};
use serde_json::{Map, Value, json};

const VOCABULARY: usize = 512;

/// A model that says nothing sensible and never ends by itself: the end token's logit is always 0, another's is larger. It
/// is big enough for 600 tokens to take a while.
fn write_model(directory: &Path, seed: i64) {
    let sizes = TinyModel {
        vocab_size: VOCABULARY,
        hidden_size: 192,
        intermediate_size: 512,
        num_hidden_layers: 4,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 48,
        max_position_embeddings: 1024,
        eos_token_ids: vec![0],
    };
    let config = ModelConfig::tiny(&sizes).unwrap();
    let parameters = Parameters::init(&config, seed as u64).unwrap();
    {
        let _no_grad = tch::no_grad_guard();
        tch::manual_seed(seed);
        for (name, tensor) in parameters.iter().filter(|(_, tensor)| tensor.dim() == 2) {
            let mut tensor = tensor.shallow_clone();
            // The usual start gives almost uniform logits; larger matrices make the output depend on context and seed.
            let _ = tensor.normal_(0.0, 2.0 / (tensor.size()[1] as f64).sqrt());
            if name.contains("embed_tokens") || name.contains("lm_head") {
                let _ = tensor.narrow(0, 0, 1).zero_();
            }
        }
    }
    std::fs::create_dir(directory).unwrap();
    checkpoint::save(directory, &config, &parameters, &checkpoint::SaveOptions::default()).unwrap();
    let mut words: Map<String, Value> = (1..VOCABULARY).map(|id| (format!("w{id}"), json!(id))).collect();
    words.insert("<|im_end|>".to_owned(), json!(0));
    let end = json!({"id": 0, "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false,
                     "normalized": false, "special": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [end], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w1"},
    });
    std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let about = json!({"chat_template": "{{ messages[0].content }}", "eos_token": "<|im_end|>"});
    std::fs::write(directory.join("tokenizer_config.json"), about.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_drives_the_embedded_engine() {
    let models = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| models.path().join(name));
    write_model(&a, 1);
    write_model(&b, 2);
    let engine = EngineServer::start(EngineServerConfig::new(&a)).await.unwrap();
    let (url, weights) = (format!("http://{}", engine.addr), [&a, &b].map(|path| path.display().to_string()));
    the_fleet_drives(Subject { url, weights, some_tokens: Duration::from_millis(60), restart: None }).await;
    engine.shutdown().await.unwrap();
}
