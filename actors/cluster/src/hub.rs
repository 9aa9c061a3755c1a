//! What a node knows: itself, its members, its lines and services; and what follows when one of these changes.
//!
//! Invariants: a line is up exactly while its node is, so what ends a node ends its line; events are published in the order
//! in which the membership changed. Locks are taken in the order peers, lines, membership, and none is held while a line is
//! ended, because that runs foreign code.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use greenroom_core::wire::Target;
use greenroom_core::{Address, Seam, spawn_named};
use greenroom_identity::{CertificateRole, Identity};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::bulk::plane::BulkPlane;
use crate::connections::Peer;
use crate::events::EventHub;
use crate::line::frame::Batch;
use crate::line::{LineLimits, Owner, PeerLine};
use crate::link::cookie::Cookie;
use crate::link::dial::Dials;
use crate::link::handshake::Failure;
use crate::link::preamble::Introduction;
use crate::membership::{Membership, Moment};
use crate::quiet::Quiet;
use crate::service::{Audience, Provider, Services};
use crate::sessions::Sessions;
use crate::{ClusterConfig, Member, MemberEvent, MemberState};

/// How many peers' refusals are told apart in the log.
const REMEMBERED_REFUSALS: usize = 256;

/// The middle of a node.
pub(crate) struct Hub {
    pub(crate) me: Introduction,
    pub(crate) config: ClusterConfig,
    pub(crate) seam: Seam,
    pub(crate) identity: Option<Identity>,
    pub(crate) cookie: Cookie,
    pub(crate) sessions: OnceLock<Sessions>,
    pub(crate) peers: Mutex<BTreeMap<String, Peer>>,
    pub(crate) lines: RwLock<BTreeMap<u64, Arc<PeerLine>>>,
    pub(crate) dials: Dials,
    pub(crate) events: EventHub,
    pub(crate) bulk_plane: OnceLock<BulkPlane>,
    /// Cancelled when the node leaves or is fenced.
    pub(crate) stop: CancellationToken,
    /// Changes with the members or their services.
    pub(crate) view: watch::Sender<u64>,
    membership: Mutex<Membership>,
    services: Services,
    offers: AtomicU64,
    refreshing: Mutex<()>,
    fenced: OnceLock<u64>,
    refusals: Mutex<BTreeMap<String, Quiet>>,
    myself: Weak<Hub>,
}

impl Hub {
    pub(crate) fn new(
        me: Introduction,
        config: ClusterConfig,
        seam: Seam,
        identity: Option<Identity>,
        cookie: Cookie,
    ) -> Arc<Self> {
        let membership = Membership::new(config.suspect_ms, config.dead_ms);
        Arc::new_cyclic(|myself| Self {
            me,
            config,
            seam,
            identity,
            cookie,
            sessions: OnceLock::new(),
            peers: Mutex::default(),
            lines: RwLock::default(),
            dials: Dials::default(),
            events: EventHub::default(),
            bulk_plane: OnceLock::new(),
            stop: CancellationToken::new(),
            view: watch::Sender::new(0),
            membership: Mutex::new(membership),
            services: Services::default(),
            offers: AtomicU64::new(0),
            refreshing: Mutex::default(),
            fenced: OnceLock::new(),
            refusals: Mutex::default(),
            myself: myself.clone(),
        })
    }

    pub(crate) fn owner(&self) -> Weak<dyn Owner> {
        self.myself.clone()
    }

    pub(crate) fn arc(&self) -> Option<Arc<Self>> {
        self.myself.upgrade()
    }

    pub(crate) fn limits(&self) -> LineLimits {
        let config = &self.config;
        LineLimits {
            bulk_threshold_bytes: config.bulk_threshold_bytes,
            bulk_in_flight_bytes: config.bulk_in_flight_bytes,
            bulk_deadline_ms: config.bulk_deadline_ms,
            unacknowledged_bytes: config.unacknowledged_bytes,
            unacknowledged_messages: config.unacknowledged_messages,
            open_questions: config.open_questions,
        }
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment { elapsed_ms: self.seam.clock.elapsed_ms(), date_ms: self.seam.clock.now_ms() }
    }

    fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn newest(&self, node: &str) -> Option<u64> {
        self.membership().newest(node)
    }

    pub(crate) fn is_up(&self, node: &str, incarnation: u64) -> bool {
        self.membership().is_up(node, incarnation)
    }

    /// This node as a member.
    pub(crate) fn myself_as_member(&self) -> Member {
        let now_ms = self.seam.clock.now_ms();
        Member {
            name: self.me.node.clone(),
            incarnation: self.me.incarnation,
            roles: self.me.roles.clone(),
            address: self.me.address.clone(),
            state: if self.stop.is_cancelled() { MemberState::Left } else { MemberState::Alive },
            since_ms: now_ms.saturating_sub(self.seam.clock.elapsed_ms()),
            services: self.services.names(),
            certificate: self.identity.as_ref().map(|identity| identity.party().role),
            build: self.me.build.clone(),
            clock_skew_ms: Some(0),
            last_heard_ms: now_ms,
            round_trip_ms: Some(0.0),
        }
    }

    /// All members and this node, sorted by name.
    pub(crate) fn members(&self) -> Vec<Member> {
        let mut members = self.membership().members();
        members.push(self.myself_as_member());
        members.sort_by(|one, other| one.name.cmp(&other.name));
        members
    }

    fn plays_a_role(&self, node: &str) -> bool {
        self.membership().member(node).is_some_and(Member::plays_a_role)
    }

    /// Changes the membership, publishes what happened, and does what follows from it.
    pub(crate) fn apply(&self, change: impl FnOnce(&mut Membership, Moment) -> Vec<MemberEvent>) {
        let mut membership = self.membership();
        let events = change(&mut membership, self.moment());
        events.iter().for_each(|event| self.events.publish(event));
        drop(membership);
        if events.is_empty() {
            return;
        }
        for event in &events {
            match event {
                // a shell may be killed at will
                MemberEvent::Died { node, incarnation, reason } if !self.plays_a_role(node) => {
                    tracing::info!(code = "GR1213", node, incarnation, reason, "a shell is held for dead");
                    self.end_line(node, *incarnation, reason);
                }
                MemberEvent::Died { node, incarnation, reason } => {
                    tracing::warn!(code = "GR1213", node, incarnation, reason, "a node is held for dead");
                    self.end_line(node, *incarnation, reason);
                }
                MemberEvent::Left { node, incarnation } => {
                    tracing::info!(node, incarnation, "a node has left");
                    self.end_line(node, *incarnation, "it has left the cluster");
                }
                MemberEvent::Joined(member) => {
                    let Member { name, incarnation, roles, address, .. } = member;
                    tracing::info!(node = name, incarnation, ?roles, address, "a node has joined");
                }
                MemberEvent::Suspect { node, .. } if !self.plays_a_role(node) => {
                    tracing::info!(node, "a shell is silent")
                }
                MemberEvent::Suspect { node, .. } => tracing::warn!(node, "a node is silent"),
                MemberEvent::Recovered { node, .. } => tracing::info!(node, "a silent node is heard again"),
                MemberEvent::Services { .. } | MemberEvent::Refused { .. } | MemberEvent::Fenced { .. } => {}
            }
        }
        self.changed();
    }

    /// Members or services have changed: addresses follow, and who waits for a gang looks again.
    pub(crate) fn changed(&self) {
        let _refreshing = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        self.services.refresh(&self.me.node, &self.providers());
        self.view.send_modify(|version| *version += 1);
    }

    fn providers(&self) -> Vec<Provider> {
        let up = self.membership().members();
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let provider = |member: Member| {
            let line = peers.get(&member.name)?.line_of(member.incarnation)?;
            let Member { name: node, incarnation, services, .. } = member;
            Some(Provider { node, incarnation, services, line })
        };
        up.into_iter().filter(Member::is_up).filter_map(provider).collect()
    }

    /// Offers a service.
    pub(crate) fn offer<M>(&self, service: &str, address: &Address<M>, audience: Audience)
    where
        M: DeserializeOwned + Send + 'static,
    {
        self.services.offer(service, address, self.offers.fetch_add(1, Ordering::Relaxed), audience);
        self.offers_changed();
    }

    /// Offers a service no more.
    pub(crate) fn withdraw(&self, service: &str) {
        if self.services.withdraw(service) {
            self.offers_changed();
        }
    }

    fn offers_changed(&self) {
        let names = self.services.names();
        self.all_lines().iter().for_each(|line| line.push_services(&names));
        self.changed();
    }

    pub(crate) fn offered(&self) -> Vec<String> {
        self.services.names()
    }

    /// The address that follows a service.
    pub(crate) fn follow<M>(&self, node: Option<&str>, service: &str) -> Address<M>
    where
        M: Serialize + DeserializeOwned + Send + 'static,
    {
        let _refreshing = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        self.services.followed(node, service, &self.me.node, &self.providers())
    }

    pub(crate) fn all_lines(&self) -> Vec<Arc<PeerLine>> {
        self.lines.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A batch arrived at this node's agent.
    pub(crate) fn receive(&self, batch: &[u8]) {
        let batch = match Batch::parse(batch) {
            Ok(batch) => batch,
            Err(malformed) => return self.report("a member", &format!("GR1217: {malformed}")),
        };
        let line = self.lines.read().unwrap_or_else(PoisonError::into_inner).get(&batch.line).cloned();
        // the batch of a line that has ended is late, nothing else
        if let Some(line) = line {
            line.receive(batch);
        }
    }

    /// Looks at the members' silence until the node stops.
    pub(crate) async fn watch_silence(self: Arc<Self>) {
        let beat = Duration::from_millis((self.config.heartbeat_ms / 4).max(5));
        let mut tick = interval(beat);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_ms = self.moment().elapsed_ms;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let now = self.moment();
            // while this process itself stood still, nobody can have been heard
            let stalled_ms = (now.elapsed_ms - last_ms).saturating_sub(self.config.heartbeat_ms);
            last_ms = now.elapsed_ms;
            let heard: Vec<_> = self
                .all_lines()
                .iter()
                .map(|line| (line.node().to_owned(), line.incarnation(), line.heard_ms()))
                .collect();
            self.apply(|membership, now| {
                membership.excuse(stalled_ms);
                let mut events = Vec::new();
                for (node, incarnation, heard_ms) in heard {
                    let silent_ms = now.elapsed_ms.saturating_sub(heard_ms);
                    let at = Moment { elapsed_ms: heard_ms, date_ms: now.date_ms.saturating_sub(silent_ms) };
                    events.extend(membership.heard(&node, incarnation, at));
                }
                events.extend(membership.tick(now));
                events
            });
        }
    }

    /// Tells people and subscribers of a peer that was turned away, or turned us away; not more than once a second for each
    /// peer and code.
    pub(crate) fn report(&self, peer: &str, reason: &str) {
        self.tell_of_refusal(peer, reason, false);
    }

    fn tell_of_refusal(&self, peer: &str, reason: &str, by_peer: bool) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.len() > REMEMBERED_REFUSALS {
            refusals.clear();
        }
        let code = reason.split(':').next().unwrap_or_default();
        let may_speak = refusals.entry(format!("{peer} {code}")).or_default().may_speak();
        drop(refusals);
        if let Some(left_out) = may_speak {
            match by_peer {
                true => tracing::warn!(peer, reason, left_out, "this node was refused by a peer"),
                false => tracing::warn!(peer, reason, left_out, "a peer was refused"),
            }
            self.events.publish(&MemberEvent::Refused { peer: peer.to_owned(), reason: reason.to_owned() });
        }
    }

    /// What a failed handshake means for this node.
    pub(crate) fn failed(&self, peer: &str, failure: &Failure) {
        if let Failure::FencedByPeer { by } = failure {
            self.fence(*by);
        } else if failure.is_worth_telling() {
            self.tell_of_refusal(peer, &failure.to_string(), matches!(failure, Failure::ByPeer(_)));
        } else {
            tracing::debug!(peer, %failure, "no connection");
        }
    }

    /// A newer incarnation of this node is in the cluster: nothing more is done under its name.
    fn fence(&self, by: u64) {
        if self.fenced.set(by).is_err() {
            return;
        }
        tracing::error!(code = "GR1209", by, mine = self.me.incarnation, "a newer incarnation fences this node");
        self.events.publish(&MemberEvent::Fenced { by });
        self.close(&format!("this node is fenced by its incarnation {by} (GR1209)"));
    }

    /// The newer incarnation that fenced this one.
    pub(crate) fn fenced_by(&self) -> Option<u64> {
        self.fenced.get().copied()
    }

    /// Ends all lines and stops all work.
    pub(crate) fn close(&self, cause: &str) {
        self.stop.cancel();
        for line in self.all_lines() {
            self.end_line(line.node(), line.incarnation(), cause);
        }
        self.changed();
        if let Some(sessions) = self.sessions.get() {
            sessions.close();
        }
    }

    /// Runs a task until the node stops.
    pub(crate) fn spawn(&self, name: String, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        spawn_named(name, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }
}

impl Owner for Hub {
    fn target(&self, line: &PeerLine, service: &str) -> Result<Arc<dyn Target>, String> {
        self.services.target(service, line.certificate())
    }

    fn bulk_plane(&self) -> Option<BulkPlane> {
        self.bulk_plane.get().cloned()
    }

    fn offers(&self, line: &PeerLine) {
        // who only looks and steers must not take the place of somebody who serves
        if line.certificate().is_some_and(|role| role != CertificateRole::Node) {
            return;
        }
        let Some(offered) = line.offered() else { return };
        self.apply(|membership, _| membership.offers(line.node(), line.incarnation(), offered));
    }

    fn leaving(&self, line: &PeerLine) {
        self.apply(|membership, now| membership.left(line.node(), line.incarnation(), now));
        // it may not have joined yet
        self.end_line(line.node(), line.incarnation(), "it has left the cluster");
    }

    fn measured(&self, line: &PeerLine, skew_ms: i64, round_trip_ms: Option<f64>) {
        self.membership().measured(line.node(), line.incarnation(), skew_ms, round_trip_ms);
    }

    fn gossip(&self, members: Vec<(String, u64, String)>) {
        let Some(hub) = self.arc() else { return };
        for (node, incarnation, address) in members {
            let is_old = self.newest(&node).is_some_and(|newest| newest > incarnation);
            if node != self.me.node && !address.is_empty() && !is_old {
                hub.learn(&node, &address);
            }
        }
    }

    fn gossip_for(&self, line: &PeerLine) -> Vec<(String, u64, String)> {
        let members = self.membership().members();
        let told = members.into_iter().filter(|member| member.is_up() && member.name != line.node());
        told.map(|member| (member.name, member.incarnation, member.address)).collect()
    }

    fn broken(&self, line: &PeerLine, reason: &str, is_beyond_repair: bool) {
        self.report(line.node(), &format!("GR1217: {reason}"));
        if is_beyond_repair {
            let (node, incarnation) = (line.node(), line.incarnation());
            self.apply(|membership, now| membership.died(node, incarnation, reason, now));
            // it may not have joined yet
            self.end_line(node, incarnation, reason);
        } else {
            self.cut(line.node());
        }
    }
}
