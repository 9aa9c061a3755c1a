//! Without walls, when that was asked for: same commands, limits and ends, no isolation.

use greenroom_messages::sandbox::ExecRequest;
use greenroom_sandbox::{SandboxBox, SandboxError};

use crate::support::*;

#[tokio::test]
async fn commands_files_and_deadlines_work_as_with_walls() {
    let site = site(without_walls());
    let sandbox = site.make_box().await;
    assert_eq!(run(&*sandbox, "cat hello.txt; echo err >&2; exit 4").await, ("hello\nerr\n".to_owned(), 4));
    let below = ExecRequest { cwd: Some("/testbed/sub".into()), ..request("basename $PWD") };
    assert_eq!(text(&sandbox.exec(below).await.unwrap()), "sub\n");
    sandbox.put_files(vec![file("/testbed/sub/x", "1"), file("y", "2")]).await.unwrap();
    assert_eq!(run(&*sandbox, "cat sub/x y").await.0, "12");
    assert_eq!(sandbox.read_file("/testbed/y", 10).await.unwrap(), b"2");
    run(&*sandbox, "ln -s /etc/passwd leak; ln -s / root").await;
    for path in ["leak", "root/etc/passwd", "/etc/passwd", "../owner.json"] {
        let read = sandbox.read_file(path, 100_000).await;
        assert!(matches!(read, Err(SandboxError::Refused { .. })), "{path}: {read:?}");
    }
    let told = exception(&*sandbox, within(300, "sleep 20 & echo started")).await;
    assert_eq!((told.0.as_str(), told.2.as_str()), ("TimeoutExpired", "started\n"));
}

async fn leave_survivors(sandbox: &dyn SandboxBox, seconds: &str) {
    let command =
        format!("setsid sleep {seconds} > /dev/null 2>&1 & (setsid sleep {seconds} > /dev/null 2>&1 &) ; echo");
    run(sandbox, &command).await;
    until("they run", || processes_with(seconds).len() >= 2).await;
}

#[tokio::test]
async fn whole_process_trees_end_at_deadlines_and_with_the_box() {
    let site = site(without_walls());
    let sandbox = site.make_box().await;
    let seconds = unique_seconds(8);
    leave_survivors(&*sandbox, &seconds).await;
    exception(&*sandbox, within(200, "sleep 30")).await;
    assert_eq!(processes_with(&seconds), Vec::<String>::new());
    leave_survivors(&*sandbox, &seconds).await;
    sandbox.destroy().await.unwrap();
    assert_eq!((processes_with(&seconds), site.box_dirs()), (Vec::new(), 0));
}

#[tokio::test]
async fn memory_processes_and_disk_are_watched() {
    let site = site(without_walls());
    let sandbox = site.make_box().await;
    let family = "for i in 1 2 3 4; do python3 -c 'import time; x = b\"x\" * (90 << 20); time.sleep(15)' & done; wait";
    assert_eq!(exception(&*sandbox, request(family)).await.0, "MemoryLimitExceeded");
    let crowd = "i=0; while [ $i -lt 100 ]; do sleep 15 & i=$((i + 1)); done; wait";
    assert_eq!(exception(&*sandbox, request(crowd)).await.0, "ProcessLimitExceeded");
    let fill = "for i in 1 2 3 4 5 6; do head -c 10M /dev/zero > $i; done; sleep 10";
    assert_eq!(exception(&*sandbox, request(fill)).await.0, "DiskLimitExceeded");
}
