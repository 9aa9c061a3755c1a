//! One line per step: for `metrics.jsonl`, and in words for the terminal and for grep.

use greenroom_messages::trainer::{TrainReport, WarmStartReport};
use greenroom_messages::{BatchId, Purpose};
use serde::{Deserialize, Serialize};

use crate::BatchMetrics;
use crate::metrics::BatchTimes;

/// The metrics of one step. `times` holds everything that depends on the machine; the rest depends on the seed alone
/// where the schedule is `sync` and the engine batch-invariant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepLine {
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) rollout: BatchMetrics,
    #[serde(default)]
    pub(crate) train: TrainReport,
    #[serde(default)]
    pub(crate) times: StepTimes,
}

/// The times of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepTimes {
    pub(crate) train_sec: f64,
    pub(crate) rollout: BatchTimes,
}

impl StepLine {
    pub(crate) fn new(step: u64, rollout: &BatchMetrics, train: TrainReport) -> Self {
        let times = StepTimes { train_sec: train.elapsed_ms as f64 / 1_000.0, rollout: rollout.times };
        let rollout = BatchMetrics { times: BatchTimes::default(), ..rollout.clone() };
        Self { step, rollout, train: TrainReport { elapsed_ms: 0, ..train }, times }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The line that a person reads and a script greps for `[metrics]`.
    pub(crate) fn in_words(&self, steps: u64) -> String {
        let (rollout, train, times) = (&self.rollout, &self.train, &self.times.rollout);
        format!(
            "[metrics] step={}/{steps} reward={:.3} pass@1={:.3} pass@k={:.3} turns={:.2} masked_frac={:.3} groups={} \
             rollouts={} not_graded={} loss={:.4} grad_norm={:.3} entropy={:.3} kl={:.4} clip_fraction={:.3} \
             logprob_mismatch={:.4} tokens_trained={} claim_p50={:.3}s exec_call_p50={:.3}s exec_call_p95={:.3}s train={:.1}s",
            self.step,
            rollout.reward,
            rollout.pass_at_1,
            rollout.pass_at_k,
            rollout.turns_mean,
            rollout.masked_frac_mean,
            rollout.num_groups,
            rollout.num_rollouts,
            rollout.not_graded,
            train.loss,
            train.grad_norm,
            train.entropy,
            train.kl,
            train.clip_fraction,
            train.logprob_mismatch,
            train.tokens_trained,
            times.sandbox_claim_sec.p50,
            times.sandbox_exec_call.p50,
            times.sandbox_exec_call.p95,
            self.times.train_sec,
        )
    }
}

/// A measurement in words.
pub(crate) fn talk_measurement(batch: BatchId, metrics: &BatchMetrics) -> String {
    let tasks = if batch.purpose == Purpose::HeldOut { "held-out" } else { "training" };
    format!(
        "[evaluation] after_step={} tasks={tasks} reward={:.3} pass@1={:.3} pass@k={:.3} groups={} rollouts={} not_graded={}",
        batch.number,
        metrics.reward,
        metrics.pass_at_1,
        metrics.pass_at_k,
        metrics.num_groups,
        metrics.num_rollouts,
        metrics.not_graded
    )
}

/// A warm start in words. The loss is a mean over a whole pass.
pub(crate) fn talk_warm_start(report: &WarmStartReport) -> String {
    format!(
        "[warm start] steps={} tokens={} loss_first_pass={:.3} loss_last_pass={:.3} seconds={:.0}",
        report.steps,
        report.tokens,
        report.first_loss,
        report.last_loss,
        report.elapsed_ms as f64 / 1_000.0
    )
}
