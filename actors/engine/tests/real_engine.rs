//! The whole fleet against a real engine, when there is one: an unmodified SGLang started by this test
//! (`GREENROOM_SGLANG_PYTHON`, see `tests/real_engine/setup.sh`), or any engine that speaks its protocol
//! (`GREENROOM_ENGINE_URL` and `GREENROOM_ENGINE_WEIGHTS=dirA,dirB`, two models of one shape with a vocabulary of at least
//! 512 and a context of at least 1024 tokens). Without either, the test says so and passes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)] // a test's helpers may fail

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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

fn log(text: &str) {
    println!("real_engine: {text}");
}

/// An SGLang of this test's own; its whole process group ends with it.
struct Server {
    python: PathBuf,
    directory: PathBuf,
    port: u16,
    process: Child,
}

impl Server {
    fn start(python: &Path, directory: &Path, port: u16) -> Self {
        let models = python.parent().unwrap().parent().unwrap().join("lib/python3.11/site-packages/sglang/srt/models");
        let kept = ["__init__", "registry", "utils", "qwen2", "qwen3", "llama"];
        let files = std::fs::read_dir(models).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let unused: Vec<_> = files
            .filter_map(|name| name.strip_suffix(".py").map(str::to_owned))
            .filter(|name| !kept.contains(&name.as_str()))
            .collect();
        let output = std::fs::File::create(directory.join("server.log")).unwrap();
        let process = Command::new(python)
            .args(["-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"])
            .args(["--disable-overlap-schedule", "--skip-server-warmup", "--sleep-on-idle"])
            .args(["--max-total-tokens", "8192", "--model-path"])
            .arg(directory.join("a"))
            .env("SGLANG_USE_CPU_ENGINE", "1")
            .env("HF_HUB_OFFLINE", "1")
            .env("OMP_NUM_THREADS", "1")
            .env("SGLANG_CPU_OMP_THREADS_BIND", "0")
            .env("SGLANG_DISABLED_MODEL_ARCHS", unused.join(","))
            .env_remove("PYTHONDONTWRITEBYTECODE")
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0)
            .spawn()
            .unwrap();
        Self { python: python.to_owned(), directory: directory.to_owned(), port, process }
    }

    fn kill(&mut self) {
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args(["-9", "--", &group]).status();
        let _ = self.process.wait();
    }

    fn restart(&mut self) {
        self.kill();
        *self = Self::start(&self.python.clone(), &self.directory.clone(), self.port);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Subject {
    url: String,
    weights: [String; 2],
    server: Option<Server>,
    _directory: Option<tempfile::TempDir>,
}

fn subject() -> Option<Subject> {
    if let (Ok(url), Ok(weights)) = (std::env::var("GREENROOM_ENGINE_URL"), std::env::var("GREENROOM_ENGINE_WEIGHTS")) {
        let (a, b) = weights.split_once(',').expect("GREENROOM_ENGINE_WEIGHTS is dirA,dirB");
        return Some(Subject { url, weights: [a.to_owned(), b.to_owned()], server: None, _directory: None });
    }
    let python = PathBuf::from(std::env::var_os("GREENROOM_SGLANG_PYTHON")?);
    let directory = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/real_engine/tiny_model.py");
    for (name, seed) in [("a", "0"), ("b", "1")] {
        let mut make = Command::new(&python);
        make.arg(&script).arg(directory.path().join(name)).arg(seed).env_remove("LD_LIBRARY_PATH");
        assert!(make.status().unwrap().success(), "the tiny model cannot be made");
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Server::start(&python, directory.path(), port);
    let weights = ["a", "b"].map(|name| directory.path().join(name).display().to_string());
    let url = format!("http://127.0.0.1:{port}");
    Some(Subject { url, weights, server: Some(server), _directory: Some(directory) })
}

struct Fleet {
    pool: Address<EnginePoolMessage>,
    weights: [String; 2],
    turns: Mutex<u32>,
}

impl Fleet {
    async fn start(subject: &Subject) -> Self {
        let config = EngineConfig { drain_ms: 60_000, ..EngineConfig::default() };
        let journal = Address::of_function("journal", |message| {
            if let JournalMessage::Record(RunEvent::EngineMoved { state, version, trouble, .. }) = message {
                log(&format!("  {state:?} {version:?} {trouble:?}"));
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

    fn later(
        &self,
        request: GenerateRequest,
    ) -> greenroom_core::Answer<Result<GenerateOutcome, EngineFailure>> {
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

async fn each_pause_mode_changes_the_weights(fleet: &Fleet, greedy_a: &[u32]) {
    let [a, b] = fleet.weights.clone();
    let rows = [
        (2, &b, PauseMode::Drain),
        (3, &a, PauseMode::Abort),
        (4, &b, PauseMode::Retract),
        (5, &a, PauseMode::InPlace),
    ];
    for (number, model_dir, pause) in rows {
        let turn = fleet.later(fleet.request(LONG));
        tokio::time::sleep(Duration::from_millis(300)).await;
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

async fn a_killed_engine_costs_its_turn_and_comes_back_loaded(fleet: &Fleet, server: &mut Server) {
    let greedy = fleet.turn(12).await.output_ids;
    let turn = fleet.later(fleet.request(LONG));
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.restart();
    assert_eq!(turn.await.unwrap().unwrap_err().kind, EngineFailureKind::Lost);
    let patient = GenerateRequest { timeout_ms: 400_000, ..fleet.request(12) };
    let outcome = fleet.later(patient).await.unwrap().unwrap();
    assert_eq!((outcome.versions[0].number, outcome.output_ids), (Some(7), greedy), "it was loaded by itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_drives_a_real_engine() {
    let Some(mut subject) = subject() else {
        return log("skipped: set GREENROOM_SGLANG_PYTHON or GREENROOM_ENGINE_URL and GREENROOM_ENGINE_WEIGHTS");
    };
    let fleet = Fleet::start(&subject).await;
    let api = Arc::new(HttpEngineApi::new(&subject.url, None, None, 1 << 24).unwrap());
    fleet.update_to(1, &fleet.weights[0], PauseMode::Drain).await.unwrap();
    log("serves version 1");
    let greedy_a = a_turn_has_ids_logprobs_and_its_version(&fleet).await;
    what_would_kill_or_be_refused_is_not_sent(&fleet).await;
    an_abandoned_turn_leaves_the_engine_idle(&fleet, &*api).await;
    each_pause_mode_changes_the_weights(&fleet, &greedy_a).await;
    a_failed_load_taints_until_a_good_one(&fleet).await;
    if let Some(server) = subject.server.as_mut() {
        a_killed_engine_costs_its_turn_and_comes_back_loaded(&fleet, server).await;
    }
    ask(&fleet.pool, Deadline::after_ms(20_000), EnginePoolMessage::Shutdown).await.unwrap();
}
