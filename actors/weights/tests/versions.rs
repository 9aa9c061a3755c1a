//! Promises of publishing and receiving: lossless whichever way, whole or absent, damage is found.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_core::{Address, Deadline, Faults, Random, Seam, Seed, ask};
use greenroom_messages::weights::{
    AppliedWeights, PublishReport, PublishWeights, WeightFailure, WeightMode, WeightPublisherMessage,
    WeightReceiverMessage,
};
use greenroom_messages::{RunId, WeightVersion};
use greenroom_weights::{
    DirectoryCarrier, PublisherArguments, ReceiverArguments, VersionSource, WeightPublisher, WeightReceiver,
    WeightsConfig,
};
use ractor::Actor;
use rand::Rng;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const SEED: u64 = 20;

struct Bench {
    dir: tempfile::TempDir,
    carrier: Arc<DirectoryCarrier>,
    publisher: Address<WeightPublisherMessage>,
    receiver: Address<WeightReceiverMessage>,
    weights: Vec<Vec<u8>>,
    random: Random,
}

fn version(number: u64) -> WeightVersion {
    WeightVersion { run: RunId::new("run"), number }
}

impl Bench {
    async fn new(config: WeightsConfig, faults: &str) -> Self {
        println!("seed {SEED}");
        let dir = tempfile::tempdir().unwrap();
        let carrier = Arc::new(DirectoryCarrier::new(&dir.path().join("store")).unwrap());
        let seam = Seam::system(SEED, Faults::parse(faults).unwrap());
        let publisher = PublisherArguments {
            config,
            carrier: carrier.clone(),
            bases_dir: dir.path().join("bases"),
            receivers: Some(vec!["host-0".into()]),
            source_root: std::path::PathBuf::new(),
            seam: seam.clone(),
        };
        let receiver = ReceiverArguments {
            receiver: "host-0".into(),
            carrier: carrier.clone(),
            dir: dir.path().join("local"),
            seam,
        };
        let (publisher, _) = Actor::spawn(None, WeightPublisher, publisher).await.unwrap();
        let (receiver, _) = Actor::spawn(None, WeightReceiver, receiver).await.unwrap();
        let mut random = Seed::new(SEED).random();
        let weights = (0..3).map(|_| (0..64 * 64 * 2).map(|_| random.random()).collect()).collect();
        let (publisher, receiver) = (Address::of(&publisher), Address::of(&receiver));
        Self { dir, carrier, publisher, receiver, weights, random }
    }

    /// Changes one weight in a hundred, as a step at a small learning rate does.
    fn train(&mut self) {
        for tensor in &mut self.weights {
            for _ in 0..40 {
                let place = self.random.random_range(0..tensor.len());
                tensor[place] ^= self.random.random_range(1..=255_u8);
            }
        }
    }

    fn export(&self, number: u64) -> PathBuf {
        let dir = self.dir.path().join(format!("export-{number}"));
        fs::create_dir_all(&dir).unwrap();
        for (shard, weights) in self.weights.iter().enumerate() {
            let view = TensorView::new(Dtype::BF16, vec![64, 64], weights).unwrap();
            let tensors = BTreeMap::from([(format!("layer.{shard}.weight"), view)]);
            safetensors::serialize_to_file(tensors, None, &dir.join(format!("model-{shard}.safetensors"))).unwrap();
        }
        fs::write(dir.join("config.json"), format!("{{\"export\": {number}}}")).unwrap();
        dir
    }

    async fn publish(&self, number: u64) -> Result<PublishReport, WeightFailure> {
        let source_dir = self.export(number).to_string_lossy().into_owned();
        let request = PublishWeights { version: version(number), source_dir };
        let deadline = Deadline::after_ms(20_000);
        ask(&self.publisher, deadline, |reply| WeightPublisherMessage::Publish(request, reply)).await.unwrap()
    }

    async fn apply(&self, number: u64) -> Result<AppliedWeights, WeightFailure> {
        let deadline = Deadline::after_ms(20_000);
        let apply = |reply| WeightReceiverMessage::Apply(version(number), reply);
        let applied = ask(&self.receiver, deadline, apply).await.unwrap()?;
        self.publisher
            .cast(WeightPublisherMessage::Acknowledge {
                receiver: "host-0".into(),
                version: applied.version.clone(),
                root_hash: applied.root_hash.clone(),
            })
            .unwrap();
        assert_eq!(files(Path::new(&applied.model_dir)), files(&self.export(number)), "byte for byte");
        Ok(applied)
    }
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

fn delta() -> WeightsConfig {
    WeightsConfig { keep_versions: 10, ..WeightsConfig::default() }
}

#[tokio::test]
async fn full_and_delta_give_byte_identical_checkpoints() {
    for mode in [WeightMode::Full, WeightMode::Delta] {
        let mut bench = Bench::new(WeightsConfig { mode, ..delta() }, "").await;
        for number in 0..5 {
            bench.train();
            let report = bench.publish(number).await.unwrap();
            let expected = if number == 0 { WeightMode::Full } else { mode };
            assert_eq!(report.mode, expected, "version {number}");
            if expected == WeightMode::Delta {
                assert!(report.changed < 0.02 && report.bytes * 10 < report.bytes_full, "{report:?}");
            }
            bench.apply(number).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_receiver_that_missed_versions_is_given_the_chain() {
    let mut bench = Bench::new(delta(), "").await;
    bench.publish(0).await.unwrap();
    bench.apply(0).await.unwrap();
    for number in 1..4 {
        bench.train();
        let report = bench.publish(number).await.unwrap();
        assert_eq!(report.mode, WeightMode::Delta, "against version 0, the last acknowledged");
    }
    assert_eq!(bench.apply(3).await.unwrap().links, 1);
    assert_eq!(bench.apply(3).await.unwrap().links, 0, "applying again changes nothing");
}

#[tokio::test]
async fn a_failure_before_the_commit_leaves_the_version_before_usable() {
    let mut bench =
        Bench::new(delta(), "weights.publish.before_commit=fail@2,weights.apply.before_commit=fail@2").await;
    bench.publish(0).await.unwrap();
    bench.apply(0).await.unwrap();
    bench.train();
    assert_eq!(bench.publish(1).await.unwrap_err().code, "GR0806");
    assert_eq!(bench.apply(1).await.unwrap_err().code, "GR0804", "not committed, so not there");
    bench.publish(1).await.unwrap();
    let applied = bench.apply(1).await.unwrap();
    assert_eq!(applied.links, 2, "the delta failed before its commit, so the way from the full version was taken");
}

#[tokio::test]
async fn damage_in_the_store_or_in_the_local_checkpoint_is_found_before_it_is_used() {
    let mut bench = Bench::new(delta(), "").await;
    bench.publish(0).await.unwrap();
    bench.apply(0).await.unwrap();
    bench.train();
    bench.publish(1).await.unwrap();
    let payload = bench.dir.path().join("store/v000001/payload");
    let sound = fs::read(&payload).unwrap();
    for (name, damaged) in [
        ("cut", sound[..sound.len() - 1].to_vec()),
        ("flipped", {
            let mut flipped = sound.clone();
            flipped[sound.len() / 2] ^= 1;
            flipped
        }),
    ] {
        fs::write(&payload, damaged).unwrap();
        let failure = bench.apply(1).await.unwrap_err();
        assert!(["GR0803", "GR0805"].contains(&failure.code.as_str()), "{name}: {failure}");
    }
    fs::write(&payload, sound).unwrap();
    // a bit of the local base rots: the delta must not be applied to it
    let local = bench.dir.path().join("local/v000000/model-0.safetensors");
    let mut rotten = fs::read(&local).unwrap();
    let last = rotten.len() - 1;
    rotten[last] ^= 1;
    fs::write(&local, rotten).unwrap();
    bench.apply(1).await.unwrap();
    assert!(bench.carrier.links(&RunId::new("run")).unwrap().len() >= 2);
}

#[tokio::test]
async fn an_unusable_source_is_refused_by_name() {
    let bench = Bench::new(delta(), "").await;
    for (name, spoil) in [
        ("no weights", (|dir| fs::remove_file(dir.join("model-0.safetensors")).unwrap()) as fn(&Path)),
        ("a cut file", |dir| {
            let path = dir.join("model-0.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 100]).unwrap();
        }),
        ("an index that lies", |dir| {
            let index = r#"{"weight_map": {"layer.9.weight": "model-0.safetensors"}}"#;
            fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
        }),
    ] {
        let source = bench.export(7);
        if name == "no weights" {
            fs::remove_file(source.join("model-1.safetensors")).unwrap();
            fs::remove_file(source.join("model-2.safetensors")).unwrap();
        }
        spoil(&source);
        let request = PublishWeights { version: version(7), source_dir: source.to_string_lossy().into_owned() };
        let publish = |reply| WeightPublisherMessage::Publish(request, reply);
        let failure = ask(&bench.publisher, Deadline::after_ms(20_000), publish).await.unwrap().unwrap_err();
        assert_eq!(failure.code, "GR0802", "{name}: {failure}");
        assert!(failure.message.contains("export-7"), "{name}: {failure}");
        fs::remove_dir_all(source).unwrap();
    }
}
