//! Two ends of a line that both have a data plane: how large messages cross, and what is left when something fails.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use greenroom_core::wire::{Target, deliver_over, target_of};
use greenroom_core::{Address, AskError, Clock, Deadline, Reply, ask, spawn_named};
use greenroom_dataplane::{Client, DataplaneConfig, Server, Store, StoreConfig, Transport};
use greenroom_identity::{Authority, CertificateRole, Identity, IssueRequest};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::plane::{BulkPlane, SERVICE};
use crate::line::frame::Batch;
use crate::line::{Ends, LineLimits, Owner, PeerLine, pump_line};

const MIB: usize = 1 << 20;
const CHUNK_BYTES: u32 = 64 << 10;
const LONG: Duration = Duration::from_secs(60);
const LIMITS: LineLimits = LineLimits {
    bulk_threshold_bytes: 256 << 10,
    bulk_in_flight_bytes: 16 * MIB,
    bulk_deadline_ms: 60_000,
    unacknowledged_bytes: MIB,
    unacknowledged_messages: 64,
    open_questions: 16,
};

#[derive(Debug, Serialize, Deserialize)]
enum Say {
    Echo(#[serde(with = "serde_bytes")] Vec<u8>, Reply<Slab>),
    Small(u64, Reply<u64>),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Slab(#[serde(with = "serde_bytes")] Vec<u8>);

struct Stub {
    target: Arc<dyn Target>,
    plane: BulkPlane,
}

impl Owner for Stub {
    fn target(&self, _: &PeerLine, _: &str) -> Result<Arc<dyn Target>, String> {
        Ok(self.target.clone())
    }
    fn bulk_plane(&self) -> Option<BulkPlane> {
        Some(self.plane.clone())
    }
    fn offers(&self, _: &PeerLine) {}
    fn leaving(&self, _: &PeerLine) {}
    fn measured(&self, _: &PeerLine, _: i64, _: Option<f64>) {}
    fn gossip(&self, _: Vec<(String, u64, String)>) {}
    fn gossip_for(&self, _: &PeerLine) -> Vec<(String, u64, String)> {
        Vec::new()
    }
    fn broken(&self, _: &PeerLine, reason: &str, _: bool) {
        panic!("{reason}");
    }
}

/// What stands before the first end's data plane.
#[derive(Clone, Copy)]
enum Way {
    Open,
    /// Each of the first two connections is cut after so many bytes.
    CutAfter(usize),
    /// Every connection passes so many bytes a second.
    Slow(usize),
    /// Nobody listens.
    Closed,
}

struct End {
    line: Arc<PeerLine>,
    store: Store,
    _owner: Arc<Stub>,
    _server: Server,
}

struct Pair {
    here: End,
    there: End,
    /// Bytes on the control channel, and through the proxy.
    control: Arc<AtomicUsize>,
    passed: Arc<AtomicUsize>,
    _dir: tempfile::TempDir,
}

impl Pair {
    async fn new(way: Way, limits: LineLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join("ca")).unwrap();
        let (control, passed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let mut ends = Vec::new();
        for (me, node, way) in [("here", "there", way), ("there", "here", Way::Open)] {
            let request = IssueRequest { name: me.into(), hosts: vec![], role: CertificateRole::Node, valid_days: 1 };
            let identity = authority.issue(&request, &dir.path().join(me)).unwrap();
            let identity = Identity::load(&identity).unwrap();
            let config = DataplaneConfig {
                transport: Transport::Tls,
                slow_kib_per_s: 0,
                connect_timeout_ms: 1000,
                ..DataplaneConfig::default()
            };
            let stored = StoreConfig { chunk_bytes: Some(CHUNK_BYTES), ..StoreConfig::default() };
            let store = Store::in_memory(stored).unwrap();
            let server = Server::start(&identity, &store, "127.0.0.1:0".parse().unwrap(), &config).await.unwrap();
            let address = match way {
                Way::Open => server.local_addr(),
                _ => proxy(server.local_addr(), way, passed.clone()).await,
            };
            let client = Client::new(&identity, &config).unwrap();
            let plane = BulkPlane::new(store.clone(), client, address.to_string());
            let owner = Arc::new(Stub { target: target_of(&echo()), plane });
            let known = Arc::downgrade(&owner) as Weak<dyn Owner>;
            let certificate = Some(CertificateRole::Node);
            let line = Ends { id: 1, me: me.into(), node: node.into(), incarnation: 1, certificate };
            let line = PeerLine::new(line, limits, Clock::system(), known);
            ends.push(End { line, store, _owner: owner, _server: server });
        }
        for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let (batches, mut arriving) = mpsc::unbounded_channel::<Vec<u8>>();
            let (to, counted) = (to.line.clone(), control.clone());
            spawn_named("wire", async move {
                while let Some(batch) = arriving.recv().await {
                    to.receive(Batch::parse(&batch).unwrap());
                }
            });
            let way = move |batch: Vec<u8>| {
                counted.fetch_add(batch.len(), Ordering::Relaxed);
                batches.send(batch).is_ok()
            };
            from.line.connected(1, Arc::new(way));
            from.line.push_services(&[SERVICE.to_owned()]);
            spawn_named("pump", pump_line(from.line.clone(), Duration::from_millis(50)));
        }
        let [here, there] = <[End; 2]>::try_from(ends).unwrap_or_else(|_| panic!("two ends"));
        let pair = Self { here, there, control, passed, _dir: dir };
        // what the other end offers has arrived with this
        assert_eq!(pair.ask(LONG, |reply| Say::Small(1, reply)).await, Ok(1));
        pair
    }

    fn address(&self) -> Address<Say> {
        let line = self.here.line.clone();
        let send = move |message| line.send_to_service("echo", message);
        Address::of_function("echo", deliver_over(self.here.line.as_line(), send))
    }

    async fn ask<T: Send + 'static>(
        &self,
        wait: Duration,
        question: impl FnOnce(Reply<T>) -> Say,
    ) -> Result<T, AskError> {
        ask(&self.address(), Deadline::after(wait), question).await
    }

    fn end(&self) {
        self.here.line.end("the test is over");
        self.there.line.end("the test is over");
    }

    /// Waits until neither end keeps anything that was under way.
    async fn assert_empty(&self) {
        let until = Instant::now() + LONG;
        for End { line, store, .. } in [&self.here, &self.there] {
            while line.waiting().1 > 0 || store.memory_bytes() > 0 {
                assert!(Instant::now() < until, "{:?} and {} bytes are left", line.waiting(), store.memory_bytes());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

fn echo() -> Address<Say> {
    Address::of_function("echo", |say| {
        match say {
            Say::Echo(bytes, reply) => drop(reply.send(Slab(bytes))),
            Say::Small(number, reply) => drop(reply.send(number)),
        }
        Ok(())
    })
}

async fn proxy(to: SocketAddr, way: Way, passed: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    if let Way::Closed = way {
        return address;
    }
    spawn_named("proxy", async move {
        for connection in 0.. {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(to).await.unwrap();
            spawn_named("proxied", pass(client, server, way, connection, passed.clone()));
        }
    });
    address
}

async fn pass(client: TcpStream, server: TcpStream, way: Way, connection: usize, passed: Arc<AtomicUsize>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let questions = spawn_named("questions", async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    });
    let (mut buffer, mut total) = (vec![0; 16 << 10], 0);
    while let Ok(bytes) = from_server.read(&mut buffer).await {
        total += bytes;
        passed.fetch_add(bytes, Ordering::Relaxed);
        match way {
            Way::CutAfter(most) if connection < 2 && total > most => break,
            Way::Slow(bytes_per_s) => {
                tokio::time::sleep(Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64)).await;
            }
            _ => {}
        }
        if bytes == 0 || to_client.write_all(&buffer[..bytes]).await.is_err() {
            break;
        }
    }
    questions.abort();
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8 ^ (at >> 13) as u8).collect()
}

fn lost<T: std::fmt::Debug>(asked: Result<T, AskError>) -> String {
    match asked {
        Err(AskError::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trajectory_crosses_by_the_data_plane_both_ways_and_the_control_channel_has_only_word_of_it() {
    let pair = Pair::new(Way::Open, LIMITS).await;
    let content = content(4 * MIB);
    for _ in 0..3 {
        let answer = pair.ask(LONG, |reply| Say::Echo(content.clone(), reply)).await;
        assert!(answer.unwrap().0 == content);
    }
    pair.assert_empty().await;
    let control = pair.control.load(Ordering::Relaxed);
    assert!(control < 64 << 10, "{control} bytes went by the control channel");
    pair.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_question_is_answered_while_a_large_one_is_under_way() {
    let pair = Arc::new(Pair::new(Way::Slow(4 * MIB), LIMITS).await);
    let large = pair.clone();
    let large =
        spawn_named("large", async move { large.ask(LONG, |reply| Say::Echo(content(4 * MIB), reply)).await.is_ok() });
    let mut answered = 0;
    while !large.is_finished() {
        // in the same lane it would wait: this one goes the other way
        let (line, way) = (pair.there.line.clone(), pair.there.line.as_line());
        let send = move |message| line.send_to_service("echo", message);
        let address: Address<Say> = Address::of_function("echo", deliver_over(way, send));
        let began = Instant::now();
        assert_eq!(ask(&address, Deadline::after(LONG), |reply| Say::Small(7, reply)).await, Ok(7));
        assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
        assert!(pair.here.line.heard_ms() + 1000 > Clock::system().elapsed_ms(), "a heartbeat was late");
        answered += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(large.await.unwrap(), Some(true));
    assert!(answered > 10, "{answered}");
    pair.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_cuts_in_the_middle_only_what_is_missing_crosses() {
    let pair = Pair::new(Way::CutAfter(MIB), LIMITS).await;
    let content = content(4 * MIB);
    let answer = pair.ask(LONG, |reply| Say::Echo(content.clone(), reply)).await;
    assert!(answer.unwrap().0 == content);
    let passed = pair.passed.load(Ordering::Relaxed);
    // two connections were cut after a MiB each: who begins anew sends 6 MiB, who goes on only what was on its way
    assert!(passed > 4 * MIB && passed < 5 * MIB, "{passed} bytes left for {}", content.len());
    pair.assert_empty().await;
    pair.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_dies_in_the_middle_the_question_fails_at_once_and_nothing_is_left() {
    let pair = Arc::new(Pair::new(Way::Slow(64 << 10), LIMITS).await);
    let asking = pair.clone();
    let asking =
        spawn_named(
            "asking",
            async move { asking.ask(LONG, |reply| Say::Echo(content(4 * MIB), reply)).await.map(|_| ()) },
        );
    while pair.passed.load(Ordering::Relaxed) < CHUNK_BYTES as usize {
        assert!(!asking.is_finished());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(pair.here.store.memory_bytes() >= 4 * MIB as u64);
    let began = Instant::now();
    // what each end does when it holds the other for dead
    pair.end();
    assert!(lost(asking.await.unwrap().unwrap()).contains("GR1213"));
    pair.assert_empty().await;
    assert!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
    // the fetch at the other end has ended, too: nothing more passes than is in the sockets
    tokio::time::sleep(Duration::from_millis(300)).await;
    let passed = pair.passed.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(pair.passed.load(Ordering::Relaxed) - passed < 64 << 10, "it is still fetched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_cannot_be_fetched_in_time_fail_their_question_and_hold_up_nothing() {
    let pair = Pair::new(Way::Closed, LineLimits { bulk_deadline_ms: 1500, ..LIMITS }).await;
    let reason = lost(pair.ask(LONG, |reply| Say::Echo(content(MIB), reply)).await);
    assert!(reason.contains("GR1219") && reason.contains("GR1104") && reason.contains("here at"), "{reason}");
    assert_eq!(pair.ask(LONG, |reply| Say::Small(2, reply)).await, Ok(2), "the lane goes on");
    pair.assert_empty().await;
    pair.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_may_be_under_way_is_refused_and_as_much_arrives() {
    let pair = Arc::new(Pair::new(Way::Slow(16 * MIB), LIMITS).await);
    let asking = (0..8).map(|_| {
        let pair = pair.clone();
        spawn_named("asking", async move { pair.ask(LONG, |reply| Say::Echo(content(3 * MIB), reply)).await.is_ok() })
    });
    let mut answered = 0;
    for asking in asking.collect::<Vec<_>>() {
        answered += usize::from(asking.await.unwrap().unwrap());
    }
    assert!((5..8).contains(&answered), "{answered} of eight times 3 MiB fit into 16 MiB");
    pair.assert_empty().await;
    pair.end();
}
