//! Files go in and out of a box, and nowhere else.

use std::os::unix::fs::{PermissionsExt, symlink};

use greenroom_messages::sandbox::SandboxFile;
use greenroom_sandbox::{Labels, Provider, SandboxError};

use crate::support::*;

#[tokio::test]
async fn files_are_written_and_read() {
    let site = site(config());
    let sandbox = site.make_box().await;
    let script = SandboxFile { executable: true, ..file("bin/go", "#!/bin/sh\necho went\n") };
    sandbox.put_files(vec![file("a/b/c.txt", "content"), file("/tmp/abs", "x"), script]).await.unwrap();
    assert_eq!(run(&*sandbox, "cat a/b/c.txt /tmp/abs; bin/go").await, ("contentxwent\n".to_owned(), 0));
    assert_eq!(sandbox.read_file("/testbed/a/b/c.txt", 100).await.unwrap(), b"content");
    sandbox.put_files(vec![file("a/b/c.txt", "new")]).await.unwrap();
    assert_eq!(sandbox.read_file("a/b/c.txt", 3).await.unwrap(), b"new");
    for (path, limit, detail) in [
        ("a/b/c.txt", 2, "longer than the limit"),
        ("nothing", 9, "No such file"),
        ("a", 9, "not a regular file"),
        ("", 9, "not a path"),
    ] {
        let error = sandbox.read_file(path, limit).await.unwrap_err();
        assert!(matches!(&error, SandboxError::Refused { .. }) && error.to_string().contains(detail), "{error}");
    }
    let big = SandboxFile { path: "big".into(), content: vec![0; 30 << 20], executable: false };
    let error = sandbox.put_files(vec![big]).await.unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    assert_eq!(run(&*sandbox, "ls -A | sort | tr '\\n' ' '").await.0, "a bin hello.txt sub ");
}

#[tokio::test]
async fn a_path_of_the_host_is_seen_also_where_the_box_has_its_own_tmp() {
    let tool = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(tool.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(tool.path().join("tool"), "of the host").unwrap();
    let mut config = config();
    config.read_only_paths.push(tool.path().to_owned());
    let site = site(config);
    let sandbox = site.make_box().await;
    let path = tool.path().display();
    assert_eq!(run(&*sandbox, &format!("cat {path}/tool; ls -A /tmp | wc -l")).await.0, "of the host1\n");
    assert_ne!(run(&*sandbox, &format!("echo x > {path}/tool")).await.1, 0, "it is read-only");
    assert_eq!(run(&*sandbox, "echo x > /tmp/own && cat /tmp/own").await, ("x\n".to_owned(), 0));
}

#[tokio::test]
async fn links_lead_nowhere_outside() {
    let site = site(config());
    let secret = site.dir.path().join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let image = site.image();
    let source = image.source_dir.clone().unwrap();
    symlink(&secret, source.join("leak")).unwrap();
    symlink(site.dir.path(), source.join("dir")).unwrap();
    let sandbox = site.provider.create(&image, &Labels::new(), 60_000).await.unwrap();
    run(&*sandbox, "ln -s /proc/self/environ env; ln -s /proc/1/root up; mkfifo pipe; ln -s ../../../../.. far").await;
    for path in ["leak", "dir/secret", "env", "up/etc/passwd", "pipe", "/proc/1/environ", "../../../proc/1/environ"] {
        let read = sandbox.read_file(path, 1000).await;
        assert!(matches!(read, Err(SandboxError::Refused { .. })), "{path}: {read:?}");
    }
    let (output, returncode) = run(&*sandbox, "cat leak dir/secret").await;
    assert!(returncode != 0 && !output.contains("of the host"), "{output}");
    // Writing replaces the link itself, and parents that lead outside do not exist inside.
    sandbox.put_files(vec![file("leak", "mine")]).await.unwrap();
    assert!(sandbox.put_files(vec![file("dir/secret", "mine")]).await.is_err());
    assert!(sandbox.put_files(vec![file("/proc/1/oom_score_adj", "0")]).await.is_err());
    assert!(sandbox.put_files(vec![file("/etc/passwd", "root::0:0::/:/bin/sh")]).await.is_err());
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of the host");
    let far = String::from_utf8(sandbox.read_file("far/etc/hostname", 100).await.unwrap()).unwrap();
    assert_eq!(far, "greenroom-box\n");
}

#[tokio::test]
async fn each_box_has_its_own_copy() {
    let site = site(config());
    let (first, second) = (site.make_box().await, site.make_box().await);
    run(&*first, "echo changed > hello.txt; echo x > /tmp/x; chmod 000 sub").await;
    assert_eq!(run(&*second, "cat hello.txt; ls /tmp; stat -c %a sub").await, ("hello\n755\n".to_owned(), 0));
    let original = site.dir.path().join("image/hello.txt");
    assert_eq!(std::fs::read_to_string(original).unwrap(), "hello\n");
}
