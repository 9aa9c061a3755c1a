//! One real (tiny, random) network behind the server: the numbers of its answers agree with each other.

use std::path::Path;

use greenroom_policy::server::{EngineServer, EngineServerConfig};
use greenroom_policy::{ModelConfig, Parameters, TinyModel, checkpoint};
use serde_json::{Map, Value, json};

use crate::client::Call;

const WORDS: usize = 64;

/// A model directory with random weights and a tokenizer whose tokens are words.
fn write_model(directory: &Path, seed: u64, hidden_size: usize) {
    let sizes = TinyModel {
        vocab_size: WORDS,
        hidden_size,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 16,
        max_position_embeddings: 256,
        eos_token_ids: vec![1],
    };
    let config = ModelConfig::tiny(&sizes).unwrap();
    checkpoint::save(
        directory,
        &config,
        &Parameters::init(&config, seed).unwrap(),
        &checkpoint::SaveOptions::default(),
    )
    .unwrap();
    let mut vocabulary: Map<String, Value> = (2..WORDS).map(|id| (format!("w{id}"), json!(id))).collect();
    vocabulary.extend([("?".to_owned(), json!(0)), ("<|im_end|>".to_owned(), json!(1))]);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [{"id": 1, "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    });
    let template =
        "{% for m in messages %}w2 {{ m.content }} <|im_end|> {% endfor %}{% if add_generation_prompt %}w3{% endif %}";
    let about = json!({"chat_template": template, "eos_token": "<|im_end|>", "model_max_length": 512});
    std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(directory.join("tokenizer_config.json"), about.to_string()).unwrap();
}

fn logprobs(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().filter_map(|triple| triple[0].as_f64()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_network_serves_scores_and_takes_new_weights() {
    let models = tempfile::tempdir().unwrap();
    for (name, seed, hidden) in [("a", 1, 32), ("b", 2, 32), ("wide", 3, 64)] {
        std::fs::create_dir(models.path().join(name)).unwrap();
        write_model(&models.path().join(name), seed, hidden);
    }
    let path = |name: &str| models.path().join(name);
    let engine = EngineServer::start(EngineServerConfig::new(path("a"))).await.unwrap();
    let ask = async |path: &str, body: Value| Call::post(path, &body).send(engine.addr).await;
    let prompt = json!([5, 9, 2, 17]);
    let greedy = json!({
        "input_ids": prompt, "return_logprob": true,
        "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": true},
    });

    // What was sampled with a cache, token by token, is scored alike in one pass over the whole text.
    let sampled = ask("/generate", greedy.clone()).await.json();
    let mut whole = prompt.as_array().unwrap().clone();
    whole.extend(sampled["output_ids"].as_array().unwrap().clone());
    let score = json!({
        "input_ids": whole, "return_logprob": true, "logprob_start_len": 0, "sampling_params": {"temperature": 0, "max_new_tokens": 0},
    });
    let scored = ask("/generate", score).await.json();
    let of_output = logprobs(&sampled["meta_info"]["output_token_logprobs"]);
    let of_prompt = logprobs(&scored["meta_info"]["input_token_logprobs"]);
    assert_eq!(of_output.len(), 12);
    for (one, other) in of_output.iter().zip(&of_prompt[3..]) {
        assert!((one - other).abs() < 1e-4, "{one} sampled, {other} scored");
    }

    // The stream, the chat and the tokenizer agree with it.
    let mut streamed = greedy.clone();
    streamed["stream"] = json!(true);
    let events = ask("/generate", streamed).await.events();
    let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!((&last["output_ids"], &last["text"]), (&sampled["output_ids"], &sampled["text"]));
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        assert_eq!(chunk["meta_info"]["cached_tokens"], 3, "known from the first chunk on: {chunk}");
    }
    // Another key shares nothing of it, and shares its own from the second request on.
    for cached in [0, 3] {
        let mut keyed = greedy.clone();
        keyed["extra_key"] = json!("run:1");
        let keyed = ask("/generate", keyed).await.json();
        assert_eq!(
            (&keyed["meta_info"]["cached_tokens"], &keyed["output_ids"]),
            (&json!(cached), &sampled["output_ids"])
        );
    }
    for key in ["extra_key", "cache_salt"] {
        let mut asked =
            json!({"prompt": prompt, "max_tokens": 1, "temperature": 0, "rid": format!("by {key}"), "stream": false});
        asked[key] = json!("unseen");
        assert_eq!(ask("/v1/completions", asked).await.status, 200);
    }
    let wrong = json!({"input_ids": prompt, "extra_key": 7});
    assert_eq!(ask("/generate", wrong).await.status, 400);
    let chat = json!({
        "messages": [{"role": "user", "content": "w7 w8"}], "max_tokens": 5, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
    });
    let answer = ask("/v1/chat/completions", chat).await.json();
    assert_eq!(answer["choices"][0]["prompt_token_ids"], json!([2, 7, 8, 1, 3]));
    assert_eq!(answer["usage"]["total_tokens"], 10);
    let tokens = ask("/v1/tokenize", json!({"messages": [{"role": "user", "content": "w7 w8"}]})).await.json();
    assert_eq!(tokens, json!({"tokens": [2, 7, 8, 1, 3], "count": 5, "max_model_len": 512}));

    // A stop string ends the text where it begins.
    let second_word = sampled["text"].as_str().unwrap().split(' ').nth(2).unwrap().to_owned();
    let mut stopped = greedy.clone();
    stopped["sampling_params"]["stop"] = json!([second_word]);
    let stopped = ask("/generate", stopped).await.json();
    assert_eq!(stopped["meta_info"]["finish_reason"], json!({"type": "stop", "matched": second_word}));
    assert!(!stopped["text"].as_str().unwrap().contains(&second_word));

    // Weights of the wrong shape are refused and nothing changes; good ones change the answer, and back.
    let update = |name: &str, version: &str| json!({"model_path": path(name), "weight_version": version});
    let refused = ask("/update_weights_from_disk", update("wide", "x")).await;
    assert_eq!((refused.status, refused.json()["success"].clone()), (400, json!(false)));
    assert_eq!(ask("/generate", greedy.clone()).await.json()["output_ids"], sampled["output_ids"]);
    assert_eq!(ask("/update_weights_from_disk", update("b", "run:1")).await.status, 200);
    let after = ask("/generate", greedy.clone()).await.json();
    assert_ne!(after["meta_info"]["output_token_logprobs"], sampled["meta_info"]["output_token_logprobs"]);
    assert_eq!(after["meta_info"]["weight_versions"], json!([{"version": "run:1", "start": 0, "end": 12}]));
    let norm =
        ask("/get_weights_by_name", json!({"name": "model.embed_tokens.weight", "truncate_size": 2})).await.json();
    assert_eq!((norm.as_array().unwrap().len(), norm[0].as_array().unwrap().len()), (2, 32));
    assert_eq!(ask("/update_weights_from_disk", update("a", "run:2")).await.status, 200);
    let back = ask("/generate", greedy).await.json();
    assert_eq!(back["meta_info"]["output_token_logprobs"], sampled["meta_info"]["output_token_logprobs"]);
    assert_eq!(Call::get("/health").send(engine.addr).await.status, 200);
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_directory_that_cannot_be_served_is_named() {
    let models = tempfile::tempdir().unwrap();
    write_model(models.path(), 1, 32);
    std::fs::remove_file(models.path().join("tokenizer.json")).unwrap();
    let error = EngineServer::start(EngineServerConfig::new(models.path())).await.err().expect("no tokenizer");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    assert_eq!(error.code(), "GR0641");
}
