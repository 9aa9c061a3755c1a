//! The cluster as a node's parts see it: offer a service, follow one, see members, wait for a gang, leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::{Address, Deadline, Seam};
use greenroom_identity::{CertificateRole, Identity};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::bulk::plane::{BulkPlane, SERVICE};
use crate::gang::{GangWatch, SAID_AGAIN_MS};
use crate::hub::Hub;
use crate::incarnation;
use crate::link::cookie::{Cookie, unguessable_number};
use crate::link::listen::listen;
use crate::link::preamble::{BUILD, Introduction};
use crate::service::Audience;
use crate::sessions::Sessions;
use crate::{ClusterConfig, ClusterError, Dialled, GangError, Member, MemberEvents, Missing};

/// How long a node that leaves waits for others to have heard of it.
const LEAVING_MS: u64 = 2000;

/// A node's membership of its cluster. Cheap to clone; it ends with [`leave`](Self::leave), not with its last clone.
#[derive(Clone)]
pub struct Cluster {
    hub: Arc<Hub>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Cluster({} at {})", self.hub.me.node, self.hub.me.address)
    }
}

impl Cluster {
    /// Starts this node: listens, and dials its seeds from then on. Others need not be there yet. One per process, because
    /// the carrier's registries are the process's.
    ///
    /// # Errors
    /// [`ClusterError`] when settings, cookie, certificate or address cannot be used.
    pub async fn start(config: ClusterConfig, seam: Seam) -> Result<Self, ClusterError> {
        config.check()?;
        let cookie = Cookie::load(config.cookie_file.as_deref())?;
        let identity = config.tls.as_ref().map(Identity::load).transpose()?;
        if let Some(identity) = &identity {
            check_certificate(&config, identity)?;
        }
        let unbound =
            |error: std::io::Error| ClusterError::Bind { bind: config.bind.clone(), reason: error.to_string() };
        // a shell dials only
        let listener = match config.is_shell() {
            true => None,
            false => Some(TcpListener::bind(&config.bind).await.map_err(unbound)?),
        };
        let bound = listener.as_ref().map(TcpListener::local_addr).transpose().map_err(unbound)?;
        let not_started = |reason: String| ClusterError::Start { reason };
        let random = unguessable_number().map_err(|error| not_started(error.to_string()))?;
        let incarnation = incarnation::next(config.incarnation_file.as_deref(), seam.clock.now_ms(), random)
            .map_err(|error| not_started(format!("which start of the node this is cannot be kept: {error}")))?;
        let who = Introduction {
            build: BUILD.into(),
            schema: config.schema.clone(),
            cluster: config.cluster.clone(),
            node: config.node.clone(),
            incarnation,
            roles: config.roles.clone(),
            address: bound.map(|bound| advertised(&config, bound)).unwrap_or_default(),
        };
        let hub = Hub::new(who, config, seam, identity, cookie);
        let Introduction { node, incarnation, cluster, .. } = &hub.me;
        let secret = hub.cookie.derived(&format!("ractor_cluster of {cluster}"));
        let sessions = Sessions::start(&hub, node, *incarnation, cluster, secret).await.map_err(not_started)?;
        if hub.sessions.set(sessions).is_err() {
            return Err(not_started("it was started twice".into()));
        }
        if let Some(listener) = listener {
            hub.spawn("cluster listener".into(), listen(hub.clone(), listener));
        }
        hub.spawn("cluster silence".into(), hub.clone().watch_silence());
        hub.dial_seeds();
        let Introduction { node, incarnation, address, .. } = &hub.me;
        tracing::info!(node, incarnation, address, "the node listens");
        Ok(Self { hub })
    }

    /// Offers a service: messages for it reach `address` from every node, but not from operators and viewers. An earlier
    /// offer of the same name is replaced.
    pub fn serve<M: DeserializeOwned + Send + 'static>(&self, service: &str, address: &Address<M>) {
        self.hub.offer(service, address, Audience::Nodes);
    }

    /// Offers a service to operators and viewers as well; `address` looks at its [`caller`](crate::caller) itself.
    pub fn serve_everybody<M: DeserializeOwned + Send + 'static>(&self, service: &str, address: &Address<M>) {
        self.hub.offer(service, address, Audience::Everybody);
    }

    /// Lets what is too large for messages go by this data plane, to and from nodes that have one, too. The first call counts.
    pub fn carry_bulk(&self, plane: BulkPlane) {
        if self.hub.bulk_plane.set(plane).is_ok() {
            // nobody asks it anything: that it is offered says all
            self.serve(SERVICE, &Address::<()>::of_function(SERVICE, |()| Ok(())));
        }
    }

    /// Offers a service no more.
    pub fn withdraw(&self, service: &str) {
        self.hub.withdraw(service);
    }

    /// The address of a service of one node: bound while that node is up and offers it, to whichever incarnation.
    pub fn service<M>(&self, node: &str, service: &str) -> Address<M>
    where
        M: Serialize + DeserializeOwned + Send + 'static,
    {
        self.hub.follow(Some(node), service)
    }

    /// The address of a service that one node offers, wherever it is; of several, the one that was started last. This node
    /// comes first.
    pub fn anywhere<M>(&self, service: &str) -> Address<M>
    where
        M: Serialize + DeserializeOwned + Send + 'static,
    {
        self.hub.follow(None, service)
    }

    /// All members known here, this node included, sorted by name; those that are gone are remembered for a while.
    pub fn members(&self) -> Vec<Member> {
        self.hub.members()
    }

    /// This node.
    pub fn me(&self) -> Member {
        self.hub.myself_as_member()
    }

    /// What happens to members from now on.
    pub fn events(&self) -> MemberEvents {
        self.hub.events.subscribe()
    }

    /// The seeds, and what has come of dialling each.
    pub fn seeds(&self) -> Vec<(String, Dialled)> {
        self.hub.config.seeds.iter().map(|seed| (seed.clone(), self.hub.dialled_seed(seed))).collect()
    }

    /// The incarnation that fenced this one: this node must stop acting.
    pub fn fenced_by(&self) -> Option<u64> {
        self.hub.fenced_by()
    }

    /// How many messages and bytes wait for a node, and how many questions are open there.
    pub fn waiting(&self, node: &str) -> (usize, usize, usize) {
        let lines = self.hub.all_lines();
        lines.iter().find(|line| line.node() == node).map_or((0, 0, 0), |line| line.waiting())
    }

    /// Waits until enough nodes play each of the required roles, this node included; only those with these names, if
    /// `admitted` is given. `progress` hears what is missing and for how long whenever that changes, and every few seconds.
    ///
    /// # Errors
    /// [`GangError`] when the gang is not complete by `deadline`, or this node leaves or is fenced meanwhile.
    pub async fn gang(
        &self,
        required: &[(String, usize)],
        mut admitted: Option<watch::Receiver<BTreeSet<String>>>,
        deadline: Deadline,
        mut progress: impl FnMut(&[Missing]) + Send,
    ) -> Result<(), GangError> {
        let mut view = self.hub.view.subscribe();
        let mut watch = GangWatch::new(required);
        loop {
            view.borrow_and_update();
            let mut members = self.members();
            if let Some(admitted) = &mut admitted {
                let admitted = admitted.borrow_and_update();
                members.retain(|member| admitted.contains(&member.name));
            }
            let now_ms = self.hub.moment().elapsed_ms;
            let missing = watch.missing(&members, now_ms);
            if missing.is_empty() {
                return Ok(());
            }
            if deadline.has_passed() || self.hub.stop.is_cancelled() {
                return Err(GangError { missing });
            }
            if watch.is_to_be_said(&missing, now_ms) {
                progress(&missing);
            }
            tokio::select! {
                // the sender lives as long as the hub
                _ = view.changed() => {}
                () = change_of(&mut admitted) => {}
                () = self.hub.stop.cancelled() => {}
                () = tokio::time::sleep(Duration::from_millis(SAID_AGAIN_MS).min(deadline.remaining())) => {}
            }
        }
    }

    /// Leaves: others hear of it, and need not wait for a silence. Questions that are open fail at both ends.
    pub async fn leave(&self) {
        let lines = self.hub.all_lines();
        // no connection is made anew from now on
        self.hub.stop.cancel();
        lines.iter().for_each(|line| line.push_leaving());
        let patience = Deadline::after_ms(LEAVING_MS);
        let has_heard = |line: &Arc<crate::line::PeerLine>| line.is_clear() || line.connection().is_none();
        while !lines.iter().all(has_heard) && !patience.has_passed() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.hub.close("this node has left the cluster");
        self.hub.events.close();
    }
}

/// The address at which others reach this node.
fn advertised(config: &ClusterConfig, bound: std::net::SocketAddr) -> String {
    if !config.advertise.is_empty() {
        return config.advertise.clone();
    }
    if !bound.ip().is_unspecified() {
        return bound.to_string();
    }
    format!("{}:{}", rustix::system::uname().nodename().to_string_lossy(), bound.port())
}

fn check_certificate(config: &ClusterConfig, identity: &Identity) -> Result<(), ClusterError> {
    let party = identity.party();
    let roles: BTreeSet<&str> = config.roles.iter().map(String::as_str).collect();
    let misfit = match party.role {
        CertificateRole::Node if party.name != config.node => "its name is another one",
        CertificateRole::Node => return Ok(()),
        _ if !config.is_shell() || roles.len() > 1 => "it lets its party join as a shell only",
        _ if !config.node.starts_with(&party.name) => "a shell's node name begins with its party's name",
        _ => return Ok(()),
    };
    let node = &config.node;
    Err(ClusterError::Certificate { reason: format!("{party} for node {node} {roles:?}: {misfit}") })
}

/// Waits until other nodes are admitted; for ever where all are.
async fn change_of(admitted: &mut Option<watch::Receiver<BTreeSet<String>>>) {
    if let Some(admitted) = admitted
        && admitted.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
