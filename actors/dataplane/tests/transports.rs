//! Each transport carries an object byte for byte, survives a cut without sending much twice, notices a spoiled byte, and
//! speaks only with nodes of its own authority.

mod support;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom_core::Deadline;
use greenroom_dataplane::{Client, ObjectHandle, PeerAddress, Progress, Server, Store, Transport};
use greenroom_identity::CertificateRole;
use support::*;
use tokio::sync::Notify;
use tokio::time::Instant;

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transport_carries_an_object_byte_for_byte() {
    let world = World::new();
    let both = config(Transport::Auto);
    let source = world.node("source", &both).await;
    for bytes in [0, 1, CHUNK_BYTES as usize, 3 * MIB + 5] {
        let content = content(bytes as u64, bytes);
        let id = source.put(world.dir.path(), &content);
        let directory = PeerAddress { directory: Some(world.path("source")), ..source.address.clone() };
        std::fs::create_dir_all(world.path("unrelated/objects")).unwrap();
        let unrelated = PeerAddress { directory: Some(world.path("unrelated")), ..source.address.clone() };
        let cases = [
            (Transport::Auto, &unrelated, "quic"),
            (Transport::Quic, &source.address, "quic"),
            (Transport::Tls, &source.address, "tls"),
            (Transport::Directory, &directory, "directory"),
            (Transport::Auto, &source.address, "quic"),
            (Transport::Auto, &directory, "directory"),
        ];
        for (number, (transport, peer, used)) in cases.into_iter().enumerate() {
            let name = format!("receiver-{number}-{bytes}");
            let client = Client::new(&world.identity(&name, CertificateRole::Node), &config(transport)).unwrap();
            let store = world.store(&name);
            let heard = Arc::new(Mutex::new(Vec::<Progress>::new()));
            let hears = heard.clone();
            let mut options = within(30);
            options.on_progress = Some(Arc::new(move |progress| hears.lock().unwrap().push(progress)));
            let report = client.fetch(id, std::slice::from_ref(peer), &store, &options).await.unwrap();
            assert_holds(&store, id, &content);
            assert_eq!((report.bytes, report.received_bytes), (bytes as u64, bytes as u64), "{transport:?}");
            assert_eq!((report.cuts, report.damaged, report.notes.len()), (0, 0, 0), "{report:?}");
            let chunks = bytes.div_ceil(CHUNK_BYTES as usize);
            let heard = heard.lock().unwrap().clone();
            assert_eq!(heard.len(), chunks);
            assert!(heard.iter().all(|progress| progress.chunks as usize == chunks), "{heard:?}");
            if bytes > 0 {
                assert_eq!(report.transports, [used], "{transport:?} {peer}");
                assert_eq!(report.chunks_by_peer.values().sum::<u64>(), chunks as u64);
            }
            // a second time nothing travels
            let again = client.fetch(id, std::slice::from_ref(peer), &store, &within(30)).await.unwrap();
            assert_eq!(again.received_bytes, 0);
        }
    }
    assert_eq!(source.server.counts().malformed, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cut_only_what_was_under_way_is_sent_again() {
    let world = World::new();
    let source = world.node("source", &config(Transport::Auto)).await;
    let content = content(7, 4 * MIB);
    let id = source.put(world.dir.path(), &content);
    let under_way = u64::from(STREAMS * WINDOW_CHUNKS * CHUNK_BYTES);
    // over TCP five connections would be cut: the manifest's own is too short for it, and which of two is cut first varies
    let cases = [(Transport::Tls, 2, 400_000), (Transport::Quic, 1, 1_500_000)];
    for (transport, least_cuts, after_bytes) in cases {
        let proxy = match transport {
            Transport::Quic => udp_proxy(source.server.local_addr(), after_bytes).await,
            _ => tcp_proxy(source.server.local_addr(), Harm::Cut { connections: 5, after_bytes }).await,
        };
        let name = format!("receiver-{transport:?}").to_lowercase();
        let receiver = world.node(&name, &config(Transport::Tls)).await;
        let peer = PeerAddress::node("source", proxy.address);
        let report =
            receiver.client(&config(transport)).fetch(id, &[peer], &receiver.store, &within(60)).await.unwrap();
        assert_holds(&receiver.store, id, &content);
        let harmed = proxy.harmed.load(Ordering::Relaxed);
        assert!(harmed >= least_cuts && report.cuts >= 1, "{transport:?}: {harmed} cuts, {report:?}");
        let again = report.received_bytes - content.len() as u64;
        assert!(again <= harmed * under_way, "{transport:?}: {again} bytes of whole chunks came twice");
        let passed = proxy.passed.load(Ordering::Relaxed);
        // QUIC also repeats single packets that a full socket lost
        let overhead = content.len() as u64 / if transport == Transport::Quic { 4 } else { 20 };
        let most = content.len() as u64 + harmed * under_way + overhead;
        assert!(passed <= most, "{transport:?}: {passed} bytes passed for {} and {harmed} cuts", content.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_ended_too_early_is_gone_on_with_by_the_next_one() {
    let world = World::new();
    let source = world.node("source", &config(Transport::Auto)).await;
    let content = content(8, 4 * MIB);
    let id = source.put(world.dir.path(), &content);
    let receiver = world.node("receiver", &config(Transport::Tls)).await;
    let client = receiver.client(&config(Transport::Tls));
    let peers = [source.address.clone()];
    let enough = Arc::new(Notify::new());
    let tells = enough.clone();
    let mut options = within(30);
    options.on_progress = Some(Arc::new(move |progress| {
        if progress.held >= 20 {
            tells.notify_one();
        }
    }));
    tokio::select! {
        ended = client.fetch(id, &peers, &receiver.store, &options) => panic!("{ended:?} before it was given up"),
        () = enough.notified() => {}
    }
    // another process takes over: only the directory knows what is here
    let store = Store::open(&world.path("receiver"), store_config()).unwrap();
    let held = store.holding(id).unwrap().unwrap().held;
    assert!((20..256).contains(&held), "{held}");
    let report = client.fetch(id, &peers, &store, &within(30)).await.unwrap();
    assert_eq!(report.received_bytes, content.len() as u64 - u64::from(held * CHUNK_BYTES));
    assert_holds(&store, id, &content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_byte_that_changes_on_the_wire_is_found_and_sent_again() {
    let world = World::new();
    let source = world.node("source", &config(Transport::Auto)).await;
    let content = content(9, MIB);
    let id = source.put(world.dir.path(), &content);
    for at_byte in [3000, 200_000] {
        // the first byte belongs to a handshake or the manifest, the second to a chunk
        let proxy = tcp_proxy(source.server.local_addr(), Harm::Flip { at_byte }).await;
        let receiver = world.node(&format!("receiver-{at_byte}"), &config(Transport::Tls)).await;
        let peers = [PeerAddress::at(proxy.address), source.address.clone()];
        let client = receiver.client(&config(Transport::Tls));
        let report = client.fetch(id, &peers, &receiver.store, &within(30)).await.unwrap();
        assert_holds(&receiver.store, id, &content);
        assert_eq!(proxy.harmed.load(Ordering::Relaxed), 1);
        assert!(report.cuts >= 1 || at_byte == 3000, "TLS ends such a connection: {report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_udp_is_blocked_auto_uses_tls_and_says_so() {
    let world = World::new();
    let source = world.node("source", &config(Transport::Tls)).await;
    let content = content(10, MIB);
    let id = source.put(world.dir.path(), &content);
    let mut auto = config(Transport::Auto);
    auto.quic_answer_ms = 300;
    let receiver = world.node("receiver", &config(Transport::Tls)).await;
    let client = receiver.client(&auto);
    let peers = [source.address.clone()];
    let began = Instant::now();
    let report = client.fetch(id, &peers, &receiver.store, &within(30)).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(report.transports, ["tls"]);
    let said = report.notes.iter().any(|note| note.contains("UDP") && note.contains("source at 127.0.0.1"));
    assert!(said && report.notes.len() == 1, "{:?}", report.notes);
    // it is remembered: the next fetch does not wait for QUIC again
    receiver.store.remove(id).unwrap();
    let report = client.fetch(id, &peers, &receiver.store, &within(30)).await.unwrap();
    assert_eq!((report.transports, report.notes), (vec!["tls"], vec![]));
    assert_holds(&receiver.store, id, &content);
    let mut quic = config(Transport::Quic);
    quic.connect_timeout_ms = 200;
    receiver.store.remove(id).unwrap();
    let error = receiver.client(&quic).fetch(id, &peers, &receiver.store, &within(1)).await.unwrap_err();
    assert!(error.code() == "GR1104" && error.to_string().contains("no answer by QUIC"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_and_nodes_with_another_name_are_refused() {
    let (world, other) = (World::new(), World::new());
    let source = world.node("source", &config(Transport::Auto)).await;
    let id = source.put(world.dir.path(), &content(11, MIB));
    let stranger = other.identity("receiver", CertificateRole::Node);
    let friend = world.identity("receiver", CertificateRole::Node);
    let store = world.store("receiver");
    for transport in [Transport::Tls, Transport::Quic] {
        let fetch = async |identity: &_, peer: PeerAddress| {
            let client = Client::new(identity, &config(transport)).unwrap();
            client.fetch(id, &[peer], &store, &within(20)).await.unwrap_err()
        };
        let error = fetch(&stranger, source.address.clone()).await;
        assert!(error.code() == "GR1110" && error.to_string().contains("another authority"), "{error}");
        let error = fetch(&friend, PeerAddress::node("engine-7", source.server.local_addr())).await;
        assert!(error.code() == "GR1110" && error.to_string().contains("source"), "{transport:?}: {error}");
    }
    let counts = source.server.counts();
    assert_eq!((counts.connections, counts.chunks), (0, 0), "{counts:?}");
    let viewer = world.identity("viewer", CertificateRole::Viewer);
    assert_eq!(Client::new(&viewer, &config(Transport::Tls)).map(|_| ()).unwrap_err().code(), "GR1107");
    let client = Client::new(&friend, &config(Transport::Tls)).unwrap();
    client.fetch(id, std::slice::from_ref(&source.address), &store, &within(20)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_in_memory_are_fetched_by_their_handle_until_they_expire() {
    let world = World::new();
    let identity = world.identity("rollout-0", CertificateRole::Node);
    let store = Store::in_memory(store_config()).unwrap();
    let server = Server::start(&identity, &store, loopback(), &config(Transport::Auto)).await.unwrap();
    let content = content(12, 300_000);
    let object = store.put_bytes("trajectory 7", content.clone().into(), Duration::from_secs(2)).unwrap();
    let holders = vec![PeerAddress::node("rollout-0", server.local_addr())];
    let handle = ObjectHandle { object, bytes: content.len() as u64, holders };
    let text = serde_json::to_string(&handle).unwrap();
    let handle: ObjectHandle = serde_json::from_str(&text).unwrap();
    let trainer = world.identity("trainer-0", CertificateRole::Node);
    for transport in [Transport::Quic, Transport::Tls] {
        let client = Client::new(&trainer, &config(transport)).unwrap();
        let soon = || Deadline::after(Duration::from_secs(20));
        assert_eq!(client.fetch_handle(&handle, soon()).await.unwrap(), content);
        let error = client.fetch_bytes(object, &handle.holders, 299_999, soon()).await.unwrap_err();
        assert_eq!(error.code(), "GR1105", "{error}");
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let client = Client::new(&trainer, &config(Transport::Tls)).unwrap();
    let error = client.fetch_handle(&handle, Deadline::after(Duration::from_secs(20))).await.unwrap_err();
    assert!(error.code() == "GR1103" && error.to_string().contains("rollout-0"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_reached_is_said_at_once() {
    let world = World::new();
    let node = world.node("node", &config(Transport::Tls)).await;
    let id = node.put(world.dir.path(), b"something");
    let store = world.store("empty");
    let directory = node.client(&config(Transport::Directory));
    for (client, peers) in [(&directory, vec![node.address.clone()]), (&node.client(&config(Transport::Tls)), vec![])] {
        let error = client.fetch(id, &peers, &store, &within(9)).await.unwrap_err();
        assert_eq!(error.code(), "GR1111", "{error}");
    }
    let taken = Server::start(&node.identity, &store, node.server.local_addr(), &config(Transport::Tls)).await;
    assert_eq!(taken.map(|_| ()).unwrap_err().code(), "GR1108");
}
