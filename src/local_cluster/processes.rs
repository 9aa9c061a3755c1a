//! The nodes as processes of this machine: started, heard, told to end, waited for.
//!
//! A node runs in a process group of its own, so that a terminal's Ctrl-C reaches only who passes it on, and ends with the
//! thread that started it, so that nothing is left running whatever becomes of that.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use greenroom_core::spawn_named;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::config::EXAMPLE_VARIABLES;
use crate::up::Talk;

/// Longer lines of a node are cut, bytes.
const LONGEST_LINE: usize = 64 << 10;

/// A process has ended, or could not be waited for.
pub(super) struct Ended {
    pub(super) node: usize,
    pub(super) status: Option<ExitStatus>,
}

/// How nodes are started.
pub(super) struct Starter {
    pub(super) program: PathBuf,
    pub(super) talk: Talk,
    /// The width of the longest name.
    pub(super) width: usize,
    pub(super) ended: mpsc::UnboundedSender<Ended>,
}

impl Starter {
    /// Starts a node; what it says is told with its name before it. Only the controller's stdout is ours.
    pub(super) fn start(&self, node: usize, name: &str, file: &std::path::Path) -> std::io::Result<Process> {
        let mut command = Command::new(&self.program);
        command.arg("node").arg("--config").arg(file).args(["--parent", &std::process::id().to_string()]);
        // the settings are whole: what the environment says of them was heard already
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("GREENROOM__") || EXAMPLE_VARIABLES.iter().any(|known| known.name == text) {
                command.env_remove(&name);
            }
        }
        let stdout = if node == 0 { Stdio::inherit() } else { Stdio::null() };
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let hearing = child.stderr.take().map(|stderr| {
            let (talk, prefix) = (self.talk.clone(), format!("{name:<width$} | ", width = self.width));
            spawn_named(format!("hearing {name}"), hear(stderr, talk, prefix))
        });
        spawn_named(format!("waiting for {name}"), wait(node, child, hearing, self.ended.clone()));
        Ok(Process { pid })
    }
}

async fn wait(
    node: usize,
    mut child: Child,
    hearing: Option<tokio::task::JoinHandle<Option<()>>>,
    ended: mpsc::UnboundedSender<Ended>,
) {
    let status = child.wait().await.ok();
    if let Some(hearing) = hearing {
        // its last words first; something that it left behind may keep its stderr open
        let _ = tokio::time::timeout(std::time::Duration::from_secs(1), hearing).await;
    }
    // nobody listens any more when everything ends
    let _ = ended.send(Ended { node, status });
}

async fn hear(stderr: impl AsyncRead + Unpin, talk: Arc<dyn Fn(&str) + Send + Sync>, prefix: String) {
    let mut lines = BufReader::new(stderr).split(b'\n');
    while let Ok(Some(mut line)) = lines.next_segment().await {
        line.truncate(LONGEST_LINE);
        talk(&format!("{prefix}{}", String::from_utf8_lossy(&line).trim_end()));
    }
}

/// A running process; its pid is forgotten with it as soon as it was waited for.
pub(super) struct Process {
    pid: Option<Pid>,
}

impl Process {
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            // one that is gone needs no signal
            let _ = kill_process(pid, signal);
        }
    }
}

/// Makes this process end with the thread that started it, in the process `parent`.
///
/// # Errors
/// When that process is gone already, or the kernel refuses.
pub fn end_with_parent(parent: u32) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let is_there = rustix::process::getppid().is_some_and(|pid| pid.as_raw_nonzero().get() as u32 == parent);
    anyhow::ensure!(is_there, "the process {parent} that started this node is gone");
    Ok(())
}
