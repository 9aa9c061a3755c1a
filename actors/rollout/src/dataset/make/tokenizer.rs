//! A small byte-level tokenizer, trained from the quickstart's own text: the same text gives the same file.
//!
//! Text is first cut so that an operator or a name is one token wherever it stands, in code as in a command: that is what a
//! tiny policy can copy. Any byte has a token, so nothing is ever unknown.

use std::path::Path;

use serde_json::{Value, json};
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::content::{CHAT_TEMPLATE, MODEL};
use super::error::MakeError;

/// Largest number of tokens.
const VOCABULARY: usize = 1024;
/// Ends a text; also the padding.
const END_OF_TEXT: &str = "<|endoftext|>";
/// Begins a message.
const START: &str = "<|im_start|>";
/// Ends a message.
pub(super) const END: &str = "<|im_end|>";
/// How text is cut before pairs are merged: the fence and the sentinel, words with the blank before them, operators with the
/// blank before them, other signs, blank space.
const CUT: &str =
    r"```(?:mswea_bash_command)?|COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT| ?\w+| ?[<>=!]=?| ?//| ?[^\w\s]|\s+(?!\S)|\s+";

/// Trains the tokenizer and writes `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` and the model's
/// `config.json` into a folder. Gives the vocabulary's size.
pub(super) fn write(folder: &Path, corpus: &[String]) -> Result<u32, MakeError> {
    let tokenizer = train(corpus).map_err(|error| MakeError::Tokenizer { reason: error.to_string() })?;
    let size = tokenizer.get_vocab_size(true) as u32;
    let id = |text: &str| tokenizer.token_to_id(text);
    std::fs::create_dir_all(folder).map_err(|error| MakeError::file(folder, error))?;
    let text = tokenizer.to_string(true).map_err(|error| MakeError::Tokenizer { reason: error.to_string() })?;
    put(folder, "tokenizer.json", &text)?;
    put(folder, "chat_template.jinja", CHAT_TEMPLATE)?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    });
    put(folder, "tokenizer_config.json", &pretty(&config))?;
    let mut model: Value = serde_json::from_str(MODEL).map_err(|error| MakeError::content("model.json", error))?;
    model["vocab_size"] = json!(size);
    model["eos_token_id"] = json!(id(END));
    model["pad_token_id"] = json!(id(END_OF_TEXT));
    put(folder, "config.json", &pretty(&model))?;
    put(
        folder,
        "generation_config.json",
        &pretty(&json!({ "eos_token_id": [id(END)], "pad_token_id": id(END_OF_TEXT) })),
    )?;
    Ok(size)
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn put(folder: &Path, name: &str, text: &str) -> Result<(), MakeError> {
    let path = folder.join(name);
    std::fs::write(&path, text).map_err(|error| MakeError::file(&path, error))
}

fn train(corpus: &[String]) -> tokenizers::Result<Tokenizer> {
    let mut tokenizer = Tokenizer::new(BPE::default());
    let cut = Split::new(SplitPattern::Regex(CUT.to_owned()), SplitDelimiterBehavior::Isolated, false)?;
    let bytes = ByteLevel::new(false, true, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![cut.into(), bytes.into()])));
    tokenizer.with_decoder(Some(bytes));
    let special = [END_OF_TEXT, START, END].map(|text| AddedToken::from(text, true)).to_vec();
    let trainer = BpeTrainer::builder()
        .vocab_size(VOCABULARY)
        .special_tokens(special)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), corpus.iter().map(String::as_str))?;
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_text_gives_the_same_file_and_back() {
        let corpus =
            vec!["    return a <= b and not c\n".repeat(20), "sed -i '/def f(/,/^$/s| <=| <|' f.py".to_owned()];
        let (first, second) = (train(&corpus).unwrap(), train(&corpus).unwrap());
        assert_eq!(first.to_string(true).unwrap(), second.to_string(true).unwrap());
        for text in ["    return x <= y\n\n", "żółw 🦔\r\n", "```mswea_bash_command\nls\n```"] {
            let ids = first.encode(text, false).unwrap();
            assert_eq!(first.decode(ids.get_ids(), false).unwrap(), text);
        }
        assert_eq!(first.encode(" <=", false).unwrap().len(), 1, "an operator is one token");
    }
}
