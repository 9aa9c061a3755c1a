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
mod confirm;
mod controller;
mod desk;
mod drain;
pub(crate) mod ended;
mod engines;
mod entry;
mod error;
mod farewell;
mod gang;
mod load;
mod outbox;
mod pulse;
mod rivals;
mod roles;
#[cfg(test)]
pub(crate) mod sample;
mod service;
mod site;
mod spread;
mod staff;
mod state_dir;
mod trainers;

use std::time::Duration;

use anyhow::Context;
use greenroom_cluster::{Cluster, ClusterConfig, MemberEvent};
use greenroom_core::{
    Address, ChildFailure, ChildSpec, Deadline, Supervisor, SupervisorArguments, SupervisorMessage, ask, startup_cause,
};
use greenroom_engine::EngineHostInput;
use greenroom_identity::Identity;
use greenroom_messages::RunId;
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::node::RunOver;
use greenroom_messages::run::{ConductorMessage, JournalMessage, StopMode};
use greenroom_run::{RunEnd, RunSummary};
use ractor::{Actor, ActorRef};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

pub use builder::{Guest, NodeBuilder};
pub use config::{NodeConfig, NodeDataplane, ROLES};
pub use error::{NODE_ERRORS, NodeError};

use crate::config::Config;
use crate::down::{self, LAST_WORDS_MS};
use crate::parts;
use crate::up::{Talk, model};
use confirm::Confirmation;
use controller::{Controller, Ledger};
pub(crate) use desk::DESK;
use drain::Drain;
use entry::{Entry, await_gang, shared_settings};
use gang::Consequence;
use site::Site;
use state_dir::StateDir;

/// The file in a node's `state_dir` that holds the address at which it listens.
pub const ADDRESS_FILE: &str = "address";

/// How long a node that ends waits for the controller to have noted what happened here.
const LAST_EVENTS_MS: u64 = 5_000;
/// The file in a node's `state_dir` that holds the number of its last start.
const INCARNATION_FILE: &str = "incarnation";
const ENLIST_PAUSE: Duration = Duration::from_millis(500);

/// How a node ended.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEnd {
    /// The run ended, as the controller says; on the controller with everything about it.
    Run {
        /// In words, and as the exit status of every node.
        over: RunOver,
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
    /// What all nodes of the run must share, as text.
    settings: String,
    #[cfg(feature = "torch")]
    embedded: Vec<greenroom_policy::server::RunningEngine>,
    events: mpsc::UnboundedReceiver<Event>,
    /// Held to the end of what runs below.
    state: Option<StateDir>,
    /// Whether what runs below was taken down, or is being.
    is_down: bool,
}

/// What ends a node.
enum Event {
    /// The run has ended; what is under way may take so many milliseconds.
    Told(RunOver, u64),
    Fenced(u64),
    /// Another node has left, is lost, or has come.
    Moved(MemberEvent),
    GaveUp(ChildFailure),
}

impl Node {
    /// Joins the cluster and starts this node's roles.
    ///
    /// # Errors
    /// Whatever is wrong with files and settings; [`NodeError`] for a gang or controller that did not come in time, and for
    /// a run that is over. The cluster is left then, and nothing of the node runs.
    pub async fn start(node: NodeConfig, config: Config, talk: Talk) -> anyhow::Result<Self> {
        node.check()?;
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(crate::config::ConfigError { problems }.into());
        }
        let config = config.with_absolute_paths().context("the current directory")?;
        let seam = parts::seam(config.seed)?;
        let identity = node.cluster.tls.as_ref().map(Identity::load).transpose()?;
        let run = RunId::new(node.run.clone());
        let settings = shared_settings(&config)?;
        let state = StateDir::enter(&node).await?;
        let ledger = match node.plays("controller") {
            true => Some(Ledger::open(&node.run_directory(), &run, &config, &seam)?),
            false => None,
        };
        let incarnation_file = Some(node.state_dir.join(INCARNATION_FILE));
        let cluster = ClusterConfig { incarnation_file, ..node.cluster.clone() };
        let cluster = Cluster::start(cluster, seam.clone()).await?;
        let entry = Entry { node, config, seam, identity, run, settings, ledger, talk };
        let mut started = entry.enter(cluster.clone()).await;
        match &mut started {
            Ok(node) => node.state = Some(state),
            Err(_) => cluster.leave().await,
        }
        started
    }

    /// The controller of a run that has nothing left to do: it starts no roles, and tells whoever comes.
    async fn of_completed_run(
        site: Site,
        ledger: &Ledger,
        summary: RunSummary,
        settings: String,
        sender: mpsc::UnboundedSender<Event>,
        events: mpsc::UnboundedReceiver<Event>,
    ) -> anyhow::Result<Self> {
        (site.talk)(&format!("the run {} is complete", site.node.run));
        let supervisor = supervise(Vec::new(), sender).await?;
        Ok(Self {
            site,
            supervisor,
            pools: Vec::new(),
            hosts: Vec::new(),
            controller: Some(Controller::of_completed_run(ledger, summary)),
            settings,
            #[cfg(feature = "torch")]
            embedded: Vec::new(),
            events,
            state: None,
            is_down: false,
        })
    }

    async fn start_roles(
        site: Site,
        ledger: Option<Ledger>,
        settings: String,
        sender: mpsc::UnboundedSender<Event>,
        events: mpsc::UnboundedReceiver<Event>,
    ) -> anyhow::Result<Self> {
        let source = site.config().path(&site.config().model.dir);
        let model_dir = model::initial_model(site.config(), source, &site.node.state_dir)?;
        let mut children = Vec::new();
        let mut pools = Vec::new();
        let mut hosts = Vec::new();
        #[cfg(feature = "torch")]
        let mut embedded = Vec::new();
        if site.node.plays("sandbox") {
            let (more, made) = roles::sandbox(&site).await?;
            children.extend(more);
            pools = made;
        }
        if site.node.plays("trainer") {
            children.extend(trainers::trainer(&site, model_dir.clone())?);
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
            await_gang(&site, ledger).await?;
            // the Conductor comes last: it finds everybody there
            children.append(&mut made.children);
            controller = Some(made);
        }
        let supervisor = supervise(children, sender).await?;
        site.staff.runs(&supervisor, &pools);
        (site.talk)(&format!("node {} runs: {}", site.node.cluster.node, site.node.cluster.roles.join(", ")));
        Ok(Self {
            site,
            supervisor,
            pools,
            hosts,
            controller,
            settings,
            #[cfg(feature = "torch")]
            embedded,
            events,
            state: None,
            is_down: false,
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

    /// What is taken down at the node's end; a second time nothing.
    fn below(&mut self) -> Option<Below> {
        let cluster = self.site.cluster.clone();
        let journal = (!self.site.node.plays("controller")).then(|| self.site.common.journal.clone());
        let state = self.state.take();
        (!std::mem::replace(&mut self.is_down, true)).then(|| Below {
            pools: std::mem::take(&mut self.pools),
            supervisor: self.supervisor.clone(),
            journal,
            #[cfg(feature = "torch")]
            embedded: std::mem::take(&mut self.embedded),
            cluster,
            _state: state,
        })
    }

    /// The controller's wait: for the end of the run, which it then tells.
    async fn lead(&mut self, controller: &mut Controller, leave: &mut mpsc::UnboundedReceiver<StopMode>) -> NodeEnd {
        let (cluster, talk) = (self.site.cluster.clone(), self.site.talk.clone());
        let mut rival = std::pin::pin!(rivals::gives_way(&cluster, &talk));
        let end = loop {
            tokio::select! {
                biased;
                // its nodes are the other one's: they hear nothing of this one's end
                error = &mut rival => return NodeEnd::Failed(error),
                ended = &mut controller.ended => {
                    break ended.unwrap_or_else(|_| RunEnd::Failed("the Conductor ended without a word".to_owned()));
                }
                event = self.events.recv() => match event {
                    Some(Event::Fenced(by)) => return NodeEnd::Failed(NodeError::Fenced { by }),
                    Some(Event::GaveUp(failure)) => {
                        controller.end.tell(RunEnd::Failed(format!("GR0005: {failure}")));
                    }
                    Some(Event::Moved(event)) => self.on_moved(&event, controller),
                    // the end of a run is the controller's own to tell
                    Some(Event::Told(..)) | None => {}
                },
                Some(mode) = leave.recv() => {
                    // a Conductor that is gone has told the end already
                    let _ = controller.conductor.cast(ConductorMessage::Stop(mode));
                }
            }
        };
        let over = farewell::over(&end);
        // after a completed run turns that are under way may end, so the fleet is shut down last
        if over.status != 0 {
            shut_down_fleet(&controller.engines).await;
        }
        tokio::select! {
            () = controller.last_word.say(&self.site.cluster, &self.site.node, &over) => {}
            // a wish ends the wait for nodes that do not come
            Some(_) = leave.recv() => {}
        }
        if over.status == 0 {
            shut_down_fleet(&controller.engines).await;
        }
        let journal = &controller.journal;
        if journal.is_bound()
            && let Err(error) = ask(journal, Deadline::after_ms(LAST_WORDS_MS), JournalMessage::Flush).await
        {
            tracing::warn!(%error, "the last events may not be in the run database");
        }
        controller.blocks.lose_the_dead(&self.site.cluster);
        ended::write(&self.site.node.state_dir, &over, &self.settings);
        NodeEnd::Run { over, end: Some(end) }
    }

    /// What follows for the run from another node's end, or from its return.
    fn on_moved(&self, event: &MemberEvent, controller: &mut Controller) {
        if let MemberEvent::Joined(member) = event
            && controller.away.remove(&member.name)
        {
            (self.site.talk)(&format!("the node {} is back", member.name));
        }
        match gang::consequence(&self.site.node, &self.site.cluster.members(), event) {
            Some(Consequence::GoesOn(words)) => {
                if let MemberEvent::Left { node, .. } | MemberEvent::Died { node, .. } = event {
                    controller.away.insert(node.clone());
                }
                (self.site.talk)(&words);
            }
            Some(Consequence::Ends(words)) => {
                (self.site.talk)(&format!("{words}: the run is stopped"));
                // a Conductor that is gone has told the end already
                let _ = controller.conductor.cast(ConductorMessage::Stop(StopMode::Now));
            }
            None => {}
        }
    }

    /// The others' wait: for the controller's word.
    async fn follow(&mut self, leave: &mut mpsc::UnboundedReceiver<StopMode>) -> NodeEnd {
        let patience = Duration::from_secs(self.site.node.gang_wait_s);
        let mut confirmation = Confirmation::of(&self.site, &self.settings);
        // not a sleep: that would begin anew with each node that comes or goes
        let mut looks = interval(ENLIST_PAUSE);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_seen = Instant::now();
        let mut was_there = true;
        loop {
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Some(Event::Told(over, within_ms)) => return self.finish(over, within_ms, leave).await,
                    Some(Event::Fenced(by)) => return NodeEnd::Failed(NodeError::Fenced { by }),
                    Some(Event::GaveUp(failure)) => {
                        return NodeEnd::Failed(NodeError::Part { reason: failure.to_string() });
                    }
                    // what becomes of the run is the controller's to say
                    Some(Event::Moved(_)) => {}
                    None => return NodeEnd::Left,
                },
                Some(mode) = leave.recv() => return self.depart(mode, leave).await,
                reason = confirmation.refused() => return NodeEnd::Failed(NodeError::Refused { reason }),
                _ = looks.tick() => {
                    confirmation.look(&self.site);
                    let is_there = confirmation.can_be_asked();
                    if is_there != was_there {
                        let text = if is_there { "the controller is back" } else { "the controller is gone: this node waits for it" };
                        (self.site.talk)(text);
                    }
                    was_there = is_there;
                    if is_there {
                        last_seen = Instant::now();
                    } else if last_seen.elapsed() > patience {
                        let seen = entry::seen(&self.site.cluster, Some("the controller has not come back"));
                        let waited_s = self.site.node.gang_wait_s;
                        return NodeEnd::Failed(NodeError::NoController { waited_s, seen });
                    }
                }
            }
        }
    }

    /// Ends with the run: what is under way may end within the time that the controller gives, unless it takes that back or
    /// a wish comes.
    async fn finish(
        &mut self,
        over: RunOver,
        within_ms: u64,
        leave: &mut mpsc::UnboundedReceiver<StopMode>,
    ) -> NodeEnd {
        ended::write(&self.site.node.state_dir, &over, &self.settings);
        if within_ms > 0 {
            let within = Duration::from_millis(within_ms);
            let mut drained =
                std::pin::pin!(drain::drain(&self.site, &self.pools, &self.hosts, Drain::RunOver, within));
            loop {
                tokio::select! {
                    biased;
                    Some(_) = leave.recv() => break,
                    event = self.events.recv() => match event {
                        Some(Event::Told(_, 1..) | Event::Moved(_)) => {}
                        Some(Event::Told(_, 0) | Event::Fenced(_) | Event::GaveUp(_)) | None => break,
                    },
                    () = &mut drained => break,
                }
            }
        }
        NodeEnd::Run { over, end: None }
    }

    /// Leaves: what is under way ends first, or is handed back, unless a second wish comes.
    async fn depart(&mut self, mode: StopMode, leave: &mut mpsc::UnboundedReceiver<StopMode>) -> NodeEnd {
        if mode == StopMode::Now {
            return NodeEnd::Left;
        }
        let within = Duration::from_secs(self.site.node.drain_s);
        let mut drained = std::pin::pin!(drain::drain(&self.site, &self.pools, &self.hosts, Drain::Leaving, within));
        loop {
            tokio::select! {
                biased;
                Some(_) = leave.recv() => return NodeEnd::Left,
                event = self.events.recv() => match event {
                    Some(Event::Told(over, _)) => {
                        ended::write(&self.site.node.state_dir, &over, &self.settings);
                        return NodeEnd::Run { over, end: None };
                    }
                    Some(Event::Moved(_)) => {}
                    Some(Event::Fenced(_) | Event::GaveUp(_)) | None => return NodeEnd::Left,
                },
                () = &mut drained => return NodeEnd::Left,
            }
        }
    }

    async fn take_down(&mut self) {
        if let Some(below) = self.below() {
            below.take_down().await;
        }
    }
}

/// A node that is dropped, or whose wait is, is taken down by a task: it leaves nothing behind as long as its runtime lives.
impl Drop for Node {
    fn drop(&mut self) {
        if let Some(below) = self.below()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            greenroom_core::spawn_named("node-take-down", below.take_down());
        }
    }
}

/// What runs below a node.
struct Below {
    pools: roles::Pools,
    supervisor: ActorRef<SupervisorMessage>,
    /// The outbox, where the history is on another node.
    journal: Option<Address<JournalMessage>>,
    #[cfg(feature = "torch")]
    embedded: Vec<greenroom_policy::server::RunningEngine>,
    cluster: Cluster,
    /// Let go when all else has ended.
    _state: Option<StateDir>,
}

impl Below {
    async fn take_down(self) {
        down::drain_pools(&self.pools).await;
        down::stop_actors(&self.supervisor, "the node ends").await;
        if let Some(journal) = &self.journal
            && let Err(error) = ask(journal, Deadline::after_ms(LAST_EVENTS_MS), JournalMessage::Flush).await
        {
            tracing::warn!(%error, "the last events of this node are not in the run's history");
        }
        #[cfg(feature = "torch")]
        down::shut_down_engines(self.embedded).await;
        self.cluster.leave().await;
    }
}

/// Ends the fleet, which aborts what is in flight; one that was never started has ended.
async fn shut_down_fleet(engines: &Address<EnginePoolMessage>) {
    if engines.is_bound()
        && let Err(error) = ask(engines, Deadline::after_ms(LAST_WORDS_MS), EnginePoolMessage::Shutdown).await
    {
        tracing::warn!(%error, "the engines' pool was not shut down in time");
    }
}

/// Starts the supervisor of a node's actors; what it gives up ends the node.
async fn supervise(
    children: Vec<ChildSpec>,
    sender: mpsc::UnboundedSender<Event>,
) -> anyhow::Result<ActorRef<SupervisorMessage>> {
    let on_give_up = Box::new(move |failure| drop(sender.send(Event::GaveUp(failure))));
    let arguments = SupervisorArguments { children, on_give_up };
    let (supervisor, _) = Actor::spawn(None, Supervisor, arguments)
        .await
        .map_err(|error| anyhow::anyhow!("GR0925: this node could not be started: {}", startup_cause(error)))?;
    Ok(supervisor)
}
