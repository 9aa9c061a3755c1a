//! The directory of a node's own, and its lock: two processes must not work in one.
//!
//! The kernel takes the lock away when the process is gone, however it went. On failure: [`NodeError::StateDir`] names the
//! setting and what to do.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use greenroom_core::Deadline;

use super::{NodeConfig, NodeError};

/// The file in it that is locked.
const LOCK_FILE: &str = "lock";
/// How long a node that was started again waits for the end of the one before.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// The directory, held by this node until this is dropped.
pub(super) struct StateDir {
    _lock: File,
}

impl NodeConfig {
    /// Makes the directory of the node's own, if need be.
    ///
    /// # Errors
    /// [`NodeError::StateDir`] (GR0928).
    pub fn make_state_dir(&self) -> Result<(), NodeError> {
        fs::create_dir_all(&self.state_dir).map_err(|error| unfit(&self.state_dir, &error))
    }
}

impl StateDir {
    /// Takes the directory for a node, as soon as one that is just ending lets it go.
    pub(super) async fn enter(node: &NodeConfig) -> Result<Self, NodeError> {
        node.make_state_dir()?;
        let (path, deadline) = (&node.state_dir, Deadline::after(PATIENCE));
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK_FILE));
        let lock = opened.map_err(|error| unfit(path, &error))?;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { _lock: lock }),
                Err(TryLockError::Error(error)) => return Err(unfit(path, &error)),
                Err(TryLockError::WouldBlock) if deadline.has_passed() => {
                    let reason = "another node works in it: give every node a state_dir of its own, or end that one";
                    return Err(NodeError::StateDir { path: path.clone(), reason: reason.to_owned() });
                }
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOOK).await,
            }
        }
    }
}

fn unfit(path: &Path, error: &io::Error) -> NodeError {
    let reason = format!("it cannot be made or written ({error}): name a directory in which this node may write");
    NodeError::StateDir { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state_dir: &Path) -> NodeConfig {
        let text = "run = \"r\"\nconfig = [\"r.toml\"]\nstate_dir = \"s\"\n[cluster]\nnode = \"lead\"\n";
        NodeConfig { state_dir: state_dir.to_owned(), ..toml::from_str(text).unwrap() }
    }

    #[tokio::test(start_paused = true)]
    async fn one_node_works_in_a_directory_and_the_next_waits_for_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(&dir.path().join("state"));
        let first = StateDir::enter(&node).await.unwrap();
        let refused = StateDir::enter(&node).await.err().unwrap();
        assert_eq!(refused.code(), "GR0928");
        let words = format!("state_dir {}: another node works in it", node.state_dir.display());
        assert!(refused.to_string().starts_with(&words), "{refused}");
        let ends = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            drop(first);
        };
        let (next, ()) = tokio::join!(StateDir::enter(&node), ends);
        assert!(next.is_ok());
    }

    #[tokio::test]
    async fn a_place_that_cannot_be_one_is_named_with_the_key() {
        for place in ["/proc/x", "/etc/hostname"] {
            let refused = StateDir::enter(&node(Path::new(place))).await.err().unwrap().to_string();
            assert!(refused.starts_with(&format!("state_dir {place}: ")) && refused.contains("may write"), "{refused}");
        }
    }
}
