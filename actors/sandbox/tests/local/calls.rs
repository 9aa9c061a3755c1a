//! System calls that no command of a box may make, asked for from within; and that ordinary work goes on without them.

use crate::support::*;

/// Makes each call by its number, and prints those that are let through. Arguments are such that without a filter most
/// would end otherwise than with EPERM (1): bad addresses, sizes of 0, descriptors that are not open.
const CALLS: &str = r#"
import ctypes, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
x86 = dict(keyctl=250, add_key=248, request_key=249, bpf=321, perf_event_open=298, userfaultfd=323, io_uring_setup=425,
    io_uring_enter=426, io_uring_register=427, mount=165, umount2=166, unshare=272, setns=308, pivot_root=155, chroot=161,
    move_mount=429, fsopen=430, fspick=433, open_tree=428, mount_setattr=442, name_to_handle_at=303, kexec_load=246,
    init_module=175, delete_module=176, finit_module=313, ptrace_vm=310, quotactl=179, reboot=169, swapon=167, acct=163,
    syslog=103, fanotify_init=300, kcmp=312, settimeofday=164, modify_ldt=154, iopl=172, clone3=435)
arm = dict(keyctl=219, add_key=217, request_key=218, bpf=280, perf_event_open=241, userfaultfd=282, io_uring_setup=425,
    io_uring_enter=426, io_uring_register=427, mount=40, umount2=39, unshare=97, setns=268, pivot_root=41, chroot=51,
    move_mount=429, fsopen=430, fspick=433, open_tree=428, mount_setattr=442, name_to_handle_at=264, kexec_load=104,
    init_module=105, delete_module=106, finit_module=273, ptrace_vm=270, quotactl=60, reboot=142, swapon=224, acct=89,
    syslog=116, fanotify_init=262, kcmp=272, settimeofday=170, clone3=435)
for name, number in (x86 if platform.machine() == "x86_64" else arm).items():
    ctypes.set_errno(0)
    result = libc.syscall(number, ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(-1))
    if result != -1 or ctypes.get_errno() not in (1, 38):
        print(name, result, os.strerror(ctypes.get_errno()))
for family, kind, protocol in [(40, 1, 0), (17, 3, 0), (38, 5, 0), (16, 3, 12), (16, 3, 16), (16, 3, 15), (29, 3, 1), (31, 3, 0)]:
    try:
        socket.socket(family, kind, protocol)
        print("socket", family, protocol, "was made")
    except PermissionError:
        pass
    except OSError as error:
        print("socket", family, protocol, error)
new_user = libc.syscall(56 if platform.machine() == "x86_64" else 220, ctypes.c_long(0x10000011), 0, 0, 0, 0)
if new_user == 0:
    os._exit(0)
if new_user != -1 or ctypes.get_errno() != 1:
    print("clone with CLONE_NEWUSER", new_user, os.strerror(ctypes.get_errno()))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("Seccomp:")])
"#;

/// What the tasks of a run do all day.
const WORK: &str = r#"
set -e
git init -q . && git config user.name t && git config user.email t@example.invalid
echo 'int main(void) { return 0; }' > a.c
if command -v cc > /dev/null; then cc a.c -o a && ./a; fi
git add -A && git commit -q -m a && git gc -q
python3 - <<'END'
import asyncio, multiprocessing, os, socket, subprocess, tempfile, threading, mmap, selectors
def double(number): return 2 * number
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(double, range(10)) == list(range(0, 20, 2))
thread = threading.Thread(target=print, args=("thread",), kwargs={"flush": True}); thread.start(); thread.join()
assert subprocess.run(["true"], close_fds=True, start_new_session=True).returncode == 0
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    await asyncio.open_connection(*server.sockets[0].getsockname())
    process = await asyncio.create_subprocess_exec("echo", "child"); await process.wait()
asyncio.run(main())
socket.socketpair(); socket.getaddrinfo("127.0.0.1", 80); socket.if_nameindex()
mmap.mmap(-1, 4096); selectors.DefaultSelector(); os.sched_getaffinity(0); os.getrandom(8); os.memfd_create("m")
END
"#;

#[tokio::test]
async fn calls_for_administrators_are_refused_from_within() {
    let site = site(config());
    let sandbox = site.make_box().await;
    sandbox.put_files(vec![file("calls.py", CALLS)]).await.unwrap();
    let (output, returncode) = run(&*sandbox, "python3 calls.py").await;
    assert_eq!((output.as_str(), returncode), ("['2']\n", 0));
}

#[tokio::test]
async fn ordinary_work_goes_on() {
    let site = site(config());
    let sandbox = site.make_box().await;
    let (output, returncode) = run(&*sandbox, WORK).await;
    assert_eq!((output.as_str(), returncode), ("thread\nchild\n", 0));
}
