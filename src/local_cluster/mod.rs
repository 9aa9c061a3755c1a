//! A run over several nodes that are processes of this machine, on its loopback interface.
//!
//! [`LocalCluster::prepare`] checks everything that a run in one process checks, then makes an authority, a cookie and the
//! nodes' files in the run's directory. [`LocalCluster::run`] starts the controller first, at a free port of the kernel's
//! choice, then the others with its address as their seed. A node that dies is started again within a restart intensity;
//! the controller's own end is the run's, and whatever happens no node is left running.

mod layout;
mod place;
mod processes;

pub use layout::Layout;
pub use processes::end_with_parent;

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context;
use greenroom_core::{Clock, RestartDecision, RestartIntensity, RestartPolicy, spawn_named};
use greenroom_messages::run::StopMode;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::StartError;
use crate::config::Config;
use crate::up::{RunPlace, Talk, preparation};
use place::ClusterPlace;
use processes::{Ended, Process, Starter};

/// How often a node may be started again.
const RESTARTS: RestartPolicy =
    RestartPolicy { restarts: 5, within_ms: 120_000, backoff_ms: 200, backoff_limit_ms: 5_000 };
/// How long the controller may take to listen.
const LISTEN_WAIT: Duration = Duration::from_secs(120);
const LISTEN_PAUSE: Duration = Duration::from_millis(20);
/// How long the controller may take to end the run at once, its last words to every part included.
const END_WAIT: Duration = Duration::from_secs(120);
/// How long nodes may take to end after the controller, which waited for them, and after they were told to.
const CALM_WAIT: Duration = Duration::from_secs(3);
const LEAVE_WAIT: Duration = Duration::from_secs(40);
const KILL_WAIT: Duration = Duration::from_secs(5);
/// The controller's place among the nodes.
const CONTROLLER: usize = 0;
/// The exit status of a run that was stopped and can go on.
const STOPPED: u8 = 3;

/// A run over several nodes of this machine, ready to be started.
pub struct LocalCluster {
    place: ClusterPlace,
    program: PathBuf,
    talk: Talk,
    begins: bool,
}

/// Whether the run there was begun over several nodes.
pub fn is_of_nodes(place: &RunPlace) -> bool {
    place::is_there(place)
}

impl LocalCluster {
    /// Checks everything and writes the nodes' files; `program` is the `greenroom` binary. A run that goes on keeps its
    /// layout.
    ///
    /// # Errors
    /// Whatever is wrong with files and settings; [`StartError::NotOfNodes`] (GR0914) for a run that was begun otherwise.
    pub fn prepare(
        config: Config,
        place: &RunPlace,
        layout: Option<Layout>,
        program: PathBuf,
        talk: Talk,
    ) -> anyhow::Result<Self> {
        let config = preparation::check(config, place)?;
        anyhow::ensure!(
            config.engine.embedded.count > 0,
            "GR0912: the engine nodes of --nodes start embedded engines: set engine.embedded.count to at least 1"
        );
        if !place.resume && place.path().join("run.db").exists() {
            return Err(greenroom_run::RunError::RunExists { path: place.path() }.into());
        }
        let begins = !place.resume;
        let place = ClusterPlace::enter(place, layout, &config)?;
        talk(&format!("the nodes {} lie in {}", place.layout(), place.dir().display()));
        Ok(Self { place, program, talk, begins })
    }

    /// Where the nodes lie.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// Runs the nodes to the run's end, which is the controller's exit status. A wish ends it: the first word after the
    /// step under way, `Now` at once. The nodes end with the thread that polls this future: it must be polled by one that
    /// lives as long, such as that of `block_on`.
    ///
    /// # Errors
    /// [`StartError::NodeGaveUp`] (GR0913) when a node failed too often; or a node's process cannot be started.
    pub async fn run(self, wishes: mpsc::UnboundedReceiver<StopMode>) -> anyhow::Result<u8> {
        let (ended, endings) = mpsc::unbounded_channel();
        let (restart, restarts) = mpsc::unbounded_channel();
        let width = self.place.layout().nodes().iter().map(|node| node.name.len()).max().unwrap_or(0);
        let nodes = self.place.layout().nodes().iter().map(|_| NodeProcess::default()).collect();
        let starter = Starter { program: self.program, talk: self.talk.clone(), width, ended };
        let mut guard = Guard {
            place: self.place,
            starter,
            talk: self.talk,
            nodes,
            clock: Clock::system(),
            seed: None,
            is_stopping: false,
            restart,
        };
        let mut inbox = Inbox { endings, restarts, wishes };
        let end = guard.watch(&mut inbox).await;
        guard.take_down(&mut inbox.endings, end.is_err()).await;
        if self.begins && !matches!(end, Ok(0)) {
            guard.place.abandon();
        }
        end
    }
}

/// A node's process, and how often it failed.
struct NodeProcess {
    process: Option<Process>,
    intensity: RestartIntensity,
}

impl Default for NodeProcess {
    fn default() -> Self {
        Self { process: None, intensity: RestartIntensity::new(RESTARTS) }
    }
}

struct Inbox {
    endings: mpsc::UnboundedReceiver<Ended>,
    restarts: mpsc::UnboundedReceiver<usize>,
    wishes: mpsc::UnboundedReceiver<StopMode>,
}

/// Keeps the nodes running.
struct Guard {
    place: ClusterPlace,
    starter: Starter,
    talk: Talk,
    nodes: Vec<NodeProcess>,
    clock: Clock,
    /// The controller's address, once known.
    seed: Option<String>,
    is_stopping: bool,
    restart: mpsc::UnboundedSender<usize>,
}

impl Guard {
    /// Starts everything and keeps it running to the end, which is an exit status.
    async fn watch(&mut self, inbox: &mut Inbox) -> anyhow::Result<u8> {
        self.place.forget_address(&self.place.layout().nodes()[CONTROLLER]);
        self.place.write_node(&self.place.layout().nodes()[CONTROLLER], "127.0.0.1:0", Vec::new())?;
        self.start(CONTROLLER)?;
        let listens_by = Instant::now() + LISTEN_WAIT;
        let mut ends_by = None;
        let mut looks = interval(LISTEN_PAUSE);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.seed.is_none() && Instant::now() > listens_by {
                anyhow::bail!("GR0913: the controller does not listen after {} s", LISTEN_WAIT.as_secs());
            }
            let is_overdue = |by: &Instant| Instant::now() > *by;
            if ends_by.as_ref().is_some_and(is_overdue) {
                (self.talk)("the controller does not end; all nodes are stopped");
                return Ok(STOPPED);
            }
            tokio::select! {
                biased;
                Some(mode) = inbox.wishes.recv() => {
                    if let Some(status) = self.on_wish() {
                        return Ok(status);
                    }
                    if mode == StopMode::Now {
                        ends_by = Some(Instant::now() + END_WAIT);
                    }
                }
                Some(ended) = inbox.endings.recv() => {
                    if let Some(status) = self.on_ended(ended)? {
                        return Ok(status);
                    }
                }
                Some(node) = inbox.restarts.recv() => self.on_restart(node)?,
                _ = looks.tick(), if self.seed.is_none() => self.look_for_controller()?,
                () = tokio::time::sleep_until(ends_by.unwrap_or_else(Instant::now)), if ends_by.is_some() => {}
            }
        }
    }

    fn start(&mut self, node: usize) -> anyhow::Result<()> {
        // one that was to be started after a wait may have been needed earlier
        if self.nodes[node].process.is_some() {
            return Ok(());
        }
        let layout_node = &self.place.layout().nodes()[node];
        self.place.forget_end(layout_node);
        let started = self.starter.start(node, &layout_node.name, &self.place.node_file(layout_node));
        let program = self.starter.program.display();
        self.nodes[node].process = Some(started.with_context(|| format!("{program} does not start"))?);
        Ok(())
    }

    /// Starts the others as soon as the controller listens.
    fn look_for_controller(&mut self) -> anyhow::Result<()> {
        let [controller, others @ ..] = self.place.layout().nodes() else { return Ok(()) };
        let Some(address) = self.place.address(controller) else { return Ok(()) };
        // should it be started again, the others find it where it was
        self.place.write_node(controller, &address, Vec::new())?;
        for node in others {
            self.place.write_node(node, "127.0.0.1:0", vec![address.clone()])?;
        }
        self.seed = Some(address);
        (1..self.nodes.len()).try_for_each(|node| self.start(node))
    }

    /// Passes a wish on to the controller; without one the run is stopped already.
    fn on_wish(&mut self) -> Option<u8> {
        self.is_stopping = true;
        match &self.nodes[CONTROLLER].process {
            Some(controller) => {
                controller.signal(Signal::TERM);
                None
            }
            None => Some(STOPPED),
        }
    }

    /// What becomes of a node that has ended; an exit status when that is the run's end.
    fn on_ended(&mut self, ended: Ended) -> anyhow::Result<Option<u8>> {
        let Ended { node, status } = ended;
        self.nodes[node].process = None;
        let code = status.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
        match (node, code) {
            // its end is the run's, whatever it is; but one that was killed has told no end
            (CONTROLLER, Some(code)) => return Ok(Some(code)),
            (CONTROLLER, None) if self.is_stopping || self.has_told_a_stop() => return Ok(Some(STOPPED)),
            _ if node != CONTROLLER && self.place.has_ended(&self.place.layout().nodes()[node]) => return Ok(None),
            _ => {}
        }
        let name = self.place.layout().nodes()[node].name.clone();
        let how = in_words(status);
        match self.nodes[node].intensity.on_failure(self.clock.elapsed_ms()) {
            RestartDecision::RestartAfterMs(wait_ms) => {
                (self.talk)(&format!("the node {name} {how}; it is started again"));
                let restart = self.restart.clone();
                spawn_named(format!("restart of {name}"), async move {
                    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                    // nobody listens any more when everything ends
                    let _ = restart.send(node);
                });
                Ok(None)
            }
            RestartDecision::GiveUp => Err(StartError::NodeGaveUp { node: name, how }.into()),
        }
    }

    /// Whether the controller has told a node, before it died, that the run was stopped.
    fn has_told_a_stop(&self) -> bool {
        self.place.layout().nodes().iter().skip(1).any(|node| self.place.was_stopped(node))
    }

    fn on_restart(&mut self, node: usize) -> anyhow::Result<()> {
        self.start(node)?;
        if node != CONTROLLER || self.seed.is_none() {
            return Ok(());
        }
        // those that an earlier controller sent away are needed again
        (1..self.nodes.len()).try_for_each(|node| self.start(node))
    }

    /// Waits until every node has ended, and ends those that do not. In a hurry they are told to at once.
    async fn take_down(&mut self, endings: &mut mpsc::UnboundedReceiver<Ended>, hurry: bool) {
        let calm = if hurry { Duration::ZERO } else { CALM_WAIT };
        for (signal, wait) in [(None, calm), (Some(Signal::TERM), LEAVE_WAIT), (Some(Signal::KILL), KILL_WAIT)] {
            if let Some(signal) = signal {
                self.nodes.iter().filter_map(|node| node.process.as_ref()).for_each(|process| process.signal(signal));
            }
            let until = Instant::now() + wait;
            while self.nodes.iter().any(|node| node.process.is_some()) {
                let Ok(Some(ended)) = tokio::time::timeout_at(until, endings.recv()).await else { break };
                self.nodes[ended.node].process = None;
            }
        }
    }
}

fn in_words(status: Option<ExitStatus>) -> String {
    match status {
        Some(status) => format!("ended with {status}"),
        None => "could not be waited for".to_owned(),
    }
}
