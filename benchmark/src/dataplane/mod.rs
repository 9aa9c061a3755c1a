//! Bench `dataplane`: what bulk bytes cost by QUIC, TLS/TCP and a shared directory, next to plain TCP; and how long one
//! object takes to four receivers in a chain, next to one receiver.
//!
//! Everything runs as tasks of one process on loopback, so that processor time is that of both ends. The costs are measured
//! without limits on the links. The chain is measured with each node's way out limited to [`RATE_MBIT`], because there
//! time is what links take and not what this machine's few cores do for five nodes at once.

mod nodes;
mod plain;
mod shaped;

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use greenroom_core::{Deadline, Seed, spawn_named};
use greenroom_dataplane::{Client, FetchOptions, PeerAddress, Transport, chain};
use rand::Rng;
use tokio::runtime::Runtime;

use self::nodes::Nodes;
use self::shaped::Link;
use crate::measure::{Cost, Stopwatch, machine, median};
use crate::result::{BenchResult, Goal, PeerValue, Row};

const COMMAND: &str = "cargo bench-dataplane";
const ROUNDS: usize = 3;
/// The object of the costs.
const COST_BYTES: usize = 128 << 20;
/// The object of the chain: 1.3 s at the rate of a link.
const CHAIN_BYTES: usize = 16 << 20;
/// What a node may send, Mbit/s.
pub const RATE_MBIT: u32 = 100;
/// The window for the fixed rate: loopback and the emulated queue have round trips of a few ms.
const ROUND_TRIP_MS: u32 = 20;
/// The round trip of the long link, ms.
const FAR_MS: u32 = 50;
const RECEIVERS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the bench.
pub fn run() -> anyhow::Result<BenchResult> {
    let runtime = Runtime::new()?;
    let rows = runtime.block_on(async {
        let mut rows = costs().await?;
        for (title, transport, goal) in [("TLS/TCP", Transport::Tls, 1.15), ("QUIC", Transport::Quic, 1.5)] {
            rows.push(fan_out(title, transport, goal).await?);
        }
        rows.push(far().await?);
        anyhow::Ok(rows)
    })?;
    Ok(BenchResult { bench: "dataplane".to_owned(), command: COMMAND.to_owned(), machine: machine(), rows })
}

fn content(bytes: usize) -> Bytes {
    let mut content = vec![0; bytes];
    Seed::new(1).random().fill(content.as_mut_slice());
    content.into()
}

/// Seconds of one way, round by round, for 1 GB (10⁹ bytes).
#[derive(Default)]
struct PerGigabyte {
    wall_s: Vec<f64>,
    processor_s: Vec<f64>,
}

impl PerGigabyte {
    fn add(&mut self, cost: Cost, bytes: usize) {
        let gigabytes = bytes as f64 / 1e9;
        self.wall_s.push(cost.wall_s / gigabytes);
        self.processor_s.push(cost.processor_s / gigabytes);
    }
}

async fn costs() -> anyhow::Result<Vec<Row>> {
    let content = content(COST_BYTES);
    let nodes = Nodes::new()?;
    let in_memory = nodes.source_in_memory(&content).await?;
    let in_directory = nodes.source_in_directory(&content)?;
    let ways = [
        ("TLS/TCP", Transport::Tls, &in_memory, 3.0),
        ("QUIC", Transport::Quic, &in_memory, 8.0),
        ("directory", Transport::Directory, &in_directory, 3.0),
    ];
    let mut plain = PerGigabyte::default();
    let mut ours = ways.map(|_| PerGigabyte::default());
    // round 0 warms both sides up and does not count
    for round in 0..=ROUNDS {
        let watch = Stopwatch::start();
        plain::carry(&content).await?;
        let cost = watch.cost();
        if round > 0 {
            plain.add(cost, COST_BYTES);
        }
        for ((title, transport, source, _), ours) in ways.iter().zip(&mut ours) {
            let client = nodes.client(*transport, None)?;
            let watch = Stopwatch::start();
            let peers = std::slice::from_ref(&source.address);
            let fetching = client.fetch_bytes(source.object, peers, COST_BYTES as u64, Deadline::after(PATIENCE));
            let fetched = fetching.await.with_context(|| format!("by {title}"))?;
            let cost = watch.cost();
            client.close();
            ensure!(fetched == content, "{title} carried other bytes");
            eprintln!("{title}, round {round}: {:.2} s, {:.2} s of processor", cost.wall_s, cost.processor_s);
            if round > 0 {
                ours.add(cost, COST_BYTES);
            }
        }
    }
    let mut rows = Vec::new();
    for ((title, _, _, goal), ours) in ways.iter().zip(&ours) {
        let row = |what: &str, select: &dyn Fn(&PerGigabyte) -> &[f64]| {
            let peer = PeerValue { value: median(select(&plain)), name: "plain TCP, memory to memory" };
            let metric = format!("{title}: {what} of 1 GB");
            Row::new(metric, "s", median(select(ours)), Some(peer), Goal::RatioAtMost(*goal))
        };
        rows.push(row("processor time, both ends", &|way| &way.processor_s));
        rows.push(row("wall time", &|way| &way.wall_s));
    }
    Ok(rows)
}

/// One object to four receivers in a chain, next to one receiver, with each node's way out limited.
async fn fan_out(title: &str, transport: Transport, goal: f64) -> anyhow::Result<Row> {
    let content = content(CHAIN_BYTES);
    let (mut one, mut four) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        for (receivers, times) in [(1, &mut one), (RECEIVERS, &mut four)] {
            let wall_s = deliver(&content, transport, receivers).await.with_context(|| format!("by {title}"))?;
            eprintln!("{title} to {receivers}, round {round}: {wall_s:.2} s");
            if round > 0 {
                times.push(wall_s);
            }
        }
    }
    let peer = PeerValue { value: median(&one), name: "one receiver, the same way" };
    let metric = format!("{title}: {} MiB to four in a chain, {RATE_MBIT} Mbit/s each", CHAIN_BYTES >> 20);
    let row = Row::new(metric, "s", median(&four), Some(peer), Goal::RatioAtMost(goal));
    Ok(row.with_limit(link_s()))
}

/// By QUIC over a long link that loses some: what the operator's rate is for.
async fn far() -> anyhow::Result<Row> {
    let content = content(CHAIN_BYTES);
    let link = Link { delay: Duration::from_millis(u64::from(FAR_MS) / 2), loses_one_of: 100 };
    let mut times = Vec::new();
    for round in 0..=ROUNDS {
        let nodes = Nodes::new()?;
        let source = nodes.far_source(&content, FAR_MS, link).await?;
        let client = nodes.client(Transport::Quic, Some(FAR_MS))?;
        let watch = Stopwatch::start();
        let peers = std::slice::from_ref(&source.address);
        let fetched = client.fetch_bytes(source.object, peers, u64::MAX, Deadline::after(PATIENCE)).await?;
        let wall_s = watch.cost().wall_s;
        ensure!(fetched == content, "the far source sent other bytes");
        eprintln!("QUIC far away, round {round}: {wall_s:.2} s");
        if round > 0 {
            times.push(wall_s);
        }
    }
    let limit = link_s();
    let metric = format!("QUIC: {} MiB over {RATE_MBIT} Mbit/s, {FAR_MS} ms, 1 % of datagrams lost", CHAIN_BYTES >> 20);
    let goal = Goal::OursAtMost((limit / 0.45 * 100.0).round() / 100.0);
    Ok(Row::new(metric, "s", median(&times), None, goal).with_limit(limit))
}

/// The time of the chain's object over one link, seconds.
fn link_s() -> f64 {
    CHAIN_BYTES as f64 * 8.0 / f64::from(RATE_MBIT) / 1e6
}

async fn deliver(content: &Bytes, transport: Transport, receivers: usize) -> anyhow::Result<f64> {
    let nodes = Nodes::new()?;
    let source = nodes.shaped_source(content, transport).await?;
    let mut relays = Vec::new();
    for number in 0..receivers {
        relays.push(nodes.shaped_receiver(number, transport).await?);
    }
    let addresses: Vec<PeerAddress> = relays.iter().map(|relay| relay.address.clone()).collect();
    let asked = chain(&source.address, &addresses, RECEIVERS);
    let watch = Stopwatch::start();
    let mut fetches = Vec::new();
    for (relay, peers) in relays.iter().zip(asked) {
        let client: Client = nodes.client(transport, Some(ROUND_TRIP_MS))?;
        let (object, store) = (source.object, relay.store.clone());
        fetches.push(spawn_named("receiver", async move {
            client.fetch(object, &peers, &store, &FetchOptions::until(Deadline::after(PATIENCE))).await
        }));
    }
    for fetch in fetches {
        fetch.await?.context("a receiver panicked")??;
    }
    let wall_s = watch.cost().wall_s;
    for relay in &relays {
        ensure!(relay.store.read(source.object)?.as_ref() == Some(content), "a receiver has other bytes");
    }
    Ok(wall_s)
}
