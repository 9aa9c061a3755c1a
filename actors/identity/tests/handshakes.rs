//! Who may speak with whom: every pair of parties that must not is refused, on the side that must refuse, with its reason
//! as a type; and a party's own files are checked before anybody is dialled.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_core::Clock;
use greenroom_identity::{
    Authority, CertificateRole, Identity, IdentityError, IdentityFiles, IssueRequest, PeerIdentity, Refusal, peer_of,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use tempfile::TempDir;

const ALPN: &[&[u8]] = &[b"test/1"];
const DAY_MS: u64 = 86_400_000;

struct World {
    dir: TempDir,
    authority: Authority,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join("ca")).unwrap();
        Self { dir, authority }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn issue(&self, name: &str, role: CertificateRole) -> IdentityFiles {
        self.authority.issue(&request(name, role), &self.out()).unwrap()
    }

    fn identity(&self, name: &str, role: CertificateRole) -> Identity {
        Identity::load(&self.issue(name, role)).unwrap()
    }

    /// A party whose certificate begins `days` from now and lasts one day, loaded as of its own days.
    fn shifted(&self, name: &str, days: i64) -> (IdentityFiles, Identity) {
        let from_ms = now_ms().checked_add_signed(days * DAY_MS as i64).unwrap();
        let files = self.authority.issue_from(&request(name, CertificateRole::Node), from_ms, &self.out()).unwrap();
        let identity = Identity::load_at(&files, from_ms + 1000).unwrap();
        (files, identity)
    }
}

fn now_ms() -> u64 {
    Clock::system().now_ms()
}

fn request(name: &str, role: CertificateRole) -> IssueRequest {
    let hosts = vec!["127.0.0.1".to_owned(), "::1".to_owned(), "pod-0.example".to_owned()];
    IssueRequest { name: name.to_owned(), hosts, role, valid_days: 1 }
}

/// What each side of a handshake says in the end: whom it sees, or why it refuses.
type Verdicts = (Result<PeerIdentity, Refusal>, Result<PeerIdentity, Refusal>);

/// Shakes hands in memory: the server's verdict, then the client's.
fn shake(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> Verdicts {
    let mut server = ServerConnection::new(server).unwrap();
    let mut client = ClientConnection::new(client, ServerName::try_from("10.1.2.3").unwrap()).unwrap();
    let (mut server_error, mut client_error) = (None, None);
    for _ in 0..20 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() && server_error.is_none() {
            server.read_tls(&mut rest).unwrap();
            server_error = server.process_new_packets().err();
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() && client_error.is_none() {
            client.read_tls(&mut rest).unwrap();
            client_error = client.process_new_packets().err();
        }
    }
    let server_verdict = match server_error {
        Some(error) => Err(Refusal::of_tls(&error)),
        None => Ok(peer_of(server.peer_certificates().unwrap_or_default()).unwrap_or_else(|_| nobody())),
    };
    let client_verdict = match client_error {
        Some(error) => Err(Refusal::of_tls(&error)),
        None => Ok(peer_of(client.peer_certificates().unwrap_or_default()).unwrap_or_else(|_| nobody())),
    };
    (server_verdict, client_verdict)
}

/// What is seen where a handshake hung without an error.
fn nobody() -> PeerIdentity {
    PeerIdentity { name: "nobody".to_owned(), role: CertificateRole::Viewer }
}

fn is(name: &str, role: CertificateRole) -> Result<PeerIdentity, Refusal> {
    Ok(PeerIdentity { name: name.to_owned(), role })
}

fn by_peer(alert: &str) -> Result<PeerIdentity, Refusal> {
    Err(Refusal::ByPeer { alert: alert.to_owned() })
}

#[test]
fn parties_of_one_authority_learn_each_others_names_and_roles() {
    let world = World::new();
    let server = world.identity("engine-0", CertificateRole::Node);
    for role in CertificateRole::ALL {
        let name = format!("party-{role}");
        let client = world.identity(&name, role);
        let verdicts = shake(server.server_config(ALPN), client.client_config(ALPN));
        assert_eq!(verdicts, (is(&name, role), is("engine-0", CertificateRole::Node)));
        assert_eq!(client.party(), &PeerIdentity { name, role });
        let left_ms = client.expires_at_ms() - now_ms();
        assert!((DAY_MS - 60_000..=DAY_MS).contains(&left_ms), "{left_ms}");
    }
}

#[test]
fn a_dialler_that_knows_the_name_accepts_nobody_else() {
    let world = World::new();
    let server = world.identity("engine-0", CertificateRole::Node);
    let client = world.identity("trainer-0", CertificateRole::Node);
    let call = |name: &str| shake(server.server_config(ALPN), client.client_config_for(name, ALPN)).1;
    assert_eq!(call("engine-0"), is("engine-0", CertificateRole::Node));
    let wrong = Refusal::WrongName { expected: "engine-1".to_owned(), found: "engine-0".to_owned() };
    assert_eq!(call("engine-1"), Err(wrong));
}

#[test]
fn a_stranger_is_refused_by_both_sides() {
    let (ours, theirs) = (World::new(), World::new());
    let node = ours.identity("engine-0", CertificateRole::Node);
    let stranger = theirs.identity("engine-0", CertificateRole::Node);
    let (_, dialler) = shake(stranger.server_config(ALPN), node.client_config(ALPN));
    assert_eq!(dialler, Err(Refusal::UnknownAuthority));
    // a stranger who does not look at whom it dials is refused all the same, by the server
    let mut careless = ClientConfig::clone(&node.client_config(ALPN));
    careless.client_auth_cert_resolver = stranger.client_config(ALPN).client_auth_cert_resolver.clone();
    let verdicts = shake(node.server_config(ALPN), Arc::new(careless));
    assert_eq!(verdicts, (Err(Refusal::UnknownAuthority), by_peer("UnknownCA")));
}

#[test]
fn dates_are_checked_by_both_sides() {
    let world = World::new();
    let node = world.identity("engine-0", CertificateRole::Node);
    let (_, expired) = world.shifted("late", -10);
    let (_, early) = world.shifted("early", 10);
    for (shifted, refusal) in [(expired, Refusal::Expired), (early, Refusal::NotYetValid)] {
        let dialled = shake(shifted.server_config(ALPN), node.client_config(ALPN));
        assert_eq!(dialled, (by_peer("CertificateExpired"), Err(refusal.clone())));
        let dials = shake(node.server_config(ALPN), shifted.client_config(ALPN));
        assert_eq!(dials, (Err(refusal), by_peer("CertificateExpired")));
    }
}

#[test]
fn only_a_node_serves() {
    let world = World::new();
    let node = world.identity("engine-0", CertificateRole::Node);
    for role in [CertificateRole::Viewer, CertificateRole::Operator] {
        let name = format!("person-{role}");
        let person = world.identity(&name, role);
        let (_, dialler) = shake(person.server_config(ALPN), node.client_config(ALPN));
        assert_eq!(dialler, Err(Refusal::WrongRole { name, role }));
    }
}

#[test]
fn a_client_without_a_certificate_or_with_old_tls_is_refused() {
    let world = World::new();
    let node = world.identity("engine-0", CertificateRole::Node);
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    let ca = std::fs::read(world.authority.certificate_path()).unwrap();
    roots.add(rustls::pki_types::pem::PemObject::from_pem_slice(&ca).unwrap()).unwrap();
    let bare = ClientConfig::builder_with_provider(ring)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut server = ServerConnection::new(node.server_config(&[])).unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut client = ClientConnection::new(Arc::new(bare), name).unwrap();
    let mut refusal = None;
    for _ in 0..20 {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        if let Err(error) = server.process_new_packets() {
            refusal = Some(Refusal::of_tls(&error));
            break;
        }
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets().unwrap(); // the host is named in the certificate: other tools accept it too
    }
    assert_eq!(refusal, Some(Refusal::NoCertificate));

    let (server, client) = shake(node.server_config(ALPN), node.client_config(&[b"other/1"]));
    assert!(matches!(server, Err(Refusal::Protocol { .. })), "{server:?}");
    assert!(matches!(client, Err(Refusal::Protocol { .. })), "{client:?}");
    let mut server = ServerConnection::new(node.server_config(ALPN)).unwrap();
    server.read_tls(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).unwrap();
    let garbage = server.process_new_packets().map_err(|error| Refusal::of_tls(&error));
    assert!(matches!(garbage, Err(Refusal::Protocol { .. })), "{garbage:?}");
}

#[test]
fn own_files_are_checked_when_loaded() {
    let (world, other) = (World::new(), World::new());
    let good = world.issue("engine-0", CertificateRole::Node);
    let second = world.issue("engine-1", CertificateRole::Node);
    let foreign = other.issue("engine-0", CertificateRole::Node);
    let (expired, _) = world.shifted("late", -10);
    let (early, _) = world.shifted("early", 10);
    let garbage = world.dir.path().join("garbage");
    std::fs::write(&garbage, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let empty = world.dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let ca_as_certificate = IdentityFiles { certificate: good.ca.clone(), ..good.clone() };
    let cases: Vec<(&str, IdentityFiles, &Path)> = vec![
        ("GR1001", IdentityFiles { key: "missing.key".into(), ..good.clone() }, Path::new("missing.key")),
        ("GR1002", IdentityFiles { certificate: garbage.clone(), ..good.clone() }, &garbage),
        ("GR1002", IdentityFiles { ca: empty.clone(), ..good.clone() }, &empty),
        ("GR1002", IdentityFiles { key: good.certificate.clone(), ..good.clone() }, &good.certificate),
        ("GR1005", expired.clone(), &expired.certificate),
        ("GR1006", early.clone(), &early.certificate),
        ("GR1007", IdentityFiles { key: second.key.clone(), ..good.clone() }, &second.key),
        ("GR1008", IdentityFiles { ca: foreign.ca.clone(), ..good.clone() }, &good.certificate),
        ("GR1008", ca_as_certificate, &good.ca),
    ];
    for (code, files, named) in cases {
        let error = Identity::load(&files).expect_err(code);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(&named.display().to_string()), "{error} does not name {}", named.display());
    }
    let ago = Identity::load(&expired).map_err(|error| error.to_string()).unwrap_err();
    assert!(ago.contains("expired 777") && ago.contains("greenroom ca issue"), "nine days ago: {ago}");
}

#[test]
fn nothing_is_overwritten_and_keys_are_their_owners_alone() {
    let world = World::new();
    let ca = world.dir.path().join("ca");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&ca.join("ca.key")), 0o600);
    let before = std::fs::read(ca.join("ca.key")).unwrap();
    let again = Authority::create(&ca).map(|_| ()).unwrap_err();
    assert_eq!(again, IdentityError::Exists { path: ca.join("ca.pem") });
    assert_eq!(std::fs::read(ca.join("ca.key")).unwrap(), before);

    let files = world.issue("engine-0", CertificateRole::Node);
    assert_eq!(mode(&files.key), 0o600);
    let again = world.authority.issue(&request("engine-0", CertificateRole::Node), &world.out());
    assert_eq!(again, Err(IdentityError::Exists { path: files.certificate.clone() }));
    Identity::load(&files).unwrap();
    // a second authority does not mix its certificates with the first one's
    let mixed = World::new().authority.issue(&request("engine-1", CertificateRole::Node), &world.out());
    assert_eq!(mixed, Err(IdentityError::Exists { path: files.ca.clone() }));

    let reopened = Authority::open(&ca).unwrap();
    let from_reopened = reopened.issue(&request("engine-1", CertificateRole::Node), &world.out()).unwrap();
    Identity::load(&from_reopened).unwrap();
    std::fs::write(ca.join("ca.key"), std::fs::read(&files.key).unwrap()).unwrap();
    assert_eq!(Authority::open(&ca).map(|_| ()).map_err(|error| error.code()), Err("GR1007"));
    let text = format!("{:?} {:?}", world.authority, Identity::load(&files).unwrap());
    assert!(!text.contains("PRIVATE") && !text.contains("key:"), "{text}");
}

#[test]
fn impossible_requests_are_refused_by_field() {
    let world = World::new();
    let good = request("engine-0", CertificateRole::Node);
    let cases = [
        ("name", IssueRequest { name: "Engine 0".to_owned(), ..good.clone() }),
        ("name", IssueRequest { name: "../up".to_owned(), ..good.clone() }),
        ("name", IssueRequest { name: "ca".to_owned(), ..good.clone() }),
        ("valid_days", IssueRequest { valid_days: 0, ..good.clone() }),
        ("valid_days", IssueRequest { valid_days: 3651, ..good.clone() }),
        ("host", IssueRequest { hosts: vec!["a b".to_owned()], ..good.clone() }),
        ("host", IssueRequest { hosts: vec!["engine-1.greenroom.internal".to_owned()], ..good.clone() }),
    ];
    for (field, request) in cases {
        match world.authority.issue(&request, &world.out()) {
            Err(IdentityError::Request { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{request:?}: {other:?}"),
        }
    }
    assert!(!world.out().exists(), "a refused request leaves nothing behind");
}
