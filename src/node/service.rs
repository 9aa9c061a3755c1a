//! The services by which the parts of a run find each other, each with the messages it takes.

use std::marker::PhantomData;
use std::sync::{Arc, Once};

use greenroom_cluster::{Cluster, Member};
use greenroom_core::{Address, ChildSpec, ChildStart};
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::node::{ControllerMessage, NodeMessage};
use greenroom_messages::rollout::RolloutManagerMessage;
use greenroom_messages::run::{ConductorMessage, JournalMessage};
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

const SANDBOX_POOL: &str = "sandbox-pool/";

/// The pool of one image, of which several nodes may have one.
pub(super) fn sandbox_pool(image: &str) -> String {
    format!("{SANDBOX_POOL}{image}")
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

    /// The address that follows the service of one node.
    pub(super) fn of(&self, node: &str, cluster: &Cluster) -> Address<M> {
        cluster.service(node, self.name)
    }

    /// An address of this name for an actor of this node, still to be bound.
    pub(super) fn address(&self) -> Address<M> {
        Address::unbound(self.name)
    }

    /// The child whose first start offers the service from this node: nobody is sent to an actor that does not run yet.
    pub(super) fn offered(&self, child: ChildSpec, address: &Address<M>, cluster: &Cluster) -> ChildSpec {
        offered(child, self.name, address, cluster)
    }

    /// What members say that they offer.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Offers the service on this node no more.
    pub(super) fn withdraw(&self, cluster: &Cluster) {
        cluster.withdraw(self.name);
    }

    /// Whether another node that is up offers the service.
    pub(super) fn is_offered_elsewhere(&self, cluster: &Cluster) -> bool {
        let me = cluster.me().name;
        let offers = |member: &Member| member.services.iter().any(|offered| offered == self.name);
        cluster.members().iter().any(|member| member.is_up() && member.name != me && offers(member))
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

/// The child whose first start offers a service from this node.
pub(super) fn offered<M>(child: ChildSpec, service: &str, address: &Address<M>, cluster: &Cluster) -> ChildSpec
where
    M: DeserializeOwned + Send + 'static,
{
    let ChildSpec { name, policy, start } = child;
    let offer = Arc::new((Once::new(), service.to_owned(), address.clone(), cluster.clone()));
    let start: ChildStart = Box::new(move |supervisor| {
        let (started, offer) = (start(supervisor), offer.clone());
        Box::pin(async move {
            let cell = started.await?;
            let (once, service, address, cluster) = &*offer;
            once.call_once(|| cluster.serve(service, address));
            Ok(cell)
        })
    });
    ChildSpec { name, policy, start }
}

/// Whether new work comes in by a service.
pub(super) fn is_admission(service: &str) -> bool {
    service.starts_with(SANDBOX_POOL) || service == ROLLOUT_MANAGER.name
}
