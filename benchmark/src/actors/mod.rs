//! Bench `actors`: asks, messages and bulk between two nodes, next to Ray's actors and bare TCP; asks inside a node, next to
//! bare channels; ten thousand AgentLoops, next to a few of Ray's actors.
//!
//! Nodes are processes of this very program on loopback, once without and once with mutual TLS; Ray, which has none by
//! default, runs its driver and one actor. They take turns, round by round. Processor time is that of the two processes that
//! talk; what Ray's own processes take besides is not counted.

mod crowd;
mod node;
mod pair;
mod plain;
mod work;

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde_json::json;

use self::pair::{Pair, number};
use self::work::PAYLOAD_BYTES;
use crate::measure::{machine, median, quantile};
use crate::peer::Peer;
use crate::result::{BenchResult, Goal, PeerValue, Row};

pub use node::run as run_node;

const COMMAND: &str = "cargo bench-actors --python PYTHON";
const ROUNDS: usize = 3;
/// Outstanding asks, how many of them ours makes, and Ray.
const ASKS: &[(usize, usize, usize)] = &[(1, 10_000, 500), (64, 64_000, 3000)];
/// Messages one way, ours and Ray's.
const NOTES: (usize, usize) = (400_000, 3000);
/// Bytes of a large message, how many ours sends, and Ray.
const BULK: &[(usize, usize, usize)] = &[(64 << 10, 4096, 300), (4 << 20, 64, 24)];
/// Large messages under way at a time.
const BULK_WINDOW: usize = 8;
/// Round trips by bare TCP, bytes by bare TCP, asks inside a process.
const FLOOR: (usize, usize, usize) = (10_000, 256 << 20, 100_000);
const HEARTBEAT_MS: u64 = 1000;
/// For many heartbeats in the second that the bulk takes.
const QUICK_HEARTBEAT_MS: u64 = 5;
const BEATS_BULK: (usize, usize) = (4 << 20, 256);
const AGENT_LOOPS: usize = 10_000;
const RAY_ACTORS: usize = 4;

/// What one side measured, round by round, by name.
#[derive(Default)]
pub struct Side(BTreeMap<String, Vec<f64>>);

impl Side {
    fn add(&mut self, name: String, value: f64) {
        self.0.entry(name).or_default().push(value);
    }

    /// The median over all rounds but the first, which warms up.
    fn get(&self, name: &str) -> f64 {
        median(self.0.get(name).and_then(|values| values.get(1..)).unwrap_or_default())
    }
}

/// Runs the bench.
pub fn run(python: &str) -> anyhow::Result<BenchResult> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let mut ray = Peer::start(python, "ray_actors.py", scratch.path())?;
    let mut pairs = Vec::new();
    for (title, with_tls) in [("no TLS", false), ("mutual TLS", true)] {
        let pair = Pair::start(&scratch.path().join(with_tls.to_string()), with_tls, HEARTBEAT_MS)?;
        pairs.push((title, pair, Side::default()));
    }
    let (mut floor, mut theirs) = (Side::default(), Side::default());
    for round in 0..=ROUNDS {
        let (pings, bytes, local) = FLOOR;
        pairs[0].1.measure_floor(pings, bytes, local, &mut floor)?;
        for (title, pair, side) in &mut pairs {
            pair.measure(side).with_context(|| format!("ours, {title}"))?;
        }
        measure_ray(&mut ray, &mut theirs)?;
        let last =
            |side: &Side| side.0.get("ask_1_p50_us").and_then(|values| values.last()).copied().unwrap_or(f64::NAN);
        eprintln!("round {round} of {ROUNDS}: an ask {:.0} µs, Ray's {:.0} µs", last(&pairs[0].2), last(&theirs));
    }
    let name = format!("{}, no TLS", ray.name);
    let mut rows = vec![local_row(&floor)];
    for (title, pair, side) in pairs {
        pair.end()?;
        rows.extend(pair_rows(title, &side, &theirs, &floor, &name));
        rows.push(beats_row(title, &scratch.path().join(format!("beats-{}", rows.len())))?);
    }
    rows.extend(crowd_rows(&mut ray)?);
    ray.ask(&json!({ "do": "end" }))?;
    Ok(BenchResult { bench: "actors".to_owned(), command: COMMAND.to_owned(), machine: machine(), rows })
}

fn measure_ray(ray: &mut Peer, side: &mut Side) -> anyhow::Result<()> {
    let asks: Vec<(usize, usize)> = ASKS.iter().map(|(window, _, count)| (*window, *count)).collect();
    let bulk: Vec<(usize, usize)> = BULK.iter().map(|(bytes, _, count)| (*bytes, *count)).collect();
    let request =
        json!({ "do": "measure", "payload_bytes": PAYLOAD_BYTES, "asks": asks, "notes": NOTES.1, "bulk": bulk });
    let answer = ray.ask(&request)?;
    for (name, value) in answer.as_object().context("Ray's side answers with numbers")? {
        side.add(name.clone(), value.as_f64().context("Ray's side answers with numbers")?);
    }
    Ok(())
}

fn local_row(floor: &Side) -> Row {
    let peer = PeerValue { value: floor.get("channel_p50_us"), name: "bare channels to a task of the same process" };
    let goal = Goal::RatioAtMost(3.0);
    Row::new("inside a process: ask, p50", "µs", floor.get("actor_p50_us"), Some(peer), goal)
}

fn pair_rows(title: &str, ours: &Side, theirs: &Side, floor: &Side, ray: &str) -> Vec<Row> {
    let row = |metric: String, unit: &str, name: &str, goal: Goal| {
        let peer = PeerValue { value: theirs.get(name), name: ray };
        Row::new(format!("{title}: {metric}"), unit, ours.get(name), Some(peer), goal)
    };
    let (quicker, cheaper) = (Goal::RatioAtMost(1.0 / 8.0), Goal::RatioAtMost(1.0 / 20.0));
    let mut rows = Vec::new();
    for (window, ..) in ASKS {
        let metric = |what: &str| format!("{window} outstanding: {what}");
        rows.push(row(metric("ask, p50"), "µs", &format!("ask_{window}_p50_us"), quicker));
        rows.push(row(metric("ask, p99"), "µs", &format!("ask_{window}_p99_us"), quicker));
        if *window == 1 {
            let peer = PeerValue { value: floor.get("ping_p50_us"), name: "bare TCP, between the same processes" };
            let (metric, ours) = (format!("{title}: {}", metric("ask, p50")), ours.get("ask_1_p50_us"));
            rows.push(Row::new(metric, "µs", ours, Some(peer), Goal::RatioAtMost(4.0)));
        } else {
            rows.push(row(metric("asks"), "1/s", &format!("ask_{window}_per_s"), Goal::RatioAtLeast(8.0)));
        }
        let processor = row(metric("processor time of an ask"), "µs", &format!("ask_{window}_processor_us"), cheaper);
        // what the kernel alone takes for a question and its answer, one at a time
        let floor_us = (*window == 1).then(|| floor.get("ping_processor_us"));
        rows.push(Row { limit: floor_us.map(|us| us.round()), ..processor });
    }
    rows.push(row("messages one way".to_owned(), "1/s", "notes_per_s", Goal::OursAtLeast(100_000.0)));
    for (bytes, ..) in BULK {
        let size = if *bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) };
        let metric = format!("messages of {size}, {BULK_WINDOW} at a time");
        let row = row(metric, "MB/s", &format!("bulk_{bytes}_mb_per_s"), Goal::RatioAtLeast(1.0));
        rows.push(row.with_limit(floor.get("stream_mb_per_s")));
    }
    rows
}

/// Heartbeats beside 1 GiB of bulk, on nodes whose hearts beat quickly.
fn beats_row(title: &str, dir: &std::path::Path) -> anyhow::Result<Row> {
    let mut pair = Pair::start(dir, title == "mutual TLS", QUICK_HEARTBEAT_MS)?;
    let (bytes, count) = BEATS_BULK;
    let mut round_trips_ms = Vec::new();
    for _ in 0..ROUNDS {
        round_trips_ms.extend(pair.beats(bytes, count)?);
    }
    pair.end()?;
    let (seen, most_ms) = (round_trips_ms.len(), quantile(&round_trips_ms, 1.0));
    eprintln!("{title}: {seen} heartbeats beside bulk, the longest {most_ms:.1} ms");
    ensure!(seen >= 100, "only {seen} heartbeats were seen beside the bulk");
    let metric = format!("{title}: heartbeat, there and back, p99 while {} MiB go", (bytes * count) >> 20);
    Ok(Row::new(metric, "ms", quantile(&round_trips_ms, 0.99), None, Goal::OursAtMost(50.0)))
}

fn crowd_rows(ray: &mut Peer) -> anyhow::Result<Vec<Row>> {
    let ours = pair::node(None)?.ask(&json!({ "do": "crowd", "count": AGENT_LOOPS }))?;
    let theirs = ray.ask(&json!({ "do": "spawn", "count": RAY_ACTORS }))?;
    eprintln!("{AGENT_LOOPS} AgentLoops: {ours}; {RAY_ACTORS} of Ray's actors: {theirs}");
    let name = format!("{}, {RAY_ACTORS} actors", ray.name);
    let (less, more) = (Goal::RatioAtMost(0.01), Goal::RatioAtLeast(100.0));
    let row = |metric: &str, unit: &str, key: &str, their_key: &str, goal: Goal| {
        let peer = PeerValue { value: number(&theirs, their_key)?, name: &name };
        anyhow::Ok(Row::new(metric, unit, number(&ours, key)?, Some(peer), goal))
    };
    let tokens = number(&ours, "prompt_tokens")?;
    let asking = format!("one of {AGENT_LOOPS} AgentLoops at its engine, {tokens} tokens: memory");
    Ok(vec![
        row(&format!("{AGENT_LOOPS} AgentLoops: started"), "1/s", "per_s", "per_s", more)?,
        row("one of them before it has a sandbox: memory", "KiB", "claiming_kib", "memory_kib", less)?,
        row(&asking, "KiB", "asking_kib", "memory_kib", less)?,
    ])
}
