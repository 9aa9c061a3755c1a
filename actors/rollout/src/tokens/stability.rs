//! Whether a chat template can be extended: asked once at the start, so that a run says early how it will train.

use std::sync::Arc;

use greenroom_tokens::{ChatTemplate, Tokenizer, TokensError};
use serde_json::{Map, Value, json};

use super::{History, SampledReply};

/// How a template treats what it rendered before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateStability {
    /// A later rendering begins with the earlier one: a linear episode is one sample.
    Extends,
    /// It does not: each turn becomes a sample of its own.
    Forks,
}

/// Renders a short conversation with this template, turn by turn, and sees whether it forks. `variables` are the
/// template's further variables. An error means that the template refuses an agent's messages altogether.
pub fn probe_template(
    tokenizer: &Arc<Tokenizer>,
    template: &Arc<ChatTemplate>,
    variables: &Map<String, Value>,
) -> Result<TemplateStability, TokensError> {
    let mut history = History::new(tokenizer.clone(), template.clone(), variables.clone(), false);
    let mut messages = vec![message("system", "Be brief."), message("user", "Begin.")];
    for turn in 0..3 {
        let prompt = history.prompt(&messages)?;
        let mut ids = tokenizer.encode(&format!("Reply {turn}."), false)?;
        ids.extend(tokenizer.end_of_turn_ids().first());
        let reply = SampledReply { logprobs: vec![0.0; ids.len()], ids, versions: Vec::new() };
        let text = history.record(prompt, &reply)?;
        messages.push(message("assistant", &text));
        messages.push(message("user", "Go on."));
    }
    Ok(if history.forks() == 0 { TemplateStability::Extends } else { TemplateStability::Forks })
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}
