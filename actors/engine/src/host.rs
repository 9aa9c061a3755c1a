//! EngineHost: one engine on a host of its own, joined to a fleet elsewhere.
//!
//! It starts the engine's proxy next to the engine, and has the fleet know it: again and again, so that a fleet that was
//! restarted, or was out of reach, learns of it and says which weights it wants. An update is first applied by this host's
//! WeightReceiver, while the engine still serves, and then handed to the proxy with the directory that it has here.
//!
//! Invariants: the engine never pauses for bytes that are still on their way; an engine that comes late, or whose proxy
//! failed, is brought to what the fleet wants before it serves. A failure of the proxy ends the host, whose supervisor
//! starts both again; the new proxy distrusts what the engine holds.

use std::time::Duration;

use greenroom_core::{Address, AskError, Deadline, Reply, ask, spawn_named};
use greenroom_messages::engine::{
    EngineFailure, EngineFailureKind, EnginePoolMessage, EngineProxyMessage, EngineUpdate, UpdateWeights,
};
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::weights::{WeightPublisherMessage, WeightReceiverMessage};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::{EngineProxy, EngineProxyArguments};

/// How often the fleet is told of this engine.
const JOIN_EVERY: Duration = Duration::from_secs(2);
/// How long the fleet may take to answer that.
const JOIN_WAIT_MS: u64 = 10_000;
/// Which setback in a row a person hears of: parts of a run that starts, or comes back, find each other within seconds.
const TOLD_SETBACK: u32 = 3;
/// After that, each time that so many more have come.
const TOLD_AGAIN: u32 = 30;

/// What an EngineHost starts with; cloneable, so that a supervisor can start it again.
#[derive(Clone, Debug)]
pub struct EngineHostArguments {
    /// How the proxy starts; its `fleet` is the fleet that is joined.
    pub proxy: EngineProxyArguments,
    /// The name of this host's receiver.
    pub receiver_name: String,
    /// This host's receiver.
    pub receiver: Address<WeightReceiverMessage>,
    /// Told which versions this host holds.
    pub publisher: Address<WeightPublisherMessage>,
}

/// The actor.
#[derive(Debug, Default)]
pub struct EngineHost;

/// What an EngineHost receives.
#[derive(Debug)]
pub enum EngineHostInput {
    /// Tell the fleet of the engine.
    Join,
    /// The fleet has answered, or not.
    Joined(Result<Result<Option<UpdateWeights>, EngineFailure>, AskError>),
    /// From the fleet: bring the engine to these weights.
    Update(UpdateWeights, Reply<EngineUpdate>),
    /// An update has ended.
    Brought(u64, EngineUpdate),
    /// From the node that ends: leave the fleet. Answers when nothing is in flight at the engine any more, or after so many
    /// milliseconds. Repeatable.
    Leave(u64, Reply<()>),
}

greenroom_core::local_message!(EngineHostInput);

/// The state of a running EngineHost.
#[derive(Debug)]
pub struct EngineHostState {
    arguments: EngineHostArguments,
    proxy: Address<EngineProxyMessage>,
    /// The address that the fleet is given: updates come to the host, everything else goes to the proxy.
    published: Address<EngineProxyMessage>,
    /// The newest version that the engine was told to load, by whomever.
    told: Option<u64>,
    /// How many updates have failed in a row.
    setbacks: u32,
    is_joined: bool,
    is_leaving: bool,
}

impl EngineHostState {
    fn join(&self, myself: &ActorRef<EngineHostInput>) {
        let (fleet, spec) = (self.arguments.proxy.fleet.clone(), self.arguments.proxy.spec.clone());
        let (published, myself) = (self.published.clone(), myself.clone());
        spawn_named(format!("engine-join {}", spec.engine), async move {
            let question = |reply| EnginePoolMessage::Join(spec, published, reply);
            let joined = ask(&fleet, Deadline::after_ms(JOIN_WAIT_MS), question).await;
            // a host that has ended joins nothing
            let _ = myself.send_message(EngineHostInput::Joined(joined));
        });
    }

    fn on_joined(
        &mut self,
        joined: Result<Result<Option<UpdateWeights>, EngineFailure>, AskError>,
        myself: &ActorRef<EngineHostInput>,
    ) {
        let engine = &self.arguments.proxy.spec.engine;
        let was_joined = std::mem::replace(&mut self.is_joined, matches!(joined, Ok(Ok(_))));
        match joined {
            Ok(Ok(wanted)) => {
                if !was_joined {
                    tracing::info!(%engine, "the engine has joined the fleet");
                }
                let is_news = |wanted: &UpdateWeights| self.told.is_none_or(|told| told < wanted.version.number);
                if let Some(wanted) = wanted.filter(is_news).filter(|_| !self.is_leaving) {
                    // the host hears of the end itself
                    let (reply, _) = Reply::channel();
                    self.update(wanted, reply, myself);
                }
            }
            Ok(Err(failure)) => tracing::error!(%engine, %failure, "the fleet refuses the engine"),
            Err(error) if was_joined => tracing::warn!(%engine, %error, "the fleet is out of reach"),
            Err(error) => tracing::debug!(%engine, %error, "the fleet is out of reach"),
        }
        if !self.is_leaving {
            myself.send_after(JOIN_EVERY, || EngineHostInput::Join);
        }
    }

    /// Has the fleet send nothing more, and waits until what is in flight has ended.
    fn leave(&mut self, within_ms: u64, reply: Reply<()>) {
        self.is_leaving = true;
        let (fleet, engine) = (self.arguments.proxy.fleet.clone(), self.arguments.proxy.spec.engine.clone());
        let proxy = self.proxy.clone();
        spawn_named(format!("engine-leave {engine}"), async move {
            let deadline = Deadline::after_ms(within_ms);
            let left = ask(&fleet, deadline, |reply| EnginePoolMessage::Remove(engine.clone(), reply)).await;
            // a fleet that is out of reach, or gives up earlier, does not keep the engine from finishing
            let idle = ask(&proxy, deadline, EngineProxyMessage::Drain).await;
            match (left, idle) {
                (Ok(Ok(())), Ok(())) => tracing::info!(%engine, "the engine has left the fleet"),
                (left, idle) => tracing::warn!(%engine, ?left, ?idle, "the engine leaves with turns in flight"),
            }
            reply.send(());
        });
    }

    /// Applies the weights on this host, then has the proxy load them.
    fn update(&mut self, wish: UpdateWeights, reply: Reply<EngineUpdate>, myself: &ActorRef<EngineHostInput>) {
        let number = wish.version.number;
        self.told = self.told.max(Some(number));
        let (arguments, proxy, myself) = (self.arguments.clone(), self.proxy.clone(), myself.clone());
        spawn_named(format!("engine-host-update {}", wish.version), async move {
            let update = bring(&arguments, &proxy, wish).await;
            // a host that has ended begins anew with everything
            let _ = myself.send_message(EngineHostInput::Brought(number, update.clone()));
            reply.send(update);
        });
    }

    fn on_brought(&mut self, number: u64, update: &EngineUpdate) {
        let Err(failure) = &update.result else {
            self.setbacks = 0;
            return;
        };
        // so that the next answer of the fleet begins it again
        self.told = self.told.filter(|told| *told != number);
        self.setbacks += 1;
        if self.setbacks % TOLD_AGAIN == TOLD_SETBACK {
            tracing::warn!(engine = %update.engine, %failure, "the engine is not at the weights of the fleet yet");
        } else {
            tracing::debug!(engine = %update.engine, %failure, "the engine is not at the weights of the fleet yet");
        }
    }
}

fn failed(engine: &greenroom_messages::EngineId, message: impl Into<String>) -> EngineUpdate {
    let failure = EngineFailure { kind: EngineFailureKind::Lost, message: message.into() };
    EngineUpdate { engine: engine.clone(), result: Err(failure) }
}

async fn bring(
    arguments: &EngineHostArguments,
    proxy: &Address<EngineProxyMessage>,
    wish: UpdateWeights,
) -> EngineUpdate {
    let engine = &arguments.proxy.spec.engine;
    let deadline = Deadline::after_ms(wish.timeout_ms);
    let question = |reply| WeightReceiverMessage::Apply(wish.version.clone(), reply);
    let applied = match ask(&arguments.receiver, deadline, question).await {
        Ok(Ok(applied)) => applied,
        Ok(Err(failure)) => return failed(engine, format!("its host could not apply {}: {failure}", wish.version)),
        Err(error) => return failed(engine, format!("its host did not apply {}: {error}", wish.version)),
    };
    let receiver = arguments.receiver_name.clone();
    let (version, root_hash) = (applied.version.clone(), applied.root_hash.clone());
    // an acknowledgement that is lost costs a larger delta next time, nothing else
    let _ = arguments.publisher.cast(WeightPublisherMessage::Acknowledge {
        receiver: receiver.clone(),
        version: version.clone(),
        root_hash: root_hash.clone(),
    });
    let event = RunEvent::WeightsApplied { receiver, version, root_hash };
    if let Err(gone) = arguments.proxy.journal.cast(JournalMessage::Record(event)) {
        tracing::debug!(%gone, "an applied version is not recorded");
    }
    let load = UpdateWeights { model_dir: applied.model_dir, ..wish };
    let answer = ask(proxy, deadline, |reply| EngineProxyMessage::UpdateWeights(load, reply)).await;
    answer.unwrap_or_else(|error| failed(engine, error.to_string()))
}

impl Actor for EngineHost {
    type Msg = EngineHostInput;
    type State = EngineHostState;
    type Arguments = EngineHostArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let (running, _) = Actor::spawn_linked(None, EngineProxy, arguments.proxy.clone(), myself.get_cell()).await?;
        let name = format!("engine-proxy {}", arguments.proxy.spec.engine);
        let proxy = Address::unbound(&name);
        proxy.rebind(&running);
        let (host, inner) = (myself.clone(), proxy.clone());
        let published = Address::of_function(&name, move |message| match message {
            EngineProxyMessage::UpdateWeights(wish, reply) => {
                host.send_message(EngineHostInput::Update(wish, reply)).map_err(|_| ())
            }
            other => inner.cast(other).map_err(|_| ()),
        });
        Ok(EngineHostState {
            arguments,
            proxy,
            published,
            told: None,
            setbacks: 0,
            is_joined: false,
            is_leaving: false,
        })
    }

    async fn post_start(&self, myself: ActorRef<Self::Msg>, state: &mut Self::State) -> Result<(), ActorProcessingErr> {
        state.join(&myself);
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            EngineHostInput::Join if state.is_leaving => {}
            EngineHostInput::Join => state.join(&myself),
            EngineHostInput::Joined(joined) => state.on_joined(joined, &myself),
            EngineHostInput::Update(wish, reply) => state.update(wish, reply, &myself),
            EngineHostInput::Brought(number, update) => state.on_brought(number, &update),
            EngineHostInput::Leave(within_ms, reply) => state.leave(within_ms, reply),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        _: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(_, error) => Err(format!("the engine's proxy failed: {error}").into()),
            SupervisionEvent::ActorTerminated(_, _, reason) => {
                let reason = reason.unwrap_or_else(|| "it ended without a reason".to_owned());
                Err(format!("the engine's proxy ended: {reason}").into())
            }
            _ => Ok(()),
        }
    }
}
