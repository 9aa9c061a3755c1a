//! One line per step: for `metrics.jsonl`, and in words for the terminal and for grep.

use greenroom_messages::trainer::{TrainReport, WarmStartReport};
use greenroom_messages::{BatchId, Purpose};
use serde::{Deserialize, Serialize};
use tokio::time::Duration;

use crate::BatchMetrics;
use crate::metrics::BatchTimes;
use crate::signal::NoSignal;

/// The metrics of one step. `times` holds everything that depends on the machine; the rest depends on the seed alone
/// where the schedule is `sync` and the engine batch-invariant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepLine {
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) rollout: BatchMetrics,
    #[serde(default)]
    pub(crate) train: TrainReport,
    /// Attempts at the batch's rollouts that infrastructure failed, those that were made again included.
    #[serde(default)]
    pub(crate) infra_failed: u64,
    /// How the rollouts ended, where nothing could be learnt from them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) no_signal: Option<NoSignal>,
    #[serde(default)]
    pub(crate) times: StepTimes,
}

/// The times of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepTimes {
    pub(crate) train_sec: f64,
    /// From its predecessor's commit, or the measurement after that, to its end.
    #[serde(default)]
    pub(crate) wall_sec: f64,
    /// Sampled tokens over that time.
    #[serde(default)]
    pub(crate) tokens_per_sec: f64,
    pub(crate) rollout: BatchTimes,
}

impl StepLine {
    pub(crate) fn new(step: u64, rollout: &BatchMetrics, train: TrainReport, wall_ms: u64) -> Self {
        let wall_sec = wall_ms as f64 / 1_000.0;
        let tokens_per_sec = rollout.new_tokens as f64 / wall_sec.max(1e-3);
        let train_sec = train.elapsed_ms as f64 / 1_000.0;
        let times = StepTimes { train_sec, wall_sec, tokens_per_sec, rollout: rollout.times };
        let rollout = BatchMetrics { times: BatchTimes::default(), ..rollout.clone() };
        Self { step, rollout, train: TrainReport { elapsed_ms: 0, ..train }, times, ..Self::default() }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The line that a person reads and a script greps for `[metrics]`: what matters of a step. All of it is in
    /// `metrics.jsonl`.
    pub(crate) fn in_words(&self, steps: u64) -> String {
        let (rollout, train) = (&self.rollout, &self.train);
        let skipped = if train.skipped { " skipped=1" } else { "" };
        format!(
            "[metrics] step={}/{steps} pass@1={} reward={} loss={} grad_norm={} tokens/s={:.0} staleness={} infra_failed={} \
             wall={:.1}s{skipped}",
            self.step,
            number(rollout.pass_at_1),
            number(rollout.reward),
            number(train.loss.into()),
            number(train.grad_norm.into()),
            self.times.tokens_per_sec,
            number(rollout.staleness),
            self.infra_failed,
            self.times.wall_sec,
        )
    }
}

/// A number with enough digits to be told from 0, and never a negative zero.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        small if small < 1e-4 => format!("{value:.2e}"),
        large if large >= 1e6 => format!("{value:.3e}"),
        _ => format!("{value:.4}"),
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

/// How far a warm start is, in words.
pub(crate) fn talk_learning(demonstrations: usize, progress: f32, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f32();
    let left =
        if progress > 0.0 { format!(", about {:.0} s left", seconds / progress - seconds) } else { String::new() };
    format!("[warm start] {:.0} % learnt of {demonstrations} demonstrations in {seconds:.0} s{left}", progress * 100.0)
}

/// A warm start in words: what it began with and what it came to.
pub(crate) fn talk_warm_start(report: &WarmStartReport) -> String {
    format!(
        "[warm start] steps={} tokens={} loss_first_tenth={} loss_last_tenth={} seconds={:.0}",
        report.steps,
        report.tokens,
        number(report.first_loss.into()),
        number(report.last_loss.into()),
        report.elapsed_ms as f64 / 1_000.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_from_zero_and_zero_has_no_sign() {
        let rows = [
            (0.0, "0"),
            (-0.0, "0"),
            (-0.000_012_3, "-1.23e-5"),
            (0.000_1, "0.0001"),
            (-0.25, "-0.2500"),
            (12_345_678.0, "1.235e7"),
            (f64::NAN, "NaN"),
        ];
        for (value, expected) in rows {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn the_line_of_a_step_fits_a_screen_whatever_its_numbers() {
        let rollout = BatchMetrics {
            reward: -0.333_333,
            pass_at_1: 0.333_333,
            new_tokens: 99_999_999_999,
            staleness: 1.5,
            ..BatchMetrics::default()
        };
        let train = TrainReport { loss: -1.234e-9, grad_norm: 9.87e20, skipped: true, ..TrainReport::default() };
        let line = StepLine { infra_failed: 100_000, ..StepLine::new(10_000, &rollout, train, 86_400_000) };
        let said = line.in_words(10_000);
        assert!(said.len() < 180, "{} columns: {said}", said.len());
        for field in [
            "step=10000/10000 ",
            " pass@1=0.3333 ",
            " reward=-0.3333 ",
            " loss=-1.23e-9 ",
            " grad_norm=9.870e20 ",
            " skipped=1",
        ] {
            assert!(said.contains(field), "{field:?} in {said}");
        }
        assert_eq!(serde_json::from_str::<StepLine>(&line.to_json()).unwrap(), line);
    }
}
