//! System calls that no process of a box may make: a seccomp filter, inherited by every command.
//!
//! A deny list after Docker's default profile: what administers the machine, what makes or moves mounts and namespaces, and
//! the young or rarely used entrances in which kernel bugs are found. Without privileges most of them fail anyhow; the
//! filter takes away the code behind them. Ordinary work (compilers, interpreters, git, threads, loopback sockets) makes none
//! of these calls. A refused call gives EPERM; `clone3`, whose flags lie in memory that a filter cannot read, gives ENOSYS, and
//! C libraries then call `clone`, whose flags are looked at.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

use super::SetupFailure;

/// Refused whatever their arguments.
const DENIED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
];

/// What makes a namespace, among the flags of `clone`.
const NAMESPACES: &[libc::c_int] = &[
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// Families of sockets that a box may have. Of netlink only the protocol that lists interfaces, which C libraries ask.
const SOCKETS: &[libc::c_int] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Numbers from here on are the x32 calls of an x86-64 kernel: the same calls past the filter.
const FIRST_X32: u32 = 0x4000_0000;

/// Refuses the calls from here on, for this process and all that it starts.
pub(crate) fn refuse_calls() -> Result<(), SetupFailure> {
    let failed = |detail: String| SetupFailure { stage: "seccomp", detail, namespaces_refused: false, lasting: true };
    let program = program().map_err(|error| failed(error.to_string()))?;
    seccompiler::apply_filter(&program).map_err(|error| failed(format!("the kernel takes no filter: {error}")))
}

fn program() -> Result<BpfProgram, BackendError> {
    let filter = SeccompFilter::new(
        rules()?,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    let mut program = no_such_calls();
    program.extend(BpfProgram::try_from(filter)?);
    Ok(program)
}

fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    let condition =
        |argument, operator, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value);
    let namespace = |flag: &libc::c_int| {
        let flag = *flag as u32 as u64;
        SeccompRule::new(vec![condition(0, SeccompCmpOp::MaskedEq(flag), flag)?])
    };
    rules.insert(libc::SYS_clone, NAMESPACES.iter().map(namespace).collect::<Result<_, _>>()?);
    let others = SOCKETS.iter().map(|family| condition(0, SeccompCmpOp::Ne, *family as u64));
    let netlink = [
        condition(0, SeccompCmpOp::Eq, libc::AF_NETLINK as u64)?,
        condition(2, SeccompCmpOp::Ne, libc::NETLINK_ROUTE as u64)?,
    ];
    let sockets = vec![SeccompRule::new(others.collect::<Result<_, _>>()?)?, SeccompRule::new(netlink.to_vec())?];
    rules.insert(libc::SYS_socket, sockets);
    Ok(rules)
}

/// ENOSYS for `clone3` and for every x32 call, before the rules.
fn no_such_calls() -> BpfProgram {
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as libc::c_ushort, jt, jf, k };
    let load_number = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    let is_x32 = instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, 0, FIRST_X32);
    let is_clone3 = instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_clone3 as u32);
    let no_such_call = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    vec![load_number, is_x32, is_clone3, no_such_call]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_can_be_made_for_this_machine() {
        assert!(program().unwrap().len() > DENIED.len());
    }
}
