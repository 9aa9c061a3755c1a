//! What greenroom processes that are gone have left behind, and its removal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::owner::BoxRecord;
use super::remove_tree::remove_tree;
use crate::provider::{BoxSummary, Labels, SweepReport};

/// The boxes below `directory` that carry all of `labels`. A directory without a readable owner file has no labels and
/// no living owner: its maker died between making the two.
pub(crate) fn list(directory: &Path, labels: &Labels) -> io::Result<Vec<BoxSummary>> {
    let mut found = Vec::new();
    for (box_id, box_dir) in box_dirs(directory)? {
        let record = BoxRecord::read(&box_dir).ok();
        let owner_lives = record.as_ref().is_some_and(|record| record.owner.lives());
        let own_labels = record.map(|record| record.labels).unwrap_or_default();
        if labels.iter().all(|(name, value)| own_labels.get(name) == Some(value)) {
            found.push(BoxSummary { box_id, labels: own_labels, owner_lives });
        }
    }
    Ok(found)
}

/// Kills what is left of boxes whose owner is gone, and removes their directories.
pub(crate) fn sweep(directory: &Path) -> io::Result<SweepReport> {
    let mut report = SweepReport::default();
    for (box_id, box_dir) in box_dirs(directory)? {
        let record = BoxRecord::read(&box_dir).ok();
        if record.as_ref().is_some_and(|record| record.owner.lives()) {
            report.kept.push(box_id);
            continue;
        }
        report.killed_processes += kill_left_processes(&box_id, record.as_ref());
        remove_tree(&box_dir)?;
        report.removed.push(box_id);
    }
    Ok(report)
}

fn box_dirs(directory: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            all.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
    }
    all.sort();
    Ok(all)
}

/// The helper first: with it goes its namespace. Then, for boxes without walls, whoever carries the box's name in its
/// environment or works in its directory; repeated until nobody is found, for at most two seconds.
fn kill_left_processes(box_id: &str, record: Option<&BoxRecord>) -> u32 {
    let mut killed = 0;
    if let Some(helper) = record.and_then(|record| record.helper.as_ref())
        && helper.lives()
        && kill(Pid::from_raw(helper.process_id as i32), Signal::SIGKILL).is_ok()
    {
        killed += 1;
    }
    for _ in 0..200 {
        let left = processes_of(box_id);
        if left.is_empty() {
            break;
        }
        for pid in left {
            killed += u32::from(kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    killed
}

fn processes_of(box_id: &str) -> Vec<i32> {
    let marker = format!("GREENROOM_BOX_ID={box_id}");
    let Ok(listing) = fs::read_dir("/proc") else { return Vec::new() };
    listing
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes())
        })
        .collect()
}
