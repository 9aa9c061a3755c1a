//! Looking into `run.db` while the run goes on: a connection of its own that can only read.
//!
//! A query may come from anybody who may look, so that it is bounded on every side: it can read this database's tables and
//! nothing else, it has a time and a number of rows, and what it holds in memory is limited. On failure the run notices
//! nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_messages::steer::{Cell, EventSight, LeaseSight, RolloutSight, SqlAnswer};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OpenFlags};
use tokio::time::Instant;

use super::database_error;
use crate::RunError;

/// How long a query may take.
const QUERY_TIME: Duration = Duration::from_secs(5);
/// How many rows an answer may have.
const MOST_ROWS: usize = 1_000;
/// How many bytes an answer may have.
const MOST_BYTES: usize = 4 << 20;
/// How large one value may be, bytes.
const MOST_VALUE_BYTES: i32 = 16 << 20;

/// Looks into a run's database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DatabaseReader {
    path: PathBuf,
}

impl DatabaseReader {
    /// Looks into this database, which is opened for each query.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// What the database says to one query that only reads: at most 1000 rows and 4 MiB, within 5 s. Blocks.
    ///
    /// # Errors
    /// [`RunError::Database`] for a query that cannot be understood, takes too long, or would do more than read.
    pub fn ask(&self, sql: &str) -> Result<SqlAnswer, RunError> {
        self.query(sql, &[], MOST_ROWS)
    }

    /// Events with larger numbers than `after`, or the last ones; in their order. Blocks.
    ///
    /// # Errors
    /// [`RunError::Database`].
    pub fn events(&self, after: Option<u64>, limit: u32) -> Result<Vec<EventSight>, RunError> {
        let limit = (limit as usize).min(MOST_ROWS);
        let columns = "SELECT seq, at_ms, event, body FROM events";
        let answer = match after {
            Some(after) => {
                let sql = format!("{columns} WHERE seq > ?1 ORDER BY seq");
                self.query(&sql, &[Value::Integer(after as i64)], limit)?
            }
            None => {
                let sql = format!("SELECT * FROM ({columns} ORDER BY seq DESC LIMIT ?1) ORDER BY seq");
                self.query(&sql, &[Value::Integer(limit as i64)], limit)?
            }
        };
        let event = |row: &Vec<Cell>| EventSight {
            seq: number(row, 0),
            at_ms: number(row, 1),
            event: text(row, 2).unwrap_or_default(),
            body: text(row, 3).unwrap_or_default(),
        };
        Ok(answer.rows.iter().map(event).collect())
    }

    /// Rollouts that are under way, the oldest first; or, with a state or an outcome, the newest ones of that. Blocks.
    ///
    /// # Errors
    /// [`RunError::Database`].
    pub fn rollouts(
        &self,
        state: Option<&str>,
        older_than_ms: u64,
        now_ms: u64,
    ) -> Result<Vec<RolloutSight>, RunError> {
        let (which, order) = match state {
            None => ("ended_ms IS NULL AND ?1 = ?1", "issued_ms, rollout"),
            Some(_) => ("(state = ?1 OR outcome = ?1)", "issued_ms DESC, rollout"),
        };
        let sql = format!(
            "SELECT rollout, state, task, ?2 - issued_ms,
                 (SELECT count(*) FROM turns t WHERE t.rollout = r.rollout),
                 (SELECT engine FROM turns t WHERE t.rollout = r.rollout ORDER BY turn DESC LIMIT 1), outcome, reward
             FROM rollouts r WHERE {which} AND issued_ms <= ?3 ORDER BY {order}"
        );
        let values = [
            Value::Text(state.unwrap_or_default().to_owned()),
            Value::Integer(now_ms as i64),
            Value::Integer(now_ms.saturating_sub(older_than_ms) as i64),
        ];
        let answer = self.query(&sql, &values, MOST_ROWS)?;
        let rollout = |row: &Vec<Cell>| RolloutSight {
            rollout: text(row, 0).unwrap_or_default(),
            state: text(row, 1).unwrap_or_default(),
            task: text(row, 2).unwrap_or_default(),
            age_ms: number(row, 3),
            turns: number(row, 4),
            engine: text(row, 5),
            outcome: text(row, 6),
            reward: real(row, 7),
        };
        Ok(answer.rows.iter().map(rollout).collect())
    }

    /// How many rollouts are under way in which state. Blocks.
    ///
    /// # Errors
    /// [`RunError::Database`].
    pub fn rollout_states(&self) -> Result<Vec<(String, u32)>, RunError> {
        let sql = "SELECT state, count(*) FROM rollouts WHERE ended_ms IS NULL GROUP BY state ORDER BY state";
        let answer = self.query(sql, &[], MOST_ROWS)?;
        Ok(answer.rows.iter().map(|row| (text(row, 0).unwrap_or_default(), number(row, 1) as u32)).collect())
    }

    /// Sandboxes that are claimed, the oldest first. Blocks.
    ///
    /// # Errors
    /// [`RunError::Database`].
    pub fn leases(&self, now_ms: u64) -> Result<Vec<LeaseSight>, RunError> {
        let sql = "SELECT lease, rollout, image, sandbox, ?1 - claimed_ms, warm, waited_ms FROM leases
                   WHERE ended_ms IS NULL ORDER BY claimed_ms, lease";
        let answer = self.query(sql, &[Value::Integer(now_ms as i64)], MOST_ROWS)?;
        let lease = |row: &Vec<Cell>| LeaseSight {
            lease: number(row, 0),
            rollout: text(row, 1).unwrap_or_default(),
            image: text(row, 2).unwrap_or_default(),
            sandbox: text(row, 3).unwrap_or_default(),
            age_ms: number(row, 4),
            warm: number(row, 5) != 0,
            waited_ms: number(row, 6),
        };
        Ok(answer.rows.iter().map(lease).collect())
    }

    /// Asks with values, at most so many rows.
    pub(super) fn query(&self, sql: &str, values: &[Value], rows: usize) -> Result<SqlAnswer, RunError> {
        self.try_query(sql, values, rows).map_err(|error| match error {
            rusqlite::Error::SqliteFailure(failure, _) if failure.code == rusqlite::ErrorCode::OperationInterrupted => {
                let reason = format!("the query took longer than {} s", QUERY_TIME.as_secs());
                RunError::Database { path: self.path.clone(), reason }
            }
            rusqlite::Error::SqliteFailure(failure, text)
                if failure.code == rusqlite::ErrorCode::AuthorizationForStatementDenied =>
            {
                let text = text.unwrap_or_default();
                let reason = format!("only a query that reads this database's tables may be asked ({text})");
                RunError::Database { path: self.path.clone(), reason }
            }
            other => database_error(&self.path, &other),
        })
    }

    fn try_query(&self, sql: &str, values: &[Value], most_rows: usize) -> rusqlite::Result<SqlAnswer> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(QUERY_TIME)?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)?;
        connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        connection.authorizer(Some(only_reads));
        let until = Instant::now() + QUERY_TIME;
        connection.progress_handler(1_000, Some(move || Instant::now() > until));
        let mut statement = connection.prepare(sql)?;
        let columns: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
        let mut answer = SqlAnswer { columns, ..SqlAnswer::default() };
        let width = answer.columns.len();
        let mut bytes = 0;
        let mut rows = statement.query(rusqlite::params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            if answer.rows.len() == most_rows || bytes > MOST_BYTES {
                answer.more = true;
                break;
            }
            let cells =
                (0..width).map(|index| row.get_ref(index).map(cell)).collect::<rusqlite::Result<Vec<Cell>>>()?;
            let size = |cell: &Cell| if let Cell::Text(text) = cell { text.len() } else { 8 };
            bytes += cells.iter().map(size).sum::<usize>();
            answer.rows.push(cells);
        }
        Ok(answer)
    }
}

/// What a query may do. The connection cannot write anyway; this keeps it from other files, too.
fn only_reads(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if !function_name.eq_ignore_ascii_case("load_extension") => {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Integer(number),
        ValueRef::Real(number) => Cell::Real(number),
        ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Cell::Text(format!("<{} bytes>", bytes.len())),
    }
}

/// A number of a row; 0 where there is none, or a negative one.
pub(super) fn number(row: &[Cell], index: usize) -> u64 {
    match row.get(index) {
        Some(Cell::Integer(number)) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    }
}

pub(super) fn text(row: &[Cell], index: usize) -> Option<String> {
    match row.get(index) {
        Some(Cell::Text(text)) => Some(text.clone()),
        _ => None,
    }
}

pub(super) fn real(row: &[Cell], index: usize) -> Option<f64> {
    match row.get(index) {
        Some(Cell::Real(number)) => Some(*number),
        Some(Cell::Integer(number)) => Some(*number as f64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::Clock;
    use greenroom_messages::RunId;

    use super::*;
    use crate::Database;

    #[test]
    fn a_query_can_read_the_tables_and_do_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.db");
        let _database = Database::open(&path, &RunId::new("mine"), 7, "", Clock::system()).unwrap();
        let reader = DatabaseReader::new(&path);
        let answer = reader.ask("SELECT id, seed, NULL AS none, 0.5 AS half FROM run").unwrap();
        assert_eq!(answer.columns, ["id", "seed", "none", "half"]);
        assert_eq!(answer.rows, [[Cell::Text("mine".into()), Cell::Integer(7), Cell::Null, Cell::Real(0.5)]]);
        let other = dir.path().join("other.db");
        let attach = format!("ATTACH '{}' AS other", other.display());
        let refused = [
            "DELETE FROM run",
            "DROP TABLE run",
            "CREATE TABLE x (y)",
            "PRAGMA journal_mode = DELETE",
            "VACUUM",
            "BEGIN IMMEDIATE",
            attach.as_str(),
            "SELECT load_extension('x')",
        ];
        for sql in refused {
            let error = reader.ask(sql).unwrap_err();
            assert!(matches!(error, RunError::Database { .. }), "{sql}: {error}");
        }
        assert!(!other.exists());
        assert_eq!(reader.ask("SELECT count(*) FROM run").unwrap().rows, [[Cell::Integer(1)]]);
    }

    #[test]
    fn an_answer_is_bounded_in_rows_bytes_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.db");
        let _database = Database::open(&path, &RunId::new("mine"), 7, "", Clock::system()).unwrap();
        let reader = DatabaseReader::new(&path);
        let numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";
        let many = reader.ask(&format!("{numbers} SELECT i FROM n")).unwrap();
        assert!(many.more && many.rows.len() == MOST_ROWS);
        let large = reader.ask(&format!("{numbers} SELECT hex(zeroblob(1 << 20)) FROM n")).unwrap();
        assert!(large.more && large.rows.len() <= 3, "{} rows", large.rows.len());
        assert!(reader.ask("SELECT zeroblob(1 << 30)").is_err(), "one value would take a gigabyte");
        let endless = reader.ask(&format!("{numbers} SELECT count(*) FROM n")).unwrap_err();
        assert!(endless.to_string().contains("longer than 5 s"), "{endless}");
    }
}
