//! One fetch: the manifest first, then the missing chunks by several workers at once.
//!
//! Each worker has one lane, asks ahead as far as its window, and takes chunks in beside receiving the next. The plan says
//! whom to ask; what a peer does wrong goes to the plan, what this side cannot do ends the fetch. Dropping the fetch ends
//! its workers; what has arrived stays.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use greenroom_core::{Deadline, spawn_blocking_named, spawn_named};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::client::{Client, Connections, Inner};
use crate::entry::Entry;
use crate::error::PeerFailure;
use crate::lane::{Lane, Reply, chunk_request};
use crate::plan::{Choice, Plan};
use crate::store::Place;
use crate::{DataplaneError, Manifest, ObjectId, PeerAddress, Request, Store};

/// Chunks that a worker hashes and writes beside receiving the next ones.
const TAKEN_IN_AT_ONCE: usize = 3;

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Chunks that are here.
    pub held: u32,
    /// Chunks that the object has.
    pub chunks: u32,
    /// The object's length, bytes.
    pub bytes: u64,
}

/// Hears how far a fetch is.
pub(crate) type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// What a fetch is allowed, and who hears of it.
#[derive(Clone)]
pub struct FetchOptions {
    /// When it fails, whatever is missing then.
    pub deadline: Deadline,
    /// The largest object that is fetched, bytes.
    pub max_bytes: u64,
    /// Called after each chunk, from whichever thread; must not block.
    pub on_progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl FetchOptions {
    /// No other limit than a deadline.
    pub fn until(deadline: Deadline) -> Self {
        Self { deadline, max_bytes: u64::MAX, on_progress: None }
    }
}

impl fmt::Debug for FetchOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = (self.deadline, self.max_bytes);
        formatter.debug_struct("FetchOptions").field("limits", &limits).finish_non_exhaustive()
    }
}

/// What a fetch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchReport {
    /// The object's length, bytes.
    pub bytes: u64,
    /// Bytes of chunks that came whole, damaged and unneeded ones included.
    pub received_bytes: u64,
    /// Chunks that each peer gave, by the peer as it is shown; only who gave any.
    pub chunks_by_peer: BTreeMap<String, u64>,
    /// The transports that were used.
    pub transports: Vec<&'static str>,
    /// How often a connection failed or was cut.
    pub cuts: u64,
    /// Chunks that came without their promised hash.
    pub damaged: u64,
    /// What should be known of the way: where QUIC was given up, for instance.
    pub notes: Vec<String>,
}

/// Everything that the workers of a fetch share.
struct Work {
    client: Arc<Inner>,
    object: ObjectId,
    peers: Vec<PeerAddress>,
    entry: Arc<Entry>,
    plan: Mutex<Plan>,
    changed: watch::Sender<u64>,
    connections: Connections,
    began: Instant,
    on_progress: Option<OnProgress>,
    received_bytes: AtomicU64,
    tally: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    cuts: u64,
    refused: u64,
    transports: Vec<&'static str>,
    /// What this side could not do; it ends the fetch.
    fatal: Option<DataplaneError>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) async fn run(
    client: &Client,
    object: ObjectId,
    peers: &[PeerAddress],
    into: &Store,
    place: Place,
    options: &FetchOptions,
) -> Result<FetchReport, DataplaneError> {
    let inner = client.inner.clone();
    let peers: Vec<PeerAddress> = peers.iter().filter(|peer| inner.can_reach(peer)).cloned().collect();
    let notes = Arc::new(Mutex::new(Vec::new()));
    let entry = match into.find_async(object).await? {
        Some(entry) => entry,
        None => {
            let connections = Connections::default();
            let asking = ask_manifest(&inner, object, &peers, &connections, &notes, options.deadline);
            let manifest = asking.await?;
            check_size(object, manifest.bytes, options)?;
            let store = into.clone();
            let begun = spawn_blocking_named("dataplane begin", move || store.begin(manifest, place)).await;
            begun.ok().flatten().unwrap_or(Err(DataplaneError::Panicked { what: "making room for an object" }))?
        }
    };
    check_size(object, entry.manifest.bytes, options)?;
    let too_late = |plan: Option<&Plan>| DataplaneError::Deadline {
        object,
        held: entry.held(),
        chunks: entry.manifest.count(),
        told: plan.map_or_else(|| "another fetch of it is under way".to_owned(), |plan| told(&peers, &plan.told())),
    };
    let turn = timeout_at(options.deadline.instant(), entry.turn.lock()).await;
    let _turn = turn.map_err(|_| too_late(None))?;
    let missing = entry.missing();
    if missing.is_empty() {
        return Ok(FetchReport { bytes: entry.manifest.bytes, ..FetchReport::default() });
    }
    if peers.is_empty() {
        return Err(no_peer(object));
    }
    let work = Arc::new(Work {
        client: inner,
        object,
        peers: peers.clone(),
        entry: entry.clone(),
        plan: Mutex::new(Plan::new(peers.len(), missing)),
        changed: watch::Sender::new(0),
        connections: Connections::default(),
        began: Instant::now(),
        on_progress: options.on_progress.clone(),
        received_bytes: AtomicU64::new(0),
        tally: Mutex::default(),
    });
    let streams = work.client.config.streams as usize;
    let mut workers: Vec<_> = (0..streams.min(entry.manifest.chunks.len()))
        .map(|_| AbortOnDropHandle::new(spawn_named("dataplane worker", worker(work.clone(), notes.clone()))))
        .collect();
    for worker in &mut workers {
        let joined = timeout_at(options.deadline.instant(), worker).await;
        let ended = joined.map_err(|_| too_late(Some(&locked(&work.plan))))?;
        if !matches!(ended, Ok(Some(()))) {
            return Err(DataplaneError::Panicked { what: "fetching" });
        }
    }
    work.conclude(&notes)
}

fn check_size(object: ObjectId, bytes: u64, options: &FetchOptions) -> Result<(), DataplaneError> {
    if bytes > options.max_bytes {
        return Err(DataplaneError::TooLarge { object, bytes, limit_bytes: options.max_bytes });
    }
    Ok(())
}

fn no_peer(object: ObjectId) -> DataplaneError {
    let reason = "the chosen transport reaches none of the peers that were named".to_owned();
    DataplaneError::NoPeer { object, reason }
}

fn told(peers: &[PeerAddress], last: &[Option<String>]) -> String {
    let each = peers.iter().zip(last).filter_map(|(peer, last)| Some(format!("{peer} {}", last.as_ref()?)));
    let each: Vec<String> = each.collect();
    if each.is_empty() { "no peer failed".to_owned() } else { each.join("; ") }
}

/// Asks the peers for the manifest: all of them at once whether they have it, then one after the other to wait for it.
async fn ask_manifest(
    client: &Inner,
    object: ObjectId,
    peers: &[PeerAddress],
    connections: &Connections,
    notes: &Mutex<Vec<String>>,
    deadline: Deadline,
) -> Result<Manifest, DataplaneError> {
    if peers.is_empty() {
        return Err(no_peer(object));
    }
    let mut last: Vec<Option<String>> = vec![None; peers.len()];
    let mut pause = Duration::from_millis(100);
    for wait_ms in std::iter::once(0).chain(std::iter::repeat(client.config.chunk_wait_ms)) {
        let (mut unknown, mut refused) = (0, 0);
        for (number, peer) in peers.iter().enumerate() {
            let asking = manifest_of(client, object, peer, number, wait_ms, connections, notes);
            let asking = client.presence.with(peer, asking);
            let Ok(answer) = timeout_at(deadline.instant(), asking).await else {
                return Err(DataplaneError::Deadline { object, held: 0, chunks: 0, told: told(peers, &last) });
            };
            match answer {
                Ok(Some(manifest)) => return Ok(manifest),
                Ok(None) => {
                    unknown += 1;
                    last[number] = Some("does not have it".to_owned());
                }
                Err(failure) => {
                    refused += usize::from(matches!(failure, PeerFailure::Refused(_)));
                    last[number] = Some(failure.to_string());
                }
            }
        }
        // whoever may answer otherwise later is asked again; a refusal is for ever
        if refused == peers.len() {
            return Err(DataplaneError::Refused { told: told(peers, &last) });
        }
        if unknown > 0 && unknown + refused == peers.len() && wait_ms > 0 {
            let peers = peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(DataplaneError::Unknown { object, peers });
        }
        tokio::time::sleep(pause.min(deadline.remaining())).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
    Err(no_peer(object))
}

async fn manifest_of(
    client: &Inner,
    object: ObjectId,
    peer: &PeerAddress,
    number: usize,
    wait_ms: u32,
    connections: &Connections,
    notes: &Mutex<Vec<String>>,
) -> Result<Option<Manifest>, PeerFailure> {
    let (mut lane, _) = client.dial(object, peer, number, connections, notes).await?;
    lane.ask(Request::Manifest { object, wait_ms }).await?;
    let Some(bytes) = lane.manifest().await? else { return Ok(None) };
    Manifest::decode(&bytes, object).map(Some).map_err(|error| PeerFailure::Damaged(error.to_string()))
}

/// A chunk that is being taken in.
type TakingIn = (u32, JoinHandle<Option<Result<bool, DataplaneError>>>);

async fn worker(work: Arc<Work>, notes: Arc<Mutex<Vec<String>>>) {
    let mut changes = work.changed.subscribe();
    loop {
        if locked(&work.tally).fatal.is_some() {
            return;
        }
        let choice = locked(&work.plan).choose(work.now_ms());
        match choice {
            Choice::Done | Choice::Hopeless => return,
            Choice::Idle => {
                let _ = changes.changed().await; // its sender lives as long as the work
            }
            Choice::Wait { until_ms } => {
                let until = work.began + Duration::from_millis(until_ms);
                let _ = timeout_at(until, changes.changed()).await;
            }
            Choice::Peer(peer) => match work.dial(peer, &notes).await {
                Ok(lane) => work.use_lane(peer, lane).await,
                Err(failure) => work.failed(peer, &failure),
            },
        }
    }
}

impl Work {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn announce(&self) {
        self.changed.send_modify(|changes| *changes += 1);
    }

    async fn dial(&self, peer: usize, notes: &Mutex<Vec<String>>) -> Result<Lane, PeerFailure> {
        let address = &self.peers[peer];
        let dialling = self.client.dial(self.object, address, peer, &self.connections, notes);
        let (lane, transport) = self.client.presence.with(address, dialling).await?;
        let mut tally = locked(&self.tally);
        if !tally.transports.contains(&transport) {
            tally.transports.push(transport);
        }
        Ok(lane)
    }

    fn failed(&self, peer: usize, failure: &PeerFailure) {
        tracing::debug!(peer = %self.peers[peer], object = %self.object, %failure, "a peer failed");
        let for_ever = matches!(failure, PeerFailure::Refused(_));
        let mut tally = locked(&self.tally);
        tally.cuts += u64::from(!failure.is_well());
        tally.refused += u64::from(for_ever);
        drop(tally);
        let mut plan = locked(&self.plan);
        match failure {
            PeerFailure::Slow(_) => plan.slow(peer, self.now_ms(), failure.to_string()),
            _ => plan.failed(peer, self.now_ms(), failure.to_string(), for_ever),
        }
        drop(plan);
        self.announce();
    }

    /// Asks a peer for chunks until there is nothing more to ask it for, another peer is to be preferred, or it fails.
    async fn use_lane(&self, peer: usize, mut lane: Lane) {
        let mut asked = VecDeque::new();
        let mut taking_in = VecDeque::new();
        let exchange = self.exchange(peer, &mut lane, &mut asked, &mut taking_in);
        let failure = self.client.presence.with(&self.peers[peer], exchange).await.err();
        drop(lane);
        {
            let mut plan = locked(&self.plan);
            asked.drain(..).for_each(|index| plan.give_back(index));
        }
        if let Some(failure) = failure {
            if !failure.is_well() {
                self.connections.forget(peer).await;
            }
            self.failed(peer, &failure);
        }
        for taken in taking_in {
            self.settle(peer, taken).await;
        }
        self.announce();
    }

    async fn exchange(
        &self,
        peer: usize,
        lane: &mut Lane,
        asked: &mut VecDeque<u32>,
        taking_in: &mut VecDeque<TakingIn>,
    ) -> Result<(), PeerFailure> {
        let (window, wait_ms) = (self.client.config.window_chunks as usize, self.client.config.chunk_wait_ms);
        loop {
            while asked.len() < window {
                let Some(index) = self.next_for(peer) else { break };
                asked.push_back(index);
                lane.ask(chunk_request(self.object, index, wait_ms)).await?;
            }
            let Some(index) = asked.front().copied() else { return Ok(()) };
            lane.judge(locked(&self.plan).has_other(peer, self.now_ms()));
            match lane.chunk(&self.entry.manifest, index).await? {
                Reply::Chunk(bytes) => {
                    asked.pop_front();
                    self.received_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    taking_in.push_back((index, self.take_in(index, bytes)));
                }
                Reply::Late => return Err(PeerFailure::Nothing(format!("does not have chunk {index} yet"))),
                Reply::Unknown => return Err(PeerFailure::Nothing("does not have the object".to_owned())),
            }
            while taking_in.len() > TAKEN_IN_AT_ONCE || taking_in.front().is_some_and(|(_, task)| task.is_finished()) {
                let Some(taken) = taking_in.pop_front() else { break };
                self.settle(peer, taken).await;
            }
        }
    }

    /// The next chunk to ask this peer for, while it is still the one to ask.
    fn next_for(&self, peer: usize) -> Option<u32> {
        if locked(&self.tally).fatal.is_some() {
            return None;
        }
        let mut plan = locked(&self.plan);
        (plan.choose(self.now_ms()) == Choice::Peer(peer)).then(|| plan.take(peer)).flatten()
    }

    /// Hashes and writes a chunk beside receiving others.
    fn take_in(&self, index: u32, bytes: Bytes) -> JoinHandle<Option<Result<bool, DataplaneError>>> {
        let entry = self.entry.clone();
        spawn_blocking_named("dataplane chunk", move || entry.accept(index, bytes))
    }

    async fn settle(&self, peer: usize, (index, task): TakingIn) {
        let taken = task.await.ok().flatten();
        match taken.unwrap_or(Err(DataplaneError::Panicked { what: "taking a chunk in" })) {
            Ok(true) => {
                locked(&self.plan).received(index, peer);
                if let Some(on_progress) = &self.on_progress {
                    let manifest = &self.entry.manifest;
                    on_progress(Progress { held: self.entry.held(), chunks: manifest.count(), bytes: manifest.bytes });
                }
            }
            Ok(false) => {
                tracing::warn!(peer = %self.peers[peer], object = %self.object, index, "a damaged chunk was refused");
                locked(&self.plan).damaged(index, peer);
            }
            Err(error) => {
                locked(&self.plan).give_back(index);
                locked(&self.tally).fatal.get_or_insert(error);
            }
        }
        self.announce();
    }

    /// What came of it, once all workers have ended.
    fn conclude(&self, notes: &Mutex<Vec<String>>) -> Result<FetchReport, DataplaneError> {
        let plan = locked(&self.plan);
        let tally = locked(&self.tally);
        if let Some(error) = &tally.fatal {
            return Err(error.clone());
        }
        if plan.choose(self.now_ms()) != Choice::Done {
            let told = told(&self.peers, &plan.told());
            if plan.all_dropped() && plan.damaged_chunks() == 0 {
                return Err(DataplaneError::Refused { told });
            }
            return Err(DataplaneError::Damaged { what: self.object.to_string(), reason: told });
        }
        let given = self.peers.iter().map(ToString::to_string).zip(plan.chunks_by_peer());
        let mut notes = locked(notes).clone();
        notes.dedup();
        Ok(FetchReport {
            bytes: self.entry.manifest.bytes,
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            chunks_by_peer: given.filter(|(_, chunks)| *chunks > 0).collect(),
            transports: tally.transports.clone(),
            cuts: tally.cuts,
            damaged: plan.damaged_chunks(),
            notes,
        })
    }
}
