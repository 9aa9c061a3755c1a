//! Where a run goes on: read from its database and directory, never guessed.

use greenroom_messages::rollout::FinishedGroup;
use greenroom_messages::{BatchId, Purpose};

use crate::schedule::training_batch;
use crate::{Database, Facts, RunConfig, RunDirectory, RunError, Schedule};

/// How far a run is.
#[derive(Clone, Debug, Default)]
pub struct ResumePoint {
    /// The facts for the schedule.
    pub facts: Facts,
    /// The checkpoint to load; `None` for a run whose initial policy was never committed.
    pub checkpoint: Option<String>,
    /// Where the next training batch begins in its data set, as of the last committed step.
    pub next_position: u64,
    /// The metrics of every committed step, as JSON.
    pub metrics: Vec<String>,
    /// Finished groups of batches that are not yet used up, trainable or dropped.
    pub groups: Vec<FinishedGroup>,
    /// Groups that finished, but whose trajectories cannot be read any more, and why.
    pub lost: Vec<String>,
}

/// Reads where the run goes on, and closes what a lost process left open.
pub fn resume_point(
    database: &Database,
    directory: Option<&RunDirectory>,
    schedule: &Schedule,
    config: &RunConfig,
) -> Result<ResumePoint, RunError> {
    database.close_what_earlier_processes_left()?;
    let steps = database.committed_steps()?;
    let Some(last) = steps.last() else { return Ok(ResumePoint::default()) };
    let mut point = ResumePoint {
        facts: Facts { committed: Some(last.step), ..Facts::default() },
        checkpoint: Some(last.checkpoint.clone()),
        next_position: last.next_position,
        metrics: steps.iter().map(|step| step.metrics.clone()).collect(),
        groups: Vec::new(),
        lost: Vec::new(),
    };
    for batch in open_batches(schedule, last.step, config) {
        for (group, file, _) in database.finished_groups(batch)? {
            let Some(directory) = directory else { continue };
            match directory.read_group(&file) {
                Ok(finished) => point.groups.push(finished),
                Err(error) => {
                    // a measurement of weights that are no more cannot be made again: its figure is missing, nothing else
                    if batch.number >= last.step {
                        database.reopen_group(group)?;
                    }
                    point.lost.push(error.to_string());
                }
            }
        }
    }
    Ok(point)
}

/// The batches whose groups still matter after this step: all measurements so far (for the summary), and the training
/// batches that come next.
fn open_batches(schedule: &Schedule, committed: u64, config: &RunConfig) -> Vec<BatchId> {
    let measurements = (0..=committed).flat_map(|step| schedule.measurements(step));
    let ahead = committed + 1..=committed + 1 + config.schedule.lag();
    let batches: Vec<BatchId> = measurements.chain(ahead.map(training_batch)).collect();
    debug_assert!(batches.iter().all(|batch| batch.purpose != Purpose::Train || batch.number > committed));
    batches
}
