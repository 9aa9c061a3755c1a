//! What a node keeps of its run's end: the file `ended` in its `state_dir`.
//!
//! It is written when the controller has told the end. A node that is started again after its run was completed, and finds
//! no controller, ends as the run did instead of waiting; whoever started a node's process can tell that its end was the
//! run's. Invariant: it never keeps a node from a run that still wants it: where a controller answers, that counts.

use std::path::Path;

use greenroom_messages::node::RunOver;
use serde::{Deserialize, Serialize};

/// The file in a node's `state_dir`.
pub(crate) const FILE: &str = "ended";

/// An end, and the settings of the run that ended: with others it is another run.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    over: RunOver,
    settings: String,
}

/// Writes down how the run with these settings ended.
pub(super) fn write(state_dir: &Path, over: &RunOver, settings: &str) {
    let (place, part) = (state_dir.join(FILE), state_dir.join(format!("{FILE}.part")));
    let record = Record { over: over.clone(), settings: settings.to_owned() };
    let text = serde_json::to_string_pretty(&record).unwrap_or_default();
    if let Err(error) = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &place)) {
        tracing::warn!(%error, place = %place.display(), "the run's end is not written down");
    }
}

fn record(state_dir: &Path) -> Option<Record> {
    let text = crate::files::read_text("the node's", &state_dir.join(FILE), crate::files::Limit::SMALL).ok()?;
    serde_json::from_str(&text).ok()
}

/// The exit status with which the run ended, as this node was told last.
pub(crate) fn status(state_dir: &Path) -> Option<u8> {
    record(state_dir).map(|record| record.over.status)
}

/// How the run with these settings ended, if it has nothing left to do.
pub(super) fn read(state_dir: &Path, settings: &str) -> Option<RunOver> {
    let record = record(state_dir)?;
    (record.over.status == 0 && record.settings == settings).then_some(record.over)
}

/// Forgets an end: the run goes on.
pub(crate) fn forget(state_dir: &Path) {
    // one that is not there is forgotten
    let _ = std::fs::remove_file(state_dir.join(FILE));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_completed_run_with_the_same_settings_has_nothing_left_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let over = |outcome: &str, status| RunOver { outcome: outcome.to_owned(), status };
        assert_eq!(read(dir.path(), "steps = 2"), None);
        write(dir.path(), &over("stopped", 3), "steps = 2");
        assert_eq!(read(dir.path(), "steps = 2"), None);
        write(dir.path(), &over("completed", 0), "steps = 2");
        assert_eq!(read(dir.path(), "steps = 2"), Some(over("completed", 0)));
        assert_eq!(read(dir.path(), "steps = 3"), None);
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(read(dir.path(), "steps = 2"), None);
        forget(dir.path());
        forget(dir.path());
        assert!(!dir.path().join(FILE).exists());
    }
}
