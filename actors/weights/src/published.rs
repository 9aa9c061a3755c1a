//! PublishedWeights: lets nodes without a shared directory read what the publisher committed.
//!
//! Manifests go by message, payloads by the data plane: the answer is a handle, and the bytes never pass a mailbox. The
//! handle names the receivers that fetch the same, so that they pass it on in a line, and this node last. It keeps no state
//! but the handles of payloads already offered and those lines; the carrier's directory is the truth. On failure: without
//! the lines everybody fetches from here.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use greenroom_core::{Seam, in_place};
use greenroom_messages::weights::{
    BulkHandle, BulkHolder, ManifestBytes, PayloadWanted, PublishedLink, PublishedWeightsMessage, WeightFailure,
};
use greenroom_messages::{RunId, WeightVersion};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::carrier::VersionSource;
use crate::relays::Relays;
use crate::work::do_blocking;
use crate::{DirectoryCarrier, WeightsError};

/// Offers files at the data plane.
#[async_trait]
pub trait BulkOffer: Send + Sync {
    /// Makes a file's content available to other nodes until it is withdrawn.
    async fn offer(&self, file: &Path) -> Result<BulkHandle, String>;
    /// Ends that.
    async fn withdraw(&self, handle: &BulkHandle);
    /// Whether another holder may be reached at all: those known to be gone are not named.
    fn is_up(&self, holder: &BulkHolder) -> bool;
}

/// What PublishedWeights starts with.
#[derive(Clone)]
pub struct PublishedWeightsArguments {
    /// Where the publisher commits versions.
    pub carrier: DirectoryCarrier,
    /// The data plane.
    pub offer: Arc<dyn BulkOffer>,
    /// Time and faults.
    pub seam: Seam,
}

/// The actor.
#[derive(Debug, Default)]
pub struct PublishedWeights;

/// Its state.
pub struct PublishedWeightsState {
    arguments: PublishedWeightsArguments,
    offered: BTreeMap<WeightVersion, BulkHandle>,
    relays: Relays,
}

impl PublishedWeightsState {
    async fn links(&self, run: RunId) -> Result<Vec<PublishedLink>, WeightFailure> {
        let carrier = self.arguments.carrier.clone();
        let (links, _) = do_blocking(&self.arguments.seam, "links", move || carrier.links(&run)).await?;
        let link = |(version, link): (WeightVersion, crate::Link)| PublishedLink {
            version,
            base: link.base,
            bytes: link.bytes,
        };
        Ok(links.into_iter().map(link).collect())
    }

    async fn payload(&mut self, wanted: PayloadWanted) -> Result<BulkHandle, WeightFailure> {
        let mut handle = self.offered(wanted.version).await?;
        // who has it from this node's own store passes nothing on
        if let Some(relay) = wanted.relay.filter(|relay| !handle.holders.contains(&relay.holder)) {
            let offer = &self.arguments.offer;
            let mut holders = self.relays.before(&handle.object, &relay, |holder| offer.is_up(holder));
            holders.append(&mut handle.holders);
            handle.holders = holders;
        }
        Ok(handle)
    }

    async fn offered(&mut self, version: WeightVersion) -> Result<BulkHandle, WeightFailure> {
        if let Some(handle) = self.offered.get(&version) {
            return Ok(handle.clone());
        }
        let (carrier, wanted) = (self.arguments.carrier.clone(), version.clone());
        // a version without a manifest does not exist for anybody
        do_blocking(&self.arguments.seam, "manifest", move || carrier.manifest(&wanted)).await?;
        let file = self.arguments.carrier.payload_file(&version);
        let offered = self.arguments.offer.offer(&file).await;
        let handle = offered.map_err(|reason| WeightsError::File { path: file, reason })?;
        self.offered.insert(version, handle.clone());
        self.withdraw_swept().await;
        Ok(handle)
    }

    /// What the publisher has swept is offered no more.
    async fn withdraw_swept(&mut self) {
        let carrier = &self.arguments.carrier;
        let is_swept = |version: &&WeightVersion| !carrier.payload_file(version).exists();
        let swept: Vec<WeightVersion> = in_place(|| self.offered.keys().filter(is_swept).cloned().collect());
        for version in swept {
            let Some(handle) = self.offered.remove(&version) else { continue };
            // objects go by their content: deltas in which nothing has changed are one object, of which a newer version may
            // have need
            if !self.offered.values().any(|other| other.object == handle.object) {
                self.arguments.offer.withdraw(&handle).await;
                self.relays.forget(&handle.object);
            }
        }
    }
}

impl Actor for PublishedWeights {
    type Msg = PublishedWeightsMessage;
    type State = PublishedWeightsState;
    type Arguments = PublishedWeightsArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(PublishedWeightsState { arguments, offered: BTreeMap::new(), relays: Relays::default() })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PublishedWeightsMessage::Links(run, reply) => {
                reply.send(state.links(run).await);
            }
            PublishedWeightsMessage::Manifest(version, reply) => {
                let bytes = in_place(|| state.arguments.carrier.manifest_bytes(&version));
                reply.send(bytes.map(ManifestBytes).map_err(WeightFailure::from));
            }
            PublishedWeightsMessage::Payload(wanted, reply) => {
                reply.send(state.payload(wanted).await);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use greenroom_core::Faults;

    use super::*;

    #[derive(Default)]
    struct Withdrawn(Mutex<Vec<String>>);

    #[async_trait]
    impl BulkOffer for Withdrawn {
        async fn offer(&self, _: &Path) -> Result<BulkHandle, String> {
            Err("nothing is offered here".to_owned())
        }

        async fn withdraw(&self, handle: &BulkHandle) {
            self.0.lock().unwrap().push(handle.object.clone());
        }

        fn is_up(&self, _: &BulkHolder) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn what_a_newer_version_shares_with_a_swept_one_stays_offered() {
        let dir = tempfile::tempdir().unwrap();
        let carrier = DirectoryCarrier::new(dir.path()).unwrap();
        let version = |number| WeightVersion { run: RunId::new("mine"), number };
        let kept = carrier.payload_file(&version(3));
        std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
        std::fs::write(&kept, "x").unwrap();
        let handle =
            |object: &str| BulkHandle { object: object.to_owned(), bytes: 1, holders: Vec::<BulkHolder>::new() };
        let offer = Arc::new(Withdrawn::default());
        let seam = Seam::system(0, Faults::none());
        let arguments = PublishedWeightsArguments { carrier, offer: offer.clone(), seam };
        let offered = [(1, "unchanged"), (2, "changed"), (3, "unchanged")];
        let offered = offered.map(|(number, object)| (version(number), handle(object)));
        let mut state =
            PublishedWeightsState { arguments, offered: BTreeMap::from(offered), relays: Relays::default() };
        state.withdraw_swept().await;
        assert_eq!(*offer.0.lock().unwrap(), ["changed"]);
        assert_eq!(state.offered.keys().map(|version| version.number).collect::<Vec<_>>(), [3]);
    }
}
