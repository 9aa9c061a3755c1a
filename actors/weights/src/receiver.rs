//! WeightReceiver: holds a verified checkpoint of the newest version, next to an engine.
//!
//! A version is built in a directory beside, checked tensor by tensor, and renamed into place; the one before it stays
//! until the next, since an engine may still be reading it. What is on disk after a crash is verified before it is
//! trusted; a damaged checkpoint is built again from a full version.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_core::{Fault, Seam};
use greenroom_messages::WeightVersion;
use greenroom_messages::weights::{AppliedWeights, ReceiverStatus, WeightFailure, WeightReceiverMessage};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::files::{CheckpointFiles, rename_synced};
use crate::version::{build_checkpoint, verify_checkpoint};
use crate::work::{do_blocking, own_directory};
use crate::{VersionSource, WeightsError, plan};

/// What a WeightReceiver starts with.
#[derive(Clone)]
pub struct ReceiverArguments {
    /// Its name.
    pub receiver: String,
    /// Where versions come from.
    pub carrier: Arc<dyn VersionSource>,
    /// Its own directory.
    pub dir: PathBuf,
    /// Time and faults.
    pub seam: Seam,
}

impl std::fmt::Debug for ReceiverArguments {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ReceiverArguments").field("receiver", &self.receiver).finish_non_exhaustive()
    }
}

/// The actor.
#[derive(Debug, Default)]
pub struct WeightReceiver;

/// The state of a running WeightReceiver.
#[derive(Debug)]
pub struct WeightReceiverState {
    arguments: ReceiverArguments,
    held: Option<WeightVersion>,
}

impl WeightReceiverState {
    async fn apply(&mut self, version: WeightVersion) -> Result<AppliedWeights, WeightFailure> {
        let (arguments, held, wanted) = (self.arguments.clone(), self.held.clone(), version.clone());
        let work = move || {
            // what is held may have been damaged since: then nothing is held, and a full version is the way
            apply(&arguments, held.as_ref(), &wanted).or_else(|error| match held {
                Some(_) if !matches!(error, WeightsError::Unpublished { .. }) => apply(&arguments, None, &wanted),
                _ => Err(error),
            })
        };
        let (applied, elapsed_ms) = do_blocking(&self.arguments.seam, "applying", work).await?;
        self.held = Some(version);
        Ok(AppliedWeights { elapsed_ms, ..applied })
    }
}

/// Brings the local checkpoint to a version; blocking.
fn apply(
    arguments: &ReceiverArguments,
    held: Option<&WeightVersion>,
    wanted: &WeightVersion,
) -> Result<AppliedWeights, WeightsError> {
    let ReceiverArguments { carrier, dir, seam, .. } = arguments;
    let manifest = carrier.manifest(wanted)?;
    let place = checkpoint_place(dir, wanted);
    let applied = |links: u32, bytes: u64| AppliedWeights {
        version: wanted.clone(),
        model_dir: place.to_string_lossy().into_owned(),
        root_hash: manifest.root_hash.clone(),
        links,
        bytes,
        elapsed_ms: 0,
    };
    if CheckpointFiles::open(&place).is_ok_and(|files| verify_checkpoint(&manifest, &files).is_ok()) {
        return Ok(applied(0, 0));
    }
    let chain = plan(&carrier.links(&wanted.run)?, held, wanted);
    let chain = chain.ok_or_else(|| WeightsError::NoChain { version: wanted.clone() })?;
    let (mut at, mut bytes) = (held.cloned(), 0);
    for version in &chain {
        bytes += apply_one(arguments, at.as_ref(), version)?;
        at = Some(version.clone());
    }
    seam.faults.hit("weights.apply.after");
    sweep(dir, wanted, held)?;
    Ok(applied(chain.len() as u32, bytes))
}

/// Builds one version from the one before it; returns the bytes fetched.
fn apply_one(
    arguments: &ReceiverArguments,
    held: Option<&WeightVersion>,
    version: &WeightVersion,
) -> Result<u64, WeightsError> {
    let ReceiverArguments { carrier, dir, seam, .. } = arguments;
    let manifest = carrier.manifest(version)?;
    let payload = carrier.payload(&manifest)?;
    let base = match &manifest.base {
        None => None,
        Some(base) if Some(base) == held => Some(CheckpointFiles::open(&checkpoint_place(dir, base))?),
        Some(base) => return Err(WeightsError::NoChain { version: base.clone() }),
    };
    let place = checkpoint_place(dir, version);
    let beside = place.with_extension("part");
    let prepare = || {
        if beside.exists() {
            fs::remove_dir_all(&beside)?;
        }
        fs::create_dir_all(&beside)
    };
    prepare().map_err(|error| WeightsError::file(&beside, &error))?;
    build_checkpoint(&manifest, &payload, base.as_ref(), &beside)?;
    if seam.faults.hit("weights.apply.before_commit") == Some(Fault::Fail) {
        return Err(WeightsError::Injected { point: "weights.apply.before_commit" });
    }
    rename_synced(&beside, &place)?;
    Ok(manifest.payload_bytes)
}

fn checkpoint_place(dir: &Path, version: &WeightVersion) -> PathBuf {
    dir.join(format!("v{:06}", version.number))
}

/// Removes every checkpoint but the newest and the one held before it, which an engine may still read.
fn sweep(dir: &Path, newest: &WeightVersion, before: Option<&WeightVersion>) -> Result<(), WeightsError> {
    let kept: Vec<PathBuf> = before.into_iter().chain([newest]).map(|version| checkpoint_place(dir, version)).collect();
    for entry in fs::read_dir(dir).map_err(|error| WeightsError::file(dir, &error))?.flatten() {
        let path = entry.path();
        if path.is_dir() && !kept.contains(&path) {
            fs::remove_dir_all(&path).map_err(|error| WeightsError::file(&path, &error))?;
        }
    }
    Ok(())
}

impl Actor for WeightReceiver {
    type Msg = WeightReceiverMessage;
    type State = WeightReceiverState;
    type Arguments = ReceiverArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        own_directory(&arguments.dir)?;
        Ok(WeightReceiverState { arguments, held: None })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            WeightReceiverMessage::Apply(version, reply) => {
                reply.send(state.apply(version).await);
            }
            WeightReceiverMessage::Status(reply) => {
                let receiver = state.arguments.receiver.clone();
                reply.send(ReceiverStatus { receiver, version: state.held.clone() });
            }
        }
        Ok(())
    }
}
