//! Tokens per second of a training step and of generation, ours and those of `transformers`, on the same model in one go:
//!
//! ```text
//! cargo run -p greenroom-policy --example bench-policy -- PYTHON
//! ```
//!
//! PYTHON is an interpreter with torch and transformers. Writes `benchmark/results/policy.json`. Each side runs on one
//! thread; the best of its repeats counts, and our repeats are split before and after the peer's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)] // a measurement, not the product

use std::path::{Path, PathBuf};
use std::process::Command;

use greenroom_policy::checkpoint::{SaveOptions, save};
use greenroom_policy::generation::{GenerationEvent, GenerationRequest, GeneratorHandle, GeneratorOptions, start};
use greenroom_policy::{ModelConfig, Network, Parameters, TinyModel};
use serde_json::{Value, json};
use tch::{Kind, Tensor};
use tokio::time::Instant;

const SEQUENCES: i64 = 16;
const LENGTH: i64 = 400;
const REQUESTS: u32 = 32;
const PROMPT: u32 = 300;
const NEW_TOKENS: u32 = 128;
const REPEATS: usize = 3;

/// Tokens a second.
#[derive(Clone, Copy, Default)]
struct Speed {
    wall: f64,
    processor: f64,
}

impl Speed {
    fn best(self, other: Self) -> Self {
        Self { wall: self.wall.max(other.wall), processor: self.processor.max(other.processor) }
    }
}

/// Processor time of this process so far, seconds.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

struct Stopwatch {
    began: Instant,
    processor: f64,
}

impl Stopwatch {
    fn start() -> Self {
        Self { began: Instant::now(), processor: processor_seconds() }
    }

    fn speed(&self, tokens: f64) -> Speed {
        let processor = tokens / (processor_seconds() - self.processor);
        Speed { wall: tokens / self.began.elapsed().as_secs_f64(), processor }
    }
}

fn train(config: &ModelConfig, parameters: &Parameters) -> Speed {
    let parameters = parameters.copy_to(Kind::Float, tch::Device::Cpu).unwrap().with_gradients(true);
    let network = Network::new(config, &parameters).unwrap();
    let bounds: Vec<i64> = (0..=SEQUENCES).map(|number| number * LENGTH).collect();
    let ids: Vec<i64> = (0..SEQUENCES * LENGTH).map(|n| (n * 7919) % config.vocab_size as i64).collect();
    let (ids, positions) = (Tensor::from_slice(&ids), network.packed_positions(&bounds).unwrap());
    let step = || {
        let hidden = network.forward_packed(&ids, &positions, &bounds).unwrap();
        let logprobs = network.logits(&hidden).unwrap().log_softmax(-1, Kind::Float);
        logprobs.gather(1, &ids.unsqueeze(1), false).mean(Kind::Float).backward();
    };
    step();
    let mut best = Speed::default();
    for _ in 0..REPEATS {
        let stopwatch = Stopwatch::start();
        step();
        best = best.best(stopwatch.speed((SEQUENCES * LENGTH) as f64));
    }
    best
}

async fn generate_once(handle: &GeneratorHandle, round: u32) -> usize {
    let mut streams = Vec::new();
    for number in 0..REQUESTS {
        // Nothing is shared, within a round or between rounds: the peer has no prefix cache.
        let ids = (0..PROMPT).map(|n| (n * 31 + number * 17 + round * 577 + n * n * (number + 1)) % 1000).collect();
        let mut request = GenerationRequest::new(format!("{round}-{number}"), ids);
        request.params.max_new_tokens = NEW_TOKENS;
        request.params.ignore_eos = true;
        streams.push(handle.submit(request).await.unwrap());
    }
    let mut tokens = 0;
    for mut stream in streams {
        while let Some(event) = stream.recv().await {
            if let GenerationEvent::Tokens(more) = event {
                tokens += more.len();
            }
        }
    }
    tokens
}

async fn generate(config: &ModelConfig, parameters: &Parameters, batch_invariant: bool) -> Speed {
    let options = GeneratorOptions { batch_invariant, ..GeneratorOptions::default() };
    let handle = start(config, parameters, Path::new("bench"), options).unwrap();
    generate_once(&handle, 0).await;
    let mut best = Speed::default();
    for round in 1..=REPEATS as u32 {
        handle.flush_cache().await.unwrap();
        let stopwatch = Stopwatch::start();
        let tokens = generate_once(&handle, round).await;
        best = best.best(stopwatch.speed(tokens as f64));
    }
    handle.shutdown().await.unwrap();
    best
}

fn run_peer(python: &str, root: &Path, model: &Path) -> Value {
    let numbers = [SEQUENCES as u32, LENGTH as u32, REQUESTS, PROMPT, NEW_TOKENS, REPEATS as u32].map(|n| n.to_string());
    let script = root.join("benchmark/policy/peer.py");
    let output = Command::new(python).arg(script).arg(model).args(numbers).env_remove("LD_LIBRARY_PATH").output().unwrap();
    assert!(output.status.success(), "the peer failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn row(metric: &str, unit: &str, ours: f64, peer: &Value, name: &Value) -> Value {
    let peer = peer.as_f64().unwrap();
    let ratio = ours / peer;
    println!("{metric}: ours {ours:.0}, peer {peer:.0} {unit}, ratio {ratio:.2}");
    json!({
        "metric": metric, "unit": unit, "ours": ours.round(), "peer": peer.round(), "peer_name": name,
        "limit": null, "ratio": (ratio * 100.0).round() / 100.0, "goal": 1.0, "holds": ratio >= 1.0,
    })
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    format!("{}, {cores} cores, load {load}", name.trim_start_matches([' ', '\t', ':']))
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    tch::set_num_threads(1);
    let python = std::env::args().nth(1).expect("the argument: a python interpreter with torch and transformers");
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sizes = TinyModel { eos_token_ids: vec![1023], ..TinyModel::default() };
    let config = ModelConfig::tiny(&sizes).unwrap();
    let parameters = Parameters::init(&config, 1).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("model");
    save(&model, &config, &parameters, &SaveOptions { kind: Kind::Float, ..SaveOptions::default() }).unwrap();

    let (mut training, mut invariant, mut fast) = (Speed::default(), Speed::default(), Speed::default());
    let mut peer = Value::Null;
    for half in 0..2 {
        training = training.best(train(&config, &parameters));
        invariant = invariant.best(generate(&config, &parameters, true).await);
        fast = fast.best(generate(&config, &parameters, false).await);
        if half == 0 {
            peer = run_peer(&python, &root, &model);
        }
    }
    let name = &peer["name"];
    let (wall, processor) = ("tokens/s", "tokens/s of processor");
    let mut rows = Vec::new();
    for (metric, ours, peer) in [
        ("training step, 16 x 400 tokens", training, &peer["training"]),
        ("generation, 32 requests of 300 + 128 tokens", fast, &peer["generation"]),
        ("the same, batch-invariant", invariant, &peer["generation"]),
    ] {
        rows.push(row(metric, wall, ours.wall, &peer["wall"], name));
        rows.push(row(metric, processor, ours.processor, &peer["processor"], name));
    }
    let command = "cargo run -p greenroom-policy --example bench-policy -- PYTHON";
    let result = json!({"bench": "policy", "command": command, "machine": machine(), "rows": rows});
    let path = root.join("benchmark/results/policy.json");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, serde_json::to_string_pretty(&result).unwrap() + "\n").unwrap();
}
