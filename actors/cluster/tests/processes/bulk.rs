//! Large messages between nodes with certificates go by their data planes: they delay no heartbeat, and a node that is killed
//! in the middle fails them at once.

use std::path::Path;

use greenroom_cluster::{CertificateRole, ClusterConfig};
use greenroom_identity::Authority;
use rustix::process::Signal;

use super::driver::{Node, asks, config, ended, wait_for_all};
use super::hostile::{HOUR_MS, cookie, issue};
use super::{LONG, assert_no_heartbeat_is_late};

fn pair(dir: &Path) -> (Node, Node) {
    let authority = Authority::create(&dir.join("ca")).unwrap();
    let secure = |name: &str, seeds: &[&str]| ClusterConfig {
        cookie_file: cookie(dir, "cookie", "c"),
        tls: Some(issue(&authority, dir, name, CertificateRole::Node, HOUR_MS)),
        heartbeat_ms: 20,
        suspect_ms: 1000,
        dead_ms: 10_000,
        ..config(name, seeds)
    };
    let a = Node::start(&secure("a1", &[]));
    let b = Node::start(&secure("b1", &[&a.address]));
    wait_for_all(&[&a, &b]);
    (a, b)
}

#[test]
fn megabytes_by_the_data_plane_delay_no_heartbeat() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = pair(dir.path());
    assert_no_heartbeat_is_late(&a, &b);
}

#[test]
fn a_node_killed_while_megabytes_are_under_way_fails_them_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = pair(dir.path());
    let under_way = a.begin(asks("b1", "take", 1000, 16, 4 << 20, 60_000, 0));
    let back = a.begin(asks("b1", "echo", 1000, 4, 4 << 20, 60_000, 1_000_000));
    assert_eq!(ended(&a.call(asks("b1", "take", 20, 4, 4 << 20, 60_000, 2_000_000)), "answered"), 20);
    b.signal(Signal::KILL);
    for tally in [under_way, back] {
        let tally = tally.recv_timeout(LONG).unwrap();
        let answered = ended(&tally, "answered");
        assert!(ended(&tally, "GR0007") > 0 && answered > 0 && ended(&tally, "GR0002") == 0, "{tally}");
    }
}
