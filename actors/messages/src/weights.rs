//! The protocol of WeightPublisher (one per run) and WeightReceiver (one per engine host).

use greenroom_core::Reply;
use serde::{Deserialize, Serialize};

use crate::{RunId, WeightVersion};

/// Messages to the WeightPublisher. From the Conductor.
#[derive(Debug, Serialize, Deserialize)]
pub enum WeightPublisherMessage {
    /// Make this version available to every receiver: write it, full or as a delta against the last acknowledged
    /// version, commit marker last. Repeatable: a committed version is not written again.
    Publish(PublishWeights, Reply<Result<PublishReport, WeightFailure>>),
    /// A receiver holds this version, verified: it may serve as a base of deltas. Repeatable.
    Acknowledge {
        /// Who.
        receiver: String,
        /// What it holds.
        version: WeightVersion,
        /// The checksum of all its tensors, as the receiver computed it.
        root_hash: String,
    },
    /// How the chain stands.
    Status(Reply<PublisherStatus>),
}

greenroom_core::local_message!(WeightPublisherMessage);

/// Messages to a WeightReceiver. From the Conductor.
#[derive(Debug, Serialize, Deserialize)]
pub enum WeightReceiverMessage {
    /// Bring the local checkpoint to this version: verify what is there, fetch what is missing, apply, verify, commit.
    /// Done before any engine pauses. Repeatable: an applied version is verified and answered.
    Apply(WeightVersion, Reply<Result<AppliedWeights, WeightFailure>>),
    /// What it holds.
    Status(Reply<ReceiverStatus>),
}

greenroom_core::local_message!(WeightReceiverMessage);

/// Messages to the PublishedWeights beside the publisher. From receivers on other nodes.
#[derive(Debug, Serialize, Deserialize)]
pub enum PublishedWeightsMessage {
    /// The committed versions of a run. Repeatable.
    Links(RunId, Reply<Result<Vec<PublishedLink>, WeightFailure>>),
    /// The manifest of a committed version, byte for byte. Repeatable.
    Manifest(WeightVersion, Reply<Result<ManifestBytes, WeightFailure>>),
    /// From where the payload of a committed version can be fetched. Repeatable: who asks again keeps its place among those
    /// who pass it on.
    Payload(PayloadWanted, Reply<Result<BulkHandle, WeightFailure>>),
}

greenroom_core::local_message!(PublishedWeightsMessage);

/// A committed version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedLink {
    /// The version.
    pub version: WeightVersion,
    /// What it is a delta against; `None` for a full one.
    pub base: Option<WeightVersion>,
    /// Bytes of its payload.
    pub bytes: u64,
}

/// A manifest as it lies with the publisher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestBytes(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// A payload is about to be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadWanted {
    /// Of which version.
    pub version: WeightVersion,
    /// Where the asker passes on what it fetches, while it fetches it; `None` if it does not.
    pub relay: Option<BulkRelay>,
}

/// A node that passes on what it has fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkRelay {
    /// Where.
    pub holder: BulkHolder,
    /// All objects that it has, whole or in part, besides the one it asks for: of others it is a holder no more.
    pub holds: Vec<String>,
}

/// Bytes that travel by the data plane, never through a mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkHandle {
    /// The object's name at the data plane: the checksum of its content.
    pub object: String,
    /// Its size.
    pub bytes: u64,
    /// Who has it; the first is asked first.
    pub holders: Vec<BulkHolder>,
}

/// A node that serves bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkHolder {
    /// Its name.
    pub node: String,
    /// `HOST:PORT` of its data plane.
    pub address: String,
}

impl std::fmt::Display for BulkHolder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} at {}", self.node, self.address)
    }
}

/// A version to be published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishWeights {
    /// The version.
    pub version: WeightVersion,
    /// A complete Hugging Face directory with its weights.
    pub source_dir: String,
}

/// How weights travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightMode {
    /// All of them, each time.
    Full,
    /// What changed since the last acknowledged version; lossless.
    #[default]
    Delta,
}

/// What publishing did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishReport {
    /// The version.
    pub version: WeightVersion,
    /// How it was written: the first version and each anchor are full whatever the configured mode.
    pub mode: WeightMode,
    /// Bytes written.
    pub bytes: u64,
    /// Bytes of the weights themselves.
    pub bytes_full: u64,
    /// Fraction of elements that changed since the base; 1 for a full version.
    pub changed: f32,
    /// The checksum of all tensors.
    pub root_hash: String,
    /// Wall time, milliseconds.
    pub elapsed_ms: u64,
}

/// What applying did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppliedWeights {
    /// The version that the local checkpoint now is.
    pub version: WeightVersion,
    /// The local checkpoint: a Hugging Face directory.
    pub model_dir: String,
    /// The checksum of all its tensors.
    pub root_hash: String,
    /// How many links of the chain were applied; 0 when it was there already.
    pub links: u32,
    /// Bytes fetched.
    pub bytes: u64,
    /// Wall time, milliseconds.
    pub elapsed_ms: u64,
}

/// Weights could not be published or applied. The version before stays usable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct WeightFailure {
    /// The stable code, `GR08xx`.
    pub code: String,
    /// What happened, in words.
    pub message: String,
}

/// How the chain stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublisherStatus {
    /// The newest committed version.
    pub newest: Option<WeightVersion>,
    /// The last version that each receiver acknowledged.
    pub acknowledged: Vec<(String, WeightVersion)>,
}

/// What a receiver holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiverStatus {
    /// Its name.
    pub receiver: String,
    /// The verified version.
    pub version: Option<WeightVersion>,
}
