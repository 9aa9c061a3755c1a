//! How this server says no, in the words and shapes of the server it imitates.
//!
//! SGLang has grown several error bodies, and clients look for each of them: native requests answer
//! `{"error":{"message"}}`, the strict check of sampling parameters `{"error":"text"}`, body validation and the
//! OpenAI-style routes `{"object":"error",…}`, administration `{"success":false,"message"}`. Every failure is one
//! [`ApiError`], and only [`ApiError::into_response`] decides on bytes. In a stream whose headers are gone the same error
//! becomes an event ([`ApiError::stream_event`]).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use greenroom_core::ErrorPage;
use serde_json::{Value, json};

use super::python::repr;
use crate::error::GenerationError;

/// One entry of a body validation error, as pydantic words it.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    /// Pydantic's kind, such as `missing`.
    pub kind: String,
    /// Where: `body`, then keys (strings) and positions (numbers).
    pub location: Vec<Value>,
    /// Human text.
    pub message: String,
    /// What was found; [`None`] prints as Python's `None`. Raw bytes are given as ready Python text.
    pub input: FieldInput,
    /// Extra facts, as ready Python text, such as `{'expected': "'user'"}`.
    pub context: Option<String>,
}

/// The offending input of a [`FieldError`].
#[derive(Debug, Clone, PartialEq)]
pub enum FieldInput {
    /// A JSON value.
    Json(Value),
    /// Text that is Python already.
    Python(String),
}

impl FieldError {
    /// `loc` is given without the leading `body`.
    #[must_use]
    pub fn new(kind: &str, location: &[&str], message: impl Into<String>, input: &Value) -> Self {
        let mut path = vec![Value::from("body")];
        path.extend(location.iter().map(|part| Value::from(*part)));
        let input = FieldInput::Json(input.clone());
        Self { kind: kind.to_owned(), location: path, message: message.into(), input, context: None }
    }

    /// Adds the context text.
    #[must_use]
    pub fn with_context(mut self, context: impl Into<String>) -> Self {
        self.context = Some(context.into());
        self
    }

    fn python(&self) -> String {
        let parts: Vec<String> = self.location.iter().map(repr).collect();
        let location = if parts.len() == 1 { format!("({},)", parts[0]) } else { format!("({})", parts.join(", ")) };
        let input = match &self.input {
            FieldInput::Json(value) => repr(value),
            FieldInput::Python(text) => text.clone(),
        };
        let kind = repr(&Value::from(self.kind.as_str()));
        let message = repr(&Value::from(self.message.as_str()));
        let context = self.context.as_ref().map(|text| format!(", 'ctx': {text}")).unwrap_or_default();
        format!("{{'type': {kind}, 'loc': {location}, 'msg': {message}, 'input': {input}{context}}}")
    }
}

/// Any refusal or failure.
#[derive(Debug, Clone, PartialEq)]
pub enum ApiError {
    /// `{"error":{"message"}}` with this status.
    Native(StatusCode, String),
    /// `{"error":"text"}`, 400: the strict contract of `/generate`.
    Strict(String),
    /// `{"object":"error",…,"type":"Bad Request"}`, 400: the body has the wrong form.
    Validation(Vec<FieldError>),
    /// `{"object":"error",…}` of the OpenAI-style routes.
    OpenAi(StatusCode, String),
    /// `{"success":false,"message"}`, 400: administration refused.
    Admin(String),
    /// As `Admin`, with `num_paused_requests`, for weights from disk.
    WeightsFromDisk(String),
    /// `{"detail":…}`: routing.
    Routing(StatusCode, &'static str),
    /// `{"error":"Unauthorized"}` or `{"error":"Forbidden"}`.
    Access(StatusCode, &'static str),
}

impl ApiError {
    /// A bad value in a native request.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::Native(StatusCode::BAD_REQUEST, message.into())
    }

    /// The OpenAI-style routes wrap refusals of a native request in their own body.
    #[must_use]
    pub fn for_openai(self) -> Self {
        match self {
            Self::Native(status, message) => Self::OpenAi(status, message),
            Self::Strict(message) => Self::OpenAi(StatusCode::BAD_REQUEST, message),
            other => other,
        }
    }

    /// The status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Native(status, _) | Self::OpenAi(status, _) | Self::Routing(status, _) | Self::Access(status, _) => {
                *status
            }
            Self::Strict(_) | Self::Validation(_) | Self::Admin(_) | Self::WeightsFromDisk(_) => {
                StatusCode::BAD_REQUEST
            }
        }
    }

    /// The human text.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Native(_, text)
            | Self::OpenAi(_, text)
            | Self::Strict(text)
            | Self::Admin(text)
            | Self::WeightsFromDisk(text) => text.clone(),
            Self::Routing(_, text) | Self::Access(_, text) => (*text).to_owned(),
            Self::Validation(fields) => {
                let plural = if fields.len() == 1 { "" } else { "s" };
                let lines: Vec<String> = fields.iter().map(|field| format!("\n  {}", field.python())).collect();
                format!("{} validation error{plural}:{}", fields.len(), lines.concat())
            }
        }
    }

    /// The JSON body.
    #[must_use]
    pub fn body(&self) -> Value {
        let message = self.message();
        let code = self.status().as_u16();
        match self {
            Self::Native(..) => json!({"error": {"message": message}}),
            Self::Strict(_) | Self::Access(..) => json!({"error": message}),
            Self::Validation(_) => {
                json!({"object": "error", "message": message, "type": "Bad Request", "param": null, "code": code})
            }
            Self::OpenAi(status, _) => {
                let kind = if status.is_server_error() { "InternalServerError" } else { "BadRequestError" };
                json!({"object": "error", "message": message, "type": kind, "param": null, "code": code})
            }
            Self::Admin(_) => json!({"success": false, "message": message}),
            Self::WeightsFromDisk(_) => json!({"success": false, "message": message, "num_paused_requests": 0}),
            Self::Routing(..) => json!({"detail": message}),
        }
    }

    /// The same error as an event of a stream that has already begun.
    #[must_use]
    pub fn stream_event(&self) -> Value {
        let status = self.status();
        let kind = if status.is_server_error() { "internal_server_error" } else { "invalid_request_error" };
        let retryable = status == StatusCode::SERVICE_UNAVAILABLE;
        json!({"error": {"message": self.message(), "type": kind, "code": status.as_u16(), "retryable": retryable}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        json_response(self.status(), &self.body())
    }
}

impl From<GenerationError> for ApiError {
    fn from(error: GenerationError) -> Self {
        match error {
            GenerationError::InvalidParameter { message } | GenerationError::InvalidPrompt { message } => {
                Self::bad_request(message)
            }
            GenerationError::TooLong { .. } | GenerationError::StopNeedsDecoder | GenerationError::Busy { .. } => {
                Self::bad_request(error.to_string())
            }
            GenerationError::DuplicateRequest { rid } => {
                Self::bad_request(format!("Duplicate request ID detected: {rid}"))
            }
            GenerationError::UpdateRefused { reason } => {
                Self::WeightsFromDisk(format!("Failed to update weights: {reason}."))
            }
            GenerationError::UnknownWeight { .. } => Self::bad_request("Get parameter by name failed"),
            GenerationError::Failed { .. } => Self::Native(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            GenerationError::GeneratorStopped => Self::Native(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        }
    }
}

/// A JSON response with exactly the content type that SGLang sends (no charset).
#[must_use]
pub fn json_response(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(axum::body::Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A response without a content type: an empty body or, as SGLang does for `/flush_cache`, bare text.
#[must_use]
pub fn bare_response(status: StatusCode, text: &'static str) -> Response {
    let mut response = Response::new(axum::body::Body::from(text));
    *response.status_mut() = status;
    response
}

/// What starting and stopping the server can run into.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {reason}; choose another port, or 0 for any free one")]
    Bind {
        /// What was asked for.
        address: std::net::SocketAddr,
        /// What the system said.
        reason: String,
    },
    /// The model or its tokenizer cannot be loaded.
    #[error("cannot serve the model in {path}: {reason}", path = path.display())]
    Model {
        /// The directory.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The generator thread ended while the server started.
    #[error("the generator has stopped: {0}")]
    Generator(String),
    /// The server did not end in time.
    #[error("the server did not stop within {seconds} s; its connections were cut")]
    Shutdown {
        /// The deadline.
        seconds: u64,
    },
}

impl ServerError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Bind { .. } => "GR0640",
            Self::Model { .. } => "GR0641",
            Self::Generator(_) => "GR0642",
            Self::Shutdown { .. } => "GR0643",
        }
    }
}

/// The pages of this server's codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0640",
        cause: "the embedded engine cannot listen on the address it was given",
        remedy: "another process may hold the port: choose another one, or port 0 for any free one",
    },
    ErrorPage {
        code: "GR0641",
        cause: "the embedded engine cannot load the model directory, or the tokenizer in it",
        remedy: "the directory must hold config.json, safetensors files and tokenizer.json; the text names what is wrong",
    },
    ErrorPage {
        code: "GR0642",
        cause: "the thread that generates tokens ended or did not answer while the server started",
        remedy: "look for its last words in the log; memory may be too small for max_running_requests times the context",
    },
    ErrorPage {
        code: "GR0643",
        cause: "connections to the embedded engine were still open at the end of its stop deadline and were cut",
        remedy: "a client does not read its answers; a longer drain deadline helps only if it will",
    },
];
