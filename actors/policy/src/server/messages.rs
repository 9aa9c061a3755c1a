//! Messages of a chat: their form, and their way through the template into ids.

use serde_json::{Map, Value};

use super::chat::bad_role;
use super::error::{ApiError, FieldError};
use super::state::EngineState;
use super::text::ChatPrompt;
use super::validation::Fields;

const ROLES: [&str; 8] = ["user", "system", "assistant", "tool", "function", "developer", "latest_reminder", "root"];

/// The messages of a body, with string contents. Complaints go to `fields`; an absent list gives none.
pub fn read(fields: &mut Fields<'_>) -> Vec<Value> {
    let Some(list) = fields.list("messages") else { return Vec::new() };
    let mut messages = Vec::with_capacity(list.len());
    for (position, message) in list.iter().enumerate() {
        let Some(object) = message.as_object() else {
            let text = "Input should be a valid dictionary or object to extract fields from";
            let mut error = FieldError::new("model_attributes_type", &["messages"], text, message);
            error.location.push(Value::from(position));
            fields.push(error);
            continue;
        };
        let role = object.get("role").and_then(Value::as_str).map(str::to_lowercase);
        if !role.as_deref().is_some_and(|role| ROLES.contains(&role)) {
            fields.push(bad_role(position, object.get("role").unwrap_or(&Value::Null)));
            continue;
        }
        let mut message = object.clone();
        message.insert("role".to_owned(), role.map_or(Value::Null, Value::from));
        match content(object.get("content")) {
            Ok(text) => message.insert("content".to_owned(), text),
            Err(reason) => {
                let input = object.get("content").unwrap_or(&Value::Null);
                let mut error = FieldError::new("value_error", &["messages"], format!("Value error, {reason}"), input);
                error.location.extend([Value::from(position), Value::from("content")]);
                fields.push(error);
                continue;
            }
        };
        messages.push(Value::Object(message));
    }
    messages
}

/// Contents are text, or parts of which only text is understood here.
fn content(content: Option<&Value>) -> Result<Value, String> {
    match content {
        None | Some(Value::Null) => Ok(Value::from("")),
        Some(Value::String(text)) => Ok(Value::from(text.as_str())),
        Some(Value::Array(parts)) => {
            let texts: Result<Vec<&str>, String> = parts
                .iter()
                .map(|part| {
                    match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
                        (Some("text"), Some(text)) => Ok(text),
                        (kind, _) => Err(format!(
                            "content parts of type {} are not supported by this engine",
                            kind.unwrap_or("null")
                        )),
                    }
                })
                .collect();
            Ok(Value::from(texts?.join(" ")))
        }
        Some(_) => Err("content must be a string or a list of parts".to_owned()),
    }
}

/// `input_ids` of a chat body, which bypass the template.
pub fn given_ids(fields: &mut Fields<'_>) -> Option<Vec<i64>> {
    let list = fields.list("input_ids")?;
    let ids: Option<Vec<i64>> = list.iter().map(Value::as_i64).collect();
    if ids.is_none() {
        fields.complain("int_type", "input_ids", "Input should be a valid integer", &Value::from(list.to_vec()));
    }
    ids
}

/// Renders and encodes.
///
/// # Errors
/// 400 in the OpenAI-style body: no messages, or the template's complaint.
pub fn encode(
    state: &EngineState,
    messages: &[Value],
    tools: Option<&[Value]>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: &Map<String, Value>,
) -> Result<Vec<u32>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::bad_request("Messages cannot be empty.").for_openai());
    }
    let prompt = ChatPrompt { messages, tools, add_generation_prompt, continue_final_message, variables };
    let text = state.text.render_chat(&prompt).map_err(|reason| ApiError::bad_request(reason).for_openai())?;
    let ids = state.text.encode(&text, false).map_err(|reason| ApiError::bad_request(reason).for_openai())?;
    let wide: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    state.check_ids("rendered messages", &wide).map_err(ApiError::for_openai)
}
