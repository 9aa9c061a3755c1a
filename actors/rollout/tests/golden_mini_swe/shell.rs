//! A local shell that runs commands the way the recordings were made: `/bin/sh -c`, both streams in one pipe, no input,
//! the whole process group killed at the time-out, output read to the end of the pipe.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use greenroom_rollout::agent::ExecResult;

/// Run one command in `cwd` with `environment` over the process's own.
pub fn execute(command: &str, cwd: &Path, environment: &BTreeMap<String, String>, timeout: Duration) -> ExecResult {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let spawned = Command::new("/bin/sh")
        .args(["-c", command])
        .current_dir(cwd)
        .envs(environment)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .process_group(0)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return not_started(&error, cwd),
    };
    let (sender, receiver) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        let _ = sender.send(());
        bytes
    });
    let timed_out = receiver.recv_timeout(timeout).is_err();
    if timed_out {
        let group = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    }
    let output = decode(&reading.join().unwrap());
    let status = child.wait().unwrap();
    if timed_out {
        return ExecResult::timed_out(command, timeout.as_secs(), output);
    }
    let returncode = status.code().unwrap_or_else(|| -status.signal().unwrap());
    ExecResult::finished(output, returncode.into())
}

fn decode(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace("\r\n", "\n").replace('\r', "\n")
}

fn not_started(error: &std::io::Error, cwd: &Path) -> ExecResult {
    match error.raw_os_error() {
        Some(7) => ExecResult::not_started("OSError", "[Errno 7] Argument list too long: '/bin/sh'"),
        Some(2) => {
            let text = format!("[Errno 2] No such file or directory: '{}'", cwd.display());
            ExecResult::not_started("FileNotFoundError", text)
        }
        None => ExecResult::not_started("ValueError", "embedded null byte"),
        Some(_) => ExecResult::not_started("OSError", error.to_string()),
    }
}
