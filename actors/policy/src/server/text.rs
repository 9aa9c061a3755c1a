//! Between text and token ids: the tokenizer as the server sees it, and decoding of a growing output.
//!
//! The server needs little of a tokenizer, so it asks for a trait; tests give it a toy one. A stream must never show half
//! a character and then change it: [`GrowingText`] holds text back until it is whole, as SGLang's detokenizer does.

use serde_json::{Map, Value};

/// What the server needs of a tokenizer and its chat template. Errors are human text.
pub trait TextCodec: Send + Sync {
    /// Ids of a text; `add_special_tokens` adds what the tokenizer puts around a text (a start token, for some models).
    ///
    /// # Errors
    /// Why the text cannot be encoded.
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String>;

    /// Text of ids. Incomplete characters come out as U+FFFD.
    ///
    /// # Errors
    /// Why the ids cannot be decoded.
    fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, String>;

    /// Renders messages with the model's chat template.
    ///
    /// # Errors
    /// The template's complaint, or that the model has none.
    fn render_chat(&self, prompt: &ChatPrompt<'_>) -> Result<String, String>;

    /// Ids that end a turn, as far as the tokenizer knows; beside those of the model's configuration.
    fn end_of_turn_ids(&self) -> &[u32] {
        &[]
    }

    /// The tokenizer's own limit (`model_max_length`), if it states one.
    fn maximum_length(&self) -> Option<usize> {
        None
    }
}

/// What a chat template is given.
#[derive(Debug)]
pub struct ChatPrompt<'a> {
    /// Messages with `role` and string `content`.
    pub messages: &'a [Value],
    /// Tool declarations; `None` when the request has none.
    pub tools: Option<&'a [Value]>,
    /// End with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// Leave the last message open, to be continued.
    pub continue_final_message: bool,
    /// Extra variables of the template.
    pub variables: &'a Map<String, Value>,
}

/// Decodes an output that grows token by token.
///
/// Invariant: what [`Self::visible`] has shown stays a prefix of what it will show, until the output is final.
#[derive(Debug, Default)]
pub struct GrowingText {
    settled: String,
    settled_from: usize,
    settled_to: usize,
}

impl GrowingText {
    /// The text of `ids` as far as it is whole; `ids` must extend those of the last call. With `last` everything is shown,
    /// incomplete characters as U+FFFD.
    pub fn visible(&mut self, codec: &dyn TextCodec, ids: &[u32], skip_special_tokens: bool, last: bool) -> String {
        let decode = |range: &[u32]| codec.decode(range, skip_special_tokens).unwrap_or_default();
        // Some tokenizers write a word differently at the start of a text, so the new part is found by decoding it behind
        // the last settled piece, and taking that piece off again.
        let before = decode(&ids[self.settled_from.min(ids.len())..self.settled_to.min(ids.len())]);
        let whole = decode(&ids[self.settled_from.min(ids.len())..]);
        let fresh = whole.strip_prefix(before.as_str()).unwrap_or_default();
        if !fresh.is_empty() && !fresh.ends_with('\u{fffd}') {
            self.settled.push_str(fresh);
            self.settled_from = self.settled_to;
            self.settled_to = ids.len();
            return self.settled.clone();
        }
        if last { format!("{}{fresh}", self.settled) } else { self.settled.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One id per UTF-8 byte.
    struct Bytes;

    impl TextCodec for Bytes {
        fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, String> {
            Ok(text.bytes().map(u32::from).collect())
        }

        fn decode(&self, ids: &[u32], _: bool) -> Result<String, String> {
            let bytes: Vec<u8> = ids.iter().map(|id| *id as u8).collect();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }

        fn render_chat(&self, _: &ChatPrompt<'_>) -> Result<String, String> {
            Err("no template".to_owned())
        }
    }

    #[test]
    fn a_growing_text_never_shows_half_a_character() {
        let ids = Bytes.encode("aé→b", false).unwrap();
        let mut text = GrowingText::default();
        let shown: Vec<String> = (1..=ids.len()).map(|end| text.visible(&Bytes, &ids[..end], true, false)).collect();
        assert_eq!(shown, ["a", "a", "aé", "aé", "aé", "aé→", "aé→b"]);
        let mut cut = GrowingText::default();
        assert_eq!(cut.visible(&Bytes, &ids[..2], true, true), "a\u{fffd}");
    }
}
