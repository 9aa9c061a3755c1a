//! Who may call what.
//!
//! With only an API key, everything but the probes needs it. With an admin key, administration needs that one and no other;
//! the rest needs the API key if there is one. Probes (`/health…`, `/ready…`, `/metrics…`) and `OPTIONS` are always open.
//! The check comes before routing, so that an unknown path tells an outsider nothing.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use super::state::{EngineState, Keys};

const OPEN_PREFIXES: [&str; 3] = ["/health", "/ready", "/metrics"];

/// Administration, by SGLang's list.
const ADMIN_PATHS: [&str; 22] = [
    "/flush_cache",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_tensor",
    "/update_weights_from_ipc",
    "/begin_weight_update",
    "/end_weight_update",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/update_weight_version",
    "/get_weights_by_name",
    "/weights_checker",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/set_internal_state",
    "/configure_logging",
    "/start_profile",
    "/stop_profile",
    "/pd_role_switch",
];

/// Lets a request through or answers 401.
pub async fn check(State(state): State<Arc<EngineState>>, request: Request, next: Next) -> Response {
    match required_key(&state.keys, request.method(), request.uri().path()) {
        Some(key) if !carries(request.headers(), key) => {
            ApiError::Access(StatusCode::UNAUTHORIZED, "Unauthorized").into_response()
        }
        _ => next.run(request).await,
    }
}

/// The key that a call needs; `None` when it is open.
fn required_key<'a>(keys: &'a Keys, method: &Method, path: &str) -> Option<&'a str> {
    if *method == Method::OPTIONS || OPEN_PREFIXES.iter().any(|prefix| path.starts_with(prefix)) {
        return None;
    }
    let administration = ADMIN_PATHS.contains(&path);
    match &keys.admin_api_key {
        Some(admin) if administration => Some(admin),
        _ => keys.api_key.as_deref(),
    }
}

/// Compares in a time that does not depend on where the difference is.
fn carries(headers: &HeaderMap, key: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(token) = given.strip_prefix("Bearer ") else { return false };
    let difference = token.bytes().zip(key.bytes()).fold(0, |found, (one, other)| found | (one ^ other));
    token.len() == key.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_needs_the_key_of_its_kind() {
        let keys = |api: Option<&str>, admin: Option<&str>| Keys {
            api_key: api.map(str::to_owned),
            admin_api_key: admin.map(str::to_owned),
        };
        let cases = [
            (keys(None, None), None, None),
            (keys(Some("k"), None), Some("k"), Some("k")),
            (keys(None, Some("a")), None, Some("a")),
            (keys(Some("k"), Some("a")), Some("k"), Some("a")),
        ];
        for (keys, normal, administration) in cases {
            for path in ["/generate", "/v1/models", "/model_info", "/server_info", "/no_such_path"] {
                assert_eq!(required_key(&keys, &Method::POST, path), normal, "{path}");
            }
            for path in ADMIN_PATHS {
                assert_eq!(required_key(&keys, &Method::POST, path), administration, "{path}");
                assert_eq!(required_key(&keys, &Method::OPTIONS, path), None);
            }
            for path in ["/health", "/health_generate", "/ready", "/metrics", "/metrics/"] {
                assert_eq!(required_key(&keys, &Method::GET, path), None, "{path}");
            }
        }
    }

    #[test]
    fn a_key_is_carried_whole_or_not_at_all() {
        for (given, expected) in
            [("Bearer key", true), ("Bearer ke", false), ("Bearer keys", false), ("key", false), ("", false)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, given.parse().unwrap());
            assert_eq!(carries(&headers, "key"), expected, "{given}");
        }
    }
}
