//! How a node gets in: it says where it listens and hears what ends nodes, enlists with the controller, and waits for the gang.
//!
//! The controller enlists nobody but answers: from the first moment on, also when its run is complete. On failure the cluster
//! is left by who started it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use greenroom_cluster::{Cluster, Member, MemberEvent, caller};
use greenroom_core::{Address, Deadline, Seam, ask};
use greenroom_identity::Identity;
use greenroom_messages::RunId;
use greenroom_messages::node::{ControllerMessage, Enlist, Enlisted, NodeMessage, NotEnlisted};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::controller::{self, Ledger};
use super::pulse::Pulse;
use super::rivals::{self, chief};
use super::site::Site;
use super::staff::Staff;
use super::{ADDRESS_FILE, ENLIST_PAUSE, Event, Node, NodeConfig, NodeError, bulk, ended, outbox, service};
use crate::config::Config;
use crate::parts::Common;
use crate::up::{Talk, inputs};

/// How long a node whose run was completed looks for a controller that wants it all the same.
const OVER_WAIT: Duration = Duration::from_secs(15);
const ENLIST_WAIT_MS: u64 = 10_000;
/// How long a node waits before it says that it does, and what for.
const SILENT_WAIT: Duration = Duration::from_secs(2);

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
        let obeyed = Arc::new(OnceLock::new());
        listen(&cluster, &node, staff.clone(), &obeyed, &sender);
        let (enlisted, controller) = match &ledger {
            Some(ledger) => {
                rivals::look_around(&cluster, &node).await?;
                ledger.admit(&node.cluster.node, true);
                let own = Enlisted { run: run.clone(), first_lease: ledger.blocks.give(&node.cluster.node) };
                let desk = controller::enlistment(run.clone(), settings.clone(), ledger);
                service::CONTROLLER.at(&desk, &cluster);
                controller::open_desk(ledger, &cluster, &node, &config, &seam);
                (own, node.cluster.node.clone())
            }
            None => enlist(&cluster, &node, settings.clone(), &talk).await?,
        };
        let controller = obeyed.get_or_init(|| controller).clone();
        let journal = match &ledger {
            Some(_) => service::JOURNAL.anywhere(&cluster),
            None => {
                let source = format!("{}#{}", node.cluster.node, cluster.me().incarnation);
                outbox::outbox(source, service::JOURNAL.of(&controller, &cluster))
            }
        };
        let common = Common { config, run: enlisted.run, seam, journal };
        let data_plane = bulk::of_node(&node, identity.as_ref(), &cluster).await?;
        let first_lease = enlisted.first_lease;
        let patience = Duration::from_millis(node.cluster.heartbeat_ms);
        let pulse = Pulse::watch(patience, talk.clone()).context("GR0925: no thread for this node's pulse")?;
        let site = Site { node, cluster, common, controller, data_plane, _pulse: pulse, talk, staff, first_lease };
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
    let written = std::fs::write(&part, cluster.me().address).and_then(|()| std::fs::rename(&part, &place));
    written.with_context(|| place.display().to_string())
}

/// Hears what ends nodes: the controller's word, a later start of the same name, and the end of others.
fn listen(
    cluster: &Cluster,
    node: &NodeConfig,
    staff: Staff,
    obeyed: &Arc<OnceLock<String>>,
    sender: &mpsc::UnboundedSender<Event>,
) {
    let (told, obeyed, warned) = (sender.clone(), obeyed.clone(), OnceLock::new());
    let name = service::node(&node.cluster.node);
    let address = Address::of_function(&name, move |message| {
        if let Err(why) = may_say(&message, caller().map(|caller| caller.node).as_deref(), obeyed.get()) {
            match obeyed.get().is_some() && warned.set(()).is_ok() {
                true => tracing::warn!(code = "GR0927", why, "a command is ignored"),
                false => tracing::debug!(why, "a command is ignored"),
            }
            if let NodeMessage::SetDrained(_, reply) = message {
                reply.send(Err(why));
            }
            return Ok(());
        }
        match message {
            NodeMessage::End { over, within_ms } => told.send(Event::Told(over, within_ms)).map_err(|_| ()),
            question => {
                staff.answer(question);
                Ok(())
            }
        }
    });
    cluster.serve(&name, &address);
    let (mut members, sender) = (cluster.events(), sender.clone());
    greenroom_core::spawn_named("node-members", async move {
        while let Some(event) = members.recv().await {
            let event = match event {
                MemberEvent::Fenced { by } => Event::Fenced(by),
                moved @ (MemberEvent::Left { .. } | MemberEvent::Died { .. } | MemberEvent::Joined(_)) => {
                    Event::Moved(moved)
                }
                _ => continue,
            };
            if sender.send(event).is_err() {
                return;
            }
        }
    });
}

/// Whether `from`, or who is in this process, may say this to a node that has enlisted with `obeyed`: anybody may ask; only
/// the controller commands. One that has not enlisted yet hears all from the answer to that.
fn may_say(message: &NodeMessage, from: Option<&str>, obeyed: Option<&String>) -> Result<(), String> {
    let commands = matches!(message, NodeMessage::End { .. } | NodeMessage::SetDrained(..));
    match (from, obeyed) {
        (Some(from), _) if commands && obeyed.is_none_or(|obeyed| obeyed != from) => {
            let obeyed = obeyed.map_or("no node yet", String::as_str);
            Err(format!("this node obeys its controller ({obeyed}), not {from}"))
        }
        _ => Ok(()),
    }
}

/// Has the controller know this node, as soon as there is one; gives its name, too. A node whose run was completed does not
/// wait long for one.
async fn enlist(
    cluster: &Cluster,
    node: &NodeConfig,
    settings: String,
    talk: &Talk,
) -> anyhow::Result<(Enlisted, String)> {
    let kept = ended::read(&node.state_dir, &settings);
    let patience = Duration::from_secs(node.gang_wait_s);
    let until = Instant::now() + if kept.is_some() { patience.min(OVER_WAIT) } else { patience };
    let enlist = Enlist { node: node.cluster.node.clone(), roles: node.cluster.roles.clone(), settings };
    let began = Instant::now();
    let (mut said, mut answer) = (String::new(), None);
    while Instant::now() < until {
        let lead = chief(&cluster.members()).filter(|chief| rivals::answers(chief)).map(|chief| chief.name.clone());
        let asked = async {
            let lead = lead.as_ref()?;
            let question = |reply| ControllerMessage::Enlist(enlist.clone(), reply);
            let controller = service::CONTROLLER.of(lead, cluster);
            Some((lead, ask(&controller, Deadline::after_ms(ENLIST_WAIT_MS), question).await))
        };
        answer = match asked.await {
            Some((lead, Ok(Ok(enlisted)))) => {
                ended::forget(&node.state_dir);
                return Ok((enlisted, lead.clone()));
            }
            Some((_, Ok(Err(NotEnlisted::Refused(reason))))) => return Err(NodeError::Refused { reason }.into()),
            Some((_, Ok(Err(NotEnlisted::Over(over))))) => {
                ended::write(&node.state_dir, &over, &enlist.settings);
                return Err(NodeError::Over { over }.into());
            }
            Some((lead, Err(error))) => Some(format!("the controller {lead}: {error}")),
            None => None,
        };
        let seen = seen(cluster, answer.as_deref());
        if began.elapsed() >= SILENT_WAIT && said != seen {
            talk(&format!("waiting for the controller of run {}: {seen}", node.run));
            said = seen;
        }
        tokio::time::sleep(ENLIST_PAUSE).await;
    }
    let missed = NodeError::NoController { waited_s: node.gang_wait_s, seen: seen(cluster, answer.as_deref()) };
    Err(kept.map_or(missed, |over| NodeError::Over { over }).into())
}

/// What a node that looks for its controller has met with.
pub(super) fn seen(cluster: &Cluster, answer: Option<&str>) -> String {
    let seeds = cluster.seeds().into_iter().map(|(seed, dialled)| format!("seed {seed}: {dialled}"));
    let mut seen: Vec<String> = seeds.collect();
    match answer {
        Some(answer) => seen.push(answer.to_owned()),
        // else what the seeds say tells why
        None if cluster.members().len() > 1 => seen.push("no member is a controller that answers".to_owned()),
        None => {}
    }
    seen.join("; ")
}

/// Waits until enough nodes of every role are there and known to have the same settings, and says which are missing.
pub(super) async fn await_gang(site: &Site, ledger: &Ledger) -> anyhow::Result<()> {
    let waited_s = site.node.gang_wait_s;
    let progress = |missing: &[greenroom_cluster::Missing]| {
        let mut missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let admitted = ledger.admitted.borrow();
        let is_awaited = |member: &Member| member.is_up() && member.plays_a_role() && !admitted.contains(&member.name);
        let members = site.cluster.members().into_iter().filter(is_awaited);
        missing.extend(members.map(|member| format!("{} is up, and has not yet told its settings", member.name)));
        (site.talk)(&format!("waiting for the gang: {}", missing.join("; ")));
    };
    let deadline = Deadline::after(Duration::from_secs(waited_s));
    let required = site.node.required();
    let gang = tokio::select! {
        biased;
        error = rivals::gives_way(&site.cluster, &site.talk) => return Err(error.into()),
        gang = site.cluster.gang(&required, Some(ledger.admitted.subscribe()), deadline, progress) => gang,
    };
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

#[cfg(test)]
mod tests {
    use greenroom_core::Reply;
    use greenroom_messages::node::RunOver;

    use super::*;

    #[test]
    fn a_node_obeys_the_controller_with_which_it_enlisted_and_answers_all() {
        let end = || NodeMessage::End { over: RunOver { outcome: "stopped".to_owned(), status: 3 }, within_ms: 0 };
        let drain = || NodeMessage::SetDrained(true, Reply::channel().0);
        let lead = "lead".to_owned();
        for command in [end(), drain()] {
            let is_obeyed = |from, obeyed| may_say(&command, from, obeyed).is_ok();
            assert!(is_obeyed(Some("lead"), Some(&lead)), "also after it was started again");
            assert!(is_obeyed(None, Some(&lead)), "from this very process");
            assert!(!is_obeyed(Some("x"), Some(&lead)));
            assert!(!is_obeyed(Some("lead"), None), "before it has enlisted");
        }
        let why = may_say(&end(), Some("x"), Some(&lead)).unwrap_err();
        assert!(why.contains("lead") && why.contains('x'), "{why}");
        assert!(may_say(&NodeMessage::Report(1, Reply::channel().0), Some("x"), Some(&lead)).is_ok());
    }
}
