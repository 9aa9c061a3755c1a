//! How far a rollout is, seen from outside: what can still be told of one that was ended in the middle.

use std::sync::{Arc, Mutex, PoisonError};

use greenroom_core::Clock;
use greenroom_messages::rollout::{FinishedRollout, RolloutOutcome, RolloutTimings};
use greenroom_messages::{LeaseId, RolloutId, TaskId};

use crate::manager::bare;

/// A shared view of one rollout; clones see the same.
#[derive(Clone, Debug)]
pub struct Progress {
    clock: Clock,
    started_ms: u64,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    timings: RolloutTimings,
    exec_calls_ms: Vec<u64>,
    turns: u32,
    forks: u32,
    lease: Option<LeaseId>,
    warm: bool,
    exit_status: String,
}

/// A part of a rollout's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Claim,
    SetUp,
    Generate,
    Exec,
    Grade,
}

impl Progress {
    /// A rollout that starts now.
    pub fn new(clock: Clock) -> Self {
        Self { clock, started_ms: clock.elapsed_ms(), seen: Arc::default() }
    }

    fn update(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for `work` and adds its time to a part.
    pub(super) async fn timed<T>(&self, part: Part, work: impl Future<Output = T>) -> T {
        let before_ms = self.clock.elapsed_ms();
        let result = work.await;
        let elapsed_ms = self.clock.elapsed_ms() - before_ms;
        self.update(|seen| match part {
            Part::Claim => seen.timings.claim_ms += elapsed_ms,
            Part::SetUp => seen.timings.set_up_ms += elapsed_ms,
            Part::Generate => seen.timings.generate_ms += elapsed_ms,
            Part::Grade => seen.timings.grade_ms += elapsed_ms,
            Part::Exec => {
                seen.timings.exec_ms += elapsed_ms;
                seen.timings.execs += 1;
                seen.exec_calls_ms.push(elapsed_ms);
            }
        });
        result
    }

    /// The agent has its box.
    pub(super) fn claimed(&self, lease: LeaseId, is_warm: bool) {
        self.update(|seen| {
            seen.lease = Some(lease);
            seen.warm = is_warm;
        });
    }

    pub(super) fn turn_finished(&self) {
        self.update(|seen| seen.turns += 1);
    }

    pub(super) fn agent_ended(&self, exit_status: &str, forks: u32) {
        self.update(|seen| {
            exit_status.clone_into(&mut seen.exit_status);
            seen.forks = forks;
        });
    }

    /// The end of the rollout as far as it is known, without a reward and without samples.
    pub fn finished(&self, rollout: RolloutId, task: TaskId, outcome: RolloutOutcome) -> FinishedRollout {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let total_ms = self.clock.elapsed_ms() - self.started_ms;
        FinishedRollout {
            turns: seen.turns,
            forks: seen.forks,
            lease: seen.lease,
            warm: seen.warm,
            exit_status: seen.exit_status.clone(),
            timings: RolloutTimings { total_ms, ..seen.timings },
            exec_calls_ms: seen.exec_calls_ms.clone(),
            ..bare(rollout, task, outcome)
        }
    }
}
