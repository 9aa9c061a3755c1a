//! One version of the weights for many receivers: they pass it on, and the publisher sends it about once.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use greenroom_core::{Address, Faults, Seam, ask, spawn_named};
use greenroom_dataplane::{DataplaneConfig, Transport};
use greenroom_identity::{Authority, CertificateRole, IssueRequest};
use greenroom_messages::weights::{
    AppliedWeights, PayloadWanted, PublishReport, PublishWeights, PublishedWeightsMessage, WeightPublisherMessage,
    WeightReceiverMessage,
};
use greenroom_messages::{RunId, WeightVersion};
use greenroom_weights::{
    DirectoryCarrier, PublishedWeights, PublishedWeightsArguments, PublisherArguments, ReceiverArguments, RemoteSource,
    WeightPublisher, WeightReceiver, WeightsConfig,
};
use ractor::Actor;
use tokio::runtime::Handle;

use super::*;

const CHUNK_BYTES: u32 = 16 << 10;
const TENSOR_BYTES: usize = 8 << 20;
const WAIT_MS: u64 = 120_000;

/// A publisher's node and an authority for more.
struct World {
    dir: tempfile::TempDir,
    authority: Authority,
    dead: Arc<Mutex<BTreeSet<String>>>,
    seam: Seam,
    settings: NodeDataplane,
    starts: AtomicUsize,
}

struct Publisher {
    plane: Arc<DataPlane>,
    publisher: Address<WeightPublisherMessage>,
    published: Address<PublishedWeightsMessage>,
}

fn version(number: u64) -> WeightVersion {
    WeightVersion { run: RunId::new("mine"), number }
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join("ca")).unwrap();
        let transfer = DataplaneConfig {
            transport: Transport::Tls,
            window_chunks: 4,
            // a busy machine may stand still for a while
            chunk_wait_ms: 10_000,
            slow_kib_per_s: 0,
            ..DataplaneConfig::default()
        };
        let settings = NodeDataplane { transfer, ..NodeDataplane::default() };
        let (dead, starts) = (Arc::default(), AtomicUsize::new(0));
        Self { dir, authority, dead, seam: Seam::system(0, Faults::none()), settings, starts }
    }

    fn path(&self, node: &str, name: &str) -> PathBuf {
        self.dir.path().join(node).join(name)
    }

    fn identity(&self, node: &str) -> Identity {
        let tls = self.path(node, "tls");
        let request =
            IssueRequest { name: node.to_owned(), hosts: Vec::new(), role: CertificateRole::Node, valid_days: 1 };
        // each start gets one of its own
        let issued = self.authority.issue(&request, &tls.join(self.starts.fetch_add(1, Ordering::Relaxed).to_string()));
        Identity::load(&issued.unwrap()).unwrap()
    }

    async fn plane(&self, node: &str) -> DataPlane {
        let identity = self.identity(node);
        let place = Place { settings: &self.settings, cluster_bind: "127.0.0.1:0", cluster_address: "127.0.0.1:4700" };
        let dead = self.dead.clone();
        let is_up: IsUp = Box::new(move |node| !dead.lock().unwrap().contains(node));
        let stored = StoreConfig { chunk_bytes: Some(CHUNK_BYTES), ..StoreConfig::default() };
        DataPlane::start(&identity, place, &self.path(node, "objects"), stored, is_up).await.unwrap()
    }

    async fn publisher(&self) -> Publisher {
        let plane = Arc::new(self.plane("trainer").await);
        let carrier = DirectoryCarrier::new(&self.path("trainer", "published")).unwrap();
        let publisher = PublisherArguments {
            config: WeightsConfig::default(),
            carrier: Arc::new(carrier.clone()),
            bases_dir: self.path("trainer", "bases"),
            receivers: None,
            source_root: PathBuf::new(),
            seam: self.seam.clone(),
        };
        let published = PublishedWeightsArguments { carrier, offer: plane.clone(), seam: self.seam.clone() };
        let (publisher, _) = Actor::spawn(None, WeightPublisher, publisher).await.unwrap();
        let (published, _) = Actor::spawn(None, PublishedWeights, published).await.unwrap();
        Publisher { plane, publisher: Address::of(&publisher), published: Address::of(&published) }
    }

    /// Publishes a checkpoint of one tensor whose bytes follow from the version's number.
    async fn publish(&self, to: &Publisher, number: u64) -> PublishReport {
        let source_dir = self.dir.path().join(format!("export-{number}"));
        std::fs::create_dir_all(&source_dir).unwrap();
        std::fs::write(source_dir.join("model.safetensors"), checkpoint(number)).unwrap();
        let wanted = PublishWeights { version: version(number), source_dir: source_dir.to_str().unwrap().to_owned() };
        let question = |reply| WeightPublisherMessage::Publish(wanted, reply);
        ask(&to.publisher, Deadline::after_ms(WAIT_MS), question).await.unwrap().unwrap()
    }

    async fn receiver(&self, node: &str, from: &Publisher) -> (Arc<DataPlane>, Address<WeightReceiverMessage>) {
        let plane = Arc::new(self.plane(node).await);
        let source = RemoteSource::new(from.published.clone(), plane.clone(), Handle::current());
        let arguments = ReceiverArguments {
            receiver: node.to_owned(),
            carrier: Arc::new(source),
            dir: self.path(node, "received"),
            seam: self.seam.clone(),
        };
        let (receiver, _) = Actor::spawn(None, WeightReceiver, arguments).await.unwrap();
        (plane, Address::of(&receiver))
    }
}

/// A safetensors file with one tensor of bytes that look like chance.
fn checkpoint(number: u64) -> Vec<u8> {
    let header =
        format!("{{\"w\":{{\"dtype\":\"U8\",\"shape\":[{TENSOR_BYTES}],\"data_offsets\":[0,{TENSOR_BYTES}]}}}}");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..TENSOR_BYTES / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.extend(state.to_le_bytes());
    }
    file
}

async fn apply(receiver: &Address<WeightReceiverMessage>, number: u64) -> AppliedWeights {
    let question = |reply| WeightReceiverMessage::Apply(version(number), reply);
    ask(receiver, Deadline::after_ms(WAIT_MS), question).await.unwrap().unwrap()
}

fn assert_holds(applied: &AppliedWeights, number: u64) {
    let held = std::fs::read(Path::new(&applied.model_dir).join("model.safetensors")).unwrap();
    assert!(held == checkpoint(number), "other bytes than were published as version {number}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_receivers_cost_the_publisher_about_one_payload_and_keep_a_bounded_number() {
    let world = World::new();
    let publisher = world.publisher().await;
    let mut receivers = Vec::new();
    for number in 0..4 {
        receivers.push(world.receiver(&format!("engine-{number}"), &publisher).await);
    }
    let mut sent_before = 0;
    for number in 1..=4 {
        let report = world.publish(&publisher, number).await;
        let applying = receivers.iter().map(|(_, receiver)| {
            let receiver = receiver.clone();
            spawn_named("applying", async move { apply(&receiver, number).await })
        });
        let applying: Vec<_> = applying.collect();
        for applying in applying {
            assert_holds(&applying.await.unwrap().unwrap(), number);
        }
        let sent = publisher.plane.server.counts().bytes;
        let payloads = (sent - sent_before) as f64 / report.bytes as f64;
        assert!((1.0..1.3).contains(&payloads), "version {number} left the publisher {payloads} times");
        sent_before = sent;
    }
    for (plane, _) in &receivers {
        assert!(plane.store.take_stock().unwrap().len() <= 2, "old payloads are removed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_relays_die_in_the_middle_all_others_end_with_the_right_bytes() {
    let world = World::new();
    let publisher = world.publisher().await;
    let report = world.publish(&publisher, 1).await;
    // the first in line fetches only as long as it lives
    let first = Arc::new(world.plane("engine-0").await);
    let wanted = PayloadWanted { version: version(1), relay: first.relay() };
    let question = |reply| PublishedWeightsMessage::Payload(wanted, reply);
    let handle = ask(&publisher.published, Deadline::after_ms(WAIT_MS), question).await.unwrap().unwrap();
    assert_eq!(handle.holders, std::slice::from_ref(&publisher.plane.holder));
    let object: ObjectId = handle.object.parse().unwrap();
    let fetching = first.clone();
    let options = FetchOptions {
        on_progress: Some(Arc::new({
            let dying = first.clone();
            move |progress| {
                if progress.held > progress.chunks / 3 {
                    dying.server.stop();
                    dying.store.remove(object).unwrap();
                }
            }
        })),
        ..FetchOptions::until(Deadline::after_ms(WAIT_MS))
    };
    let to_publisher = [PeerAddress::node("trainer", &publisher.plane.holder.address)];
    let doomed = spawn_named("doomed", async move {
        fetching.client.fetch(object, &to_publisher, &fetching.store, &options).await.map(|_| ())
    });

    let mut receivers = Vec::new();
    for number in 1..4 {
        receivers.push(world.receiver(&format!("engine-{number}"), &publisher).await);
    }
    let applying = receivers.iter().map(|(_, receiver)| {
        let receiver = receiver.clone();
        spawn_named("applying", async move { apply(&receiver, 1).await })
    });
    let applying: Vec<_> = applying.collect();
    for applying in applying {
        assert_holds(&applying.await.unwrap().unwrap(), 1);
    }
    assert!(doomed.await.unwrap().unwrap().is_err(), "it died in the middle");
    let payloads = publisher.plane.server.counts().bytes as f64 / report.bytes as f64;
    assert!(payloads < 2.0, "a dead relay cost the publisher {payloads} payloads");

    // who comes later is not sent to the dead
    world.dead.lock().unwrap().insert("engine-0".to_owned());
    let late = world.receiver("engine-4", &publisher).await;
    let wanted = PayloadWanted { version: version(1), relay: late.0.relay() };
    let question = |reply| PublishedWeightsMessage::Payload(wanted, reply);
    let handle = ask(&publisher.published, Deadline::after_ms(WAIT_MS), question).await.unwrap().unwrap();
    let mut names: Vec<&str> = handle.holders.iter().map(|holder| holder.node.as_str()).collect();
    assert_eq!(names.pop(), Some("trainer"), "the publisher is the last resort");
    names.sort_unstable();
    assert_eq!(names, ["engine-1", "engine-2", "engine-3"]);
    assert_holds(&apply(&late.1, 1).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_starts_again_goes_on_with_what_it_has_and_nothing_stays_for_ever() {
    let world = World::new();
    let publisher = world.publisher().await;
    world.publish(&publisher, 1).await;
    let (plane, receiver) = world.receiver("engine-0", &publisher).await;
    apply(&receiver, 1).await;
    let object = plane.store.take_stock().unwrap().remove(0);
    drop((plane, receiver));
    let again = world.plane("engine-0").await;
    assert_eq!(again.relay().unwrap().holds, [object.to_string()], "it is a relay of it still");
    for number in 0..9 {
        again.store.put_file(&number.to_string(), &world.dir.path().join("export-1/model.safetensors")).unwrap();
    }
    drop(again);
    let again = world.plane("engine-0").await;
    assert!(again.store.take_stock().unwrap().len() <= 2);
}

#[test]
fn the_data_plane_stands_beside_the_clusters_socket_unless_it_is_told_otherwise() {
    let place = |bind: &str, host: &str, cluster_bind: &str, listens: &str| {
        let settings =
            NodeDataplane { bind: bind.to_owned(), advertise_host: host.to_owned(), ..NodeDataplane::default() };
        let place = Place { settings: &settings, cluster_bind, cluster_address: "lead.example:4700" };
        (place.bind().unwrap().to_string(), place.advertised(listens.parse().unwrap()))
    };
    let expected = |bind: &str, advertised: &str| (bind.to_owned(), advertised.to_owned());
    assert_eq!(place("", "", "10.0.0.1:4700", "10.0.0.1:9"), expected("10.0.0.1:0", "lead.example:9"));
    assert_eq!(place("0.0.0.0:7", "", "10.0.0.1:4700", "0.0.0.0:7"), expected("0.0.0.0:7", "lead.example:7"));
    assert_eq!(place("[::1]:0", "", "10.0.0.1:4700", "[::1]:8"), expected("[::1]:0", "[::1]:8"));
    assert_eq!(place("[::]:7", "fd00::1", "10.0.0.1:4700", "[::]:7"), expected("[::]:7", "[fd00::1]:7"));
}
