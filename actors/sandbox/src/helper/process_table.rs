//! Who lives in the box, what they hold, and how to end them all.

use std::fs;
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
    /// Resident memory that is not shared with files or shared memory, in bytes.
    private_bytes: u64,
}

/// Sums over the box.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Census {
    pub(crate) processes: u64,
    pub(crate) private_bytes: u64,
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
            private_bytes: sum.private_bytes + one.private_bytes,
        })
    }

    /// The box's anonymous memory with shared pages divided among their holders: exact, and slow.
    pub(crate) fn proportional_bytes(&self) -> u64 {
        let of = |one: &Inhabitant| proportional_anonymous_bytes(one.pid).unwrap_or(one.private_bytes);
        self.inhabitants().iter().map(of).sum()
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
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the fields after its last parenthesis are state, parent, …
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    if state == "Z" {
        return None;
    }
    let pages = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = pages.split_whitespace().skip(1).map(|word| word.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    let private_bytes = resident.saturating_sub(shared) * rustix::param::page_size() as u64;
    Some(Inhabitant { pid, parent, private_bytes })
}

fn proportional_anonymous_bytes(pid: i32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
