//! Whatever peers send: a malformed one is disconnected and counted, costs no memory beyond a frame, and disturbs nobody
//! else; a lying one is found out by its hashes.

#![allow(clippy::unwrap_used)] // helpers of tests

mod support;

use std::time::Duration;

use greenroom_core::{Random, Seed, spawn_named};
use greenroom_dataplane::{ALPN, ObjectId, PeerAddress, Request, Server, ServerCounts, Store, Transport, serve};
use greenroom_identity::{CertificateRole, Identity};
use rand::Rng;
use rustls::pki_types::ServerName;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const STALL: Duration = Duration::from_secs(1);

/// A frame that is random, or nearly right.
fn hostile_frame(random: &mut Random, known: ObjectId) -> Vec<u8> {
    let object = if random.random_ratio(1, 2) { known } else { ObjectId(random.random()) };
    let wait_ms = if random.random_ratio(1, 2) { 0 } else { random.random() };
    let right = match random.random_range(0..2) {
        0 => Request::Manifest { object, wait_ms },
        _ => Request::Chunk { object, index: random.random_range(0..12), wait_ms },
    };
    let mut frame = right.encode();
    match random.random_range(0..6) {
        0 => {
            let length = random.random_range(1..200);
            frame = (0..length).map(|_| random.random()).collect();
        }
        1 => {
            let at = random.random_range(0..frame.len());
            frame[at] ^= 1 << random.random_range(0..8);
        }
        2 => frame.truncate(random.random_range(1..frame.len())),
        3 => frame[4..8].copy_from_slice(&random.random::<[u8; 4]>()),
        4 => frame.extend((0..random.random_range(1..60)).map(|_| random.random::<u8>())),
        _ => {}
    }
    frame
}

/// How many of so many hostile conversations were cut for what they said. Each conversation is one frame.
async fn converse(seed: Seed, conversations: u64) -> u64 {
    let mut random = seed.random();
    let store = Store::in_memory(store_config()).unwrap();
    let object = store.put_bytes("b", content(1, 150_000).into(), Duration::MAX).unwrap();
    let encoded = store.manifest(object).unwrap().unwrap().encode().unwrap();
    let mut malformed = 0;
    for conversation in 0..conversations {
        let frame = hostile_frame(&mut random, object);
        let (mut peer, served) = tokio::io::duplex(1 << 20);
        peer.write_all(&frame).await.unwrap();
        peer.shutdown().await.unwrap();
        let counts: ServerCounts = serve(served, &store, STALL).await;
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).await.unwrap();
        // no answer is longer than the object's chunk or manifest, and there is one answer at most for each question
        let longest = 8 + encoded.len().max(CHUNK_BYTES as usize);
        assert!(answer.len() <= longest * 2, "conversation {conversation} of seed {}: {counts:?}", seed.value());
        assert!(counts.malformed <= 1 && (counts.malformed == 1 || counts.stalled == 0));
        malformed += counts.malformed;
    }
    assert!(store.read(object).unwrap().is_some());
    malformed
}

#[tokio::test(start_paused = true)]
async fn a_million_hostile_frames_do_no_harm() {
    let malformed = converse(Seed::new(20_261), 1_000_000).await;
    assert!((200_000..800_000).contains(&malformed), "{malformed}");
}

async fn dial(identity: &Identity, server: &Server) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(server.local_addr()).await.unwrap();
    let name = ServerName::try_from("somebody").unwrap();
    TlsConnector::from(identity.client_config(&[ALPN])).connect(name, stream).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_under_fire_counts_it_and_goes_on_serving() {
    let world = World::new();
    let config = config(Transport::Auto);
    let source = world.node("source", &config).await;
    let content = content(2, 1 << 20);
    let id = source.put(world.dir.path(), &content);
    let mut random = Seed::new(9).random();
    let attacker = world.identity("attacker", CertificateRole::Node);
    for _ in 0..100 {
        let mut stream = dial(&attacker, &source.server).await;
        let mut garbage = vec![0xb7_u8, 2, 0, 0, 255, 255, 255, 255];
        garbage.extend((0..2000).map(|_| random.random::<u8>()));
        let _ = stream.write_all(&garbage).await;
        let _ = stream.flush().await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "nothing is said to it");
    }
    let udp = UdpSocket::bind(loopback()).await.unwrap();
    for _ in 0..100 {
        let mut bare = TcpStream::connect(source.server.local_addr()).await.unwrap();
        let garbage: Vec<u8> = (0..600).map(|_| random.random()).collect();
        let _ = bare.write_all(&garbage).await;
        let _ = udp.send_to(&garbage, source.server.local_addr()).await;
        let _ = bare.read(&mut [0; 64]).await;
    }
    let viewer = world.identity("viewer", CertificateRole::Viewer);
    let mut stream = dial(&viewer, &source.server).await;
    let _ = stream.write_all(&Request::Manifest { object: id, wait_ms: 0 }.encode()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "a viewer gets nothing");
    let counts = source.server.counts();
    assert_eq!(counts.malformed, 100, "{counts:?}");
    assert!(counts.refused >= 101 && counts.chunks == 0, "{counts:?}");
    for transport in [Transport::Tls, Transport::Quic] {
        let receiver = world.node(&format!("receiver-{transport:?}").to_lowercase(), &config).await;
        let client = receiver.client(&support::config(transport));
        client.fetch(id, std::slice::from_ref(&source.address), &receiver.store, &within(30)).await.unwrap();
        assert_holds(&receiver.store, id, &content);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_bounded_and_whoever_stalls_is_left() {
    let world = World::new();
    let mut few = config(Transport::Tls);
    few.max_connections = 2;
    few.stall_timeout_ms = 300;
    let source = world.node("source", &few).await;
    let id = source.put(world.dir.path(), b"something");
    let attacker = world.identity("attacker", CertificateRole::Node);
    let mut holds = [dial(&attacker, &source.server).await, dial(&attacker, &source.server).await];
    let mut third = TcpStream::connect(source.server.local_addr()).await.unwrap();
    assert!(matches!(third.read(&mut [0; 1]).await, Ok(0) | Err(_)), "a third is turned away at once");
    assert_eq!(source.server.counts().turned_away, 1);
    for stream in &mut holds {
        stream.write_all(&[0xb7, 1]).await.unwrap(); // half a header, and then silence
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
    }
    assert_eq!(source.server.counts().stalled, 2);
    let receiver = world.node("receiver", &config(Transport::Tls)).await;
    let client = receiver.client(&config(Transport::Tls));
    client.fetch(id, std::slice::from_ref(&source.address), &receiver.store, &within(30)).await.unwrap();
}

/// A node that answers each question with `answer(question, number)`, and then hangs up.
async fn liar(identity: &Identity, answer: impl Fn(Request, u64) -> Vec<u8> + Send + Sync + 'static) -> PeerAddress {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = PeerAddress::at(listener.local_addr().unwrap());
    let acceptor = TlsAcceptor::from(identity.server_config(&[ALPN]));
    spawn_named("liar", async move {
        let mut number = 0;
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            loop {
                let mut header = [0; 8];
                if stream.read_exact(&mut header).await.is_err() {
                    break;
                }
                let mut body = vec![0; Request::body_bytes(&header).unwrap()];
                stream.read_exact(&mut body).await.unwrap();
                let lie = answer(Request::decode(&header, &body).unwrap(), number);
                number += 1;
                let hang_up = lie.is_empty();
                if stream.write_all(&lie).await.is_err() || stream.flush().await.is_err() || hang_up {
                    break;
                }
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lying_peer_is_found_out_and_the_next_one_is_asked() {
    let world = World::new();
    let config = config(Transport::Tls);
    let source = world.node("source", &config).await;
    let content = content(3, 40 * CHUNK_BYTES as usize);
    let id = source.put(world.dir.path(), &content);
    let manifest = source.store.manifest(id).unwrap().unwrap().encode().unwrap();
    let frame = |kind: u8, length: u32, body: &[u8]| {
        let mut frame = vec![0xb7, kind, 0, 0];
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(body);
        frame
    };
    let right_manifest = frame(129, manifest.len() as u32, &manifest);
    let wrong_chunk = frame(130, CHUNK_BYTES, &vec![7; CHUNK_BYTES as usize]);
    let huge = frame(130, u32::MAX, &[0; 64]);
    let huge_manifest = frame(129, u32::MAX, &[0; 64]);
    let wrong_manifest = frame(129, 64, &[1; 64]);
    let liar_identity = world.identity("liar", CertificateRole::Node);
    // what it says to a question for the manifest, and for a chunk
    let lies = [
        (right_manifest.clone(), wrong_chunk.clone(), true),
        (right_manifest.clone(), huge, false),
        (right_manifest.clone(), Vec::new(), false),
        (right_manifest.clone(), vec![0; 64], false),
        (huge_manifest, wrong_chunk.clone(), true),
        (wrong_manifest, wrong_chunk, true),
        (right_manifest, frame(132, 0, &[]), false),
    ];
    for (number, (to_manifest, to_chunk, damages)) in lies.into_iter().enumerate() {
        let says = move |request: Request, _| match request {
            Request::Manifest { .. } => to_manifest.clone(),
            Request::Chunk { .. } => to_chunk.clone(),
        };
        let peers = [liar(&liar_identity, says).await, source.address.clone()];
        let receiver = world.node(&format!("receiver-{number}"), &config).await;
        let report = receiver.client(&config).fetch(id, &peers, &receiver.store, &within(30)).await.unwrap();
        assert_holds(&receiver.store, id, &content);
        assert_eq!(report.damaged > 0, damages, "lie {number}: {report:?}");
        assert_eq!(report.chunks_by_peer.keys().collect::<Vec<_>>(), [&source.address.to_string()], "lie {number}");
    }
    // random answers
    for seed in 0..40 {
        let says = move |_, number| {
            let mut random = Seed::new(seed).child_numbered("lie", number).random();
            let mut lie: Vec<u8> = (0..random.random_range(0..100)).map(|_| random.random()).collect();
            if lie.len() > 8 && random.random_ratio(3, 4) {
                lie[..4].copy_from_slice(&[0xb7, random.random_range(128..134), 0, 0]);
            }
            lie
        };
        let peers = [liar(&liar_identity, says).await, source.address.clone()];
        let receiver = world.node(&format!("random-{seed}"), &config).await;
        receiver.client(&config).fetch(id, &peers, &receiver.store, &within(30)).await.unwrap();
        assert_holds(&receiver.store, id, &content);
    }
}
