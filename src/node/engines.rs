//! The role `engine`: engines on this host, each with its proxy beside it, and the receiver of their weights.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use greenroom_core::{Address, ChildSpec, RestartPolicy};
use greenroom_engine::{EngineHost, EngineHostArguments, EngineHostInput, EngineProxyArguments};
use greenroom_messages::EngineId;
use greenroom_messages::engine::EngineSpec;
use greenroom_weights::{ReceiverArguments, RemoteSource, WeightReceiver};
use tokio::runtime::Handle;

use super::service;
use super::site::Site;

/// Engines that this node started itself, and what it runs for them.
pub(super) struct Engines {
    pub(super) children: Vec<ChildSpec>,
    /// The engines' hosts, to be told that the node leaves.
    pub(super) hosts: Vec<Address<EngineHostInput>>,
    #[cfg(feature = "torch")]
    pub(super) embedded: Vec<greenroom_policy::server::RunningEngine>,
}

/// What the role runs.
pub(super) async fn engines(site: &Site, model_dir: &Path) -> anyhow::Result<Engines> {
    let node = &site.node.cluster.node;
    #[cfg(feature = "torch")]
    let mut embedded = Vec::new();
    let mut specs: Vec<EngineSpec> = Vec::new();
    #[cfg(feature = "torch")]
    if site.node.engines.is_empty() {
        let config = site.config();
        for (spec, running) in crate::up::embedded::start(&config.engine.embedded, model_dir, config.seed).await? {
            specs.push(EngineSpec { engine: EngineId::new(format!("{node}/{}", spec.engine)), ..spec });
            embedded.push(running);
        }
    }
    specs.extend(site.node.engines.iter().map(|(name, engine)| EngineSpec {
        engine: EngineId::new(format!("{node}/{name}")),
        url: engine.url.clone(),
        max_in_flight: engine.max_in_flight,
    }));
    anyhow::ensure!(
        !specs.is_empty(),
        "this node has the role engine and no engine: name one under engines.NAME.url, or set engine.embedded.count"
    );

    let receiver_address = Address::unbound("weight receiver");
    let mut children = vec![receiver(site, &receiver_address)?];
    let mut hosts = Vec::new();
    let pool = site.common.engine_pool(model_dir, Vec::new())?;
    for spec in specs {
        let template = EngineProxyArguments {
            api: (pool.api)(&spec)?,
            spec,
            config: pool.config.clone(),
            seam: pool.seam.clone(),
            run: pool.run.clone(),
            vocabulary_tokens: pool.vocabulary_tokens,
            journal: pool.journal.clone(),
            fleet: service::ENGINE_POOL.of(&site.controller, &site.cluster),
            wanted: None,
            distrust: false,
            incarnation: 0,
        };
        let name = format!("engine host {}", template.spec.engine);
        let host = EngineHostArguments {
            proxy: template,
            receiver_name: node.clone(),
            receiver: receiver_address.clone(),
            publisher: service::PUBLISHER.anywhere(&site.cluster),
        };
        let starts = AtomicU64::new(0);
        let arguments = move || {
            let incarnation = starts.fetch_add(1, Ordering::Relaxed);
            // the one before may have ended in the middle of a load
            let proxy = EngineProxyArguments { incarnation, distrust: incarnation > 0, ..host.proxy.clone() };
            EngineHostArguments { proxy, ..host.clone() }
        };
        let address = Address::unbound(&name);
        children.push(ChildSpec::at_address(&name, RestartPolicy::PATIENT, || EngineHost, arguments, &address));
        hosts.push(address);
    }
    Ok(Engines {
        children,
        hosts,
        #[cfg(feature = "torch")]
        embedded,
    })
}

fn receiver(
    site: &Site,
    address: &Address<greenroom_messages::weights::WeightReceiverMessage>,
) -> anyhow::Result<ChildSpec> {
    let published = service::PUBLISHED.anywhere(&site.cluster);
    let source = RemoteSource::new(published, site.data_plane()?.clone(), Handle::current());
    let arguments = ReceiverArguments {
        receiver: site.node.cluster.node.clone(),
        carrier: Arc::new(source),
        dir: site.dir("weights/received"),
        seam: site.seam().clone(),
    };
    let (policy, arguments) = (RestartPolicy::PATIENT, move || arguments.clone());
    Ok(ChildSpec::at_address("weight receiver", policy, || WeightReceiver, arguments, address))
}
