//! Peers, their lines and their connections: what is begun, taken over, lost and ended.
//!
//! Each change is decided under the lock of the peers by [`crate::link::agree`]; what follows (cutting a connection, ending
//! a line) happens after it.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use greenroom_core::{Deadline, spawn_named};
use greenroom_identity::{CertificateRole, PeerIdentity};

use crate::agent::{AgentMessage, agent_name};
use crate::hub::Hub;
use crate::line::{Ends, Owner, PeerLine, Way, pump_line};
use crate::link::agree::{Accepted, Held, Standing, accepted, goes_on, takes_over};
use crate::link::cookie::unguessable_number;
use crate::link::handshake::Failure;
use crate::link::preamble::{Begin, Introduction, Welcome};
use crate::link::socket::{Cutter, Stream};
use crate::{Member, MemberState, SHELL};

/// How often nobody may listen at a peer's address, once its connection is lost, until it is held for dead.
const UNREACHABLE_TIMES: u32 = 2;
/// How many peers are kept before those who are gone are forgotten.
const REMEMBERED_PEERS: usize = 4096;
/// How long an old session may take to end before a new one begins regardless.
const OLD_SESSION_MS: u64 = 2000;

/// What is known of another node's connection to here.
#[derive(Debug)]
pub(crate) struct Peer {
    who: Introduction,
    certificate: Option<CertificateRole>,
    line: Option<LineOf>,
    ended_line: Option<u64>,
    standing: Option<Connected>,
    last_connection: Option<u64>,
    /// How often nobody listened at its address since its connection was lost.
    unreachable: u32,
}

/// A line that shows itself as its number.
struct LineOf(Arc<PeerLine>);

impl std::fmt::Debug for LineOf {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "line {:x}", self.0.id())
    }
}

#[derive(Debug)]
struct Connected {
    standing: Standing,
    cutter: Cutter,
}

/// A connection that both sides agreed upon and that is about to carry its line.
pub(crate) struct Agreed {
    pub line: Arc<PeerLine>,
    pub connection: u64,
    pub is_dialled: bool,
    /// The connection it takes the place of.
    replaced: Option<u64>,
}

/// What has to be done once the lock is released.
#[derive(Default)]
struct Aftermath {
    cut: Option<Connected>,
    ended: Option<(Arc<PeerLine>, &'static str)>,
}

impl Peer {
    fn new(who: &Introduction, party: Option<&PeerIdentity>) -> Self {
        Self {
            who: who.clone(),
            certificate: party.map(|party| party.role),
            line: None,
            ended_line: None,
            standing: None,
            last_connection: None,
            unreachable: 0,
        }
    }

    /// The line to this incarnation of the node.
    pub(crate) fn line_of(&self, incarnation: u64) -> Option<Arc<PeerLine>> {
        let line = self.line.as_ref().filter(|_| self.who.incarnation == incarnation);
        line.map(|line| line.0.clone())
    }

    fn end_line(&mut self, aftermath: &mut Aftermath, cause: &'static str) {
        if let Some(LineOf(line)) = self.line.take() {
            self.ended_line = Some(line.id());
            aftermath.ended = Some((line, cause));
        }
    }
}

impl Hub {
    fn peers(&self) -> MutexGuard<'_, std::collections::BTreeMap<String, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a peer may come in at all: its certificate fits its name and roles, and no newer incarnation is known.
    pub(crate) fn admit(&self, who: &Introduction, party: Option<&PeerIdentity>) -> Result<(), Failure> {
        if let Some(party) = party {
            let is_shell = who.roles.len() == 1 && who.roles[0] == SHELL;
            let fits = match party.role {
                CertificateRole::Node => who.node == party.name,
                CertificateRole::Operator | CertificateRole::Viewer => is_shell && who.node.starts_with(&party.name),
            };
            if !fits {
                let Introduction { node, roles, .. } = who;
                return Err(Failure::Certificate(format!("the certificate of {party} does not fit {node} {roles:?}")));
            }
        }
        let newest = self.peers().get(&who.node).map(|peer| peer.who.incarnation).max(self.newest(&who.node));
        match newest.filter(|newest| *newest > who.incarnation) {
            Some(by) => Err(Failure::Fenced { node: who.node.clone(), incarnation: who.incarnation, by }),
            None => Ok(()),
        }
    }

    /// The line to this incarnation of a peer that is held here, and the one that was ended last.
    pub(crate) fn held(&self, who: &Introduction) -> (Option<u64>, Option<u64>) {
        let peers = self.peers();
        let peer = peers.get(&who.node).filter(|peer| peer.who.incarnation == who.incarnation);
        peer.map_or((None, None), |peer| (peer.line.as_ref().map(|line| line.0.id()), peer.ended_line))
    }

    /// A peer's line, for a bulk connection.
    pub(crate) fn line_to(&self, who: &Introduction, line: u64) -> Option<Arc<PeerLine>> {
        let found = self.peers().get(&who.node)?.line_of(who.incarnation)?;
        (found.id() == line).then_some(found)
    }

    pub(crate) fn is_connected(&self, node: &str) -> bool {
        self.peers().get(node).is_some_and(|peer| peer.standing.is_some())
    }

    /// The dialler was welcomed: what does it begin?
    pub(crate) fn dialled(
        &self,
        welcome: &Welcome,
        party: Option<&PeerIdentity>,
        cutter: Cutter,
    ) -> Result<(Begin, Agreed), Failure> {
        let numbers = unguessable_number().and_then(|one| Ok((one, unguessable_number()?)));
        let (connection, new_line) = numbers.map_err(|error| Failure::Broken(error.to_string()))?;
        let mut aftermath = Aftermath::default();
        let mut peers = self.peers();
        let peer = self.peer(&mut peers, &welcome.who, party, &mut aftermath);
        if peer.standing.is_some() {
            return Err(Failure::Duplicate("there is another connection"));
        }
        let held = peer.line.as_ref().map(|line| Held { line: line.0.id(), has_received: line.0.has_received() });
        let kept = held.filter(|held| goes_on(*held, welcome.line, welcome.ended));
        if kept.is_none() {
            peer.end_line(&mut aftermath, "it gave the line up");
        }
        let line = self.line(peer, kept.map_or(new_line, |kept| kept.line));
        let standing = Standing { connection, is_dialled: true };
        peer.standing = Some(Connected { standing, cutter });
        let is_new = welcome.line != Some(line.id());
        let begin = Begin { connection, line: line.id(), is_new, lost: peer.last_connection };
        let agreed = Agreed { line, connection, is_dialled: true, replaced: peer.last_connection };
        drop(peers);
        self.follow_up(aftermath);
        Ok((begin, agreed))
    }

    /// The dialler has said what begins: is that so?
    pub(crate) fn accepted(
        &self,
        who: &Introduction,
        party: Option<&PeerIdentity>,
        begin: &Begin,
        cutter: Cutter,
    ) -> Result<Agreed, Failure> {
        let mut aftermath = Aftermath::default();
        let agreed = self.accepted_under_lock(who, party, begin, cutter, &mut aftermath);
        self.follow_up(aftermath);
        agreed
    }

    fn accepted_under_lock(
        &self,
        who: &Introduction,
        party: Option<&PeerIdentity>,
        begin: &Begin,
        cutter: Cutter,
        aftermath: &mut Aftermath,
    ) -> Result<Agreed, Failure> {
        let mut peers = self.peers();
        let peer = self.peer(&mut peers, who, party, aftermath);
        if peer.who.incarnation != who.incarnation {
            return Err(Failure::Duplicate("a newer incarnation has come"));
        }
        let standing = peer.standing.as_ref().map(|connected| connected.standing);
        if !takes_over(standing, &self.me.node, &who.node, begin) {
            return Err(Failure::Duplicate("there is another connection"));
        }
        let mine = peer.line.as_ref().map(|line| line.0.id());
        match accepted(mine, peer.ended_line, begin) {
            Accepted::GoesOn => {}
            Accepted::Begins => peer.end_line(aftermath, "it gave the line up"),
            Accepted::Useless => return Err(Failure::Duplicate("the line has ended meanwhile")),
        }
        let line = self.line(peer, begin.line);
        let replaced = standing.map(|standing| standing.connection).or(peer.last_connection);
        let standing = Standing { connection: begin.connection, is_dialled: false };
        if let Some(old) = peer.standing.replace(Connected { standing, cutter }) {
            aftermath.cut = Some(old);
        }
        Ok(Agreed { line, connection: begin.connection, is_dialled: false, replaced })
    }

    /// The entry of a peer, made anew when this is a newer incarnation.
    fn peer<'a>(
        &self,
        peers: &'a mut std::collections::BTreeMap<String, Peer>,
        who: &Introduction,
        party: Option<&PeerIdentity>,
        aftermath: &mut Aftermath,
    ) -> &'a mut Peer {
        if peers.len() >= REMEMBERED_PEERS {
            peers.retain(|_, peer| peer.line.is_some() || peer.standing.is_some());
        }
        let peer = peers.entry(who.node.clone()).or_insert_with(|| Peer::new(who, party));
        if peer.who.incarnation < who.incarnation {
            peer.end_line(aftermath, "it was restarted");
            aftermath.cut = peer.standing.take();
            *peer = Peer::new(who, party);
        }
        peer
    }

    /// The line of a peer, begun if there is none.
    fn line(&self, peer: &mut Peer, id: u64) -> Arc<PeerLine> {
        if let Some(LineOf(line)) = &peer.line {
            return line.clone();
        }
        let Introduction { node, incarnation, .. } = peer.who.clone();
        let ends = Ends { id, me: self.me.node.clone(), node, incarnation, certificate: peer.certificate };
        let line = PeerLine::new(ends, self.limits(), self.seam.clock, self.owner());
        line.push_services(&self.offered());
        self.lines.write().unwrap_or_else(PoisonError::into_inner).insert(id, line.clone());
        peer.line = Some(LineOf(line.clone()));
        spawn_named(format!("line to {}", line.node()), pump_line(line.clone(), self.heartbeat()));
        line
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.config.heartbeat_ms)
    }

    fn follow_up(&self, aftermath: Aftermath) {
        if let Some(connected) = aftermath.cut {
            self.drop_connection(&connected);
        }
        if let Some((line, cause)) = aftermath.ended {
            self.forget_line(&line, cause);
        }
    }

    fn drop_connection(&self, connected: &Connected) {
        connected.cutter.cut();
        if let Some(sessions) = self.sessions.get() {
            sessions.stop(&label(connected.standing.connection));
        }
    }

    fn forget_line(&self, line: &Arc<PeerLine>, cause: &str) {
        self.lines.write().unwrap_or_else(PoisonError::into_inner).remove(&line.id());
        line.end(cause);
    }

    /// Ends the line to this incarnation of a node and cuts its connection.
    pub(crate) fn end_line(&self, node: &str, incarnation: u64, cause: &str) {
        let mut peers = self.peers();
        let Some(peer) = peers.get_mut(node).filter(|peer| peer.who.incarnation == incarnation) else { return };
        let line = peer.line.take();
        let connected = peer.standing.take();
        if let Some(LineOf(line)) = &line {
            peer.ended_line = Some(line.id());
        }
        if let Some(connected) = &connected {
            peer.last_connection = Some(connected.standing.connection);
        }
        drop(peers);
        if let Some(connected) = connected {
            self.drop_connection(&connected);
        }
        if let Some(LineOf(line)) = line {
            self.forget_line(&line, cause);
        }
    }

    /// Cuts the connection to a node; its line goes on over the next one.
    pub(crate) fn cut(&self, node: &str) {
        if let Some(connected) = self.peers().get(node).and_then(|peer| peer.standing.as_ref()) {
            connected.cutter.cut();
        }
    }

    /// Gives an agreed connection to the session layer. Returns when its session is ready; a task waits for its end.
    pub(crate) async fn carry(self: &Arc<Self>, agreed: Agreed, stream: Stream) -> Result<(), Failure> {
        let Agreed { line, connection, is_dialled, replaced } = agreed;
        let opened = self.open_session(&line, connection, is_dialled, replaced, stream).await;
        let session = match opened {
            Ok(session) => session,
            Err(reason) => {
                self.lost(&line, connection, false);
                return Err(Failure::Broken(reason));
            }
        };
        let agent = session.agent;
        let way: Way = Arc::new(move |batch| agent.send_message(AgentMessage(batch)).is_ok());
        line.connected(connection, way);
        self.joined(&line);
        let hub = self.clone();
        spawn_named(format!("connection to {}", line.node()), async move {
            // an error says that the node server is gone, and so is the session
            let _ = session.ended.await;
            hub.lost(&line, connection, true);
        });
        Ok(())
    }

    async fn open_session(
        &self,
        line: &PeerLine,
        connection: u64,
        is_dialled: bool,
        replaced: Option<u64>,
        stream: Stream,
    ) -> Result<crate::sessions::Session, String> {
        let sessions = self.sessions.get().ok_or("the node has not started yet")?;
        if let Some(old) = replaced.map(label) {
            // two sessions of one peer would be put to an election, which the old one may win
            let patience = Deadline::after_ms(OLD_SESSION_MS);
            while sessions.has(&old) && !patience.has_passed() {
                sessions.stop(&old);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        let deadline = Deadline::after_ms(self.config.handshake_ms);
        let agent = agent_name(line.node(), line.incarnation());
        sessions.open(&label(connection), stream, is_dialled, &agent, deadline).await
    }

    /// A node is connected: it is in.
    fn joined(&self, line: &PeerLine) {
        let mut peers = self.peers();
        let Some(peer) = peers.get_mut(line.node()).filter(|peer| peer.who.incarnation == line.incarnation()) else {
            return;
        };
        peer.unreachable = 0;
        let member = Member {
            name: peer.who.node.clone(),
            incarnation: peer.who.incarnation,
            roles: peer.who.roles.clone(),
            address: peer.who.address.clone(),
            state: MemberState::Alive,
            since_ms: 0,
            services: Vec::new(),
            certificate: peer.certificate,
            build: peer.who.build.clone(),
            clock_skew_ms: None,
            last_heard_ms: 0,
            round_trip_ms: None,
        };
        let address = peer.who.address.clone();
        drop(peers);
        self.apply(|membership, now| membership.joined(member, now));
        // what it offers may have been heard before it was in
        Owner::offers(self, line);
        // its line may be another one though it was up all the time: who had held us for dead has ended the line between us
        self.changed();
        if let Some(hub) = self.arc()
            && !address.is_empty()
        {
            hub.learn(line.node(), &address);
        }
    }

    /// A connection is gone: another one is dialled, and the line waits for it.
    pub(crate) fn lost(&self, line: &PeerLine, connection: u64, was_ready: bool) {
        let mut peers = self.peers();
        let peer = peers.get_mut(line.node()).filter(|peer| peer.who.incarnation == line.incarnation());
        if let Some(peer) = peer
            && peer.standing.as_ref().is_some_and(|connected| connected.standing.connection == connection)
        {
            peer.standing = None;
            peer.last_connection = Some(connection);
            peer.unreachable = 0;
        }
        drop(peers);
        line.disconnected(connection);
        if !self.is_up(line.node(), line.incarnation()) {
            self.end_line(line.node(), line.incarnation(), "its connection was lost before it had joined");
        }
        if was_ready && !line.has_ended() && !self.stop.is_cancelled() {
            tracing::info!(node = line.node(), "a connection is lost; dialling anew");
            self.dials.kick();
        }
    }

    /// Nobody listens at an address. A peer whose connection is lost and who listens no more is dead.
    pub(crate) fn nobody_at(&self, address: &str) {
        let mut dead = Vec::new();
        for peer in self.peers().values_mut() {
            if peer.who.address == address && peer.standing.is_none() && peer.line.is_some() {
                peer.unreachable += 1;
                if peer.unreachable >= UNREACHABLE_TIMES {
                    dead.push((peer.who.node.clone(), peer.who.incarnation));
                }
            }
        }
        for (node, incarnation) in dead {
            let reason = format!("its connection is lost and nobody listens at {address} any more");
            self.apply(|membership, now| membership.died(&node, incarnation, &reason, now));
            self.end_line(&node, incarnation, &reason);
        }
    }
}

fn label(connection: u64) -> String {
    format!("connection-{connection:016x}")
}
