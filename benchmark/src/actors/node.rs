//! A node as a process of its own: this program, run again, obeying requests line by line as a peer does.
//!
//! Each node serves the [`Worker`] and bare TCP. A request runs as a task of the runtime that `greenroom node` has. The first
//! that fails ends the process, and with it the bench.

use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context, ensure};
use greenroom_cluster::{Cluster, ClusterConfig};
use greenroom_core::{Address, Deadline, Faults, Seam, spawn_named};
use ractor::Actor;
use serde::Deserialize;
use serde_json::{Value, json};

use super::work::{self, Calls, Work, Worker};
use super::{crowd, plain};
use crate::measure::{Stopwatch, processor_s, quantile};

const SERVICE: &str = "worker";
/// How long nodes may take to find each other.
const JOINING_MS: u64 = 20_000;
/// How often it is looked whether another heartbeat has come back.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
enum Request {
    /// Where this node is reached.
    Addresses,
    /// Wait until this node can ask another.
    Wait { node: String },
    /// Processor time of this process so far.
    Processor,
    /// Ask another node, so many at a time.
    Ask { node: String, count: usize, window: usize },
    /// Messages one way.
    Note { node: String, count: u64 },
    /// Large messages, so many at a time.
    Bulk { node: String, bytes: usize, count: usize, window: usize },
    /// The same, and the heartbeats' round trips meanwhile.
    Beats { node: String, bytes: usize, count: usize, window: usize },
    /// Round trips by bare TCP.
    Ping { address: String, count: usize },
    /// A stream of bytes by bare TCP.
    Stream { address: String, bytes: usize },
    /// Ask an actor of this process, and a task by bare channels.
    Local { count: usize },
    /// Very many AgentLoops.
    Crowd { count: usize },
    /// Leave the cluster.
    Leave,
}

struct Node {
    cluster: Option<Cluster>,
    worker: Address<Work>,
    plain: String,
}

/// Runs as a node until the end of the input; without settings it belongs to no cluster.
pub fn run(config: Option<&str>) -> anyhow::Result<()> {
    let config = config.map(serde_json::from_str).transpose().context("--config is no settings of a node")?;
    let runtime = greenroom_core::runtime(greenroom_core::ACTOR_THREADS)?;
    let node = std::sync::Arc::new(runtime.block_on(Node::start(config))?);
    say(&json!({ "name": "greenroom" }))?;
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let node = node.clone();
        // a task, because the thread that waits here is none of the runtime's
        let answer = runtime.block_on(async { spawn_named("request", async move { node.obey(request).await }).await });
        say(&answer?.context("the request panicked")??)?;
    }
    Ok(())
}

fn say(answer: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}")?;
    Ok(out.flush()?)
}

fn shown(calls: &Calls) -> Value {
    json!({
        "p50_us": quantile(&calls.microseconds, 0.5),
        "p99_us": quantile(&calls.microseconds, 0.99),
        "wall_s": calls.wall_s,
    })
}

impl Node {
    async fn start(config: Option<ClusterConfig>) -> anyhow::Result<Self> {
        let (worker, _) = Actor::spawn(None, Worker, ()).await?;
        let worker = Address::of(&worker);
        let cluster = match config {
            None => None,
            Some(config) => Some(Cluster::start(config, Seam::system(1, Faults::none())).await?),
        };
        if let Some(cluster) = &cluster {
            cluster.serve(SERVICE, &worker);
        }
        Ok(Self { cluster, worker, plain: plain::serve().await? })
    }

    fn cluster(&self) -> anyhow::Result<&Cluster> {
        self.cluster.as_ref().context("this node belongs to no cluster")
    }

    fn worker_of(&self, node: &str) -> anyhow::Result<Address<Work>> {
        Ok(self.cluster()?.service(node, SERVICE))
    }

    async fn obey(&self, request: Request) -> anyhow::Result<Value> {
        Ok(match request {
            Request::Addresses => json!({ "cluster": self.cluster()?.me().address, "plain": self.plain }),
            Request::Wait { node } => self.wait(&node).await?,
            Request::Processor => json!({ "processor_s": processor_s() }),
            Request::Ask { node, count, window } => shown(&work::echo(&self.worker_of(&node)?, count, window).await?),
            Request::Note { node, count } => json!({ "wall_s": work::note(&self.worker_of(&node)?, count).await? }),
            Request::Bulk { node, bytes, count, window } => {
                shown(&work::take(&self.worker_of(&node)?, bytes, count, window).await?)
            }
            Request::Beats { node, bytes, count, window } => self.beats(&node, bytes, count, window).await?,
            Request::Ping { address, count } => shown(&plain::ping(&address, count).await?),
            Request::Stream { address, bytes } => json!({ "wall_s": plain::stream(&address, bytes).await? }),
            Request::Local { count } => json!({
                "actor": shown(&work::echo(&self.worker, count, 1).await?),
                "channel": shown(&work::channel(count).await?),
            }),
            Request::Crowd { count } => crowd::gather(count).await?,
            Request::Leave => {
                self.cluster()?.leave().await;
                json!({})
            }
        })
    }

    async fn wait(&self, node: &str) -> anyhow::Result<Value> {
        let (worker, deadline) = (self.worker_of(node)?, Deadline::after_ms(JOINING_MS));
        while !worker.is_bound() {
            ensure!(!deadline.has_passed(), "{node} was not found within {JOINING_MS} ms");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(json!({}))
    }

    /// Sends bulk, and looks meanwhile how long each heartbeat was under way, there and back.
    async fn beats(&self, node: &str, bytes: usize, count: usize, window: usize) -> anyhow::Result<Value> {
        let (worker, cluster) = (self.worker_of(node)?, self.cluster()?);
        let watch = Stopwatch::start();
        let bulk = spawn_named("bulk", async move { work::take(&worker, bytes, count, window).await });
        let (mut seen, mut last_ms) = (Vec::new(), None);
        while !bulk.is_finished() {
            tokio::time::sleep(LOOK).await;
            let member = cluster.members().into_iter().find(|member| member.name == node);
            let round_trip_ms = member.and_then(|member| member.round_trip_ms);
            // microseconds: two heartbeats of the very same time are rare, and count once
            if round_trip_ms != last_ms {
                seen.extend(round_trip_ms);
                last_ms = round_trip_ms;
            }
        }
        bulk.await?.context("the bulk panicked")??;
        // the first was measured before
        seen.drain(..seen.len().min(1));
        Ok(json!({ "round_trips_ms": seen, "wall_s": watch.cost().wall_s }))
    }
}
