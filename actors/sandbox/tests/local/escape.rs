//! Attempts to get out of a box, or to harm the machine from inside: each ends as a plain observation.

use std::io::Read;
use std::net::TcpListener;
use std::time::Duration;

use greenroom_sandbox::{LocalProviderConfig, WorkTreeStore};

use crate::support::*;

#[tokio::test]
async fn there_is_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let site = site(config());
    let sandbox = site.make_box().await;
    let connect = format!("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 2)'");
    let (output, returncode) = run(&*sandbox, &connect).await;
    assert!(returncode == 1 && output.contains("Connection refused"), "{output}");
    assert!(listener.accept().is_err(), "the host's listener was reached");
    let (output, returncode) =
        run(&*sandbox, "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'").await;
    assert!(returncode == 1 && output.contains("gaierror"), "{output}");
    let (output, returncode) =
        run(&*sandbox, "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'").await;
    assert!(returncode == 1 && output.contains("unreachable"), "{output}");
    let own = "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 0)); \
               socket.create_connection(s.getsockname()); print(\"own loopback\")'";
    assert_eq!(run(&*sandbox, own).await, ("own loopback\n".to_owned(), 0));
}

#[tokio::test]
async fn nothing_outside_can_be_seen_or_written() {
    let site = site(config());
    let host_file = site.dir.path().join("host-file");
    std::fs::write(&host_file, "untouched").unwrap();
    let sandbox = site.make_box().await;
    let host_path = host_file.display();
    for command in [
        format!("echo x > {host_path}"),
        format!("echo x > ../..{host_path}"),
        "echo x > /etc/hosts".into(),
        "echo x > /usr/bin/x".into(),
        "echo x > /x".into(),
        "rm -rf /usr/bin/env".into(),
        "echo x > /proc/sys/kernel/core_pattern".into(),
        "echo 1 > /proc/sys/vm/drop_caches".into(),
        "echo c > /proc/sysrq-trigger".into(),
        "mount -t tmpfs none /tmp".into(),
        "mount -o remount,rw /usr".into(),
        "unshare --user --map-root-user true".into(),
        "mknod /tmp/disk b 254 0".into(),
        "chroot / true".into(),
        "ls /root /run /var /sys /boot /home/*/.ssh /work".into(),
        "cat /etc/shadow".into(),
        "dd if=/dev/mem count=1".into(),
    ] {
        let (output, returncode) = run(&*sandbox, &command).await;
        assert!(returncode != 0, "{command}: {output}");
    }
    assert_eq!(std::fs::read_to_string(&host_file).unwrap(), "untouched");
    let command = format!("ls {}; kill -9 {}", site.dir.path().display(), std::process::id());
    assert!(run(&*sandbox, &command).await.1 != 0, "the test still runs, too");
    let (processes, _) = run(&*sandbox, "ls /proc | grep -c '^[0-9]'").await;
    assert!(processes.trim().parse::<u32>().unwrap() <= 5, "{processes} processes are seen");
}

#[tokio::test]
async fn the_box_s_first_process_cannot_be_harmed() {
    let site = site(config());
    let sandbox = site.make_box().await;
    assert_eq!(run(&*sandbox, "kill -9 1; kill -STOP 1; kill -TERM 1; echo still").await.0, "still\n");
    let attach = "python3 -c 'import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))'";
    assert_eq!(run(&*sandbox, attach).await.0, "-1\n");
    for command in ["cat /proc/1/environ", "ls /proc/1/fd/", "cat /proc/1/mem", "ls /proc/1/root/"] {
        let (output, returncode) = run(&*sandbox, command).await;
        assert!(returncode != 0 && output.contains("denied"), "{command}: {output}");
    }
    assert_eq!(run(&*sandbox, "echo fine").await.0, "fine\n");
}

#[tokio::test]
async fn a_fork_bomb_is_contained() {
    let site = site(config());
    let sandbox = site.make_box().await;
    let outcome = sandbox.exec(within(2000, "f() { f | f & }; f")).await.unwrap();
    assert!(outcome.elapsed_ms < 6000, "{outcome:?}");
    let bomb = "python3 -c 'import os, time\nfor i in range(500):\n  if os.fork() == 0: os.close(1); os.close(2); time.sleep(60)'";
    let (output, returncode) = run(&*sandbox, bomb).await;
    assert!(returncode == 1 && output.contains("BlockingIOError"), "{output}");
    // While the box is full nothing can be started in it; what is started is an observation all the same, and its
    // deadline empties the box.
    let told = exception(&*sandbox, within(100, "sleep 9; sleep 9")).await;
    assert!(told.0 == "TimeoutExpired" || told.0 == "BlockingIOError", "{told:?}");
    assert_eq!(run(&*sandbox, "echo fine").await.0, "fine\n");
}

#[tokio::test]
async fn a_memory_bomb_is_contained() {
    let site = site(config());
    let sandbox = site.make_box().await;
    let (output, returncode) = run(&*sandbox, "python3 -c 'x = bytearray(400 << 20)'").await;
    assert!(returncode == 1 && output.contains("MemoryError"), "{output}");
    let family = "for i in 1 2 3 4; do python3 -c 'import time; x = b\"x\" * (90 << 20); time.sleep(15)' & done; wait";
    let (kind, message, _) = exception(&*sandbox, request(family)).await;
    assert_eq!(kind, "MemoryLimitExceeded", "{message}");
    for outside_of_rlimits in [
        "import mmap, time; m = mmap.mmap(-1, 400 << 20)\nfor i in range(0, 400 << 20, 4096): m[i] = 1\ntime.sleep(15)",
        "import os, time; f = [os.memfd_create(\"x\") for i in range(8)]\nfor x in f: os.write(x, b\"x\" * (60 << 20))\ntime.sleep(15)",
    ] {
        let (kind, message, _) = exception(&*sandbox, request(&format!("python3 -c '{outside_of_rlimits}'"))).await;
        assert_eq!(kind, "MemoryLimitExceeded", "{message}: {outside_of_rlimits}");
    }
    // The same memory shared by forked processes counts once.
    let shared = "python3 -c 'import os, time\nx = b\"x\" * (90 << 20)\nfor i in range(4): os.fork() or (time.sleep(0.3), os._exit(0))\n\
                  for i in range(4): os.wait()\nprint(\"shared\")'";
    assert_eq!(run(&*sandbox, shared).await, ("shared\n".to_owned(), 0));
    assert_eq!(run(&*sandbox, "echo fine").await.0, "fine\n");
}

#[tokio::test]
async fn ten_gibibytes_of_output_are_read_and_the_middle_is_dropped() {
    let site = site(config());
    let sandbox = site.make_box().await;
    let outcome = sandbox.exec(within(50_000, "echo first; yes | head -c 10G; echo last")).await.unwrap();
    assert_eq!((outcome.returncode, outcome.exception.clone()), (0, None));
    assert_eq!(outcome.dropped_bytes, (10 << 30) + 11 - (1 << 20));
    let output = text(&outcome);
    assert!(output.starts_with("first\ny\n") && output.ends_with("y\nlast\n"));
    let note = format!("\n[{} bytes of output were dropped here]\n", outcome.dropped_bytes);
    assert!(output.contains(&note) && output.len() == (1 << 20) + note.len());
}

#[tokio::test]
async fn the_disk_cannot_be_filled() {
    let in_memory = site(config());
    let sandbox = in_memory.make_box().await;
    for place in [".", "/tmp", "/dev/shm", "/home/agent"] {
        let (output, returncode) = run(&*sandbox, &format!("head -c 50M /dev/zero > {place}/big")).await;
        assert!(returncode != 0 && output.contains("No space left"), "{place}: {output}");
    }
    let mut small = config();
    small.limits.file_size_bytes = 1 << 20;
    let sandbox = site(small).make_box().await;
    let (output, returncode) = run(&*sandbox, "head -c 5M /dev/zero > big; stat -c %s big").await;
    assert!(output.contains("File") && output.ends_with("1048576\n") && returncode == 0, "{output}");
    let on_disk = site(LocalProviderConfig { work_tree_store: WorkTreeStore::Disk, ..config() });
    let sandbox = on_disk.make_box().await;
    assert_eq!(run(&*sandbox, "cat hello.txt; echo x > ~/y").await, ("hello\n".to_owned(), 0));
    let fill = "for i in 1 2 3 4 5 6; do head -c 10M /dev/zero > $i; done; sleep 10";
    assert_eq!(exception(&*sandbox, request(fill)).await.0, "DiskLimitExceeded");
    run(&*sandbox, "rm -f 1 2 3 4 5 6; mkdir -p locked/in; touch locked/in/x; chmod -R 000 locked").await;
    sandbox.destroy().await.unwrap();
    assert_eq!(on_disk.box_dirs(), 0);
}

#[tokio::test]
async fn what_runs_in_the_background_ends_at_a_deadline_and_with_the_box() {
    let site = site(config());
    let sandbox = site.make_box().await;
    for ending in ["deadline", "destroy"] {
        let seconds = unique_seconds(if ending == "deadline" { 1 } else { 2 });
        let survivors = format!(
            "setsid sleep {seconds} > /dev/null 2>&1 & nohup sleep {seconds} > /dev/null 2>&1 &\n\
             (setsid sh -c 'sleep {seconds} & sleep {seconds}' > /dev/null 2>&1 &) ; trap '' TERM HUP; echo started"
        );
        assert_eq!(run(&*sandbox, &survivors).await, ("started\n".to_owned(), 0));
        until("they run", || processes_with(&seconds).len() >= 4).await;
        match ending {
            "deadline" => drop(exception(&*sandbox, within(200, "sleep 30")).await),
            _ => sandbox.destroy().await.unwrap(),
        }
        assert_eq!(processes_with(&seconds), Vec::<String>::new(), "after the {ending}");
    }
}

#[tokio::test]
async fn descriptors_of_greenroom_do_not_reach_a_box() {
    // A file that greenroom, or a library in it, left inheritable.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("open"), "of the host").unwrap();
    let mut open = std::fs::File::open(dir.path().join("open")).unwrap();
    rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
    let site = site(config());
    let sandbox = site.make_box().await;
    let (listing, _) = run(&*sandbox, "ls -l /proc/self/fd").await;
    assert_eq!(listing.lines().count(), 5, "total, three streams and the listing itself: {listing}");
    let mut content = String::new();
    open.read_to_string(&mut content).unwrap();
    assert_eq!(content, "of the host");
    tokio::time::timeout(Duration::from_secs(10), sandbox.destroy()).await.unwrap().unwrap();
}
