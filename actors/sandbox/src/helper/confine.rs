//! Giving up: privileges, resources, and the possibility of being looked into.

use nix::sys::resource::{Resource, setrlimit};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use super::SetupFailure;
use crate::config::BoxLimits;

/// No further user namespaces inside the box: they would give a box capabilities over new mounts and networks, which is
/// where kernel bugs are found. Needs the box's own /proc and the capabilities that are given up next. A kernel that
/// does not know the switch leaves nested namespaces possible; they still end with the box.
pub(crate) fn forbid_nested_namespaces() {
    let _ = std::fs::write("/proc/sys/user/max_user_namespaces", "0");
}

/// Drops every capability from every set, for good.
pub(crate) fn give_up_privileges() -> Result<(), SetupFailure> {
    let failed = SetupFailure::at("privileges");
    set_no_new_privs(true).map_err(&failed)?;
    clear_ambient_capability_set().map_err(&failed)?;
    for bit in 0..64 {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            // Beyond the kernel's last capability.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(failed(errno)),
        }
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).map_err(&failed)
}

/// Init cannot be traced, nor its memory, descriptors or environment read, by the commands it runs.
pub(crate) fn become_unreadable() -> Result<(), SetupFailure> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(SetupFailure::at("privileges"))
}

/// Limits that every process of the box inherits. `counts_own_processes`: whether RLIMIT_NPROC counts this box alone (in a
/// user namespace, Linux ≥ 5.14) and may therefore be set.
pub(crate) fn limit_resources(limits: &BoxLimits, counts_own_processes: bool) -> Result<(), SetupFailure> {
    let mut wanted = vec![
        (Resource::RLIMIT_CORE, 0),
        // Private writable memory of one process; the sum over the box is watched. Not the address space: runtimes
        // reserve far more of it than they use.
        (Resource::RLIMIT_DATA, limits.memory_bytes),
        (Resource::RLIMIT_FSIZE, limits.file_size_bytes),
        (Resource::RLIMIT_NOFILE, limits.open_files),
        (Resource::RLIMIT_MEMLOCK, 64 << 10),
        (Resource::RLIMIT_MSGQUEUE, 64 << 10),
    ];
    if counts_own_processes {
        wanted.push((Resource::RLIMIT_NPROC, limits.processes));
    }
    for (resource, limit) in wanted {
        lower(resource, limit)?;
    }
    Ok(())
}

fn lower(resource: Resource, limit: u64) -> Result<(), SetupFailure> {
    let failed = |errno: nix::errno::Errno| SetupFailure {
        stage: "limits",
        detail: format!("{resource:?} = {limit}: {errno}"),
        namespaces_refused: false,
        lasting: false,
    };
    let (_, hard) = nix::sys::resource::getrlimit(resource).map_err(failed)?;
    let limit = limit.min(hard);
    setrlimit(resource, limit, limit).map_err(failed)
}
