//! Token ids back to text as they arrive.
//!
//! A token may hold part of a character, and a tokenizer may write a blank only between words, so the text of a list of ids
//! is not the sum of the texts of its parts. The stream decodes a short window again for each id and gives out what is new,
//! once it does not end in an unfinished character. Invariant: the pieces, with [`TextStream::finish`], add up to the text
//! of all ids.

use crate::{Tokenizer, TokensError};

/// The state of one decoded stream; holds no reference to the tokenizer, so it can live in an actor's state.
#[derive(Clone, Debug)]
pub struct TextStream {
    skip_special: bool,
    window: Vec<u32>,
    // Ids before this place in the window have been given out; they stay only as context for what follows.
    given_out: usize,
}

impl TextStream {
    /// A stream with nothing in it.
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, window: Vec::new(), given_out: 0 }
    }

    /// One more id; gives the text that is certain now and was not before (often empty).
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TokensError> {
        self.window.push(id);
        let piece = self.new_text(tokenizer)?;
        if piece.is_empty() || piece.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.window.drain(..self.given_out);
        self.given_out = self.window.len();
        Ok(piece)
    }

    /// What was held back, an unfinished character as U+FFFD; the stream is empty afterwards.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, TokensError> {
        let piece = self.new_text(tokenizer)?;
        self.window.clear();
        self.given_out = 0;
        Ok(piece)
    }

    fn new_text(&self, tokenizer: &Tokenizer) -> Result<String, TokensError> {
        let context = tokenizer.decode(&self.window[..self.given_out], self.skip_special)?;
        let all = tokenizer.decode(&self.window, self.skip_special)?;
        Ok(all.strip_prefix(context.as_str()).unwrap_or(&all).to_owned())
    }
}
