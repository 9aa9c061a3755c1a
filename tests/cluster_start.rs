//! What is wrong when a node starts is told by name and at once: a second controller, a directory that two nodes share, and
//! for who waits for a controller what each seed answered.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use support::{Run, data, finish, greenroom, text, wait_until};

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// Nodes on the loopback interface, without TLS, which a run's start does not need.
struct Nodes {
    dir: tempfile::TempDir,
}

impl Nodes {
    fn new() -> Self {
        Self { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    fn state(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}-state"))
    }

    /// The command that starts a node with these lines for itself and in its table `cluster`.
    fn node(&self, name: &str, role: &str, top: &str, cluster: &str) -> Command {
        let file = self.dir.path().join(format!("{name}.toml"));
        let run = if top.contains("run =") { "" } else { "run = \"mine\"\n" };
        let state = if top.contains("state_dir =") { String::new() } else { format!("state_dir = \"{name}-state\"\n") };
        let text = format!(
            "{run}{state}{top}\nconfig = [\"{REPOSITORY}/config/quickstart/quickstart.toml\"]\n[cluster]\n\
             node = \"{name}\"\nroles = [\"{role}\"]\nbind = \"127.0.0.1:0\"\n{cluster}\n"
        );
        fs::write(&file, text).unwrap();
        let mut command = greenroom();
        command.args(["node", "--config"]).arg(file);
        let data = data();
        for setting in ["model.init_weights=false", "model.dir=policy", "data.train=coins.jsonl"] {
            command.args(["--set", setting]);
        }
        command.args(["--set", "data.demonstrations=few.jsonl", "--set", &format!("data.root={}", data.display())]);
        command
    }

    /// A controller that waits for its gang; and its address.
    fn controller(&self, name: &str) -> (Waiting, String) {
        let child = Run::spawn(&mut self.node(name, "controller", "gang_wait_s = 300", ""));
        let address = self.state(name).join("address");
        wait_until("the controller's address", || address.exists());
        (Waiting(child), fs::read_to_string(address).unwrap())
    }
}

/// A process that is ended with the test.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn assert_ends(mut command: Command, status: i32, words: &[&str]) {
    let output = finish(&mut command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in:\n{said}");
    }
}

#[test]
fn a_second_controller_and_a_second_node_in_one_directory_are_refused() {
    let nodes = Nodes::new();
    let (mut lead, address) = nodes.controller("lead");
    let seeds = format!("seeds = [\"{address}\"]");
    assert_ends(nodes.node("x", "controller", "", &seeds), 1, &["GR0927", "the node lead at", &address]);
    let same = "state_dir = \"lead-state\"";
    let state = nodes.state("lead").display().to_string();
    assert_ends(nodes.node("y", "engine", same, &seeds), 1, &["GR0928", "state_dir", &state, "another node"]);
    assert!(lead.0.try_wait().unwrap().is_none(), "the first one goes on");
}

#[test]
fn who_waits_for_a_controller_says_what_each_seed_answers() {
    let nodes = Nodes::new();
    let (_lead, address) = nodes.controller("lead");
    let nobody = "seeds = [\"127.0.0.1:9\"]";
    let waiting = "waiting for the controller of run mine: seed 127.0.0.1:9: nobody listens there";
    assert_ends(nodes.node("a", "engine", "gang_wait_s = 4", nobody), 4, &[waiting, "GR0922", "4 s (seed 127.0.0.1:9"]);
    let seeds = format!("seeds = [\"{address}\"]");
    let words = ["GR0922", "GR1208", "the refused node is of the run \"other\", who refuses it of the run \"mine\""];
    assert_ends(nodes.node("b", "engine", "run = \"other\"\ngang_wait_s = 4", &seeds), 4, &words);
    cookie(nodes.dir.path());
    let with_cookie = format!("{seeds}\ncookie_file = \"cookie\"");
    assert_ends(nodes.node("c", "engine", "gang_wait_s = 4", &with_cookie), 4, &["GR0922", "GR1206", &address]);
}

fn cookie(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(dir.join("cookie"), "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(dir.join("cookie"), PermissionsExt::from_mode(0o600)).unwrap();
}
