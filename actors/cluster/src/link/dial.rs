//! Dialling: each address that is wanted has a task that dials it while the node there is not connected.
//!
//! Seeds are dialled for ever; addresses heard of from others as long as others speak of them. Waits between attempts grow
//! and are jittered; a connection that is lost makes all addresses be tried at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greenroom_core::{Deadline, Random, Seed};
use rand::Rng;
use tokio::sync::watch;

use super::handshake::{Failure, Shaking};
use super::preamble::Purpose;
use super::socket::{Cutter, connect};
use crate::bulk;
use crate::hub::Hub;
use crate::line::PeerLine;

/// How long an address is dialled that nobody speaks of any more.
const FORGOTTEN_AFTER_MS: u64 = 60_000;
/// The most addresses that are dialled.
const MOST_ADDRESSES: usize = 4096;
/// How often a connected address is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The addresses that are dialled.
#[derive(Debug, Default)]
pub(crate) struct Dials {
    targets: Mutex<BTreeMap<String, Target>>,
    kicks: watch::Sender<u64>,
}

#[derive(Clone, Debug)]
struct Target {
    is_seed: bool,
    /// The node that was last found, or is said to be, at the address.
    node: Option<String>,
    /// Why the last attempt to dial failed.
    failed: Option<String>,
    wanted_until_ms: u64,
}

/// What has come of dialling a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialled {
    /// No attempt has ended yet.
    NotYet,
    /// There is a connection to this node.
    Connected(String),
    /// The last attempt failed: why, with the code where there is one.
    Failed(String),
    /// It is this very node.
    Itself,
}

impl std::fmt::Display for Dialled {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotYet => formatter.write_str("no answer yet"),
            Self::Connected(node) => write!(formatter, "connected to node {node}"),
            Self::Failed(why) => formatter.write_str(why),
            Self::Itself => formatter.write_str("this very node"),
        }
    }
}

/// What to do about an address now.
enum Plan {
    Dial { expected: Option<String> },
    Wait,
    Forget,
}

/// Growing, jittered waits.
struct BackOff {
    first_ms: u64,
    last_ms: u64,
    next_ms: u64,
    random: Random,
}

impl BackOff {
    fn new(first_ms: u64, last_ms: u64, seed: Seed) -> Self {
        Self { first_ms, last_ms, next_ms: first_ms, random: seed.random() }
    }

    fn next(&mut self) -> Duration {
        let ms = self.next_ms;
        self.next_ms = (ms * 2).min(self.last_ms);
        Duration::from_millis(self.random.random_range(ms.div_ceil(2)..=ms))
    }

    fn reset(&mut self) {
        self.next_ms = self.first_ms;
    }
}

impl Dials {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Target>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets every address that is not connected be dialled at once.
    pub(crate) fn kick(&self) {
        self.kicks.send_modify(|kicks| *kicks += 1);
    }

    fn found(&self, address: &str, node: &str) {
        if let Some(target) = self.lock().get_mut(address) {
            target.node = Some(node.to_owned());
        }
    }

    fn failed(&self, address: &str, failure: &Failure) {
        if let Some(target) = self.lock().get_mut(address) {
            target.failed = Some(failure.to_string());
        }
    }
}

impl Hub {
    /// Dials the seeds from now on.
    pub(crate) fn dial_seeds(self: &Arc<Self>) {
        for seed in &self.config.seeds {
            self.want(seed, Target { is_seed: true, node: None, failed: None, wanted_until_ms: u64::MAX });
        }
    }

    /// Somebody says, or its own connection says, that `node` can be reached at `address`.
    pub(crate) fn learn(self: &Arc<Self>, node: &str, address: &str) {
        if address == self.me.address {
            return;
        }
        let wanted_until_ms = self.moment().elapsed_ms + FORGOTTEN_AFTER_MS;
        self.want(address, Target { is_seed: false, node: Some(node.to_owned()), failed: None, wanted_until_ms });
    }

    fn want(self: &Arc<Self>, address: &str, wanted: Target) {
        let mut targets = self.dials.lock();
        if let Some(target) = targets.get_mut(address) {
            target.wanted_until_ms = target.wanted_until_ms.max(wanted.wanted_until_ms);
            target.node = target.node.take().or(wanted.node);
            return;
        }
        if targets.len() >= MOST_ADDRESSES || self.stop.is_cancelled() {
            return;
        }
        targets.insert(address.to_owned(), wanted);
        drop(targets);
        let work = keep_connected(self.clone(), address.to_owned());
        self.spawn(format!("dial {address}"), work);
    }

    /// What has come of a seed.
    pub(crate) fn dialled_seed(&self, address: &str) -> Dialled {
        let target = self.dials.lock().get(address).cloned();
        match target {
            None => Dialled::Itself,
            Some(Target { node: Some(node), .. }) if self.is_connected(&node) => Dialled::Connected(node),
            Some(Target { failed: Some(why), .. }) => Dialled::Failed(why),
            Some(_) => Dialled::NotYet,
        }
    }

    fn plan(&self, address: &str) -> Plan {
        let Some(target) = self.dials.lock().get(address).cloned() else { return Plan::Forget };
        if target.node.as_deref().is_some_and(|node| self.is_connected(node)) {
            return Plan::Wait;
        }
        if target.is_seed {
            return Plan::Dial { expected: None };
        }
        let is_up = |node: &String| self.newest(node).is_some_and(|incarnation| self.is_up(node, incarnation));
        if self.moment().elapsed_ms < target.wanted_until_ms || target.node.as_ref().is_some_and(is_up) {
            return Plan::Dial { expected: target.node };
        }
        Plan::Forget
    }
}

async fn keep_connected(hub: Arc<Hub>, address: String) {
    let seed = hub.seam.seed.child("cluster dial").child(&hub.me.node).child(&address);
    let mut back_off = BackOff::new(hub.config.retry_first_ms, hub.config.retry_last_ms, seed);
    let mut kicks = hub.dials.kicks.subscribe();
    loop {
        let wait = match hub.plan(&address) {
            Plan::Forget => break,
            Plan::Wait => {
                back_off.reset();
                LOOK
            }
            Plan::Dial { expected } => match dial(&hub, &address, expected.as_deref()).await {
                Ok(()) => continue,
                Err(Failure::Itself) => break,
                Err(failure) => {
                    if matches!(failure, Failure::Unreachable) {
                        hub.nobody_at(&address);
                    }
                    hub.dials.failed(&address, &failure);
                    hub.failed(&address, &failure);
                    back_off.next()
                }
            },
        };
        tokio::select! {
            // the sender lives as long as the hub
            _ = kicks.changed() => back_off.reset(),
            () = tokio::time::sleep(wait) => {}
        }
    }
    hub.dials.lock().remove(&address);
}

/// Dials once; when that succeeds, the node there is connected.
async fn dial(hub: &Arc<Hub>, address: &str, expected: Option<&str>) -> Result<(), Failure> {
    let deadline = Deadline::after_ms(hub.config.handshake_ms);
    let (mut shaking, cutter) = reach(hub, address, expected, deadline).await?;
    let begun = agree(hub, address, &mut shaking, cutter).await;
    let agreed = match begun {
        Ok(agreed) => agreed,
        Err(failure) => {
            shaking.turn_down(&failure).await;
            return Err(failure);
        }
    };
    let line = agreed.line.clone();
    hub.carry(agreed, shaking.stream).await?;
    let (address, work) = (address.to_owned(), hub.clone());
    hub.spawn(format!("bulk to {address}"), keep_bulk(work, address, line));
    Ok(())
}

async fn reach(
    hub: &Hub,
    address: &str,
    expected: Option<&str>,
    deadline: Deadline,
) -> Result<(Shaking, Cutter), Failure> {
    let connecting = connect(address, hub.config.tcp_user_timeout_ms);
    let connected = tokio::time::timeout_at(deadline.instant(), connecting).await;
    let connected = connected.map_err(|_| Failure::Broken("no connection in time".into()))?;
    let (stream, cutter) = connected.map_err(|error| Failure::of_io(&error))?;
    let shaking = Shaking::dialled(stream, hub.identity.as_ref(), expected, deadline).await?;
    Ok((shaking, cutter))
}

async fn agree(
    hub: &Arc<Hub>,
    address: &str,
    shaking: &mut Shaking,
    cutter: Cutter,
) -> Result<crate::connections::Agreed, Failure> {
    let welcome = shaking.introduce(&hub.me, Purpose::Control, &hub.cookie).await?.said;
    hub.dials.found(address, &welcome.who.node);
    hub.admit(&welcome.who, shaking.party.as_ref())?;
    let (begin, agreed) = hub.dialled(&welcome, shaking.party.as_ref(), cutter)?;
    if let Err(failure) = shaking.begin(&begin).await {
        hub.lost(&agreed.line, begin.connection, false);
        return Err(failure);
    }
    Ok(agreed)
}

/// Keeps a connection for bulk beside the control connection, dialled by the same side, until that is gone.
async fn keep_bulk(hub: Arc<Hub>, address: String, line: Arc<PeerLine>) {
    let seed = hub.seam.seed.child("cluster bulk").child(&hub.me.node).child(&address);
    let mut back_off = BackOff::new(hub.config.retry_first_ms, hub.config.retry_last_ms, seed);
    let Some(connection) = line.connection() else { return };
    while line.connection() == Some(connection) {
        let deadline = Deadline::after_ms(hub.config.handshake_ms);
        match dial_bulk(&hub, &address, &line, deadline).await {
            Ok((shaking, cutter)) => {
                back_off.reset();
                bulk::carry(line.clone(), shaking.stream, cutter, connection).await;
            }
            Err(failure) => hub.failed(&address, &failure),
        }
        tokio::time::sleep(back_off.next()).await;
    }
}

async fn dial_bulk(
    hub: &Hub,
    address: &str,
    line: &PeerLine,
    deadline: Deadline,
) -> Result<(Shaking, Cutter), Failure> {
    let (mut shaking, cutter) = reach(hub, address, Some(line.node()), deadline).await?;
    let welcome = shaking.introduce(&hub.me, Purpose::Bulk { line: line.id() }, &hub.cookie).await?.said;
    if (welcome.who.node.as_str(), welcome.who.incarnation) != (line.node(), line.incarnation()) {
        return Err(Failure::Duplicate("another node answered for bulk"));
    }
    let begin = super::preamble::Begin { connection: 0, line: line.id(), is_new: false, lost: None };
    shaking.begin(&begin).await?;
    Ok((shaking, cutter))
}
