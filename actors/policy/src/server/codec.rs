//! The tokenizer and chat template of a model directory, as the server needs them.

use std::path::Path;

use greenroom_tokens::{ChatTemplate, Tokenizer};
use serde_json::Value;

use super::error::ServerError;
use super::text::{ChatPrompt, TextCodec};

/// [`TextCodec`] over the files of a model.
#[derive(Debug)]
pub struct ModelText {
    tokenizer: Tokenizer,
    template: Result<ChatTemplate, String>,
    maximum_length: Option<usize>,
}

impl ModelText {
    /// Reads a model directory. A missing chat template is an error only when a chat is asked for.
    ///
    /// # Errors
    /// The tokenizer is missing or damaged.
    pub fn from_dir(directory: &Path) -> Result<Self, ServerError> {
        let tokenizer = Tokenizer::from_dir(directory)
            .map_err(|error| ServerError::Model { path: directory.to_owned(), reason: error.to_string() })?;
        let template = ChatTemplate::from_dir(directory).map_err(|error| error.to_string());
        let config = std::fs::read(directory.join("tokenizer_config.json")).ok();
        let config: Option<Value> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        // Some tokenizers state 1e30 for "no limit".
        let stated = config.as_ref().and_then(|config| config.get("model_max_length")).and_then(Value::as_u64);
        let maximum_length = stated.and_then(|length| usize::try_from(length).ok());
        Ok(Self { tokenizer, template, maximum_length })
    }
}

impl TextCodec for ModelText {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        self.tokenizer.encode(text, add_special_tokens).map_err(|error| error.to_string())
    }

    fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, String> {
        self.tokenizer.decode(ids, skip_special_tokens).map_err(|error| error.to_string())
    }

    fn render_chat(&self, prompt: &ChatPrompt<'_>) -> Result<String, String> {
        let template = self.template.as_ref().map_err(Clone::clone)?;
        let open = prompt.add_generation_prompt && !prompt.continue_final_message;
        let mut text = template
            .render_with(prompt.messages, open, prompt.tools, prompt.variables)
            .map_err(|error| error.to_string())?;
        if prompt.continue_final_message {
            let last = prompt.messages.last().and_then(|message| message.get("content")).and_then(Value::as_str);
            let content = last.unwrap_or_default().trim();
            let position = text.rfind(content).ok_or("the template does not show the final message")?;
            text.truncate(position + content.len());
        }
        Ok(text)
    }

    fn end_of_turn_ids(&self) -> &[u32] {
        self.tokenizer.end_of_turn_ids()
    }

    fn maximum_length(&self) -> Option<usize> {
        self.maximum_length
    }
}
