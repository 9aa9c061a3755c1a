//! Reaching an engine, verifying what it is, watching it while it serves, losing it and coming back.

use greenroom_messages::WeightVersion;
use greenroom_messages::engine::{EngineFailure, EngineFailureKind, EngineState};
use rand::Rng;

use super::effect::{Call, CallAnswer, Effect, Progress};
use super::state::{EngineMachine, Facts, Standstill, Timer};
use crate::{ApiError, ModelInfo, ServerInfo, SglangVersion};

impl EngineMachine {
    /// Tries to reach the engine.
    pub(super) fn connect(&mut self) {
        let trouble = self.trouble.clone();
        self.set_state(EngineState::Connecting, trouble);
        self.call(Call::Reach, self.settings.config.deadlines.info_ms);
    }

    pub(super) fn on_called(&mut self, now_ms: u64, call: Call, result: Result<CallAnswer, ApiError>) {
        if let Err(error @ ApiError::TimedOut { .. }) = &result {
            self.effects.push(Effect::AskFailed(error.to_string()));
        }
        match (call, result) {
            (Call::Reach, Ok(_)) => self.inspect(None),
            (Call::Reach, Err(error)) => self.on_not_reached(now_ms, &error),
            (Call::Inspect, Ok(CallAnswer::Inspected(server, model))) => self.on_inspected(now_ms, server, &model),
            (Call::Probe { .. }, Ok(CallAnswer::Probed(ready, model, progress))) => {
                self.on_probed(now_ms, ready, &model, progress);
            }
            (Call::Pause(_), Ok(_)) => self.load(now_ms),
            (Call::Load(_), Ok(_)) => self.confirm(),
            (Call::Load(_), Err(error)) if !error.engine_in_doubt() => self.taint(now_ms, error.to_string()),
            (Call::Confirm, Ok(CallAnswer::Model(model))) => self.on_confirmed(now_ms, &model),
            (Call::SpotCheck { .. }, Ok(CallAnswer::SpotChecked(verdict))) => self.on_spot_checked(now_ms, verdict),
            (Call::Resume, Ok(_)) => self.serve(now_ms),
            (_, Err(error)) if error.engine_in_doubt() => self.lose(now_ms, &error.to_string()),
            (_, Err(error)) => self.reject_engine(now_ms, &error.to_string()),
            (call, Ok(_)) => self.reject_engine(now_ms, &format!("the client answered {call:?} with something else")),
        }
    }

    fn on_not_reached(&mut self, now_ms: u64, error: &ApiError) {
        if !error.engine_in_doubt() {
            return self.reject_engine(now_ms, &error.to_string());
        }
        self.set_state(EngineState::Connecting, Some(error.to_string()));
        self.back_off(now_ms);
    }

    fn inspect(&mut self, trouble: Option<String>) {
        self.timers.remove(&Timer::Probe);
        self.set_state(EngineState::Verifying, trouble);
        self.call(Call::Inspect, self.settings.config.deadlines.info_ms);
    }

    fn on_inspected(&mut self, now_ms: u64, server: ServerInfo, model: &ModelInfo) {
        let facts = match self.facts_of(server, model) {
            Ok(facts) => facts,
            Err(reason) => return self.reject_engine(now_ms, &reason),
        };
        // A restarted server is a fresh one, whatever label it was started with.
        let restarted = self.facts.as_ref().is_some_and(|known| known.identity != facts.identity);
        self.distrust |= restarted;
        self.facts = Some(facts);
        // It is there: who waits for it has the whole of its time again.
        for waiter in &mut self.waiters {
            waiter.deadline_ms = waiter.limit_ms;
        }
        self.confirmed = self.own_version(&model.weight_version).filter(|_| !self.distrust);
        match self.wanted.clone() {
            Some(wish) if self.confirmed.as_ref() != Some(&wish.version) => {
                self.set_state(EngineState::Syncing, None);
                self.begin_update(now_ms, wish);
            }
            Some(wish) if self.confirmed.is_some() => self.check_numbers(&wish),
            // Whoever had this engine before may have left it paused.
            _ if self.confirmed.is_some() => self.resume(),
            _ => {
                self.failures = 0;
                self.set_state(EngineState::Syncing, None);
                self.set_timer(Timer::Probe, now_ms + self.settings.config.probe_interval_ms);
            }
        }
    }

    /// Checks a server against what is supported; `Err` says what is not.
    fn facts_of(&self, server: ServerInfo, model: &ModelInfo) -> Result<Facts, String> {
        let window = &self.settings.config.versions;
        let version = SglangVersion::parse(&server.version);
        let (oldest, newest) = (SglangVersion::parse(&window.oldest), SglangVersion::parse(&window.newest));
        let Some(version) = version.filter(|_| version >= oldest && version <= newest) else {
            let (oldest, newest) = (&window.oldest, &window.newest);
            return Err(format!("its version {:?} is outside of {oldest} to {newest}", server.version));
        };
        if server.disaggregated || !model.is_generation {
            return Err("it does not generate by itself (prefill and decode apart, or an embedding model)".to_owned());
        }
        let limits = (server.context_tokens, server.max_prompt_tokens);
        let (context_tokens, max_prompt_tokens) = match limits {
            (Some(context), Some(prompt)) => (context, prompt),
            (Some(context), None) => (context, context.saturating_sub(1)),
            (None, _) => return Err("it does not tell its context length".to_owned()),
        };
        Ok(Facts {
            features: version.features(),
            spot_check: self.settings.config.spot_check && version.features().weights_by_name,
            context_tokens: context_tokens.into(),
            max_prompt_tokens: max_prompt_tokens.into(),
            identity: server.identity,
        })
    }

    /// A label as a version, if it is one of this run's.
    pub(super) fn own_version(&self, label: &str) -> Option<WeightVersion> {
        label.parse::<WeightVersion>().ok().filter(|version| version.run == self.settings.run)
    }

    pub(super) fn probe(&mut self, now_ms: u64) {
        let watched = matches!(
            self.state,
            EngineState::Serving | EngineState::Syncing | EngineState::Draining | EngineState::Tainted
        );
        if !watched || self.update.is_some() {
            return;
        }
        self.set_timer(Timer::Probe, now_ms + self.settings.config.probe_interval_ms);
        if self.call.is_none() {
            let ready = self.facts.as_ref().is_some_and(|facts| facts.features.ready);
            let progress = self.is_worth_watching(now_ms);
            self.call(Call::Probe { ready, progress }, self.settings.config.deadlines.probe_ms);
        }
    }

    /// Whether a request is in flight for so long that the engine may have stalled.
    fn is_worth_watching(&self, now_ms: u64) -> bool {
        let stall_ms = self.settings.config.stall_ms;
        let tells = stall_ms > 0 && self.facts.as_ref().is_some_and(|facts| facts.features.loads);
        tells && self.flights.values().any(|flight| now_ms.saturating_sub(flight.sent_ms) >= stall_ms / 4)
    }

    /// An engine that answers its probes and makes no token is as good as dead for those who wait for their turns.
    fn watch_progress(&mut self, now_ms: u64, progress: Progress) {
        let (at, failing) = match progress {
            Progress::Unknown => return self.standstill = None,
            Progress::At(at) => (Some(at), None),
            Progress::Failing(reason) => (None, Some(reason)),
        };
        let before = self.standstill.take();
        let stands = before.filter(|before| at.is_none() || before.at.is_none() || before.at == at);
        let since_ms = stands.as_ref().map_or(now_ms, |stands| stands.since_ms);
        let at = at.or_else(|| stands.and_then(|stands| stands.at));
        let still_ms = now_ms.saturating_sub(since_ms);
        if still_ms < self.settings.config.stall_ms {
            self.standstill = Some(Standstill { at, since_ms });
            return;
        }
        let what = failing.or(at).unwrap_or_default();
        let reason = format!(
            "it holds {} requests and has made no token for {} s ({what})",
            self.flights.len(),
            still_ms / 1_000
        );
        self.lose(now_ms, &reason);
    }

    fn on_probed(&mut self, now_ms: u64, ready: bool, model: &ModelInfo, progress: Progress) {
        let Some(confirmed) = &self.confirmed else { return };
        if model.weight_version != confirmed.to_string() {
            let seen = &model.weight_version;
            return self
                .doubt(now_ms, format!("it had {confirmed} and now says {seen}: restarted, or loaded by another"));
        }
        if !ready {
            // Somebody paused it. Verified again, it is told to go on.
            return self.inspect(Some("it was paused by someone else".to_owned()));
        }
        self.watch_progress(now_ms, progress);
    }

    /// What is loaded is not what was confirmed: verify again, and load before it serves.
    pub(super) fn doubt(&mut self, now_ms: u64, trouble: String) {
        if !matches!(self.state, EngineState::Serving | EngineState::Draining) || self.update.is_some() {
            return;
        }
        self.gate_closed_ms.get_or_insert(now_ms);
        self.distrust = true;
        self.confirmed = None;
        self.inspect(Some(trouble));
    }

    /// The engine missed a deadline or dropped a connection: nothing that is in flight there has a known fate.
    pub(super) fn lose(&mut self, now_ms: u64, reason: &str) {
        if matches!(self.state, EngineState::Lost | EngineState::Connecting) {
            return;
        }
        self.leave(now_ms, EngineState::Lost, reason);
        let patience_ms = now_ms + self.settings.config.lost_patience_ms;
        for waiter in &mut self.waiters {
            waiter.deadline_ms = waiter.deadline_ms.min(patience_ms);
        }
        self.back_off(now_ms);
    }

    /// The engine cannot be used as it is; looked at again at the longest back-off, since it may be replaced.
    pub(super) fn reject_engine(&mut self, now_ms: u64, reason: &str) {
        self.leave(now_ms, EngineState::Incompatible, reason);
        let message = format!("engine {} cannot be used: {reason}", self.settings.spec.engine);
        self.fail_waiters(|_| true, EngineFailureKind::Refused, &message);
        self.failures = 0;
        self.set_timer(Timer::Backoff, now_ms + self.settings.config.backoff.limit_ms.max(1));
    }

    fn leave(&mut self, now_ms: u64, state: EngineState, reason: &str) {
        self.gate_closed_ms.get_or_insert(now_ms);
        self.distrust |= self.update.take().is_some_and(|update| update.loading);
        self.confirmed = None;
        self.standstill = None;
        self.call = None;
        self.timers.clear();
        self.set_state(state, Some(reason.to_owned()));
        let message = format!("engine {} was lost: {reason}", self.settings.spec.engine);
        for rid in std::mem::take(&mut self.flights).into_keys() {
            let failure = EngineFailure { kind: EngineFailureKind::Lost, message: message.clone() };
            self.effects.push(Effect::Fail { rid, failure });
        }
        self.tell_if_drained();
    }

    pub(super) fn back_off(&mut self, now_ms: u64) {
        let backoff = self.settings.config.backoff;
        let doubled_ms = backoff.first_ms.saturating_mul(1 << self.failures.min(20));
        let wait_ms = doubled_ms.min(backoff.limit_ms).max(1) as f64 * self.random.random_range(0.5..1.0);
        self.failures = self.failures.saturating_add(1);
        self.set_timer(Timer::Backoff, now_ms + (wait_ms as u64).max(1));
    }
}
