//! What the tests share: an authority, nodes with stores and servers, and proxies that cut and spoil.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, dead_code)] // helpers of tests; each test file uses some

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use greenroom_core::{Deadline, Seed, spawn_named};
use greenroom_dataplane::{
    Client, DataplaneConfig, FetchOptions, ObjectId, PeerAddress, Server, Store, StoreConfig, Transport,
};
use greenroom_identity::{Authority, CertificateRole, Identity, IssueRequest};
use rand::Rng;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Small chunks, so that small objects have many.
pub const CHUNK_BYTES: u32 = 16 << 10;
pub const STREAMS: u32 = 2;
pub const WINDOW_CHUNKS: u32 = 4;

/// An authority and a place for stores.
pub struct World {
    pub dir: TempDir,
    authority: Authority,
}

/// One node: who it is, what it holds, and its server.
pub struct Node {
    pub identity: Identity,
    pub store: Store,
    pub server: Server,
    pub address: PeerAddress,
}

pub fn config(transport: Transport) -> DataplaneConfig {
    DataplaneConfig {
        transport,
        streams: STREAMS,
        window_chunks: WINDOW_CHUNKS,
        quic_answer_ms: 1000,
        stall_timeout_ms: 1000,
        chunk_wait_ms: 1000,
        ..DataplaneConfig::default()
    }
}

pub fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    Seed::new(seed).random().fill(content.as_mut_slice());
    content
}

pub fn within(seconds: u64) -> FetchOptions {
    FetchOptions::until(Deadline::after(Duration::from_secs(seconds)))
}

pub fn store_config() -> StoreConfig {
    StoreConfig { chunk_bytes: Some(CHUNK_BYTES), ..StoreConfig::default() }
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join("ca")).unwrap();
        Self { dir, authority }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn identity(&self, name: &str, role: CertificateRole) -> Identity {
        let request = IssueRequest { name: name.to_owned(), hosts: Vec::new(), role, valid_days: 1 };
        Identity::load(&self.authority.issue(&request, &self.path("certificates")).unwrap()).unwrap()
    }

    pub fn store(&self, name: &str) -> Store {
        Store::open(&self.path(name), store_config()).unwrap()
    }

    /// A node with an empty store in a directory of its own, serving on loopback.
    pub async fn node(&self, name: &str, config: &DataplaneConfig) -> Node {
        let identity = self.identity(name, CertificateRole::Node);
        let store = self.store(name);
        let server = Server::start(&identity, &store, loopback(), config).await.unwrap();
        let address = PeerAddress::node(name, server.local_addr());
        Node { identity, store, server, address }
    }
}

impl Node {
    /// Puts an object into the node's store.
    pub fn put(&self, dir: &Path, content: &[u8]) -> ObjectId {
        let file = dir.join("object");
        std::fs::write(&file, content).unwrap();
        self.store.put_file("object", &file).unwrap()
    }

    pub fn client(&self, config: &DataplaneConfig) -> Client {
        Client::new(&self.identity, config).unwrap()
    }
}

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// What a proxy does to the bytes that a server sends.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// The first so many connections are each cut after so many bytes.
    Cut { connections: u64, after_bytes: u64 },
    /// One bit of this byte is flipped, in the first connection that comes so far.
    Flip { at_byte: u64 },
    /// No connection passes more than this.
    Slow { bytes_per_s: u64 },
}

/// A proxy before a server.
pub struct Proxy {
    pub address: SocketAddr,
    /// Bytes that came from the server.
    pub passed: Arc<AtomicU64>,
    /// How often harm was done.
    pub harmed: Arc<AtomicU64>,
}

/// A proxy for TCP.
pub async fn tcp_proxy(to: SocketAddr, harm: Harm) -> Proxy {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let proxy = Proxy { address: listener.local_addr().unwrap(), passed: Arc::default(), harmed: Arc::default() };
    let (passed, harmed) = (proxy.passed.clone(), proxy.harmed.clone());
    spawn_named("proxy", async move {
        for connection in 0.. {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(to).await.unwrap();
            spawn_named("proxied", pass(client, server, connection, harm, passed.clone(), harmed.clone()));
        }
    });
    proxy
}

async fn pass(
    client: TcpStream,
    server: TcpStream,
    connection: u64,
    harm: Harm,
    passed: Arc<AtomicU64>,
    harmed: Arc<AtomicU64>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let questions = spawn_named("proxied questions", async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        let _ = to_server.shutdown().await;
    });
    let (mut buffer, mut total) = (vec![0; 8192], 0);
    loop {
        let mut bytes = match from_server.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(bytes) => bytes,
        };
        let range = total..total + bytes as u64;
        match harm {
            Harm::Cut { connections, after_bytes } if connection < connections && range.end >= after_bytes => {
                bytes = (after_bytes - range.start) as usize;
                let _ = to_client.write_all(&buffer[..bytes]).await;
                passed.fetch_add(bytes as u64, Ordering::Relaxed);
                harmed.fetch_add(1, Ordering::Relaxed);
                break;
            }
            Harm::Flip { at_byte } if range.contains(&at_byte) && harmed.fetch_max(1, Ordering::Relaxed) == 0 => {
                buffer[(at_byte - range.start) as usize] ^= 16;
            }
            Harm::Slow { bytes_per_s } => {
                tokio::time::sleep(Duration::from_millis(bytes as u64 * 1000 / bytes_per_s)).await;
            }
            _ => {}
        }
        total += bytes as u64;
        passed.fetch_add(bytes as u64, Ordering::Relaxed);
        if to_client.write_all(&buffer[..bytes]).await.is_err() {
            break;
        }
    }
    questions.abort();
}

/// A proxy for QUIC that goes silent once, after so many bytes, until the client dials anew.
pub async fn udp_proxy(to: SocketAddr, after_bytes: u64) -> Proxy {
    let front = UdpSocket::bind(loopback()).await.unwrap();
    let back = UdpSocket::bind(loopback()).await.unwrap();
    back.connect(to).await.unwrap();
    let proxy = Proxy { address: front.local_addr().unwrap(), passed: Arc::default(), harmed: Arc::default() };
    let (passed, harmed) = (proxy.passed.clone(), proxy.harmed.clone());
    spawn_named("proxy", async move {
        let (mut one, mut two) = (vec![0; 65536], vec![0; 65536]);
        let (mut client, mut silent) = (None, false);
        loop {
            tokio::select! {
                received = front.recv_from(&mut one) => {
                    let Ok((bytes, from)) = received else { continue };
                    client = Some(from);
                    // an Initial packet begins a new connection
                    silent &= one[0] & 0xf0 != 0xc0;
                    if !silent {
                        let _ = back.send(&one[..bytes]).await;
                    }
                }
                received = back.recv(&mut two) => {
                    let (Ok(bytes), Some(client)) = (received, client) else { continue };
                    let before = passed.load(Ordering::Relaxed);
                    if before < after_bytes && before + bytes as u64 >= after_bytes {
                        silent = true;
                        harmed.fetch_add(1, Ordering::Relaxed);
                    }
                    if !silent || before < after_bytes {
                        passed.fetch_add(bytes as u64, Ordering::Relaxed);
                        let _ = front.send_to(&two[..bytes], client).await;
                    }
                }
            }
        }
    });
    proxy
}

/// Whether a store holds exactly this.
pub fn assert_holds(store: &Store, id: ObjectId, content: &[u8]) {
    assert_eq!(store.read(id).unwrap().as_deref(), Some(content));
    if let Some(path) = store.path(id).unwrap() {
        assert_eq!(Bytes::from(std::fs::read(path).unwrap()), content);
    }
}
