//! How another program's process becomes a node: with roles of a run, or as a guest that looks on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use greenroom_cluster::{Cluster, ClusterConfig, ClusterError, caller};
use greenroom_core::{Address, Faults, Seam};
use greenroom_identity::IdentityFiles;
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::node::NodeMessage;
use greenroom_messages::run::{ConductorMessage, StepFinished};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Node, NodeConfig, NodeError, entry, rivals, service};
use crate::config::Config;
use crate::up::Talk;
use crate::{Subscribed, subscribe};

/// How often a guest looks whether the run is led.
const LOOK: Duration = Duration::from_millis(50);

impl Node {
    /// A node of this name, to be told where its cluster is. The name is unique in the cluster; with TLS it is the
    /// certificate's.
    pub fn builder(name: &str) -> NodeBuilder {
        let cluster =
            ClusterConfig { node: name.to_owned(), bind: "127.0.0.1:0".to_owned(), ..ClusterConfig::default() };
        NodeBuilder { cluster, state_dir: PathBuf::from("node"), talk: None, change: None }
    }
}

/// What an application sets of a node beside what the builder has words for.
type Change = Arc<dyn Fn(&mut NodeConfig) + Send + Sync>;

/// What a node must know of its cluster. It listens on a free port of the loopback interface unless told otherwise.
#[derive(Clone)]
pub struct NodeBuilder {
    cluster: ClusterConfig,
    state_dir: PathBuf,
    talk: Option<Talk>,
    change: Option<Change>,
}

impl NodeBuilder {
    /// The run, whose name is the cluster's.
    pub fn run(mut self, name: &str) -> Self {
        self.cluster.cluster = name.to_owned();
        self
    }

    /// `HOST:PORT` of a node to dial; may be given several times. One that lives is enough.
    pub fn seed(mut self, address: &str) -> Self {
        self.cluster.seeds.push(address.to_owned());
        self
    }

    /// The file with the cluster's secret.
    pub fn cookie_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.cluster.cookie_file = Some(file.into());
        self
    }

    /// The node's certificate, its key and the authority, as `greenroom ca issue` makes them.
    pub fn identity(mut self, files: IdentityFiles) -> Self {
        self.cluster.tls = Some(files);
        self
    }

    /// `IP:PORT` to listen at, and `HOST:PORT` at which others reach it.
    pub fn listen(mut self, bind: &str, advertise: &str) -> Self {
        (self.cluster.bind, self.cluster.advertise) = (bind.to_owned(), advertise.to_owned());
        self
    }

    /// The roles that it plays; [`ROLES`](super::ROLES) are all.
    pub fn roles<'a>(mut self, roles: impl IntoIterator<Item = &'a str>) -> Self {
        self.cluster.roles = roles.into_iter().map(str::to_owned).collect();
        self
    }

    /// The directory in which a node with roles keeps what is its own.
    pub fn state_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.state_dir = dir.into();
        self
    }

    /// Who is told lines for people; without one they are logged.
    pub fn talk(mut self, talk: Talk) -> Self {
        self.talk = Some(talk);
        self
    }

    /// Every other setting of the cluster, such as heartbeats.
    pub fn cluster(mut self, change: impl FnOnce(&mut ClusterConfig)) -> Self {
        change(&mut self.cluster);
        self
    }

    /// Every other setting of a node with roles, such as its gang.
    pub fn node(mut self, change: impl Fn(&mut NodeConfig) + Send + Sync + 'static) -> Self {
        self.change = Some(Arc::new(change));
        self
    }

    /// Joins as a guest: a node without a part in the run, which may ask, subscribe and generate. Others need not be there
    /// yet. Where the run has TLS it needs a node's certificate of its own name (`greenroom ca issue --name NAME`); those of
    /// operators and viewers are for shells. One per process.
    ///
    /// # Errors
    /// [`ClusterError`] when settings, cookie, certificate or address cannot be used.
    pub async fn join(mut self) -> Result<Guest, ClusterError> {
        self.cluster.roles.clear();
        let (name, seam) = (self.cluster.node.clone(), Seam::system(0, Faults::none()));
        let cluster = Cluster::start(self.cluster, seam).await?;
        let (told, outcome) = watch::channel(None);
        let own = service::node(&name);
        let members = cluster.clone();
        let address = Address::of_function(&own, move |message| {
            // one that is of no run obeys nobody, and believes who leads
            let members = members.members();
            let lead = rivals::chief(&members).map(|chief| chief.name.as_str());
            if lead != caller().map(|caller| caller.node).as_deref() {
                return Ok(());
            }
            let outcome = match message {
                NodeMessage::End { over, .. } => over.outcome,
                // what else nodes are asked has no answer here
                #[allow(unreachable_patterns)]
                _ => return Err(()),
            };
            told.send_replace(Some(outcome));
            Ok(())
        });
        cluster.serve(&own, &address);
        Ok(Guest { cluster, outcome })
    }

    /// Joins and plays its roles in a run with these settings; they must be the controller's. [`Node::wait`] gives the end;
    /// a node that is dropped takes itself down. One per process.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub async fn start(self, config: Config) -> anyhow::Result<Node> {
        let Self { cluster, state_dir, talk, change } = self;
        let state_dir = std::path::absolute(state_dir)?;
        let run = cluster.cluster.clone();
        let settings = serde_json::json!({
            "run": run, "config": [], "state_dir": state_dir, "cluster": cluster,
        });
        let mut node: NodeConfig = serde_json::from_value(settings)?;
        if let Some(change) = change {
            change(&mut node);
        }
        let talk = talk.unwrap_or_else(|| Arc::new(|line: &str| tracing::info!("{line}")));
        Node::start(node, config, talk).await
    }
}

/// A node without a part in the run.
pub struct Guest {
    cluster: Cluster,
    outcome: watch::Receiver<Option<String>>,
}

impl Guest {
    /// The cluster: members, events, services of one's own.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Waits until the run is led by somebody: only then questions to its [`conductor`](Self::conductor) are answered.
    ///
    /// # Errors
    /// [`NodeError::NoController`] when that takes longer; it tells what was met with instead.
    pub async fn run_is_led(&self, within: Duration) -> Result<(), NodeError> {
        let (conductor, until) = (self.conductor(), Instant::now() + within);
        while !conductor.is_bound() {
            if Instant::now() >= until {
                let seen = entry::seen(&self.cluster, None);
                return Err(NodeError::NoController { waited_s: within.as_secs(), seen });
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// The run's Conductor, wherever it is; questions before it is there fail at once, see [`run_is_led`](Self::run_is_led).
    pub fn conductor(&self) -> Address<ConductorMessage> {
        service::CONDUCTOR.anywhere(&self.cluster)
    }

    /// The run's engines.
    pub fn engines(&self) -> Address<EnginePoolMessage> {
        service::ENGINE_POOL.anywhere(&self.cluster)
    }

    /// Tells `to` of every step that is finished from now on, until what is returned is dropped.
    pub fn subscribe(&self, to: Address<StepFinished>) -> Subscribed {
        subscribe(self.conductor(), &self.cluster.me().name, to)
    }

    /// Waits for the run's end; gives it in words.
    pub async fn ended(&self) -> String {
        let mut outcome = self.outcome.clone();
        match outcome.wait_for(Option::is_some).await {
            Ok(told) => told.clone().unwrap_or_default(),
            Err(_) => "this node has left".to_owned(),
        }
    }

    /// Leaves the cluster.
    pub async fn leave(self) {
        self.cluster.leave().await;
    }
}
