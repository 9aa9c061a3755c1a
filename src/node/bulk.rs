//! The data plane of a node: one store, its server, and a client, for all that is too large for messages.
//!
//! Messages that are too large for the cluster's control channel lie in the store's memory until their receiver has them.
//! Payloads of weights lie in the store's directory: those that this node publishes for as long as they are published, of
//! those that it fetches the newest ones, so that other receivers get them from here. What is fetched and served runs on
//! threads of its own: to encrypt a payload takes as long as thousands of messages. On failure: what an earlier process left
//! is gone on with, and removed as newer ones come.

mod shelf;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use async_trait::async_trait;
use greenroom_cluster::{BulkPlane, Cluster, Member, MemberEvent};
use greenroom_core::{Deadline, Threads, in_place, spawn_blocking_named, spawn_named};
use greenroom_dataplane::{
    Client, DataplaneError, FetchOptions, FetchReport, ObjectId, PeerAddress, Server, Store, StoreConfig,
};
use greenroom_identity::Identity;
use greenroom_messages::weights::{BulkHandle, BulkHolder, BulkRelay};
use greenroom_weights::{BulkFetch, BulkFetchError, BulkOffer};

use super::{NodeConfig, NodeDataplane};
use shelf::Shelf;

/// Says whether a node is up.
type IsUp = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// See the module's page.
pub(super) struct DataPlane {
    store: Store,
    /// Serves as long as it is held.
    #[cfg_attr(not(test), allow(dead_code, reason = "only tests look at what it has served"))]
    server: Server,
    client: Client,
    holder: BulkHolder,
    shelf: Mutex<Shelf>,
    is_up: IsUp,
}

/// The data plane of a node that has a certificate.
pub(super) async fn of_node(
    node: &NodeConfig,
    identity: Option<&Identity>,
    cluster: &Cluster,
) -> anyhow::Result<Option<Arc<DataPlane>>> {
    let Some(identity) = identity else { return Ok(None) };
    let (cluster_bind, cluster_address) = (&node.cluster.bind, &cluster.me().address);
    let place = Place { settings: &node.dataplane, cluster_bind, cluster_address };
    let members = cluster.clone();
    let is_up = move |name: &str| members.members().iter().any(|member| member.name == name && member.is_up());
    let dir = node.state_dir.join("objects");
    let started = DataPlane::start(identity, place, &dir, StoreConfig::default(), Box::new(is_up)).await;
    let plane = started.context("the data plane")?;
    cluster.carry_bulk(BulkPlane::new(plane.store.clone(), plane.client.clone(), plane.holder.address.clone()));
    spawn_named("data-plane-members", tell_who_goes(cluster.clone(), plane.client.clone()));
    Ok(Some(Arc::new(plane)))
}

/// Lets no fetch wait for a node that the cluster knows to be gone.
async fn tell_who_goes(cluster: Cluster, client: Client) {
    let mut events = cluster.events();
    while let Some(event) = events.recv().await {
        match event {
            MemberEvent::Joined(member) => client.back(&member.name),
            MemberEvent::Died { node, .. } | MemberEvent::Left { node, .. } => {
                // of shells, which come and go and serve nothing, nothing is remembered
                let is_it = |member: &Member| member.name == node && member.plays_a_role();
                if cluster.members().iter().any(is_it) {
                    client.gone(&node);
                }
            }
            _ => {}
        }
    }
}

impl DataPlane {
    /// Starts to serve this node's objects, which lie in `dir`.
    pub(super) async fn start(
        identity: &Identity,
        place: Place<'_>,
        dir: &Path,
        stored: StoreConfig,
        is_up: IsUp,
    ) -> anyhow::Result<Self> {
        let store = Store::open(dir, stored)?;
        let (shelf, lapsed) = Shelf::with(store.take_stock()?);
        lapsed.into_iter().try_for_each(|object| store.remove(object))?;
        let threads = Threads::start("data plane").context("its threads")?;
        let transfer = &place.settings.transfer;
        let client = Client::on(&threads, identity, transfer)?;
        let server = {
            let (identity, store, listen, transfer) =
                (identity.clone(), store.clone(), place.bind()?, transfer.clone());
            let started = async move { Server::start(&identity, &store, listen, &transfer).await };
            threads.run("dataplane server", started).await.context("its server panicked; see the log")??
        };
        let address = place.advertised(server.local_addr());
        let holder = BulkHolder { node: identity.party().name.clone(), address };
        Ok(Self { store, server, client, holder, shelf: Mutex::new(shelf), is_up })
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes objects that nobody needs any more.
    fn remove(&self, objects: impl IntoIterator<Item = ObjectId>) {
        in_place(|| {
            for object in objects {
                if let Err(error) = self.store.remove(object) {
                    tracing::warn!(%error, "an object that nobody needs any more is not removed");
                }
            }
        });
    }
}

/// Where a data plane stands: beside the cluster's socket, where its own settings do not say otherwise.
pub(super) struct Place<'a> {
    pub(super) settings: &'a NodeDataplane,
    /// `IP:PORT` at which the node listens for messages.
    pub(super) cluster_bind: &'a str,
    /// `HOST:PORT` at which others reach it there.
    pub(super) cluster_address: &'a str,
}

impl Place<'_> {
    fn bind(&self) -> anyhow::Result<SocketAddr> {
        let parse = |bind: &str| bind.parse().with_context(|| format!("dataplane.bind {bind:?} is no IP:PORT"));
        match self.settings.bind.as_str() {
            "" => parse(self.cluster_bind).map(|bind: SocketAddr| SocketAddr::new(bind.ip(), 0)),
            bind => parse(bind),
        }
    }

    fn advertised(&self, listens: SocketAddr) -> String {
        let port = listens.port();
        let beside = self.settings.bind.is_empty() || listens.ip().is_unspecified();
        match self.settings.advertise_host.as_str() {
            "" if beside => {
                let host = self.cluster_address.rsplit_once(':').map_or(self.cluster_address, |(host, _)| host);
                format!("{host}:{port}")
            }
            "" => listens.to_string(),
            host if host.contains(':') => format!("[{host}]:{port}"),
            host => format!("{host}:{port}"),
        }
    }
}

#[async_trait]
impl BulkOffer for DataPlane {
    async fn offer(&self, file: &Path) -> Result<BulkHandle, String> {
        let (store, file) = (self.store.clone(), file.to_owned());
        let put = spawn_blocking_named("bulk-offer", move || {
            let object = store.put_file("weights", &file).map_err(|error| error.to_string())?;
            let bytes = std::fs::metadata(&file).map_err(|error| error.to_string())?.len();
            Ok((object, bytes))
        });
        let put = put.await.ok().flatten().unwrap_or_else(|| Err("the work panicked; see the log".to_owned()));
        let (object, bytes) = put?;
        self.shelf().offer(object);
        Ok(BulkHandle { object: object.to_string(), bytes, holders: vec![self.holder.clone()] })
    }

    async fn withdraw(&self, handle: &BulkHandle) {
        if let Ok(object) = handle.object.parse::<ObjectId>() {
            let unneeded = self.shelf().withdraw(object);
            self.remove(unneeded);
        }
    }

    fn is_up(&self, holder: &BulkHolder) -> bool {
        (self.is_up)(&holder.node)
    }
}

#[async_trait]
impl BulkFetch for DataPlane {
    fn relay(&self) -> Option<BulkRelay> {
        let (unneeded, kept) = self.shelf().make_room();
        self.remove(unneeded);
        Some(BulkRelay { holder: self.holder.clone(), holds: kept.iter().map(ToString::to_string).collect() })
    }

    async fn fetch(&self, handle: &BulkHandle, deadline: Deadline) -> Result<Vec<u8>, BulkFetchError> {
        let failed = |error: DataplaneError| BulkFetchError::Failed(format!("{}: {error}", error.code()));
        let object = handle.object.parse::<ObjectId>().map_err(failed)?;
        let holders = handle.holders.iter().map(|holder| PeerAddress::node(&holder.node, &holder.address));
        let holders: Vec<PeerAddress> = holders.collect();
        self.shelf().fetch(object);
        let options = FetchOptions { max_bytes: handle.bytes, ..FetchOptions::until(deadline) };
        let fetched = self.client.fetch(object, &holders, &self.store, &options).await;
        let report = fetched.map_err(|error| match error {
            DataplaneError::Deadline { .. } => BulkFetchError::Late(format!("{}: {error}", error.code())),
            error => failed(error),
        })?;
        tell(object, &report);
        let store = self.store.clone();
        let read = spawn_blocking_named("bulk-read", move || store.read(object)).await.ok().flatten();
        let read = read.unwrap_or(Err(DataplaneError::Panicked { what: "reading a payload" })).map_err(failed)?;
        read.map(Vec::from).ok_or_else(|| failed(DataplaneError::Removed { object }))
    }
}

fn tell(object: ObjectId, report: &FetchReport) {
    let given = report.chunks_by_peer.iter().map(|(peer, chunks)| format!("{chunks} chunks from {peer}"));
    let given = given.collect::<Vec<_>>().join(", ");
    let FetchReport { bytes, cuts, damaged, .. } = report;
    tracing::info!(%object, bytes, given, cuts, damaged, "a payload has arrived");
}
