//! `ractor_cluster` as the carrier of connections that were agreed upon.
//!
//! Upstream's node server gets its streams from us ([`crate::link`]); its own listener is ended at once. A session is known
//! by the label of its stream. Invariant: of a peer there is never more than one session at a time, so that upstream has
//! nothing to elect. On failure: a session that is not ready in time is stopped.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greenroom_core::Deadline;
use ractor::{Actor, ActorCell, ActorId, ActorRef};
use ractor_cluster::node::NodeServerSessionInformation;
use ractor_cluster::{
    BoxRead, BoxWrite, ClusterBidiStream, NodeEventSubscription, NodeServer, NodeServerMessage, NodeSessionMessage,
};
use tokio::sync::oneshot;

use crate::agent::{AgentMessage, GROUP, NodeAgent, agent_name};
use crate::hub::Hub;
use crate::line::FRAME_LIMIT_BYTES;
use crate::link::socket::{ReadHalf, Stream, WriteHalf};

/// What upstream's own framing adds to a batch, at the very most, and one frame more for good measure.
const SESSION_FRAME_LIMIT_BYTES: u64 = 2 * FRAME_LIMIT_BYTES as u64;

/// Upstream's node server and what is known of its sessions.
pub(crate) struct Sessions {
    server: ActorRef<NodeServerMessage>,
    agent: ActorRef<AgentMessage>,
    scope: String,
    table: Arc<Table>,
}

#[derive(Default)]
struct Table(Mutex<BTreeMap<String, Entry>>);

struct Entry {
    session: Option<ActorRef<NodeSessionMessage>>,
    ready: Option<oneshot::Sender<u64>>,
    ended: Option<oneshot::Sender<()>>,
}

/// A session that is ready.
pub(crate) struct Session {
    /// The other node's agent.
    pub agent: ActorRef<AgentMessage>,
    /// Resolves when the session has ended.
    pub ended: oneshot::Receiver<()>,
}

/// Upstream's server listens for strangers, without a bound on how many hold a connection open; ours come by
/// [`Sessions::open`] only. Nobody hears of the listener's end, or it would be started again.
fn close_listener(server: &ActorRef<NodeServerMessage>) {
    for listener in server.get_children() {
        listener.unlink(server.get_cell());
        listener.kill();
    }
}

impl Sessions {
    /// Starts the node server and this node's agent.
    pub(crate) async fn start(
        hub: &Arc<Hub>,
        node: &str,
        incarnation: u64,
        scope: &str,
        cookie: String,
    ) -> Result<Self, String> {
        let full_name = format!("{node}#{incarnation}");
        let server = NodeServer::new(0, cookie, full_name.clone(), full_name, None, None)
            .with_listen_addr(IpAddr::V4(Ipv4Addr::LOCALHOST))
            .with_max_inbound_frame_size(SESSION_FRAME_LIMIT_BYTES);
        let (server, _) = Actor::spawn(None, server, ()).await.map_err(|error| error.to_string())?;
        close_listener(&server);
        let table = Arc::<Table>::default();
        let subscription = Box::new(Events(table.clone()));
        let subscribe = NodeServerMessage::SubscribeToEvents { id: "greenroom".into(), subscription };
        server.cast(subscribe).map_err(|error| error.to_string())?;
        let name = agent_name(node, incarnation);
        let agent = Actor::spawn(Some(name), NodeAgent, hub.clone()).await;
        let (agent, _) = agent.map_err(|error| error.to_string())?;
        ractor::pg::join_scoped(scope.to_owned(), GROUP.to_owned(), vec![agent.get_cell()]);
        Ok(Self { server, agent, scope: scope.to_owned(), table })
    }

    /// Hands a stream to upstream and waits until its session with `node` is ready.
    pub(crate) async fn open(
        &self,
        label: &str,
        stream: Stream,
        is_dialled: bool,
        peer_agent: &str,
        deadline: Deadline,
    ) -> Result<Session, String> {
        let (ready_sender, ready) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let entry = Entry { session: None, ready: Some(ready_sender), ended: Some(ended_sender) };
        self.table.lock().insert(label.to_owned(), entry);
        let (read, write) = stream.into_halves();
        let stream = Box::new(Labelled { label: label.to_owned(), read, write });
        let opened = NodeServerMessage::ConnectionOpenedExternal { stream, is_server: !is_dialled };
        let waited = match self.server.cast(opened) {
            Ok(()) => tokio::time::timeout_at(deadline.instant(), ready).await,
            Err(error) => return Err(error.to_string()),
        };
        let node_id = match waited {
            Ok(Ok(node_id)) => node_id,
            Ok(Err(_)) => return Err("the session ended before it was ready".into()),
            Err(_) => {
                self.stop(label);
                self.table.lock().remove(label);
                return Err("the session was not ready in time".into());
            }
        };
        let members = ractor::pg::get_scoped_members(&self.scope, &GROUP.to_owned());
        let is_the_one = |cell: &ActorCell| {
            matches!(cell.get_id(), ActorId::Remote { node_id: of, .. } if of == node_id)
                && cell.get_name().as_deref() == Some(peer_agent)
        };
        match members.into_iter().find(is_the_one) {
            Some(agent) => Ok(Session { agent: agent.into(), ended }),
            None => {
                self.stop(label);
                Err(format!("the peer has no agent {peer_agent}"))
            }
        }
    }

    /// Stops a session at once.
    pub(crate) fn stop(&self, label: &str) {
        let session = self.table.lock().get(label).and_then(|entry| entry.session.clone());
        if let Some(session) = session {
            session.stop(Some("cut".into()));
        }
    }

    /// Whether upstream still has this session.
    pub(crate) fn has(&self, label: &str) -> bool {
        self.table.lock().contains_key(label)
    }

    /// Stops the node server and the agent.
    pub(crate) fn close(&self) {
        self.agent.stop(None);
        self.server.stop(None);
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Upstream's events, by label.
struct Events(Arc<Table>);

impl NodeEventSubscription for Events {
    fn node_session_opened(&self, session: NodeServerSessionInformation) {
        if let Some(entry) = self.0.lock().get_mut(&session.peer_addr) {
            entry.session = Some(session.actor);
        }
    }

    fn node_session_disconnected(&self, session: NodeServerSessionInformation) {
        let entry = self.0.lock().remove(&session.peer_addr);
        if let Some(ended) = entry.and_then(|entry| entry.ended) {
            // nobody may wait for it any more
            let _ = ended.send(());
        }
    }

    fn node_session_authenticated(&self, _: NodeServerSessionInformation) {}

    fn node_session_ready(&self, session: NodeServerSessionInformation) {
        let ready = self.0.lock().get_mut(&session.peer_addr).and_then(|entry| entry.ready.take());
        if let Some(ready) = ready {
            let _ = ready.send(session.node_id);
        }
    }
}

/// A stream with the name by which its session is known.
struct Labelled {
    label: String,
    read: ReadHalf,
    write: WriteHalf,
}

impl ClusterBidiStream for Labelled {
    fn split(self: Box<Self>) -> (BoxRead, BoxWrite) {
        (self.read, self.write)
    }

    fn peer_label(&self) -> Option<String> {
        Some(self.label.clone())
    }
}
