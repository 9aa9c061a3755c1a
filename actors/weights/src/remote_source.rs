//! Versions of a publisher on another node: manifests by message, payloads by the data plane.
//!
//! Used by a WeightReceiver where there is no shared directory. Whatever arrives is checked as if it came from a disk: the
//! manifest against itself, the payload against the manifest.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use greenroom_core::{Address, Deadline, Reply, ask};
use greenroom_messages::weights::{BulkHandle, PublishedWeightsMessage, WeightFailure};
use greenroom_messages::{RunId, WeightVersion};
use tokio::runtime::Handle;

use crate::carrier::{VersionSource, checked_payload};
use crate::{Link, Manifest, WeightsError};

/// How long the publisher's node may take to answer a question; bytes have their own deadline at the data plane.
const ANSWER_WAIT_MS: u64 = 60_000;

/// Fetches bytes by the data plane.
#[async_trait]
pub trait BulkFetch: Send + Sync {
    /// The bytes of a handle, whole; resumed where a try before broke off.
    async fn fetch(&self, handle: &BulkHandle) -> Result<Vec<u8>, String>;
}

/// See the module's page. Must be used from threads that may block, within a tokio runtime.
pub struct RemoteSource {
    published: Address<PublishedWeightsMessage>,
    fetch: Arc<dyn BulkFetch>,
    runtime: Handle,
}

impl RemoteSource {
    /// The versions behind `published`.
    pub fn new(published: Address<PublishedWeightsMessage>, fetch: Arc<dyn BulkFetch>, runtime: Handle) -> Self {
        Self { published, fetch, runtime }
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Reply<Result<T, WeightFailure>>) -> PublishedWeightsMessage,
    ) -> Result<T, WeightsError> {
        let asked = ask(&self.published, Deadline::after_ms(ANSWER_WAIT_MS), question);
        let remote = |reason: String| WeightsError::Remote { publisher: self.published.name().to_owned(), reason };
        let answer = self.runtime.block_on(asked).map_err(|error| remote(error.to_string()))?;
        answer.map_err(|failure| remote(failure.to_string()))
    }
}

impl VersionSource for RemoteSource {
    fn manifest(&self, version: &WeightVersion) -> Result<Manifest, WeightsError> {
        let bytes = self.ask(|reply| PublishedWeightsMessage::Manifest(version.clone(), reply))?;
        Manifest::from_bytes(&bytes.0, version)
    }

    fn payload(&self, manifest: &Manifest) -> Result<Vec<u8>, WeightsError> {
        let handle = self.ask(|reply| PublishedWeightsMessage::Payload(manifest.version.clone(), reply))?;
        let holders: Vec<String> = handle.holders.iter().map(ToString::to_string).collect();
        let holders = holders.join(", ");
        let remote = |reason: String| WeightsError::Remote { publisher: holders.clone(), reason };
        let payload = self.runtime.block_on(self.fetch.fetch(&handle)).map_err(remote)?;
        checked_payload(manifest, payload, &format!("fetched from {holders}"))
    }

    fn links(&self, run: &RunId) -> Result<BTreeMap<WeightVersion, Link>, WeightsError> {
        let links = self.ask(|reply| PublishedWeightsMessage::Links(run.clone(), reply))?;
        Ok(links.into_iter().map(|link| (link.version, Link { base: link.base, bytes: link.bytes })).collect())
    }
}
