//! Bringing an engine to a version: gate closed → drained → paused → loaded → confirmed → let go on → serving.
//!
//! The gate is ours: nothing is sent to a paused engine, because what it holds inside cannot be aborted. A load that is
//! refused may all the same have changed weights, so it taints; a load whose answer never came leaves doubt, and doubt
//! ends only with a full load that the engine confirms, by its label and by a sample of its numbers. An engine that cannot
//! be reached holds nobody up for longer than its patience. Wishes only go forward in number.

use greenroom_messages::engine::{
    EngineFailure, EngineFailureKind, EngineState, PauseMode, UpdateConfirmed, UpdateWeights,
};

use super::effect::{Call, Effect, SpotVerdict};
use super::state::{EngineMachine, Timer, Update, Waiter};
use crate::{LoadWeights, ModelInfo, ServerPause};

fn refused(message: String) -> EngineFailure {
    EngineFailure { kind: EngineFailureKind::Refused, message }
}

impl EngineMachine {
    pub(super) fn on_update(&mut self, now_ms: u64, waiter: u64, wish: UpdateWeights) {
        if let Err(failure) = self.check_wish(&wish) {
            return self.effects.push(Effect::UpdateEnded { waiter, result: Err(failure) });
        }
        let (version, timeout_ms) = (wish.version.clone(), wish.timeout_ms);
        let updating = self.update.as_ref().map(|update| update.wish.version.clone());
        let message = format!("{version} is wanted instead");
        self.fail_waiters(
            |waiter| waiter.version != version && updating.as_ref() != Some(&waiter.version),
            EngineFailureKind::Refused,
            &message,
        );
        self.wanted = Some(wish.clone());
        self.failed_loads = 0;
        let settled = matches!(self.state, EngineState::Serving | EngineState::Draining) && self.update.is_none();
        if settled && self.confirmed.as_ref() == Some(&version) {
            let result = Ok(UpdateConfirmed { version, paused_ms: 0 });
            return self.effects.push(Effect::UpdateEnded { waiter, result });
        }
        let unreachable = matches!(self.state, EngineState::Lost | EngineState::Incompatible | EngineState::Connecting);
        let patience_ms = if unreachable { self.settings.config.lost_patience_ms } else { timeout_ms };
        let (deadline_ms, limit_ms) =
            (now_ms.saturating_add(timeout_ms.min(patience_ms)), now_ms.saturating_add(timeout_ms));
        self.waiters.push(Waiter { id: waiter, version, timeout_ms, deadline_ms, limit_ms });
        if settled
            || self.state == EngineState::Tainted
            || (self.state == EngineState::Syncing && self.update.is_none())
        {
            self.begin_update(now_ms, wish);
        }
    }

    fn check_wish(&self, wish: &UpdateWeights) -> Result<(), EngineFailure> {
        let run = &self.settings.run;
        if wish.version.run != *run {
            return Err(refused(format!("{} is no version of run {run}", wish.version)));
        }
        match &self.wanted {
            Some(wanted) if wanted.version.number > wish.version.number => {
                Err(refused(format!("{} is older than {}, which is wanted", wish.version, wanted.version)))
            }
            _ => Ok(()),
        }
    }

    /// Closes the gate and begins. Nothing is probed from here on: a loading engine answers no probe.
    pub(super) fn begin_update(&mut self, now_ms: u64, wish: UpdateWeights) {
        self.gate_closed_ms.get_or_insert(now_ms);
        self.call = None;
        self.timers.clear();
        let deadline_ms = now_ms.saturating_add(wish.timeout_ms);
        let pause = wish.pause;
        self.update = Some(Update { wish, deadline_ms, loading: false });
        match pause {
            _ if self.flights.is_empty() => self.pause_for_update(now_ms),
            PauseMode::Retract | PauseMode::InPlace => self.pause_for_update(now_ms),
            PauseMode::Drain => {
                self.set_state(EngineState::Draining, None);
                // Half of the time is the load's, however long the drain might be.
                let drain_ms = self.settings.config.drain_ms.min((deadline_ms - now_ms) / 2);
                self.set_timer(Timer::Drain, now_ms + drain_ms);
            }
            PauseMode::Abort => {
                self.set_state(EngineState::Draining, None);
                self.abort_flights(now_ms);
            }
        }
    }

    /// Aborts what is still in flight, each by its own id, and waits a little for the answers.
    pub(super) fn abort_flights(&mut self, now_ms: u64) {
        self.abort_all();
        let left_ms = self.update.as_ref().map_or(0, |update| update.deadline_ms.saturating_sub(now_ms) / 2);
        self.set_timer(Timer::AbortGrace, now_ms + self.settings.config.abort_grace_ms.min(left_ms));
    }

    fn abort_all(&mut self) {
        for (rid, flight) in &mut self.flights {
            if !flight.aborted {
                flight.aborted = true;
                self.effects.push(Effect::Abort(rid.clone()));
            }
        }
    }

    /// Goes on when the last request has ended that a drain was waiting for.
    pub(super) fn advance_drain(&mut self, now_ms: u64) {
        let waits = self.timers.contains_key(&Timer::Drain) || self.timers.contains_key(&Timer::AbortGrace);
        if self.update.is_some() && waits && self.flights.is_empty() {
            self.pause_for_update(now_ms);
        }
        self.tell_if_drained();
    }

    pub(super) fn pause_for_update(&mut self, now_ms: u64) {
        self.timers.clear();
        let Some(update) = &self.update else { return };
        let mode = match update.wish.pause {
            PauseMode::Drain | PauseMode::Abort => ServerPause::Abort,
            PauseMode::Retract => ServerPause::Retract,
            PauseMode::InPlace => ServerPause::InPlace,
        };
        let within_ms = self.settings.config.deadlines.pause_ms.min(update.deadline_ms.saturating_sub(now_ms)).max(1);
        self.set_state(EngineState::Updating, None);
        self.call(Call::Pause(mode), within_ms);
    }

    pub(super) fn load(&mut self, now_ms: u64) {
        let flush_after_retract = self.facts.as_ref().is_some_and(|facts| facts.features.flush_after_retract);
        let Some(update) = &mut self.update else { return };
        update.loading = true;
        let flush_cache = match update.wish.pause {
            PauseMode::Drain | PauseMode::Abort => true,
            PauseMode::Retract => flush_after_retract,
            // The cache that is kept belongs to the requests that go on.
            PauseMode::InPlace => false,
        };
        let load = LoadWeights {
            model_dir: update.wish.model_dir.clone(),
            weight_version: update.wish.version.to_string(),
            flush_cache,
        };
        let within_ms = self.settings.config.deadlines.load_ms.min(update.deadline_ms.saturating_sub(now_ms)).max(1);
        self.confirmed = None;
        self.distrust = true;
        self.call(Call::Load(load), within_ms);
    }

    pub(super) fn confirm(&mut self) {
        self.set_state(EngineState::Verifying, None);
        self.call(Call::Confirm, self.settings.config.deadlines.info_ms);
    }

    pub(super) fn on_confirmed(&mut self, now_ms: u64, model: &ModelInfo) {
        let Some(update) = &self.update else { return };
        let wish = update.wish.clone();
        if model.weight_version != wish.version.to_string() {
            return self.taint(now_ms, format!("it loaded {} and reports {:?}", wish.version, model.weight_version));
        }
        self.check_numbers(&wish);
    }

    /// A label is what an engine was told; where it can tell some of its numbers, these are compared with the file's.
    pub(super) fn check_numbers(&mut self, wish: &UpdateWeights) {
        if !self.facts.as_ref().is_some_and(|facts| facts.spot_check) {
            return self.accept_weights();
        }
        let answer_ms = self.settings.config.deadlines.info_ms;
        let (model_dir, turn) = (wish.model_dir.clone(), wish.version.number);
        // A little longer than the answer: the file is read, too.
        self.call(Call::SpotCheck { model_dir, turn, answer_ms }, answer_ms.saturating_mul(2));
    }

    pub(super) fn on_spot_checked(&mut self, now_ms: u64, verdict: SpotVerdict) {
        match verdict {
            SpotVerdict::Same => {}
            SpotVerdict::Different(what) => {
                return self.taint(now_ms, format!("its weights are not those of its label: {what}"));
            }
            SpotVerdict::Unable(reason) => self.trust_labels(reason),
        }
        self.accept_weights();
    }

    /// From now on, until the engine is verified again, its labels are believed; that is said once.
    fn trust_labels(&mut self, reason: String) {
        if let Some(facts) = &mut self.facts {
            facts.spot_check = false;
        }
        if self.label_only.as_ref() != Some(&reason) {
            let engine = &self.settings.spec.engine;
            let text = format!("loads of engine {engine} are confirmed by their label alone: {reason}");
            self.effects.push(Effect::Note(text));
            self.label_only = Some(reason);
        }
    }

    fn accept_weights(&mut self) {
        if let Some(update) = &self.update {
            self.confirmed = Some(update.wish.version.clone());
            self.distrust = false;
            self.failed_loads = 0;
        }
        self.resume();
    }

    pub(super) fn resume(&mut self) {
        self.call(Call::Resume, self.settings.config.deadlines.pause_ms);
    }

    /// Opens the gate, answers those who waited, and begins again if another version is wanted meanwhile.
    pub(super) fn serve(&mut self, now_ms: u64) {
        self.update = None;
        let Some(confirmed) = self.confirmed.clone() else { return };
        let paused_ms = self.gate_closed_ms.map_or(0, |closed_ms| now_ms.saturating_sub(closed_ms));
        let (done, waiting) =
            std::mem::take(&mut self.waiters).into_iter().partition(|waiter| waiter.version == confirmed);
        self.waiters = waiting;
        for Waiter { id, .. } in Vec::from_iter::<Vec<Waiter>>(done) {
            let result = Ok(UpdateConfirmed { version: confirmed.clone(), paused_ms });
            self.effects.push(Effect::UpdateEnded { waiter: id, result });
        }
        if let Some(wish) = self.wanted.clone().filter(|wish| wish.version != confirmed) {
            return self.begin_update(now_ms, wish);
        }
        self.gate_closed_ms = None;
        self.failures = 0;
        self.set_timer(Timer::Probe, now_ms + self.settings.config.probe_interval_ms);
        let state = if self.drained { EngineState::Draining } else { EngineState::Serving };
        self.set_state(state, None);
        self.tell_if_drained();
    }

    /// A load failed. What is loaded now is unknown; the engine stays paused, and what it still has in flight is ended.
    pub(super) fn taint(&mut self, now_ms: u64, reason: String) {
        self.confirmed = None;
        self.distrust = true;
        let failed = self.update.take().map(|update| update.wish.version);
        self.failed_loads = self.failed_loads.saturating_add(1);
        let message = format!("engine {} failed to load: {reason}", self.settings.spec.engine);
        self.set_state(EngineState::Tainted, Some(reason));
        self.fail_waiters(|waiter| failed.as_ref() == Some(&waiter.version), EngineFailureKind::Refused, &message);
        self.abort_all();
        if let Some(wish) = self.wanted.clone().filter(|wish| failed.as_ref() != Some(&wish.version)) {
            return self.begin_update(now_ms, wish);
        }
        if self.failed_loads <= self.settings.config.load_retries {
            self.failures = self.failed_loads;
            self.back_off(now_ms);
        } else {
            // Not tried any more, but still looked at, so that a dead engine becomes a lost one.
            self.set_timer(Timer::Probe, now_ms + self.settings.config.probe_interval_ms);
        }
    }

    pub(super) fn retry_load(&mut self, now_ms: u64) {
        if let Some(wish) = self.wanted.clone() {
            self.begin_update(now_ms, wish);
        }
    }

    pub(super) fn fail_waiters(&mut self, which: impl Fn(&Waiter) -> bool, kind: EngineFailureKind, message: &str) {
        let (failed, waiting) = std::mem::take(&mut self.waiters).into_iter().partition(which);
        self.waiters = waiting;
        for Waiter { id, .. } in Vec::from_iter::<Vec<Waiter>>(failed) {
            let failure = EngineFailure { kind, message: message.to_owned() };
            self.effects.push(Effect::UpdateEnded { waiter: id, result: Err(failure) });
        }
    }

    /// Answers those whose time is over; the wish itself stays, and the engine goes on towards it.
    pub(super) fn expire_waiters(&mut self, now_ms: u64) {
        let engine = self.settings.spec.engine.clone();
        let due = |waiter: &Waiter| waiter.deadline_ms <= now_ms;
        let Some(waiter) = self.waiters.iter().find(|waiter| due(waiter)) else { return };
        let (version, state) = (&waiter.version, self.state);
        let waited_ms = (now_ms + waiter.timeout_ms).saturating_sub(waiter.limit_ms);
        let mut message = format!("engine {engine} did not confirm {version} within {waited_ms} ms: it is {state:?}");
        if let Some(trouble) = &self.trouble {
            message = format!("{message}; {trouble}");
        }
        let lost = matches!(state, EngineState::Lost | EngineState::Connecting);
        let kind = if lost { EngineFailureKind::Lost } else { EngineFailureKind::TimedOut };
        self.effects.push(Effect::AskFailed(message.clone()));
        self.fail_waiters(due, kind, &message);
    }
}
