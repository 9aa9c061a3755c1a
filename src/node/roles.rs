//! The roles that roll out: AgentLoops under their manager, and the pools of sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use greenroom_core::{Address, ChildSpec, RestartPolicy};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_rollout::manager::RolloutManager;
use greenroom_sandbox::{LeaseNumbers, LocalProvider, Provider, SandboxPool};
use greenroom_tokens::{ChatTemplate, Tokenizer};

use super::service;
use super::site::Site;
use super::spread::spread;
use crate::parts::RolloutInputs;
use crate::up::data;

/// What the role `rollout` runs.
pub(super) fn rollout(site: &Site) -> anyhow::Result<Vec<ChildSpec>> {
    let config = site.config();
    let datasets = data::datasets(config)?;
    let model_dir = config.path(&config.model.dir);
    let images = data::images(config, &datasets)?;
    let pool = |image: &greenroom_sandbox::ImageSpec| {
        (image.name.clone(), spread(&site.cluster, &service::sandbox_pool(&image.name)))
    };
    let sandboxes: BTreeMap<String, Address<SandboxPoolMessage>> = images.iter().map(pool).collect();
    let inputs = RolloutInputs {
        datasets,
        tokenizer: Arc::new(Tokenizer::from_dir(&model_dir)?),
        template: Arc::new(ChatTemplate::from_dir(&model_dir)?),
        agent: data::agent(config)?,
    };
    let lead = &site.controller;
    let (engines, conductor) =
        (service::ENGINE_POOL.of(lead, &site.cluster), service::CONDUCTOR.of(lead, &site.cluster));
    let arguments = site.common.rollout_manager(inputs, engines, sandboxes, conductor)?;
    let address = service::ROLLOUT_MANAGER.address();
    site.staff.rolls_out(&address);
    let (policy, arguments) = (RestartPolicy::PATIENT, move || arguments.clone());
    let child = ChildSpec::at_address("rollout manager", policy, || RolloutManager, arguments, &address);
    Ok(vec![service::ROLLOUT_MANAGER.offered(child, &address, &site.cluster)])
}

/// The pools of this node, to be drained at its end.
pub(super) type Pools = Vec<Address<SandboxPoolMessage>>;

/// What the role `sandbox` runs.
pub(super) async fn sandbox(site: &Site) -> anyhow::Result<(Vec<ChildSpec>, Pools)> {
    let config = site.config();
    let datasets = data::datasets(config)?;
    let images = data::images(config, &datasets)?;
    let provider = LocalProvider::new(config.sandbox.local.clone(), site.dir("sandboxes"))?;
    let swept = provider.sweep().await?;
    if !swept.removed.is_empty() {
        (site.talk)(&format!("{} sandboxes that a lost process left behind were removed", swept.removed.len()));
    }
    provider.check().await.context("this machine cannot make sandboxes")?;
    data::check_images(&provider, &images, &datasets).await?;
    let provider: Arc<dyn Provider> = Arc::new(provider);
    let numbers = LeaseNumbers::starting_at(site.first_lease);
    let (mut children, mut pools) = (Vec::new(), Vec::new());
    for image in &images {
        let arguments = site.common.sandbox_pool(image, provider.clone(), numbers.clone());
        let address = Address::unbound(&format!("sandbox pool {}", image.name));
        let (policy, arguments) = (RestartPolicy::PATIENT, move || arguments.clone());
        let child = ChildSpec::at_address(address.name(), policy, || SandboxPool, arguments, &address);
        children.push(service::offered(child, &service::sandbox_pool(&image.name), &address, &site.cluster));
        pools.push(address);
    }
    Ok((children, pools))
}
