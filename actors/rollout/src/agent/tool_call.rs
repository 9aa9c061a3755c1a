//! The tool-call variant: actions as calls of one tool named `bash`.
//!
//! A reply may hold several calls; the first bad one makes the whole reply a format error and nothing of it runs. The
//! error's sentence is part of what the model reads, so its wording is upstream's, down to Python's JSON errors.

use serde_json::{Value, json};

use super::python_json;

/// One call of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id, which its observation names.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as the model wrote them: JSON text, or not.
    pub arguments: String,
}

impl ToolCall {
    /// The call as a chat request holds it.
    pub fn to_wire(&self) -> Value {
        json!({"function": {"arguments": self.arguments, "name": self.name}, "id": self.id, "type": "function"})
    }
}

/// The one tool a request offers in tool-call mode.
pub fn bash_tool_schema() -> Value {
    json!({
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Execute a bash command",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
                "required": ["command"],
            },
        },
    })
}

/// Commands of a reply's calls with the calls' ids, or the sentence that says what is wrong with the reply.
pub(crate) fn commands(calls: &[ToolCall]) -> Result<Vec<(String, Option<String>)>, String> {
    if calls.is_empty() {
        let sentence = "No tool calls found in the response. Every response MUST include at least one tool call.";
        return Err(sentence.to_owned());
    }
    calls.iter().map(|call| Ok((command(call)?, Some(call.id.clone())))).collect()
}

fn command(call: &ToolCall) -> Result<String, String> {
    let mut sentence = String::new();
    let arguments = match python_json::parse(&call.arguments) {
        Ok(arguments) => arguments,
        Err(problem) => {
            sentence.push_str(&format!("Error parsing tool call arguments: {problem}."));
            Value::Null
        }
    };
    if call.name != "bash" {
        sentence.push_str(&format!("Unknown tool '{}'.", call.name));
    }
    let command = arguments.get("command");
    if command.is_none() {
        sentence.push_str("Missing 'command' argument in bash tool call.");
    }
    match command {
        Some(command) if sentence.is_empty() => Ok(command.as_str().map_or_else(|| command.to_string(), str::to_owned)),
        _ => Err(sentence.trim().to_owned()),
    }
}
