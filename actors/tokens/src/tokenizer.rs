//! A Hugging Face tokenizer with what the model's directory says about the end of a turn.
//!
//! The ids that end a turn are, in this order: `eos_token_id` of `generation_config.json`, of `config.json`, and the
//! `eos_token` of `tokenizer_config.json`; engines stop at the same union. Added tokens such as `<|im_end|>` are found in a
//! text whether or not `add_special` is set, which governs only what the tokenizer adds by itself (a BOS token, say).

use std::path::Path;

use crate::model_files::{optional_json, token_ids, token_text};
use crate::{TextStream, TokensError};

/// The tokenizer of a model; see the module's page.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    eos: Option<u32>,
    end_of_turn: Vec<u32>,
    vocabulary_size: u32,
}

impl Tokenizer {
    /// The tokenizer of a model's directory: `tokenizer.json`, and the three configuration files where they exist.
    pub fn from_dir(dir: &Path) -> Result<Self, TokensError> {
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|error| TokensError::Missing {
            path: path.clone(),
            reason: error.to_string(),
            remedy: "the model's directory must hold a Hugging Face tokenizer.json; fetch it, or correct the directory",
        })?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| TokensError::damaged(&path, error))?;
        // Files may carry a length limit or padding from somebody's training; both would change ids silently.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| TokensError::damaged(&path, error))?;
        let vocabulary_size = vocabulary_size(&inner);
        let mut tokenizer = Self { inner, eos: None, end_of_turn: Vec::new(), vocabulary_size };
        tokenizer.read_end_of_turn(dir)?;
        Ok(tokenizer)
    }

    fn read_end_of_turn(&mut self, dir: &Path) -> Result<(), TokensError> {
        for name in ["generation_config.json", "config.json"] {
            let path = dir.join(name);
            let Some(file) = optional_json(&path)? else { continue };
            for id in token_ids(&file, "eos_token_id", &path)? {
                self.add_end_of_turn(id);
            }
        }
        let path = dir.join("tokenizer_config.json");
        let Some(file) = optional_json(&path)? else { return Ok(()) };
        let Some(text) = file.get("eos_token").and_then(token_text) else { return Ok(()) };
        let id = self.token_id(text).ok_or_else(|| {
            TokensError::damaged(&path, format!("eos_token {text:?} is not a token of tokenizer.json"))
        })?;
        self.add_end_of_turn(id);
        self.eos = Some(id);
        Ok(())
    }

    fn add_end_of_turn(&mut self, id: u32) {
        if !self.end_of_turn.contains(&id) {
            self.end_of_turn.push(id);
        }
        self.eos.get_or_insert(id);
    }

    /// The token ids of a text. `add_special` lets the tokenizer add its own tokens (BOS and the like); a rendered chat
    /// template holds them already, so it is encoded with `false`.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokensError> {
        let encoding = self
            .inner
            .encode_fast(text, add_special)
            .map_err(|error| TokensError::Tokenizer { action: "encode a text", reason: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of token ids. `skip_special` leaves special tokens out; ids outside the vocabulary give no text.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokensError> {
        self.inner
            .decode(ids, skip_special)
            .map_err(|error| TokensError::Tokenizer { action: "decode token ids", reason: error.to_string() })
    }

    /// A decoder for ids that arrive one by one.
    pub fn stream(&self, skip_special: bool) -> TextStream {
        TextStream::new(skip_special)
    }

    /// The id of a token by its exact text.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The text of a token as the vocabulary writes it (byte-level tokenizers write a blank as `Ġ`).
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// One more than the largest id, added tokens included. A model's embedding may have more rows than this.
    pub fn vocabulary_size(&self) -> u32 {
        self.vocabulary_size
    }

    /// The token that ends a text: `eos_token` of `tokenizer_config.json`, else the first of
    /// [`end_of_turn_ids`](Self::end_of_turn_ids).
    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    /// Every id that ends a turn, without repetition; empty when the directory names none.
    pub fn end_of_turn_ids(&self) -> &[u32] {
        &self.end_of_turn
    }
}

fn vocabulary_size(tokenizer: &tokenizers::Tokenizer) -> u32 {
    tokenizer.get_vocab(true).into_values().max().map_or(0, |largest| largest + 1)
}
