//! What the fleet promises of an engine that speaks SGLang's protocol, whichever it is: real turns, clamped and refused
//! prompts, updates in every pause mode, a failed load, a killed server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)] // a test's helpers may fail

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom_core::{Address, Deadline, Faults, Reply, Seam, ask};
use greenroom_engine::*;
use greenroom_messages::engine::*;
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::{BatchId, EngineId, GroupId, Purpose, RolloutId, RunId, WeightVersion};
use ractor::Actor;

const VOCABULARY: u32 = 512;
const LONG: u32 = 600;

/// Tells what is going on.
pub fn log(text: &str) {
    println!("real_engine: {text}");
}

/// A pool over the one engine.
struct Fleet {
    pool: Address<EnginePoolMessage>,
    weights: [String; 2],
    turns: Mutex<u32>,
}

impl Fleet {
    async fn start(subject: &Subject<'_>) -> Self {
        let config = EngineConfig { drain_ms: 60_000, ..EngineConfig::default() };
        let journal = Address::of_function("journal", |message| {
            match message {
                JournalMessage::Record(RunEvent::EngineMoved { state, version, trouble, .. }) => {
                    log(&format!("  {state:?} {version:?} {trouble:?}"));
                }
                JournalMessage::Record(RunEvent::Note { text, .. }) => log(&format!("  {text}")),
                _ => {}
            }
            Ok(())
        });
        let spec = EngineSpec { engine: EngineId::new("real"), url: subject.url.clone(), max_in_flight: 8 };
        let arguments = EnginePoolArguments {
            specs: vec![spec],
            api: http_api_factory(&config).unwrap(),
            config,
            seam: Seam::system(1, Faults::none()),
            run: RunId::new("real-run"),
            vocabulary_tokens: VOCABULARY,
            journal,
        };
        let (actor, _) = Actor::spawn(None, EnginePool, arguments).await.unwrap();
        Self { pool: Address::adapted(&actor), weights: subject.weights.clone(), turns: Mutex::new(0) }
    }

    async fn update_to(
        &self,
        number: u64,
        model_dir: &str,
        pause: PauseMode,
    ) -> Result<UpdateConfirmed, EngineFailure> {
        let version = WeightVersion { run: RunId::new("real-run"), number };
        let wish = UpdateWeights { version, model_dir: model_dir.to_owned(), pause, timeout_ms: 300_000 };
        let question = |reply| EnginePoolMessage::UpdateWeights(wish, reply);
        let mut updates = ask(&self.pool, Deadline::after_ms(320_000), question).await.unwrap();
        updates.remove(0).result
    }

    fn request(&self, max_new_tokens: u32) -> GenerateRequest {
        let mut turns = self.turns.lock().unwrap();
        *turns += 1;
        let group = GroupId { batch: BatchId { purpose: Purpose::Train, number: 1 }, index: *turns };
        let rollout = RolloutId { group, sample: 0, attempt: 0 };
        let sampling = Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: -1,
            max_new_tokens,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            seed: None,
        };
        GenerateRequest {
            rollout,
            turn: 0,
            rid: format!("{rollout}-t000"),
            input_ids: vec![5, 6, 7, 8, 9],
            sampling,
            timeout_ms: 120_000,
            oldest_version: 0,
        }
    }

    fn later(&self, request: GenerateRequest) -> greenroom_core::Answer<Result<GenerateOutcome, EngineFailure>> {
        let (reply, answer) = Reply::channel();
        self.pool.cast(EnginePoolMessage::Generate(request, reply)).unwrap();
        answer
    }

    async fn turn(&self, max_new_tokens: u32) -> GenerateOutcome {
        self.later(self.request(max_new_tokens)).await.unwrap().unwrap()
    }

    async fn state(&self) -> EngineState {
        let statuses = ask(&self.pool, Deadline::after_ms(5_000), EnginePoolMessage::Status).await.unwrap();
        statuses[0].state
    }
}

async fn a_turn_has_ids_logprobs_and_its_version(fleet: &Fleet) -> Vec<u32> {
    let first = fleet.turn(12).await;
    assert_eq!((first.output_ids.len(), first.logprobs.len(), first.finish), (12, 12, FinishReason::Length));
    assert!(first.logprobs.iter().all(|logprob| logprob.is_finite() && *logprob <= 0.0));
    assert_eq!(first.versions, [VersionSpan { number: Some(1), start: 0, end: 12 }]);
    assert_eq!(fleet.turn(12).await.output_ids, first.output_ids, "greedy decoding repeats itself");
    first.output_ids
}

async fn what_would_kill_or_be_refused_is_not_sent(fleet: &Fleet) {
    for (prompt, kind) in
        [(vec![1, VOCABULARY], EngineFailureKind::Refused), (vec![1; 1_024], EngineFailureKind::ContextExceeded)]
    {
        let request = GenerateRequest { input_ids: prompt, ..fleet.request(4) };
        assert_eq!(fleet.later(request).await.unwrap().unwrap_err().kind, kind);
    }
    let brim = GenerateRequest { input_ids: vec![3; 1_000], ..fleet.request(500) };
    let outcome = fleet.later(brim).await.unwrap().unwrap();
    // SGLang takes the request for all 24 tokens that are left and ends two before the brim.
    let tokens = outcome.output_ids.len();
    assert!((22..=24).contains(&tokens) && outcome.finish == FinishReason::Length, "clamped to the context: {tokens}");
}

async fn an_abandoned_turn_leaves_the_engine_idle(fleet: &Fleet, api: &dyn EngineApi) {
    let turn = fleet.later(fleet.request(LONG));
    while api.loads(Deadline::after_ms(5_000)).await.unwrap().running == 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(turn);
    let idle = async {
        while api.loads(Deadline::after_ms(5_000)).await.unwrap() != Loads::default() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), idle).await.expect("the engine is idle again");
}

async fn each_pause_mode_changes_the_weights(fleet: &Fleet, greedy_a: &[u32], some_tokens: Duration) {
    let [a, b] = fleet.weights.clone();
    let rows = [
        (2, &b, PauseMode::Drain),
        (3, &a, PauseMode::Abort),
        (4, &b, PauseMode::Retract),
        (5, &a, PauseMode::InPlace),
    ];
    for (number, model_dir, pause) in rows {
        let turn = fleet.later(fleet.request(LONG));
        tokio::time::sleep(some_tokens).await;
        let confirmed = fleet.update_to(number, model_dir, pause).await.unwrap();
        assert_eq!(confirmed.version.number, number);
        let outcome = turn.await.unwrap().unwrap();
        log(&format!("{pause:?}: paused {} ms, {:?} {:?}", confirmed.paused_ms, outcome.finish, outcome.versions));
        let numbers: Vec<_> = outcome.versions.iter().map(|span| span.number.unwrap()).collect();
        let tokens = outcome.output_ids.len() as u32;
        match pause {
            PauseMode::Drain => assert_eq!((numbers, tokens), (vec![1], LONG)),
            PauseMode::Abort => {
                assert_eq!((numbers, outcome.finish), (vec![2], FinishReason::Abort));
                assert!(tokens > 0 && tokens < LONG, "it kept {tokens} tokens");
            }
            PauseMode::Retract | PauseMode::InPlace => {
                assert_eq!((numbers, tokens), (vec![number - 1, number], LONG), "it crossed the update");
            }
        }
        let fresh = fleet.turn(12).await;
        assert_eq!(fresh.versions[0].number, Some(number));
        assert_eq!(fresh.output_ids == greedy_a, *model_dir == a, "{pause:?}: the outputs are those of {model_dir}");
    }
}

async fn a_failed_load_taints_until_a_good_one(fleet: &Fleet) {
    let failure = fleet.update_to(6, "/no/such/directory", PauseMode::Drain).await.unwrap_err();
    log(&format!("a bad directory: {failure}"));
    assert_eq!(fleet.state().await, EngineState::Tainted);
    fleet.update_to(7, &fleet.weights[1], PauseMode::Drain).await.unwrap();
    assert_eq!(fleet.turn(4).await.versions[0].number, Some(7));
}

async fn a_killed_engine_costs_its_turn_and_comes_back_loaded(fleet: &Fleet, restart: &mut dyn FnMut()) {
    let greedy = fleet.turn(12).await.output_ids;
    let turn = fleet.later(fleet.request(LONG));
    tokio::time::sleep(Duration::from_millis(500)).await;
    restart();
    assert_eq!(turn.await.unwrap().unwrap_err().kind, EngineFailureKind::Lost);
    let patient = GenerateRequest { timeout_ms: 400_000, ..fleet.request(12) };
    let outcome = fleet.later(patient).await.unwrap().unwrap();
    assert_eq!((outcome.versions[0].number, outcome.output_ids), (Some(7), greedy), "it was loaded by itself");
}

/// An engine under test.
pub struct Subject<'a> {
    pub url: String,
    /// Two models of one shape with a vocabulary of at least 512 and a context of at least 1024 tokens.
    pub weights: [String; 2],
    /// In this time it makes some of 600 tokens, and far from all.
    pub some_tokens: Duration,
    /// Kills it and starts it again, where the test can.
    pub restart: Option<&'a mut dyn FnMut()>,
}

/// Everything that the fleet promises of an engine.
pub async fn the_fleet_drives(subject: Subject<'_>) {
    let fleet = Fleet::start(&subject).await;
    let api = Arc::new(HttpEngineApi::new(&subject.url, None, None, 1 << 24).unwrap());
    fleet.update_to(1, &fleet.weights[0], PauseMode::Drain).await.unwrap();
    log("serves version 1");
    let greedy_a = a_turn_has_ids_logprobs_and_its_version(&fleet).await;
    what_would_kill_or_be_refused_is_not_sent(&fleet).await;
    an_abandoned_turn_leaves_the_engine_idle(&fleet, &*api).await;
    each_pause_mode_changes_the_weights(&fleet, &greedy_a, subject.some_tokens).await;
    a_failed_load_taints_until_a_good_one(&fleet).await;
    if let Some(restart) = subject.restart {
        a_killed_engine_costs_its_turn_and_comes_back_loaded(&fleet, restart).await;
    }
    ask(&fleet.pool, Deadline::after_ms(20_000), EnginePoolMessage::Shutdown).await.unwrap();
}
