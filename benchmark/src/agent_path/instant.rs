//! An engine that has answered already, and sandboxes whose commands are done: what is left is the path between them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use greenroom_core::Deadline;
use greenroom_engine::{
    AbortTarget, ApiError, EngineApi, GenerateCall, Generated, LoadWeights, Loads, ModelInfo, ServerInfo, ServerPause,
};
use greenroom_messages::engine::FinishReason;
use greenroom_messages::sandbox::{ExecOutcome, ExecRequest, SandboxFile};
use greenroom_rollout::grading::{RESTORED, TAKEN};
use greenroom_sandbox::{BoxSummary, ImageSpec, Labels, Provider, SandboxBox, SandboxError, SweepReport};
use tokio::time::Instant;

use super::script::{SUBMIT, Script};

/// Times between an answer and the next question of the same episode, seconds.
#[derive(Debug, Default)]
pub struct Gaps(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    answered: BTreeMap<String, Instant>,
    gaps_s: Vec<f64>,
}

impl Gaps {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An episode asks.
    pub fn asked(&self, episode: &str) {
        let mut seen = self.seen();
        if let Some(answered) = seen.answered.remove(episode) {
            seen.gaps_s.push(answered.elapsed().as_secs_f64());
        }
    }

    /// An episode is answered now.
    pub fn answered(&self, episode: &str) {
        self.seen().answered.insert(episode.to_owned(), Instant::now());
    }

    /// All gaps since the last call.
    pub fn take(&self) -> Vec<f64> {
        std::mem::take(&mut *self.seen()).gaps_s
    }
}

/// The engine.
#[derive(Debug)]
pub struct InstantEngine {
    /// What it says.
    pub script: Arc<Script>,
    /// What it measures.
    pub gaps: Arc<Gaps>,
    label: Mutex<String>,
}

impl InstantEngine {
    /// A fresh engine, whose weights are nobody's.
    pub fn new(script: Arc<Script>) -> Self {
        Self { script, gaps: Arc::default(), label: Mutex::new("default".to_owned()) }
    }

    /// The label of its weights.
    pub fn label(&self) -> String {
        self.label.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes new weights.
    pub fn load(&self, label: &str) {
        label.clone_into(&mut self.label.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The reply of a request whose id is `{rollout}-t{turn}-c{continuation}`, and the rollout.
    pub fn reply<'a>(&self, rid: &'a str) -> (&[u32], &'a str) {
        let (episode, turn) = rid.rsplit_once("-t").unwrap_or((rid, ""));
        let turn: usize = turn.split('-').next().and_then(|turn| turn.parse().ok()).unwrap_or(usize::MAX);
        (self.script.reply_ids.get(turn).map_or(&[], Vec::as_slice), episode)
    }
}

#[async_trait]
impl EngineApi for InstantEngine {
    async fn server_info(&self, _: Deadline) -> Result<ServerInfo, ApiError> {
        Ok(ServerInfo {
            version: "0.5.23".to_owned(),
            identity: "instant".to_owned(),
            context_tokens: Some(32_768),
            max_prompt_tokens: Some(32_000),
            disaggregated: false,
        })
    }

    async fn model_info(&self, _: Deadline) -> Result<ModelInfo, ApiError> {
        Ok(ModelInfo { weight_version: self.label(), is_generation: true })
    }

    async fn ready(&self, _: Deadline) -> Result<bool, ApiError> {
        Ok(true)
    }

    async fn generate(&self, call: &GenerateCall, _: Deadline) -> Result<Generated, ApiError> {
        let (ids, episode) = self.reply(&call.rid);
        self.gaps.asked(episode);
        let generated = Generated {
            output_ids: ids.to_vec(),
            logprobs: vec![-0.5; ids.len()],
            finish: FinishReason::Stop,
            weight_version: self.label(),
            spans: Vec::new(),
            cached_tokens: 0,
        };
        self.gaps.answered(episode);
        Ok(generated)
    }

    async fn abort(&self, _: &AbortTarget, _: Deadline) -> Result<(), ApiError> {
        Ok(())
    }

    async fn pause(&self, _: ServerPause, _: Deadline) -> Result<(), ApiError> {
        Ok(())
    }

    async fn continue_generation(&self, _: Deadline) -> Result<(), ApiError> {
        Ok(())
    }

    async fn flush_cache(&self, _: Deadline) -> Result<(), ApiError> {
        Ok(())
    }

    async fn update_weights_from_disk(&self, load: &LoadWeights, _: Deadline) -> Result<(), ApiError> {
        self.load(&load.weight_version);
        Ok(())
    }

    async fn loads(&self, _: Deadline) -> Result<Loads, ApiError> {
        Ok(Loads::default())
    }
}

/// A maker of boxes that are there at once.
#[derive(Debug)]
pub struct InstantProvider {
    observation: Arc<str>,
    made: AtomicU64,
}

impl InstantProvider {
    /// Boxes whose commands print this.
    pub fn new(observation: &str) -> Self {
        Self { observation: observation.into(), made: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Provider for InstantProvider {
    async fn create(&self, _: &ImageSpec, _: &Labels, _: u64) -> Result<Box<dyn SandboxBox>, SandboxError> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(InstantBox { id: format!("box-{number}"), observation: self.observation.clone() }))
    }

    async fn list(&self, _: &Labels) -> Result<Vec<BoxSummary>, SandboxError> {
        Ok(Vec::new())
    }

    async fn sweep(&self) -> Result<SweepReport, SandboxError> {
        Ok(SweepReport::default())
    }
}

struct InstantBox {
    id: String,
    observation: Arc<str>,
}

#[async_trait]
impl SandboxBox for InstantBox {
    fn box_id(&self) -> &str {
        &self.id
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecOutcome, SandboxError> {
        let output = match request.command.as_str() {
            SUBMIT => b"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n".to_vec(),
            // grading moves what the agent made, nothing here, into another box
            command if command.contains(TAKEN) => format!("{TAKEN} file /tmp/change\n").into_bytes(),
            command if command.contains(RESTORED) => format!("{RESTORED} whole\n").into_bytes(),
            _ => self.observation.as_bytes().to_vec(),
        };
        Ok(ExecOutcome { output, dropped_bytes: 0, returncode: 0, exception: None, elapsed_ms: 0 })
    }

    async fn put_files(&self, _: Vec<SandboxFile>) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn read_file(&self, _: &str, _: u64) -> Result<Vec<u8>, SandboxError> {
        Ok(Vec::new())
    }

    async fn renew(&self, _: u64) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn ended(&self) -> SandboxError {
        std::future::pending().await
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        Ok(())
    }
}
