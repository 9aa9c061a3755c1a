//! `run.db`: the history of a run in SQLite, so that a person can ask it with SQL.
//!
//! One connection, in WAL mode, shared behind a lock by the Conductor (commits) and the Journal (events). Every method is
//! one transaction. A crash at any moment leaves the last finished transaction.

mod commit;
mod events;
mod history;
mod hold;
mod look;
mod query;
mod rewind;
mod story;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greenroom_core::{Clock, in_place};
use greenroom_messages::RunId;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use crate::RunError;

pub use commit::StepCommit;
pub use look::DatabaseReader;
pub(crate) use query::snake;
pub use query::{CommittedStep, RolloutTotals};

/// The run database; cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    path: PathBuf,
    connection: Arc<Mutex<Connection>>,
    clock: Clock,
    epoch: u64,
}

impl Database {
    /// Creates the database of a new run, or opens that of an existing one, and begins a new epoch in it.
    pub fn open(path: &Path, run: &RunId, seed: u64, config: &str, clock: Clock) -> Result<Self, RunError> {
        let connection = Connection::open(path).map_err(|error| database_error(path, &error))?;
        Self::begin(connection, path, run, seed, config, clock)
    }

    /// A database in memory, for the simulation.
    pub fn in_memory(run: &RunId, seed: u64, clock: Clock) -> Result<Self, RunError> {
        let path = Path::new(":memory:");
        let connection = Connection::open_in_memory().map_err(|error| database_error(path, &error))?;
        Self::begin(connection, path, run, seed, "", clock)
    }

    /// Opens an existing database for looking only: no epoch begins.
    pub fn open_to_read(path: &Path) -> Result<Self, RunError> {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
        let connection = Connection::open_with_flags(path, flags).map_err(|error| database_error(path, &error))?;
        let connection = Arc::new(Mutex::new(connection));
        Ok(Self { path: path.to_owned(), connection, clock: Clock::system(), epoch: 0 })
    }

    fn begin(
        connection: Connection,
        path: &Path,
        run: &RunId,
        seed: u64,
        config: &str,
        clock: Clock,
    ) -> Result<Self, RunError> {
        prepare(&connection).map_err(|error| database_error(path, &error))?;
        let mut database =
            Self { path: path.to_owned(), connection: Arc::new(Mutex::new(connection)), clock, epoch: 0 };
        database.check_run(run, seed)?;
        let now_ms = clock.now_ms();
        database.epoch = database.write(|transaction| {
            transaction.execute(
                "INSERT OR IGNORE INTO run (id, seed, created_ms, config) VALUES (?1, ?2, ?3, ?4)",
                params![run.as_str(), seed as i64, now_ms, config],
            )?;
            let epoch =
                transaction.query_row("SELECT coalesce(max(epoch), 0) + 1 FROM processes", [], |row| row.get(0))?;
            let process = params![epoch, std::process::id(), now_ms];
            transaction.execute("INSERT INTO processes (epoch, pid, started_ms) VALUES (?1, ?2, ?3)", process)?;
            Ok(epoch)
        })?;
        Ok(database)
    }

    /// Refuses the history of another run, whose positions and random draws are not this one's. A new database has none.
    fn check_run(&self, run: &RunId, seed: u64) -> Result<(), RunError> {
        let known: Vec<(String, i64)> = self.write(|transaction| {
            let mut rows = transaction.prepare("SELECT id, seed FROM run")?;
            rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })?;
        match known.into_iter().find(|(id, known_seed)| id != run.as_str() || *known_seed as u64 != seed) {
            None => Ok(()),
            Some((found, found_seed)) => Err(RunError::OtherRun {
                path: self.path.clone(),
                found,
                found_seed: found_seed as u64,
                run: run.to_string(),
                seed,
            }),
        }
    }

    /// The number of this process among those that worked on the run, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Notes that this process ended of its own will, and how.
    pub fn end_process(&self, ending: &str) -> Result<(), RunError> {
        let now_ms = self.clock.now_ms();
        self.write(|transaction| {
            transaction.execute(
                "UPDATE processes SET ended_ms = ?1, ending = ?2 WHERE epoch = ?3",
                params![now_ms, ending, self.epoch],
            )?;
            transaction.execute("DELETE FROM held WHERE what = ?1", [hold::STOP])?;
            Ok(())
        })
    }

    fn write<T>(&self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T, RunError> {
        self.in_transaction(TransactionBehavior::Immediate, work)
    }

    fn read<T>(&self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T, RunError> {
        self.in_transaction(TransactionBehavior::Deferred, work)
    }

    fn in_transaction<T>(
        &self,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, RunError> {
        let result = in_place(|| {
            let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction_with_behavior(behavior)?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        });
        result.map_err(|error| database_error(&self.path, &error))
    }
}

/// Sets a connection up. `synchronous = NORMAL` in WAL mode: a killed process loses nothing; a power cut may lose the last
/// transactions, never their order.
fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")?;
    connection.execute_batch(include_str!("schema.sql"))
}

fn database_error(path: &Path, error: &rusqlite::Error) -> RunError {
    RunError::Database { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_goes_on_as_the_run_that_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.db");
        let open = |run: &str, seed: u64| Database::open(&path, &RunId::new(run), seed, "", Clock::system());
        assert_eq!(open("mine", 7).unwrap().epoch(), 1);
        for (run, seed) in [("other", 7), ("mine", 8)] {
            let error = open(run, seed).unwrap_err();
            assert_eq!(error.code(), "GR0209", "{error}");
            assert!(error.to_string().contains("mine with seed 7"), "{error}");
        }
        assert_eq!(open("mine", 7).unwrap().epoch(), 2, "who was refused has left nothing");
    }
}
