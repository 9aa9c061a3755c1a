//! Comparing an episode's messages with recorded ones, some of which are kept as hashes.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// SHA-256 of a text's UTF-8 bytes, in lower-case hexadecimal.
pub fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The differences between a recorded value and ours, each with its path. A recorded `{"sha256", "chars"}` stands for a
/// text; one with `template` is skipped where the template it came from is not known.
pub fn differences(recorded: &Value, ours: &Value, templates_known: bool) -> Vec<String> {
    let mut found = Vec::new();
    compare(recorded, ours, templates_known, "", &mut found);
    found
}

fn compare(recorded: &Value, ours: &Value, templates_known: bool, path: &str, found: &mut Vec<String>) {
    match (recorded, ours) {
        (Value::Object(hash), Value::String(text)) if hash.contains_key("sha256") => {
            let skipped = hash.contains_key("template") && !templates_known;
            if !skipped && (hash["sha256"] != sha256(text) || hash["chars"] != text.chars().count()) {
                let end = text.char_indices().nth(600).map_or(text.len(), |(index, _)| index);
                found.push(format!("{path}: another text than recorded ({hash:?}): {:?}", &text[..end]));
            }
        }
        (Value::Object(recorded), Value::Object(ours)) => {
            // What a reply cost is not part of the recordings.
            let keys = recorded.keys().chain(ours.keys().filter(|key| *key != "cost" && !recorded.contains_key(*key)));
            for key in keys {
                let member = |side: &serde_json::Map<String, Value>| side.get(key).cloned().unwrap_or(Value::Null);
                compare(&member(recorded), &member(ours), templates_known, &format!("{path}.{key}"), found);
            }
        }
        (Value::Array(recorded), Value::Array(ours)) if recorded.len() == ours.len() => {
            for (index, (recorded, ours)) in recorded.iter().zip(ours).enumerate() {
                compare(recorded, ours, templates_known, &format!("{path}[{index}]"), found);
            }
        }
        (recorded, ours) if recorded == ours => {}
        (recorded, ours) => found.push(format!("{path}: recorded {recorded}, ours {ours}")),
    }
}
