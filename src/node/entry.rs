//! How a node gets in: it says where it listens and hears what ends nodes, enlists with the controller, and waits for the gang.
//!
//! The controller enlists nobody but answers: from the first moment on, also when its run is complete. On failure the cluster
//! is left by who started it.

use std::time::Duration;

use anyhow::Context;
use greenroom_cluster::{Cluster, MemberEvent};
use greenroom_core::{Address, Deadline, Seam, ask};
use greenroom_identity::Identity;
use greenroom_messages::RunId;
use greenroom_messages::node::{ControllerMessage, Enlist, Enlisted, NodeMessage, NotEnlisted};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::controller::{self, Ledger};
use super::site::Site;
use super::staff::Staff;
use super::{ADDRESS_FILE, ENLIST_PAUSE, Event, Node, NodeConfig, NodeError, bulk, ended, outbox, service};
use crate::config::Config;
use crate::parts::Common;
use crate::up::{Talk, inputs};

/// How long a node whose run was completed looks for a controller that wants it all the same.
const OVER_WAIT: Duration = Duration::from_secs(15);
const ENLIST_WAIT_MS: u64 = 10_000;

/// A node on its way in.
pub(super) struct Entry {
    pub(super) node: NodeConfig,
    pub(super) config: Config,
    pub(super) seam: Seam,
    pub(super) identity: Option<Identity>,
    pub(super) run: RunId,
    pub(super) settings: String,
    pub(super) ledger: Option<Ledger>,
    pub(super) talk: Talk,
}

impl Entry {
    /// Enlists and starts the roles.
    pub(super) async fn enter(self, cluster: Cluster) -> anyhow::Result<Node> {
        let Self { node, config, seam, identity, run, settings, ledger, talk } = self;
        write_address(&node.state_dir, &cluster)?;
        let (sender, events) = mpsc::unbounded_channel();
        let staff = Staff::new(&node, &cluster, identity.as_ref().map(Identity::expires_at_ms));
        listen(&cluster, &node, staff.clone(), &sender);
        let enlisted = match &ledger {
            Some(ledger) => {
                let own = Enlisted { run: run.clone(), first_lease: ledger.blocks.give(&node.cluster.node) };
                let desk = controller::enlistment(run.clone(), settings.clone(), ledger);
                service::CONTROLLER.at(&desk, &cluster);
                controller::open_desk(ledger, &cluster, &node, &config, &seam);
                own
            }
            None => enlist(&cluster, &node, settings.clone(), &talk).await?,
        };
        let journal = match &ledger {
            Some(_) => service::JOURNAL.anywhere(&cluster),
            None => {
                let source = format!("{}#{}", node.cluster.node, cluster.me().incarnation);
                outbox::outbox(source, service::JOURNAL.anywhere(&cluster))
            }
        };
        let common = Common { config, run: enlisted.run, seam, journal };
        let data_plane = bulk::of_node(&node, identity.as_ref(), &cluster).await?;
        let site = Site { node, cluster, common, data_plane, talk, staff, first_lease: enlisted.first_lease };
        if let Some(ledger) = &ledger
            && let Some(summary) = ledger.completed(site.config())?
        {
            return Node::of_completed_run(site, ledger, summary, settings, sender, events).await;
        }
        Node::start_roles(site, ledger, settings, sender, events).await
    }
}

/// Writes down the address at which this node listens, for whoever started it with port 0.
fn write_address(state_dir: &std::path::Path, cluster: &Cluster) -> anyhow::Result<()> {
    let (place, part) = (state_dir.join(ADDRESS_FILE), state_dir.join(format!("{ADDRESS_FILE}.part")));
    let written = std::fs::create_dir_all(state_dir)
        .and_then(|()| std::fs::write(&part, cluster.me().address))
        .and_then(|()| std::fs::rename(&part, &place));
    written.with_context(|| place.display().to_string())
}

/// Hears what ends nodes: the controller's word, a later start of the same name, and the end of others.
fn listen(cluster: &Cluster, node: &NodeConfig, staff: Staff, sender: &mpsc::UnboundedSender<Event>) {
    let told = sender.clone();
    let name = service::node(&node.cluster.node);
    let address = Address::of_function(&name, move |message| match message {
        NodeMessage::End { over, within_ms } => told.send(Event::Told(over, within_ms)).map_err(|_| ()),
        question => {
            staff.answer(question);
            Ok(())
        }
    });
    cluster.serve(&name, &address);
    let (mut members, sender) = (cluster.events(), sender.clone());
    greenroom_core::spawn_named("node-members", async move {
        while let Some(event) = members.recv().await {
            let event = match event {
                MemberEvent::Fenced { by } => Event::Fenced(by),
                gone @ (MemberEvent::Left { .. } | MemberEvent::Died { .. }) => Event::Gone(gone),
                _ => continue,
            };
            if sender.send(event).is_err() {
                return;
            }
        }
    });
}

/// Has the controller know this node, as soon as there is one. A node whose run was completed does not wait long for one.
async fn enlist(cluster: &Cluster, node: &NodeConfig, settings: String, talk: &Talk) -> anyhow::Result<Enlisted> {
    let controller = service::CONTROLLER.anywhere(cluster);
    let kept = ended::read(&node.state_dir, &settings);
    let patience = Duration::from_secs(node.gang_wait_s);
    let until = Instant::now() + if kept.is_some() { patience.min(OVER_WAIT) } else { patience };
    let enlist = Enlist { node: node.cluster.node.clone(), roles: node.cluster.roles.clone(), settings };
    let mut said = None;
    while Instant::now() < until {
        let question = |reply| ControllerMessage::Enlist(enlist.clone(), reply);
        match ask(&controller, Deadline::after_ms(ENLIST_WAIT_MS), question).await {
            Ok(Ok(enlisted)) => {
                ended::forget(&node.state_dir);
                return Ok(enlisted);
            }
            Ok(Err(NotEnlisted::Refused(reason))) => return Err(NodeError::Refused { reason }.into()),
            Ok(Err(NotEnlisted::Over(over))) => {
                ended::write(&node.state_dir, &over, &enlist.settings);
                return Err(NodeError::Over { over }.into());
            }
            Err(error) => {
                if said.is_none_or(|said: Instant| said.elapsed() > Duration::from_secs(15)) {
                    talk(&format!("waiting for the controller of run {} ({error})", node.run));
                    said = Some(Instant::now());
                }
            }
        }
        tokio::time::sleep(ENLIST_PAUSE).await;
    }
    let missed = NodeError::NoController { waited_s: node.gang_wait_s };
    Err(kept.map_or(missed, |over| NodeError::Over { over }).into())
}

/// Waits until enough nodes of every role are there, and says which are missing.
pub(super) async fn await_gang(site: &Site) -> anyhow::Result<()> {
    let waited_s = site.node.gang_wait_s;
    let talk = site.talk.clone();
    let progress = move |missing: &[greenroom_cluster::Missing]| {
        let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        talk(&format!("waiting for the gang: {}", missing.join("; ")));
    };
    let deadline = Deadline::after(Duration::from_secs(waited_s));
    let gang = site.cluster.gang(&site.node.required(), deadline, progress).await;
    gang.map_err(|error| NodeError::Gang { waited_s, missing: error.to_string() }.into())
}

/// The settings that all nodes of a run must share.
#[derive(serde::Serialize)]
struct Shared<'a> {
    seed: u64,
    warm_start: &'a crate::config::WarmStartSection,
    run: &'a greenroom_run::RunConfig,
    rollout: &'a greenroom_rollout::RolloutConfig,
    weights: &'a greenroom_weights::WeightsConfig,
}

/// The settings that all nodes of a run must share, as text.
pub(super) fn shared_settings(config: &Config) -> anyhow::Result<String> {
    let Config { seed, warm_start, run, rollout, weights, .. } = config;
    let shared = Shared { seed: *seed, warm_start, run, rollout, weights };
    Ok(format!("{}{}", toml::to_string(&shared)?, inputs::Inputs::of_every_node(config)?.to_text()))
}
