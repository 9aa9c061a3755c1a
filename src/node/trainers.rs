//! The role `trainer`: the trainer, the publisher of its weights, and the data plane they are fetched from.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use greenroom_core::{ChildSpec, RestartPolicy};
use greenroom_dataplane::{Server, Store, StoreConfig};
use greenroom_messages::weights::BulkHolder;
use greenroom_weights::{
    DirectoryCarrier, PublishedWeights, PublishedWeightsArguments, PublisherArguments, WeightPublisher,
};

use super::bulk::StoreOffer;
use super::service;
use super::site::Site;

/// What the role runs; the server lives as long as it is held.
pub(super) async fn trainer(site: &Site, model_dir: PathBuf) -> anyhow::Result<(Vec<ChildSpec>, Server)> {
    let policy = RestartPolicy::PATIENT;
    let carrier = DirectoryCarrier::new(&site.dir("weights/published"))?;
    let publisher = PublisherArguments {
        config: site.config().weights.clone(),
        carrier: Arc::new(carrier.clone()),
        source_root: site.node.state_dir.clone(),
        bases_dir: site.dir("weights/bases"),
        receivers: None,
        seam: site.seam().clone(),
    };
    let (server, offer) = data_plane(site).await?;
    let published = PublishedWeightsArguments { carrier, offer: Arc::new(offer), seam: site.seam().clone() };
    let (publishes, lists) = (service::PUBLISHER.address(), service::PUBLISHED.address());
    let publisher =
        ChildSpec::at_address("weight publisher", policy, || WeightPublisher, move || publisher.clone(), &publishes);
    let published =
        ChildSpec::at_address("published weights", policy, || PublishedWeights, move || published.clone(), &lists);
    let children = vec![
        learner(site, model_dir)?,
        service::PUBLISHER.offered(publisher, &publishes, &site.cluster),
        service::PUBLISHED.offered(published, &lists, &site.cluster),
    ];
    Ok((children, server))
}

#[cfg(feature = "torch")]
fn learner(site: &Site, model_dir: PathBuf) -> anyhow::Result<ChildSpec> {
    use greenroom_trainer::{Trainer, TrainerArguments};
    let address = service::TRAINER.address();
    let (config, root) = (site.config().trainer.clone(), site.node.state_dir.clone());
    let arguments = move || TrainerArguments::new(config.clone(), model_dir.clone()).rooted_at(root.clone());
    let child = ChildSpec::at_address("trainer", RestartPolicy::PATIENT, || Trainer, arguments, &address);
    Ok(service::TRAINER.offered(child, &address, &site.cluster))
}

#[cfg(not(feature = "torch"))]
fn learner(_: &Site, _: PathBuf) -> anyhow::Result<ChildSpec> {
    anyhow::bail!("GR0902: training needs libtorch, and this binary was built without the feature `torch`")
}

async fn data_plane(site: &Site) -> anyhow::Result<(Server, StoreOffer)> {
    let identity = site.identity.as_ref().context("weights travel between nodes over TLS: set cluster.tls")?;
    let settings = &site.node.dataplane;
    let store = Store::open(&site.dir("objects"), StoreConfig::default())?;
    let bind = settings.bind.parse().with_context(|| format!("dataplane.bind {:?} is no IP:PORT", settings.bind))?;
    let server = Server::start(identity, &store, bind, &settings.transfer).await?;
    let listens = server.local_addr();
    let host = match settings.advertise_host.as_str() {
        "" => listens.ip().to_string(),
        host => host.to_owned(),
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let holder = BulkHolder { node: site.node.cluster.node.clone(), address: format!("{host}:{}", listens.port()) };
    Ok((server, StoreOffer { store, holder }))
}
