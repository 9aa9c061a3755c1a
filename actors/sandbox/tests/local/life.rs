//! Boxes end when they should, whatever happens to greenroom; and what cannot work says why.

use std::io::BufRead;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use greenroom_sandbox::{ImageSpec, Labels, LocalProvider, LocalProviderConfig, Provider, SandboxError};

use crate::support::*;

#[tokio::test]
async fn a_box_ends_at_the_end_of_its_lifetime_unless_renewed() {
    let site = site(config());
    let seconds = unique_seconds(3);
    let sandbox = site.provider.create(&site.image(), &Labels::new(), 300).await.unwrap();
    sandbox.renew(1000).await.unwrap();
    let background = format!("sleep {seconds} > /dev/null 2>&1 & sleep 0.6; echo alive");
    assert_eq!(run(&*sandbox, &background).await.0, "alive\n");
    let error = sandbox.exec(request("sleep 20")).await.unwrap_err();
    assert!(matches!(error, SandboxError::Expired { .. }), "{error}");
    assert!(matches!(sandbox.ended().await, SandboxError::Expired { .. }));
    assert_eq!(processes_with(&seconds), Vec::<String>::new());
    assert_eq!(site.box_dirs(), 0);
    assert!(matches!(sandbox.exec(request("true")).await, Err(SandboxError::Expired { .. })));
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn destroying_does_not_wait_for_a_command_and_may_be_repeated() {
    let site = site(config());
    let sandbox: std::sync::Arc<dyn greenroom_sandbox::SandboxBox> = site.make_box().await.into();
    let seconds = unique_seconds(4);
    let (inside, command) = (sandbox.clone(), format!("sleep {seconds}"));
    let running = greenroom_core::spawn_named("exec", async move { inside.exec(within(600_000, &command)).await });
    until("it runs", || !processes_with(&seconds).is_empty()).await;
    let started = tokio::time::Instant::now();
    sandbox.destroy().await.unwrap();
    sandbox.destroy().await.unwrap();
    assert!(started.elapsed().as_millis() < 3000, "{:?}", started.elapsed());
    assert!(running.await.unwrap().unwrap().is_err());
    assert_eq!((processes_with(&seconds), site.box_dirs()), (Vec::new(), 0));
}

#[tokio::test]
async fn a_box_whose_handle_is_dropped_ends_too() {
    let site = site(config());
    let seconds = unique_seconds(5);
    let sandbox = site.make_box().await;
    run(&*sandbox, &format!("sleep {seconds} > /dev/null 2>&1 &")).await;
    drop(sandbox);
    until("the directory goes", || site.box_dirs() == 0).await;
    assert_eq!(processes_with(&seconds), Vec::<String>::new());
}

#[tokio::test]
async fn boxes_are_made_again_after_their_directory_was_deleted() {
    let site = site(config());
    let lost = site.make_box().await;
    std::fs::remove_dir_all(site.sandboxes_dir()).unwrap();
    let sandbox = site.make_box().await;
    assert_eq!(run(&*sandbox, "echo here").await.0, "here\n");
    let mode = std::fs::metadata(site.sandboxes_dir()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "nobody else looks in");
    lost.destroy().await.unwrap();
}

/// Not a test of its own: a greenroom that is going to be killed, started by the next test.
#[tokio::test]
#[ignore = "started by another test"]
async fn host_for_kill() {
    let Ok(dir) = std::env::var("GREENROOM_TEST_DIR") else { return };
    let isolated = std::env::var("GREENROOM_TEST_WALLS").as_deref() == Ok("yes");
    let config = if isolated { config() } else { without_walls() };
    let provider = LocalProvider::new(config, dir).unwrap();
    let first = provider.create(&ImageSpec::new("test", None), &Labels::new(), 600_000).await.unwrap();
    let second = provider.create(&ImageSpec::new("test", None), &Labels::new(), 600_000).await.unwrap();
    let seconds = std::env::var("GREENROOM_TEST_SECONDS").unwrap();
    run(&*first, &format!("setsid nohup sleep {seconds} > /dev/null 2>&1 &")).await;
    let command = format!("(setsid sleep {seconds} &) ; sleep {seconds}");
    let (running, ready) = (second.exec(within(600_000, &command)), async {
        until("it runs", || processes_with(&seconds).len() >= 3).await;
        println!("\nready");
    });
    let _ = tokio::join!(running, ready);
}

#[tokio::test]
async fn a_killed_greenroom_leaves_no_process_and_the_next_one_sweeps() {
    for walls in ["yes", "no"] {
        let site = site(if walls == "yes" { config() } else { without_walls() });
        let seconds = unique_seconds(if walls == "yes" { 6 } else { 7 });
        let mut host = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "life::host_for_kill", "--ignored", "--nocapture"])
            .env("GREENROOM_TEST_DIR", site.sandboxes_dir())
            .env("GREENROOM_TEST_SECONDS", &seconds)
            .env("GREENROOM_TEST_WALLS", walls)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(host.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "the host did not start its boxes");
        let kept = site.provider.sweep().await.unwrap();
        assert_eq!((kept.removed.len(), kept.kept.len()), (0, 2), "a living greenroom's boxes are left alone");
        host.kill().unwrap();
        host.wait().unwrap();
        until("its processes end", || processes_with(&seconds).is_empty()).await;
        let swept = site.provider.sweep().await.unwrap();
        assert_eq!((swept.removed.len(), swept.kept.len(), site.box_dirs()), (2, 0, 0), "walls: {walls}");
    }
}

#[tokio::test]
async fn a_sweep_removes_what_cannot_be_read_and_follows_no_link() {
    let site = site(config());
    let outside = site.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "stays").unwrap();
    let labels: Labels = [("run".to_owned(), "r".to_owned())].into();
    let sandbox = site.provider.create(&site.image(), &labels, 60_000).await.unwrap();
    let left = site.sandboxes_dir().join("1-2-3");
    std::fs::create_dir_all(left.join("store/work/locked/deep")).unwrap();
    std::fs::write(left.join("store/work/locked/deep/file"), "x").unwrap();
    symlink(&outside, left.join("store/work/link")).unwrap();
    std::fs::set_permissions(left.join("store/work/locked"), std::fs::Permissions::from_mode(0o000)).unwrap();
    let listed = site.provider.list(&labels).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].owner_lives && listed[0].box_id == sandbox.box_id());
    let swept = site.provider.sweep().await.unwrap();
    assert_eq!((swept.removed, swept.kept.len()), (vec!["1-2-3".to_owned()], 1));
    assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "stays");
    assert_eq!(run(&*sandbox, "echo fine").await.0, "fine\n");
}

#[tokio::test]
async fn the_first_box_sweeps_what_an_earlier_greenroom_left() {
    let site = site(config());
    std::fs::create_dir(site.sandboxes_dir().join("1-2-3")).unwrap();
    let sandbox = site.make_box().await;
    let left: Vec<_> = site.provider.list(&Labels::new()).await.unwrap().into_iter().map(|left| left.box_id).collect();
    assert_eq!(left, [sandbox.box_id()]);
}

#[tokio::test]
async fn what_cannot_work_says_why_and_leaves_nothing() {
    let site = site(config());
    let missing = ImageSpec::new("gone", Some("/nowhere/at/all".into()));
    let error = site.provider.create(&missing, &Labels::new(), 1000).await.err().unwrap();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    let odd = ImageSpec { workdir: "relative".into(), ..site.image() };
    assert!(site.provider.create(&odd, &Labels::new(), 1000).await.is_err());
    let large = site.image();
    std::fs::write(large.source_dir.clone().unwrap().join("big"), vec![0; 30 << 20]).unwrap();
    let error = site.provider.create(&large, &Labels::new(), 1000).await.err().unwrap();
    assert!(error.to_string().contains("disk_bytes"), "{error}");
    assert!(error.to_string().contains("image: copying") && error.to_string().contains("big: "), "{error}");
    assert!(error.is_lasting(), "{error}");
    let sound = ImageSpec::new("sound", None);
    let error = site.provider.check_images(&[sound.clone(), missing, sound.clone()]).await.unwrap_err();
    assert!(error.is_lasting() && error.to_string().contains("image gone"), "{error}");
    site.provider.check_images(&[sound]).await.unwrap();
    assert_eq!(site.box_dirs(), 0);
    let no_helper = LocalProviderConfig { helper_argv: vec!["/nowhere/helper".into()], ..config() };
    let error = LocalProvider::new(no_helper, site.sandboxes_dir()).unwrap().check().await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/helper"), "{error}");
    // In a user namespace without a user map no further one can be made, as where an administrator forbids them.
    let [helper] = &config().helper_argv[..] else { panic!("one word") };
    let refused = LocalProviderConfig { helper_argv: vec!["unshare".into(), "-U".into(), helper.clone()], ..config() };
    let error = LocalProvider::new(refused, site.sandboxes_dir()).unwrap().check().await.unwrap_err();
    assert!(matches!(error, SandboxError::NamespacesUnavailable { .. }), "{error}");
    assert!(error.to_string().contains("isolation = \"none\""), "{error}");
    site.provider.check().await.unwrap();
    assert_eq!(site.box_dirs(), 0);
}
