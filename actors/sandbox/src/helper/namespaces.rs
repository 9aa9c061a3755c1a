//! From a plain child of greenroom to the first process of a walled-in box.
//!
//! The order matters. As root, first everything that needs root happens in a private mount namespace (copying an image
//! that only root may read, handing the copy to the box's user), then root is given up for good: a box must never run as
//! the host's user 0, even without capabilities, because that user owns the switches under /proc/sys. From there on root
//! and an ordinary user go the same way: an own user namespace in which we may make all the others.

use std::process::ExitCode;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Uid};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::UnshareFlags;

use super::mounts::Owner;
use super::protocol::{BoxSetup, Channel};
use super::{SetupFailure, calls, confine, copy_tree, mounts, network, serve};
use crate::config::Isolation;

/// The user and group that a box sees itself as.
pub(crate) const INSIDE_ID: u32 = 1000;

type Failed = (SetupFailure, Channel);

/// Makes the box and serves it to its end. On failure the channel comes back, to say so.
pub(crate) fn enter(setup: BoxSetup, channel: Channel) -> Result<ExitCode, Failed> {
    match setup.isolation {
        Isolation::Namespaces => enter_namespaces(setup, channel),
        Isolation::None => enter_plainly(setup, channel),
    }
}

fn enter_namespaces(setup: BoxSetup, channel: Channel) -> Result<ExitCode, Failed> {
    if let Err(failure) = prepare(&setup) {
        return Err((failure, channel));
    }
    // SAFETY: the process has one thread only (checked at its start), so the child may do anything the parent may.
    // Starting the program again instead would need it and all its libraries to be readable by the box's user.
    #[allow(unsafe_code)]
    let forked = unsafe { nix::unistd::fork() };
    match forked {
        Err(errno) => {
            let detail = format!("cannot start the first process: {errno}");
            Err((SetupFailure { stage: "start", detail, namespaces_refused: false, lasting: false }, channel))
        }
        Ok(ForkResult::Parent { child }) => {
            // The parent must not hold the socket open, or greenroom would not see the box end.
            drop(channel);
            Ok(wait_for(child))
        }
        Ok(ForkResult::Child) => {
            if let Err(failure) = become_init(&setup) {
                return Err((failure, channel));
            }
            Ok(serve::serve(&setup, channel))
        }
    }
}

fn wait_for(child: nix::unistd::Pid) -> ExitCode {
    loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, code)) => return ExitCode::from(code as u8),
            Ok(WaitStatus::Signaled(..)) => return ExitCode::from(137),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return ExitCode::from(70),
        }
    }
}

/// Everything up to the fork: file tree and namespaces.
fn prepare(setup: &BoxSetup) -> Result<(), SetupFailure> {
    // The kernel's out-of-memory killer shall take a box before it takes greenroom.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut tree_is_built = false;
    if rustix::process::geteuid().is_root() {
        if can_become(setup.box_user_id) {
            // Without the right to mount, as in many containers, the tree is built later, by the box's user.
            if unshare(UnshareFlags::NEWNS).is_ok() {
                make_mounts_private()?;
                mounts::build(setup, Some(Owner { user_id: setup.box_user_id, group_id: setup.box_user_id }))?;
                tree_is_built = true;
            }
            give_up_root(setup.box_user_id)?;
        } else if is_global_root() {
            let detail = format!("greenroom is root, and user {} for the box does not exist here", setup.box_user_id);
            return Err(SetupFailure { stage: "user", detail, namespaces_refused: false, lasting: false });
        }
    }
    let (user_id, group_id) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let wanted = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS;
    unshare(wanted).map_err(|errno| refused("namespaces", errno.to_string()))?;
    write_map("/proc/self/setgroups", "deny")?;
    write_map("/proc/self/uid_map", &format!("{INSIDE_ID} {user_id} 1"))?;
    write_map("/proc/self/gid_map", &format!("{INSIDE_ID} {group_id} 1"))?;
    make_mounts_private()?;
    if !tree_is_built {
        mounts::build(setup, None)?;
    }
    Ok(())
}

// `rustix::thread::unshare` is deprecated for CLONE_FILES in threads only; nix's is the same call.
fn unshare(flags: UnshareFlags) -> Result<(), nix::errno::Errno> {
    nix::sched::unshare(nix::sched::CloneFlags::from_bits_truncate(flags.bits() as i32))
}

fn make_mounts_private() -> Result<(), SetupFailure> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(SetupFailure::at("private mounts"))
}

fn write_map(path: &'static str, content: &str) -> Result<(), SetupFailure> {
    std::fs::write(path, content).map_err(|error| refused("user map", format!("{path}: {error}")))
}

fn refused(stage: &'static str, detail: String) -> SetupFailure {
    SetupFailure { stage, detail, namespaces_refused: true, lasting: false }
}

/// Whether user 0 here is the machine's user 0 (and not that of a container with a user namespace).
fn is_global_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().take(2).eq(["0", "0"])
}

/// Whether a user id exists in the user namespace that we were started in.
fn can_become(user_id: u32) -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        matches!(numbers[..], [inside, _, count] if (inside..inside + count).contains(&u64::from(user_id)))
    })
}

fn give_up_root(user_id: u32) -> Result<(), SetupFailure> {
    let failed = |errno: nix::errno::Errno| SetupFailure {
        stage: "user",
        detail: format!("cannot become user {user_id}: {errno}"),
        namespaces_refused: false,
        lasting: false,
    };
    let (user, group) = (Uid::from_raw(user_id), Gid::from_raw(user_id));
    nix::unistd::setgroups(&[]).map_err(failed)?;
    nix::unistd::setresgid(group, group, group).map_err(failed)?;
    nix::unistd::setresuid(user, user, user).map_err(failed)?;
    // Changing the user made our own /proc entries root's; the maps are written through them.
    set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(SetupFailure::at("user"))
}

/// In the new pid namespace: what needs it, then no way back.
fn become_init(setup: &BoxSetup) -> Result<(), SetupFailure> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(SetupFailure::at("parent"))?;
    rustix::process::setsid().map(drop).or_else(ignore_not_permitted).map_err(SetupFailure::at("session"))?;
    rustix::system::sethostname(b"greenroom-box").map_err(SetupFailure::at("host name"))?;
    network::raise_loopback()?;
    mounts::enter()?;
    confine::forbid_nested_namespaces();
    confine::give_up_privileges()?;
    confine::limit_resources(&setup.limits, true)?;
    confine::become_unreadable()?;
    calls::refuse_calls()
}

fn ignore_not_permitted(errno: Errno) -> Result<(), Errno> {
    if errno == Errno::PERM { Ok(()) } else { Err(errno) }
}

/// Without walls: an own session, an own copy of the work tree, rlimits.
fn enter_plainly(setup: BoxSetup, channel: Channel) -> Result<ExitCode, Failed> {
    match prepare_plainly(&setup) {
        Ok(()) => Ok(serve::serve(&setup, channel)),
        Err(failure) => Err((failure, channel)),
    }
}

fn prepare_plainly(setup: &BoxSetup) -> Result<(), SetupFailure> {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    rustix::process::setsid().map(drop).or_else(ignore_not_permitted).map_err(SetupFailure::at("session"))?;
    nix::sys::prctl::set_child_subreaper(true).map_err(|errno| SetupFailure {
        stage: "subreaper",
        detail: errno.to_string(),
        namespaces_refused: false,
        lasting: false,
    })?;
    for part in ["work", "home"] {
        let path = setup.box_dir.join(part);
        std::fs::create_dir_all(&path).map_err(SetupFailure::io("work tree", path.display().to_string()))?;
    }
    if let Some(source) = &setup.source_dir {
        copy_tree::copy_tree(source, &setup.box_dir.join("work"), None)
            .map_err(SetupFailure::io("work tree", "copying the image"))?;
    }
    rustix::thread::set_no_new_privs(true).map_err(SetupFailure::at("privileges"))?;
    confine::limit_resources(&setup.limits, false)
}
