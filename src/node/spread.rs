//! One address over all nodes that offer a service: each message goes to the next of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use greenroom_cluster::Cluster;
use greenroom_core::Address;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The address that spreads messages over whoever offers `service` at the time; nobody there is as good as not running.
pub(super) fn spread<M>(cluster: &Cluster, service: &str) -> Address<M>
where
    M: Serialize + DeserializeOwned + Send + 'static,
{
    let (cluster, wanted, turn) = (cluster.clone(), service.to_owned(), AtomicUsize::new(0));
    Address::of_function(service, move |message| {
        let mut nodes: Vec<String> = cluster
            .members()
            .into_iter()
            .filter(|member| member.is_up() && member.services.contains(&wanted))
            .map(|member| member.name)
            .collect();
        nodes.sort();
        let node = nodes.get(turn.fetch_add(1, Ordering::Relaxed) % nodes.len().max(1)).ok_or(())?;
        cluster.service::<M>(node, &wanted).cast(message).map_err(|_| ())
    })
}
