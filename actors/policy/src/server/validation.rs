//! Reading request bodies: bounded, with the errors that pydantic would give.
//!
//! Every body is bounded in size and in the time it may take to arrive. [`parse_object`] gives the JSON object or the
//! validation error of the recorded server; [`Fields`] takes typed values out of it and collects every complaint, so that
//! a client sees all of them at once.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value};

use super::error::{ApiError, FieldError, FieldInput};
use super::python::{repr, repr_bytes};

/// How the imitated server declares a body; decides the wording of errors.
#[derive(Debug, Clone, Copy)]
pub enum BodyKind {
    /// A dataclass of this name (`/generate`).
    Dataclass(&'static str),
    /// A model (the OpenAI-style routes).
    Model,
    /// A struct of this name, which is tried as an instance first and so reports twice (administration).
    Struct(&'static str),
}

/// Reads a whole body.
///
/// # Errors
/// 413 beyond `limit_bytes`, 408 when it does not arrive within `deadline`.
pub async fn read_body(body: Body, limit_bytes: usize, deadline: Duration) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(deadline, axum::body::to_bytes(body, limit_bytes)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(ApiError::Native(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("The request body is incomplete or longer than {limit_bytes} bytes."),
        )),
        Err(_) => {
            Err(ApiError::Native(StatusCode::REQUEST_TIMEOUT, "The request body did not arrive in time.".to_owned()))
        }
    }
}

/// The object in a body.
///
/// # Errors
/// A validation error for a missing body, broken JSON, another content type than JSON, or JSON that is no object.
pub fn parse_object(headers: &HeaderMap, bytes: &[u8], kind: BodyKind) -> Result<Map<String, Value>, ApiError> {
    if bytes.is_empty() {
        return Err(ApiError::Validation(vec![FieldError::new("missing", &[], "Field required", &Value::Null)]));
    }
    if !is_json(headers) {
        return Err(not_an_object(FieldInput::Python(repr_bytes(bytes)), kind));
    }
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(other) => Err(not_an_object(FieldInput::Json(other), kind)),
        Err(error) => Err(broken_json(bytes, &error)),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(header::CONTENT_TYPE) else { return true };
    let essence =
        content_type.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn broken_json(bytes: &[u8], error: &serde_json::Error) -> ApiError {
    let lines_before: usize =
        bytes.split(|byte| *byte == b'\n').take(error.line().saturating_sub(1)).map(|line| line.len() + 1).sum();
    let (position, reason) = if error.is_eof() {
        (bytes.len(), "unexpected end of data".to_owned())
    } else {
        let text = error.to_string();
        let reason = text.split(" at line ").next().unwrap_or_default().to_owned();
        ((lines_before + error.column()).saturating_sub(1), reason)
    };
    let mut field = FieldError::new("json_invalid", &[], "JSON decode error", &Value::Object(Map::new()));
    field.location.push(Value::from(position));
    ApiError::Validation(vec![field.with_context(format!("{{'error': {}}}", repr(&Value::from(reason))))])
}

fn not_an_object(input: FieldInput, kind: BodyKind) -> ApiError {
    let (type_name, message, context) = match kind {
        BodyKind::Dataclass(class) | BodyKind::Struct(class) => (
            "dataclass_type",
            format!("Input should be a dictionary or an instance of {class}"),
            Some(format!("{{'class_name': '{class}'}}")),
        ),
        BodyKind::Model => (
            "model_attributes_type",
            "Input should be a valid dictionary or object to extract fields from".to_owned(),
            None,
        ),
    };
    let mut field = FieldError::new(type_name, &[], message, &Value::Null);
    field.input = input.clone();
    field.context = context;
    let mut errors = Vec::new();
    if let BodyKind::Struct(class) = kind {
        let mut instance = instance_error(class, &Value::Null);
        instance.input = input;
        errors.push(instance);
    }
    errors.push(field);
    ApiError::Validation(errors)
}

fn instance_error(class: &str, input: &Value) -> FieldError {
    let place = format!("is-instance[{class}]");
    FieldError::new("is_instance_of", &[&place], format!("Input should be an instance of {class}"), input)
        .with_context(format!("{{'class': '{class}'}}"))
}

/// Takes typed values out of an object and remembers what was wrong. `null` counts as absent.
#[derive(Debug)]
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    kind: BodyKind,
    errors: Vec<FieldError>,
}

impl<'a> Fields<'a> {
    /// Reads from `object`, a body of this kind.
    #[must_use]
    pub fn new(object: &'a Map<String, Value>, kind: BodyKind) -> Self {
        Self { object, kind, errors: Vec::new() }
    }

    /// The value, unless absent or `null`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// A boolean; absent means `default`. Pydantic also takes 0, 1 and a few words.
    pub fn boolean(&mut self, name: &str, default: bool) -> bool {
        let Some(value) = self.get(name) else { return default };
        let understood = match value {
            Value::Bool(value) => Some(*value),
            Value::Number(number) if number.as_f64() == Some(1.0) => Some(true),
            Value::Number(number) if number.as_f64() == Some(0.0) => Some(false),
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "on" | "yes" | "y" | "t" => Some(true),
                "false" | "0" | "off" | "no" | "n" | "f" => Some(false),
                _ => None,
            },
            _ => None,
        };
        understood.unwrap_or_else(|| {
            self.complain("bool_type", name, "Input should be a valid boolean", value);
            default
        })
    }

    /// A whole number, if present.
    pub fn integer(&mut self, name: &str) -> Option<i64> {
        let value = self.get(name)?;
        match value {
            Value::Number(number) => {
                let whole = number
                    .as_i64()
                    .or_else(|| number.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i64));
                if whole.is_none() {
                    self.complain(
                        "int_from_float",
                        name,
                        "Input should be a valid integer, got a number with a fractional part",
                        value,
                    );
                }
                whole
            }
            Value::String(text) if text.trim().parse::<i64>().is_ok() => text.trim().parse().ok(),
            Value::String(_) => {
                self.complain(
                    "int_parsing",
                    name,
                    "Input should be a valid integer, unable to parse string as an integer",
                    value,
                );
                None
            }
            _ => {
                self.complain("int_type", name, "Input should be a valid integer", value);
                None
            }
        }
    }

    /// A text, if present.
    pub fn string(&mut self, name: &str) -> Option<&'a str> {
        let value = self.get(name)?;
        if !value.is_string() {
            self.complain("string_type", name, "Input should be a valid string", value);
        }
        value.as_str()
    }

    /// A list, if present.
    pub fn list(&mut self, name: &str) -> Option<&'a [Value]> {
        let value = self.get(name)?;
        if !value.is_array() {
            self.complain("list_type", name, "Input should be a valid list", value);
        }
        value.as_array().map(Vec::as_slice)
    }

    /// An object, if present.
    pub fn object(&mut self, name: &str) -> Option<&'a Map<String, Value>> {
        let value = self.get(name)?;
        if !value.is_object() {
            self.complain("dict_type", name, "Input should be a valid dictionary", value);
        }
        value.as_object()
    }

    /// Complains that a field is not there.
    pub fn missing(&mut self, name: &str) {
        self.missing_in(name, &Value::Object(self.object.clone()));
    }

    /// As [`Self::missing`], quoting another input than the body.
    pub fn missing_in(&mut self, name: &str, input: &Value) {
        self.complain("missing", name, "Field required", input);
    }

    /// Remembers a complaint about a field.
    pub fn complain(&mut self, kind: &str, name: &str, message: &str, input: &Value) {
        self.push(FieldError::new(kind, &[name], message, input));
    }

    /// Remembers a complaint whose location is given without the leading `body`.
    pub fn push(&mut self, mut error: FieldError) {
        if let BodyKind::Struct(class) = self.kind {
            if self.errors.is_empty() {
                self.errors.push(instance_error(class, &Value::Object(self.object.clone())));
            }
            error.location.insert(1, Value::from(format!("function-after[build_struct(), {class}]")));
        }
        self.errors.push(error);
    }

    /// All complaints as one error.
    ///
    /// # Errors
    /// When there was any.
    pub fn finish(self) -> Result<(), ApiError> {
        if self.errors.is_empty() { Ok(()) } else { Err(ApiError::Validation(self.errors)) }
    }
}
