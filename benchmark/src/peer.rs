//! The peer: a process, in Python as a rule, that does the same work on request.
//!
//! One JSON object a line goes to its standard input, one comes back, so that ours and the peer can take turns in one run
//! and the cost of starting it is not measured. It is killed when it is dropped, or when an answer takes too long.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use crate::result::home;

/// Longer than any single measurement.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(170);

/// A running peer.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    /// How it names itself, with versions.
    pub name: String,
}

impl Peer {
    /// Starts `peers/SCRIPT` with this interpreter. `scratch` is where its libraries may keep settings.
    pub fn start(python: &str, script: &str, scratch: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(python);
        command
            .arg(home().join("peers").join(script))
            // a libtorch that ours was linked with must not get into the peer's own torch
            .env_remove("LD_LIBRARY_PATH")
            .env("OMP_NUM_THREADS", "1")
            .env("TOKENIZERS_PARALLELISM", "false")
            .env("HF_HUB_OFFLINE", "1")
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("MSWEA_SILENT_STARTUP", "1")
            .env("MSWEA_GLOBAL_CONFIG_DIR", scratch);
        Self::launch(command).with_context(|| {
            format!("{python} does not run {script}: --python names the interpreter that has the packages of benchmark/README.md")
        })
    }

    /// Starts a process that speaks as a peer does.
    pub fn launch(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("the peer has no standard input")?;
        let output = BufReader::new(child.stdout.take().context("the peer has no standard output")?);
        let (sender, answers) = channel();
        std::thread::Builder::new().name("peer".to_owned()).spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // libraries print what they like; answers are objects
                if line.starts_with('{') && sender.send(line).is_err() {
                    break;
                }
            }
        })?;
        let mut peer = Self { child, input, answers, name: String::new() };
        let hello = peer.answer().context("it does not say hello")?;
        peer.name = hello["name"].as_str().context("the peer does not say its name")?.to_owned();
        Ok(peer)
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, request: &Value) -> anyhow::Result<Value> {
        writeln!(self.input, "{request}").context("the peer has ended")?;
        self.input.flush()?;
        self.answer().with_context(|| format!("asked for {}", request["do"]))
    }

    fn answer(&mut self) -> anyhow::Result<Value> {
        let line = self.answers.recv_timeout(ANSWER_TIMEOUT).context("the peer gave no answer; see above for why")?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // it may have ended by itself
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
