//! How new weights reach the engines' hosts: WeightPublisher, WeightReceiver, and what travels between them.
//!
//! A version is published full, or as a lossless delta against a version that every receiver has acknowledged. It lies
//! with the [`Carrier`] as one payload and one manifest; the manifest is written last and is the commit marker. A receiver
//! builds the version beside the one it has, checks every tensor, and renames it into place.
//!
//! Invariants: a receiver's checkpoint is byte for byte the publisher's source, whichever way it came; nothing half
//! written is ever visible; a delta is only made against what was acknowledged; a damaged byte is found before it is used.

mod carrier;
mod chain;
mod codec;
mod config;
mod error;
mod files;
mod manifest;
mod published;
mod publisher;
mod receiver;
mod relays;
mod remote_source;
mod version;
mod work;

pub use carrier::{Carrier, DirectoryCarrier, VersionSource};
pub use chain::{Link, plan};
pub use codec::{Encoding, decode, encode};
pub use config::WeightsConfig;
pub use error::{ERRORS, WeightsError};
pub use files::{CheckpointFiles, TensorFile, TensorPlace, root_hash};
pub use manifest::{FileEntry, Manifest, OtherEntry, TensorEntry};
pub use published::{BulkOffer, PublishedWeights, PublishedWeightsArguments, PublishedWeightsState};
pub use publisher::{PublisherArguments, WeightPublisher, WeightPublisherState};
pub use receiver::{ReceiverArguments, WeightReceiver, WeightReceiverState};
pub use remote_source::{BulkFetch, BulkFetchError, RemoteSource};
