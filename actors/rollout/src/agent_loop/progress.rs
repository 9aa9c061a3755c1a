//! How far a rollout is, seen from outside: what can still be told of one that was ended in the middle.

use std::sync::{Arc, Mutex, PoisonError};

use greenroom_core::Clock;
use greenroom_messages::rollout::{FinishedRollout, LoopStatus, RolloutOutcome, RolloutState, RolloutTimings};
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
    /// What is waited for, and since when.
    waits: Option<(Part, u64)>,
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

impl Part {
    fn state(self) -> RolloutState {
        match self {
            Self::Claim => RolloutState::Claiming,
            Self::SetUp => RolloutState::SettingUp,
            Self::Generate => RolloutState::Generating,
            Self::Exec => RolloutState::Executing,
            Self::Grade => RolloutState::Grading,
        }
    }
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
        self.update(|seen| seen.waits = Some((part, before_ms)));
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

    /// How the loop stands. Between two waits it is what it waited for last.
    pub fn status(&self, rollout: RolloutId, task: TaskId) -> LoopStatus {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.clock.elapsed_ms();
        let (state, since_ms) =
            seen.waits.map_or((RolloutState::Queued, self.started_ms), |(part, since_ms)| (part.state(), since_ms));
        let (for_ms, age_ms) = (now_ms.saturating_sub(since_ms), now_ms.saturating_sub(self.started_ms));
        LoopStatus { rollout, task, turns: seen.turns, state, for_ms, age_ms }
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
