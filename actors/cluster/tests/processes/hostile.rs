//! Who does not belong here neither gets in nor disturbs those who do.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_cluster::{CertificateRole, ClusterConfig, IdentityFiles, MemberEvent, MemberState};
use greenroom_core::{Clock, Seed};
use greenroom_identity::{Authority, IssueRequest};
use rand::{Rng, RngCore};
use serde_json::json;

use super::LONG;
use super::driver::{Node, asks, config, ended, wait_for_all, wait_until};

pub fn cookie(folder: &Path, name: &str, letter: &str) -> Option<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, letter.repeat(64)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    Some(path)
}

pub fn issue(
    authority: &Authority,
    folder: &Path,
    name: &str,
    role: CertificateRole,
    ends_in_ms: u64,
) -> IdentityFiles {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let request = IssueRequest { name: name.into(), hosts: vec![], role, valid_days: 1 };
    let from_ms = Clock::system().now_ms() + ends_in_ms - DAY_MS;
    authority.issue_from(&request, from_ms, &folder.join(name)).unwrap()
}

pub const HOUR_MS: u64 = 3600 * 1000;

/// Whether a node was told of a refusal with this code.
fn refused(node: &Node, code: &str) -> bool {
    let is_it = |event: &MemberEvent| matches!(event, MemberEvent::Refused { reason, .. } if reason.contains(code));
    node.events().iter().any(is_it)
}

#[tokio::test]
async fn strangers_get_in_by_no_door_and_disturb_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let (good, bad) = (cookie(dir, "good", "g"), cookie(dir, "bad", "b"));
    let authority = Authority::create(&dir.join("ca")).unwrap();
    let foreign = Authority::create(&dir.join("foreign")).unwrap();
    let secure = |name: &str, seeds: &[&str], tls: IdentityFiles| ClusterConfig {
        cookie_file: good.clone(),
        tls: Some(tls),
        ..config(name, seeds)
    };
    let a = Node::start(&secure("a1", &[], issue(&authority, dir, "a1", CertificateRole::Node, HOUR_MS)));
    let b = Node::start(&secure("b1", &[&a.address], issue(&authority, dir, "b1", CertificateRole::Node, HOUR_MS)));
    wait_for_all(&[&a, &b]);
    let asking = a.begin(json!({ "do": "keep_asking", "node": "b1", "deadline_ms": 5000 }));

    // (name, what it comes with, the code that the intruder hears, the code that a hears)
    let own = |name: &str| issue(&authority, dir, name, CertificateRole::Node, HOUR_MS);
    let seeds: &[&str] = &[&a.address];
    let wrong_cookie = ClusterConfig { cookie_file: bad, ..secure("x1", seeds, own("x1")) };
    let foreign_ca = secure("x2", seeds, issue(&foreign, dir, "x2", CertificateRole::Node, HOUR_MS));
    let other_schema = ClusterConfig { schema: "greenroom/0.0".into(), ..secure("x4", seeds, own("x4")) };
    let other_cluster = ClusterConfig { cluster: "another".into(), ..secure("x5", seeds, own("x5")) };
    let no_tls = ClusterConfig { cookie_file: good.clone(), ..config("x6", seeds) };
    let cases = [
        (wrong_cookie, "GR1206", "GR1206"),
        (foreign_ca, "GR1020", "GR102"),
        (other_schema, "GR1207", "GR1207"),
        (other_cluster, "GR1208", "GR1208"),
        (no_tls, "GR1205", "GR1028"),
    ];
    let intruders: Vec<_> = cases.iter().map(|(config, ..)| Node::start(config)).collect();
    for (intruder, (_, hears, tells)) in intruders.iter().zip(&cases) {
        wait_until(&format!("{} hears {hears}", intruder.name), LONG, || refused(intruder, hears));
        wait_until(&format!("a tells of {} with {tells}", intruder.name), LONG, || refused(&a, tells));
    }
    drop(intruders);

    let expiring = secure("x3", seeds, issue(&authority, dir, "x3", CertificateRole::Node, 0));
    std::thread::sleep(Duration::from_millis(1100));
    let expired = Node::try_start(&expiring, 1).err().unwrap();
    assert!(expired.contains("expired"), "{expired}");

    let operator = issue(&authority, dir, "alice", CertificateRole::Operator, HOUR_MS);
    let as_node = Node::try_start(&secure("alice", seeds, operator.clone()), 1).err().unwrap();
    assert!(as_node.contains("GR1210"), "{as_node}");
    let other_name = Node::try_start(&secure("y1", seeds, own("y2")), 1).err().unwrap();
    assert!(other_name.contains("GR1210"), "{other_name}");
    let shell = ClusterConfig { roles: vec!["shell".into()], ..secure("alice-1", seeds, operator) };
    let shell = Node::start(&shell);
    wait_until("the shell is in", LONG, || shell.can_ask(&b) && a.sees(&shell, MemberState::Alive));
    let member = &a.members()["alice-1"];
    assert_eq!(member.certificate, Some(CertificateRole::Operator));
    assert!(member.services.is_empty(), "who steers does not serve: {:?}", member.services);
    let tally = shell.call(asks("b1", "count", 20, 4, 0, 5000, 1 << 30));
    assert!(ended(&tally, "GR0007") == 20 && tally["reason"].as_str().unwrap().contains("GR1218"), "{tally}");
    let tally = shell.call(json!({ "do": "hail", "node": "b1" }));
    assert_eq!(tally["caller"], "alice-1 operator", "a service for everybody knows who asks: {tally}");
    drop(shell);

    a.call(json!({ "do": "stop_asking" }));
    let asked = asking.recv_timeout(LONG).unwrap();
    let answered = ended(&asked, "answered");
    assert!(answered > 100 && asked["ended"].as_object().unwrap().len() == 1, "every question was answered: {asked}");
    let names: Vec<String> = a.members().into_keys().filter(|name| name.starts_with('x')).collect();
    assert!(names.is_empty(), "none of them is known: {names:?}");
}

#[test]
fn tls_on_one_side_only_is_told_to_both_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let authority = Authority::create(&dir.join("ca")).unwrap();
    let tls = |name: &str| Some(issue(&authority, dir, name, CertificateRole::Node, HOUR_MS));
    // nobody may need the handshake's deadline to find out
    let patient = |config: ClusterConfig| ClusterConfig { handshake_ms: 600_000, ..config };
    let secure = Node::start(&patient(ClusterConfig { tls: tls("a1"), ..config("a1", &[]) }));
    let plain = Node::start(&patient(config("b1", &[&secure.address])));
    wait_until("who dials without TLS hears", LONG, || refused(&plain, "GR1205"));
    wait_until("who is dialled without TLS hears", LONG, || refused(&secure, "GR1028"));

    let plain = Node::start(&patient(config("c1", &[])));
    let secure = Node::start(&patient(ClusterConfig { tls: tls("d1"), ..config("d1", &[&plain.address]) }));
    wait_until("who dials with TLS hears", LONG, || refused(&secure, "GR1028"));
    wait_until("who is dialled with TLS hears", LONG, || refused(&plain, "GR1205"));
}

#[test]
fn a_certificate_that_ends_lets_nobody_in_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let authority = Authority::create(&dir.join("ca")).unwrap();
    let secure =
        |name: &str, seeds: &[&str], tls: IdentityFiles| ClusterConfig { tls: Some(tls), ..config(name, seeds) };
    let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // it dials from the start, but who is dialled comes up only when the certificate has ended
    let b = Node::start(&secure("b1", &[&at], issue(&authority, dir, "b1", CertificateRole::Node, 2500)));
    // the second in which it ends belongs to it
    std::thread::sleep(Duration::from_millis(3600));
    let own = issue(&authority, dir, "a1", CertificateRole::Node, HOUR_MS);
    let a = Node::start(&ClusterConfig { bind: at, ..secure("a1", &[], own) });
    wait_until("a says that it has expired", LONG, || refused(&a, "GR1021"));
    wait_until("b hears that it was refused", LONG, || refused(&b, "GR1027"));
    assert!(!a.members().contains_key("b1"));
}

/// The ports at which a process listens for TCP.
fn listens_at(pid: u32) -> Vec<u16> {
    let mine: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| Some(std::fs::read_link(fd.ok()?.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let port = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_mine = columns[3] == "0A" && mine.contains(&format!("socket:[{}]", columns[9]));
        is_mine.then(|| u16::from_str_radix(columns[1].rsplit_once(':').unwrap().1, 16).unwrap())
    };
    table.lines().skip(1).filter_map(port).collect()
}

#[test]
fn a_node_listens_nowhere_but_at_its_own_address() {
    let a = Node::start(&config("a1", &[]));
    let b = Node::start(&config("b1", &[&a.address]));
    wait_for_all(&[&a, &b]);
    for node in [&a, &b] {
        let own: u16 = node.address.rsplit_once(':').unwrap().1.parse().unwrap();
        wait_until("it listens at its own address only", LONG, || listens_at(node.pid()) == [own]);
    }
}

/// Reads one message of the preamble: its kind and its body.
fn read_message(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut header = [0; 11];
    stream.read_exact(&mut header).ok()?;
    let length = u32::from_be_bytes([header[7], header[8], header[9], header[10]]);
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).ok()?;
    Some((header[6], body))
}

#[test]
fn another_protocol_hears_both_versions_and_garbage_disturbs_nobody() {
    let a = Node::start(&config("a1", &[]));
    let b = Node::start(&config("b1", &[&a.address]));
    wait_for_all(&[&a, &b]);
    let asking = a.begin(json!({ "do": "keep_asking", "node": "b1", "deadline_ms": 5000 }));
    let dial = || {
        let stream = TcpStream::connect(&a.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    let mut stream = dial();
    let (kind, challenge) = read_message(&mut stream).unwrap();
    assert_eq!(kind, 1);
    assert!(String::from_utf8_lossy(&challenge).contains("greenroom "), "the build is told");
    let mut hello = b"GRNM\0\x63\x02\0\0\0\x14".to_vec();
    hello.extend_from_slice(b"greenroom 9.9.9 \0\0\0\0");
    stream.write_all(&hello).unwrap();
    let (kind, body) = read_message(&mut stream).unwrap();
    let text = String::from_utf8_lossy(&body);
    assert_eq!(kind, 4);
    for part in
        ["GR1207", "protocol 99", "greenroom 9.9.9", "protocol 1", concat!("greenroom ", env!("CARGO_PKG_VERSION"))]
    {
        assert!(text.contains(part), "{part} in {text}");
    }

    let seed = 20_26;
    println!("seed {seed}");
    let mut random = Seed::new(seed).random();
    // some say nothing for long, and hold nobody up
    let silent: Vec<TcpStream> = (0..50).map(|_| dial()).collect();
    for case in 0..2000 {
        let mut stream = dial();
        let mut bytes = vec![0; random.random_range(0..2000)];
        random.fill_bytes(&mut bytes);
        if case % 3 == 0 {
            let _ = stream.write_all(b"GRNM\0\x01\x07\0\0\0\0");
        }
        if case % 2 == 0 && bytes.len() > 11 {
            bytes[..7].copy_from_slice(b"GRNM\0\x01\x02");
        }
        if case % 4 == 0 && bytes.len() > 11 {
            let length = (bytes.len() - 11) as u32;
            bytes[7..11].copy_from_slice(&length.to_be_bytes());
        }
        // it may have been cut off already
        let _ = stream.write_all(&bytes);
        if case % 8 == 0 {
            let _ = read_message(&mut stream);
            assert_ne!(read_message(&mut stream).map(|(kind, _)| kind), Some(3), "case {case} was welcomed");
        }
    }
    let c = Node::start(&config("c1", &[&a.address]));
    wait_for_all(&[&a, &b, &c]);
    drop(silent);
    a.call(json!({ "do": "stop_asking" }));
    let asked = asking.recv_timeout(LONG).unwrap();
    println!("asks meanwhile: {asked}");
    assert!(ended(&asked, "answered") > 50 && asked["ended"].as_object().unwrap().len() == 1, "{asked}");
    assert!(a.sees(&b, MemberState::Alive) && refused(&a, "GR1205"));
    let suspected = |event: &MemberEvent| matches!(event, MemberEvent::Died { .. });
    assert!(!a.events().iter().any(suspected), "{:?}", a.events());
}
