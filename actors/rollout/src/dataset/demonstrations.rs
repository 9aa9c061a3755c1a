//! Demonstrations for a warm start: JSONL with one conversation a line, `{"messages": [{"role", "content"}, …]}`.
//!
//! A demonstration becomes token ids by the same [`History`] that rollouts use, as if the policy had sampled the assistant's
//! turns: so the policy learns exactly the sequences that it will see, and the mask covers its turns and their ends only.

use std::path::Path;
use std::sync::Arc;

use greenroom_messages::rollout::Sample;
use greenroom_tokens::{ChatTemplate, Tokenizer};
use serde_json::{Map, Value};

use crate::RolloutError;
use crate::tokens::{History, SampledReply};

/// Reads demonstrations as samples to learn from; each turn of the assistant is learnt. Every problem is one line.
pub fn load_demonstrations(
    path: &Path,
    tokenizer: &Arc<Tokenizer>,
    template: &Arc<ChatTemplate>,
    variables: &Map<String, Value>,
) -> Result<Vec<Sample>, RolloutError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| RolloutError::DatasetUnreadable { path: path.to_owned(), reason: error.to_string() })?;
    let mut samples = Vec::new();
    let mut problems = Vec::new();
    for (line, row) in (1..).zip(super::without_mark(&text).lines()).filter(|(_, row)| !row.trim().is_empty()) {
        let history = History::new(tokenizer.clone(), template.clone(), variables.clone(), false);
        match read(row, history, tokenizer) {
            Ok(mut of_row) => samples.append(&mut of_row),
            Err(problem) => problems.push(format!("{}:{line}: {problem}", path.display())),
        }
    }
    if samples.is_empty() && problems.is_empty() {
        problems
            .push(format!("{}: has no demonstrations: write one JSON object with `messages` a line", path.display()));
    }
    if problems.is_empty() { Ok(samples) } else { Err(RolloutError::DatasetInvalid { problems }) }
}

fn read(row: &str, mut history: History, tokenizer: &Tokenizer) -> Result<Vec<Sample>, String> {
    let row: Value = serde_json::from_str(row).map_err(|error| format!("is not JSON ({error})"))?;
    let messages = row.get("messages").and_then(Value::as_array);
    let messages =
        messages.ok_or("has no list `messages`: write {\"messages\": [{\"role\": …, \"content\": …}, …]}")?;
    let mut turns = 0;
    for (place, message) in messages.iter().enumerate() {
        if message.get("role").and_then(Value::as_str) != Some("assistant") {
            continue;
        }
        let content =
            message.get("content").and_then(Value::as_str).ok_or("an assistant message has no text content")?;
        let prompt = history.prompt(&messages[..place]).map_err(|error| error.to_string())?;
        let mut ids = tokenizer.encode(content, false).map_err(|error| error.to_string())?;
        ids.extend(tokenizer.end_of_turn_ids().first());
        let reply = SampledReply { logprobs: vec![0.0; ids.len()], ids, versions: Vec::new() };
        history.record(prompt, &reply).map_err(|error| error.to_string())?;
        turns += 1;
    }
    if turns == 0 { Err("it has no assistant message to learn from".to_owned()) } else { Ok(history.into_samples()) }
}
