//! What the Conductor writes: batches, finished groups, committed steps. Each is one transaction.

use greenroom_messages::rollout::{FinishedGroup, FinishedRollout, GroupOutcome, StartBatch};
use greenroom_messages::{BatchId, GroupId, RolloutId, Step, WeightVersion};
use rusqlite::{Transaction, params};

use super::Database;
use crate::RunError;

/// A step to be committed.
#[derive(Clone, Debug)]
pub struct StepCommit {
    /// The step; 0 commits the initial policy.
    pub step: Step,
    /// The batch it trained on; `None` for step 0.
    pub batch: Option<BatchId>,
    /// The rollouts it trained on.
    pub rollouts: Vec<RolloutId>,
    /// The name of its checkpoint's directory, relative to the run's `checkpoints/`.
    pub checkpoint: String,
    /// The weights it made.
    pub version: WeightVersion,
    /// Where the next training batch begins in its data set.
    pub next_position: u64,
    /// The step's metrics, as JSON.
    pub metrics: String,
}

impl Database {
    /// Notes that a batch is asked for; `next_position` is where the one after it begins. Repeating it changes nothing.
    pub fn start_batch(&self, request: &StartBatch, next_position: u64) -> Result<(), RunError> {
        let now_ms = self.clock.now_ms();
        let batch = request.batch.to_string();
        self.write(|transaction| {
            transaction.execute(
                "INSERT OR IGNORE INTO batches VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    batch,
                    request.first_position,
                    next_position,
                    request.groups,
                    request.samples_per_group,
                    request.oldest_version,
                    now_ms
                ],
            )?;
            for index in 0..request.groups {
                let group = GroupId { batch: request.batch, index };
                transaction.execute(
                    "INSERT OR IGNORE INTO groups (group_id, batch) VALUES (?1, ?2)",
                    params![group.to_string(), batch],
                )?;
            }
            Ok(())
        })
    }

    /// Notes that a group finished, with its rollouts; `file` holds its trajectories. A dropped group may finish again as
    /// trainable (the batch was made again), never the other way round.
    pub fn finish_group(&self, finished: &FinishedGroup, file: &str) -> Result<(), RunError> {
        let now_ms = self.clock.now_ms();
        let (outcome, reason) = match &finished.outcome {
            GroupOutcome::Trainable => ("trainable", None),
            GroupOutcome::Dropped(reason) => ("dropped", Some(reason.as_str())),
        };
        self.write(|transaction| {
            transaction.execute(
                "INSERT OR IGNORE INTO groups (group_id, batch) VALUES (?1, ?2)",
                params![finished.group.to_string(), finished.group.batch.to_string()],
            )?;
            transaction.execute(
                "UPDATE groups SET task = ?2, outcome = ?3, reason = ?4, file = ?5, finished_ms = ?6
                 WHERE group_id = ?1 AND coalesce(outcome, '') <> 'trainable'",
                params![finished.group.to_string(), finished.task.as_str(), outcome, reason, file, now_ms],
            )?;
            for rollout in &finished.rollouts {
                write_rollout(transaction, rollout, self.epoch, now_ms)?;
            }
            // attempts that a lost RolloutManager had issued: nobody else can say how they ended
            transaction.execute(
                "UPDATE rollouts SET state = 'ended', ended_ms = ?2, outcome = 'cancelled', detail = 'node_lost'
                 WHERE group_id = ?1 AND ended_ms IS NULL",
                params![finished.group.to_string(), now_ms],
            )?;
            Ok(())
        })
    }

    /// Ends the leases with these numbers that are open: the node that held their boxes is gone, and the boxes with it.
    pub fn lose_leases(&self, numbers: std::ops::Range<u64>) -> Result<u64, RunError> {
        let now_ms = self.clock.now_ms();
        self.write(|transaction| {
            let lost = transaction.execute(
                "UPDATE leases SET ended_ms = ?1, reason = 'node_lost',
                     ended_seq = (SELECT coalesce(max(seq), 0) FROM events)
                 WHERE ended_ms IS NULL AND lease >= ?2 AND lease < ?3",
                params![now_ms, numbers.start, numbers.end],
            )?;
            Ok(lost as u64)
        })
    }

    /// Commits a step: its checkpoint, its version and every rollout it trained on, all or nothing.
    pub fn commit_step(&self, commit: &StepCommit) -> Result<(), RunError> {
        let now_ms = self.clock.now_ms();
        let refused = |reason: String| RunError::CommitRefused { step: commit.step, reason };
        let problem = self.write(|transaction| {
            if let Some(problem) = find_problem(transaction, commit)? {
                return Ok(Some(problem));
            }
            for rollout in &commit.rollouts {
                let marked = params![commit.step.0, rollout.to_string()];
                transaction.execute("UPDATE rollouts SET trained_step = ?1 WHERE rollout = ?2", marked)?;
            }
            transaction.execute(
                "INSERT INTO steps VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    commit.step.0,
                    commit.batch.map(|batch| batch.to_string()),
                    commit.checkpoint,
                    commit.version.to_string(),
                    commit.next_position,
                    now_ms,
                    commit.metrics
                ],
            )?;
            Ok(None)
        })?;
        problem.map_or(Ok(()), |problem| Err(refused(problem)))
    }

    /// Ends what an earlier process left open: its leases, and its rollouts that never finished.
    pub fn close_what_earlier_processes_left(&self) -> Result<u64, RunError> {
        let now_ms = self.clock.now_ms();
        self.write(|transaction| {
            let epoch = self.epoch;
            transaction.execute(
                "UPDATE processes SET ended_ms = ?1, ending = 'lost' WHERE epoch < ?2 AND ended_ms IS NULL",
                params![now_ms, epoch],
            )?;
            transaction.execute(
                "UPDATE leases SET ended_ms = ?1, reason = 'process_lost' WHERE ended_ms IS NULL AND epoch < ?2",
                params![now_ms, epoch],
            )?;
            let lost = transaction.execute(
                "UPDATE rollouts SET ended_ms = ?1, outcome = 'cancelled', state = 'ended', detail = 'process_lost'
                 WHERE ended_ms IS NULL AND epoch < ?2",
                params![now_ms, epoch],
            )?;
            Ok(lost as u64)
        })
    }
}

/// Why this commit would break the history, if it would.
fn find_problem(transaction: &Transaction<'_>, commit: &StepCommit) -> rusqlite::Result<Option<String>> {
    let newest: Option<u64> = transaction.query_row("SELECT max(step) FROM steps", [], |row| row.get(0))?;
    let expected = newest.map_or(0, |newest| newest + 1);
    if commit.step.0 != expected {
        return Ok(Some(format!("step-{expected} comes next")));
    }
    let mut trained = transaction.prepare("SELECT trained_step, outcome FROM rollouts WHERE rollout = ?1")?;
    for rollout in &commit.rollouts {
        let mut rows = trained.query([rollout.to_string()])?;
        let Some(row) = rows.next()? else {
            return Ok(Some(format!("{rollout} is unknown to the run")));
        };
        if let Some(step) = row.get::<_, Option<u64>>(0)? {
            return Ok(Some(format!("{rollout} was trained on in step-{step} already")));
        }
        let outcome: Option<String> = row.get(1)?;
        if !matches!(outcome.as_deref(), Some("completed" | "truncated")) {
            return Ok(Some(format!("{rollout} ended as {outcome:?}, which is never trained on")));
        }
    }
    Ok(None)
}

fn write_rollout(
    transaction: &Transaction<'_>,
    finished: &FinishedRollout,
    epoch: u64,
    now_ms: u64,
) -> rusqlite::Result<usize> {
    let tokens: usize = finished.samples.iter().map(|sample| sample.tokens.len()).sum();
    let trained: usize =
        finished.samples.iter().flat_map(|sample| &sample.loss_mask).filter(|mask| **mask != 0).count();
    let timings = finished.timings;
    transaction.execute(
        "INSERT INTO rollouts (rollout, group_id, epoch, task, state, issued_ms, ended_ms, outcome, reward, detail, turns,
             tokens, trained_tokens, claim_ms, set_up_ms, generate_ms, exec_ms, grade_ms)
         VALUES (?1, ?2, ?3, ?4, 'ended', ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
         ON CONFLICT (rollout) DO UPDATE SET state = 'ended', ended_ms = coalesce(ended_ms, excluded.ended_ms),
             outcome = excluded.outcome, reward = excluded.reward, detail = excluded.detail, turns = excluded.turns,
             tokens = excluded.tokens, trained_tokens = excluded.trained_tokens, claim_ms = excluded.claim_ms,
             set_up_ms = excluded.set_up_ms, generate_ms = excluded.generate_ms, exec_ms = excluded.exec_ms,
             grade_ms = excluded.grade_ms",
        params![
            finished.rollout.to_string(),
            finished.rollout.group.to_string(),
            epoch,
            finished.task.as_str(),
            now_ms.saturating_sub(timings.total_ms),
            now_ms,
            finished.outcome.name(),
            finished.reward,
            finished.detail(),
            finished.turns,
            tokens,
            trained,
            timings.claim_ms,
            timings.set_up_ms,
            timings.generate_ms,
            timings.exec_ms,
            timings.grade_ms
        ],
    )
}
