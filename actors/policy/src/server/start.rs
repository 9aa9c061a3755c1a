//! Starting and stopping the server.
//!
//! [`EngineServer::serve`] puts HTTP in front of a generator that runs already (or is simulated); [`EngineServer::start`]
//! loads a model directory first. Stopping lets requests finish for a while, then ends them with an abort, then cuts what is
//! left: it always returns.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::serve::ListenerExt;
use greenroom_core::{Clock, Seed, spawn_blocking_named, spawn_named};
use tch::{Device, Kind};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::codec::ModelText;
use super::error::ServerError;
use super::metrics::Metrics;
use super::router::router;
use super::state::{EngineState, Keys, Limits, Served};
use super::text::TextCodec;
use super::timeline::{RequestIds, Timeline};
use crate::generation::{GeneratorHandle, GeneratorOptions, TextDecoder, start_from_directory};

const LAST_WORDS: Duration = Duration::from_secs(2);
const START_DEADLINE: Duration = Duration::from_secs(60);

/// How the HTTP side is set up.
#[derive(Clone)]
pub struct ServeOptions {
    /// Where to listen; port 0 takes any free one.
    pub bind: SocketAddr,
    /// Credentials.
    pub keys: Keys,
    /// The name clients see; `None`: the model's directory, as SGLang does.
    pub served_model_name: Option<String>,
    /// Where the tokenizer came from, for `/model_info`; `None`: the model's directory.
    pub tokenizer_path: Option<String>,
    /// Source of request ids.
    pub seed: u64,
    /// Bounds.
    pub limits: Limits,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            keys: Keys::default(),
            served_model_name: None,
            tokenizer_path: None,
            seed: 0,
            limits: Limits::default(),
        }
    }
}

/// A model directory and how to serve it.
#[derive(Clone)]
pub struct EngineServerConfig {
    /// Where to listen; port 0 takes any free one.
    pub bind: SocketAddr,
    /// Everyone needs this key, if set.
    pub api_key: Option<String>,
    /// Administration needs this key, if set.
    pub admin_api_key: Option<String>,
    /// A Hugging Face directory: `config.json`, safetensors, `tokenizer.json`, chat template.
    pub model_dir: PathBuf,
    /// The name clients see; `None`: the directory.
    pub served_model_name: Option<String>,
    /// Prompt and output together, tokens; `None`: what the model knows.
    pub context_length: Option<usize>,
    /// The most requests decoded together.
    pub max_running_requests: usize,
    /// What a request yields does not depend on its neighbours.
    pub batch_invariant: bool,
    /// Source of request ids and of the randomness of requests without a seed of their own.
    pub seed: u64,
    /// Where to compute: in f32 on the CPU, in bf16 on CUDA.
    pub device: Device,
    /// Threads inside libtorch's operations.
    pub threads: i32,
    /// Version of the weights in the directory; SGLang says `default`.
    pub weight_version: String,
    /// Bounds.
    pub limits: Limits,
}

impl EngineServerConfig {
    /// Serves this directory on any free port of the loopback interface, with the generator's defaults.
    #[must_use]
    pub fn new(model_dir: impl Into<PathBuf>) -> Self {
        let defaults = GeneratorOptions::default();
        Self {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            api_key: None,
            admin_api_key: None,
            model_dir: model_dir.into(),
            served_model_name: None,
            context_length: defaults.context_length,
            max_running_requests: defaults.max_running,
            batch_invariant: defaults.batch_invariant,
            seed: defaults.seed,
            device: defaults.device,
            threads: defaults.threads,
            weight_version: defaults.weight_version,
            limits: Limits::default(),
        }
    }
}

/// Makes running engines.
#[derive(Debug)]
pub struct EngineServer;

/// A running engine. Dropping it stops it without waiting.
pub struct RunningEngine {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Its generator.
    pub handle: GeneratorHandle,
    stop: watch::Sender<bool>,
    server: JoinHandle<Option<()>>,
    drain_deadline: Duration,
}

impl EngineServer {
    /// Loads a model directory and serves it. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The model or its tokenizer cannot be loaded, or the address cannot be bound.
    pub async fn start(config: EngineServerConfig) -> Result<RunningEngine, ServerError> {
        let began = Instant::now();
        let directory = config.model_dir.clone();
        let text = Arc::new(ModelText::from_dir(&directory)?);
        let for_stops = Arc::clone(&text);
        let decoder: TextDecoder = Arc::new(move |ids| for_stops.decode(ids, true).unwrap_or_default());
        let options = GeneratorOptions {
            context_length: config.context_length,
            max_running: config.max_running_requests,
            prefix_slots: config.max_running_requests,
            batch_invariant: config.batch_invariant,
            seed: config.seed,
            threads: config.threads,
            device: config.device,
            kind: if config.device == Device::Cpu { Kind::Float } else { Kind::BFloat16 },
            weight_version: config.weight_version,
            decoder: Some(decoder),
            ..GeneratorOptions::default()
        };
        let loading = directory.clone();
        let loaded = spawn_blocking_named("load a model", move || start_from_directory(&loading, options)).await;
        let generator = match loaded {
            Ok(Some(Ok(generator))) => generator,
            Ok(Some(Err(error))) => return Err(ServerError::Model { path: directory, reason: error.to_string() }),
            _ => return Err(ServerError::Generator("loading the model panicked".to_owned())),
        };
        let options = ServeOptions {
            bind: config.bind,
            keys: Keys { api_key: config.api_key, admin_api_key: config.admin_api_key },
            served_model_name: config.served_model_name,
            tokenizer_path: None,
            seed: config.seed,
            limits: config.limits,
        };
        Self::serve_started(generator, text, options, began).await
    }

    /// Serves a generator over HTTP. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The address cannot be bound, or the generator does not answer.
    pub async fn serve(
        generator: GeneratorHandle,
        text: Arc<dyn TextCodec>,
        options: ServeOptions,
    ) -> Result<RunningEngine, ServerError> {
        Self::serve_started(generator, text, options, Instant::now()).await
    }

    async fn serve_started(
        generator: GeneratorHandle,
        text: Arc<dyn TextCodec>,
        options: ServeOptions,
        began: Instant,
    ) -> Result<RunningEngine, ServerError> {
        let facts = tokio::time::timeout(START_DEADLINE, generator.model_info()).await;
        let facts = facts.map_err(|_| ServerError::Generator("it did not answer within a minute".to_owned()))?;
        let facts = facts.map_err(|error| ServerError::Generator(error.to_string()))?;
        let refused = |error: std::io::Error| ServerError::Bind { address: options.bind, reason: error.to_string() };
        let listener = TcpListener::bind(options.bind).await.map_err(refused)?;
        let addr = listener.local_addr().map_err(refused)?;
        let clock = Clock::system();
        let model_path = facts.model_path.display().to_string();
        let served = Served {
            served_model_name: options.served_model_name.unwrap_or_else(|| model_path.clone()),
            weight_version: facts.weight_version.to_string(),
            generator_path: Some(facts.model_path.clone()),
            model_path: model_path.clone(),
        };
        let drain_deadline = options.limits.drain_deadline;
        // The date makes ids differ between two lives of the same engine; a client must not mistake one for the other.
        let ids = Seed::new(options.seed).child_numbered("embedded engine", clock.now_ms());
        let state = EngineState {
            generator: generator.clone(),
            text,
            tokenizer_path: options.tokenizer_path.unwrap_or(model_path),
            limits: options.limits,
            keys: options.keys,
            metrics: Metrics::default(),
            timeline: Timeline::new(&clock),
            startup_seconds: began.elapsed().as_secs_f64(),
            request_ids: RequestIds::new(ids),
            address: addr,
            seed: options.seed,
            weight_session: AtomicBool::new(false),
            flush_waits: AtomicBool::new(false),
            served: Mutex::new(served),
            facts,
        };
        let application = router(Arc::new(state));
        let (stop, mut stopped) = watch::channel(false);
        // Small frames of a stream must leave at once.
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "a connection keeps its delay");
            }
        });
        let server = spawn_named(format!("engine server {addr}"), async move {
            let ended = axum::serve(listener, application).with_graceful_shutdown(async move {
                // An error means that the engine was dropped, which stops it too.
                let _ = stopped.wait_for(|stop| *stop).await;
            });
            if let Err(error) = ended.await {
                tracing::error!(%error, "the engine server ended");
            }
        });
        tracing::info!(%addr, "the engine listens");
        Ok(RunningEngine { addr, handle: generator, stop, server, drain_deadline })
    }
}

impl RunningEngine {
    /// `http://address`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Stops: no new connections, running requests may finish within the drain deadline, then they end with an abort and
    /// the generator's thread ends too.
    ///
    /// # Errors
    /// Connections had to be cut.
    pub async fn shutdown(mut self) -> Result<(), ServerError> {
        let _ = self.stop.send(true);
        let drained = tokio::time::timeout(self.drain_deadline, &mut self.server).await.is_ok();
        // The generator may have ended before; then there is nothing left to end.
        let _ = tokio::time::timeout(LAST_WORDS, self.handle.shutdown()).await;
        if drained || tokio::time::timeout(LAST_WORDS, &mut self.server).await.is_ok() {
            return Ok(());
        }
        self.server.abort();
        Err(ServerError::Shutdown { seconds: (self.drain_deadline + LAST_WORDS + LAST_WORDS).as_secs() })
    }
}

impl Drop for RunningEngine {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}
