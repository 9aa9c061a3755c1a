//! The ractor side of EnginePool: questions to the router, plans to proxies, answers back.
//!
//! Every turn that arrives is answered: by an engine, by its own time-out in the queue, by its release, or by the
//! shutdown. The pool itself holds nothing that a restart would need: routing is rebuilt from what proxies report.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use greenroom_core::{Address, Deadline, Reply, Seam, ask, spawn_named};
use greenroom_messages::engine::{
    EngineFailure, EngineFailureKind, EnginePoolMessage, EngineProxyMessage, EngineSpec, EngineState, EngineStatus,
    EngineUpdate, GenerateRequest, UpdateWeights,
};
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::{EngineId, RolloutId, RunId};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use super::ApiFactory;
use super::members::{JOIN_LEASE_MS, Member, Members, first_status};
use super::monitor::monitor;
use super::relay::{Answer, PendingTurn, Relayed, relay};
use super::routing::Router;
use super::update::update_fleet;
use super::verify::verify_fleet;
use crate::EngineConfig;

/// How long a request that an engine did not take waits at least, in milliseconds.
const NOT_TAKEN_WAIT_MS: u64 = 20;
/// How long proxies may take to end, in milliseconds.
const STOP_MS: u64 = 5_000;

/// The actor of the fleet.
#[derive(Debug, Default)]
pub struct EnginePool;

/// What an EnginePool starts with.
#[derive(Clone)]
pub struct EnginePoolArguments {
    /// The engines at first; more may be added.
    pub specs: Vec<EngineSpec>,
    /// How to make the client of an engine.
    pub api: ApiFactory,
    /// Deadlines, waits, order of updates.
    pub config: EngineConfig,
    /// Time, randomness, faults.
    pub seam: Seam,
    /// The run whose weights are admissible.
    pub run: RunId,
    /// The size of the model's embedding: token ids must be smaller, one outside would kill an engine.
    pub vocabulary_tokens: u32,
    /// Told of engines' states and of missed deadlines.
    pub journal: Address<JournalMessage>,
}

impl std::fmt::Debug for EnginePoolArguments {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("EnginePoolArguments");
        shown.field("specs", &self.specs).field("config", &self.config).field("run", &self.run).finish_non_exhaustive()
    }
}

/// What an EnginePool receives: the published messages, and reports of its own tasks.
#[derive(Debug)]
pub enum EnginePoolInput {
    /// From outside.
    Asked(EnginePoolMessage),
    /// A turn came back from a proxy.
    Relayed(u64, Box<PendingTurn>, Relayed),
    /// A proxy's back-off is over.
    Restart(EngineId),
    /// An engine that was to leave is drained, or has had its time.
    Drained(EngineId, Reply<Result<(), EngineFailure>>),
    /// How a joined engine stands that had told so many changes of its state when it was asked.
    Found(EngineStatus, u64),
    /// The proxy of a joined engine is gone, or its node: of this presence, for this reason.
    Gone(EngineId, u64, String),
    /// A host may have been silent for too long.
    LookForSilence,
    /// The timer for this moment is due.
    Tick(u64),
    /// All proxies have ended.
    Stopped(Reply<()>),
}

greenroom_core::local_message!(EnginePoolInput);

impl From<EnginePoolMessage> for EnginePoolInput {
    fn from(message: EnginePoolMessage) -> Self {
        Self::Asked(message)
    }
}

/// The state of a running EnginePool.
#[derive(Debug)]
pub struct EnginePoolState {
    arguments: EnginePoolArguments,
    members: Members,
    router: Router,
    turns: BTreeMap<u64, PendingTurn>,
    rids: BTreeSet<String>,
    released: BTreeSet<u64>,
    next_turn: u64,
    wanted: Option<UpdateWeights>,
    closed: bool,
    stopping: Vec<Reply<()>>,
    wake_at_ms: Option<u64>,
}

fn failure<T>(kind: EngineFailureKind, message: impl Into<String>) -> Result<T, EngineFailure> {
    Err(EngineFailure { kind, message: message.into() })
}

impl EnginePoolState {
    fn now_ms(&self) -> u64 {
        self.arguments.seam.clock.elapsed_ms()
    }

    fn record(&self, event: RunEvent) {
        if let Err(gone) = self.arguments.journal.cast(JournalMessage::Record(event)) {
            tracing::debug!(%gone, "an event of the fleet is not recorded");
        }
    }

    fn on_generate(&mut self, request: GenerateRequest, reply: Reply<Answer>) {
        if self.closed {
            reply.send(failure(EngineFailureKind::Closed, "the fleet is shutting down"));
            return;
        }
        if !self.rids.insert(request.rid.clone()) {
            reply.send(failure(EngineFailureKind::Refused, format!("request {} is under way already", request.rid)));
            return;
        }
        self.next_turn += 1;
        let deadline_ms = self.now_ms().saturating_add(request.timeout_ms);
        self.router.enqueue(self.next_turn, request.rollout, request.oldest_version, deadline_ms);
        let pending = PendingTurn { request, reply, asked_at: Instant::now(), deadline_ms };
        self.turns.insert(self.next_turn, pending);
    }

    /// Sends what can be sent, ends what has waited too long, and sets the next wake-up.
    fn pump(&mut self, myself: &ActorRef<EnginePoolInput>) {
        let now_ms = self.now_ms();
        for key in self.router.waiting() {
            if self.turns.get(&key).is_some_and(|turn| turn.reply.is_abandoned()) {
                self.drop_turn(key);
            }
        }
        let plan = self.router.plan(now_ms);
        for key in plan.expired {
            self.expire(key);
        }
        for (key, engine) in plan.send {
            self.send(myself, key, &engine, now_ms);
        }
        let wake_ms = self.router.next_wake_ms(now_ms);
        if let Some(wake_ms) = wake_ms.filter(|wake_ms| self.wake_at_ms.is_none_or(|set_ms| *wake_ms < set_ms)) {
            self.wake_at_ms = Some(wake_ms);
            let wait = Duration::from_millis(wake_ms.saturating_sub(now_ms));
            myself.send_after(wait, move || EnginePoolInput::Tick(wake_ms));
        }
    }

    fn drop_turn(&mut self, key: u64) -> Option<PendingTurn> {
        self.router.finished(key);
        self.released.remove(&key);
        let turn = self.turns.remove(&key)?;
        self.rids.remove(&turn.request.rid);
        Some(turn)
    }

    fn expire(&mut self, key: u64) {
        let Some(turn) = self.drop_turn(key) else { return };
        let (request, statuses) = (&turn.request, self.router.statuses());
        let states = statuses.iter().map(|status| match &status.version {
            Some(version) => format!("{} {:?} at {version}", status.engine, status.state),
            None => format!("{} {:?}", status.engine, status.state),
        });
        let states = states.collect::<Vec<_>>().join(", ");
        let (rid, timeout_ms, oldest) = (&request.rid, request.timeout_ms, request.oldest_version);
        let message = format!("no engine could take {rid} within {timeout_ms} ms (version {oldest} needed): {states}");
        self.record(RunEvent::AskFailed { asker: format!("rollout {}", request.rollout), error: message.clone() });
        turn.reply.send(failure(EngineFailureKind::NoEngine, message));
    }

    fn send(&mut self, myself: &ActorRef<EnginePoolInput>, key: u64, engine: &EngineId, now_ms: u64) {
        let Some(member) = self.members.by_engine.get(engine) else {
            return self.router.requeue(key, now_ms + NOT_TAKEN_WAIT_MS);
        };
        let Some(mut turn) = self.turns.remove(&key) else { return self.router.finished(key) };
        let (proxy, pool) = (member.address.clone(), myself.clone());
        let timeout_ms = turn.deadline_ms.saturating_sub(now_ms);
        spawn_named(format!("engine-relay {}", turn.request.rid), async move {
            let relayed = relay(&proxy, &mut turn, timeout_ms).await;
            // A pool that is gone needs no report; the reply is dropped with the turn.
            let _ = pool.send_message(EnginePoolInput::Relayed(key, Box::new(turn), relayed));
        });
    }

    fn on_relayed(&mut self, key: u64, turn: PendingTurn, relayed: Relayed) {
        let turn_released = self.released.contains(&key);
        let relayed = match relayed {
            Relayed::Unreachable(failure) => {
                if let Some(engine) = self.router.engine_of(key).cloned() {
                    self.lose(&engine, failure.message.clone());
                }
                Relayed::NotSent(failure)
            }
            relayed => relayed,
        };
        let answer = match relayed {
            Relayed::NotSent(_) if !self.closed && !turn_released => {
                self.router.requeue(key, self.now_ms() + NOT_TAKEN_WAIT_MS);
                self.turns.insert(key, turn);
                return;
            }
            Relayed::NotSent(_) if turn_released => {
                failure(EngineFailureKind::Released, "the rollout gave up its turn")
            }
            Relayed::NotSent(failure) | Relayed::Unreachable(failure) => Err(failure),
            Relayed::Answered(answer) => answer,
            Relayed::Abandoned => {
                self.turns.insert(key, turn);
                self.drop_turn(key);
                return;
            }
        };
        let elapsed_ms = turn.asked_at.elapsed().as_millis() as u64;
        self.turns.insert(key, turn);
        let Some(turn) = self.drop_turn(key) else { return };
        turn.reply.send(match answer {
            Ok(outcome) => Ok(greenroom_messages::engine::GenerateOutcome { elapsed_ms, ..outcome }),
            Err(error) if self.closed => failure(EngineFailureKind::Closed, error.message),
            Err(error) => Err(error),
        });
    }

    fn on_release(&mut self, rollout: RolloutId) {
        let (waiting, assigned) = self.router.release(rollout);
        for key in waiting {
            if let Some(turn) = self.drop_turn(key) {
                turn.reply.send(failure(EngineFailureKind::Released, format!("{rollout} gave up its turn")));
            }
        }
        for (key, engine) in assigned {
            self.released.insert(key);
            if let Some(member) = self.members.by_engine.get(&engine) {
                // A proxy that is gone has ended its turns.
                let _ = member.address.cast(EngineProxyMessage::Release(rollout));
            }
        }
    }

    fn on_update(&mut self, wish: UpdateWeights, mut reply: Reply<Vec<EngineUpdate>>) {
        let missing = self.missing();
        let forward = self.wanted.as_ref().is_none_or(|wanted| wish.version.number >= wanted.version.number);
        if forward && wish.version.run == self.arguments.run {
            self.wanted = Some(wish.clone());
        }
        let (proxies, order) = (self.members.addresses(), self.arguments.config.update_order);
        spawn_named(format!("engine-update {}", wish.version), async move {
            let updates = tokio::select! {
                biased;
                updates = update_fleet(proxies, missing, wish, order) => updates,
                // Nobody waits any more; the proxies know what is wanted and go on towards it.
                () = reply.abandoned() => return,
            };
            reply.send(updates);
        });
    }

    /// The engines that did not come to the weights that the fleet wanted before, because they are not there, and why.
    fn missing(&self) -> BTreeMap<EngineId, String> {
        if self.wanted.is_none() {
            return BTreeMap::new();
        }
        let is_out = |state| matches!(state, EngineState::Lost | EngineState::Connecting);
        let missing = self.router.statuses().into_iter().filter(|status| is_out(status.state));
        missing.map(|status| (status.engine, status.trouble.unwrap_or_else(|| "it is not there".to_owned()))).collect()
    }

    async fn add(&mut self, spec: EngineSpec, myself: &ActorRef<EnginePoolInput>) -> Result<(), EngineFailure> {
        let engine = spec.engine.clone();
        if self.closed {
            return failure(EngineFailureKind::Closed, "the fleet is shutting down");
        }
        if let Some(known) = self.members.spec(&engine) {
            let same = *known == spec;
            return if same {
                Ok(())
            } else {
                let (url, most) = (&known.url, known.max_in_flight);
                let said = format!("{engine} is in the fleet already, at {url} with max_in_flight {most}");
                failure(EngineFailureKind::Refused, format!("{said}: `rm-engine {engine}` removes it first"))
            };
        }
        if spec.max_in_flight == 0 {
            return failure(EngineFailureKind::Refused, format!("max_in_flight of {engine} must be at least 1"));
        }
        if let Err(error) = self.members.add(&spec, &self.arguments, myself) {
            return failure(EngineFailureKind::Refused, error.to_string());
        }
        self.router.set_status(first_status(&spec, EngineState::Connecting, None));
        match self.members.start(&engine, self.wanted.clone(), myself).await {
            Ok(()) => Ok(()),
            Err(error) => failure(EngineFailureKind::Lost, format!("the proxy of {engine} did not start: {error}")),
        }
    }

    /// Takes in an engine whose host supervises its proxy; answers with what the fleet wants.
    fn join(
        &mut self,
        spec: EngineSpec,
        proxy: Address<EngineProxyMessage>,
        myself: &ActorRef<EnginePoolInput>,
    ) -> Result<Option<UpdateWeights>, EngineFailure> {
        if self.closed {
            return failure(EngineFailureKind::Closed, "the fleet is shutting down");
        }
        if self.members.is_own(&spec.engine) {
            return failure(EngineFailureKind::Refused, format!("{} is there, and not from a host", spec.engine));
        }
        let status = first_status(&spec, EngineState::Connecting, None);
        let (joined, engine) = (proxy.clone(), spec.engine.clone());
        if let Some(presence) = self.members.join(spec, proxy, self.now_ms()) {
            self.router.set_status(status);
            monitor(joined.clone(), engine.clone(), presence, myself.clone());
        }
        // the proxy tells every change, but one that is told while the way to here is broken is lost
        let changes = self.members.changes(&engine).unwrap_or(0);
        let fleet = myself.clone();
        spawn_named("engine-joined", async move {
            if let Ok(status) = ask(&joined, Deadline::after_ms(STOP_MS), EngineProxyMessage::Status).await {
                let _ = fleet.send_message(EnginePoolInput::Found(status, changes));
            }
        });
        let look_again = Duration::from_millis(JOIN_LEASE_MS + 1);
        myself.send_after(look_again, || EnginePoolInput::LookForSilence);
        Ok(self.wanted.clone())
    }

    /// A host that is silent has lost its engine, as far as the fleet can tell.
    fn look_for_silence(&mut self) {
        for engine in self.members.silent(self.now_ms()) {
            self.set_lost(&engine, format!("its host was not heard of for {} s", JOIN_LEASE_MS / 1_000));
        }
    }

    /// A joined engine is gone: nothing more goes there until it joins again. Else a dead engine, which is never busy, would
    /// be the first choice until its silence shows.
    fn lose(&mut self, engine: &EngineId, reason: String) {
        if self.members.forget_join(engine) {
            self.set_lost(engine, reason);
        }
    }

    fn set_lost(&mut self, engine: &EngineId, trouble: String) {
        let known = self.router.status(engine).is_some_and(|status| status.state != EngineState::Lost);
        let Some(spec) = self.members.spec(engine).filter(|_| known) else { return };
        self.router.set_status(first_status(spec, EngineState::Lost, Some(trouble.clone())));
        let (engine, state) = (engine.clone(), EngineState::Lost);
        self.record(RunEvent::EngineMoved { engine, state, version: None, trouble: Some(trouble) });
    }

    fn on_remove(
        &mut self,
        engine: EngineId,
        reply: Reply<Result<(), EngineFailure>>,
        myself: &ActorRef<EnginePoolInput>,
    ) {
        self.router.set_leaving(&engine);
        let Some(member) = self.members.by_engine.get(&engine) else {
            reply.send(Ok(()));
            return;
        };
        let (proxy, pool) = (member.address.clone(), myself.clone());
        let drain_ms = self.arguments.config.drain_ms;
        spawn_named(format!("engine-drain {engine}"), async move {
            if let Err(error) = ask(&proxy, Deadline::after_ms(drain_ms), EngineProxyMessage::Drain).await {
                tracing::warn!(%engine, %error, "an engine leaves the fleet undrained");
            }
            let _ = pool.send_message(EnginePoolInput::Drained(engine, reply));
        });
    }

    /// Tells a proxy to admit nothing more, or to admit again; the router hears of it from the proxy.
    fn set_drained(&mut self, engine: &EngineId, drained: bool) -> Result<(), EngineFailure> {
        let Some(member) = self.members.by_engine.get(engine) else {
            let known = self.members.by_engine.keys().map(EngineId::as_str).collect::<Vec<_>>().join(", ");
            return failure(EngineFailureKind::Refused, format!("there is no engine {engine}; there are: {known}"));
        };
        let message = match drained {
            // nobody waits: the state tells when it is idle
            true => EngineProxyMessage::Drain(Reply::channel().0),
            false => EngineProxyMessage::Undrain,
        };
        let lost =
            |gone: greenroom_core::Gone| EngineFailure { kind: EngineFailureKind::Lost, message: gone.to_string() };
        member.address.cast(message).map_err(lost)
    }

    async fn on_drained(&mut self, engine: EngineId, reply: Reply<Result<(), EngineFailure>>) {
        if let Some(proxy) = self.members.by_engine.remove(&engine).and_then(Member::running) {
            // Its turns, if any are left, are answered as lost by its end.
            let _ = proxy.stop_and_wait(None, Some(Duration::from_millis(STOP_MS))).await;
        }
        self.router.remove_engine(&engine);
        reply.send(Ok(()));
    }

    fn on_shutdown(&mut self, reply: Reply<()>, myself: &ActorRef<EnginePoolInput>) {
        self.closed = true;
        for key in self.router.waiting() {
            if let Some(turn) = self.drop_turn(key) {
                turn.reply.send(failure(EngineFailureKind::Closed, "the fleet is shutting down"));
            }
        }
        let members = std::mem::take(&mut self.members.by_engine).into_values();
        let proxies: Vec<_> = members.filter_map(Member::running).collect();
        let pool = myself.clone();
        spawn_named("engine-shutdown", async move {
            let limit = Some(Duration::from_millis(STOP_MS));
            futures::future::join_all(proxies.iter().map(|proxy| proxy.stop_and_wait(None, limit))).await;
            let _ = pool.send_message(EnginePoolInput::Stopped(reply));
        });
    }

    async fn on_asked(&mut self, message: EnginePoolMessage, myself: &ActorRef<EnginePoolInput>) {
        match message {
            EnginePoolMessage::Generate(request, reply) => self.on_generate(request, reply),
            EnginePoolMessage::Release(rollout) => self.on_release(rollout),
            EnginePoolMessage::UpdateWeights(wish, reply) => self.on_update(wish, reply),
            EnginePoolMessage::Status(reply) => {
                reply.send(self.router.statuses());
            }
            EnginePoolMessage::Add(spec, reply) => {
                reply.send(self.add(spec, myself).await);
            }
            EnginePoolMessage::Join(spec, proxy, reply) => {
                reply.send(self.join(spec, proxy, myself));
            }
            EnginePoolMessage::Remove(engine, reply) => self.on_remove(engine, reply, myself),
            EnginePoolMessage::SetDrained(engine, drained, reply) => {
                reply.send(self.set_drained(&engine, drained));
            }
            EnginePoolMessage::Verify(within_ms, reply) => verify_fleet(self.members.addresses(), within_ms, reply),
            EnginePoolMessage::Shutdown(reply) => self.on_shutdown(reply, myself),
            EnginePoolMessage::Changed(status) => {
                if self.members.by_engine.contains_key(&status.engine) {
                    self.members.note_change(&status.engine);
                    self.router.set_status(status);
                }
            }
        }
    }

    fn on_failed(&mut self, engine: &EngineId, error: &str, myself: &ActorRef<EnginePoolInput>) {
        let again = self.members.restart_later(engine, self.now_ms(), myself);
        let trouble = match again {
            true => format!("its proxy failed and is started again: {error}"),
            false => format!("its proxy failed too often and is given up: {error}"),
        };
        tracing::error!(%engine, trouble, "an engine's proxy failed");
        if let Some(spec) = self.members.spec(engine) {
            self.router.set_status(first_status(spec, EngineState::Lost, Some(trouble.clone())));
        }
        let (engine, state) = (engine.clone(), EngineState::Lost);
        self.record(RunEvent::EngineMoved { engine, state, version: None, trouble: Some(trouble) });
    }
}

impl Actor for EnginePool {
    type Msg = EnginePoolInput;
    type State = EnginePoolState;
    type Arguments = EnginePoolArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let specs = arguments.specs.clone();
        let mut state = EnginePoolState {
            arguments,
            members: Members::default(),
            router: Router::default(),
            turns: BTreeMap::new(),
            rids: BTreeSet::new(),
            released: BTreeSet::new(),
            next_turn: 0,
            wanted: None,
            closed: false,
            stopping: Vec::new(),
            wake_at_ms: None,
        };
        for spec in specs {
            state.add(spec, &myself).await?;
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
            EnginePoolInput::Asked(message) => state.on_asked(message, &myself).await,
            EnginePoolInput::Relayed(key, turn, relayed) => state.on_relayed(key, *turn, relayed),
            EnginePoolInput::Restart(engine) => {
                if let Err(error) = state.members.start(&engine, state.wanted.clone(), &myself).await {
                    state.on_failed(&engine, &error.to_string(), &myself);
                }
            }
            // what the proxy has told since is newer
            EnginePoolInput::Found(status, changes) if state.members.changes(&status.engine) == Some(changes) => {
                state.router.set_status(status);
            }
            EnginePoolInput::Found(..) => {}
            EnginePoolInput::Gone(engine, presence, reason) => {
                if state.members.is_present(&engine, presence) {
                    state.lose(&engine, reason);
                }
            }
            EnginePoolInput::LookForSilence => state.look_for_silence(),
            EnginePoolInput::Drained(engine, reply) => state.on_drained(engine, reply).await,
            EnginePoolInput::Tick(due_ms) if state.wake_at_ms == Some(due_ms) => state.wake_at_ms = None,
            EnginePoolInput::Tick(_) => {}
            EnginePoolInput::Stopped(reply) => state.stopping.push(reply),
        }
        state.pump(&myself);
        // The proxies have ended; their last turns may still be on their way back.
        if !state.stopping.is_empty() && state.router.assigned() == 0 {
            for reply in state.stopping.drain(..) {
                reply.send(());
            }
            myself.stop(None);
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
            SupervisionEvent::ActorFailed(proxy, error) => {
                if let Some(engine) = state.members.ended(proxy.get_id()) {
                    state.on_failed(&engine, &error.to_string(), &myself);
                }
            }
            SupervisionEvent::ActorTerminated(proxy, _, reason) => {
                // A proxy ends by itself only when it is told to; anything else is a failure as well.
                if let Some(engine) = state.members.ended(proxy.get_id()) {
                    state.on_failed(&engine, reason.as_deref().unwrap_or("it ended without a reason"), &myself);
                }
            }
            _ => {}
        }
        state.pump(&myself);
        Ok(())
    }
}
