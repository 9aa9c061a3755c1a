//! The small JSON files of a model's directory, read with errors that name them.

use std::path::Path;

use serde_json::Value;

use crate::TokensError;

/// A JSON file; `None` when there is none.
pub(crate) fn optional_json(path: &Path) -> Result<Option<Value>, TokensError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(TokensError::damaged(path, error)),
    };
    serde_json::from_str(&text).map(Some).map_err(|error| TokensError::damaged(path, error))
}

/// The text of a special token as `tokenizer_config.json` writes it: a string, or an object with `content`.
pub(crate) fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// The ids under a key that holds one id, a list of ids, or null.
pub(crate) fn token_ids(file: &Value, key: &str, path: &Path) -> Result<Vec<u32>, TokensError> {
    let wrong = |value: &Value| TokensError::damaged(path, format!("{key} is {value}, not a token id"));
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| wrong(value));
    match file.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(single) => Ok(vec![id(single)?]),
    }
}
