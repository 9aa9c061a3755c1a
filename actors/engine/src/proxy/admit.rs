//! Which turns an engine may serve, with how many new tokens, and what their ends mean for the engine.

use greenroom_messages::engine::{EngineFailure, EngineFailureKind, EngineState};
use greenroom_messages::{GroupId, RolloutId};

use super::effect::{Admission, Effect, Report};
use super::state::{EngineMachine, Flight};

/// Answers that cannot be used, to so many groups in a row, end an engine's serving. The turns of one group begin with one
/// prompt, which may be what an engine fails at.
const MOST_UNUSABLE: usize = 3;

type Refusal = (EngineFailureKind, String);

impl EngineMachine {
    pub(super) fn on_generate(&mut self, now_ms: u64, admission: Admission) {
        match self.admit(&admission) {
            Ok((max_new_tokens, version)) => {
                let flight = Flight { rollout: admission.rollout, aborted: false, sent_ms: now_ms };
                self.flights.insert(admission.rid.clone(), flight);
                self.effects.push(Effect::Send { rid: admission.rid, max_new_tokens, version });
            }
            Err((kind, message)) => {
                let failure = EngineFailure { kind, message };
                self.effects.push(Effect::Reject { rid: admission.rid, failure });
            }
        }
    }

    /// How many turns it may have at once: its limit; one where the last answers could not be used, until another can.
    pub(super) fn most_in_flight(&self) -> u32 {
        if self.is_on_probation() { 1 } else { self.settings.spec.max_in_flight }
    }

    /// Whether its last answers could not be used, so that it must show itself by one turn.
    fn is_on_probation(&self) -> bool {
        self.unusable.len() >= MOST_UNUSABLE
    }

    /// How many new tokens it may have, on which version; or why not. `NoEngine` means that another engine, or this one
    /// later, may serve it.
    fn admit(&self, admission: &Admission) -> Result<(u32, u64), Refusal> {
        use EngineFailureKind::{ContextExceeded, NoEngine, Refused};
        let engine = &self.settings.spec.engine;
        let vocabulary = self.settings.vocabulary_tokens;
        let Some(largest) = admission.largest_id else { return Err((Refused, "the prompt is empty".into())) };
        if largest >= vocabulary {
            let message =
                format!("token id {largest} is outside of the vocabulary of {vocabulary}: it would kill the engine");
            return Err((Refused, message));
        }
        if admission.max_new_tokens == 0 {
            return Err((Refused, "no new token is asked for".into()));
        }
        if self.flights.contains_key(&admission.rid) {
            return Err((Refused, format!("request {} is in flight already", admission.rid)));
        }
        let (Some(facts), EngineState::Serving) = (&self.facts, self.state) else {
            return Err((NoEngine, format!("engine {engine} does not serve: it is {:?}", self.state)));
        };
        let confirmed = self.confirmed.as_ref().map(|version| version.number);
        let Some(version) = confirmed.filter(|number| *number >= admission.oldest_version) else {
            let oldest = admission.oldest_version;
            return Err((NoEngine, format!("engine {engine} has version {confirmed:?}, at least {oldest} is needed")));
        };
        if self.flights.len() >= self.most_in_flight() as usize {
            return Err((NoEngine, format!("engine {engine} has {} requests in flight", self.flights.len())));
        }
        let prompt = admission.prompt_tokens;
        let room = facts.context_tokens.saturating_sub(prompt);
        if prompt > facts.max_prompt_tokens || room == 0 {
            let (context, limit) = (facts.context_tokens, facts.max_prompt_tokens);
            let message =
                format!("a prompt of {prompt} tokens leaves no room (context {context}, longest prompt {limit})");
            return Err((ContextExceeded, message));
        }
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        Ok((admission.max_new_tokens.min(room), version))
    }

    pub(super) fn on_finished(&mut self, now_ms: u64, rid: &str, report: Report) {
        let Some(flight) = self.flights.remove(rid) else { return };
        match report {
            Report::Answered => self.on_usable(),
            Report::Unusable(reason) if !flight.aborted => self.on_unusable(now_ms, flight.rollout.group, &reason),
            // how an engine ends what it is told to end says nothing of it
            Report::Unusable(_) | Report::Refused | Report::Cancelled => {}
            Report::TimedOut | Report::Abandoned => {
                if !flight.aborted {
                    self.effects.push(Effect::Abort(rid.to_owned()));
                }
            }
            Report::Broken(reason) => self.lose(now_ms, &reason),
            Report::Untrusted(reason) => self.doubt(now_ms, reason),
        }
        self.advance_drain(now_ms);
    }

    fn on_usable(&mut self) {
        self.standstill = None;
        let was_on_probation = self.is_on_probation();
        self.unusable.clear();
        if was_on_probation {
            self.effects.push(Effect::HasRoom(self.status()));
        }
    }

    /// An engine of which nothing can be used is as good as none; but each turn that finds that out fails. One that is looked
    /// at again after a while gets one turn to show itself by.
    fn on_unusable(&mut self, now_ms: u64, group: GroupId, reason: &str) {
        if !self.is_on_probation() {
            self.unusable.insert(group);
        }
        let groups = self.unusable.len();
        if self.is_on_probation() && self.state == EngineState::Serving {
            let reason =
                format!("its last answers, to turns of {groups} groups, cannot be used; the last one: {reason}");
            self.reject_engine(now_ms, &reason);
        }
    }

    pub(super) fn on_release(&mut self, rollout: RolloutId) {
        for (rid, flight) in &mut self.flights {
            if flight.rollout != rollout {
                continue;
            }
            if !std::mem::replace(&mut flight.aborted, true) {
                self.effects.push(Effect::Abort(rid.clone()));
            }
            let message = format!("{rollout} gave up its turn");
            let failure = EngineFailure { kind: EngineFailureKind::Released, message };
            self.effects.push(Effect::Fail { rid: rid.clone(), failure });
        }
    }
}
