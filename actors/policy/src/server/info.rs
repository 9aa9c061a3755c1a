//! What the server says about itself: model, arguments, load, health.
//!
//! `/server_info` of the imitated server is a flat object of all its arguments; clients pick a few. The defaults of the rest
//! stand in `server_args.json`, so that no key a client may read is absent. Health is a one-token generation, as there; while
//! paused it answers 503 at once (there after 20 seconds). `/ready` generates nothing.

use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::error::{ApiError, bare_response, json_response};
use super::metrics;
use super::progress::Wanted;
use super::running::{Running, Unit};
use super::state::EngineState;
use crate::generation::{GenerationRequest, LoadReport};

/// The version of SGLang whose behaviour this server has.
pub const SGLANG_VERSION: &str = "0.5.23";
/// SGLang keeps this many positions of the context free of prompt.
const RESERVED_POSITIONS: usize = 6;
const HEALTH_TRAFFIC_CHECK: Duration = Duration::from_secs(1);

static ARGUMENTS: LazyLock<Map<String, Value>> =
    LazyLock::new(|| serde_json::from_str(include_str!("server_args.json")).unwrap_or_default());
static EMBEDDING: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("embedding_info.json")).unwrap_or_default());

/// `GET /model_info`.
pub async fn model(State(state): State<Arc<EngineState>>) -> Response {
    let served = state.refresh_served().await;
    let body = json!({
        "model_path": served.model_path,
        "served_model_name": served.served_model_name,
        "tokenizer_path": state.tokenizer_path,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": served.weight_version,
        "load_format": "auto",
        "reasoning_parser": null,
        "tool_call_parser": null,
        "disaggregation_mode": "null",
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": state.facts.model_type,
        "architectures": [state.facts.architecture],
        "embedding": EMBEDDING.clone(),
    });
    json_response(StatusCode::OK, &body)
}

/// `GET /server_info`.
///
/// # Errors
/// 503 when the generator is gone.
pub async fn server(State(state): State<Arc<EngineState>>) -> Result<Response, ApiError> {
    let load = state.control(state.generator.loads()).await?;
    let served = state.refresh_served().await;
    let mut arguments = ARGUMENTS.clone();
    let mut put = |key: &str, value: Value| {
        arguments.insert(key.to_owned(), value);
    };
    put("model_path", Value::from(served.model_path));
    put("served_model_name", Value::from(served.served_model_name));
    put("tokenizer_path", Value::from(state.tokenizer_path.as_str()));
    put("weight_version", Value::from(served.weight_version));
    put("host", Value::from(state.address.ip().to_string()));
    put("port", Value::from(state.address.port()));
    put("random_seed", Value::from(state.seed));
    put("context_length", Value::from(state.facts.context_length));
    put("dtype", Value::from("auto"));
    put("model_impl", Value::from("auto"));
    put("max_running_requests", Value::from(load.max_running));
    put("max_total_tokens", Value::from(load.capacity_tokens));
    put("enable_deterministic_inference", Value::from(state.facts.batch_invariant));
    put("enable_metrics", Value::from(true));
    let graph = json!({"prefill": 0.0, "decode": 0.0, "target_verify": 0.0, "draft_prefill": 0.0, "draft_decode": 0.0, "draft_extend": 0.0});
    let startup = json!({
        "load_weight": state.startup_seconds, "kv_cache_allocation": 0.0, "scheduler_e2e": state.startup_seconds,
        "cuda_graph": graph, "tokenizer_e2e": state.startup_seconds,
    });
    put("startup_time", startup);
    let internal = internal_state(&state, &load, &arguments, &graph);
    let layout = json!({
        "enabled": false, "backend": null, "page_size": 1, "hicache_object_layout": {"pools": []},
        "reason": "Hierarchical cache is disabled",
    });
    let rest = [
        ("launch_command", Value::from(format!("--model-path {}", state.facts.model_path.display()))),
        ("status", Value::from(if load.paused { "paused" } else { "ready" })),
        ("max_total_num_tokens", Value::from(load.capacity_tokens)),
        ("max_req_input_len", Value::from(state.facts.context_length.saturating_sub(RESERVED_POSITIONS))),
        ("hicache_object_layout", layout),
        ("kv_events", Value::Null),
        ("internal_states", Value::Array(vec![internal])),
        ("version", Value::from(SGLANG_VERSION)),
        ("frontend", Value::from("python")),
    ];
    arguments.extend(rest.map(|(key, value)| (key.to_owned(), value)));
    Ok(json_response(StatusCode::OK, &Value::Object(arguments)))
}

fn internal_state(state: &EngineState, load: &LoadReport, arguments: &Map<String, Value>, graph: &Value) -> Value {
    let mut internal = arguments.clone();
    internal.remove("custom_sigquit_handler");
    internal.insert("pp_max_micro_batch_size".to_owned(), Value::from(load.max_running));
    internal.insert("disaggregation_decode_retraction_backup".to_owned(), Value::from("cpu_tensor"));
    if let Some(startup) = internal.get_mut("startup_time").and_then(Value::as_object_mut) {
        startup.remove("tokenizer_e2e");
    }
    let rest = [
        ("world_size", Value::from(1)),
        ("effective_max_running_requests_per_dp", Value::from(load.max_running)),
        ("last_gen_throughput", Value::from(load.throughput_tokens_per_s)),
        (
            "memory_usage",
            json!({
                "weight": weight_gigabytes(state), "kvcache": 0.0, "startup_available": 0.0,
                "token_capacity": load.capacity_tokens, "token_capacity_swa": null, "graph": graph,
            }),
        ),
        ("decode_cuda_graph_bs", json!([])),
        ("decode_cuda_graph_memory_gb", Value::from(0.0)),
    ];
    internal.extend(rest.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(internal)
}

fn weight_gigabytes(state: &EngineState) -> f64 {
    state.facts.parameters as f64 * 4.0 / f64::from(1 << 30)
}

/// Query of `/v1/loads`.
#[derive(Debug, Deserialize)]
pub struct LoadsQuery {
    /// Comma list of sections: `core`, `memory`, `disagg`, `queues`, `spec`, `lora`, `all`. Absent: `all`.
    include: Option<String>,
    /// Only this data-parallel rank; there is only rank 0.
    dp_rank: Option<i64>,
}

/// `GET /v1/loads`.
///
/// # Errors
/// 503 when the generator is gone.
pub async fn loads(
    State(state): State<Arc<EngineState>>,
    Query(query): Query<LoadsQuery>,
) -> Result<Response, ApiError> {
    let began = Instant::now();
    let load = state.control(state.generator.loads()).await?;
    let sections: Vec<&str> = query.include.as_deref().unwrap_or("all").split(',').map(str::trim).collect();
    let wanted = |section: &str| sections.contains(&"all") || sections.contains(&section);
    let mut rank = rank_load(&state, &load);
    let optional = [("memory", memory(&state, &load)), ("disagg", disaggregation()), ("queues", queues(&load))];
    for (section, value) in optional {
        if wanted(section) {
            rank.insert(if section == "disagg" { "disaggregation" } else { section }.to_owned(), value);
        }
    }
    let ranks = if query.dp_rank.unwrap_or(0) == 0 { vec![Value::Object(rank)] } else { Vec::new() };
    let body = json!({
        "timestamp": state.timeline.now_iso(), "version": SGLANG_VERSION, "accelerator": null, "num_accelerators": 1, "loads": ranks,
    });
    state.metrics.loads_answered(began.elapsed().as_secs_f64());
    Ok(json_response(StatusCode::OK, &body))
}

fn rank_load(state: &EngineState, load: &LoadReport) -> Map<String, Value> {
    let part = |of: usize, whole: usize| if whole == 0 { 0.0 } else { of as f64 / whole as f64 };
    let rows = [
        ("timestamp", Value::from(state.timeline.now())),
        ("dp_rank", Value::from(0)),
        ("num_running_reqs", Value::from(load.running)),
        ("num_waiting_reqs", Value::from(load.waiting)),
        ("num_waiting_uncached_tokens", Value::from(0)),
        ("num_used_tokens", Value::from(load.used_tokens)),
        ("num_total_tokens", Value::from(load.used_tokens)),
        ("num_active_tokens", Value::from(load.used_tokens)),
        ("num_prealloc_ready_tokens", Value::from(0)),
        ("max_total_num_tokens", Value::from(load.capacity_tokens)),
        ("max_running_requests", Value::from(load.max_running)),
        ("token_usage", Value::from(part(load.used_tokens, load.capacity_tokens))),
        ("gen_throughput", Value::from(load.throughput_tokens_per_s)),
        ("cache_hit_rate", Value::from(load.cache_hit_rate)),
        ("utilization", Value::from(part(load.running, load.max_running))),
        (
            "total_prefill_uncached_tokens",
            Value::from(load.total_prompt_tokens.saturating_sub(load.total_cached_tokens)),
        ),
        ("total_prefill_busy_us", Value::from(0)),
        ("decode_moments", Value::Null),
    ];
    rows.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
}

fn memory(state: &EngineState, load: &LoadReport) -> Value {
    json!({"weight_gb": weight_gigabytes(state), "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": load.capacity_tokens})
}

fn disaggregation() -> Value {
    json!({
        "mode": "null", "prefill_bootstrap_queue_reqs": 0, "prefill_inflight_queue_reqs": 0, "decode_prealloc_queue_reqs": 0,
        "decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0, "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0,
    })
}

fn queues(load: &LoadReport) -> Value {
    let paused = if load.paused { load.waiting } else { 0 };
    json!({"waiting": load.waiting, "grammar": 0, "paused": paused, "retracted": load.retracted, "prealloc_ready": 0})
}

/// `GET /v1/models`.
pub async fn models(State(state): State<Arc<EngineState>>) -> Response {
    let name = state.refresh_served().await.served_model_name;
    let model = json!({
        "id": name, "object": "model", "created": state.timeline.now() as i64, "owned_by": "sglang", "root": name, "parent": null,
        "max_model_len": state.facts.context_length,
    });
    json_response(StatusCode::OK, &json!({"object": "list", "data": [model]}))
}

/// `GET /metrics`.
///
/// # Errors
/// 503 when the generator is gone.
pub async fn metrics(State(state): State<Arc<EngineState>>) -> Result<Response, ApiError> {
    let load = state.control(state.generator.loads()).await?;
    let mut response = Response::new(axum::body::Body::from(metrics::render(&state, &load)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// `GET /ping`: the process answers.
pub async fn ping() -> Response {
    bare_response(StatusCode::OK, "")
}

/// `GET /ready`: 200 unless paused; generates nothing.
pub async fn ready(State(state): State<Arc<EngineState>>) -> Response {
    let load = state.ask(Instant::now() + state.limits.health_deadline, state.generator.loads()).await;
    let ready = matches!(load, Ok(Ok(load)) if !load.paused);
    bare_response(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, "")
}

/// `GET /health` and `/health_generate`: 200 when a token can be generated, or other requests are seen to get theirs.
pub async fn health(State(state): State<Arc<EngineState>>) -> Response {
    let deadline = Instant::now() + state.limits.health_deadline;
    let healthy = tokio::select! {
        biased;
        probed = probe(&state, deadline) => probed,
        moving = traffic_moves(&state, deadline) => moving,
    };
    bare_response(if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, "")
}

async fn probe(state: &EngineState, deadline: Instant) -> bool {
    match state.ask(deadline, state.generator.loads()).await {
        Ok(Ok(load)) if !load.paused => {}
        _ => return false,
    }
    let mut request = GenerationRequest::new(format!("HEALTH_CHECK_{}", state.request_ids.next()), vec![0]);
    request.params.max_new_tokens = 1;
    request.params.temperature = 0.0;
    let unit = Unit { request, wanted: Wanted::default(), stream_interval: 1, received: Instant::now() };
    let generated = async { Running::submit(state, unit).await?.complete(state).await };
    matches!(state.ask(deadline, generated).await, Ok(Ok(())))
}

/// True once tokens were generated for anyone: a full engine is a healthy one.
async fn traffic_moves(state: &EngineState, deadline: Instant) -> bool {
    let generated = async || match state.ask(deadline, state.generator.loads()).await {
        Ok(Ok(load)) => Some(load.total_generated_tokens),
        _ => None,
    };
    let Some(first) = generated().await else { return false };
    while Instant::now() < deadline {
        tokio::time::sleep(HEALTH_TRAFFIC_CHECK).await;
        match generated().await {
            Some(now) if now == first => {}
            Some(_) => return true,
            None => return false,
        }
    }
    false
}
