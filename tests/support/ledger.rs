//! What `run.db` says, asked by SQL of the tests' own: they trust neither the run nor its own check.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

/// A run's database, opened to read.
pub struct Ledger(Connection);

impl Ledger {
    pub fn open(run: &Path) -> Self {
        Self::try_open(run).unwrap()
    }

    /// As [`open`](Self::open), where the run may not have come so far.
    pub fn try_open(run: &Path) -> rusqlite::Result<Self> {
        // not read-only: the log of a killed process must be folded in
        let connection = Connection::open_with_flags(run.join("run.db"), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.busy_timeout(std::time::Duration::from_secs(10))?;
        Ok(Self(connection))
    }

    /// A column of texts (numbers come as texts too).
    pub fn column(&self, sql: &str) -> Vec<String> {
        self.try_column(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub fn try_column(&self, sql: &str) -> rusqlite::Result<Vec<String>> {
        let mut statement = self.0.prepare(sql)?;
        let rows = statement.query_map([], |row| {
            Ok(match row.get_ref(0)? {
                rusqlite::types::ValueRef::Null => String::new(),
                rusqlite::types::ValueRef::Integer(number) => number.to_string(),
                rusqlite::types::ValueRef::Real(number) => number.to_string(),
                other => other.as_str().unwrap_or_default().to_owned(),
            })
        })?;
        rows.collect()
    }

    fn none(&self, sql: &str, promise: &str) {
        let found = self.column(sql);
        assert!(found.is_empty(), "{promise}, but: {found:?}");
    }

    /// The promises about what a finished run of this size trained on, whatever happened to its processes.
    pub fn assert_nothing_lost_or_trained_twice(&self, steps: u64, groups: u64, samples: u64) {
        let all_steps: Vec<String> = (0..=steps).map(|step| step.to_string()).collect();
        assert_eq!(self.column("SELECT step FROM steps ORDER BY step"), all_steps, "steps are contiguous");
        let trained = "SELECT rollout FROM rollouts WHERE trained_step IS NOT NULL";
        self.none(
            "SELECT rollout FROM rollouts WHERE trained_step IS NOT NULL GROUP BY rollout HAVING count(*) > 1",
            "a rollout is trained at most once",
        );
        self.none(
            "SELECT group_id || substr(rollout, instr(rollout, '-s'), 4) AS sample FROM rollouts
             WHERE trained_step IS NOT NULL GROUP BY sample HAVING count(*) > 1",
            "a sample is trained at most once, by whatever attempt",
        );
        self.none(
            "SELECT r.rollout FROM rollouts r JOIN groups g USING (group_id) LEFT JOIN steps s ON s.step = r.trained_step
             WHERE r.trained_step IS NOT NULL AND (s.batch IS NULL OR s.batch <> g.batch)",
            "a rollout is trained in its own batch's step",
        );
        self.none(
            "SELECT rollout FROM rollouts WHERE trained_step IS NOT NULL
             AND (outcome NOT IN ('completed', 'truncated') OR reward IS NULL)",
            "only what was graded is trained on",
        );
        self.none("SELECT rollout FROM rollouts WHERE outcome IS NULL", "every rollout ended");
        self.none(
            "SELECT g.group_id FROM groups g JOIN steps s ON s.batch = g.batch
             WHERE g.outcome IS NULL OR g.outcome NOT IN ('trainable', 'dropped')",
            "every group of a trained batch finished",
        );
        let per_batch = format!(
            "SELECT s.batch FROM steps s WHERE s.step > 0
             AND (SELECT count(*) FROM groups g WHERE g.batch = s.batch) <> {groups}"
        );
        self.none(&per_batch, "no batch is short of a group");
        let whole = format!(
            "SELECT r.rollout || ' ' || coalesce(r.outcome, '') || ': ' || coalesce(r.detail, '')
             FROM groups g JOIN steps s ON s.batch = g.batch JOIN rollouts r ON r.group_id = g.group_id
             WHERE g.outcome = 'trainable' AND r.trained_step IS NULL
             AND (SELECT count(*) FROM rollouts r WHERE r.group_id = g.group_id AND r.trained_step = s.step) <> {samples}"
        );
        self.none(&whole, "every sample of a group is trained on, for none failed");
        assert_eq!(self.column(trained).len() as u64, steps * groups * samples);
        self.none("SELECT lease FROM leases WHERE ended_ms IS NULL", "every lease ended");
    }

    /// What the run was doing when it was last heard of.
    pub fn phase(&self) -> String {
        let sql =
            "SELECT json_extract(body, '$.phase') FROM events WHERE event = 'phase_changed' ORDER BY seq DESC LIMIT 1";
        self.try_column(sql).ok().and_then(|found| found.into_iter().next()).unwrap_or_else(|| "start".to_owned())
    }
}
