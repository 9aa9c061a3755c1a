//! Whether the run's database is still where it was: a process that has it open does not notice by itself.
//!
//! On failure nothing is ended: what was written is safe as long as the process runs, and can be copied from it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use greenroom_core::spawn_named;
use greenroom_messages::run::RunStatus;
use tokio::sync::watch;

use super::Talk;

/// Says so, once, when the file is gone or another one, as the run makes progress; ends with it.
pub(crate) fn watch(database: &Path, mut progress: watch::Receiver<RunStatus>, talk: Talk) {
    let database = database.to_owned();
    let first = inode(&database);
    spawn_named("run-database-watch", async move {
        while progress.changed().await.is_ok() {
            if inode(&database) == first {
                continue;
            }
            let path = database.display();
            tracing::error!(code = "GR0916", %path, "the run's database is gone while the run works on it");
            talk(&format!(
                "GR0916: {path} was removed or replaced while the run works on it: its history ends with this process \
                 (process {}), and the run cannot be gone on with. Copy the file from /proc/{}/fd before it ends",
                std::process::id(),
                std::process::id()
            ));
            return;
        }
    });
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn a_database_that_is_removed_under_a_run_is_missed_once() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("run.db");
        std::fs::write(&database, "x").unwrap();
        let (progress, receiver) = watch::channel(RunStatus::default());
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = said.clone();
        watch(&database, receiver, Arc::new(move |line: &str| heard.lock().unwrap().push(line.to_owned())));
        let step = async || {
            progress.send_replace(RunStatus::default());
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            said.lock().unwrap().len()
        };
        assert_eq!(step().await, 0);
        std::fs::remove_file(&database).unwrap();
        assert_eq!((step().await, step().await), (1, 1));
        assert!(said.lock().unwrap()[0].starts_with("GR0916: "));
        assert!(progress.is_closed(), "it ends with its word");
    }
}
