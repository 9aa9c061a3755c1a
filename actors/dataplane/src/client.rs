//! The fetching side: dials peers, remembers where UDP does not get through, and fetches.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use greenroom_core::{Deadline, Threads};
use greenroom_identity::{CertificateRole, Identity};
use quinn::Connection;
use tokio::time::Instant;

use crate::directory::DirectoryPeer;
use crate::error::PeerFailure;
use crate::fetch::{self, FetchOptions, FetchReport};
use crate::lane::{Lane, Pace};
use crate::presence::Presence;
use crate::quic::{self, Dialler};
use crate::store::{Place, object_dir};
use crate::{DataplaneConfig, DataplaneError, ObjectHandle, ObjectId, PeerAddress, Store, StoreConfig, Transport, tls};

/// For how long `auto` does not try QUIC again with a peer that did not answer by it.
const WITHOUT_QUIC: Duration = Duration::from_secs(300);

pub(crate) struct Inner {
    identity: Identity,
    pub config: DataplaneConfig,
    dialler: Dialler,
    /// Where it fetches; none: where it is asked to.
    threads: Option<Threads>,
    pub presence: Presence,
    without_quic: Mutex<BTreeMap<String, Instant>>,
}

/// Fetches objects. Cheap to clone; all clones share their sockets.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Client({})", self.inner.identity.party())
    }
}

/// The connections of one fetch: QUIC's streams to one peer share one.
#[derive(Default)]
pub(crate) struct Connections {
    by_peer: tokio::sync::Mutex<BTreeMap<usize, Connection>>,
}

impl Connections {
    /// Gives a peer's connection up: what comes next dials again.
    pub(crate) async fn forget(&self, peer: usize) {
        if let Some(connection) = self.by_peer.lock().await.remove(&peer) {
            connection.close(0_u32.into(), b"given up");
        }
    }
}

impl Client {
    /// A client that fetches where it is asked to; it dials nobody yet. Must be used within one tokio runtime.
    ///
    /// Errors: [`DataplaneError::Config`], also for an identity that is no node's: nobody would serve it.
    pub fn new(identity: &Identity, config: &DataplaneConfig) -> Result<Self, DataplaneError> {
        Self::with(identity, config, None)
    }

    /// A client that fetches on threads of its own, wherever it is asked to.
    ///
    /// Errors: as [`Client::new`].
    pub fn on(threads: &Threads, identity: &Identity, config: &DataplaneConfig) -> Result<Self, DataplaneError> {
        Self::with(identity, config, Some(threads.clone()))
    }

    fn with(identity: &Identity, config: &DataplaneConfig, threads: Option<Threads>) -> Result<Self, DataplaneError> {
        config.check()?;
        if identity.party().role != CertificateRole::Node {
            let reason = format!("is {}'s, and only nodes are served bulk bytes", identity.party());
            return Err(DataplaneError::Config { key: "identity", reason });
        }
        let inner = Inner {
            identity: identity.clone(),
            config: config.clone(),
            dialler: Dialler::new(config),
            threads,
            presence: Presence::default(),
            without_quic: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Fetches what is missing of an object into a store. Peers are asked in their order: the next one where one fails, and
    /// the first again after a pause. What has arrived stays when this fails or is dropped; the next call asks for the
    /// rest. Chunks are served by a [`Server`](crate::Server) of the same store as soon as they are here.
    ///
    /// Errors: `NoPeer`, `Unknown` (nobody has it), `Refused` (nobody may be spoken with), `TooLarge`, `Damaged` (nobody
    /// has good bytes), `Deadline`, `Removed`, `MemoryFull`, `File`.
    pub async fn fetch(
        &self,
        object: ObjectId,
        peers: &[PeerAddress],
        into: &Store,
        options: &FetchOptions,
    ) -> Result<FetchReport, DataplaneError> {
        let (peers, into, options) = (peers.to_vec(), into.clone(), options.clone());
        let fetch =
            |client: Self| async move { fetch::run(&client, object, &peers, &into, Place::Usual, &options).await };
        self.on_its_threads(fetch).await
    }

    /// Fetches an object of at most `limit_bytes` into memory.
    ///
    /// Errors: as [`Client::fetch`].
    pub async fn fetch_bytes(
        &self,
        object: ObjectId,
        peers: &[PeerAddress],
        limit_bytes: u64,
        deadline: Deadline,
    ) -> Result<Bytes, DataplaneError> {
        let config = StoreConfig { memory_limit_bytes: limit_bytes.max(1), chunk_bytes: None };
        let store = Store::in_memory(config)?;
        let options = FetchOptions { max_bytes: limit_bytes, ..FetchOptions::until(deadline) };
        let peers = peers.to_vec();
        let fetch = |client: Self| async move {
            fetch::run(&client, object, &peers, &store, Place::Memory, &options).await?;
            let reason = || "it is not whole, though it arrived".to_owned();
            store.read(object)?.ok_or_else(|| DataplaneError::Damaged { what: object.to_string(), reason: reason() })
        };
        self.on_its_threads(fetch).await
    }

    /// Fetches where this client does.
    async fn on_its_threads<T, Fetch>(&self, fetch: impl FnOnce(Self) -> Fetch) -> Result<T, DataplaneError>
    where
        T: Send + 'static,
        Fetch: Future<Output = Result<T, DataplaneError>> + Send + 'static,
    {
        let fetching = fetch(self.clone());
        match &self.inner.threads {
            None => fetching.await,
            Some(threads) => {
                let fetched = threads.run("dataplane fetch", fetching).await;
                fetched.unwrap_or(Err(DataplaneError::Panicked { what: "fetching" }))
            }
        }
    }

    /// Fetches what a handle stands for into memory.
    ///
    /// Errors: as [`Client::fetch`].
    pub async fn fetch_handle(&self, handle: &ObjectHandle, deadline: Deadline) -> Result<Bytes, DataplaneError> {
        self.fetch_bytes(handle.object, &handle.holders, handle.bytes, deadline).await
    }

    /// A node has gone, as is known from elsewhere: what is under way with it fails at once and goes on with other peers, and
    /// it is not dialled until it is [`back`](Self::back). Names are kept for ever: not for who never serves.
    pub fn gone(&self, node: &str) {
        self.inner.presence.gone(node);
    }

    /// A node that may have gone is there.
    pub fn back(&self, node: &str) {
        self.inner.presence.back(node);
    }

    /// Tells peers that this side is going, and ends its connections.
    pub fn close(&self) {
        self.inner.dialler.close();
    }
}

impl Inner {
    /// Whether the transport of the configuration can reach this peer at all.
    pub(crate) fn can_reach(&self, peer: &PeerAddress) -> bool {
        match self.config.transport {
            Transport::Directory => peer.directory.is_some(),
            Transport::Quic | Transport::Tls => !peer.address.is_empty(),
            Transport::Auto => peer.directory.is_some() || !peer.address.is_empty(),
        }
    }

    /// Opens a lane to a peer. With `auto` a note is added when QUIC was given up.
    pub(crate) async fn dial(
        &self,
        object: ObjectId,
        peer: &PeerAddress,
        number: usize,
        connections: &Connections,
        notes: &Mutex<Vec<String>>,
    ) -> Result<(Lane, &'static str), PeerFailure> {
        let directory = |dir: &Path| Lane::Directory { peer: DirectoryPeer::new(dir), asked: Default::default() };
        match (self.config.transport, &peer.directory) {
            (Transport::Directory, Some(dir)) => return Ok((directory(dir), "directory")),
            // a directory of that name may exist here without being the peer's: the object tells
            (Transport::Auto, Some(dir)) if peer.address.is_empty() || object_dir(dir, object).exists() => {
                return Ok((directory(dir), "directory"));
            }
            (Transport::Directory, None) => return Err(PeerFailure::Unreachable("it has no directory".to_owned())),
            _ => {}
        }
        let patience = Duration::from_millis(self.config.connect_timeout_ms);
        match self.config.transport {
            Transport::Quic => self.dial_quic(peer, number, connections, patience).await,
            Transport::Auto if self.may_try_quic(peer) => {
                let answer = Duration::from_millis(self.config.quic_answer_ms);
                match self.dial_quic(peer, number, connections, answer).await {
                    Err(PeerFailure::Unreachable(reason)) => {
                        let lane = self.dial_tls(peer, patience).await?;
                        self.note_without_quic(peer, &reason, notes);
                        Ok(lane)
                    }
                    dialled => dialled,
                }
            }
            _ => self.dial_tls(peer, patience).await,
        }
    }

    fn may_try_quic(&self, peer: &PeerAddress) -> bool {
        let without = self.without_quic.lock().unwrap_or_else(PoisonError::into_inner);
        without.get(&peer.address).is_none_or(|until| *until <= Instant::now())
    }

    fn note_without_quic(&self, peer: &PeerAddress, reason: &str, notes: &Mutex<Vec<String>>) {
        let note = format!("{peer}: {reason}; TLS/TCP is used instead");
        tracing::warn!("{note}");
        notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        let mut without = self.without_quic.lock().unwrap_or_else(PoisonError::into_inner);
        without.insert(peer.address.clone(), Instant::now() + WITHOUT_QUIC);
    }

    async fn dial_tls(&self, peer: &PeerAddress, patience: Duration) -> Result<(Lane, &'static str), PeerFailure> {
        let stream = tls::dial(&self.identity, peer, patience).await?;
        Ok((Lane::network(Box::new(stream), self.stall(), self.pace()), "tls"))
    }

    async fn dial_quic(
        &self,
        peer: &PeerAddress,
        number: usize,
        connections: &Connections,
        patience: Duration,
    ) -> Result<(Lane, &'static str), PeerFailure> {
        // held while dialling: workers that come meanwhile share the connection, or its failure's cost, once each
        let mut by_peer = connections.by_peer.lock().await;
        let usable = by_peer.get(&number).filter(|connection| connection.close_reason().is_none()).cloned();
        let connection = match usable {
            Some(connection) => connection,
            None => {
                let connection = self.dialler.dial(&self.identity, peer, patience).await?;
                by_peer.insert(number, connection.clone());
                connection
            }
        };
        drop(by_peer);
        let opened = tokio::time::timeout(patience, connection.open_bi()).await;
        let opened = opened.map_err(|_| PeerFailure::Unreachable(quic::no_answer(patience)))?;
        let (send, receive) = opened.map_err(|error| quic::failure(&error))?;
        Ok((Lane::network(Box::new(tokio::io::join(receive, send)), self.stall(), self.pace()), "quic"))
    }

    /// What each of a fetch's lanes must keep up with.
    fn pace(&self) -> Pace {
        let of_all_lanes = u64::from(self.config.slow_kib_per_s) << 10;
        Pace::new(of_all_lanes / u64::from(self.config.streams), self.stall())
    }

    fn stall(&self) -> Duration {
        Duration::from_millis(self.config.stall_timeout_ms)
    }
}
