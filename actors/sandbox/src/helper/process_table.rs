//! Who lives in the box, what they hold, and how to end them all.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use tokio::time::Instant;

use crate::config::Isolation;

/// One living process of the box, init excepted.
#[derive(Clone, Copy, Debug)]
struct Inhabitant {
    pid: i32,
    parent: i32,
    /// Resident memory that is no file's: anonymous, and shared memory.
    own_bytes: u64,
}

/// Sums over the box.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Census {
    pub(crate) processes: u64,
    pub(crate) own_bytes: u64,
}

/// The processes of the box, told apart from the host's by the pid namespace or, without one, by descent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessTable {
    isolation: Isolation,
}

impl ProcessTable {
    pub(crate) fn new(isolation: Isolation) -> Self {
        Self { isolation }
    }

    /// Counts the box's processes and their memory. Pages that forked processes still share count once for each here, so
    /// a caller that is about to act on the sum asks [`Self::proportional_bytes`] first.
    pub(crate) fn census(&self) -> Census {
        self.inhabitants().iter().fold(Census::default(), |sum, one| Census {
            processes: sum.processes + 1,
            own_bytes: sum.own_bytes + one.own_bytes,
        })
    }

    /// The box's memory with shared pages divided among their holders: exact but for processes that end while it is
    /// summed, and slow.
    pub(crate) fn proportional_bytes(&self) -> u64 {
        self.inhabitants().iter().map(proportional_bytes_of).sum()
    }

    /// Memory that no process needs to have mapped: files in memory without a name, and System V segments.
    pub(crate) fn unmapped_bytes(&self) -> u64 {
        let files: BTreeMap<u64, u64> = self.inhabitants().iter().flat_map(|one| nameless_files(one.pid)).collect();
        let segments = match self.isolation {
            Isolation::Namespaces => unattached_segment_bytes(),
            // The machine's own table tells nothing about a box.
            Isolation::None => 0,
        };
        files.values().sum::<u64>() + segments
    }

    /// Kills every process of the box except init, and reaps them, for at most two seconds. Gives the exit status of
    /// `awaited` when it was among them.
    pub(crate) fn kill_all(&self, awaited: Option<Pid>) -> Option<WaitStatus> {
        let give_up = Instant::now() + Duration::from_secs(2);
        let mut status = None;
        loop {
            match self.isolation {
                // From a namespace's first process this reaches exactly the others of the namespace, all at once.
                Isolation::Namespaces => drop(kill(nix::unistd::Pid::from_raw(-1), Signal::SIGKILL)),
                Isolation::None => {
                    for one in self.inhabitants() {
                        let _ = kill(nix::unistd::Pid::from_raw(one.pid), Signal::SIGKILL);
                    }
                }
            }
            let (found, more) = reap(awaited);
            status = status.or(found);
            if !more || Instant::now() >= give_up {
                return status;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn inhabitants(&self) -> Vec<Inhabitant> {
        let own_pid = std::process::id() as i32;
        let Ok(listing) = fs::read_dir("/proc") else { return Vec::new() };
        let mut all: Vec<Inhabitant> = listing
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != own_pid)
            .filter_map(read_inhabitant)
            .collect();
        if self.isolation == Isolation::None {
            keep_descendants(&mut all, own_pid);
        }
        all
    }
}

/// Reaps every child that has ended. Gives the status of `awaited` if it was one, and whether children are left.
pub(crate) fn reap(awaited: Option<Pid>) -> (Option<WaitStatus>, bool) {
    let mut found = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(None) => return (found, true),
            Ok(Some((pid, status))) if Some(pid) == awaited => found = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(_) => return (found, false),
        }
    }
}

fn keep_descendants(all: &mut Vec<Inhabitant>, ancestor: i32) {
    let mut family = vec![ancestor];
    loop {
        let known = family.len();
        for one in all.iter() {
            if family.contains(&one.parent) && !family.contains(&one.pid) {
                family.push(one.pid);
            }
        }
        if family.len() == known {
            break;
        }
    }
    all.retain(|one| family.contains(&one.pid));
}

fn read_inhabitant(pid: i32) -> Option<Inhabitant> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut one = Inhabitant { pid, parent: 0, own_bytes: 0 };
    for line in status.lines() {
        let Some((field, value)) = line.split_once(':') else { continue };
        match field {
            "State" if value.trim_start().starts_with('Z') => return None,
            "PPid" => one.parent = value.trim().parse().ok()?,
            "RssAnon" | "RssShmem" => one.own_bytes += kibibytes(value),
            _ => {}
        }
    }
    Some(one)
}

fn proportional_bytes_of(one: &Inhabitant) -> u64 {
    let rollup = match fs::read_to_string(format!("/proc/{}/smaps_rollup", one.pid)) {
        Ok(rollup) => rollup,
        // A program may forbid this look; then each of its shared pages counts in full.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return one.own_bytes,
        // It has just ended.
        Err(_) => return 0,
    };
    let fields = rollup.lines().filter_map(|line| line.split_once(':'));
    fields.filter(|(field, _)| matches!(*field, "Pss_Anon" | "Pss_Shmem")).map(|(_, value)| kibibytes(value)).sum()
}

/// A value of /proc such as ` 1234 kB`, in bytes.
fn kibibytes(value: &str) -> u64 {
    value.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Files in memory without a name that a process holds open: inode and bytes of each.
fn nameless_files(pid: i32) -> Vec<(u64, u64)> {
    let Ok(listing) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let nameless = listing.filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_nameless = fs::read_link(&path).ok()?.to_str()?.starts_with("/memfd:");
        let about = is_nameless.then(|| fs::metadata(&path).ok()).flatten()?;
        Some((about.ino(), about.blocks() * 512))
    });
    nameless.collect()
}

/// Bytes of the System V segments of the namespace that no process has attached; attached ones count there. Of the
/// table's columns the 7th is the number of attachments and the 15th the resident bytes.
fn unattached_segment_bytes() -> u64 {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let resident = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_unattached = *columns.get(6)? == "0";
        is_unattached.then(|| columns.get(14)?.parse::<u64>().ok()).flatten()
    });
    resident.sum()
}
