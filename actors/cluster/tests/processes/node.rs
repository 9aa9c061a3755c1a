//! A node of tests: this very test binary, run again with `GREENROOM_TEST_NODE` set, obeying commands line by line.
//!
//! A command is a line of JSON with a number; its answer is a line that begins with [`MARK`] and holds the same number.
//! Commands run side by side. Each node serves a `worker`, a real actor.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom_cluster::{BulkPlane, Cluster, ClusterConfig, MemberEvent, caller};
use greenroom_core::ractor::{Actor, ActorProcessingErr, ActorRef};
use greenroom_core::{Address, AskError, Deadline, Faults, Reply, Seam, ask, local_message, spawn_named};
use greenroom_dataplane::{Client, DataplaneConfig, Server, Store, StoreConfig};
use greenroom_identity::Identity;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// What a node's answers begin with, to tell them from other talk.
pub const MARK: &str = "@@";

/// Bytes as one slab, as bulk is in real messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(#[serde(with = "serde_bytes")] Vec<u8>);

#[derive(Debug, Serialize, Deserialize)]
pub enum Work {
    /// Counts the number; answers how often it has come.
    Count(u64, Reply<u64>),
    /// Sends the bytes back.
    Echo(Bytes, Reply<Bytes>),
    /// Answers the length.
    Take(Bytes, Reply<u64>),
    /// Never answers, keeps the question.
    Hold(Reply<u64>),
    /// Drops the question.
    Drop(Reply<u64>),
    /// Answers with an address.
    Open(Reply<Address<Work>>),
    /// Is worth nothing but its number.
    Note(u64),
    /// How many notes came, whether they came in order, how often a number came at most, how many questions are held
    /// whose askers have gone away.
    Notes(Reply<(u64, bool, u64, u64)>),
}

local_message!(Work);

/// Asks the door who is seen there.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hail(Reply<String>);

#[derive(Default)]
struct Worker {
    counts: BTreeMap<u64, u64>,
    held: Vec<Reply<u64>>,
    notes: u64,
    last_note: u64,
    in_order: bool,
}

struct WorkerActor;

impl Actor for WorkerActor {
    type Msg = Work;
    type State = Worker;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Work>, (): ()) -> Result<Worker, ActorProcessingErr> {
        Ok(Worker { in_order: true, ..Worker::default() })
    }

    async fn handle(&self, myself: ActorRef<Work>, work: Work, state: &mut Worker) -> Result<(), ActorProcessingErr> {
        match work {
            Work::Count(number, reply) => {
                let count = state.counts.entry(number).or_default();
                *count += 1;
                reply.send(*count);
            }
            Work::Echo(bytes, reply) => drop(reply.send(bytes)),
            Work::Take(bytes, reply) => drop(reply.send(bytes.0.len() as u64)),
            Work::Hold(reply) => state.held.push(reply),
            Work::Drop(reply) => drop(reply),
            Work::Open(reply) => drop(reply.send(Address::of(&myself))),
            Work::Note(number) => {
                state.in_order &= number == state.last_note + 1;
                state.last_note = number;
                state.notes += 1;
            }
            Work::Notes(reply) => {
                let most = state.counts.values().copied().max().unwrap_or(0);
                let gone = state.held.iter().filter(|held| held.is_abandoned()).count() as u64;
                reply.send((state.notes, state.in_order, most, gone));
            }
        }
        Ok(())
    }
}

/// How many asks ended how, and how long they took.
#[derive(Default)]
struct Tally {
    ended: BTreeMap<String, u64>,
    microseconds: Vec<u64>,
    reason: String,
}

impl Tally {
    fn note(&mut self, ended: Result<bool, AskError>, microseconds: u64) {
        let name = match &ended {
            Ok(true) => "answered",
            Ok(false) => "wrong",
            Err(error) => error.code(),
        };
        if let Err(error) = &ended {
            self.reason = error.to_string();
        }
        *self.ended.entry(name.to_owned()).or_default() += 1;
        self.microseconds.push(microseconds);
    }

    fn shown(mut self, elapsed: Duration) -> Value {
        self.microseconds.sort_unstable();
        let at = |share: f64| {
            let last = self.microseconds.len().saturating_sub(1);
            self.microseconds.get((last as f64 * share) as usize).copied().unwrap_or(0)
        };
        json!({
            "ended": self.ended, "p50_us": at(0.5), "p99_us": at(0.99), "most_us": at(1.0),
            "elapsed_ms": elapsed.as_millis() as u64, "reason": self.reason,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
enum Command {
    Ask {
        node: String,
        what: String,
        count: u64,
        window: usize,
        bytes: usize,
        deadline_ms: u64,
        first: u64,
    },
    /// Keeps asking until `stop_asking`.
    KeepAsking {
        node: String,
        deadline_ms: u64,
    },
    StopAsking,
    Note {
        node: String,
        count: u64,
    },
    Notes {
        node: String,
    },
    Open {
        node: String,
    },
    Members,
    Events,
    Gang {
        roles: Vec<(String, usize)>,
        deadline_ms: u64,
    },
    Rpc {
        node: String,
        for_ms: u64,
    },
    Hail {
        node: String,
    },
    Withdraw,
    Leave,
}

struct Node {
    cluster: Cluster,
    events: Mutex<Vec<MemberEvent>>,
    stop_asking: Mutex<tokio::sync::watch::Sender<bool>>,
    workers: Mutex<BTreeMap<String, Address<Work>>>,
}

/// Runs as a node until the end of the input.
pub fn run(config: &str) {
    let (config, workers): (ClusterConfig, usize) = serde_json::from_str(config).unwrap();
    let mut builder = match workers {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if workers > 0 {
        builder.worker_threads(workers);
    }
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new("info,ractor_cluster=warn"))
        .with_writer(std::io::stderr)
        .try_init();
    builder.enable_all().build().unwrap().block_on(serve(config));
}

async fn serve(config: ClusterConfig) {
    let seam = Seam::system(7, Faults::none());
    let cluster = match Cluster::start(config.clone(), seam).await {
        Ok(cluster) => cluster,
        Err(error) => return say(&json!({ "number": 0, "error": format!("{}: {error}", error.code()) })),
    };
    let _server = carry_bulk(&cluster, &config).await;
    let (worker, _) = Actor::spawn(None, WorkerActor, ()).await.unwrap();
    cluster.serve("worker", &Address::of(&worker));
    let door = Address::of_function("door", |Hail(reply)| {
        let known = caller().map(|caller| (caller.node, caller.certificate));
        let text = known.map(|(node, role)| format!("{node} {}", role.map_or("anybody", |role| role.as_str())));
        reply.send(text.unwrap_or_default());
        Ok(())
    });
    cluster.serve_everybody("door", &door);
    let me = cluster.me();
    let node = Arc::new(Node {
        cluster,
        events: Mutex::default(),
        stop_asking: Mutex::new(tokio::sync::watch::Sender::new(false)),
        workers: Mutex::default(),
    });
    let (listener, mut events) = (node.clone(), node.cluster.events());
    spawn_named("events", async move {
        while let Some(event) = events.recv().await {
            listener.events.lock().unwrap().push(event);
        }
    });
    say(&json!({ "number": 0, "address": me.address, "incarnation": me.incarnation }));
    let (sender, mut commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    while let Some(line) = commands.recv().await {
        let (number, command): (u64, Command) = serde_json::from_str(&line).unwrap();
        let node = node.clone();
        spawn_named("command", async move {
            let answer = node.obey(command).await;
            say(&json!({ "number": number, "answer": answer }));
        });
    }
}

/// Lets bulk go by a data plane, where the node has a node's certificate.
async fn carry_bulk(cluster: &Cluster, config: &ClusterConfig) -> Option<Server> {
    let identity = Identity::load(config.tls.as_ref()?).unwrap();
    let dataplane = DataplaneConfig::default();
    let client = Client::new(&identity, &dataplane).ok()?;
    let store = Store::in_memory(StoreConfig::default()).unwrap();
    let server = Server::start(&identity, &store, "127.0.0.1:0".parse().unwrap(), &dataplane).await.unwrap();
    cluster.carry_bulk(BulkPlane::new(store, client, server.local_addr().to_string()));
    Some(server)
}

fn say(answer: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{answer}").unwrap();
    out.flush().unwrap();
}

impl Node {
    /// The worker of a node, by an address that is asked for once and then kept, as actors keep theirs.
    fn worker(&self, node: &str) -> Address<Work> {
        let made = |node: &String| match &**node {
            "*" => self.cluster.anywhere("worker"),
            node => self.cluster.service(node, "worker"),
        };
        let mut workers = self.workers.lock().unwrap();
        workers.entry(node.to_owned()).or_insert_with_key(made).clone()
    }

    async fn obey(&self, command: Command) -> Value {
        match command {
            Command::Ask { node, what, count, window, bytes, deadline_ms, first } => {
                self.ask(&node, &what, count, window, bytes, deadline_ms, first).await
            }
            Command::KeepAsking { node, deadline_ms } => self.keep_asking(&node, deadline_ms).await,
            Command::StopAsking => {
                self.stop_asking.lock().unwrap().send_replace(true);
                json!({})
            }
            Command::Note { node, count } => self.note(&node, count).await,
            Command::Notes { node } => {
                let notes = ask(&self.worker(&node), Deadline::after_ms(10_000), Work::Notes).await;
                match notes {
                    Ok((notes, in_order, most, gone)) => {
                        json!({ "notes": notes, "in_order": in_order, "most": most, "gone": gone })
                    }
                    Err(error) => json!({ "error": error.to_string() }),
                }
            }
            Command::Open { node } => {
                let opened = ask(&self.worker(&node), Deadline::after_ms(5000), Work::Open).await.unwrap();
                let counted = ask(&opened, Deadline::after_ms(5000), |reply| Work::Count(u64::MAX, reply)).await;
                json!({ "name": opened.name(), "counted": counted.unwrap() })
            }
            Command::Members => json!(self.cluster.members()),
            Command::Events => json!(*self.events.lock().unwrap()),
            Command::Gang { roles, deadline_ms } => {
                let mut told = Vec::new();
                let deadline = Deadline::after_ms(deadline_ms);
                let gang = self.cluster.gang(&roles, None, deadline, |missing| told.push(missing.to_vec())).await;
                json!({ "error": gang.err().map(|error| error.to_string()), "told": told })
            }
            Command::Rpc { node, for_ms } => self.round_trips(&node, for_ms).await,
            Command::Hail { node } => {
                let door = self.cluster.service(&node, "door");
                json!({ "caller": ask(&door, Deadline::after_ms(5000), Hail).await.unwrap() })
            }
            Command::Withdraw => {
                self.cluster.withdraw("worker");
                json!({})
            }
            Command::Leave => {
                self.cluster.leave().await;
                json!({})
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    async fn ask(
        &self,
        node: &str,
        what: &str,
        count: u64,
        window: usize,
        bytes: usize,
        deadline_ms: u64,
        first: u64,
    ) -> Value {
        let worker = self.worker(node);
        let tally = Arc::new(Mutex::new(Tally::default()));
        let windows = Arc::new(Semaphore::new(window));
        let began = Instant::now();
        for number in first..first + count {
            let permit = windows.clone().acquire_owned().await.unwrap();
            let (worker, tally, what) = (worker.clone(), tally.clone(), what.to_owned());
            spawn_named("ask", async move {
                let (deadline, asked) = (Deadline::after_ms(deadline_ms), Instant::now());
                let ended = match &*what {
                    "count" => ask(&worker, deadline, |reply| Work::Count(number, reply)).await.map(|count| count == 1),
                    "hold" => ask(&worker, deadline, Work::Hold).await.map(|_| false),
                    "drop" => ask(&worker, deadline, Work::Drop).await.map(|_| false),
                    "take" => {
                        let sent = Bytes(vec![number as u8; bytes]);
                        let taken = ask(&worker, deadline, |reply| Work::Take(sent, reply)).await;
                        taken.map(|taken| taken == bytes as u64)
                    }
                    _ => {
                        let sent = Bytes((0..bytes).map(|at| (at as u64 * 31 + number) as u8).collect());
                        let back = ask(&worker, deadline, |reply| Work::Echo(sent.clone(), reply)).await;
                        back.map(|back| back == sent)
                    }
                };
                tally.lock().unwrap().note(ended, asked.elapsed().as_micros() as u64);
                drop(permit);
            });
        }
        let all = windows.acquire_many(window as u32).await.unwrap();
        drop(all);
        let tally = std::mem::take(&mut *tally.lock().unwrap());
        tally.shown(began.elapsed())
    }

    async fn keep_asking(&self, node: &str, deadline_ms: u64) -> Value {
        let worker = self.worker(node);
        let mut stop = self.stop_asking.lock().unwrap().subscribe();
        let (mut tally, began) = (Tally::default(), Instant::now());
        let mut number = 1 << 40;
        while !*stop.borrow_and_update() {
            number += 1;
            let asked = Instant::now();
            let ended = ask(&worker, Deadline::after_ms(deadline_ms), |reply| Work::Count(number, reply)).await;
            tally.note(ended.map(|count| count == 1), asked.elapsed().as_micros() as u64);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tally.shown(began.elapsed())
    }

    async fn note(&self, node: &str, count: u64) -> Value {
        let worker = self.worker(node);
        let (began, mut refused) = (Instant::now(), 0);
        for number in 1..=count {
            while worker.cast(Work::Note(number)).is_err() {
                refused += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if number % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        // an answer to a question that follows them says that all have come
        let notes = ask(&worker, Deadline::after_ms(120_000), Work::Notes).await.unwrap();
        let elapsed = began.elapsed();
        json!({ "notes": notes.0, "in_order": notes.1, "refused": refused, "elapsed_us": elapsed.as_micros() as u64 })
    }

    /// The heartbeats' round trips, sampled.
    async fn round_trips(&self, node: &str, for_ms: u64) -> Value {
        let (mut seen, until) = (Vec::new(), Deadline::after_ms(for_ms));
        let mut silent_ms = 0;
        while !until.has_passed() {
            let members = self.cluster.members();
            let now_ms = members.iter().map(|member| member.last_heard_ms).max().unwrap();
            if let Some(member) = members.iter().find(|member| member.name == node) {
                seen.extend(member.round_trip_ms);
                silent_ms = silent_ms.max(now_ms.saturating_sub(member.last_heard_ms));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        seen.sort_by(f64::total_cmp);
        let at = |share: f64| seen.get(((seen.len().max(1) - 1) as f64 * share) as usize).copied();
        json!({ "p50_ms": at(0.5), "p99_ms": at(0.99), "most_ms": at(1.0), "silent_ms": silent_ms })
    }
}
