//! Steering the generator: abort, pause, continue, flush.
//!
//! Differences to the recorded server, on purpose: an abort reaches requests that are held by a pause (there it is lost),
//! and a pause that aborts answers as soon as the last request has left instead of after at least a second.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::error::{ApiError, FieldError, bare_response, json_response};
use super::state::EngineState;
use super::validation::{BodyKind, Fields, parse_object, read_body};
use crate::generation::PauseMode;

const FLUSHED: &str = "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n";
const FLUSH_POLL: Duration = Duration::from_millis(20);
const FLUSH_LONGEST_WAIT_S: f64 = 3600.0;

/// The object in the body of an administrative call.
///
/// # Errors
/// A validation error, 413 or 408.
pub async fn admin_object(
    state: &EngineState,
    request: Request,
    kind: BodyKind,
) -> Result<Map<String, Value>, ApiError> {
    let (parts, body) = request.into_parts();
    let bytes = read_body(body, state.limits.body_bytes, state.limits.body_deadline).await?;
    parse_object(&parts.headers, &bytes, kind)
}

/// `POST /abort_request`: always 200 and empty, also when nothing matched.
///
/// # Errors
/// Validation errors; 503 when the generator is gone.
pub async fn abort(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let kind = BodyKind::Struct("AbortReq");
    let object = admin_object(&state, request, kind).await?;
    let mut fields = Fields::new(&object, kind);
    let all = fields.boolean("abort_all", false);
    let rid = fields.string("rid").unwrap_or_default().to_owned();
    fields.finish()?;
    if all {
        state.control(state.generator.abort_all()).await?;
    } else if !rid.is_empty() {
        state.control(state.generator.abort(rid)).await?;
    }
    Ok(bare_response(StatusCode::OK, ""))
}

/// `POST /pause_generation`.
///
/// # Errors
/// Validation errors; 503 when the generator is gone.
pub async fn pause(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let kind = BodyKind::Struct("PauseGenerationReqInput");
    let object = admin_object(&state, request, kind).await?;
    let mut fields = Fields::new(&object, kind);
    let modes = "'abort', 'retract' or 'in_place'";
    let mode = match fields.get("mode") {
        None => PauseMode::Abort,
        Some(value) => match value.as_str() {
            Some("abort") => PauseMode::Abort,
            Some("retract") => PauseMode::Retract,
            Some("in_place") => PauseMode::InPlace,
            _ => {
                let error = FieldError::new("literal_error", &["mode"], format!("Input should be {modes}"), value);
                fields.push(error.with_context(format!("{{'expected': \"{modes}\"}}")));
                PauseMode::Abort
            }
        },
    };
    fields.finish()?;
    state.control(state.generator.pause(mode)).await?;
    Ok(json_response(StatusCode::OK, &json!({"message": "Generation paused successfully.", "status": "ok"})))
}

/// `POST /continue_generation`; harmless when not paused.
///
/// # Errors
/// Validation errors; 503 when the generator is gone.
pub async fn resume(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let kind = BodyKind::Struct("ContinueGenerationReqInput");
    let object = admin_object(&state, request, kind).await?;
    let mut fields = Fields::new(&object, kind);
    fields.boolean("torch_empty_cache", true);
    fields.finish()?;
    state.control(state.generator.resume()).await?;
    Ok(json_response(StatusCode::OK, &json!({"message": "Generation continued successfully.", "status": "ok"})))
}

/// Query of `/flush_cache`.
#[derive(Debug, Deserialize)]
pub struct FlushQuery {
    /// Seconds to wait for idleness; absent or 0: try once.
    timeout: Option<f64>,
}

/// `GET` and `POST /flush_cache`: bare text, 200 or 400.
///
/// # Errors
/// 503 when the generator is gone.
pub async fn flush(
    State(state): State<Arc<EngineState>>,
    Query(query): Query<FlushQuery>,
) -> Result<Response, ApiError> {
    let wait_s = query.timeout.unwrap_or(0.0);
    if wait_s.is_nan() || wait_s <= 0.0 {
        return Ok(match try_flush(&state).await? {
            true => bare_response(StatusCode::OK, FLUSHED),
            false => bare_response(StatusCode::BAD_REQUEST, "Flush cache failed.\n"),
        });
    }
    if state.flush_waits.swap(true, Ordering::AcqRel) {
        return Ok(bare_response(StatusCode::BAD_REQUEST, "Another flush_cache is already in progress.\n"));
    }
    // Given back also when the client goes away in the middle.
    let _waits = GiveBack(&state);
    let deadline = Instant::now() + Duration::from_secs_f64(wait_s.min(FLUSH_LONGEST_WAIT_S));
    loop {
        if try_flush(&state).await? {
            return Ok(bare_response(StatusCode::OK, FLUSHED));
        }
        if Instant::now() >= deadline {
            return Ok(bare_response(StatusCode::BAD_REQUEST, "Timed out waiting for idle state.\n"));
        }
        tokio::time::sleep(FLUSH_POLL).await;
    }
}

struct GiveBack<'a>(&'a EngineState);

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.0.flush_waits.store(false, Ordering::Release);
    }
}

async fn try_flush(state: &EngineState) -> Result<bool, ApiError> {
    let deadline = Instant::now() + state.limits.control_deadline;
    match state.ask(deadline, state.generator.flush_cache()).await? {
        Ok(()) => Ok(true),
        Err(crate::error::GenerationError::Busy { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
