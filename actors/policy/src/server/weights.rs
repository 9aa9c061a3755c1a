//! Changing and reading the weights over HTTP.
//!
//! Differences to the recorded server, on purpose: a checkpoint whose shapes do not fit and an unknown `load_format` are
//! refused with 400 and the old weights serve on (there they kill the server); `/get_weights_by_name` works (there it is
//! not implemented for these models). Pushing tensors over a process group is refused: this engine reads from disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::control::admin_object;
use super::error::{ApiError, json_response};
use super::state::EngineState;
use super::validation::{BodyKind, Fields};

const NOT_FLUSHED: &str = "Weights were updated, but the cache was not flushed because requests are still running or queued. \
                           Retract or finish them, then call /flush_cache.";
const LOAD_FORMATS: [&str; 2] = ["auto", "safetensors"];

/// `POST /update_weights_from_disk`.
///
/// # Errors
/// Validation errors; 400 with `success: false` when the weights were not taken, or were taken but the cache not flushed.
pub async fn update_from_disk(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let kind = BodyKind::Struct("UpdateWeightFromDiskReqInput");
    let object = admin_object(&state, request, kind).await?;
    let mut fields = Fields::new(&object, kind);
    let model_path = fields.string("model_path").unwrap_or_default().to_owned();
    if fields.get("model_path").is_none() {
        fields.missing("model_path");
    }
    let version = fields.string("weight_version").map(str::to_owned);
    let load_format = fields.string("load_format").map(str::to_owned);
    let flush_cache = fields.boolean("flush_cache", true);
    let abort_all = fields.boolean("abort_all_requests", false);
    fields.finish()?;
    if let Some(format) = load_format.filter(|format| !LOAD_FORMATS.contains(&format.as_str())) {
        let known = LOAD_FORMATS.join(", ");
        return Err(ApiError::WeightsFromDisk(format!("Unknown load_format '{format}': this engine knows {known}.")));
    }
    if !std::path::Path::new(&model_path).is_dir() {
        return Err(ApiError::WeightsFromDisk(format!(
            "Failed to get weights iterator: '{model_path}' is not a directory."
        )));
    }
    if abort_all {
        state.control(state.generator.abort_all()).await?;
    }
    let began = Instant::now();
    let update = state.generator.update_weights(model_path.as_str(), version.clone(), flush_cache);
    let report = state.ask(began + state.limits.update_deadline, update).await??;
    state.metrics.weights_loaded(began.elapsed().as_secs_f64());
    {
        let mut served = state.served();
        served.model_path.clone_from(&model_path);
        served.served_model_name = model_path;
        served.weight_version = report.weight_version.to_string();
        served.generator_path = None;
    }
    if flush_cache && !report.cache_flushed {
        return Err(ApiError::WeightsFromDisk(NOT_FLUSHED.to_owned()));
    }
    let mut message = "Succeeded to update model weights.".to_owned();
    if let Some(version) = version {
        message.push_str(&format!(" Weight version updated to {version}."));
    }
    Ok(json_response(StatusCode::OK, &json!({"success": true, "message": message, "num_paused_requests": 0})))
}

/// `POST /update_weight_version`: the label only; aborts everything in flight unless told otherwise, as SGLang does.
///
/// # Errors
/// Validation errors; 503 when the generator is gone.
pub async fn update_version(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let kind = BodyKind::Struct("UpdateWeightVersionReqInput");
    let object = admin_object(&state, request, kind).await?;
    let mut fields = Fields::new(&object, kind);
    let version = fields.string("new_version").unwrap_or_default().to_owned();
    if fields.get("new_version").is_none() {
        fields.missing("new_version");
    }
    let abort_all = fields.boolean("abort_all_requests", true);
    fields.finish()?;
    if abort_all {
        state.control(state.generator.abort_all()).await?;
    }
    state.control(state.generator.set_weight_version(version.as_str())).await?;
    state.served().weight_version.clone_from(&version);
    let message = format!("Weight version updated to {version}");
    Ok(json_response(StatusCode::OK, &json!({"success": true, "message": message, "new_version": version})))
}

/// `GET` and `POST /get_weights_by_name`: nested lists, the first rows.
///
/// # Errors
/// Validation errors; 400 for an unknown name.
pub async fn by_name(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let kind = BodyKind::Struct("GetWeightsByNameReqInput");
    let object = admin_object(&state, request, kind).await?;
    let mut fields = Fields::new(&object, kind);
    let name = fields.string("name").unwrap_or_default().to_owned();
    if fields.get("name").is_none() {
        fields.missing("name");
    }
    let rows = fields.integer("truncate_size").unwrap_or(100);
    fields.finish()?;
    let rows = usize::try_from(rows).unwrap_or(0).max(1);
    let excerpt = state.control(state.generator.get_weights_by_name(name, rows)).await?;
    Ok(json_response(StatusCode::OK, &nested(&excerpt.shape, &excerpt.values)))
}

/// Row-major values as nested lists.
fn nested(shape: &[usize], values: &[f32]) -> Value {
    match shape {
        [] => values.first().map_or(Value::Null, |value| Value::from(f64::from(*value))),
        [_] => values.iter().map(|value| Value::from(f64::from(*value))).collect(),
        [rows, inner @ ..] => {
            let size = (values.len() / (*rows).max(1)).max(1);
            values.chunks(size).map(|row| nested(inner, row)).collect()
        }
    }
}

/// `POST /begin_weight_update`.
///
/// # Errors
/// 400 when a session is open.
pub async fn begin_session(State(state): State<Arc<EngineState>>) -> Result<Response, ApiError> {
    if state.weight_session.swap(true, Ordering::AcqRel) {
        return Err(ApiError::Admin(
            "a weight-update session is already open; call end_weight_update() first".to_owned(),
        ));
    }
    Ok(json_response(StatusCode::OK, &json!({"success": true, "message": "Success"})))
}

/// `POST /end_weight_update`.
///
/// # Errors
/// 400 when no session is open.
pub async fn end_session(State(state): State<Arc<EngineState>>) -> Result<Response, ApiError> {
    if !state.weight_session.swap(false, Ordering::AcqRel) {
        return Err(ApiError::Admin("no weight-update session is open; call begin_weight_update() first".to_owned()));
    }
    Ok(json_response(StatusCode::OK, &json!({"success": true, "message": "Success"})))
}

/// Calls that SGLang knows and this engine does not do: refused in the shape of administration.
///
/// # Errors
/// Always.
pub async fn refuse(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let name = request.uri().path().trim_start_matches('/').to_owned();
    let needs_session = matches!(name.as_str(), "update_weights_from_distributed" | "update_weights_from_tensor");
    if needs_session && !state.weight_session.load(Ordering::Acquire) {
        return Err(ApiError::Admin(format!("{name} must run between begin_weight_update() and end_weight_update()")));
    }
    Err(ApiError::Admin(format!("{name} is not supported by this engine: use update_weights_from_disk")))
}

/// `GET` and `POST /weights_checker`: no action of it is supported.
///
/// # Errors
/// Always.
pub async fn checker(State(state): State<Arc<EngineState>>, request: Request) -> Result<Response, ApiError> {
    let kind = BodyKind::Struct("CheckWeightsReqInput");
    let object = admin_object(&state, request, kind).await?;
    let action = object.get("action").and_then(Value::as_str).unwrap_or_default();
    Err(ApiError::Admin(format!("Unsupported action='{action}'")))
}
