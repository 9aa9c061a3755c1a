//! [`EngineApi`] over SGLang's HTTP interface.
//!
//! Every call has a deadline, a bounded answer and one of two credentials. A connection that breaks is `Lost`, one that
//! was never made is `Unreachable`: the difference decides whether a turn may have been sampled. Idle connections are
//! thrown away before the server closes them (uvicorn does so after 5 s), so that a call never begins on a dying one.

mod body;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::{Deadline, in_place};
use greenroom_messages::engine::EngineSpec;
use reqwest::header::AUTHORIZATION;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{
    AbortTarget, ApiError, EngineApi, EngineConfig, EngineConfigError, GenerateCall, Generated, LoadWeights, Loads,
    ModelInfo, Secret, ServerInfo, ServerPause,
};

const IDLE_CONNECTION: Duration = Duration::from_secs(3);

/// A client of one SGLang engine.
#[derive(Clone, Debug)]
pub struct HttpEngineApi {
    client: reqwest::Client,
    url: String,
    api_key: Option<Secret>,
    admin_key: Option<Secret>,
    response_limit_bytes: usize,
}

/// A maker of HTTP clients for [`crate::EnginePoolArguments`]; reads the credentials once, now.
pub fn http_api_factory(config: &EngineConfig) -> Result<crate::ApiFactory, EngineConfigError> {
    let read = |source: &Option<crate::SecretSource>| source.as_ref().map(crate::SecretSource::read).transpose();
    let (api_key, admin_key) = (read(&config.credentials.api_key)?, read(&config.credentials.admin_key)?);
    let limit = config.response_limit_bytes;
    Ok(Arc::new(move |spec: &EngineSpec| {
        if let Some(message) = EngineConfig::url_problem(&spec.url) {
            return Err(EngineConfigError::Address { engine: spec.engine.clone(), message });
        }
        let api = HttpEngineApi::new(&spec.url, api_key.clone(), admin_key.clone(), limit)?;
        Ok(Arc::new(api) as Arc<dyn EngineApi>)
    }))
}

#[derive(Clone, Copy)]
enum Credential {
    Normal,
    Admin,
}

/// One exchange: which endpoint, with what, for how long.
struct Exchange {
    name: &'static str,
    method: Method,
    path: &'static str,
    credential: Credential,
    body: Option<Vec<u8>>,
    deadline: Deadline,
}

impl HttpEngineApi {
    /// A client of the engine at `url` (`http://host:port`); answers over `response_limit_bytes` are refused.
    pub fn new(
        url: &str,
        api_key: Option<Secret>,
        admin_key: Option<Secret>,
        response_limit_bytes: u64,
    ) -> Result<Self, EngineConfigError> {
        let failed = |url: &str, message: String| EngineConfigError::Client { url: url.to_owned(), message };
        if let Some(problem) = EngineConfig::url_problem(url) {
            // the address may hold a secret
            return Err(failed("(its address is not shown)", problem.to_owned()));
        }
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(IDLE_CONNECTION)
            .tcp_nodelay(true)
            .build()
            .map_err(|error| failed(url, body::with_causes(&error)))?;
        Ok(Self {
            client,
            url: url.trim_end_matches('/').to_owned(),
            api_key,
            admin_key,
            response_limit_bytes: usize::try_from(response_limit_bytes).unwrap_or(usize::MAX),
        })
    }

    /// Sends one exchange and reads the whole answer: its status and bytes.
    async fn exchange(&self, exchange: Exchange) -> Result<(StatusCode, Vec<u8>), ApiError> {
        let begun = tokio::time::Instant::now();
        let (name, deadline) = (exchange.name, exchange.deadline);
        match tokio::time::timeout_at(deadline.instant(), self.exchange_unbounded(exchange)).await {
            Ok(result) => result,
            Err(_) => {
                let waited_ms = begun.elapsed().as_millis() as u64;
                Err(ApiError::TimedOut { call: name, url: self.url.clone(), waited_ms })
            }
        }
    }

    async fn exchange_unbounded(&self, exchange: Exchange) -> Result<(StatusCode, Vec<u8>), ApiError> {
        let mut request = self.client.request(exchange.method, format!("{}{}", self.url, exchange.path));
        let key = match exchange.credential {
            Credential::Normal => self.api_key.as_ref(),
            Credential::Admin => self.admin_key.as_ref().or(self.api_key.as_ref()),
        };
        if let Some(key) = key {
            request = request.header(AUTHORIZATION, format!("Bearer {}", key.reveal()));
        }
        if let Some(body) = exchange.body {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body);
        }
        let broken = |error: &reqwest::Error| self.broken(exchange.name, error);
        let mut response = request.send().await.map_err(|error| broken(&error))?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
            if bytes.len() + chunk.len() > self.response_limit_bytes {
                let message = format!("it is larger than {} bytes", self.response_limit_bytes);
                return Err(self.malformed(exchange.name, message));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok((status, bytes))
    }

    fn broken(&self, call: &'static str, error: &reqwest::Error) -> ApiError {
        let (url, message) = (self.url.clone(), body::with_causes(error));
        if error.is_connect() { ApiError::Unreachable { url, message } } else { ApiError::Lost { call, url, message } }
    }

    fn malformed(&self, call: &'static str, message: String) -> ApiError {
        ApiError::Malformed { call, url: self.url.clone(), message }
    }

    /// Turns a status other than success into the error that it means.
    fn refusal(&self, call: &'static str, status: StatusCode, bytes: &[u8]) -> ApiError {
        let (url, message, status) = (self.url.clone(), body::error_message(bytes), status.as_u16());
        match status {
            401 | 403 => ApiError::Unauthorized { call, url, status, message },
            404 | 405 => ApiError::Missing { call, url },
            429 | 502..=504 => ApiError::Unavailable { call, url, status, message },
            _ => ApiError::Refused { call, url, status, message },
        }
    }

    async fn succeed(&self, exchange: Exchange) -> Result<Vec<u8>, ApiError> {
        let name = exchange.name;
        let (status, bytes) = self.exchange(exchange).await?;
        if status.is_success() { Ok(bytes) } else { Err(self.refusal(name, status, &bytes)) }
    }

    async fn get<T: DeserializeOwned>(&self, path: &'static str, deadline: Deadline) -> Result<T, ApiError> {
        let (method, credential) = (Method::GET, Credential::Normal);
        let exchange = Exchange { name: path, method, path, credential, body: None, deadline };
        self.decode(path, &self.succeed(exchange).await?)
    }

    async fn post(
        &self,
        path: &'static str,
        credential: Credential,
        body: &impl Serialize,
        deadline: Deadline,
    ) -> Result<Vec<u8>, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| self.malformed(path, error.to_string()))?;
        let exchange = Exchange { name: path, method: Method::POST, path, credential, body: Some(body), deadline };
        self.succeed(exchange).await
    }

    fn decode<T: DeserializeOwned>(&self, call: &'static str, bytes: &[u8]) -> Result<T, ApiError> {
        serde_json::from_slice(bytes).map_err(|error| {
            let start = body::shorten(&String::from_utf8_lossy(bytes), 120);
            self.malformed(call, format!("{error}; it begins {start:?}"))
        })
    }
}

#[async_trait]
impl EngineApi for HttpEngineApi {
    async fn server_info(&self, deadline: Deadline) -> Result<ServerInfo, ApiError> {
        let server: wire::ServerInfo = self.get("/server_info", deadline).await?;
        // Without --context-length the server leaves it null, and only the list of models tells the model's own.
        let context_tokens = match server.context_length {
            Some(tokens) => Some(tokens),
            None => self.get::<wire::ModelList>("/v1/models", deadline).await?.context_tokens(),
        };
        Ok(server.into_api(context_tokens))
    }

    async fn model_info(&self, deadline: Deadline) -> Result<ModelInfo, ApiError> {
        let model: wire::ModelInfo = self.get("/model_info", deadline).await?;
        Ok(ModelInfo { weight_version: model.weight_version, is_generation: model.is_generation })
    }

    async fn ready(&self, deadline: Deadline) -> Result<bool, ApiError> {
        let (name, method, credential) = ("/ready", Method::GET, Credential::Normal);
        let exchange = Exchange { name, method, path: name, credential, body: None, deadline };
        match self.exchange(exchange).await? {
            (status, _) if status.is_success() => Ok(true),
            (StatusCode::SERVICE_UNAVAILABLE, _) => Ok(false),
            (status, bytes) => Err(self.refusal(name, status, &bytes)),
        }
    }

    async fn generate(&self, call: &GenerateCall, deadline: Deadline) -> Result<Generated, ApiError> {
        let bytes = self.post("/generate", Credential::Normal, &wire::GenerateBody::new(call), deadline).await?;
        // the log-probabilities of a long turn are megabytes
        let answer: wire::GenerateAnswer = in_place(|| self.decode("/generate", &bytes))?;
        answer.into_generated(call).map_err(|message| self.malformed("/generate", message))
    }

    async fn abort(&self, target: &AbortTarget, deadline: Deadline) -> Result<(), ApiError> {
        let body = match target {
            AbortTarget::Request(rid) => json!({ "rid": rid }),
            AbortTarget::All => json!({ "abort_all": true }),
        };
        self.post("/abort_request", Credential::Admin, &body, deadline).await.map(drop)
    }

    async fn pause(&self, mode: ServerPause, deadline: Deadline) -> Result<(), ApiError> {
        let mode = match mode {
            ServerPause::Abort => "abort",
            ServerPause::Retract => "retract",
            ServerPause::InPlace => "in_place",
        };
        self.post("/pause_generation", Credential::Admin, &json!({ "mode": mode }), deadline).await.map(drop)
    }

    async fn continue_generation(&self, deadline: Deadline) -> Result<(), ApiError> {
        // The body must be JSON, even an empty one: without it the server answers 400.
        self.post("/continue_generation", Credential::Admin, &json!({}), deadline).await.map(drop)
    }

    async fn flush_cache(&self, deadline: Deadline) -> Result<(), ApiError> {
        self.post("/flush_cache", Credential::Admin, &json!({}), deadline).await.map(drop)
    }

    async fn update_weights_from_disk(&self, load: &LoadWeights, deadline: Deadline) -> Result<(), ApiError> {
        let path = "/update_weights_from_disk";
        let body = json!({
            "model_path": load.model_dir,
            "weight_version": load.weight_version,
            "flush_cache": load.flush_cache,
        });
        let bytes = self.post(path, Credential::Admin, &body, deadline).await?;
        let answer: wire::UpdateAnswer = self.decode(path, &bytes)?;
        if answer.success {
            return Ok(());
        }
        let message = body::printable(&answer.message);
        Err(ApiError::Refused { call: path, url: self.url.clone(), status: 200, message })
    }

    async fn loads(&self, deadline: Deadline) -> Result<Loads, ApiError> {
        Ok(self.get::<wire::LoadsAnswer>("/v1/loads", deadline).await?.total())
    }

    async fn progress(&self, deadline: Deadline) -> Result<Option<String>, ApiError> {
        Ok(Some(self.get::<wire::LoadsAnswer>("/v1/loads", deadline).await?.progress()))
    }

    async fn weight_rows(&self, name: &str, rows: u32, deadline: Deadline) -> Result<Vec<f64>, ApiError> {
        let path = "/get_weights_by_name";
        let bytes =
            self.post(path, Credential::Admin, &json!({ "name": name, "truncate_size": rows }), deadline).await?;
        let answer: serde_json::Value = self.decode(path, &bytes)?;
        wire::flat_numbers(&answer).ok_or_else(|| self.malformed(path, "it is no list of numbers".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use greenroom_messages::EngineId;

    use super::*;

    #[test]
    fn an_address_with_a_secret_makes_no_client_and_is_not_repeated() {
        let factory = http_api_factory(&EngineConfig::default()).unwrap();
        let url = "http://bob:hunter2@127.0.0.1:9/?token=x".to_owned();
        let alone = HttpEngineApi::new(&url, None, None, 1).unwrap_err();
        let spec = EngineSpec { engine: EngineId::new("far"), url, max_in_flight: 1 };
        let of_fleet = factory(&spec).map(drop).unwrap_err();
        assert!(of_fleet.to_string().contains("engine far (engine.external.NAME.url"), "{of_fleet}");
        for error in [alone, of_fleet] {
            let said = error.to_string();
            assert!(
                said.contains("credentials.api_key") && !said.contains("hunter2") && !said.contains("token"),
                "{said}"
            );
        }
    }
}
