//! Who serves what: a pure rule over the engines' states, the requests that wait, and what is assigned.
//!
//! A rollout stays with the engine that served it before while that engine serves (its prompt is cached there), and waits
//! for it when it is full; otherwise the engine with the least of its capacity in use takes it, ties by name. Waiting
//! requests are looked at in the order of their arrival. Invariants: an engine is assigned at most `max_in_flight`
//! requests; only a serving engine with weights that are new enough gets one; each request is assigned once at a time.

use std::collections::BTreeMap;

use greenroom_messages::engine::{EngineState, EngineStatus};
use greenroom_messages::{EngineId, RolloutId};

#[derive(Clone, Debug)]
struct View {
    status: EngineStatus,
    assigned: u32,
    leaving: bool,
}

#[derive(Clone, Debug)]
struct Waiting {
    rollout: RolloutId,
    oldest_version: u64,
    deadline_ms: u64,
    not_before_ms: u64,
}

#[derive(Clone, Debug)]
struct Assigned {
    request: Waiting,
    engine: EngineId,
}

/// What is to be done now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterPlan {
    /// Requests to send, and to whom.
    pub send: Vec<(u64, EngineId)>,
    /// Requests whose time is over.
    pub expired: Vec<u64>,
}

/// The routing state of a fleet. Requests are named by numbers that grow with their arrival.
#[derive(Clone, Debug, Default)]
pub struct Router {
    engines: BTreeMap<EngineId, View>,
    sticky: BTreeMap<RolloutId, EngineId>,
    waiting: BTreeMap<u64, Waiting>,
    assigned: BTreeMap<u64, Assigned>,
}

impl Router {
    /// Takes an engine's state over; an unknown engine is added.
    pub fn set_status(&mut self, status: EngineStatus) {
        match self.engines.get_mut(&status.engine) {
            Some(view) => view.status = status,
            None => {
                let engine = status.engine.clone();
                self.engines.insert(engine, View { status, assigned: 0, leaving: false });
            }
        }
    }

    /// Assigns nothing more to this engine.
    pub fn set_leaving(&mut self, engine: &EngineId) {
        if let Some(view) = self.engines.get_mut(engine) {
            view.leaving = true;
        }
    }

    /// Forgets an engine.
    pub fn remove_engine(&mut self, engine: &EngineId) {
        self.engines.remove(engine);
        self.sticky.retain(|_, sticky| sticky != engine);
    }

    /// How the engines stand, by name; in flight is what is assigned.
    pub fn statuses(&self) -> Vec<EngineStatus> {
        let status = |view: &View| EngineStatus { in_flight: view.assigned, ..view.status.clone() };
        self.engines.values().map(status).collect()
    }

    /// How one engine stands.
    pub fn status(&self, engine: &EngineId) -> Option<&EngineStatus> {
        self.engines.get(engine).map(|view| &view.status)
    }

    /// A request arrived.
    pub fn enqueue(&mut self, key: u64, rollout: RolloutId, oldest_version: u64, deadline_ms: u64) {
        self.waiting.insert(key, Waiting { rollout, oldest_version, deadline_ms, not_before_ms: 0 });
    }

    /// An engine did not take a request: it waits again, in its old place, for a moment at least.
    pub fn requeue(&mut self, key: u64, not_before_ms: u64) {
        if let Some(assigned) = self.unassign(key) {
            if self.sticky.get(&assigned.request.rollout) == Some(&assigned.engine) {
                self.sticky.remove(&assigned.request.rollout);
            }
            self.waiting.insert(key, Waiting { not_before_ms, ..assigned.request });
        }
    }

    /// A request ended, wherever it was.
    pub fn finished(&mut self, key: u64) {
        self.waiting.remove(&key);
        self.unassign(key);
    }

    fn unassign(&mut self, key: u64) -> Option<Assigned> {
        let assigned = self.assigned.remove(&key)?;
        if let Some(view) = self.engines.get_mut(&assigned.engine) {
            view.assigned = view.assigned.saturating_sub(1);
        }
        Some(assigned)
    }

    /// Forgets a rollout: gives the requests of it that wait, and those that are assigned with their engines.
    pub fn release(&mut self, rollout: RolloutId) -> (Vec<u64>, Vec<(u64, EngineId)>) {
        self.sticky.remove(&rollout);
        let waiting = self.waiting.iter().filter(|(_, waiting)| waiting.rollout == rollout);
        let assigned = self.assigned.iter().filter(|(_, assigned)| assigned.request.rollout == rollout);
        (waiting.map(|(key, _)| *key).collect(), assigned.map(|(key, at)| (*key, at.engine.clone())).collect())
    }

    /// Every request that waits.
    pub fn waiting(&self) -> Vec<u64> {
        self.waiting.keys().copied().collect()
    }

    /// The engine that a request is at.
    pub fn engine_of(&self, key: u64) -> Option<&EngineId> {
        self.assigned.get(&key).map(|assigned| &assigned.engine)
    }

    /// How many requests are at an engine.
    pub fn assigned(&self) -> usize {
        self.assigned.len()
    }

    /// When a plan should be made at the latest.
    pub fn next_wake_ms(&self, now_ms: u64) -> Option<u64> {
        let wake = |waiting: &Waiting| match waiting.not_before_ms {
            not_before_ms if not_before_ms > now_ms => not_before_ms.min(waiting.deadline_ms),
            _ => waiting.deadline_ms,
        };
        self.waiting.values().map(wake).min()
    }

    /// Assigns what can be assigned and gives up what has waited too long.
    pub fn plan(&mut self, now_ms: u64) -> RouterPlan {
        let mut plan = RouterPlan::default();
        let mut keys = self.waiting();
        keys.retain(|key| {
            let expired = self.waiting.get(key).is_some_and(|waiting| waiting.deadline_ms <= now_ms);
            if expired {
                self.waiting.remove(key);
                plan.expired.push(*key);
            }
            !expired
        });
        for key in keys {
            if !self.engines.values().any(View::has_room) {
                break;
            }
            let chosen = self.waiting.get(&key).filter(|waiting| waiting.not_before_ms <= now_ms);
            let Some(engine) = chosen.and_then(|waiting| self.choose(waiting)) else { continue };
            if let (Some(request), Some(view)) = (self.waiting.remove(&key), self.engines.get_mut(&engine)) {
                view.assigned += 1;
                self.sticky.insert(request.rollout, engine.clone());
                self.assigned.insert(key, Assigned { request, engine: engine.clone() });
                plan.send.push((key, engine));
            }
        }
        debug_assert!(plan.send.iter().all(|(key, _)| !self.waiting.contains_key(key)));
        plan
    }

    fn choose(&self, waiting: &Waiting) -> Option<EngineId> {
        let sticky = self.sticky.get(&waiting.rollout).and_then(|engine| Some((engine, self.engines.get(engine)?)));
        if let Some((engine, view)) = sticky.filter(|(_, view)| view.may_serve(waiting.oldest_version)) {
            return view.has_room().then(|| engine.clone());
        }
        let fit = self.engines.iter().filter(|(_, view)| view.has_room() && view.may_serve(waiting.oldest_version));
        fit.min_by(|(_, one), (_, other)| one.load_cmp(other)).map(|(engine, _)| engine.clone())
    }
}

impl View {
    fn serves(&self) -> bool {
        self.status.state == EngineState::Serving && !self.leaving
    }

    fn has_room(&self) -> bool {
        self.serves() && self.assigned < self.status.max_in_flight
    }

    fn may_serve(&self, oldest_version: u64) -> bool {
        self.serves() && self.status.version.as_ref().is_some_and(|version| version.number >= oldest_version)
    }

    /// Compares `assigned / max_in_flight` without dividing.
    fn load_cmp(&self, other: &Self) -> std::cmp::Ordering {
        let cross = |one: &Self, other: &Self| u64::from(one.assigned) * u64::from(other.status.max_in_flight);
        cross(self, other).cmp(&cross(other, self))
    }
}

#[cfg(test)]
mod tests {
    use greenroom_messages::{BatchId, GroupId, Purpose, RunId, WeightVersion};

    use super::*;

    fn rollout(index: u32) -> RolloutId {
        let group = GroupId { batch: BatchId { purpose: Purpose::Train, number: 1 }, index };
        RolloutId { group, sample: 0, attempt: 0 }
    }

    fn status(engine: &str, state: EngineState, number: u64, max_in_flight: u32) -> EngineStatus {
        EngineStatus {
            engine: EngineId::new(engine),
            url: String::new(),
            state,
            version: Some(WeightVersion { run: RunId::new("run"), number }),
            in_flight: 0,
            max_in_flight,
            context_tokens: None,
            trouble: None,
        }
    }

    fn router(engines: &[(&str, u32)]) -> Router {
        let mut router = Router::default();
        for (engine, max_in_flight) in engines {
            router.set_status(status(engine, EngineState::Serving, 1, *max_in_flight));
        }
        router
    }

    fn sent(router: &mut Router, now_ms: u64) -> Vec<(u64, String)> {
        router.plan(now_ms).send.into_iter().map(|(key, engine)| (key, engine.to_string())).collect()
    }

    fn pairs(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
        expected.iter().map(|(key, engine)| (*key, (*engine).to_owned())).collect()
    }

    #[test]
    fn the_least_loaded_engine_relative_to_its_size_takes_a_new_rollout() {
        let mut router = router(&[("a", 1), ("b", 4)]);
        (1..=6).for_each(|key| router.enqueue(key, rollout(key as u32), 1, 1_000));
        assert_eq!(sent(&mut router, 0), pairs(&[(1, "a"), (2, "b"), (3, "b"), (4, "b"), (5, "b")]));
        router.finished(1);
        assert_eq!(sent(&mut router, 0), pairs(&[(6, "a")]));
    }

    #[test]
    fn a_rollout_stays_with_its_engine_while_that_serves_and_waits_for_it_when_full() {
        let mut router = router(&[("a", 1), ("b", 1)]);
        router.enqueue(1, rollout(1), 1, 1_000);
        assert_eq!(sent(&mut router, 0), pairs(&[(1, "a")]));
        router.finished(1);
        router.enqueue(2, rollout(2), 1, 1_000);
        router.enqueue(3, rollout(1), 1, 1_000);
        assert_eq!(sent(&mut router, 0), pairs(&[(2, "a")]), "its engine is full: it waits, though b is idle");
        router.finished(2);
        assert_eq!(sent(&mut router, 0), pairs(&[(3, "a")]));
        router.finished(3);
        router.set_status(status("a", EngineState::Updating, 1, 1));
        router.enqueue(4, rollout(1), 1, 1_000);
        assert_eq!(sent(&mut router, 0), pairs(&[(4, "b")]), "its engine does not serve: another takes it");
        router.finished(4);
        router.set_status(status("a", EngineState::Serving, 2, 1));
        router.enqueue(5, rollout(1), 2, 1_000);
        assert_eq!(sent(&mut router, 0), pairs(&[(5, "a")]), "its engine's weights are too old for this turn");
    }

    #[test]
    fn what_nobody_may_serve_expires_in_time_and_what_was_released_is_forgotten() {
        let mut router = router(&[("a", 1)]);
        router.enqueue(1, rollout(1), 9, 500);
        router.enqueue(2, rollout(2), 1, 700);
        assert_eq!(sent(&mut router, 0), pairs(&[(2, "a")]));
        assert_eq!(router.next_wake_ms(0), Some(500));
        assert_eq!(router.plan(499), RouterPlan::default());
        assert_eq!(router.plan(500).expired, [1]);
        router.enqueue(3, rollout(2), 1, 900);
        assert_eq!(router.release(rollout(2)), (vec![3], vec![(2, EngineId::new("a"))]));
    }

    #[test]
    fn a_request_that_was_not_taken_keeps_its_place_and_comes_back_after_its_wait() {
        let mut router = router(&[("a", 1)]);
        router.enqueue(1, rollout(1), 1, 1_000);
        router.enqueue(2, rollout(2), 1, 1_000);
        assert_eq!(sent(&mut router, 0), pairs(&[(1, "a")]));
        router.requeue(1, 20);
        router.set_status(status("a", EngineState::Draining, 1, 1));
        assert_eq!((sent(&mut router, 0), router.next_wake_ms(0)), (vec![], Some(20)));
        router.set_status(status("a", EngineState::Serving, 1, 1));
        assert_eq!(sent(&mut router, 20), pairs(&[(1, "a")]));
        router.set_leaving(&EngineId::new("a"));
        router.finished(1);
        assert_eq!(sent(&mut router, 20), [], "an engine that leaves gets nothing more");
    }

    proptest::proptest! {
        #[test]
        fn no_engine_is_overfilled_and_no_request_is_lost_or_sent_twice(
            steps in proptest::collection::vec((0_u8..6, 0_u64..12, 0_u64..3), 1..200),
        ) {
            let mut router = router(&[("a", 2), ("b", 3)]);
            let (mut now_ms, mut next) = (0, 0);
            let (mut flying, mut ended) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
            for (action, one, two) in steps {
                now_ms += one;
                match action {
                    0 | 1 => {
                        next += 1;
                        router.enqueue(next, rollout(one as u32), two, now_ms + 40);
                    }
                    2 => {
                        let state = [EngineState::Serving, EngineState::Updating, EngineState::Lost][two as usize];
                        router.set_status(status(["a", "b"][one as usize % 2], state, one % 3, 2 + one as u32 % 2));
                    }
                    3 => if let Some(key) = flying.pop_first() {
                        router.finished(key);
                        ended.insert(key);
                    },
                    4 => if let Some(key) = flying.pop_last() {
                        router.requeue(key, now_ms + two);
                    },
                    _ => {}
                }
                let plan = router.plan(now_ms);
                for (key, engine) in plan.send {
                    let to = router.status(&engine).unwrap();
                    proptest::prop_assert_eq!(to.state, EngineState::Serving);
                    proptest::prop_assert!(flying.insert(key) && !ended.contains(&key));
                }
                for key in plan.expired {
                    proptest::prop_assert!(!flying.contains(&key) && ended.insert(key));
                }
                proptest::prop_assert_eq!(flying.len() + ended.len() + router.waiting().len(), next as usize);
            }
        }
    }
}
