//! The instant engine behind a real HTTP server on loopback: SGLang's endpoints for ours, a chat endpoint for the peer.
//!
//! The server runs in our process, so its processor time counts as ours and never as the peer's.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Context;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use greenroom_core::spawn_named;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::instant::InstantEngine;

type Engine = State<Arc<InstantEngine>>;

/// Serves the engine on a free port; gives the base address. It ends with the runtime.
pub async fn serve(engine: Arc<InstantEngine>) -> anyhow::Result<String> {
    let done = || async { Json(json!({ "success": true, "message": "" })) };
    let router = Router::new()
        .route("/server_info", get(server_info))
        .route("/model_info", get(model_info))
        .route("/ready", get(|| async { "ok" }))
        .route("/v1/loads", get(|| async { Json(json!({ "loads": [] })) }))
        .route("/generate", post(generate))
        .route("/v1/chat/completions", post(chat))
        .route("/update_weights_from_disk", post(load))
        .route("/pause_generation", post(done))
        .route("/continue_generation", post(done))
        .route("/flush_cache", post(done))
        .route("/abort_request", post(done))
        .with_state(engine);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port on loopback")?;
    let address = listener.local_addr()?;
    spawn_named("instant-server", async move {
        if let Err(error) = axum::serve(listener, router).await {
            eprintln!("the instant server ended: {error}");
        }
    });
    Ok(format!("http://{address}"))
}

async fn server_info() -> Json<Value> {
    Json(json!({ "version": "0.5.23", "startup_time": 1, "context_length": 32_768, "max_req_input_len": 32_000 }))
}

async fn model_info(State(engine): Engine) -> Json<Value> {
    Json(json!({ "weight_version": engine.label(), "is_generation": true }))
}

async fn load(State(engine): Engine, Json(body): Json<Value>) -> Json<Value> {
    engine.load(body["weight_version"].as_str().unwrap_or_default());
    Json(json!({ "success": true, "message": "" }))
}

/// What is read of a question: little, because what the server costs is not what is measured.
#[derive(Deserialize)]
struct Question {
    rid: String,
    input_ids: Vec<u32>,
}

async fn generate(State(engine): Engine, body: Bytes) -> Result<Json<Value>, String> {
    let question: Question = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    let rid = question.rid.as_str();
    let (ids, episode) = engine.reply(rid);
    engine.gaps.asked(episode);
    let logprobs: Vec<Value> = ids.iter().map(|id| json!([-0.5, id, null])).collect();
    let answer = json!({
        "output_ids": ids,
        "meta_info": {
            "id": rid,
            "finish_reason": { "type": "stop" },
            "weight_version": engine.label(),
            "output_token_logprobs": logprobs,
            "prompt_tokens": question.input_ids.len(),
            "cached_tokens": 0,
        },
    });
    engine.gaps.answered(episode);
    Ok(Json(answer))
}

/// The peer's question; `user` names its episode, the replies in the history count its turns.
async fn chat(State(engine): Engine, Json(body): Json<Value>) -> Json<Value> {
    let episode = body["user"].as_str().unwrap_or_default();
    engine.gaps.asked(episode);
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let turn = messages.iter().filter(|message| message["role"] == "assistant").count();
    let content = engine.script.replies.get(turn).map(String::as_str).unwrap_or_default();
    let answer = json!({
        "id": format!("{episode}-{turn}"),
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": content },
            "finish_reason": "stop",
        }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 },
    });
    engine.gaps.answered(episode);
    Json(answer)
}
