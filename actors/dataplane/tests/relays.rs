//! One object for many: receivers pass on what they still receive, the source sends each byte once, and a receiver whose
//! predecessor dies goes on with the next; a damaged peer is gone around and can be mended.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_core::spawn_named;
use greenroom_dataplane::{PeerAddress, Transport, chain};
use support::*;

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_four_takes_each_byte_from_the_source_once() {
    for transport in [Transport::Tls, Transport::Quic] {
        let world = World::new();
        let config = config(transport);
        let source = world.node("source", &config).await;
        let content = content(1, 6 * MIB);
        let id = source.put(world.dir.path(), &content);
        let mut receivers = Vec::new();
        for number in 0..4 {
            receivers.push(Arc::new(world.node(&format!("receiver-{number}"), &config).await));
        }
        let addresses: Vec<PeerAddress> = receivers.iter().map(|node| node.address.clone()).collect();
        let asked = chain(&source.address, &addresses, 16);
        let fetches = receivers.iter().cloned().zip(asked).map(|(node, peers)| {
            let client = node.client(&config);
            spawn_named("receiver", async move { client.fetch(id, &peers, &node.store, &within(60)).await.unwrap() })
        });
        let fetches: Vec<_> = fetches.collect();
        for (node, fetch) in receivers.iter().zip(fetches) {
            let report = fetch.await.unwrap().unwrap();
            assert_holds(&node.store, id, &content);
            assert_eq!(report.damaged, 0);
        }
        let chunks = (content.len() / CHUNK_BYTES as usize) as u64;
        let sent = source.server.counts().chunks;
        // a machine that stands still may make a receiver go around its predecessor for a moment
        assert!(sent <= chunks * 3 / 2, "{transport:?}: the source sent {sent} chunks of {chunks}");
        for relay in &receivers[..3] {
            let passed_on = relay.server.counts().chunks;
            assert!(passed_on >= chunks / 2, "{transport:?}: a relay passed on {passed_on} chunks of {chunks}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_predecessor_dies_midway_the_next_peer_is_asked_for_the_rest() {
    for transport in [Transport::Tls, Transport::Quic] {
        let world = World::new();
        let config = config(transport);
        let source = world.node("source", &config).await;
        let relay = Arc::new(world.node("relay", &config).await);
        let receiver = world.node("receiver", &config).await;
        let content = content(2, 6 * MIB);
        let id = source.put(world.dir.path(), &content);
        let (client, peers) = (relay.client(&config), vec![source.address.clone()]);
        let relayed = relay.clone();
        let relaying =
            spawn_named(
                "relay",
                async move { client.fetch(id, &peers, &relayed.store, &within(60)).await.map(|_| ()) },
            );
        let killed = Arc::new(AtomicBool::new(false));
        let (kills, abort) = (killed.clone(), relaying.abort_handle());
        let mut options = within(60);
        let dying = relay.clone();
        options.on_progress = Some(Arc::new(move |progress| {
            if progress.held > progress.chunks / 3 && !kills.swap(true, Ordering::Relaxed) {
                abort.abort();
                dying.server.stop();
            }
        }));
        let peers = chain(&source.address, &[relay.address.clone(), receiver.address.clone()], 16).remove(1);
        assert_eq!(peers[0], relay.address);
        let report = receiver.client(&config).fetch(id, &peers, &receiver.store, &options).await.unwrap();
        assert_holds(&receiver.store, id, &content);
        assert!(killed.load(Ordering::Relaxed));
        let gave = |peer: &PeerAddress| report.chunks_by_peer.get(&peer.to_string()).copied().unwrap_or(0);
        let chunks = (content.len() / CHUNK_BYTES as usize) as u64;
        assert_eq!(gave(&relay.address) + gave(&source.address), chunks, "{report:?}");
        assert!(gave(&relay.address) >= chunks / 4 && gave(&source.address) > 0, "{transport:?} {report:?}");
        let again = report.received_bytes - content.len() as u64;
        assert!(again <= u64::from(2 * STREAMS * WINDOW_CHUNKS * CHUNK_BYTES), "{again} bytes came twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_byte_that_changed_on_a_peers_disk_comes_from_another_peer_and_the_disk_can_be_mended() {
    let world = World::new();
    let config = config(Transport::Tls);
    let (bad, good) = (world.node("bad", &config).await, world.node("good", &config).await);
    let content = content(3, MIB);
    let id = bad.put(world.dir.path(), &content);
    assert_eq!(good.put(world.dir.path(), &content), id);
    let path = bad.store.path(id).unwrap().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[500_000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let peers = [bad.address.clone(), good.address.clone()];

    let receiver = world.node("receiver", &config).await;
    let report = receiver.client(&config).fetch(id, &peers, &receiver.store, &within(30)).await.unwrap();
    assert_holds(&receiver.store, id, &content);
    assert!(report.chunks_by_peer.contains_key(&good.address.to_string()), "{report:?}");
    assert_eq!((bad.server.counts().damaged, report.damaged), (1, 0), "the owner noticed before sending");

    // in a shared directory nobody reads for us: the receiver notices
    let shared = [PeerAddress::directory(world.path("bad")), good.address.clone()];
    let second = world.node("second", &config).await;
    let auto = support::config(Transport::Auto);
    let report = second.client(&auto).fetch(id, &shared, &second.store, &within(30)).await.unwrap();
    assert_holds(&second.store, id, &content);
    assert_eq!(report.damaged, 1, "{report:?}");

    // with nobody else to ask it is an error that names the peer, not a wrong byte
    let third = world.node("third", &config).await;
    let error = third.client(&auto).fetch(id, &shared[..1], &third.store, &within(30)).await.unwrap_err();
    assert!(error.code() == "GR1102" && error.to_string().contains("bad"), "{error}");

    let report = bad.client(&config).fetch(id, &peers[1..], &bad.store, &within(30)).await.unwrap();
    assert_eq!(report.received_bytes, u64::from(CHUNK_BYTES), "only the damaged chunk travels");
    assert_holds(&bad.store, id, &content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_directory_is_read_while_it_is_still_being_filled() {
    let world = World::new();
    let config = config(Transport::Tls);
    let source = world.node("source", &config).await;
    let content = content(4, 2 * MIB);
    let id = source.put(world.dir.path(), &content);
    let filling = Arc::new(world.node("filling", &config).await);
    let reader = world.node("reader", &config).await;
    let (client, peers, fills) = (filling.client(&config), vec![source.address.clone()], filling.clone());
    let fill = spawn_named("fill", async move { client.fetch(id, &peers, &fills.store, &within(60)).await.unwrap() });
    let shared = [PeerAddress::directory(world.path("filling"))];
    let auto = support::config(Transport::Auto);
    let report = reader.client(&auto).fetch(id, &shared, &reader.store, &within(60)).await.unwrap();
    assert_holds(&reader.store, id, &content);
    assert_eq!(report.transports, ["directory"]);
    fill.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_fetches_of_one_object_into_one_store_fetch_it_once() {
    let world = World::new();
    let config = config(Transport::Tls);
    let source = world.node("source", &config).await;
    let receiver = world.node("receiver", &config).await;
    let content = content(5, 2 * MIB);
    let id = source.put(world.dir.path(), &content);
    let (client, peers, options) = (receiver.client(&config), [source.address.clone()], within(30));
    let fetch = || client.fetch(id, &peers, &receiver.store, &options);
    let (one, two) = tokio::join!(fetch(), fetch());
    assert_eq!(one.unwrap().received_bytes + two.unwrap().received_bytes, content.len() as u64);
    assert_holds(&receiver.store, id, &content);
    // an object that is removed under way says so
    let slow = tcp_proxy(source.server.local_addr(), Harm::Cut { connections: 99, after_bytes: 200_000 }).await;
    receiver.store.remove(id).unwrap();
    let store = receiver.store.clone();
    let mut options = within(30);
    let removed = AtomicBool::new(false);
    options.on_progress = Some(Arc::new(move |progress| {
        if progress.held >= 20 && !removed.swap(true, Ordering::Relaxed) {
            store.remove(id).unwrap();
        }
    }));
    let error = client.fetch(id, &[PeerAddress::at(slow.address)], &receiver.store, &options).await.unwrap_err();
    assert_eq!(error.code(), "GR1109", "{error}");
}
