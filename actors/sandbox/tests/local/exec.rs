//! Commands behave as mini-swe-agent's local environment lets them.

use greenroom_messages::sandbox::{ExecRequest, Shell};

use crate::support::*;

#[tokio::test]
async fn output_is_merged_in_order_and_nothing_is_kept_between_commands() {
    let site = site(config());
    let sandbox = site.make_box().await;
    let cases = [
        ("echo one; echo two >&2; echo three", "one\ntwo\nthree\n", 0),
        ("cat hello.txt; pwd", "hello\n/testbed\n", 0),
        ("cd /tmp; export X=1; exit 3", "", 3),
        ("pwd; echo \"[$X]\"", "/testbed\n[]\n", 0),
        ("cat; echo end of input", "end of input\n", 0),
        ("printf 'a\\r\\nb\\rc'", "a\nb\nc", 0),
        ("kill -9 $$", "", -9),
        ("kill -35 $$", "", -35),
        ("sh -c 'kill -15 $$'", "Terminated\n", 143),
        ("echo > kept; false", "", 1),
        ("ls", "hello.txt\nkept\nsub\n", 0),
        ("", "", 0),
        ("echo $HOME $USER; id -un; touch ~/x /tmp/y", "/home/agent agent\nagent\n", 0),
        (
            "git init -q . && git add . && git -c user.name=a -c user.email=b commit -qm c && rm -rf .git; echo $?",
            "0\n",
            0,
        ),
        ("printf '\\377\\000'", "\u{fffd}\0", 0),
        ("echo x > /dev/null; head -c 2 /dev/zero | wc -c; ls /dev/fd/0", "2\n/dev/fd/0\n", 0),
    ];
    for (command, output, returncode) in cases {
        assert_eq!(run(&*sandbox, command).await, (output.to_owned(), returncode), "{command}");
    }
    sandbox.destroy().await.unwrap();
}

#[tokio::test]
async fn shell_directory_and_environment_are_the_request_s() {
    let site = site(config());
    let mut image = site.image();
    image.env.insert("PAGER".into(), "cat".into());
    let sandbox =
        greenroom_sandbox::Provider::create(&site.provider, &image, &Default::default(), 60_000).await.unwrap();
    let bash = ExecRequest {
        shell: Shell::Bash,
        cwd: Some("sub".into()),
        env: [("A".to_owned(), "b".to_owned())].into(),
        ..request("[[ $A == b ]] && echo $PAGER $PWD ${BASH_VERSION:0:1}")
    };
    assert_eq!(text(&sandbox.exec(bash).await.unwrap()), "cat /testbed/sub 5\n");
    let elsewhere = ExecRequest { cwd: Some("/tmp".into()), ..request("pwd") };
    assert_eq!(text(&sandbox.exec(elsewhere).await.unwrap()), "/tmp\n");
    // Secrets of greenroom's own environment never reach a box.
    let (environment, _) = run(&*sandbox, "env").await;
    assert!(!environment.contains("CARGO"), "{environment}");
}

#[tokio::test]
async fn a_command_that_cannot_start_is_an_observation() {
    let site = site(config());
    let sandbox = site.make_box().await;
    let at = |cwd: &str| ExecRequest { cwd: Some(cwd.into()), ..request("true") };
    let long = "x".repeat(131_072);
    let cases = [
        (at("/nowhere"), "FileNotFoundError", "[Errno 2] No such file or directory: '/nowhere'"),
        (at("/testbed/hello.txt"), "NotADirectoryError", "[Errno 20] Not a directory: '/testbed/hello.txt'"),
        (request(&long), "OSError", "[Errno 7] Argument list too long: '/bin/sh'"),
        (request("a\0b"), "ValueError", "embedded null byte"),
    ];
    for (request, kind, message) in cases {
        let told = exception(&*sandbox, request).await;
        assert_eq!(told, (kind.to_owned(), message.to_owned(), String::new()));
    }
    let patient = ExecRequest { timeout_ms: u64::MAX, output_limit_bytes: u64::MAX, ..request("echo fine") };
    assert_eq!(text(&sandbox.exec(patient).await.unwrap()), "fine\n");
    let longest = format!("#{}", "x".repeat(131_070));
    assert_eq!(run(&*sandbox, &longest).await, (String::new(), 0));
}

#[tokio::test]
async fn a_command_lasts_until_its_pipe_is_closed_and_its_deadline_ends_it() {
    let site = site(config());
    let sandbox = site.make_box().await;
    let started = tokio::time::Instant::now();
    let told = exception(&*sandbox, within(500, "sleep 30 & echo started")).await;
    let message = "Command 'sleep 30 & echo started' timed out after 0.5 seconds".to_owned();
    assert_eq!(told, ("TimeoutExpired".to_owned(), message, "started\n".to_owned()));
    assert!(started.elapsed().as_millis() < 3000, "{:?}", started.elapsed());
    // With its output elsewhere it does not hold the command up, and lives on.
    assert_eq!(run(&*sandbox, "sleep 30 > /dev/null 2>&1 & echo started").await, ("started\n".to_owned(), 0));
    assert_eq!(run(&*sandbox, "pgrep -c sleep").await.0, "1\n");
    // The shell counts too, when it has closed its output.
    let told = exception(&*sandbox, within(300, "exec > /dev/null 2>&1; sleep 30")).await;
    assert_eq!(told.0, "TimeoutExpired");
    assert_eq!(run(&*sandbox, "pgrep -c sleep").await, ("0\n".to_owned(), 1));
}

#[tokio::test]
async fn making_a_box_and_running_a_command_is_fast() {
    let site = site(config());
    let started = tokio::time::Instant::now();
    let boxes = 10;
    for _ in 0..boxes {
        site.make_box().await.destroy().await.unwrap();
    }
    let create_ms = started.elapsed().as_millis() / boxes;
    let sandbox = site.make_box().await;
    let started = tokio::time::Instant::now();
    for _ in 0..100 {
        run(&*sandbox, "true").await;
    }
    let exec_us = started.elapsed().as_micros() / 100;
    println!("create and destroy {create_ms} ms, exec {exec_us} µs");
    // Generous, for machines that do other things at the same time.
    assert!(create_ms < 500 && exec_us < 100_000, "create and destroy {create_ms} ms, exec {exec_us} µs");
}

#[test]
fn bytes_become_text_as_recorded() {
    let recorded = include_str!("../fixtures/mini-swe/vectors_output.json");
    let recorded: serde_json::Value = serde_json::from_str(recorded).unwrap();
    let vectors = recorded["decode"].as_array().unwrap();
    assert!(vectors.len() >= 60);
    for vector in vectors {
        let hex = vector["hex"].as_str().unwrap();
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digits).collect();
        assert_eq!(greenroom_sandbox::decode_output(&bytes), vector["text"].as_str().unwrap(), "{hex}");
    }
}
