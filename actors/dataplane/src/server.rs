//! Serving a store: QUIC and TLS/TCP on one port number.
//!
//! Connections are bounded, handshakes included; who comes when they are all taken is turned away at once. Only nodes of
//! this authority are served. Dropping the server ends everything it started.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greenroom_core::spawn_named;
use greenroom_identity::{CertificateRole, Identity, peer_of};
use quinn::{Connection, Endpoint, Incoming};
use rustls::pki_types::CertificateDer;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinHandle};

use crate::counters::{Counters, count};
use crate::link::Links;
use crate::session::{self, SessionEnd};
use crate::{DataplaneConfig, DataplaneError, ServerCounts, Store, Transport, quic, tls};

/// Tries to find a port that is free for TCP and UDP, where the system chooses it.
const PORT_TRIES: u32 = 16;
const CLOSED_BY_SERVER: u32 = 1;

/// What all of a server's tasks share.
struct Shared {
    store: Store,
    identity: Identity,
    tls: Arc<rustls::ServerConfig>,
    links: Links,
    handshake: Duration,
    stall: Duration,
    places: Arc<Semaphore>,
    counters: Counters,
    tasks: Mutex<Tasks>,
}

/// Everything that runs for a server, so that it can be ended.
#[derive(Default)]
struct Tasks {
    ended: bool,
    running: Vec<AbortHandle>,
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    endpoint: Option<Endpoint>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Server({})", self.address)
    }
}

impl Server {
    /// Starts to serve `store` at `listen`; port 0 lets the system choose one. The transport of `config` says whether TCP,
    /// UDP or (with `auto`) both are listened at.
    ///
    /// Errors: [`DataplaneError::Config`], or [`DataplaneError::Listen`] when the port is taken.
    pub async fn start(
        identity: &Identity,
        store: &Store,
        listen: SocketAddr,
        config: &DataplaneConfig,
    ) -> Result<Self, DataplaneError> {
        config.check()?;
        let wrong = |error: &dyn std::fmt::Display| DataplaneError::Listen {
            address: listen.to_string(),
            reason: error.to_string(),
        };
        let links = Links::new(config)?;
        let usual = quic::server_settings(identity, links.to(listen.ip())).map_err(|error| wrong(&error))?;
        let (tcp, endpoint) = bind(listen, config.transport, &usual).await.map_err(|error| wrong(&error))?;
        let of_tcp = tcp.as_ref().map(TcpListener::local_addr);
        let of_quic = endpoint.as_ref().map(Endpoint::local_addr);
        let address = of_tcp.or(of_quic).unwrap_or(Ok(listen)).map_err(|error| wrong(&error))?;
        let shared = Arc::new(Shared {
            store: store.clone(),
            identity: identity.clone(),
            tls: identity.server_config(&[crate::ALPN]),
            links,
            handshake: Duration::from_millis(config.connect_timeout_ms),
            stall: Duration::from_millis(config.stall_timeout_ms),
            places: Arc::new(Semaphore::new(config.max_connections as usize)),
            counters: Counters::default(),
            tasks: Mutex::default(),
        });
        if let Some(tcp) = tcp {
            let listening = spawn_named("dataplane tcp", accept_tcp(shared.clone(), tcp));
            shared.keep(&listening);
        }
        if let Some(endpoint) = endpoint.clone() {
            let listening = spawn_named("dataplane quic", accept_quic(shared.clone(), endpoint));
            shared.keep(&listening);
        }
        Ok(Self { address, shared, endpoint })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it has done so far.
    pub fn counts(&self) -> ServerCounts {
        self.shared.counters.counts()
    }

    /// Ends everything at once; peers see their connections closed.
    pub fn stop(&self) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.close(CLOSED_BY_SERVER.into(), b"stopped");
        }
        let mut tasks = self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.ended = true;
        tasks.running.drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Remembers a task, to end it with the server.
    fn keep<T>(&self, task: &JoinHandle<T>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.ended {
            task.abort();
        }
        tasks.running.retain(|task| !task.is_finished());
        tasks.running.push(task.abort_handle());
    }

    /// A place for one more connection.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = self.places.clone().try_acquire_owned().ok();
        if place.is_none() {
            count(&self.counters.turned_away, 1);
        }
        place
    }

    /// Whether the party with these certificates is served.
    fn admits(&self, certificates: &[CertificateDer<'_>]) -> bool {
        let admitted = peer_of(certificates).is_ok_and(|peer| peer.role == CertificateRole::Node);
        count(if admitted { &self.counters.connections } else { &self.counters.refused }, 1);
        admitted
    }

    fn note(&self, ended: &Result<(), SessionEnd>, peer: SocketAddr) {
        session::note(ended, &self.counters);
        match ended {
            Err(error @ (SessionEnd::Malformed(_) | SessionEnd::Stalled | SessionEnd::Store(_))) => {
                tracing::warn!(%peer, %error, "a connection was ended");
            }
            Err(SessionEnd::Cut(error)) => tracing::debug!(%peer, %error, "a connection was cut"),
            Ok(()) => {}
        }
    }
}

/// Listens with TCP, UDP or both on the same port.
async fn bind(
    listen: SocketAddr,
    transport: Transport,
    quic_settings: &Arc<quinn::ServerConfig>,
) -> std::io::Result<(Option<TcpListener>, Option<Endpoint>)> {
    if transport == Transport::Quic {
        return Ok((None, Some(quic::listen(listen, quic_settings.clone())?)));
    }
    let mut tries = 0;
    loop {
        let tcp = TcpListener::bind(listen).await?;
        if transport == Transport::Tls {
            return Ok((Some(tcp), None));
        }
        tries += 1;
        match quic::listen(tcp.local_addr()?, quic_settings.clone()) {
            Err(_) if listen.port() == 0 && tries < PORT_TRIES => {} // taken by somebody's UDP: another one
            endpoint => return Ok((Some(tcp), Some(endpoint?))),
        }
    }
}

async fn accept_tcp(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // out of descriptors, most likely: those in use come back
                tracing::warn!(%error, "accepting failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = shared.place() else { continue };
        let conversation = converse_tls(shared.clone(), stream, peer, place);
        shared.keep(&spawn_named("dataplane connection", conversation));
    }
}

async fn converse_tls(shared: Arc<Shared>, stream: TcpStream, peer: SocketAddr, _place: OwnedSemaphorePermit) {
    let accepted = tokio::time::timeout(shared.handshake, tls::accept(&shared.tls, stream)).await;
    let mut stream = match accepted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            count(&shared.counters.refused, 1);
            tracing::info!(%peer, %error, "a connection was refused");
            return;
        }
        Err(_) => {
            count(&shared.counters.stalled, 1);
            return;
        }
    };
    if shared.admits(stream.get_ref().1.peer_certificates().unwrap_or_default()) {
        let ended = session::run(&mut stream, &shared.store, shared.stall, &shared.counters).await;
        shared.note(&ended, peer);
    }
    // a polite end, where the peer still listens
    let _ = tokio::time::timeout(shared.handshake, stream.shutdown()).await;
}

async fn accept_quic(shared: Arc<Shared>, endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        let Some(place) = shared.place() else {
            incoming.refuse();
            continue;
        };
        let conversation = converse_quic(shared.clone(), incoming, place);
        shared.keep(&spawn_named("dataplane connection", conversation));
    }
}

async fn converse_quic(shared: Arc<Shared>, incoming: Incoming, _place: OwnedSemaphorePermit) {
    let peer = incoming.remote_address();
    let settings = quic::server_settings(&shared.identity, shared.links.to(peer.ip()));
    let accepted = settings.map(|settings| incoming.accept_with(settings));
    let connection = match accepted {
        Ok(Ok(connecting)) => tokio::time::timeout(shared.handshake, connecting).await,
        Ok(Err(error)) => Ok(Err(error)),
        Err(_) => return,
    };
    let connection = match connection {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            count(&shared.counters.refused, 1);
            tracing::info!(%peer, %error, "a connection was refused");
            return;
        }
        Err(_) => {
            count(&shared.counters.stalled, 1);
            return;
        }
    };
    if !shared.admits(&quic::certificates(&connection)) {
        connection.close(CLOSED_BY_SERVER.into(), b"only nodes are served");
        return;
    }
    while let Ok((send, receive)) = connection.accept_bi().await {
        let stream = tokio::io::join(receive, send);
        let conversation = converse_stream(shared.clone(), connection.clone(), stream, peer);
        shared.keep(&spawn_named("dataplane stream", conversation));
    }
}

async fn converse_stream(
    shared: Arc<Shared>,
    connection: Connection,
    stream: tokio::io::Join<quinn::RecvStream, quinn::SendStream>,
    peer: SocketAddr,
) {
    let ended = session::run(stream, &shared.store, shared.stall, &shared.counters).await;
    shared.note(&ended, peer);
    if matches!(ended, Err(SessionEnd::Malformed(_))) {
        connection.close(CLOSED_BY_SERVER.into(), b"that is no frame");
    }
}
