//! The whole history as plain rows, for the invariants.

use rusqlite::{Row, Transaction};

use super::Database;
use crate::RunError;
use crate::check::{GroupRow, History, LeaseRow, RolloutRow};

impl Database {
    /// Reads the whole history.
    pub(crate) fn history(&self) -> Result<History, RunError> {
        self.read(|transaction| {
            let last = "SELECT epoch, coalesce(ending, '') FROM processes ORDER BY epoch DESC LIMIT 1";
            let (last_epoch, ending): (u64, String) =
                transaction.query_row(last, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(History {
                completed: ending == "completed",
                last_epoch,
                led_epoch: transaction.query_row(
                    "SELECT coalesce(max(epoch), 0) FROM events WHERE event = 'phase_changed'",
                    [],
                    |row| row.get(0),
                )?,
                rollouts: rows(
                    transaction,
                    "SELECT rollout, group_id, epoch, outcome, reward, trained_step FROM rollouts ORDER BY rollout",
                    |row| {
                        Ok(RolloutRow {
                            rollout: row.get(0)?,
                            group: row.get(1)?,
                            epoch: row.get(2)?,
                            outcome: row.get(3)?,
                            reward: row.get(4)?,
                            trained_step: row.get(5)?,
                        })
                    },
                )?,
                groups: rows(transaction, "SELECT group_id, batch, outcome FROM groups ORDER BY group_id", |row| {
                    Ok(GroupRow { group: row.get(0)?, batch: row.get(1)?, outcome: row.get(2)? })
                })?,
                batches: rows(
                    transaction,
                    "SELECT batch, groups, oldest_version FROM batches ORDER BY batch",
                    |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
                )?,
                steps: rows(transaction, "SELECT step, batch FROM steps ORDER BY step", |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?,
                leases: leases(transaction)?,
                turns: rows(transaction, "SELECT rollout, version FROM turns ORDER BY rollout, turn", |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?,
                serving: rows(
                    transaction,
                    "SELECT epoch, json_extract(body, '$.engine'), json_extract(body, '$.version') FROM events
                     WHERE event = 'engine_moved' AND json_extract(body, '$.state') = 'serving'
                         AND json_extract(body, '$.version') IS NOT NULL ORDER BY seq",
                    |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
                )?,
                issued: rows(
                    transaction,
                    "SELECT json_extract(body, '$.rollout') FROM events WHERE event = 'rollout_issued' ORDER BY seq",
                    |row| row.get(0),
                )?,
            })
        })
    }
}

fn rows<T>(
    transaction: &Transaction<'_>,
    sql: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    transaction.prepare(sql)?.query_map([], read)?.collect()
}

fn leases(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<LeaseRow>> {
    rows(transaction, "SELECT lease, epoch, sandbox, claimed_seq, ended_seq FROM leases ORDER BY lease", |row| {
        Ok(LeaseRow {
            lease: row.get(0)?,
            epoch: row.get(1)?,
            sandbox: row.get(2)?,
            claimed_seq: row.get(3)?,
            ended_seq: row.get(4)?,
        })
    })
}
