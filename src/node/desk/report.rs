//! How this node stands, for the controller's desk: its disk, its certificate, the end of its log.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use greenroom_core::{Reply, spawn_blocking_named};
use greenroom_messages::node::{Drained, NodeReport};

use crate::shell::redact::redact;

/// The most of a log that is told, bytes.
const MOST_LOG_BYTES: u64 = 1 << 20;

/// Answers with how this node stands. Files are looked at where that holds up nobody.
pub(in crate::node) fn report(
    state_dir: &Path,
    certificate_ends_at_ms: Option<u64>,
    drained: Option<Drained>,
    log_bytes: u64,
    reply: Reply<NodeReport>,
) {
    let state_dir = state_dir.to_owned();
    spawn_blocking_named("node-report", move || {
        let disk = rustix::fs::statvfs(&state_dir).ok();
        let log = tail(&state_dir.join("greenroom.log"), log_bytes.min(MOST_LOG_BYTES));
        reply.send(NodeReport {
            pid: std::process::id(),
            state_dir: state_dir.display().to_string(),
            disk_free_bytes: disk.as_ref().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
            disk_bytes: disk.as_ref().map(|disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
            certificate_ends_at_ms,
            drained,
            log: redact(&log),
        });
    });
}

/// The last bytes of a file as text, from the beginning of a line on; empty where there is no such file.
pub(super) fn tail(path: &Path, bytes: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let skipped = length.saturating_sub(bytes);
        file.seek(SeekFrom::Start(skipped))?;
        let mut tail = Vec::new();
        file.take(bytes).read_to_end(&mut tail)?;
        let begins = if skipped == 0 { 0 } else { tail.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        Ok(tail.split_off(begins))
    };
    read().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::tail;

    #[test]
    fn the_end_of_a_log_begins_with_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "first\nsecond\nthird\n").unwrap();
        assert_eq!(tail(&path, 100), "first\nsecond\nthird\n");
        assert_eq!(tail(&path, 10), "third\n");
        assert_eq!(tail(&path, 0), "");
        assert_eq!(tail(&dir.path().join("none"), 10), "");
    }
}
