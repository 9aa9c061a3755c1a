//! Relays that lie or are slow are left for the next peer, and nothing that has arrived is fetched again for that.

#![allow(clippy::unwrap_used)] // helpers of tests

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use greenroom_core::spawn_named;
use greenroom_dataplane::{ALPN, DataplaneConfig, PeerAddress, Request, Transport};
use greenroom_identity::{CertificateRole, Identity};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const MIB: usize = 1 << 20;

/// A node with a certificate that answers each question for a chunk with other bytes of the right length.
struct Liar {
    address: PeerAddress,
    lies: Arc<AtomicU64>,
}

impl Liar {
    async fn new(world: &World) -> Self {
        let identity = world.identity("liar", CertificateRole::Node);
        let listener = TcpListener::bind(loopback()).await.unwrap();
        let address = PeerAddress::node("liar", listener.local_addr().unwrap());
        let lies = Arc::new(AtomicU64::new(0));
        let told = lies.clone();
        spawn_named("liar", async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                spawn_named("lies", lie(stream, identity.clone(), told.clone()));
            }
        });
        Self { address, lies }
    }
}

async fn lie(stream: TcpStream, identity: Identity, told: Arc<AtomicU64>) {
    const MAGIC: u8 = 0xb7;
    let Ok(mut stream) = TlsAcceptor::from(identity.server_config(&[ALPN])).accept(stream).await else { return };
    let mut header = [0; 8];
    while stream.read_exact(&mut header).await.is_ok() {
        let mut body = vec![0; Request::body_bytes(&header).unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        let answer = match Request::decode(&header, &body).unwrap() {
            // it has no manifest, but every chunk
            Request::Manifest { .. } => vec![MAGIC, 131, 0, 0, 0, 0, 0, 0],
            Request::Chunk { .. } => {
                told.fetch_add(1, Ordering::Relaxed);
                let mut answer = vec![MAGIC, 130, 0, 0];
                answer.extend(CHUNK_BYTES.to_le_bytes());
                answer.resize(8 + CHUNK_BYTES as usize, 0x5a);
                answer
            }
        };
        if stream.write_all(&answer).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_serves_wrong_bytes_is_left_for_the_next_peer() {
    let world = World::new();
    let config = config(Transport::Tls);
    let source = world.node("source", &config).await;
    let receiver = world.node("receiver", &config).await;
    let liar = Liar::new(&world).await;
    let content = content(6, 4 * MIB);
    let id = source.put(world.dir.path(), &content);
    let peers = [liar.address.clone(), source.address.clone()];
    let report = receiver.client(&config).fetch(id, &peers, &receiver.store, &within(60)).await.unwrap();
    assert_holds(&receiver.store, id, &content);
    assert!(report.damaged >= 3, "{report:?}");
    let most = u64::from(2 * STREAMS * WINDOW_CHUNKS);
    assert!(liar.lies.load(Ordering::Relaxed) <= most, "it was asked on and on");
    let chunks = (content.len() / CHUNK_BYTES as usize) as u64;
    assert_eq!(report.chunks_by_peer.get(&source.address.to_string()), Some(&chunks));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_known_to_be_gone_is_left_at_once() {
    let world = World::new();
    // silence would be told apart from slowness only long after the test's deadline
    let config = DataplaneConfig { stall_timeout_ms: 600_000, ..config(Transport::Tls) };
    let source = world.node("source", &config).await;
    let receiver = world.node("receiver", &config).await;
    let content = content(9, 4 * MIB);
    let id = source.put(world.dir.path(), &content);
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let mute = PeerAddress::node("mute", listener.local_addr().unwrap());
    let identity = world.identity("mute", CertificateRole::Node);
    let peers = [mute, source.address.clone()];
    let client = receiver.client(&config);
    let told = client.clone();
    let goes_when_asked = async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(identity.server_config(&[ALPN])).accept(stream).await.unwrap();
        stream.read_exact(&mut [0; 8]).await.unwrap();
        told.gone("mute");
        (stream, listener)
    };
    let limits = within(30);
    let (report, _open) = tokio::join!(client.fetch(id, &peers, &receiver.store, &limits), goes_when_asked);
    assert_holds(&receiver.store, id, &content);
    let chunks = (content.len() / CHUNK_BYTES as usize) as u64;
    assert_eq!(report.unwrap().chunks_by_peer.get(&source.address.to_string()), Some(&chunks));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_relay_is_left_where_somebody_else_may_be_asked() {
    const SLOW_BYTES_PER_S: u64 = 100_000;
    for transport in [Transport::Tls, Transport::Auto] {
        let world = World::new();
        let config = config(transport);
        let (source, relay) = (world.node("source", &config).await, world.node("relay", &config).await);
        let content = content(7, 4 * MIB);
        let id = source.put(world.dir.path(), &content);
        assert_eq!(relay.put(world.dir.path(), &content), id);
        let slow = tcp_proxy(relay.server.local_addr(), Harm::Slow { bytes_per_s: SLOW_BYTES_PER_S }).await;
        let slow = PeerAddress::node("relay", slow.address);

        let receiver = world.node("receiver", &config).await;
        let peers = [slow.clone(), source.address.clone()];
        let report = receiver.client(&config).fetch(id, &peers, &receiver.store, &within(60)).await.unwrap();
        assert_holds(&receiver.store, id, &content);
        let chunks = (content.len() / CHUNK_BYTES as usize) as u64;
        let by_source = report.chunks_by_peer[&source.address.to_string()];
        assert!(by_source >= chunks * 3 / 4, "{transport:?} {report:?}");
        let again = report.received_bytes - content.len() as u64;
        assert!(again <= u64::from(2 * STREAMS * WINDOW_CHUNKS * CHUNK_BYTES), "{again} bytes came twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_peer_is_kept_where_there_is_nobody_else() {
    let world = World::new();
    let config = config(Transport::Tls);
    let source = world.node("source", &config).await;
    let receiver = world.node("receiver", &config).await;
    let content = content(8, 512 << 10);
    let id = source.put(world.dir.path(), &content);
    let slow = tcp_proxy(source.server.local_addr(), Harm::Slow { bytes_per_s: 100_000 }).await;
    let peers = [PeerAddress::node("source", slow.address)];
    let report = receiver.client(&config).fetch(id, &peers, &receiver.store, &within(60)).await.unwrap();
    assert_holds(&receiver.store, id, &content);
    assert_eq!((report.received_bytes, report.cuts), (content.len() as u64, 0), "{report:?}");
}
