//! The role `trainer`: the trainer, the publisher of its weights, and who says from where they are fetched.

use std::path::PathBuf;
use std::sync::Arc;

use greenroom_core::{ChildSpec, RestartPolicy};
use greenroom_weights::{
    DirectoryCarrier, PublishedWeights, PublishedWeightsArguments, PublisherArguments, WeightPublisher,
};

use super::service;
use super::site::Site;

/// What the role runs.
pub(super) fn trainer(site: &Site, model_dir: PathBuf) -> anyhow::Result<Vec<ChildSpec>> {
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
    let published = PublishedWeightsArguments { carrier, offer: site.data_plane()?.clone(), seam: site.seam().clone() };
    let (publishes, lists) = (service::PUBLISHER.address(), service::PUBLISHED.address());
    let publisher =
        ChildSpec::at_address("weight publisher", policy, || WeightPublisher, move || publisher.clone(), &publishes);
    let published =
        ChildSpec::at_address("published weights", policy, || PublishedWeights, move || published.clone(), &lists);
    Ok(vec![
        learner(site, model_dir)?,
        service::PUBLISHER.offered(publisher, &publishes, &site.cluster),
        service::PUBLISHED.offered(published, &lists, &site.cluster),
    ])
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
