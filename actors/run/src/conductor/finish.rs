//! How the run stands, what is said of it, and its end.

use greenroom_messages::rollout::RolloutManagerMessage;
use greenroom_messages::run::{RunEvent, RunStatus};
use greenroom_messages::{BatchId, Purpose, Step};

use super::ConductorState;
use crate::actor::RunEnd;
use crate::policy_step::record;
use crate::{RunError, RunSummary};

impl ConductorState {
    /// The run is over, as planned or as told.
    pub(super) fn end(&mut self) -> Result<(), RunError> {
        for batch in self.running().collect::<Vec<_>>() {
            let _ = self.arguments.parts.rollouts.cast(RolloutManagerMessage::CancelBatch(batch));
        }
        let summary = self.summary()?;
        let stopped = self.facts.stop.is_some() && self.facts.committed != Some(self.arguments.config.steps);
        if let Some(directory) = &self.arguments.directory {
            let text = serde_json::to_string_pretty(&summary).unwrap_or_default();
            directory.replace("summary.json", text.as_bytes())?;
        }
        let ending = if stopped { "stopped" } else { "completed" };
        self.arguments.database.end_process(ending)?;
        self.finish(ending, if stopped { RunEnd::Stopped(summary) } else { RunEnd::Completed(summary) });
        Ok(())
    }

    pub(super) fn summary(&self) -> Result<RunSummary, RunError> {
        let reward = |purpose, number| self.measured.get(&BatchId { purpose, number }).map(|metrics| metrics.reward);
        let last = self.facts.committed.filter(|committed| *committed > 0);
        let mut summary = RunSummary {
            steps: self.facts.committed.unwrap_or(0),
            eval_before: reward(Purpose::Evaluate, 0),
            eval_after: last.and_then(|step| reward(Purpose::Evaluate, step)),
            held_out_before: reward(Purpose::HeldOut, 0),
            held_out_after: last.and_then(|step| reward(Purpose::HeldOut, step)),
            pass_at_1_first: self.steps.first().map(|line| line.rollout.pass_at_1),
            pass_at_1_last: self.steps.last().map(|line| line.rollout.pass_at_1),
            warnings: crate::signal::warnings(&self.steps, self.arguments.config.warn_after_steps_without_signal),
            ..RunSummary::default()
        };
        let late = self.late.iter();
        summary
            .warnings
            .extend(late.map(|(engine, reason)| format!("GR0211: engine {engine} serves nothing: {reason}")));
        summary.count(&self.arguments.database, self.arguments.seam.clock.now_ms())?;
        Ok(summary)
    }

    /// A part failed for good: end the run and say which and why.
    pub(crate) fn fail(&mut self, error: &RunError) {
        let text = format!("{}: {error}", error.code());
        // whoever waits for the end tells it
        tracing::error!(target: greenroom_core::TOLD, code = error.code(), %error, "the run ends");
        if let Err(second) = self.arguments.database.end_process(&text) {
            tracing::error!(%second, "the end could not be written");
        }
        self.finish("failed", RunEnd::Failed(text));
    }

    pub(super) fn finish(&mut self, phase: &str, end: RunEnd) {
        self.ended = true;
        self.enter(phase.to_owned(), None);
        self.show();
        (self.arguments.on_end)(end);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn status(&self) -> RunStatus {
        let batch = self.running().next().and_then(|batch| self.batches.get(&batch));
        RunStatus {
            phase: match self.learning {
                Some(progress) => format!("{} {:.0} %", self.phase, progress * 100.0),
                None => self.phase.clone(),
            },
            step: Step(self.facts.committed.unwrap_or(0)),
            steps: self.arguments.config.steps,
            groups_finished: batch.map_or(0, |batch| batch.finished.len() as u32),
            groups: batch.map_or(0, |batch| batch.groups),
            reward: self.steps.last().map(|line| line.rollout.reward as f32),
            eval_before: self
                .measured
                .get(&BatchId { purpose: Purpose::Evaluate, number: 0 })
                .map(|metrics| metrics.reward as f32),
            rollouts_paused: self.rollouts_paused,
            training_paused: self.facts.training_paused,
            ended: self.ended,
        }
    }

    pub(super) fn show(&self) {
        self.arguments.progress.send_replace(self.status());
    }

    pub(super) fn enter(&mut self, phase: String, batch: Option<BatchId>) {
        self.phase.clone_from(&phase);
        record(&self.arguments.parts.journal, RunEvent::PhaseChanged { phase, batch });
        self.show();
    }

    pub(super) fn warn(&self, text: String) {
        (self.arguments.talk)(&format!("[WARN] {text}"));
        tracing::warn!(target: greenroom_core::TOLD, "{text}");
        record(&self.arguments.parts.journal, RunEvent::Note { source: "conductor".to_owned(), text });
    }

    pub(super) fn note(&self, text: String) {
        (self.arguments.talk)(&format!("[note] {text}"));
        tracing::info!(text, "conductor");
        record(&self.arguments.parts.journal, RunEvent::Note { source: "conductor".to_owned(), text });
    }
}
