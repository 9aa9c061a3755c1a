//! The life of one engine as a pure state machine: `step(now, input)` gives effects, and nothing else happens.
//!
//! `Connecting → Verifying → Syncing → Serving ⇄ Draining → Updating → Verifying → Serving`; `Tainted` after a failed load,
//! `Lost` after a missed deadline or a broken connection (back-off, then `Connecting`), `Incompatible` outside of the
//! supported versions, or where its answers cannot be used. Invariants ([`EngineMachine::violation`]): it serves only with confirmed weights, with no update
//! under way and no doubt about what is loaded; one control call is under way at a time; every waiter has a time-out.
//! The rules are in three files: `connect` (reach, verify, probe, lose), `update` (weights), `admit` (turns).

use std::collections::{BTreeMap, BTreeSet};

use greenroom_core::{Random, Seed};
use greenroom_messages::engine::{EngineSpec, EngineState, EngineStatus, UpdateWeights};
use greenroom_messages::{GroupId, RolloutId, RunId, WeightVersion};

use super::effect::{Call, Effect, Input};
use crate::{EngineConfig, Features};

/// What a machine is made from.
#[derive(Clone, Debug)]
pub struct MachineSettings {
    /// The engine.
    pub spec: EngineSpec,
    /// The run whose weights are admissible.
    pub run: RunId,
    /// Token ids must be smaller than this: one outside kills the server.
    pub vocabulary_tokens: u32,
    /// Deadlines and waits.
    pub config: EngineConfig,
    /// The weights that the fleet is to have, if known.
    pub wanted: Option<UpdateWeights>,
    /// Whether what the engine says of its weights is not believed before a full load: the last proxy ended in the
    /// middle of one.
    pub distrust: bool,
    /// The jitter of back-offs.
    pub seed: Seed,
}

/// What is known of a server once it is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub features: Features,
    pub context_tokens: u64,
    pub max_prompt_tokens: u64,
    pub identity: String,
    /// Whether a load is confirmed by some of its numbers, too.
    pub spot_check: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Try to connect (or to load) again.
    Backoff,
    /// Look whether the engine still serves.
    Probe,
    /// Requests in flight have had their time.
    Drain,
    /// Aborted requests have had their time.
    AbortGrace,
}

/// A turn that was sent and has not ended.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub rollout: RolloutId,
    pub aborted: bool,
    pub sent_ms: u64,
}

/// An engine that was seen at the same place more than once.
#[derive(Clone, Debug)]
pub(super) struct Standstill {
    pub at: Option<String>,
    pub since_ms: u64,
}

/// An update under way.
#[derive(Clone, Debug)]
pub(super) struct Update {
    pub wish: UpdateWeights,
    pub deadline_ms: u64,
    /// Whether the load was begun, so that the weights are in doubt if the engine is lost now.
    pub loading: bool,
}

/// Someone who waits for an update.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub id: u64,
    pub version: WeightVersion,
    pub timeout_ms: u64,
    /// When it is answered at the latest; earlier than its time-out while the engine cannot be reached.
    pub deadline_ms: u64,
    pub limit_ms: u64,
}

/// The state machine of one engine.
#[derive(Debug)]
pub struct EngineMachine {
    pub(super) settings: MachineSettings,
    pub(super) random: Random,
    pub(super) state: EngineState,
    pub(super) trouble: Option<String>,
    pub(super) facts: Option<Facts>,
    pub(super) confirmed: Option<WeightVersion>,
    pub(super) distrust: bool,
    pub(super) wanted: Option<UpdateWeights>,
    pub(super) update: Option<Update>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) gate_closed_ms: Option<u64>,
    pub(super) drained: bool,
    pub(super) flights: BTreeMap<String, Flight>,
    pub(super) standstill: Option<Standstill>,
    /// Why loads are confirmed by their label alone, if that was said.
    pub(super) label_only: Option<String>,
    pub(super) call: Option<(u64, Call)>,
    pub(super) next_ticket: u64,
    pub(super) timers: BTreeMap<Timer, u64>,
    pub(super) failures: u32,
    pub(super) failed_loads: u32,
    /// The groups whose turns had answers that cannot be used, since the last usable one.
    pub(super) unusable: BTreeSet<GroupId>,
    pub(super) effects: Vec<Effect>,
}

impl EngineMachine {
    /// A machine that has not begun.
    pub fn new(settings: MachineSettings) -> Self {
        Self {
            random: settings.seed.random(),
            state: EngineState::Connecting,
            trouble: None,
            facts: None,
            confirmed: None,
            distrust: settings.distrust,
            wanted: settings.wanted.clone(),
            update: None,
            waiters: Vec::new(),
            gate_closed_ms: None,
            drained: false,
            flights: BTreeMap::new(),
            standstill: None,
            label_only: None,
            call: None,
            next_ticket: 0,
            timers: BTreeMap::new(),
            failures: 0,
            failed_loads: 0,
            unusable: BTreeSet::new(),
            effects: Vec::new(),
            settings,
        }
    }

    /// Takes one input at `now_ms` (any monotone clock) and gives what is to be done, in order.
    pub fn step(&mut self, now_ms: u64, input: Input) -> Vec<Effect> {
        match input {
            Input::Start => self.connect(),
            Input::Tick => self.on_tick(now_ms),
            Input::Called(ticket, result) => {
                if let Some((_, call)) = self.call.take_if(|(current, _)| *current == ticket) {
                    self.on_called(now_ms, call, result);
                }
            }
            Input::Generate(admission) => self.on_generate(now_ms, admission),
            Input::Finished(rid, report) => self.on_finished(now_ms, &rid, report),
            Input::Release(rollout) => self.on_release(rollout),
            Input::Update(waiter, wish) => self.on_update(now_ms, waiter, wish),
            Input::Drain => self.on_drain(),
            Input::Undrain => self.on_undrain(),
        }
        debug_assert_eq!(self.violation(), None);
        std::mem::take(&mut self.effects)
    }

    /// When [`Input::Tick`] is due next.
    pub fn next_wake_ms(&self) -> Option<u64> {
        let timers = self.timers.values().copied();
        timers.chain(self.waiters.iter().map(|waiter| waiter.deadline_ms)).min()
    }

    /// How the engine stands.
    pub fn status(&self) -> EngineStatus {
        EngineStatus {
            engine: self.settings.spec.engine.clone(),
            url: self.settings.spec.url.clone(),
            state: self.state,
            version: self.confirmed.clone(),
            in_flight: self.flights.len() as u32,
            max_in_flight: self.most_in_flight(),
            context_tokens: self.facts.as_ref().map(|facts| u32::try_from(facts.context_tokens).unwrap_or(u32::MAX)),
            trouble: self.trouble.clone(),
        }
    }

    /// Whether a wait for a drain is over: nothing is in flight and nothing is admitted.
    pub fn is_drained(&self) -> bool {
        self.flights.is_empty() && self.state != EngineState::Serving
    }

    /// The first broken invariant, if any; shared by debug assertions, property tests and the simulation.
    pub fn violation(&self) -> Option<&'static str> {
        let serving = self.state == EngineState::Serving;
        let call = self.call.as_ref().map(|(_, call)| call);
        let probing = matches!(call, None | Some(Call::Probe { .. }));
        let checks = [
            (serving && self.confirmed.is_none(), "it serves without confirmed weights"),
            (serving && self.distrust, "it serves weights that are in doubt"),
            (serving && self.update.is_some(), "it serves during an update"),
            (serving && !probing, "it serves while it is being changed"),
            (serving && self.drained, "it serves although it was drained"),
            (self.flights.len() > self.settings.spec.max_in_flight as usize, "it has too much in flight"),
            (self.update.is_some() && self.wanted.is_none(), "it is updated to weights that nobody wants"),
            (self.confirmed.as_ref().is_some_and(|version| version.run != self.settings.run), "weights of another run"),
            (self.call.is_none() && self.next_wake_ms().is_none(), "it waits for nothing"),
        ];
        checks.into_iter().find_map(|(broken, what)| broken.then_some(what))
    }

    fn on_tick(&mut self, now_ms: u64) {
        while let Some(timer) = self.timers.iter().find(|(_, due)| **due <= now_ms).map(|(timer, _)| *timer) {
            self.timers.remove(&timer);
            match timer {
                Timer::Backoff if self.state == EngineState::Tainted => self.retry_load(now_ms),
                Timer::Backoff => self.connect(),
                Timer::Probe => self.probe(now_ms),
                Timer::Drain => self.abort_flights(now_ms),
                Timer::AbortGrace => self.pause_for_update(now_ms),
            }
        }
        self.expire_waiters(now_ms);
    }

    fn on_drain(&mut self) {
        self.drained = true;
        if self.state == EngineState::Serving {
            self.set_state(EngineState::Draining, None);
        }
        self.tell_if_drained();
    }

    fn on_undrain(&mut self) {
        self.drained = false;
        if self.state == EngineState::Draining && self.update.is_none() {
            self.set_state(EngineState::Serving, None);
        }
    }

    pub(super) fn tell_if_drained(&mut self) {
        if self.drained && self.is_drained() {
            self.effects.push(Effect::Drained);
        }
    }

    /// Goes on in life; `trouble` replaces what was wrong before.
    pub(super) fn set_state(&mut self, state: EngineState, trouble: Option<String>) {
        let moved = self.state != state || self.trouble != trouble;
        (self.state, self.trouble) = (state, trouble);
        if moved {
            self.effects.push(Effect::Moved(self.status()));
        }
    }

    pub(super) fn call(&mut self, call: Call, within_ms: u64) {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.call = Some((ticket, call.clone()));
        self.effects.push(Effect::Call { ticket, call, within_ms });
    }

    pub(super) fn set_timer(&mut self, timer: Timer, due_ms: u64) {
        self.timers.insert(timer, due_ms);
    }
}
