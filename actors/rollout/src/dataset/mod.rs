//! Data sets: JSONL files with one task a line, in the sample schema of the SkyPilot example.
//!
//! A data set is read whole and checked before a run begins: every problem is one line with file, line and remedy, and a
//! task that any answer would solve (no tests, no grading command) is refused. The order of tasks is an endless sequence
//! of epochs, each shuffled anew, and a pure function of seed and position, so that a resumed run goes on where it was.

mod demonstrations;
pub mod make;
mod order;
mod row;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use greenroom_core::Seed;

use crate::RolloutError;

pub use demonstrations::load_demonstrations;
pub use order::task_at;
pub use task::{GradingLimits, Task, TaskGrading};

/// At most so many problems are shown; the rest is counted.
const PROBLEMS_SHOWN: usize = 20;

/// The text without the mark of byte order that some programs put before it.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The tasks of one data set, in the order of the file.
#[derive(Clone, Debug)]
pub struct Dataset {
    tasks: Vec<Arc<Task>>,
}

impl Dataset {
    /// Reads a JSONL file.
    pub fn load(path: &Path) -> Result<Self, RolloutError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| RolloutError::DatasetUnreadable { path: path.to_owned(), reason: error.to_string() })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads the text of a JSONL file; `name` stands for the file in messages.
    pub fn parse(text: &str, name: &str) -> Result<Self, RolloutError> {
        let text = without_mark(text);
        let mut tasks: Vec<Arc<Task>> = Vec::new();
        let mut first_lines = BTreeMap::new();
        let mut problems = Vec::new();
        for (line, row) in (1..).zip(text.lines()).filter(|(_, row)| !row.trim().is_empty()) {
            match row::read(row, line) {
                Ok(task) => {
                    if let Some(first) = first_lines.insert(task.id.clone(), line) {
                        problems.push(format!(
                            "{name}:{line}: instance_id {} is also on line {first}: give every task its own",
                            task.id
                        ));
                    }
                    tasks.push(Arc::new(task));
                }
                Err(found) => problems.extend(found.into_iter().map(|problem| format!("{name}:{line}: {problem}"))),
            }
        }
        if tasks.is_empty() && problems.is_empty() {
            problems.push(format!("{name}: has no tasks: write one JSON object a line"));
        }
        if problems.is_empty() {
            return Ok(Self { tasks });
        }
        let more = problems.len().saturating_sub(PROBLEMS_SHOWN);
        problems.truncate(PROBLEMS_SHOWN);
        if more > 0 {
            problems.push(format!("{name}: and {more} more"));
        }
        Err(RolloutError::DatasetInvalid { problems })
    }

    /// The tasks, in the order of the file.
    pub fn tasks(&self) -> &[Arc<Task>] {
        &self.tasks
    }

    /// The images that the tasks need, each with a pool of sandboxes.
    pub fn images(&self) -> BTreeSet<String> {
        self.tasks.iter().map(|task| task.image.clone()).collect()
    }

    /// `count` tasks from `first_position` on, in the order of this seed; see [`task_at`].
    pub fn tasks_from(&self, seed: Seed, shuffle: bool, first_position: u64, count: u32) -> Vec<Arc<Task>> {
        let mut order = order::Order::new(seed, self.tasks.len(), shuffle);
        let positions = first_position..first_position + u64::from(count);
        positions.map(|position| self.tasks[order.task_at(position)].clone()).collect()
    }
}

#[cfg(test)]
mod tests;
