//! The messages of an episode, each with where it came from.
//!
//! The list is append-only, so the messages sent with call k are a prefix of the final list. [`Origin`] tells the owner
//! of token ids which reply an assistant message is, and which replies left only a correction behind.

use serde_json::{Map, Value, json};

use super::tool_call::ToolCall;

/// Who speaks. `Exit` is the closing note of an episode and is never sent to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The standing instructions.
    System,
    /// The task, an observation in text mode, or a correction.
    User,
    /// A reply.
    Assistant,
    /// An observation in tool-call mode.
    Tool,
    /// The closing note.
    Exit,
}

impl Role {
    /// The role's name in a chat template and in a trajectory file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Exit => "exit",
        }
    }
}

/// Where a message came from. Call indexes start at 0 and count every model call, parsed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Rendered before the first call.
    Prompt,
    /// The reply to this call.
    Reply {
        /// Which call.
        call_index: u64,
    },
    /// The result of an action of this call's reply.
    Observation {
        /// Which call.
        call_index: u64,
        /// Which action of the reply.
        action_index: usize,
    },
    /// The correction of this call's reply, which itself is not in the list.
    FormatError {
        /// Which call.
        call_index: u64,
    },
    /// The closing note.
    Exit,
}

/// What a message carries besides its text; never sent to a model.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageExtra {
    /// Nothing.
    None,
    /// Of a reply.
    Reply {
        /// The commands found in it, with the call's id in tool-call mode.
        actions: Vec<(String, Option<String>)>,
        /// What the reply cost.
        cost: f64,
    },
    /// Of an observation.
    Observation {
        /// The output before rendering.
        raw_output: String,
        /// The exit status.
        returncode: i64,
        /// The failure's text as templates see it; empty when there was none.
        exception_info: String,
        /// Type and text of the failure.
        exception: Option<(String, String)>,
    },
    /// Of a correction.
    FormatError {
        /// How many actions the reply had (text mode only).
        action_count: Option<usize>,
        /// The reply's text (text mode only).
        model_response: Option<String>,
        /// What the reply cost.
        cost: f64,
    },
    /// Of the closing note.
    Exit {
        /// How the episode ended.
        exit_status: String,
        /// The submission; empty when nothing was submitted.
        submission: String,
        /// Text of the error that ended the episode.
        exception: Option<String>,
    },
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text.
    pub content: String,
    /// Calls of a reply in tool-call mode.
    pub tool_calls: Vec<ToolCall>,
    /// The call an observation answers in tool-call mode.
    pub tool_call_id: Option<String>,
    /// Where it came from.
    pub origin: Origin,
    /// What else is known of it.
    pub extra: MessageExtra,
}

impl Message {
    /// A message of text alone.
    pub(crate) fn text(role: Role, content: String, origin: Origin, extra: MessageExtra) -> Self {
        Self { role, content, tool_calls: Vec::new(), tool_call_id: None, origin, extra }
    }

    /// What a model is sent: role, content and, where there are any, the tool fields.
    pub fn to_wire(&self) -> Value {
        let mut members = Map::new();
        members.insert("role".to_owned(), self.role.as_str().into());
        members.insert("content".to_owned(), self.content.as_str().into());
        if !self.tool_calls.is_empty() {
            members.insert("tool_calls".to_owned(), self.tool_calls.iter().map(ToolCall::to_wire).collect());
        }
        if let Some(id) = &self.tool_call_id {
            members.insert("tool_call_id".to_owned(), id.as_str().into());
        }
        Value::Object(members)
    }

    /// The message as a trajectory file (`mini-swe-agent-1.1`) holds it.
    pub fn to_trajectory(&self) -> Value {
        let mut message = self.to_wire();
        if let (Some(extra), Some(members)) = (self.extra.to_json(), message.as_object_mut()) {
            members.insert("extra".to_owned(), extra);
        }
        message
    }
}

impl MessageExtra {
    fn to_json(&self) -> Option<Value> {
        let mut extra = match self {
            Self::None => return None,
            Self::Reply { actions, cost } => {
                json!({"actions": actions.iter().map(action_to_json).collect::<Vec<_>>(), "cost": cost})
            }
            Self::Observation { raw_output, returncode, exception_info, .. } => {
                json!({"raw_output": raw_output, "returncode": returncode, "exception_info": exception_info})
            }
            Self::FormatError { cost, .. } => json!({"interrupt_type": "FormatError", "cost": cost}),
            Self::Exit { exit_status, submission, .. } => {
                json!({"exit_status": exit_status, "submission": submission})
            }
        };
        match self {
            Self::Observation { exception: Some((exception_type, exception)), .. } => {
                extra["exception_type"] = exception_type.as_str().into();
                extra["exception"] = exception.as_str().into();
            }
            Self::FormatError { action_count: Some(count), model_response: Some(response), .. } => {
                extra["n_actions"] = (*count).into();
                extra["model_response"] = response.as_str().into();
            }
            Self::Exit { exception: Some(exception), .. } => extra["exception_str"] = exception.as_str().into(),
            _ => {}
        }
        Some(extra)
    }
}

fn action_to_json((command, tool_call_id): &(String, Option<String>)) -> Value {
    match tool_call_id {
        Some(id) => json!({"command": command, "tool_call_id": id}),
        None => json!({"command": command}),
    }
}
