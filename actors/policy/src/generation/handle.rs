//! The end of the generator that everyone may hold: cheap to clone, safe to share, without tensors.
//!
//! One operating-system thread owns the network, the keys and values and the weights; the handle sends it [`Command`]s over
//! a channel and awaits the answer. Commands are handled between two decoding steps, so that an answer takes a step's time,
//! except where a method says otherwise.
//!
//! What fails: when the thread is gone (shut down, or died of a bug) every method answers
//! [`GenerationError::GeneratorStopped`] and every stream ends. A stream that is dropped aborts its request.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc as async_mpsc, oneshot};

use super::request::{GenerationEvent, GenerationRequest, LoadReport, PauseMode, UpdateReport, WeightExcerpt};
use crate::error::GenerationError;

/// Where the events of one request arrive. Dropping it aborts the request at the next step.
pub type GenerationStream = async_mpsc::UnboundedReceiver<GenerationEvent>;

/// What is fixed about the served model, and the version in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Directory the weights in force were read from; a successful update changes it.
    pub model_path: PathBuf,
    /// `config.json`'s `model_type`, such as `qwen3`.
    pub model_type: String,
    /// `config.json`'s architecture, such as `Qwen3ForCausalLM`.
    pub architecture: String,
    /// Token ids are below this.
    pub vocabulary_size: usize,
    /// Prompt and output together are at most this many tokens.
    pub context_length: usize,
    /// Ids that end a text.
    pub eos_token_ids: Vec<u32>,
    /// The version of the weights in force.
    pub weight_version: Arc<str>,
    /// Number of weights.
    pub parameters: u64,
    /// Whether what a request yields is independent of its neighbours.
    pub batch_invariant: bool,
}

type Reply<T> = oneshot::Sender<Result<T, GenerationError>>;

/// What the generator thread understands. Sent by [`GeneratorHandle`] only; public so that a simulated generator can
/// answer in its place.
#[derive(Debug)]
pub enum Command {
    /// Queue a request; answers whether it was accepted.
    Submit(Box<GenerationRequest>, async_mpsc::UnboundedSender<GenerationEvent>, Reply<()>),
    /// End requests whose id starts with the text, or all when `None`; answers how many.
    Abort(Option<String>, Reply<usize>),
    /// Stop decoding; answers when it has stopped.
    Pause(PauseMode, Reply<()>),
    /// Go on; answers at once, also when not paused.
    Resume(Reply<()>),
    /// Forget all keys and values that no running request needs.
    FlushCache(Reply<()>),
    /// Replace the weights.
    UpdateWeights {
        /// A Hugging Face directory.
        directory: PathBuf,
        /// The new version; `None` keeps the old text (as SGLang does).
        version: Option<String>,
        /// Forget keys and values computed with the old weights.
        flush_cache: bool,
        /// Where the answer goes.
        reply: Reply<UpdateReport>,
    },
    /// Change only the text of the version.
    SetVersion(String, Reply<()>),
    /// How busy it is.
    Loads(Reply<LoadReport>),
    /// The first rows of a weight.
    GetWeight {
        /// Hugging Face name.
        name: String,
        /// The most rows (of the first dimension) to return.
        rows: usize,
        /// Where the answer goes.
        reply: Reply<WeightExcerpt>,
    },
    /// What is served.
    ModelInfo(Reply<ModelInfo>),
    /// End every request with an abort and leave the thread.
    Shutdown(Reply<()>),
}

/// Sends commands to one generator thread.
#[derive(Debug, Clone)]
pub struct GeneratorHandle {
    commands: mpsc::Sender<Command>,
}

impl GeneratorHandle {
    /// A handle and the other end of its channel, for the thread that will serve it.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel();
        (Self { commands }, receiver)
    }

    /// Queues a request and returns the stream of its events.
    ///
    /// While paused the request is accepted and held. Prompt ids, lengths and parameters are validated here.
    ///
    /// # Errors
    /// `InvalidParameter`, `InvalidPrompt`, `TooLong`, `DuplicateRequest`, `StopNeedsDecoder`, `GeneratorStopped`.
    pub async fn submit(&self, request: GenerationRequest) -> Result<GenerationStream, GenerationError> {
        let (events, stream) = async_mpsc::unbounded_channel();
        self.ask(|reply| Command::Submit(Box::new(request), events, reply)).await?;
        Ok(stream)
    }

    /// Ends every request, running or waiting, whose id starts with `rid_prefix`; answers how many that were.
    ///
    /// # Errors
    /// `GeneratorStopped`.
    pub async fn abort(&self, rid_prefix: impl Into<String>) -> Result<usize, GenerationError> {
        let prefix = rid_prefix.into();
        self.ask(|reply| Command::Abort(Some(prefix), reply)).await
    }

    /// Ends every request; answers how many that were.
    ///
    /// # Errors
    /// `GeneratorStopped`.
    pub async fn abort_all(&self) -> Result<usize, GenerationError> {
        self.ask(|reply| Command::Abort(None, reply)).await
    }

    /// Stops decoding. When the answer comes nothing runs; new requests are held until [`Self::resume`].
    ///
    /// # Errors
    /// `GeneratorStopped`.
    pub async fn pause(&self, mode: PauseMode) -> Result<(), GenerationError> {
        self.ask(|reply| Command::Pause(mode, reply)).await
    }

    /// Goes on decoding; harmless when not paused.
    ///
    /// # Errors
    /// `GeneratorStopped`.
    pub async fn resume(&self) -> Result<(), GenerationError> {
        self.ask(Command::Resume).await
    }

    /// Empties the prefix cache.
    ///
    /// # Errors
    /// `Busy` when requests run, wait (unless paused) or stand still in place; `GeneratorStopped`.
    pub async fn flush_cache(&self) -> Result<(), GenerationError> {
        self.ask(Command::FlushCache).await
    }

    /// Replaces the weights by those of a Hugging Face directory, read completely and checked (names, shapes, dtypes,
    /// sizes of files) before the first live weight is touched: after an error the old weights serve on.
    ///
    /// Unless paused, the update waits until running requests have finished, and requests submitted meanwhile wait for it:
    /// the answer can take as long as the longest running generation, plus the reading.
    ///
    /// # Errors
    /// `UpdateRefused` with the reason, `GeneratorStopped`.
    pub async fn update_weights(
        &self,
        directory: impl Into<PathBuf>,
        version: Option<String>,
        flush_cache: bool,
    ) -> Result<UpdateReport, GenerationError> {
        let directory = directory.into();
        self.ask(|reply| Command::UpdateWeights { directory, version, flush_cache, reply }).await
    }

    /// Changes the text of the version and nothing else.
    ///
    /// # Errors
    /// `GeneratorStopped`.
    pub async fn set_weight_version(&self, version: impl Into<String>) -> Result<(), GenerationError> {
        let version = version.into();
        self.ask(|reply| Command::SetVersion(version, reply)).await
    }

    /// How busy the generator is. Answered between two steps, also while paused.
    ///
    /// # Errors
    /// `GeneratorStopped`.
    pub async fn loads(&self) -> Result<LoadReport, GenerationError> {
        self.ask(Command::Loads).await
    }

    /// The first `rows` rows of the weight with this Hugging Face name, as f32.
    ///
    /// # Errors
    /// `UnknownWeight`, `GeneratorStopped`.
    pub async fn get_weights_by_name(
        &self,
        name: impl Into<String>,
        rows: usize,
    ) -> Result<WeightExcerpt, GenerationError> {
        let name = name.into();
        self.ask(|reply| Command::GetWeight { name, rows, reply }).await
    }

    /// What is served, with the version in force.
    ///
    /// # Errors
    /// `GeneratorStopped`.
    pub async fn model_info(&self) -> Result<ModelInfo, GenerationError> {
        self.ask(Command::ModelInfo).await
    }

    /// Aborts every request and ends the thread. Later calls answer `GeneratorStopped`.
    ///
    /// # Errors
    /// `GeneratorStopped` when it had ended before.
    pub async fn shutdown(&self) -> Result<(), GenerationError> {
        self.ask(Command::Shutdown).await
    }

    /// Wakes the thread, so that a stream that was just closed is seen now and not with the next command.
    pub fn nudge(&self) {
        let (reply, _) = oneshot::channel();
        // A thread that is gone needs no waking.
        let _ = self.commands.send(Command::Loads(reply));
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, GenerationError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| GenerationError::GeneratorStopped)?;
        answer.await.map_err(|_| GenerationError::GeneratorStopped)?
    }
}
