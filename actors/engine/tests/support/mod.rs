//! A scripted engine, and a fleet of them in virtual time.
#![allow(dead_code)] // each test file uses its part

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::{Address, Deadline, Faults, Seam, ask};
use greenroom_engine::*;
use greenroom_messages::engine::*;
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::{BatchId, EngineId, GroupId, Purpose, RolloutId, RunId, WeightVersion};
use ractor::Actor;
use tokio::sync::watch;

/// What a scripted engine is and does; tests change it at will.
#[derive(Debug)]
pub struct Script {
    pub label: String,
    pub identity: String,
    pub paused: bool,
    /// Calls that are never answered.
    pub hang: BTreeSet<&'static str>,
    /// Calls whose connection breaks.
    pub break_off: BTreeSet<&'static str>,
    /// Calls that are refused.
    pub refuse: BTreeSet<&'static str>,
    /// Calls in which the client itself panics.
    pub panic: BTreeSet<&'static str>,
    pub generate_ms: u64,
    /// What every turn yields: three tokens.
    pub output_ids: [u32; 3],
    /// What it tells of its progress; it moves on by itself where this is `None`.
    pub progress: Option<String>,
    /// The first value of each of its weights, where it can tell.
    pub weight: Option<f64>,
    pub load_ms: u64,
    /// Every call in order.
    pub log: Vec<String>,
    pub running: BTreeMap<String, watch::Sender<bool>>,
    pub peak: usize,
}

/// An engine of tests.
#[derive(Debug)]
pub struct ScriptedEngine(pub Mutex<Script>);

impl ScriptedEngine {
    pub fn new() -> Arc<Self> {
        let set = BTreeSet::new;
        Arc::new(Self(Mutex::new(Script {
            label: "default".into(),
            identity: "first".into(),
            paused: false,
            hang: set(),
            break_off: set(),
            refuse: set(),
            panic: set(),
            generate_ms: 100,
            output_ids: [1, 2, 3],
            progress: None,
            weight: None,
            load_ms: 50,
            log: Vec::new(),
            running: BTreeMap::new(),
            peak: 0,
        })))
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    /// How often a call was made whose log line begins so.
    pub fn count(&self, begins: &str) -> usize {
        self.with(|script| script.log.iter().filter(|line| line.starts_with(begins)).count())
    }

    async fn enter(&self, call: &'static str, detail: &str) -> Result<(), ApiError> {
        let (hang, break_off, refuse, panics) = self.with(|script| {
            script.log.push(format!("{call} {detail}").trim_end().to_owned());
            let has = |set: &BTreeSet<&'static str>| set.contains(call);
            (has(&script.hang), has(&script.break_off), has(&script.refuse), has(&script.panic))
        });
        assert!(!panics, "the client panics on purpose");
        if hang {
            std::future::pending::<()>().await;
        }
        let url = "scripted".to_owned();
        if break_off {
            return Err(ApiError::Lost { call, url, message: "reset".into() });
        }
        if refuse {
            return Err(ApiError::Refused { call, url, status: 400, message: "scripted refusal".into() });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(())
    }
}

/// Removes a request however its future ends, as a server that sees the connection close.
struct Running<'a>(&'a ScriptedEngine, String);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.with(|script| drop(script.running.remove(&self.1)));
    }
}

#[async_trait]
impl EngineApi for ScriptedEngine {
    async fn server_info(&self, _: Deadline) -> Result<ServerInfo, ApiError> {
        self.enter("server_info", "").await?;
        Ok(ServerInfo {
            version: "0.5.23".into(),
            identity: self.with(|script| script.identity.clone()),
            context_tokens: Some(64),
            max_prompt_tokens: Some(60),
            disaggregated: false,
        })
    }

    async fn model_info(&self, _: Deadline) -> Result<ModelInfo, ApiError> {
        self.enter("model_info", "").await?;
        Ok(ModelInfo { weight_version: self.with(|script| script.label.clone()), is_generation: true })
    }

    async fn ready(&self, _: Deadline) -> Result<bool, ApiError> {
        self.enter("ready", "").await?;
        Ok(self.with(|script| !script.paused))
    }

    async fn generate(&self, call: &GenerateCall, _: Deadline) -> Result<Generated, ApiError> {
        let (sender, mut aborted) = watch::channel(false);
        let ms = self.with(|script| {
            script.running.insert(call.rid.clone(), sender);
            script.peak = script.peak.max(script.running.len());
            script.generate_ms
        });
        let _running = Running(self, call.rid.clone());
        self.enter("generate", &call.rid).await?;
        let finish = tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(ms)) => FinishReason::Stop,
            _ = aborted.wait_for(|aborted| *aborted) => FinishReason::Abort,
        };
        let (label, output_ids) = self.with(|script| (script.label.clone(), script.output_ids.to_vec()));
        Ok(Generated {
            output_ids,
            logprobs: vec![-0.5; 3],
            finish,
            weight_version: label.clone(),
            spans: vec![LabelSpan { label, start: 0, end: 3 }],
            cached_tokens: 2,
        })
    }

    async fn abort(&self, target: &AbortTarget, _: Deadline) -> Result<(), ApiError> {
        let AbortTarget::Request(rid) = target else { panic!("a proxy aborts its own requests only") };
        self.enter("abort", rid).await?;
        self.with(|script| script.running.get(rid).map(|running| running.send(true)));
        Ok(())
    }

    async fn pause(&self, mode: ServerPause, _: Deadline) -> Result<(), ApiError> {
        self.enter("pause", &format!("{mode:?}")).await?;
        self.with(|script| script.paused = true);
        Ok(())
    }

    async fn continue_generation(&self, _: Deadline) -> Result<(), ApiError> {
        self.enter("continue", "").await?;
        self.with(|script| script.paused = false);
        Ok(())
    }

    async fn flush_cache(&self, _: Deadline) -> Result<(), ApiError> {
        self.enter("flush_cache", "").await
    }

    async fn update_weights_from_disk(&self, load: &LoadWeights, _: Deadline) -> Result<(), ApiError> {
        self.enter("load", &load.weight_version).await?;
        let ms = self.with(|script| script.load_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        self.with(|script| script.label = load.weight_version.clone());
        Ok(())
    }

    async fn loads(&self, _: Deadline) -> Result<Loads, ApiError> {
        self.enter("loads", "").await?;
        Ok(Loads::default())
    }

    async fn progress(&self, _: Deadline) -> Result<Option<String>, ApiError> {
        self.enter("progress", "").await?;
        Ok(Some(self.with(|script| script.progress.clone().unwrap_or_else(|| script.log.len().to_string()))))
    }

    async fn weight_rows(&self, name: &str, rows: u32, _: Deadline) -> Result<Vec<f64>, ApiError> {
        self.enter("weight_rows", name).await?;
        let missing = || ApiError::Missing { call: "/get_weights_by_name", url: "scripted".into() };
        let weight = self.with(|script| script.weight).ok_or_else(missing)?;
        Ok(vec![weight; rows as usize])
    }
}

pub fn version(number: u64) -> WeightVersion {
    WeightVersion { run: RunId::new("run"), number }
}

pub fn wish(number: u64) -> UpdateWeights {
    let (version, model_dir) = (version(number), format!("/weights/{number}"));
    UpdateWeights { version, model_dir, pause: PauseMode::Drain, timeout_ms: 60_000 }
}

pub fn rollout(index: u32) -> RolloutId {
    let batch = BatchId { purpose: Purpose::Train, number: 1 };
    RolloutId { group: GroupId { batch, index }, sample: 0, attempt: 0 }
}

pub fn request(index: u32, turn: u32) -> GenerateRequest {
    GenerateRequest {
        rollout: rollout(index),
        turn,
        rid: format!("{}-t{turn:03}", rollout(index)),
        input_ids: vec![5, 6, 7],
        sampling: Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            max_new_tokens: 8,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            seed: None,
        },
        timeout_ms: 30_000,
        oldest_version: 0,
    }
}

/// A pool over scripted engines `e0`, `e1`, …
pub struct Fleet {
    pub pool: Address<EnginePoolMessage>,
    pub engines: Vec<Arc<ScriptedEngine>>,
    pub journal: Arc<Mutex<Vec<RunEvent>>>,
    /// When set, the journal's address panics once in its caller's actor.
    pub journal_panics: Arc<Mutex<bool>>,
    pub ended: ractor::concurrency::JoinHandle<()>,
}

pub fn spec(index: usize, max_in_flight: u32) -> EngineSpec {
    EngineSpec { engine: EngineId::new(format!("e{index}")), url: format!("http://e{index}"), max_in_flight }
}

impl Fleet {
    pub async fn start(engines: usize, max_in_flight: u32, config: EngineConfig) -> Self {
        let spare = 2;
        let scripted: Vec<_> = (0..engines + spare).map(|_| ScriptedEngine::new()).collect();
        Self::over(scripted, engines, max_in_flight, config).await
    }

    /// A fleet of the first `engines` of these.
    pub async fn over(
        scripted: Vec<Arc<ScriptedEngine>>,
        engines: usize,
        max_in_flight: u32,
        config: EngineConfig,
    ) -> Self {
        let by_name = scripted.clone();
        let api: ApiFactory = Arc::new(move |spec: &EngineSpec| {
            let index: usize = spec.engine.as_str()[1..].parse().unwrap();
            Ok(by_name[index].clone() as Arc<dyn EngineApi>)
        });
        let journal = Arc::new(Mutex::new(Vec::new()));
        let journal_panics = Arc::new(Mutex::new(false));
        let (events, panics) = (journal.clone(), journal_panics.clone());
        let journal_address = Address::of_function("journal", move |message| {
            let JournalMessage::Record(event) = message else { return Ok(()) };
            let panics = std::mem::take(&mut *panics.lock().unwrap());
            assert!(!panics, "the journal panics on purpose");
            events.lock().unwrap().push(event);
            Ok(())
        });
        let arguments = EnginePoolArguments {
            specs: (0..engines).map(|index| spec(index, max_in_flight)).collect(),
            api,
            config,
            seam: Seam::simulated(11, 0, Faults::none()),
            run: RunId::new("run"),
            vocabulary_tokens: 100,
            journal: journal_address,
        };
        let (actor, ended) = Actor::spawn(None, EnginePool, arguments).await.unwrap();
        Self { pool: Address::adapted(&actor), engines: scripted, journal, journal_panics, ended }
    }

    /// A fleet whose engines all serve version 1.
    pub async fn serving(engines: usize, max_in_flight: u32, config: EngineConfig) -> Self {
        let fleet = Self::start(engines, max_in_flight, config).await;
        let updates = fleet.update(wish(1)).await;
        assert_eq!(Quorum::of(&updates), Quorum { confirmed: engines, asked: engines }, "{updates:?}");
        fleet
    }

    pub async fn update(&self, wish: UpdateWeights) -> Vec<EngineUpdate> {
        let question = |reply| EnginePoolMessage::UpdateWeights(wish, reply);
        ask(&self.pool, Deadline::after_ms(1_000_000), question).await.unwrap()
    }

    pub async fn generate(&self, request: GenerateRequest) -> Result<GenerateOutcome, EngineFailure> {
        let question = |reply| EnginePoolMessage::Generate(request, reply);
        ask(&self.pool, Deadline::after_ms(1_000_000), question).await.unwrap()
    }

    pub fn generate_later(
        &self,
        request: GenerateRequest,
    ) -> greenroom_core::Answer<Result<GenerateOutcome, EngineFailure>> {
        let (reply, answer) = greenroom_core::Reply::channel();
        self.pool.cast(EnginePoolMessage::Generate(request, reply)).unwrap();
        answer
    }

    pub async fn statuses(&self) -> Vec<EngineStatus> {
        ask(&self.pool, Deadline::after_ms(1_000), EnginePoolMessage::Status).await.unwrap()
    }

    /// Waits (in virtual time) until engine `index` is in `state`; gives how long that took in milliseconds.
    pub async fn until(&self, index: usize, state: EngineState, limit_ms: u64) -> u64 {
        let begun = tokio::time::Instant::now();
        loop {
            let statuses = self.statuses().await;
            let waited_ms = begun.elapsed().as_millis() as u64;
            if statuses[index].state == state {
                return waited_ms;
            }
            assert!(waited_ms <= limit_ms, "e{index} is not {state:?} after {waited_ms} ms: {:?}", statuses[index]);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The states through which an engine went, by the journal.
    pub fn moves(&self, index: usize) -> Vec<EngineState> {
        let of_engine = |event: &RunEvent| match event {
            RunEvent::EngineMoved { engine, state, .. } if engine.as_str() == format!("e{index}") => Some(*state),
            _ => None,
        };
        self.journal.lock().unwrap().iter().filter_map(of_engine).collect()
    }
}
