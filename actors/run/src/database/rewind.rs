//! Going back: steps whose checkpoints are lost are undone, so that they can be made again.
//!
//! What was rolled out and measured stays in the history; it only counts no more as trained on. The batch of the first
//! step that is undone was made by weights that are still there, so it is trained on again as it is; later batches were made
//! by weights that will never be again, and are rolled out anew.

use greenroom_messages::{BatchId, GroupId, Purpose};
use rusqlite::{Transaction, params};

use super::Database;
use crate::RunError;

/// A group without an end, as it was before its first rollout.
const REOPEN: &str =
    "UPDATE groups SET outcome = NULL, reason = NULL, file = NULL, finished_ms = NULL WHERE group_id = ?1";

impl Database {
    /// Undoes every step after this one, all or nothing: afterwards the run is where it was when that step was committed.
    pub fn rewind_to(&self, step: u64) -> Result<(), RunError> {
        self.write(|transaction| {
            transaction.execute("DELETE FROM steps WHERE step > ?1", [step])?;
            transaction.execute("UPDATE rollouts SET trained_step = NULL WHERE trained_step > ?1", [step])?;
            transaction.execute("DELETE FROM weight_versions WHERE number > ?1", [step])?;
            for group in groups(transaction)?.iter().filter(|group| is_of_lost_weights(group.batch, step)) {
                transaction.execute(REOPEN, params![group.to_string()])?;
            }
            Ok(())
        })
    }

    /// Forgets how a group ended: what it ended with cannot be read any more.
    pub fn reopen_group(&self, group: GroupId) -> Result<(), RunError> {
        self.write(|transaction| transaction.execute(REOPEN, params![group.to_string()]).map(drop))
    }
}

/// Whether a batch was made by weights of steps after this one, or could have been.
fn is_of_lost_weights(batch: BatchId, step: u64) -> bool {
    batch.number > if batch.purpose == Purpose::Train { step + 1 } else { step }
}

/// All groups whose names are such.
fn groups(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<GroupId>> {
    let mut query = transaction.prepare("SELECT group_id FROM groups")?;
    let names = query.query_map([], |row| row.get::<_, String>(0))?;
    let names: Vec<String> = names.collect::<rusqlite::Result<_>>()?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lost_weights_made_is_made_again() {
        let lost = |purpose, number| is_of_lost_weights(BatchId { purpose, number }, 3);
        assert!(!lost(Purpose::Train, 4), "the next step's rollouts were made by step 3's weights at the latest");
        assert!(lost(Purpose::Train, 5));
        assert!(!lost(Purpose::Evaluate, 3) && lost(Purpose::Evaluate, 4));
        assert!(!lost(Purpose::HeldOut, 3) && lost(Purpose::HeldOut, 4));
    }
}
