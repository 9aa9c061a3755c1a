//! The services by which the parts of a run find each other, each with the messages it takes.

use std::marker::PhantomData;

use greenroom_cluster::Cluster;
use greenroom_core::Address;
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::node::{ControllerMessage, NodeMessage};
use greenroom_messages::rollout::RolloutManagerMessage;
use greenroom_messages::run::{ConductorMessage, JournalMessage};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_messages::trainer::TrainerMessage;
use greenroom_messages::weights::{PublishedWeightsMessage, WeightPublisherMessage};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Where nodes enlist.
pub(super) const CONTROLLER: Service<ControllerMessage> = Service::new("controller");
/// Who leads the run.
pub(super) const CONDUCTOR: Service<ConductorMessage> = Service::new("conductor");
/// Who writes the history.
pub(super) const JOURNAL: Service<JournalMessage> = Service::new("journal");
/// The fleet.
pub(super) const ENGINE_POOL: Service<EnginePoolMessage> = Service::new("engine-pool");
/// Who rolls out.
pub(super) const ROLLOUT_MANAGER: Service<RolloutManagerMessage> = Service::new("rollout-manager");
/// Who trains.
pub(super) const TRAINER: Service<TrainerMessage> = Service::new("trainer");
/// Who publishes weights.
pub(super) const PUBLISHER: Service<WeightPublisherMessage> = Service::new("weight-publisher");
/// What is published.
pub(super) const PUBLISHED: Service<PublishedWeightsMessage> = Service::new("published-weights");

/// The pool of one image, of which several nodes may have one.
pub(super) fn sandbox_pool(image: &str) -> String {
    format!("sandbox-pool/{image}")
}

/// What a node hears of the run.
pub(super) fn node(name: &str) -> String {
    format!("node/{name}")
}

/// A service of which a cluster has one.
pub(super) struct Service<M> {
    name: &'static str,
    messages: PhantomData<fn(M)>,
}

impl<M> Service<M> {
    const fn new(name: &'static str) -> Self {
        Self { name, messages: PhantomData }
    }
}

impl<M: Serialize + DeserializeOwned + Send + 'static> Service<M> {
    /// The address that follows the service, wherever it is.
    pub(super) fn anywhere(&self, cluster: &Cluster) -> Address<M> {
        cluster.anywhere(self.name)
    }

    /// Offers the service on this node, at an address that is still to be bound.
    pub(super) fn here(&self, cluster: &Cluster) -> Address<M> {
        let address = Address::unbound(self.name);
        cluster.serve(self.name, &address);
        address
    }

    /// Offers the service on this node, at this address.
    pub(super) fn at(&self, address: &Address<M>, cluster: &Cluster) {
        cluster.serve(self.name, address);
    }
}

/// The word to another node.
pub(super) fn node_at(cluster: &Cluster, name: &str) -> Address<NodeMessage> {
    cluster.service(name, &node(name))
}

/// Offers the pool of an image on this node, at an address that is still to be bound.
pub(super) fn sandbox_pool_here(cluster: &Cluster, image: &str) -> Address<SandboxPoolMessage> {
    let address = Address::unbound(&format!("sandbox pool {image}"));
    cluster.serve(&sandbox_pool(image), &address);
    address
}
