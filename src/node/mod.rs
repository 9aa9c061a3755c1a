//! A node of a cluster: the supervisors of its roles, and nothing else.
//!
//! [`Node::start`] reads and checks, joins the cluster, and enlists with the controller, which answers whether this node
//! is right and what it must know. Then the roles' actors run under one supervisor, known to the others by service.
//! [`Node::wait`] gives the end: the run's, told by the controller; or this node's own, with the reason. Whatever happens
//! it then takes its actors down in order and leaves the cluster.

mod blocks;
mod builder;
mod bulk;
mod config;
mod controller;
mod desk;
mod drain;
mod engines;
mod error;
mod outbox;
mod roles;
mod service;
mod site;
mod spread;
mod trainers;

use std::time::Duration;

use anyhow::Context;
use greenroom_cluster::{Cluster, Member, MemberEvent, SHELL};
use greenroom_core::{
    Address, ChildFailure, Deadline, Supervisor, SupervisorArguments, SupervisorMessage, ask, startup_cause,
};
use greenroom_engine::EngineHostInput;
use greenroom_identity::Identity;
use greenroom_messages::RunId;
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::node::{ControllerMessage, Enlist, Enlisted, NodeMessage};
use greenroom_messages::run::{ConductorMessage, JournalMessage, StopMode};
use greenroom_run::RunEnd;
use ractor::{Actor, ActorRef};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub use builder::{Guest, NodeBuilder};
pub use config::{NodeConfig, NodeDataplane, ROLES};
pub use error::{NODE_ERRORS, NodeError};

use crate::config::Config;
use crate::down::{self, LAST_WORDS_MS};
use crate::parts::{self, Common};
use crate::up::{Talk, inputs, model};
use controller::{Controller, Ledger};
pub(crate) use desk::DESK;
use site::Site;

/// The file in a node's `state_dir` that holds the address at which it listens.
pub const ADDRESS_FILE: &str = "address";

/// How long a node that ends waits for the controller to have noted what happened here.
const LAST_EVENTS_MS: u64 = 5_000;
/// How long the controller waits for the others to leave after it told them of the end.
const FAREWELL: Duration = Duration::from_secs(20);
const ENLIST_WAIT_MS: u64 = 10_000;
const ENLIST_PAUSE: Duration = Duration::from_millis(500);

/// How a node ended.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEnd {
    /// The run ended, as the controller says; on the controller with everything about it.
    Run {
        /// In words.
        outcome: String,
        /// The run's end; on the controller only.
        end: Option<RunEnd>,
    },
    /// Somebody told this node to leave.
    Left,
    /// It could not go on.
    Failed(NodeError),
}

/// A node that takes part in a run.
pub struct Node {
    site: Site,
    supervisor: ActorRef<SupervisorMessage>,
    pools: roles::Pools,
    hosts: Vec<Address<EngineHostInput>>,
    controller: Option<Controller>,
    _data_plane: Option<greenroom_dataplane::Server>,
    #[cfg(feature = "torch")]
    embedded: Vec<greenroom_policy::server::RunningEngine>,
    events: mpsc::UnboundedReceiver<Event>,
}

/// What ends a node.
enum Event {
    Told(String),
    Fenced(u64),
    GaveUp(ChildFailure),
}

impl Node {
    /// Joins the cluster and starts this node's roles.
    ///
    /// # Errors
    /// Whatever is wrong with files and settings; [`NodeError`] for a gang or controller that did not come in time.
    pub async fn start(node: NodeConfig, config: Config, talk: Talk) -> anyhow::Result<Self> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(crate::config::ConfigError { problems }.into());
        }
        let config = config.with_absolute_paths().context("the current directory")?;
        let seam = parts::seam(config.seed)?;
        let identity = node.cluster.tls.as_ref().map(Identity::load).transpose()?;
        let run = RunId::new(node.run.clone());
        let settings = shared_settings(&config)?;
        let ledger = match node.plays("controller") {
            true => Some(Ledger::open(&node.run_directory(), &run, &config, &seam)?),
            false => None,
        };

        let cluster = Cluster::start(node.cluster.clone(), seam.clone()).await?;
        write_address(&node.state_dir, &cluster)?;
        let (sender, events) = mpsc::unbounded_channel();
        listen(&cluster, &node, identity.as_ref().map(Identity::expires_at_ms), &sender);
        let enlisted = match &ledger {
            Some(ledger) => {
                let own = Enlisted { run: run.clone(), first_lease: ledger.blocks.give(&node.cluster.node) };
                let desk = controller::enlistment(run.clone(), settings, ledger.blocks.clone());
                service::CONTROLLER.at(&desk, &cluster);
                controller::open_desk(ledger, &cluster, &node, &config, &seam);
                own
            }
            None => enlist(&cluster, &node, settings, &talk).await?,
        };
        let journal = match &ledger {
            Some(_) => service::JOURNAL.anywhere(&cluster),
            None => {
                let source = format!("{}#{}", node.cluster.node, cluster.me().incarnation);
                outbox::outbox(source, service::JOURNAL.anywhere(&cluster))
            }
        };
        let common = Common { config, run: enlisted.run, seam, journal };
        let site = Site { node, cluster, common, identity, talk, first_lease: enlisted.first_lease };
        Self::start_roles(site, ledger, sender, events).await
    }

    async fn start_roles(
        site: Site,
        ledger: Option<Ledger>,
        sender: mpsc::UnboundedSender<Event>,
        events: mpsc::UnboundedReceiver<Event>,
    ) -> anyhow::Result<Self> {
        let source = site.config().path(&site.config().model.dir);
        let model_dir = model::initial_model(site.config(), source, &site.node.state_dir)?;
        let mut children = Vec::new();
        let mut pools = Vec::new();
        let mut data_plane = None;
        let mut hosts = Vec::new();
        #[cfg(feature = "torch")]
        let mut embedded = Vec::new();
        if site.node.plays("sandbox") {
            let (more, made) = roles::sandbox(&site).await?;
            children.extend(more);
            pools = made;
        }
        if site.node.plays("trainer") {
            let (more, server) = trainers::trainer(&site, model_dir.clone()).await?;
            children.extend(more);
            data_plane = Some(server);
        }
        if site.node.plays("engine") {
            let engines = engines::engines(&site, &model_dir).await?;
            children.extend(engines.children);
            hosts = engines.hosts;
            #[cfg(feature = "torch")]
            {
                embedded = engines.embedded;
            }
        }
        if site.node.plays("rollout") {
            children.extend(roles::rollout(&site)?);
        }
        let mut controller = None;
        if let Some(ledger) = &ledger {
            let mut made = controller::controller(&site, ledger, &model_dir)?;
            await_gang(&site).await?;
            // the Conductor comes last: it finds everybody there
            children.append(&mut made.children);
            controller = Some(made);
        }
        let on_give_up = Box::new(move |failure| drop(sender.send(Event::GaveUp(failure))));
        let arguments = SupervisorArguments { children, on_give_up };
        let (supervisor, _) = Actor::spawn(None, Supervisor, arguments)
            .await
            .map_err(|error| anyhow::anyhow!("GR0925: this node could not be started: {}", startup_cause(error)))?;
        (site.talk)(&format!("node {} runs: {}", site.node.cluster.node, site.node.cluster.roles.join(", ")));
        Ok(Self {
            site,
            supervisor,
            pools,
            hosts,
            controller,
            _data_plane: data_plane,
            #[cfg(feature = "torch")]
            embedded,
            events,
        })
    }

    /// The cluster, to look at and to speak to.
    pub fn cluster(&self) -> &Cluster {
        &self.site.cluster
    }

    /// The Conductor, where this node is the controller.
    pub fn conductor(&self) -> Option<Address<ConductorMessage>> {
        self.controller.as_ref().map(|controller| controller.conductor.clone())
    }

    /// How the run stands, as it changes; where this node is the controller.
    pub fn progress(&self) -> Option<tokio::sync::watch::Receiver<greenroom_messages::run::RunStatus>> {
        self.controller.as_ref().map(|controller| controller.progress.clone())
    }

    /// Waits for the end, or for `leave`, then takes the node down.
    pub async fn wait(mut self, mut leave: mpsc::UnboundedReceiver<StopMode>) -> NodeEnd {
        let end = match self.controller.take() {
            Some(mut controller) => self.lead(&mut controller, &mut leave).await,
            None => self.follow(&mut leave).await,
        };
        self.take_down().await;
        end
    }

    /// The controller's wait: for the end of the run, which it then tells.
    async fn lead(&mut self, controller: &mut Controller, leave: &mut mpsc::UnboundedReceiver<StopMode>) -> NodeEnd {
        let end = loop {
            tokio::select! {
                biased;
                ended = &mut controller.ended => {
                    break ended.unwrap_or_else(|_| RunEnd::Failed("the Conductor ended without a word".to_owned()));
                }
                event = self.events.recv() => match event {
                    Some(Event::Fenced(by)) => return NodeEnd::Failed(NodeError::Fenced { by }),
                    Some(Event::GaveUp(failure)) => {
                        controller.end.tell(RunEnd::Failed(format!("GR0005: {failure}")));
                    }
                    // the end of a run is the controller's own to tell
                    Some(Event::Told(_)) | None => {}
                },
                Some(mode) = leave.recv() => {
                    // a Conductor that is gone has told the end already
                    let _ = controller.conductor.cast(ConductorMessage::Stop(mode));
                }
            }
        };
        if let Err(error) =
            ask(&controller.engines, Deadline::after_ms(LAST_WORDS_MS), EnginePoolMessage::Shutdown).await
        {
            tracing::warn!(%error, "the engines' pool was not shut down in time");
        }
        let outcome = match &end {
            RunEnd::Completed(_) => "completed".to_owned(),
            RunEnd::Stopped(_) => "stopped".to_owned(),
            RunEnd::Failed(reason) => format!("failed: {reason}"),
        };
        self.say_farewell(&outcome).await;
        if let Err(error) = ask(&controller.journal, Deadline::after_ms(LAST_WORDS_MS), JournalMessage::Flush).await {
            tracing::warn!(%error, "the last events may not be in the run database");
        }
        controller.blocks.lose_the_dead(&self.site.cluster);
        NodeEnd::Run { outcome, end: Some(end) }
    }

    /// Tells every other node of the end, and waits a while until those that play a role have left.
    async fn say_farewell(&self, outcome: &str) {
        let cluster = &self.site.cluster;
        let me = &self.site.node.cluster.node;
        let others = || cluster.members().into_iter().filter(|member| member.is_up() && member.name != *me);
        let plays_a_role = |member: &Member| member.roles.iter().any(|role| role != SHELL);
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until {
            let waiting: Vec<_> = others().collect();
            for member in &waiting {
                // one that is gone needs no word
                let _ = service::node_at(cluster, &member.name).cast(NodeMessage::End { outcome: outcome.to_owned() });
            }
            if !waiting.iter().any(plays_a_role) {
                return;
            }
            tokio::time::sleep(ENLIST_PAUSE).await;
        }
        let late: Vec<String> = others().filter(plays_a_role).map(|member| member.name).collect();
        tracing::warn!(nodes = late.join(", "), "some nodes have not left after the end of the run");
    }

    /// The others' wait: for the controller's word.
    async fn follow(&mut self, leave: &mut mpsc::UnboundedReceiver<StopMode>) -> NodeEnd {
        let patience = Duration::from_secs(self.site.node.gang_wait_s);
        let controller = service::CONTROLLER.anywhere(&self.site.cluster);
        let mut last_seen = Instant::now();
        let mut was_there = true;
        loop {
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Some(Event::Told(outcome)) => return NodeEnd::Run { outcome, end: None },
                    Some(Event::Fenced(by)) => return NodeEnd::Failed(NodeError::Fenced { by }),
                    Some(Event::GaveUp(failure)) => {
                        return NodeEnd::Failed(NodeError::Part { reason: failure.to_string() });
                    }
                    None => return NodeEnd::Left,
                },
                Some(mode) = leave.recv() => return self.depart(mode, leave).await,
                () = tokio::time::sleep(ENLIST_PAUSE) => {
                    let is_there = controller.is_bound();
                    if is_there != was_there {
                        let text = if is_there { "the controller is back" } else { "the controller is gone: this node waits for it" };
                        (self.site.talk)(text);
                    }
                    was_there = is_there;
                    if is_there {
                        last_seen = Instant::now();
                    } else if last_seen.elapsed() > patience {
                        return NodeEnd::Failed(NodeError::NoController { waited_s: self.site.node.gang_wait_s });
                    }
                }
            }
        }
    }

    /// Leaves: what is under way ends first, or is handed back, unless a second wish comes.
    async fn depart(&mut self, mode: StopMode, leave: &mut mpsc::UnboundedReceiver<StopMode>) -> NodeEnd {
        let within = Duration::from_secs(self.site.node.drain_s);
        let drained = drain::drain(&self.site, &self.pools, &self.hosts, within);
        tokio::select! {
            biased;
            Some(_) = leave.recv() => {}
            event = self.events.recv() => if let Some(Event::Told(outcome)) = event {
                return NodeEnd::Run { outcome, end: None };
            },
            () = drained, if mode == StopMode::AfterStep => {}
        }
        NodeEnd::Left
    }

    async fn take_down(self) {
        down::drain_pools(&self.pools).await;
        down::stop_actors(&self.supervisor, "the node ends").await;
        if !self.site.node.plays("controller") {
            let journal = &self.site.common.journal;
            if let Err(error) = ask(journal, Deadline::after_ms(LAST_EVENTS_MS), JournalMessage::Flush).await {
                tracing::warn!(%error, "the last events of this node are not in the run's history");
            }
        }
        #[cfg(feature = "torch")]
        down::shut_down_engines(self.embedded).await;
        self.site.cluster.leave().await;
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

/// Hears what ends a node: the controller's word, and a later start of the same name.
fn listen(cluster: &Cluster, node: &NodeConfig, certificate_ends: Option<u64>, sender: &mpsc::UnboundedSender<Event>) {
    let (told, state_dir) = (sender.clone(), node.state_dir.clone());
    let name = service::node(&node.cluster.node);
    let address = Address::of_function(&name, move |message| match message {
        NodeMessage::End { outcome } => told.send(Event::Told(outcome)).map_err(|_| ()),
        NodeMessage::Report(log_bytes, reply) => {
            desk::report(&state_dir, certificate_ends, log_bytes, reply);
            Ok(())
        }
    });
    cluster.serve(&name, &address);
    let (mut events, fenced) = (cluster.events(), sender.clone());
    greenroom_core::spawn_named("node-fence", async move {
        while let Some(event) = events.recv().await {
            if let MemberEvent::Fenced { by } = event
                && fenced.send(Event::Fenced(by)).is_err()
            {
                return;
            }
        }
    });
}

/// Has the controller know this node, as soon as there is one.
async fn enlist(cluster: &Cluster, node: &NodeConfig, settings: String, talk: &Talk) -> anyhow::Result<Enlisted> {
    let controller = service::CONTROLLER.anywhere(cluster);
    let until = Instant::now() + Duration::from_secs(node.gang_wait_s);
    let enlist = Enlist { node: node.cluster.node.clone(), roles: node.cluster.roles.clone(), settings };
    let mut said = None;
    while Instant::now() < until {
        let question = |reply| ControllerMessage::Enlist(enlist.clone(), reply);
        match ask(&controller, Deadline::after_ms(ENLIST_WAIT_MS), question).await {
            Ok(Ok(enlisted)) => return Ok(enlisted),
            Ok(Err(reason)) => return Err(NodeError::Refused { reason }.into()),
            Err(error) => {
                if said.is_none_or(|said: Instant| said.elapsed() > Duration::from_secs(15)) {
                    talk(&format!("waiting for the controller of run {} ({error})", node.run));
                    said = Some(Instant::now());
                }
            }
        }
        tokio::time::sleep(ENLIST_PAUSE).await;
    }
    Err(NodeError::NoController { waited_s: node.gang_wait_s }.into())
}

/// Waits until enough nodes of every role are there, and says which are missing.
async fn await_gang(site: &Site) -> anyhow::Result<()> {
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
fn shared_settings(config: &Config) -> anyhow::Result<String> {
    let Config { seed, warm_start, run, rollout, weights, .. } = config;
    let shared = Shared { seed: *seed, warm_start, run, rollout, weights };
    Ok(format!("{}{}", toml::to_string(&shared)?, inputs::Inputs::of(config)?.to_text()))
}
