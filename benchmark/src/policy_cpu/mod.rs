//! Bench `policy_cpu`: training and generation on one thread of the CPU, next to `transformers` on the same files.
//!
//! Ours is what runs use: the Learner's GRPO step (forward, loss, backward, clipping, AdamW) and the embedded engine's
//! generator. The peer does as much with `transformers` and PyTorch in f32. Ours and the peer take turns, the median
//! counts, and both see the same token counts. The limit is what the matrix products alone would take at the speed of a
//! large product, measured in the same run. Speeds are compared only after the logits of both were found to agree.

mod ours;
mod sizes;

use anyhow::{Context, ensure};
use greenroom_policy::checkpoint::{SaveOptions, save};
use greenroom_policy::{ModelConfig, Parameters};
use serde_json::{Value, json};
use tch::Kind;

use self::sizes::{Arithmetic, Size, product_speed, sizes};
use crate::measure::{Cost, Stopwatch, machine, median};
use crate::peer::Peer;
use crate::result::{BenchResult, Goal, PeerValue, Row};

const COMMAND: &str = "cargo bench-policy-cpu --python PYTHON";
/// Ours and the peer take turns this often.
const ROUNDS: usize = 3;
/// Requests at once.
const BATCHES: [usize; 3] = [1, 8, 32];
/// Of the logits' range.
const LOGITS_TOLERANCE: f64 = 1e-4;

/// Tokens a second, by wall and by processor time.
#[derive(Default)]
struct Speeds([Vec<f64>; 2]);

impl Speeds {
    fn add(&mut self, tokens: usize, cost: Cost) {
        self.0[0].push(tokens as f64 / cost.wall_s);
        self.0[1].push(tokens as f64 / cost.processor_s);
    }
}

const UNITS: [&str; 2] = ["tokens/s", "tokens/s of processor"];

/// Runs the bench.
pub fn run(python: &str) -> anyhow::Result<BenchResult> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let mut peer = Peer::start(python, "policy_cpu.py", scratch.path())?;
    tch::set_num_threads(1);
    let mut rows = Vec::new();
    for (number, size) in sizes().iter().enumerate() {
        let config = ModelConfig::tiny(&size.model)?;
        let parameters = Parameters::init(&config, 1)?;
        let model = scratch.path().join(format!("model-{number}"));
        save(&model, &config, &parameters, &SaveOptions { kind: Kind::Float, ..SaveOptions::default() })?;
        peer.ask(&json!({ "do": "load", "model": model }))?;
        let mut bench = Bench { size, config, parameters, peer: &mut peer, product: Speeds::default() };
        rows.push(bench.logits()?);
        let mut learner = ours::learner(&model)?;
        rows.extend(bench.training(&mut learner)?);
        drop(learner);
        rows.extend(bench.generation()?);
    }
    Ok(BenchResult { bench: "policy_cpu".to_owned(), command: COMMAND.to_owned(), machine: machine(), rows })
}

struct Bench<'a> {
    size: &'a Size,
    config: ModelConfig,
    parameters: Parameters,
    peer: &'a mut Peer,
    /// Operations a second of a large matrix product.
    product: Speeds,
}

impl Bench<'_> {
    /// Asks the peer for work and reads what it took.
    fn peer_cost(&mut self, request: &Value) -> anyhow::Result<Cost> {
        let answer = self.peer.ask(request)?;
        let number = |key: &str| answer[key].as_f64().with_context(|| format!("the peer's answer lacks {key}"));
        Ok(Cost { wall_s: number("wall_s")?, processor_s: number("processor_s")? })
    }

    fn measure_product(&mut self) -> anyhow::Result<()> {
        let [wall, processor] = product_speed()?;
        self.product.0[0].push(wall);
        self.product.0[1].push(processor);
        Ok(())
    }

    /// Largest difference of the logits as a part of their range; an error when the two are not the same model.
    fn logits(&mut self) -> anyhow::Result<Row> {
        let ids = ours::token_ids(32, 7, self.size.model.vocab_size);
        let ours = ours::logits(&self.config, &self.parameters, &ids)?;
        let answer = self.peer.ask(&json!({ "do": "logits", "ids": ids }))?;
        let theirs: Vec<f32> = serde_json::from_value(answer["logits"].clone()).context("the peer's logits")?;
        ensure!(ours.len() == theirs.len(), "{} logits against {}", ours.len(), theirs.len());
        let range = theirs.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let difference = ours.iter().zip(&theirs).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        let relative = f64::from(difference / range);
        ensure!(relative <= LOGITS_TOLERANCE, "the logits differ by {relative} of their range: not the same model");
        let metric = format!("{}: logits, largest difference by their range", self.size.title);
        Ok(Row::new(metric, "1", relative, None, Goal::OursAtMost(LOGITS_TOLERANCE)))
    }

    fn training(&mut self, learner: &mut greenroom_trainer::Learner) -> anyhow::Result<Vec<Row>> {
        let (sequences, length) = self.size.training;
        eprintln!("{}: training …", self.size.title);
        let (mut ours, mut theirs) = (Speeds::default(), Speeds::default());
        let request = json!({ "do": "train", "sequences": sequences, "length": length });
        for round in 0..=ROUNDS {
            let stopwatch = Stopwatch::start();
            ours::train(learner, self.size)?;
            let our_cost = stopwatch.cost();
            let peer_cost = self.peer_cost(&request)?;
            self.measure_product()?;
            // the first round warms both sides up
            if round > 0 {
                ours.add(sequences * length, our_cost);
                theirs.add(sequences * length, peer_cost);
            }
        }
        let operations = Arithmetic::of(&self.config).per_trained_token(length);
        let metric = format!("training, {sequences} × {length}");
        Ok(self.rows(&metric, &ours, &theirs, operations, 1.0))
    }

    fn generation(&mut self) -> anyhow::Result<Vec<Row>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let size = self.size;
        let fast = ours::generator(&self.config, &self.parameters, false)?;
        let invariant = ours::generator(&self.config, &self.parameters, true)?;
        let mut rows = Vec::new();
        for batch in BATCHES {
            eprintln!("{}: generating, batch {batch} …", size.title);
            let mut speeds = [Speeds::default(), Speeds::default(), Speeds::default()];
            let request =
                json!({ "do": "generate", "batch": batch, "prompt": size.prompt, "new_tokens": size.new_tokens });
            for round in 0..=ROUNDS {
                let mut costs = Vec::new();
                for handle in [&fast, &invariant] {
                    let stopwatch = Stopwatch::start();
                    runtime.block_on(ours::generate(handle, size, batch, round))?;
                    costs.push(stopwatch.cost());
                }
                costs.push(self.peer_cost(&request)?);
                for (speeds, cost) in speeds.iter_mut().zip(costs).filter(|_| round > 0) {
                    speeds.add(batch * size.new_tokens, cost);
                }
            }
            let [fast, invariant, theirs] = &speeds;
            let operations = Arithmetic::of(&self.config).per_new_token(size.prompt, size.new_tokens);
            let goal = if batch == 32 { 1.0 } else { 2.0 };
            let metric = format!("generation, batch {batch}, {} + {} tokens", size.prompt, size.new_tokens);
            rows.extend(self.rows(&metric, fast, theirs, operations, goal));
            rows.extend(self.rows(&format!("{metric}, batch-invariant"), invariant, theirs, operations, 1.0));
        }
        runtime.block_on(async {
            fast.shutdown().await?;
            invariant.shutdown().await
        })?;
        Ok(rows)
    }

    fn rows(&self, metric: &str, ours: &Speeds, theirs: &Speeds, operations: f64, goal: f64) -> Vec<Row> {
        let row = |number: usize| {
            let peer = PeerValue { value: median(&theirs.0[number]), name: &self.peer.name };
            let metric = format!("{}: {metric}", self.size.title);
            let limit = median(&self.product.0[number]) / operations;
            Row::new(metric, UNITS[number], median(&ours.0[number]), Some(peer), Goal::RatioAtLeast(goal))
                .with_limit(limit)
        };
        (0..UNITS.len()).map(row).collect()
    }
}
