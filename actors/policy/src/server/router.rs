//! Paths to handlers, and what every response shares.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};

use super::error::ApiError;
use super::state::EngineState;
use super::{auth, chat, completions, control, generate, info, weights};

/// The whole application.
pub fn router(state: Arc<EngineState>) -> Router {
    Router::new()
        .merge(data_routes())
        .merge(information_routes())
        .merge(control_routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), auth::check))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), account))
        .with_state(state)
}

fn data_routes() -> Router<Arc<EngineState>> {
    Router::new()
        .route("/generate", post(generate::generate).put(generate::generate))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/tokenize", post(completions::tokenize))
        .route("/tokenize", post(completions::tokenize))
        .route("/v1/detokenize", post(completions::detokenize))
        .route("/detokenize", post(completions::detokenize))
}

fn information_routes() -> Router<Arc<EngineState>> {
    Router::new()
        .route("/model_info", get(info::model))
        .route("/get_model_info", get(info::model))
        .route("/server_info", get(info::server))
        .route("/get_server_info", get(info::server))
        .route("/v1/loads", get(info::loads))
        .route("/v1/models", get(info::models))
        .route("/health", get(info::health))
        .route("/health_generate", get(info::health))
        .route("/ready", get(info::ready))
        .route("/ping", get(info::ping))
        .route("/metrics", get(info::metrics))
}

fn control_routes() -> Router<Arc<EngineState>> {
    let mut router = Router::new()
        .route("/abort_request", post(control::abort))
        .route("/pause_generation", post(control::pause))
        .route("/continue_generation", post(control::resume))
        .route("/flush_cache", get(control::flush).post(control::flush))
        .route("/update_weights_from_disk", post(weights::update_from_disk))
        .route("/update_weight_version", post(weights::update_version))
        .route("/get_weights_by_name", get(weights::by_name).post(weights::by_name))
        .route("/weights_checker", get(weights::checker).post(weights::checker))
        .route("/begin_weight_update", post(weights::begin_session))
        .route("/end_weight_update", post(weights::end_session));
    let refused = [
        "/update_weights_from_distributed",
        "/update_weights_from_tensor",
        "/update_weights_from_ipc",
        "/init_weights_update_group",
        "/destroy_weights_update_group",
        "/release_memory_occupation",
        "/resume_memory_occupation",
    ];
    for path in refused {
        router = router.route(path, post(weights::refuse));
    }
    router
}

async fn not_found() -> ApiError {
    ApiError::Routing(StatusCode::NOT_FOUND, "Not Found")
}

async fn method_not_allowed() -> ApiError {
    ApiError::Routing(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
}

/// Counts every request, also those whose client goes away, and adds the headers that all responses carry.
async fn account(State(state): State<Arc<EngineState>>, request: Request, next: Next) -> Response {
    // Only known paths and methods become label values: a client cannot make the table grow.
    let endpoint = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let known = [Method::GET, Method::POST, Method::PUT, Method::HEAD, Method::OPTIONS, Method::DELETE];
    let method = if known.contains(request.method()) { request.method().as_str() } else { "other" }.to_owned();
    let active = Active::begin(&state, endpoint, method);
    let mut response = next.run(request).await;
    active.end(response.status().as_u16());
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Origin"));
    response
}

struct Active<'a> {
    state: &'a EngineState,
    endpoint: String,
    method: String,
    status: Option<u16>,
}

impl<'a> Active<'a> {
    fn begin(state: &'a EngineState, endpoint: String, method: String) -> Self {
        state.metrics.http_began(&endpoint, &method);
        Self { state, endpoint, method, status: None }
    }

    fn end(mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.state.metrics.http_ended(&self.endpoint, &self.method, self.status);
    }
}
