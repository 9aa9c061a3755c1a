//! The ractor side of EngineProxy: inputs to the machine, effects to tasks, messages and replies.
//!
//! Control calls and turns run as named tasks that report back by message. When the actor ends in whatever way, its
//! control call is given up, each turn is answered as lost and aborted at the engine, and who waits for an update hears
//! of it by the dropped reply port.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::{Address, Deadline, Reply, Seam, spawn_named};
use greenroom_messages::engine::{
    EngineFailure, EnginePoolMessage, EngineProxyMessage, EngineSpec, EngineStatus, EngineUpdate, EngineVerdict,
    GenerateOutcome, GenerateRequest, UpdateWeights, WeightsFound,
};
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::{RunId, WeightVersion};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::control::{call_name, make_call};
use super::effect::{Admission, Call, CallAnswer, Effect, Input, Report, SpotVerdict};
use super::state::{EngineMachine, MachineSettings};
use super::turn::Turn;
use crate::{AbortTarget, ApiError, EngineApi, EngineConfig};

/// The actor of one engine.
#[derive(Debug, Default)]
pub struct EngineProxy;

/// What an EngineProxy starts with.
#[derive(Clone, Debug)]
pub struct EngineProxyArguments {
    /// The engine.
    pub spec: EngineSpec,
    /// How to speak to it.
    pub api: Arc<dyn EngineApi>,
    /// Deadlines and waits.
    pub config: EngineConfig,
    /// Time, randomness, faults.
    pub seam: Seam,
    /// The run whose weights are admissible.
    pub run: RunId,
    /// Token ids must be smaller than this.
    pub vocabulary_tokens: u32,
    /// Told of every change of state and of missed deadlines.
    pub journal: Address<JournalMessage>,
    /// Told of every change of state.
    pub fleet: Address<EnginePoolMessage>,
    /// The weights that the fleet is to have, if known.
    pub wanted: Option<UpdateWeights>,
    /// Whether a proxy before this one ended while weights were being replaced.
    pub distrust: bool,
    /// How often this engine's proxy was started before: splits the randomness.
    pub incarnation: u64,
}

/// What an EngineProxy receives: the published messages, and reports of its own tasks.
#[derive(Debug)]
pub enum EngineProxyInput {
    /// From outside.
    Asked(EngineProxyMessage),
    /// A control call ended.
    Called(u64, Result<CallAnswer, ApiError>),
    /// A turn ended.
    Finished(String, Report),
    /// The numbers of these weights were compared with the engine's.
    Verified(WeightVersion, SpotVerdict, Reply<EngineVerdict>),
    /// The timer for this moment is due.
    Tick(u64),
}

greenroom_core::local_message!(EngineProxyInput);

impl From<EngineProxyMessage> for EngineProxyInput {
    fn from(message: EngineProxyMessage) -> Self {
        Self::Asked(message)
    }
}

/// Sends a message when dropped, so that a task that panics or is thrown away is heard of too.
struct ReportOnDrop {
    proxy: ActorRef<EngineProxyInput>,
    report: Option<EngineProxyInput>,
}

impl ReportOnDrop {
    fn new(proxy: &ActorRef<EngineProxyInput>, unless: EngineProxyInput) -> Self {
        Self { proxy: proxy.clone(), report: Some(unless) }
    }

    fn report(mut self, report: EngineProxyInput) {
        self.report = Some(report);
    }
}

impl Drop for ReportOnDrop {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            // A proxy that is gone has answered its turns already.
            let _ = self.proxy.send_message(report);
        }
    }
}

type Pending = (GenerateRequest, Reply<Result<GenerateOutcome, EngineFailure>>, Instant);

/// The state of a running EngineProxy.
#[derive(Debug)]
pub struct EngineProxyState {
    arguments: EngineProxyArguments,
    machine: EngineMachine,
    control: Option<AbortHandle>,
    deciding: Option<Pending>,
    turns: BTreeMap<String, oneshot::Sender<EngineFailure>>,
    updates: BTreeMap<u64, Reply<EngineUpdate>>,
    next_update: u64,
    next_look: u64,
    drains: Vec<Reply<()>>,
    monitors: Vec<Reply<()>>,
    wake_at_ms: Option<u64>,
}

impl Drop for EngineProxyState {
    fn drop(&mut self) {
        if let Some(control) = self.control.take() {
            control.abort();
        }
    }
}

impl EngineProxyState {
    fn new(arguments: EngineProxyArguments) -> Self {
        let purpose = format!("engine.{}", arguments.spec.engine);
        let machine = EngineMachine::new(MachineSettings {
            spec: arguments.spec.clone(),
            run: arguments.run.clone(),
            vocabulary_tokens: arguments.vocabulary_tokens,
            config: arguments.config.clone(),
            wanted: arguments.wanted.clone(),
            distrust: arguments.distrust,
            seed: arguments.seam.seed.child_numbered(&purpose, arguments.incarnation),
        });
        Self {
            arguments,
            machine,
            control: None,
            deciding: None,
            turns: BTreeMap::new(),
            updates: BTreeMap::new(),
            next_update: 0,
            next_look: 0,
            drains: Vec::new(),
            monitors: Vec::new(),
            wake_at_ms: None,
        }
    }

    fn step(&mut self, myself: &ActorRef<EngineProxyInput>, input: Input) {
        let now_ms = self.arguments.seam.clock.elapsed_ms();
        for effect in self.machine.step(now_ms, input) {
            self.act(myself, effect);
        }
        let wake_ms = self.machine.next_wake_ms();
        // A wake-up that is set already and comes earlier does no harm; a later one is ignored when it comes.
        if let Some(wake_ms) = wake_ms.filter(|wake_ms| self.wake_at_ms.is_none_or(|set_ms| *wake_ms < set_ms)) {
            self.wake_at_ms = Some(wake_ms);
            myself.send_after(Duration::from_millis(wake_ms.saturating_sub(now_ms)), move || {
                EngineProxyInput::Tick(wake_ms)
            });
        }
    }

    fn act(&mut self, myself: &ActorRef<EngineProxyInput>, effect: Effect) {
        match effect {
            Effect::Call { ticket, call, within_ms } => self.call(myself, ticket, call, within_ms),
            Effect::Send { rid, max_new_tokens, version } => self.send(myself, rid, max_new_tokens, version),
            Effect::Reject { failure, .. } => {
                if let Some((_, reply, _)) = self.deciding.take() {
                    reply.send(Err(failure));
                }
            }
            Effect::Abort(rid) => self.abort(rid),
            Effect::Fail { rid, failure } => {
                if let Some(called_off) = self.turns.remove(&rid) {
                    // A turn that has just ended by itself has been answered.
                    let _ = called_off.send(failure);
                }
            }
            Effect::UpdateEnded { waiter, result } => {
                if let Some(reply) = self.updates.remove(&waiter) {
                    reply.send(EngineUpdate { engine: self.arguments.spec.engine.clone(), result });
                }
            }
            Effect::Drained => {
                for reply in self.drains.drain(..) {
                    reply.send(());
                }
            }
            Effect::Moved(status) => {
                let event = RunEvent::EngineMoved {
                    engine: status.engine.clone(),
                    state: status.state,
                    version: status.version.clone(),
                    trouble: status.trouble.clone(),
                };
                tracing::info!(engine = %status.engine, state = ?status.state, trouble = status.trouble, "engine moved");
                self.record(event);
                self.tell_fleet(status);
            }
            Effect::HasRoom(status) => self.tell_fleet(status),
            Effect::AskFailed(error) => {
                let asker = format!("engine-proxy {}", self.arguments.spec.engine);
                self.record(RunEvent::AskFailed { asker, error });
            }
            Effect::Note(text) => {
                tracing::info!("{text}");
                self.record(RunEvent::Note { source: format!("engine-proxy {}", self.arguments.spec.engine), text });
            }
        }
    }

    fn tell_fleet(&self, status: EngineStatus) {
        if let Err(gone) = self.arguments.fleet.cast(EnginePoolMessage::Changed(status)) {
            tracing::debug!(%gone, "nobody hears of an engine's state");
        }
    }

    fn record(&self, event: RunEvent) {
        if let Err(gone) = self.arguments.journal.cast(JournalMessage::Record(event)) {
            tracing::debug!(%gone, "an event of an engine is not recorded");
        }
    }

    fn call(&mut self, myself: &ActorRef<EngineProxyInput>, ticket: u64, call: Call, within_ms: u64) {
        let (api, seam) = (self.arguments.api.clone(), self.arguments.seam.clone());
        let url = self.arguments.spec.url.clone();
        let lost = ApiError::Lost { call: "control call", url: url.clone(), message: "its task ended".into() };
        let guard = ReportOnDrop::new(myself, EngineProxyInput::Called(ticket, Err(lost)));
        let task = spawn_named(format!("engine-control {}", self.arguments.spec.engine), async move {
            let deadline = Deadline::after_ms(within_ms);
            let result = tokio::time::timeout_at(deadline.instant(), make_call(&*api, &seam, &call, deadline)).await;
            let timed_out = ApiError::TimedOut { call: call_name(&call), url, waited_ms: within_ms };
            guard.report(EngineProxyInput::Called(ticket, result.unwrap_or(Err(timed_out))));
        });
        if let Some(before) = self.control.replace(task.abort_handle()) {
            before.abort();
        }
    }

    fn send(&mut self, myself: &ActorRef<EngineProxyInput>, rid: String, max_new_tokens: u32, version: u64) {
        let Some((mut request, reply, asked_at)) = self.deciding.take() else { return };
        request.sampling.max_new_tokens = max_new_tokens;
        let (call_off, called_off) = oneshot::channel();
        self.turns.insert(rid.clone(), call_off);
        let turn = Turn {
            api: self.arguments.api.clone(),
            engine: self.arguments.spec.engine.clone(),
            run: self.arguments.run.clone(),
            deadline: Deadline::after_ms(request.timeout_ms),
            request,
            asked_at,
            abort_ms: self.arguments.config.deadlines.abort_ms,
            version,
            vocabulary_tokens: self.arguments.vocabulary_tokens,
        };
        let broken = Report::Broken("its task ended without a report".into());
        let guard = ReportOnDrop::new(myself, EngineProxyInput::Finished(rid.clone(), broken));
        spawn_named(format!("engine-turn {rid}"), async move {
            let report = turn.run(reply, called_off).await;
            guard.report(EngineProxyInput::Finished(rid, report));
        });
    }

    fn abort(&self, rid: String) {
        let (api, abort_ms) = (self.arguments.api.clone(), self.arguments.config.deadlines.abort_ms);
        let (journal, engine) = (self.arguments.journal.clone(), self.arguments.spec.engine.clone());
        spawn_named(format!("engine-abort {rid}"), async move {
            let deadline = Deadline::after_ms(abort_ms);
            let target = AbortTarget::Request(rid.clone());
            let result = tokio::time::timeout_at(deadline.instant(), api.abort(&target, deadline)).await;
            let error = match result {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("the abort of {rid} was not answered within {abort_ms} ms"),
            };
            // Not fatal: the hung-up connection ends the request within seconds, and a probe sees a dead engine.
            let event = RunEvent::AskFailed { asker: format!("engine-proxy {engine}"), error };
            let _ = journal.cast(JournalMessage::Record(event));
        });
    }

    fn on_asked(&mut self, myself: &ActorRef<EngineProxyInput>, message: EngineProxyMessage) {
        match message {
            EngineProxyMessage::Generate(request, reply) => {
                if reply.is_abandoned() {
                    return;
                }
                let admission = Admission::of(&request);
                self.deciding = Some((request, reply, Instant::now()));
                self.step(myself, Input::Generate(admission));
            }
            EngineProxyMessage::Release(rollout) => self.step(myself, Input::Release(rollout)),
            EngineProxyMessage::UpdateWeights(wish, reply) => {
                self.next_update += 1;
                self.updates.insert(self.next_update, reply);
                self.step(myself, Input::Update(self.next_update, wish));
            }
            EngineProxyMessage::Drain(reply) => {
                self.drains.push(reply);
                self.step(myself, Input::Drain);
            }
            EngineProxyMessage::Undrain => self.step(myself, Input::Undrain),
            EngineProxyMessage::Status(reply) => {
                reply.send(self.machine.status());
            }
            EngineProxyMessage::Verify(within_ms, reply) => {
                // other tensors each time
                self.next_look = self.next_look.wrapping_add(1);
                self.verify(myself, within_ms, reply);
            }
            EngineProxyMessage::Monitor(reply) => {
                self.monitors.retain(|monitor| !monitor.is_abandoned());
                self.monitors.push(reply);
            }
        }
    }

    /// Compares a few of the engine's numbers with the weights that it confirmed; beside whatever the machine does.
    fn verify(&self, myself: &ActorRef<EngineProxyInput>, within_ms: u64, reply: Reply<EngineVerdict>) {
        let wish = match self.machine.settled_on() {
            Ok(wish) => wish,
            Err(reason) => {
                reply.send(self.machine.verdict(WeightsFound::NotCompared(reason)));
                return;
            }
        };
        let (model_dir, version) = (wish.model_dir, wish.version);
        // a part of the time for the way here and back
        let answer_ms = within_ms.saturating_sub(within_ms / 4);
        let call = Call::SpotCheck { model_dir, turn: self.next_look, answer_ms };
        let (api, seam, myself) = (self.arguments.api.clone(), self.arguments.seam.clone(), myself.clone());
        spawn_named(format!("engine-verify {}", self.arguments.spec.engine), async move {
            let verdict = match make_call(&*api, &seam, &call, Deadline::after_ms(answer_ms)).await {
                Ok(CallAnswer::SpotChecked(verdict)) => verdict,
                Ok(_) => SpotVerdict::Unable("it answered something else than was asked".to_owned()),
                Err(error) => SpotVerdict::Unable(error.to_string()),
            };
            // whether it still holds these weights is known only where it is known what it loads
            let _ = myself.send_message(EngineProxyInput::Verified(version, verdict, reply));
        });
    }
}

impl Actor for EngineProxy {
    type Msg = EngineProxyInput;
    type State = EngineProxyState;
    type Arguments = EngineProxyArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(EngineProxyState::new(arguments))
    }

    async fn post_start(&self, myself: ActorRef<Self::Msg>, state: &mut Self::State) -> Result<(), ActorProcessingErr> {
        state.step(&myself, Input::Start);
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            EngineProxyInput::Asked(message) => state.on_asked(&myself, message),
            EngineProxyInput::Called(ticket, result) => state.step(&myself, Input::Called(ticket, result)),
            EngineProxyInput::Finished(rid, report) => {
                state.turns.remove(&rid);
                state.step(&myself, Input::Finished(rid, report));
            }
            EngineProxyInput::Verified(version, verdict, reply) => {
                let found = state.machine.judge(&version, verdict);
                reply.send(state.machine.verdict(found));
            }
            EngineProxyInput::Tick(due_ms) => {
                if state.wake_at_ms == Some(due_ms) {
                    state.wake_at_ms = None;
                    state.step(&myself, Input::Tick);
                }
            }
        }
        Ok(())
    }
}
