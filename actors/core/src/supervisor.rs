//! A supervisor of actors, which ractor leaves to its users.
//!
//! Each child is started by a function and linked to the supervisor. A child that fails is started again after a back-off
//! within its [`RestartPolicy`]; a child that ends of its own will is not (its work is done). When a child fails too often
//! the supervisor stops with [`ChildFailure`] as its reason, and reports it first, so that nobody waits for a dead part.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};

use serde::{Deserialize, Serialize};

use crate::{Address, Clock, Reply, RestartDecision, RestartIntensity, RestartPolicy};

/// Starts (or restarts) a child under the supervisor's cell, and rebinds its addresses.
pub type ChildStart =
    Box<dyn Fn(ActorCell) -> Pin<Box<dyn Future<Output = Result<ActorCell, ActorProcessingErr>> + Send>> + Send + Sync>;

/// One child of a supervisor.
pub struct ChildSpec {
    /// The name shown to people; unique within the supervisor.
    pub name: String,
    /// How often it may be restarted.
    pub policy: RestartPolicy,
    /// How it is started.
    pub start: ChildStart,
}

impl ChildSpec {
    /// A child that is an actor: made, with its arguments made anew, at each start; `bind` is told of each incarnation,
    /// so that addresses can follow it.
    pub fn of_actor<A>(
        name: &str,
        policy: RestartPolicy,
        actor: impl Fn() -> A + Send + Sync + 'static,
        arguments: impl Fn() -> A::Arguments + Send + Sync + 'static,
        bind: impl Fn(&ActorRef<A::Msg>) + Send + Sync + 'static,
    ) -> Self
    where
        A: Actor,
    {
        let shared = Arc::new((actor, arguments, bind));
        let start: ChildStart = Box::new(move |supervisor| {
            let shared = shared.clone();
            Box::pin(async move {
                let (actor, arguments, bind) = &*shared;
                let (started, _) = Actor::spawn_linked(None, actor(), arguments(), supervisor).await?;
                bind(&started);
                Ok(started.get_cell())
            })
        });
        Self { name: name.to_owned(), policy, start }
    }

    /// A child that is an actor, whose address follows each incarnation.
    pub fn at_address<A, M>(
        name: &str,
        policy: RestartPolicy,
        actor: impl Fn() -> A + Send + Sync + 'static,
        arguments: impl Fn() -> A::Arguments + Send + Sync + 'static,
        address: &Address<M>,
    ) -> Self
    where
        A: Actor,
        A::Msg: From<M>,
        M: Send + 'static,
    {
        let address = address.clone();
        Self::of_actor(name, policy, actor, arguments, move |started| address.rebind(started))
    }
}

impl fmt::Debug for ChildSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ChildSpec")
            .field("name", &self.name)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// A child failed more often than its policy allows (GR0005).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{child} failed more often than its restart policy allows; last failure: {reason}")]
pub struct ChildFailure {
    /// The child.
    pub child: String,
    /// Its last failure.
    pub reason: String,
}

/// Messages of the supervisor.
#[derive(Debug)]
pub enum SupervisorMessage {
    /// Sent by the supervisor to itself when a back-off is over: start that child again.
    Restart(String),
    /// From whoever looks: how every child stands. Repeatable.
    Children(Reply<Vec<ChildStatus>>),
}

crate::local_message!(SupervisorMessage);

/// How a child stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildStatus {
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub state: ChildState,
    /// For how long it has been there, milliseconds.
    pub for_ms: u64,
    /// How often it was started again.
    pub restarts: u64,
    /// Its last failure, in words.
    pub last_failure: Option<String>,
}

/// Where a child is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildState {
    /// Not started yet.
    Starting,
    /// It runs.
    Running,
    /// It failed, and is started again after a wait.
    Restarting,
    /// It ended of its own will: its work is done.
    Ended,
}

/// Why an actor could not be started: its own error alone, without the framework's words around it at every level.
pub fn startup_cause(error: SpawnErr) -> ActorProcessingErr {
    match error {
        SpawnErr::StartupFailed(cause) => match cause.downcast::<SpawnErr>() {
            Ok(inner) => startup_cause(*inner),
            Err(cause) => cause,
        },
        other => other.into(),
    }
}

/// What a supervisor starts with.
pub struct SupervisorArguments {
    /// The children, started in this order and stopped in the reverse order.
    pub children: Vec<ChildSpec>,
    /// Told once when the supervisor gives up.
    pub on_give_up: Box<dyn Fn(ChildFailure) + Send + Sync>,
}

/// The supervisor actor.
#[derive(Debug, Default)]
pub struct Supervisor;

struct Child {
    spec: ChildSpec,
    intensity: RestartIntensity,
    state: ChildState,
    since_ms: u64,
    restarts: u64,
    last_failure: Option<String>,
}

impl Child {
    fn enter(&mut self, state: ChildState, now_ms: u64) {
        (self.state, self.since_ms) = (state, now_ms);
    }
}

/// The state of a running supervisor.
pub struct SupervisorState {
    clock: Clock,
    children: BTreeMap<String, Child>,
    names: BTreeMap<ActorId, String>,
    on_give_up: Box<dyn Fn(ChildFailure) + Send + Sync>,
}

impl SupervisorState {
    async fn start(&mut self, name: &str, myself: ActorCell) -> Result<(), ActorProcessingErr> {
        let Some(child) = self.children.get_mut(name) else { return Ok(()) };
        let cell = (child.spec.start)(myself).await.map_err(root_cause)?;
        self.names.insert(cell.get_id(), name.to_owned());
        child.restarts += u64::from(child.last_failure.is_some());
        child.enter(ChildState::Running, self.clock.elapsed_ms());
        Ok(())
    }

    fn children(&self) -> Vec<ChildStatus> {
        let now_ms = self.clock.elapsed_ms();
        let status = |(name, child): (&String, &Child)| ChildStatus {
            name: name.clone(),
            state: child.state,
            for_ms: now_ms.saturating_sub(child.since_ms),
            restarts: child.restarts,
            last_failure: child.last_failure.clone(),
        };
        self.children.iter().map(status).collect()
    }

    fn on_failure(&mut self, name: &str, reason: String, myself: &ActorRef<SupervisorMessage>) {
        let now_ms = self.clock.elapsed_ms();
        let Some(child) = self.children.get_mut(name) else { return };
        child.enter(ChildState::Restarting, now_ms);
        child.last_failure = Some(reason.clone());
        match child.intensity.on_failure(now_ms) {
            RestartDecision::RestartAfterMs(wait_ms) => {
                tracing::warn!(child = name, reason, wait_ms, "a child failed and is restarted");
                let name = name.to_owned();
                myself.send_after(Duration::from_millis(wait_ms), move || SupervisorMessage::Restart(name));
            }
            RestartDecision::GiveUp => {
                let failure = ChildFailure { child: name.to_owned(), reason };
                tracing::error!(code = "GR0005", %failure, "the supervisor gives up");
                (self.on_give_up)(failure.clone());
                myself.stop(Some(failure.to_string()));
            }
        }
    }
}

/// A child's starter usually hands on what ractor said; only the child's own error is of use to people.
fn root_cause(error: ActorProcessingErr) -> ActorProcessingErr {
    error.downcast::<SpawnErr>().map_or_else(|error| error, |error| startup_cause(*error))
}

impl Actor for Supervisor {
    type Msg = SupervisorMessage;
    type State = SupervisorState;
    type Arguments = SupervisorArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let order: Vec<String> = arguments.children.iter().map(|child| child.name.clone()).collect();
        let children = arguments.children.into_iter().map(|spec| {
            let intensity = RestartIntensity::new(spec.policy);
            let child =
                Child { spec, intensity, state: ChildState::Starting, since_ms: 0, restarts: 0, last_failure: None };
            (child.spec.name.clone(), child)
        });
        let mut state = SupervisorState {
            clock: Clock::simulated(0),
            children: children.collect(),
            names: BTreeMap::new(),
            on_give_up: arguments.on_give_up,
        };
        for name in order {
            let started = state.start(&name, myself.get_cell()).await;
            started.map_err(|cause| ActorProcessingErr::from(format!("{name}: {cause}")))?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMessage::Restart(name) => {
                if let Err(error) = state.start(&name, myself.get_cell()).await {
                    state.on_failure(&name, error.to_string(), &myself);
                }
            }
            SupervisorMessage::Children(reply) => drop(reply.send(state.children())),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(cell, error) => {
                if let Some(name) = state.names.remove(&cell.get_id()) {
                    state.on_failure(&name, error.to_string(), &myself);
                }
            }
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                if let Some(name) = state.names.remove(&cell.get_id()) {
                    tracing::debug!(child = name, reason, "a child ended");
                    let now_ms = state.clock.elapsed_ms();
                    if let Some(child) = state.children.get_mut(&name) {
                        child.enter(ChildState::Ended, now_ms);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Fail;
    crate::local_message!(Fail);

    struct Worker;
    impl Actor for Worker {
        type Msg = Fail;
        type State = ();
        type Arguments = ();
        async fn pre_start(&self, _: ActorRef<Fail>, (): ()) -> Result<(), ActorProcessingErr> {
            Ok(())
        }
        async fn handle(&self, _: ActorRef<Fail>, _: Fail, (): &mut ()) -> Result<(), ActorProcessingErr> {
            Err("told to fail".into())
        }
    }

    struct Unwilling;
    impl Actor for Unwilling {
        type Msg = Fail;
        type State = ();
        type Arguments = ();
        async fn pre_start(&self, _: ActorRef<Fail>, (): ()) -> Result<(), ActorProcessingErr> {
            Err("the file is missing".into())
        }
    }

    #[tokio::test]
    async fn a_child_that_cannot_start_is_named_with_its_own_words_only() {
        let start: ChildStart = Box::new(|supervisor| {
            Box::pin(async move { Ok(Actor::spawn_linked(None, Unwilling, (), supervisor).await?.0.get_cell()) })
        });
        let child = ChildSpec { name: "reader".into(), policy: RestartPolicy::NEVER, start };
        let arguments = SupervisorArguments { children: vec![child], on_give_up: Box::new(|_| {}) };
        let error = Actor::spawn(None, Supervisor, arguments).await.err().map(startup_cause).unwrap();
        assert_eq!(error.to_string(), "reader: the file is missing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_child_is_restarted_then_given_up_aloud() {
        let starts = Arc::new(AtomicU32::new(0));
        let address = Address::<Fail>::unbound("worker");
        let (gave_up, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let (starts_seen, bound) = (starts.clone(), address.clone());
        let bind = move |actor: &ActorRef<Fail>| {
            starts_seen.fetch_add(1, Ordering::Relaxed);
            bound.rebind(actor);
        };
        let policy = RestartPolicy { restarts: 2, within_ms: 60_000, backoff_ms: 10, backoff_limit_ms: 100 };
        let worker = ChildSpec::of_actor("worker", policy, || Worker, || (), bind);
        let arguments = SupervisorArguments {
            children: vec![worker],
            on_give_up: Box::new(move |failure| drop(gave_up.send(failure))),
        };
        let (supervisor, ended) = Actor::spawn(None, Supervisor, arguments).await.unwrap();
        let supervisor = Address::of(&supervisor);
        for expected_starts in 1..=3 {
            while starts.load(Ordering::Relaxed) < expected_starts {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let seen = crate::ask(&supervisor, crate::Deadline::after_ms(1_000), SupervisorMessage::Children).await;
            let seen = seen.unwrap().remove(0);
            assert_eq!((seen.state, seen.restarts), (ChildState::Running, u64::from(expected_starts - 1)));
            assert_eq!(seen.last_failure.is_some(), expected_starts > 1);
            address.cast(Fail).unwrap();
        }
        let failure = heard.recv().await.unwrap();
        assert_eq!((failure.child.as_str(), failure.reason.as_str()), ("worker", "told to fail"));
        ended.await.unwrap();
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }
}
