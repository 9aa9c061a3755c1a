//! Looks whether the box as a whole keeps its limits; rlimits see single processes only.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::process_table::ProcessTable;
use super::protocol::BoxSetup;
use crate::config::{BoxLimits, HOME_INSIDE, Isolation, WorkTreeStore};

/// Memory outside of processes is rare; finding it means looking at every open file.
const UNMAPPED_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Which limit of the whole box was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitHit {
    Memory,
    Processes,
    Disk,
}

/// Looks at memory and processes each time, at the disk as often as the time that a look takes allows.
pub(crate) struct Watch {
    limits: BoxLimits,
    /// Directories whose content counts as disk; empty where the file system has the limit itself.
    disk: Vec<PathBuf>,
    next_disk_look: Instant,
    unmapped_bytes: u64,
    next_unmapped_look: Instant,
}

impl Watch {
    pub(crate) fn new(setup: &BoxSetup) -> Self {
        let disk = match (setup.isolation, setup.work_tree_store) {
            (Isolation::None, _) => vec![setup.box_dir.join("work"), setup.box_dir.join("home")],
            (Isolation::Namespaces, WorkTreeStore::Disk) => vec![setup.workdir.clone(), PathBuf::from(HOME_INSIDE)],
            (Isolation::Namespaces, WorkTreeStore::Memory) => Vec::new(),
        };
        Self {
            limits: setup.limits.clone(),
            disk,
            next_disk_look: Instant::now(),
            unmapped_bytes: 0,
            next_unmapped_look: Instant::now(),
        }
    }

    pub(crate) fn limits(&self) -> &BoxLimits {
        &self.limits
    }

    /// The first limit found exceeded.
    pub(crate) fn look(&mut self, processes: &ProcessTable, now: Instant) -> Option<LimitHit> {
        let census = processes.census();
        // A little above the rlimit: where that works, fork fails before anything is killed.
        if census.processes > self.limits.processes + 8 {
            return Some(LimitHit::Processes);
        }
        if now >= self.next_unmapped_look {
            self.next_unmapped_look = now + UNMAPPED_LOOK_EVERY;
            self.unmapped_bytes = processes.unmapped_bytes();
        }
        // The exact look also looks anew at what is unmapped: it may have been freed since.
        let limit = self.limits.memory_bytes;
        let exceeds = || processes.proportional_bytes() + processes.unmapped_bytes() > limit;
        // Twice, because shares grow while the sum is made when holders of shared pages end just then.
        if census.own_bytes + self.unmapped_bytes > limit && exceeds() && exceeds() {
            return Some(LimitHit::Memory);
        }
        if !self.disk.is_empty() && now >= self.next_disk_look {
            let used: u64 = self.disk.iter().map(|directory| bytes_below(directory)).sum();
            let took = now.elapsed();
            self.next_disk_look = Instant::now() + (took * 20).max(Duration::from_millis(200));
            if used > self.limits.disk_bytes {
                return Some(LimitHit::Disk);
            }
        }
        None
    }
}

/// Blocks held by a tree, links not followed; what vanishes while we look counts nothing.
fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(about) if about.is_dir() => about.blocks() * 512 + bytes_below(&entry.path()),
            Ok(about) => about.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
