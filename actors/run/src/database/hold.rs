//! What a person holds of the run.

use greenroom_messages::steer::Held;
use rusqlite::params;

use super::Database;
use crate::RunError;

/// What stands in the table for a stop that is to come.
pub(super) const STOP: &str = "stop";

impl Database {
    /// Notes that something is held, or is not any more.
    pub fn hold(&self, what: Held, held: bool) -> Result<(), RunError> {
        self.mark(what.name(), held)
    }

    /// What is held.
    pub fn held(&self) -> Result<Vec<Held>, RunError> {
        let mut held = Vec::new();
        for what in [Held::Rollouts, Held::Training] {
            if self.is_marked(what.name())? {
                held.push(what);
            }
        }
        Ok(held)
    }

    /// Notes that a person has told the run to stop after its step, or has not: whoever leads it next does so, until it is
    /// done. What ends the process is no such word.
    pub fn note_stop(&self, told: bool) -> Result<(), RunError> {
        self.mark(STOP, told)
    }

    /// Whether a person has told the run to stop after its step, and it has not yet.
    pub fn is_to_stop(&self) -> Result<bool, RunError> {
        self.is_marked(STOP)
    }

    fn mark(&self, what: &str, marked: bool) -> Result<(), RunError> {
        let now_ms = self.clock.now_ms();
        self.write(|transaction| {
            if marked {
                let insert = "INSERT OR IGNORE INTO held (what, since_ms) VALUES (?1, ?2)";
                transaction.execute(insert, params![what, now_ms])?;
            } else {
                transaction.execute("DELETE FROM held WHERE what = ?1", [what])?;
            }
            Ok(())
        })
    }

    fn is_marked(&self, what: &str) -> Result<bool, RunError> {
        self.read(|transaction| transaction.prepare("SELECT 1 FROM held WHERE what = ?1")?.exists([what]))
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::Clock;
    use greenroom_messages::RunId;

    use super::*;

    #[test]
    fn a_stop_is_known_to_the_next_process_until_the_run_has_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Database::open(&dir.path().join("run.db"), &RunId::new("r"), 0, "", Clock::system()).unwrap();
        let first = open();
        assert!(!first.is_to_stop().unwrap());
        first.note_stop(true).unwrap();
        first.note_stop(true).unwrap();
        drop(first);
        let second = open();
        assert!(second.is_to_stop().unwrap() && second.held().unwrap().is_empty());
        second.end_process("stopped").unwrap();
        drop(second);
        assert!(!open().is_to_stop().unwrap(), "what was told is done");
    }

    #[test]
    fn what_is_held_is_known_to_the_next_process_until_it_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Database::open(&dir.path().join("run.db"), &RunId::new("r"), 0, "", Clock::system()).unwrap();
        let first = open();
        assert_eq!(first.held().unwrap(), []);
        first.hold(Held::Training, true).unwrap();
        first.hold(Held::Rollouts, true).unwrap();
        first.hold(Held::Rollouts, true).unwrap();
        assert_eq!(open().held().unwrap(), [Held::Rollouts, Held::Training]);
        first.hold(Held::Rollouts, false).unwrap();
        assert_eq!(open().held().unwrap(), [Held::Training]);
    }
}
