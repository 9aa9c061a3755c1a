//! Real nodes, each a process of its own: joining, asking, and everything that ends either.

// helpers of tests may panic; processes live in real time
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::disallowed_methods)]

#[path = "processes/bulk.rs"]
mod bulk;
#[path = "processes/chaos.rs"]
mod chaos;
#[path = "processes/driver.rs"]
mod driver;
#[path = "processes/hostile.rs"]
mod hostile;
#[path = "processes/node.rs"]
mod node;

use std::time::{Duration, Instant};

use driver::{Node, Proxy, asks, config, ended, wait_for_all, wait_until};
use greenroom_cluster::{ClusterConfig, MemberEvent, MemberState};
use rustix::process::Signal;
use serde_json::json;

const LONG: Duration = Duration::from_secs(30);

#[test]
#[ignore = "the body of a node: started by the other tests"]
fn a_node() {
    if let Ok(config) = std::env::var("GREENROOM_TEST_NODE") {
        node::run(&config);
    }
}

#[test]
fn three_nodes_join_through_one_seed_and_ask_each_other() {
    let a = Node::start(&config("a1", &[]));
    let gang = a.begin(json!({ "do": "gang", "roles": [["b", 1], ["c", 1]], "deadline_ms": 60_000 }));
    let (b, c) = (Node::start(&config("b1", &[&a.address])), Node::start(&config("c1", &[&a.address])));
    wait_for_all(&[&a, &b, &c]);
    let gang = gang.recv_timeout(LONG).unwrap();
    assert!(gang["error"].is_null(), "{gang}");
    let first = gang["told"][0].to_string();
    assert!(first.contains("\"b\"") && first.contains("\"c\""), "what was missing was told: {first}");
    let missing = a.call(json!({ "do": "gang", "roles": [["a", 1], ["z", 2]], "deadline_ms": 100 }));
    assert!(missing["error"].as_str().unwrap().contains("2 of 2 z missing"), "{missing}");
    let mut first = 0;
    for (node, other) in [(&a, &b), (&b, &c), (&c, &a), (&c, &b)] {
        let tally = node.count(&other.name, 200, 16, first);
        assert_eq!(ended(&tally, "answered"), 200, "{} asks {}: {tally}", node.name, other.name);
        first += 1000;
    }
    let opened = b.call(json!({ "do": "open", "node": "c1" }));
    assert_eq!(opened["counted"], 1, "an address in an answer leads back: {opened}");
    let dropped = a.call(asks("b1", "drop", 10, 10, 0, 5000, 0));
    assert_eq!(ended(&dropped, "GR0003"), 10, "a dropped question answers at once: {dropped}");
    let late = a.call(asks("b1", "hold", 5, 5, 0, 200, 0));
    assert_eq!(ended(&late, "GR0002"), 5, "{late}");
    let gone = || a.call(json!({ "do": "notes", "node": "b1" }))["gone"] == 5;
    wait_until("who holds a question sees that its asker is gone", LONG, gone);
    let notes = a.call(json!({ "do": "note", "node": "c1", "count": 20_000 }));
    assert_eq!((&notes["notes"], &notes["in_order"]), (&json!(20_000), &json!(true)), "{notes}");
    let skew = a.members()["b1"].clock_skew_ms;
    assert!(skew.is_some_and(|skew| skew.abs() < 100), "one machine has one clock: {skew:?}");

    b.call(json!({ "do": "withdraw" }));
    wait_until("a withdrawn service is unbound", LONG, || {
        ended(&a.call(asks("b1", "count", 1, 1, 0, 1000, 1 << 50)), "GR0001") == 1
    });
    let held = a.begin(asks("c1", "hold", 3, 3, 0, 60_000, 0));
    wait_until("the questions are there", LONG, || a.call(json!({ "do": "notes", "node": "c1" }))["notes"] == 20_000);
    let began = Instant::now();
    c.call(json!({ "do": "leave" }));
    let held = held.recv_timeout(LONG).unwrap();
    assert_eq!(ended(&held, "GR0007"), 3, "{held}");
    assert!(began.elapsed() < Duration::from_secs(3), "who leaves says so: {:?}", began.elapsed());
    assert!(held["reason"].as_str().unwrap().contains("it has left"), "{held}");
    wait_until("a and b see that c left", LONG, || a.sees(&c, MemberState::Left) && b.sees(&c, MemberState::Left));
}

#[test]
fn questions_to_a_killed_node_fail_within_a_second_and_its_restart_takes_its_place() {
    let a = Node::start(&config("a1", &[]));
    let b = Node::start(&config("b1", &[&a.address]));
    wait_for_all(&[&a, &b]);
    let held = a.begin(asks("b1", "hold", 50, 50, 0, 60_000, 0));
    wait_until("the questions are there", LONG, || a.call(json!({ "do": "notes", "node": "b1" }))["notes"] == 0);
    let began = Instant::now();
    b.signal(Signal::KILL);
    let held = held.recv_timeout(LONG).unwrap();
    let took = began.elapsed();
    assert_eq!(ended(&held, "GR0007"), 50, "{held}");
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    println!("SIGKILL: pending asks failed after {took:?}");
    assert!(a.sees(&b, MemberState::Dead));
    let gone = a.call(asks("b1", "count", 1, 1, 0, 1000, 1));
    assert_eq!(ended(&gone, "GR0001"), 1, "nobody is there: {gone}");

    let again = Node::start(&config("b1", &[&a.address]));
    assert!(again.incarnation > b.incarnation);
    wait_for_all(&[&a, &again]);
    for address in ["b1", "*"] {
        let tally = again.call(asks(address, "count", 1, 1, 0, 5000, 7));
        assert_eq!(tally["ended"].as_object().unwrap().len(), 1, "{tally}");
    }
    let tally = a.count("b1", 100, 10, 100);
    assert_eq!(ended(&tally, "answered"), 100, "the address follows: {tally}");
}

#[test]
fn a_second_process_of_the_same_name_fences_the_first() {
    let a = Node::start(&config("a1", &[]));
    let old = Node::start(&config("b1", &[&a.address]));
    wait_for_all(&[&a, &old]);
    let held = a.begin(asks("b1", "hold", 3, 3, 0, 60_000, 0));
    wait_until("the questions are there", LONG, || a.call(json!({ "do": "notes", "node": "b1" }))["notes"] == 0);
    let new = Node::start(&config("b1", &[&a.address]));
    wait_for_all(&[&a, &new]);
    let held = held.recv_timeout(LONG).unwrap();
    assert!(ended(&held, "GR0007") == 3 && held["reason"].as_str().unwrap().contains("restarted"), "{held}");
    let fenced = || old.events().contains(&MemberEvent::Fenced { by: new.incarnation });
    wait_until("the older one hears that it is fenced", LONG, fenced);
    let died = MemberEvent::Died {
        node: "b1".into(),
        incarnation: old.incarnation,
        reason: format!("it was restarted: incarnation {} has joined", new.incarnation),
    };
    assert!(a.events().contains(&died), "{:?}", a.events());
    let tally = old.call(asks("a1", "count", 1, 1, 0, 1000, 1));
    assert_eq!(ended(&tally, "answered"), 0, "a fenced node asks nobody: {tally}");
    let tally = a.count("b1", 50, 10, 0);
    assert_eq!(ended(&tally, "answered"), 50, "{tally}");
}

#[test]
fn a_stopped_node_is_dead_in_time_and_comes_back_clean() {
    let a = Node::start(&config("a1", &[]));
    let b = Node::start(&config("b1", &[&a.address]));
    wait_for_all(&[&a, &b]);
    let held = a.begin(asks("b1", "hold", 20, 20, 0, 60_000, 0));
    let back = b.begin(asks("a1", "hold", 20, 20, 0, 60_000, 0));
    wait_until("the questions are there", LONG, || a.call(json!({ "do": "notes", "node": "b1" }))["notes"] == 0);
    let began = Instant::now();
    b.signal(Signal::STOP);
    wait_until("b is suspected", LONG, || a.sees(&b, MemberState::Suspect));
    let held = held.recv_timeout(LONG).unwrap();
    let took = began.elapsed();
    println!("SIGSTOP: pending asks failed after {took:?} (dead_ms 2000)");
    assert_eq!(ended(&held, "GR0007"), 20, "{held}");
    assert!(took > Duration::from_millis(1500) && took < Duration::from_millis(3500), "it took {took:?}");
    std::thread::sleep(Duration::from_millis(500));
    b.signal(Signal::CONT);
    let back = back.recv_timeout(LONG).unwrap();
    assert_eq!(ended(&back, "GR0007"), 20, "what it had asked is lost as well: {back}");
    wait_for_all(&[&a, &b]);
    println!("SIGCONT: back after {:?}", began.elapsed());
    for (node, other, first) in [(&a, "b1", 0), (&b, "a1", 0)] {
        let tally = node.count(other, 100, 10, first);
        assert_eq!(ended(&tally, "answered"), 100, "{tally}");
    }
    // nothing that was asked before the stop took effect twice, or later
    let notes = a.call(json!({ "do": "notes", "node": "b1" }));
    assert_eq!(notes["most"], 1);
}

/// An address nobody listens at: chosen here, so that a proxy knows it before the node runs.
fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Two nodes that reach each other through proxies only.
fn behind(to_a: &Proxy, to_b: &Proxy) -> (Node, Node) {
    let start = |name: &str, seeds: &[&str], proxy: &Proxy| {
        let bind = free_address();
        proxy.leads_to(&bind);
        Node::start(&ClusterConfig { bind, advertise: proxy.address.clone(), ..config(name, seeds) })
    };
    let a = start("a1", &[], to_a);
    let b = start("b1", &[&to_a.address], to_b);
    wait_for_all(&[&a, &b]);
    (a, b)
}

#[test]
fn a_network_that_drops_packets_without_a_word_is_found_and_heals() {
    for (to, back) in [(false, false), (false, true), (true, false)] {
        let (to_a, to_b) = (Proxy::new(), Proxy::new());
        let (a, b) = behind(&to_a, &to_b);
        let held = [(&a, "b1"), (&b, "a1")].map(|(node, other)| node.begin(asks(other, "hold", 5, 5, 0, 60_000, 0)));
        wait_until("the questions are there", LONG, || a.call(json!({ "do": "notes", "node": "b1" }))["notes"] == 0);
        let began = Instant::now();
        for (proxy, to, back) in [(&to_a, to, back), (&to_b, back, to)] {
            proxy.lets_through(to, back);
        }
        for held in held {
            let held = held.recv_timeout(LONG).unwrap();
            assert_eq!(ended(&held, "GR0007"), 5, "to {to} back {back}: {held}");
        }
        let took = began.elapsed();
        println!("silence to {to} back {back}: all questions failed after {took:?} (dead_ms 2000)");
        assert!(took < Duration::from_secs(6), "{took:?}");
        to_a.lets_through(true, true);
        to_b.lets_through(true, true);
        wait_for_all(&[&a, &b]);
        for (node, other) in [(&a, "b1"), (&b, "a1")] {
            let tally = node.count(other, 100, 10, 0);
            assert_eq!(ended(&tally, "answered"), 100, "{tally}");
        }
    }
}

/// A node that stood still for a while, as seen by itself: the other has held it for dead and ended the line between them, and
/// it never noticed a thing.
#[test]
fn who_was_held_for_dead_and_did_not_know_reaches_the_other_by_the_address_it_had() {
    let (to_a, to_b) = (Proxy::new(), Proxy::new());
    let start = |config: ClusterConfig, proxy: &Proxy| {
        let bind = free_address();
        proxy.leads_to(&bind);
        Node::start(&ClusterConfig { bind, advertise: proxy.address.clone(), ..config })
    };
    let a = start(config("a1", &[]), &to_a);
    let b = start(ClusterConfig { suspect_ms: 60_000, dead_ms: 120_000, ..config("b1", &[&to_a.address]) }, &to_b);
    wait_for_all(&[&a, &b]);
    assert_eq!(ended(&b.count("a1", 10, 10, 1_000), "answered"), 10);
    let lets_through = |yes| [&to_a, &to_b].into_iter().for_each(|proxy| proxy.lets_through(yes, yes));
    lets_through(false);
    wait_until("a holds b for dead", LONG, || a.sees(&b, MemberState::Dead));
    lets_through(true);
    wait_until("a sees b again", LONG, || a.can_ask(&b));
    assert!(b.sees(&a, MemberState::Alive), "b saw a all the time");
    let numbers = std::cell::Cell::new(2_000);
    wait_until("b reaches a", Duration::from_secs(10), || {
        numbers.set(numbers.get() + 1);
        ended(&b.call(asks("a1", "count", 1, 1, 0, 1_000, numbers.get())), "answered") == 1
    });
}

#[test]
fn a_connection_cut_among_ten_thousand_questions_loses_and_repeats_none() {
    let (to_a, to_b) = (Proxy::new(), Proxy::new());
    let (a, b) = behind(&to_a, &to_b);
    let (one_way, other_way) = (
        a.begin(asks("b1", "count", 10_000, 64, 0, 60_000, 0)),
        b.begin(asks("a1", "count", 10_000, 64, 0, 60_000, 0)),
    );
    let bulk = a.begin(asks("b1", "echo", 20, 4, 1 << 20, 60_000, 1));
    let mut cuts = 0;
    let (mut one, mut other, mut big) = (None, None, None);
    while one.is_none() || other.is_none() || big.is_none() {
        std::thread::sleep(Duration::from_millis(150));
        if cuts < 40 {
            cuts += to_a.cut() + to_b.cut();
        }
        one = one.or_else(|| one_way.try_recv().ok());
        other = other.or_else(|| other_way.try_recv().ok());
        big = big.or_else(|| bulk.try_recv().ok());
    }
    assert!(cuts >= 4, "only {cuts} connections were cut");
    println!("{cuts} connections cut");
    for (tally, count) in [(one, 10_000), (other, 10_000), (big, 20)] {
        let tally = tally.unwrap();
        assert_eq!(ended(&tally, "answered"), count, "{tally}");
    }
    for (node, other) in [(&a, "b1"), (&b, "a1")] {
        assert_eq!(node.call(json!({ "do": "notes", "node": other }))["most"], 1, "none took effect twice");
        assert!(node.events().iter().all(|event| !matches!(event, MemberEvent::Died { .. })), "nobody died");
    }
}

#[test]
fn megabytes_under_way_delay_no_heartbeat() {
    let quick = |name: &str, seeds: &[&str]| ClusterConfig {
        heartbeat_ms: 20,
        suspect_ms: 1000,
        dead_ms: 10_000,
        ..config(name, seeds)
    };
    let a = Node::start(&quick("a1", &[]));
    let b = Node::start(&quick("b1", &[&a.address]));
    wait_for_all(&[&a, &b]);
    assert_no_heartbeat_is_late(&a, &b);
}

/// Sends megabytes both ways between two nodes that hold each other for silent after a second.
fn assert_no_heartbeat_is_late(a: &Node, b: &Node) {
    let bulk = a.begin(asks("b1", "take", 200, 8, 4 << 20, 60_000, 0));
    let beats = a.call(json!({ "do": "rpc", "node": "b1", "for_ms": 2000 }));
    let bulk = bulk.recv_timeout(Duration::from_secs(120)).unwrap();
    assert_eq!(ended(&bulk, "answered"), 200, "{bulk}");
    println!("4 MiB x 200: {bulk}\nheartbeats meanwhile: {beats}");
    assert!(beats["most_ms"].as_f64().unwrap() < 900.0 && beats["silent_ms"].as_u64().unwrap() < 900, "{beats}");
    let back = b.call(asks("a1", "echo", 10, 4, 4 << 20, 60_000, 3));
    assert_eq!(ended(&back, "answered"), 10, "both ways: {back}");
    // 300 MiB at once are more than may be under way: some are refused by name, none is lost silently
    let much = a.call(asks("b1", "take", 80, 80, 4 << 20, 60_000, 0));
    assert_eq!(ended(&much, "answered") + ended(&much, "GR0007"), 80, "{much}");
}

/// `cargo test -p greenroom-cluster --test processes -- --ignored --nocapture measured`.
#[test]
#[ignore = "a measurement: for a quiet machine"]
fn measured_asks_and_messages() {
    let slow = |name: &str, seeds: &[&str]| ClusterConfig {
        heartbeat_ms: 1000,
        suspect_ms: 3000,
        dead_ms: 10_000,
        ..config(name, seeds)
    };
    for workers in [0, 2] {
        let a = Node::try_start(&slow("a1", &[]), workers).unwrap();
        let b = Node::try_start(&slow("b1", &[&a.address]), workers).unwrap();
        wait_for_all(&[&a, &b]);
        a.count("b1", 2000, 1, 1 << 20);
        for (count, window) in [(5000, 1), (50_000, 64), (100_000, 1024)] {
            println!(
                "workers {workers}, {window} outstanding: {}",
                a.count("b1", count, window, 1 << 30 | (window as u64) << 20)
            );
        }
        println!("workers {workers}, one way: {}", a.call(json!({ "do": "note", "node": "b1", "count": 500_000 })));
        println!("workers {workers}, 4 MiB: {}", a.call(asks("b1", "take", 200, 8, 4 << 20, 60_000, 0)));
    }
}
