//! What a run came to: `summary.json`, and the same in words.

use serde::{Deserialize, Serialize};

use crate::{Database, RolloutTotals, RunError};

/// The summary of a run. Rewards and fractions are means over rollouts, as in [`crate::BatchMetrics`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Committed optimizer steps.
    pub steps: u64,
    /// Time that processes worked on the run, seconds.
    pub wall_s: f64,
    /// Mean reward of fresh rollouts over the training tasks before the first step.
    pub eval_before: Option<f64>,
    /// The same after the last step.
    pub eval_after: Option<f64>,
    /// Mean reward over the held-out tasks before the first step.
    pub held_out_before: Option<f64>,
    /// The same after the last step.
    pub held_out_after: Option<f64>,
    /// pass@1 of the first training batch.
    pub pass_at_1_first: Option<f64>,
    /// pass@1 of the last training batch.
    pub pass_at_1_last: Option<f64>,
    /// How many rollouts ended how, evaluations included.
    pub rollouts: RolloutTotals,
    /// Versions published, the initial one included.
    pub weight_versions: u64,
    /// Sampled tokens that were trained on.
    pub tokens_trained: u64,
    /// Tokens sampled in all turns.
    pub tokens_generated: u64,
    /// What a person should know before trusting the rest, each with its code first.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl RunSummary {
    /// Fills in what the database knows.
    pub(crate) fn count(&mut self, database: &Database, now_ms: u64) -> Result<(), RunError> {
        self.rollouts = database.rollout_totals()?;
        (self.tokens_generated, self.tokens_trained) = database.token_totals()?;
        let (versions, wall_ms) = database.versions_and_wall_ms(now_ms)?;
        (self.weight_versions, self.wall_s) = (versions, wall_ms as f64 / 1_000.0);
        Ok(())
    }

    /// The summary in words, a few lines; warnings come last.
    pub fn in_words(&self) -> String {
        let change = |name: &str, before: Option<f64>, after: Option<f64>| match (before, after) {
            (Some(before), Some(after)) => {
                format!("{name}: mean reward {before:.3} before, {after:.3} after ({:+.3})\n", after - before)
            }
            _ => String::new(),
        };
        let rollouts = &self.rollouts;
        let warnings = self.warnings.iter().map(|warning| format!("\nWARNING {warning}")).collect::<String>();
        format!(
            "{} steps in {:.0} s\n{}{}pass@1 of the training batches: {} first, {} last\n\
             rollouts: {} completed, {} truncated, {} stale, {} cancelled, {} failed by infrastructure (never trained on)\n\
             {} weight versions; {} tokens generated, {} trained on{warnings}",
            self.steps,
            self.wall_s,
            change("training tasks", self.eval_before, self.eval_after),
            change("held-out tasks", self.held_out_before, self.held_out_after),
            self.pass_at_1_first.map_or("none".to_owned(), |value| format!("{value:.3}")),
            self.pass_at_1_last.map_or("none".to_owned(), |value| format!("{value:.3}")),
            rollouts.completed,
            rollouts.truncated,
            rollouts.stale,
            rollouts.cancelled,
            rollouts.infra_failed,
            self.weight_versions,
            self.tokens_generated,
            self.tokens_trained,
        )
    }
}
