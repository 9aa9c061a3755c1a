//! WeightPublisher: makes versions available.
//!
//! It keeps the source of every version that may still serve as a base (hard links where the file system allows, else
//! copies), publishes a delta against the newest version that every known receiver has acknowledged, and a full version
//! where there is none. It remembers nothing that is not on disk but the acknowledgements; without them it publishes full.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_core::{Fault, Seam, in_place};
use greenroom_messages::WeightVersion;
use greenroom_messages::weights::{
    PublishReport, PublishWeights, PublisherStatus, WeightFailure, WeightMode, WeightPublisherMessage,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::files::{CheckpointFiles, rename_synced};
use crate::version::{encode_version, verify_checkpoint};
use crate::work::{do_blocking, own_directory};
use crate::{Carrier, WeightsConfig, WeightsError};

/// What a WeightPublisher starts with.
#[derive(Clone)]
pub struct PublisherArguments {
    /// Its settings.
    pub config: WeightsConfig,
    /// Where versions go.
    pub carrier: Arc<dyn Carrier>,
    /// Its own directory, for the bases of deltas.
    pub bases_dir: PathBuf,
    /// The receivers that must have acknowledged a version before it serves as a base. `None` where they come and go: then
    /// all that have acknowledged one of the last `keep_versions` versions; one that lags behind further gets the chain.
    pub receivers: Option<Vec<String>>,
    /// Where relative source directories lie.
    pub source_root: PathBuf,
    /// Time and faults.
    pub seam: Seam,
}

impl std::fmt::Debug for PublisherArguments {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PublisherArguments").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The actor.
#[derive(Debug, Default)]
pub struct WeightPublisher;

/// The state of a running WeightPublisher.
#[derive(Debug)]
pub struct WeightPublisherState {
    arguments: PublisherArguments,
    acknowledged: BTreeMap<String, WeightVersion>,
    newest: Option<WeightVersion>,
}

impl WeightPublisherState {
    /// The newest version that every receiver holds.
    fn base(&self, version: &WeightVersion) -> Option<WeightVersion> {
        let oldest = version.number.saturating_sub(self.arguments.config.keep_versions);
        let held: Vec<&WeightVersion> = match &self.arguments.receivers {
            Some(receivers) => {
                receivers.iter().map(|receiver| self.acknowledged.get(receiver)).collect::<Option<_>>()?
            }
            None => self.acknowledged.values().filter(|held| held.number >= oldest).collect(),
        };
        let base = held.into_iter().min()?;
        (base.run == version.run && base.number < version.number).then(|| base.clone())
    }

    async fn publish(&mut self, request: PublishWeights) -> Result<PublishReport, WeightFailure> {
        let arguments = self.arguments.clone();
        if self.newest.as_ref().is_some_and(|newest| *newest >= request.version) {
            // what a receiver holds of this version or a later one may be others than those that are published now
            self.acknowledged.retain(|_, held| *held < request.version);
        }
        let base = self.base(&request.version);
        let version = request.version.clone();
        let work = move || publish(&arguments, &request, base);
        let (report, elapsed_ms) = do_blocking(&self.arguments.seam, "publishing", work).await?;
        self.newest = Some(version);
        Ok(PublishReport { elapsed_ms, ..report })
    }

    fn acknowledge(&mut self, receiver: String, version: WeightVersion, root_hash: &str) {
        match in_place(|| self.arguments.carrier.manifest(&version)) {
            Ok(manifest) if manifest.root_hash == root_hash => {
                self.acknowledged.insert(receiver, version);
            }
            Ok(_) => tracing::error!(receiver, %version, "a receiver acknowledged weights with another checksum"),
            Err(error) => tracing::warn!(receiver, %version, %error, "a receiver acknowledged an unknown version"),
        }
    }
}

/// Publishes a version; blocking.
fn publish(
    arguments: &PublisherArguments,
    request: &PublishWeights,
    base: Option<WeightVersion>,
) -> Result<PublishReport, WeightsError> {
    let PublisherArguments { config, carrier, bases_dir, seam, .. } = arguments;
    let version = &request.version;
    let source = CheckpointFiles::open(&arguments.source_root.join(&request.source_dir))?;
    if let Ok(manifest) = carrier.manifest(version) {
        if verify_checkpoint(&manifest, &source).is_ok() {
            let tensors = manifest.files.iter().flat_map(|file| &file.tensors);
            return Ok(report(&manifest, tensors.map(|tensor| tensor.bytes as u64).sum(), 1.0));
        }
        withdraw(arguments, version)?;
    }
    let anchor = config.anchor_every > 0 && version.number.is_multiple_of(config.anchor_every);
    let wanted_base = base.filter(|_| config.mode == WeightMode::Delta && !anchor);
    // a base that cannot be read any more costs a full version, nothing else
    let base = wanted_base.and_then(|base| Some((CheckpointFiles::open(&base_place(bases_dir, &base)).ok()?, base)));
    let against = base.as_ref().map(|(files, version)| (version, files));
    let encoded = encode_version(&source, against, version, config.compression_level)?;
    keep_base(&source, &base_place(bases_dir, version))?;
    if seam.faults.hit("weights.publish.before_commit") == Some(Fault::Fail) {
        return Err(WeightsError::Injected { point: "weights.publish.before_commit" });
    }
    carrier.commit(&encoded.manifest, &encoded.payload)?;
    seam.faults.hit("weights.publish.after_commit");
    sweep(arguments, version)?;
    Ok(report(&encoded.manifest, encoded.bytes_full, encoded.changed))
}

/// Takes back a version that was made anew and came out otherwise, as when a run had to go back to an older checkpoint, and
/// those that follow it.
fn withdraw(arguments: &PublisherArguments, version: &WeightVersion) -> Result<(), WeightsError> {
    tracing::warn!(%version, "these weights were published before and are others now: they are published anew");
    let published = arguments.carrier.links(&version.run)?;
    // the newest first: a crash half-way leaves no version whose base is another one
    published.keys().rev().take_while(|later| *later >= version).try_for_each(|later| arguments.carrier.remove(later))
}

fn report(manifest: &crate::Manifest, bytes_full: u64, changed: f32) -> PublishReport {
    PublishReport {
        version: manifest.version.clone(),
        mode: manifest.mode,
        bytes: manifest.payload_bytes,
        bytes_full,
        changed,
        root_hash: manifest.root_hash.clone(),
        elapsed_ms: 0,
    }
}

fn base_place(bases_dir: &Path, version: &WeightVersion) -> PathBuf {
    bases_dir.join(format!("{:06}", version.number))
}

/// Keeps a checkpoint's files as a later base.
fn keep_base(source: &CheckpointFiles, place: &Path) -> Result<(), WeightsError> {
    let beside = place.with_extension("part");
    let keep = || {
        if beside.exists() {
            fs::remove_dir_all(&beside)?;
        }
        fs::create_dir_all(&beside)?;
        for file in &source.tensor_files {
            let (from, to) = (source.dir.join(&file.name), beside.join(&file.name));
            fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop))?;
        }
        Ok(())
    };
    keep().map_err(|error| WeightsError::file(&beside, &error))?;
    rename_synced(&beside, place)
}

/// Forgets versions and bases that nobody needs any more: those before the `keep_versions` newest and before the newest
/// full version.
fn sweep(arguments: &PublisherArguments, version: &WeightVersion) -> Result<(), WeightsError> {
    let PublisherArguments { config, carrier, bases_dir, .. } = arguments;
    let links = carrier.links(&version.run)?;
    let newest_full = links.iter().filter(|(_, link)| link.base.is_none()).map(|(version, _)| version.number).max();
    let oldest_kept = version.number.saturating_sub(config.keep_versions);
    let forget_before = newest_full.unwrap_or(0).min(oldest_kept);
    for old in links.keys().filter(|old| old.number < forget_before) {
        carrier.remove(old)?;
    }
    for entry in fs::read_dir(bases_dir).map_err(|error| WeightsError::file(bases_dir, &error))?.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
        if number.is_some_and(|number| number < oldest_kept) {
            fs::remove_dir_all(entry.path()).map_err(|error| WeightsError::file(&entry.path(), &error))?;
        }
    }
    Ok(())
}

impl Actor for WeightPublisher {
    type Msg = WeightPublisherMessage;
    type State = WeightPublisherState;
    type Arguments = PublisherArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        own_directory(&arguments.bases_dir)?;
        Ok(WeightPublisherState { arguments, acknowledged: BTreeMap::new(), newest: None })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            WeightPublisherMessage::Publish(request, reply) => {
                reply.send(state.publish(request).await);
            }
            WeightPublisherMessage::Acknowledge { receiver, version, root_hash } => {
                state.acknowledge(receiver, version, &root_hash);
            }
            WeightPublisherMessage::Status(reply) => {
                let acknowledged = state.acknowledged.iter().map(|(name, version)| (name.clone(), version.clone()));
                reply.send(PublisherStatus { newest: state.newest.clone(), acknowledged: acknowledged.collect() });
            }
        }
        Ok(())
    }
}
