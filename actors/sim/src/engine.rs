//! A simulated engine: SGLang's behaviour as far as a proxy can see it, and its misfortunes.
//!
//! It really reads the weights that it is told to load, and its policy is as good as what it read. A restart forgets
//! everything; a pause holds generation; a failed load may have changed the weights all the same.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::{Clock, Deadline};
use greenroom_engine::{
    AbortTarget, ApiError, EngineApi, GenerateCall, Generated, LoadWeights, Loads, ModelInfo, ServerInfo, ServerPause,
};
use tokio::sync::Notify;

use crate::chance::Chance;
use crate::ledger::{Ledger, OpenCall};
use crate::policy::Policy;
use crate::weights_file::{self, LoadedWeights};

/// What can go wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Hang,
    LoseConnection,
    Restart,
    Slow,
    Unavailable,
    /// A load is refused; nothing changed.
    FailLoad,
    /// A load is refused; the weights changed.
    HalfLoad,
    /// A turn is given up half-way.
    GiveUp,
}

const ANY_CALL: &[Trouble] =
    &[Trouble::Hang, Trouble::LoseConnection, Trouble::Restart, Trouble::Slow, Trouble::Unavailable];
const GENERATING: &[Trouble] = &[
    Trouble::Hang,
    Trouble::LoseConnection,
    Trouble::Restart,
    Trouble::Slow,
    Trouble::Unavailable,
    Trouble::GiveUp,
    Trouble::GiveUp,
];
const LOADING: &[Trouble] =
    &[Trouble::Hang, Trouble::LoseConnection, Trouble::Restart, Trouble::FailLoad, Trouble::HalfLoad];

/// How an engine is made.
#[derive(Clone, Debug)]
pub(crate) struct EngineSettings {
    pub(crate) url: String,
    pub(crate) version: &'static str,
    pub(crate) token_ms: u64,
    pub(crate) lost_at_ms: Option<u64>,
    /// Sabotage: a load changes the label only.
    pub(crate) keeps_old_weights: bool,
    pub(crate) clock: Clock,
    pub(crate) ledger: Ledger,
    pub(crate) policy: Arc<Policy>,
}

/// A simulated engine; what a proxy holds is a handle to it, so a proxy that is started again finds it as it was.
#[derive(Debug)]
pub struct SimulatedEngine {
    pub(crate) settings: EngineSettings,
    machine: Mutex<Machine>,
    /// Tells generations that something happened; wakes them in the order in which they wait (a watch channel would wake
    /// them in a random one).
    pub(crate) changed: Notify,
}

#[derive(Debug)]
pub(crate) struct Machine {
    chance: Chance,
    pub(crate) incarnation: u64,
    pub(crate) label: String,
    pub(crate) weights: Option<LoadedWeights>,
    pub(crate) is_paused: bool,
    /// Requests under way, and whether each was told to end.
    pub(crate) running: BTreeMap<String, bool>,
    down_until_ms: u64,
}

impl SimulatedEngine {
    pub(crate) fn new(settings: EngineSettings, chance: Chance) -> Self {
        let machine = Machine {
            chance,
            incarnation: 0,
            label: "default".to_owned(),
            weights: None,
            is_paused: false,
            running: BTreeMap::new(),
            down_until_ms: 0,
        };
        Self { settings, machine: Mutex::new(machine), changed: Notify::new() }
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn misfortunes_met(&self) -> BTreeMap<String, u32> {
        self.machine().chance.met()
    }

    pub(crate) fn lost(&self, call: &'static str) -> ApiError {
        ApiError::Lost { call, url: self.settings.url.clone(), message: "connection reset".to_owned() }
    }

    pub(crate) fn refused(&self, call: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::Refused { call, url: self.settings.url.clone(), status: 400, message: message.into() }
    }

    /// Begins a call: it may never come back, or come back with trouble that the call itself must act out.
    async fn enter(&self, call: &'static str, troubles: &[Trouble]) -> Result<(OpenCall, Option<Trouble>), ApiError> {
        let open = self.settings.ledger.open_call(call);
        tokio::time::sleep(Duration::from_millis(2)).await;
        let now_ms = self.settings.clock.elapsed_ms();
        let trouble = {
            let mut machine = self.machine();
            let is_gone = self.settings.lost_at_ms.is_some_and(|lost_at_ms| now_ms >= lost_at_ms);
            if is_gone || now_ms < machine.down_until_ms {
                let (url, message) = (self.settings.url.clone(), "connection refused".to_owned());
                return Err(ApiError::Unreachable { url, message });
            }
            machine.chance.strikes(troubles)
        };
        match trouble {
            Some(Trouble::Hang) => std::future::pending().await,
            Some(Trouble::LoseConnection) => Err(self.lost(call)),
            Some(Trouble::Restart) => {
                self.restart(now_ms);
                Err(self.lost(call))
            }
            Some(Trouble::Slow) => {
                let wait_ms = self.machine().chance.between(500, 20_000);
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                Ok((open, None))
            }
            Some(Trouble::Unavailable) => {
                let (url, message) = (self.settings.url.clone(), "try again later".to_owned());
                Err(ApiError::Unavailable { call, url, status: 503, message })
            }
            other => Ok((open, other)),
        }
    }

    fn restart(&self, now_ms: u64) {
        let mut machine = self.machine();
        machine.incarnation += 1;
        machine.label = "default".to_owned();
        machine.weights = None;
        machine.is_paused = false;
        machine.running.clear();
        machine.down_until_ms = now_ms + machine.chance.between(500, 15_000);
        drop(machine);
        self.tell();
    }

    fn tell(&self) {
        self.changed.notify_waiters();
    }

    fn take_load(&self, load: &LoadWeights, loaded: LoadedWeights, trouble: Option<Trouble>) -> Result<(), ApiError> {
        const CALL: &str = "/update_weights_from_disk";
        let mut machine = self.machine();
        if trouble == Some(Trouble::FailLoad) {
            return Err(self.refused(CALL, "Failed to load"));
        }
        if !self.settings.keeps_old_weights || machine.weights.is_none() {
            machine.weights = Some(loaded);
        }
        if trouble == Some(Trouble::HalfLoad) {
            return Err(self.refused(CALL, "Failed to load the last shard"));
        }
        machine.label.clone_from(&load.weight_version);
        Ok(())
    }
}

#[async_trait]
impl EngineApi for SimulatedEngine {
    async fn server_info(&self, _: Deadline) -> Result<ServerInfo, ApiError> {
        let (_open, _) = self.enter("/server_info", ANY_CALL).await?;
        Ok(ServerInfo {
            version: self.settings.version.to_owned(),
            identity: format!("incarnation {}", self.machine().incarnation),
            context_tokens: Some(16_384),
            max_prompt_tokens: Some(16_000),
            disaggregated: false,
        })
    }

    async fn model_info(&self, _: Deadline) -> Result<ModelInfo, ApiError> {
        let (_open, _) = self.enter("/model_info", ANY_CALL).await?;
        Ok(ModelInfo { weight_version: self.machine().label.clone(), is_generation: true })
    }

    async fn ready(&self, _: Deadline) -> Result<bool, ApiError> {
        let (_open, _) = self.enter("/ready", ANY_CALL).await?;
        Ok(!self.machine().is_paused)
    }

    async fn generate(&self, call: &GenerateCall, _: Deadline) -> Result<Generated, ApiError> {
        let (_open, trouble) = self.enter("/generate", GENERATING).await?;
        self.run(call, trouble == Some(Trouble::GiveUp)).await
    }

    async fn abort(&self, target: &AbortTarget, _: Deadline) -> Result<(), ApiError> {
        let (_open, _) = self.enter("/abort_request", ANY_CALL).await?;
        for (rid, is_told) in &mut self.machine().running {
            *is_told |= match target {
                AbortTarget::Request(prefix) => rid.starts_with(prefix.as_str()),
                AbortTarget::All => true,
            };
        }
        self.tell();
        Ok(())
    }

    async fn pause(&self, mode: ServerPause, _: Deadline) -> Result<(), ApiError> {
        let (_open, _) = self.enter("/pause_generation", ANY_CALL).await?;
        let mut machine = self.machine();
        machine.is_paused = true;
        if mode == ServerPause::Abort {
            machine.running.values_mut().for_each(|is_told| *is_told = true);
        }
        drop(machine);
        self.tell();
        Ok(())
    }

    async fn continue_generation(&self, _: Deadline) -> Result<(), ApiError> {
        let (_open, _) = self.enter("/continue_generation", ANY_CALL).await?;
        self.machine().is_paused = false;
        self.tell();
        Ok(())
    }

    async fn flush_cache(&self, _: Deadline) -> Result<(), ApiError> {
        let (_open, _) = self.enter("/flush_cache", ANY_CALL).await?;
        Ok(())
    }

    async fn update_weights_from_disk(&self, load: &LoadWeights, _: Deadline) -> Result<(), ApiError> {
        const CALL: &str = "/update_weights_from_disk";
        let (_open, trouble) = self.enter(CALL, LOADING).await?;
        let incarnation = self.machine().incarnation;
        tokio::time::sleep(Duration::from_secs(2)).await;
        if self.machine().incarnation != incarnation {
            return Err(self.lost(CALL));
        }
        let loaded = weights_file::read(Path::new(&load.model_dir)).map_err(|reason| self.refused(CALL, reason))?;
        let taken = self.take_load(load, loaded, trouble);
        self.tell();
        taken
    }

    async fn loads(&self, _: Deadline) -> Result<Loads, ApiError> {
        let (_open, _) = self.enter("/v1/loads", ANY_CALL).await?;
        Ok(Loads { running: self.machine().running.len() as u32, waiting: 0 })
    }
}
