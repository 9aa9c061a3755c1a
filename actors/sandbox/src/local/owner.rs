//! Who owns a box directory: a process that is told apart from a later one with the same number.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::provider::Labels;

const RECORD_FILE: &str = "owner.json";

/// A process, once and for all: process numbers come again, start times of a boot do not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessMark {
    pub(crate) process_id: u32,
    /// Clock ticks from boot to the process's start: field 22 of /proc/PID/stat.
    pub(crate) started_ticks: u64,
    pub(crate) boot_id: String,
}

impl ProcessMark {
    /// The mark of a living process.
    pub(crate) fn of(process_id: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{process_id}/stat")).ok()?;
        // The name in parentheses may hold blanks; the field after the last one is number 3.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        if fields.clone().next()? == "Z" {
            return None;
        }
        let started_ticks = fields.nth(19)?.parse().ok()?;
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        Some(Self { process_id, started_ticks, boot_id })
    }

    /// Whether that very process still lives.
    pub(crate) fn lives(&self) -> bool {
        Self::of(self.process_id).as_ref() == Some(self)
    }
}

/// What stands in a box directory's owner file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BoxRecord {
    /// The greenroom that made the box.
    pub(crate) owner: ProcessMark,
    /// The box's helper, once started.
    pub(crate) helper: Option<ProcessMark>,
    pub(crate) labels: Labels,
}

impl BoxRecord {
    pub(crate) fn write(&self, box_dir: &Path) -> io::Result<()> {
        let half = box_dir.join("owner.json.new");
        fs::write(&half, serde_json::to_vec(self)?)?;
        fs::rename(half, box_dir.join(RECORD_FILE))
    }

    pub(crate) fn read(box_dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(box_dir.join(RECORD_FILE))?)?)
    }
}
