//! What is read back: for a resume, for the summary, for the checks.

use greenroom_messages::{BatchId, GroupId, LeaseId};
use rusqlite::OptionalExtension;
use serde::Serialize;

use super::Database;
use crate::RunError;

/// A committed step, as the database holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct CommittedStep {
    /// The step's number.
    pub step: u64,
    /// The name of its checkpoint's directory.
    pub checkpoint: String,
    /// Where the next training batch begins.
    pub next_position: u64,
    /// Its metrics, as JSON.
    pub metrics: String,
}

/// How many rollouts ended how, over the whole run, evaluations included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct RolloutTotals {
    /// The agent ended by itself.
    pub completed: u64,
    /// A limit ended it.
    pub truncated: u64,
    /// Its weights were too old.
    pub stale: u64,
    /// Cancelled, or lost with a process.
    pub cancelled: u64,
    /// Infrastructure failed.
    pub infra_failed: u64,
}

/// The name that serde gives a unit variant, such as `infra_failed`.
pub(crate) fn snake(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        other => format!("{other:?}"),
    }
}

impl Database {
    /// All committed steps, in order.
    pub fn committed_steps(&self) -> Result<Vec<CommittedStep>, RunError> {
        self.read(|transaction| {
            let mut query =
                transaction.prepare("SELECT step, checkpoint, next_position, metrics FROM steps ORDER BY step")?;
            let rows = query.query_map([], |row| {
                Ok(CommittedStep {
                    step: row.get(0)?,
                    checkpoint: row.get(1)?,
                    next_position: row.get(2)?,
                    metrics: row.get(3)?,
                })
            })?;
            rows.collect()
        })
    }

    /// The first position of a batch that was accepted before.
    pub fn batch_position(&self, batch: BatchId) -> Result<Option<(u64, u64)>, RunError> {
        self.read(|transaction| {
            let find = "SELECT first_position, next_position FROM batches WHERE batch = ?1";
            transaction.query_row(find, [batch.to_string()], |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
    }

    /// The groups of a batch with their trajectory files; the flag says whether the group is trainable.
    pub fn finished_groups(&self, batch: BatchId) -> Result<Vec<(GroupId, String, bool)>, RunError> {
        let rows: Vec<(String, String, String)> = self.read(|transaction| {
            let mut query = transaction.prepare(
                "SELECT group_id, file, outcome FROM groups WHERE batch = ?1 AND outcome IS NOT NULL ORDER BY group_id",
            )?;
            let rows = query.query_map([batch.to_string()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            rows.collect()
        })?;
        rows.into_iter()
            .map(|(group, file, outcome)| {
                let group = group.parse().map_err(|error| RunError::Database {
                    path: self.path.clone(),
                    reason: format!("groups: {error}"),
                })?;
                Ok((group, file, outcome == "trainable"))
            })
            .collect()
    }

    /// One more than the highest attempt of this batch ever issued; 0 when none was.
    pub fn next_attempt(&self, batch: BatchId) -> Result<u32, RunError> {
        let rollouts: Vec<String> = self.read(|transaction| {
            let mut query = transaction.prepare("SELECT rollout FROM rollouts WHERE group_id LIKE ?1")?;
            let rows = query.query_map([format!("{batch}-%")], |row| row.get(0))?;
            rows.collect()
        })?;
        let attempts = rollouts.iter().filter_map(|rollout| rollout.rsplit_once("-a")?.1.parse::<u32>().ok());
        Ok(attempts.max().map_or(0, |attempt| attempt + 1))
    }

    /// The first lease number that was never used.
    pub fn next_lease(&self) -> Result<LeaseId, RunError> {
        self.read(|transaction| {
            let next = transaction.query_row("SELECT coalesce(max(lease), 0) + 1 FROM leases", [], |row| row.get(0))?;
            Ok(LeaseId(next))
        })
    }

    /// How many rollouts ended how.
    pub fn rollout_totals(&self) -> Result<RolloutTotals, RunError> {
        let counts: Vec<(String, u64)> = self.read(|transaction| {
            let mut query = transaction
                .prepare("SELECT outcome, count(*) FROM rollouts WHERE outcome IS NOT NULL GROUP BY outcome")?;
            let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        })?;
        let count = |name: &str| counts.iter().find(|(outcome, _)| outcome == name).map_or(0, |(_, count)| *count);
        Ok(RolloutTotals {
            completed: count("completed"),
            truncated: count("truncated"),
            stale: count("stale"),
            cancelled: count("cancelled"),
            infra_failed: count("infra_failed"),
        })
    }

    /// How many attempts at a batch's rollouts infrastructure failed, those that were made again included.
    pub fn infra_failed(&self, batch: BatchId) -> Result<u64, RunError> {
        self.read(|transaction| {
            let count = "SELECT count(*) FROM rollouts WHERE group_id LIKE ?1 AND outcome = 'infra_failed'";
            transaction.query_row(count, [format!("{batch}-%")], |row| row.get(0))
        })
    }

    /// Tokens generated in all turns, and tokens trained on in all committed steps, as the steps count them: those of
    /// groups without a signal are not among them.
    pub fn token_totals(&self) -> Result<(u64, u64), RunError> {
        self.read(|transaction| {
            let generated = "SELECT coalesce(sum(new_tokens), 0) FROM turns";
            let trained = "SELECT coalesce(sum(json_extract(metrics, '$.train.tokens_trained')), 0) FROM steps";
            let number = |sql: &str| transaction.query_row(sql, [], |row| row.get(0));
            Ok((number(generated)?, number(trained)?))
        })
    }

    /// How many versions were published, and how long processes worked on the run, in milliseconds; `now_ms` counts for
    /// one that still works, the last event for one that was lost.
    pub fn versions_and_wall_ms(&self, now_ms: u64) -> Result<(u64, u64), RunError> {
        self.read(|transaction| {
            let versions = transaction.query_row("SELECT count(*) FROM weight_versions", [], |row| row.get(0))?;
            let wall_ms = transaction.query_row(
                "SELECT coalesce(sum(max(0, CASE
                     WHEN epoch = ?1 THEN ?2
                     WHEN ending = 'lost' THEN coalesce((SELECT max(at_ms) FROM events WHERE events.epoch = processes.epoch), started_ms)
                     ELSE ended_ms END - started_ms)), 0) FROM processes",
                rusqlite::params![self.epoch, now_ms],
                |row| row.get(0),
            )?;
            Ok((versions, wall_ms))
        })
    }

    /// A hash over the names, dates and bodies of all events, in order: equal for two runs exactly when they went alike.
    pub fn event_hash(&self) -> Result<u64, RunError> {
        self.read(|transaction| {
            let mut query = transaction.prepare("SELECT at_ms, body FROM events ORDER BY seq")?;
            let mut rows = query.query([])?;
            let mut hash = greenroom_core::Seed::new(0);
            while let Some(row) = rows.next()? {
                let (at_ms, body): (u64, String) = (row.get(0)?, row.get(1)?);
                hash = hash.child_numbered(&body, at_ms);
            }
            Ok(hash.value())
        })
    }
}
