//! A missing or damaged file is one clear line that names the file and the remedy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may

use std::path::Path;

use greenroom_tokens::{ChatTemplate, Tokenizer, TokensError};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tokens/tiny");

fn copy(dir: &Path) {
    for entry in std::fs::read_dir(TINY).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
}

fn load(dir: &Path) -> Result<(), TokensError> {
    Tokenizer::from_dir(dir)?;
    ChatTemplate::from_dir(dir)?;
    Ok(())
}

#[test]
fn every_wrong_file_is_named() {
    let whole = std::fs::read_to_string(Path::new(TINY).join("tokenizer.json")).unwrap();
    let half = &whole[..whole.len() / 2];
    // File, its content (none: removed), the code, words of the message.
    let cases: &[(&str, Option<&str>, &str, &str)] = &[
        ("tokenizer.json", None, "GR0370", "fetch it, or correct the directory"),
        ("tokenizer.json", Some(half), "GR0371", "EOF"),
        ("tokenizer.json", Some("{}"), "GR0371", "fetch the model's directory again"),
        (
            "generation_config.json",
            Some("{\"eos_token_id\": \"x\"}"),
            "GR0371",
            "eos_token_id is \"x\", not a token id",
        ),
        ("tokenizer_config.json", Some("{\"eos_token\": \"<none>\"}"), "GR0371", "not a token of tokenizer.json"),
        ("tokenizer_config.json", Some("["), "GR0371", "EOF"),
        ("chat_template.jinja", None, "GR0370", "chat_template in tokenizer_config.json"),
        ("chat_template.jinja", Some("{% if x %}"), "GR0371", "unexpected end of input"),
    ];
    for (name, content, code, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        copy(dir.path());
        load(dir.path()).unwrap();
        let path = dir.path().join(name);
        match content {
            Some(content) => std::fs::write(&path, content).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let error = load(dir.path()).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.code(), *code, "{text}");
        assert!(text.contains(words) && text.contains(path.to_str().unwrap()), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}

#[test]
fn a_template_in_the_tokenizers_configuration_is_found() {
    let named = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ eos_token }}"}],
                    "eos_token": {"content": "<|im_end|>"}}"#;
    for (config, expected) in [(r#"{"chat_template": "plain"}"#, "plain"), (named, "d<|im_end|>")] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        assert_eq!(ChatTemplate::from_dir(dir.path()).unwrap().render(&[], false, None).unwrap(), expected);
    }
}
