//! Starting and stopping the server.
//!
//! [`EngineServer::serve`] puts HTTP in front of a generator that runs already (or is simulated); [`EngineServer::start`]
//! loads a model directory first. Stopping lets requests finish for a while, then ends them with an abort, then cuts what is
//! left: it always returns.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::serve::ListenerExt;
use greenroom_core::{Clock, Seed, spawn_named};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::error::ServerError;
use super::metrics::Metrics;
use super::router::router;
use super::state::{EngineState, Keys, Limits, Served};
use super::text::TextCodec;
use super::timeline::{RequestIds, Timeline};
use crate::generation::GeneratorHandle;

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
