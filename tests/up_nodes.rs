//! `greenroom up --nodes`: a run over several processes of this machine survives the death of any of them, ends as one, goes
//! on as one, and leaves nothing running.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]
#![cfg(feature = "cluster")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use support::{PATIENCE, Run, finish, greenroom, signal, succeed, text, wait_until};

const STEPS: u64 = 6;
/// Three processes, so that two cores are enough.
const LAYOUT: &str = "controller+rollout+sandbox,trainer,engine";

/// A started run, and what it has said so far.
struct Heard {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Heard {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (said, stderr) = (Arc::new(Mutex::new(String::new())), child.stderr.take().unwrap());
        let hears = said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut said = hears.lock().unwrap();
                said.push_str(&line);
                said.push('\n');
            }
        });
        Self { child, said }
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    fn wait_for(&mut self, words: &str) {
        wait_until(words, || {
            let ended = self.child.try_wait().unwrap();
            let said = self.said();
            assert!(ended.is_none() || said.contains(words), "it ended with {ended:?} before {words:?}:\n{said}");
            said.contains(words)
        });
    }

    /// Its exit status, what it printed, and what it said.
    fn finish(mut self) -> (Option<i32>, String, String) {
        let begun = std::time::Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < PATIENCE, "it does not end:\n{}", self.said());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let output = self.child.wait_with_output().unwrap();
        let said = self.said.lock().unwrap().clone();
        (output.status.code(), text(&output.stdout), said)
    }
}

/// The processes of a run's nodes: of one, or of all.
fn pids(run: &Run, node: &str) -> Vec<u32> {
    let file = run.dir().join("nodes").join(node);
    let marks = |entry: &Path| {
        let arguments = text(&std::fs::read(entry.join("cmdline")).unwrap_or_default());
        arguments.contains(file.to_str().unwrap()) && arguments.contains("--parent")
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| marks(&entry.path()));
    let found: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).collect();
    // a child of a node that has not become its own program yet still looks like the node
    found.iter().copied().filter(|pid| parent(*pid).is_none_or(|parent| !found.contains(&parent))).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn assert_nothing_runs(run: &Run) {
    wait_until("the end of all nodes", || pids(run, "").is_empty());
    run.assert_no_sandbox_processes();
}

fn run() -> Run {
    Run::new(&[
        &format!("run.steps={STEPS}"),
        "run.groups_per_batch=2",
        "run.samples_per_group=3",
        "run.step_retries=30",
    ])
}

#[test]
fn a_run_over_nodes_survives_the_death_of_any_of_them_and_goes_on_when_it_was_stopped() {
    let run = run();
    let mut first = Heard::start(run.begin().args(["--nodes", LAYOUT]));
    first.wait_for("trainer    | node trainer runs: trainer");
    first.wait_for("controller | [metrics] step=1/");
    for node in ["engine", "trainer"] {
        let [pid] = pids(&run, node)[..] else { panic!("{node}: {}", first.said()) };
        signal(pid, "KILL");
        first.wait_for(&format!("the node {node} ended with signal: 9 (SIGKILL); it is started again"));
        wait_until("another process", || pids(&run, node).iter().any(|other| *other != pid));
    }
    first.wait_for("controller | [metrics] step=2/");
    // once: after the step under way
    signal(first.child.id(), "TERM");
    let (code, printed, said) = first.finish();
    assert_eq!((code, printed.as_str()), (Some(3), ""), "{said}");
    assert!(said.contains("go on with --resume"), "{said}");
    assert_nothing_runs(&run);

    // its nodes are known; whoever runs them dies without a word
    let mut second = Heard::start(&mut run.resume());
    second.wait_for("controller | node controller runs");
    second.child.kill().unwrap();
    second.finish();
    assert_nothing_runs(&run);

    let mut third = Heard::start(run.resume().arg("--nodes"));
    third.wait_for("controller | node controller runs");
    let [controller] = pids(&run, "controller")[..] else { panic!("{}", third.said()) };
    signal(controller, "KILL");
    third.wait_for("the node controller ended with signal: 9 (SIGKILL); it is started again");
    let (code, printed, said) = third.finish();
    assert_eq!(code, Some(0), "{said}");
    let summary: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(summary["steps"], STEPS);
    assert_nothing_runs(&run);

    let check = finish(greenroom().arg("check").arg(run.dir()));
    assert!(check.status.success(), "{}{}", text(&check.stdout), text(&check.stderr));
    assert_eq!(run.metrics().len() as u64, STEPS);
    let resumed = succeed(&mut run.resume());
    assert!(text(&resumed.stderr).contains("is complete"), "{}", text(&resumed.stderr));
}

#[test]
fn what_cannot_be_run_over_nodes_is_refused_before_anything_is_begun() {
    let run = run();
    for (nodes, code, words) in [
        ("controller", 2, "0 nodes play rollout"),
        ("5000", 2, "no layout of nodes"),
        ("controller+rollout,trainer,engine,sandbx", 2, "no role \"sandbx\""),
    ] {
        let output = finish(run.begin().args(["--nodes", nodes]));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
    }
    let no_engines = finish(run.begin().args(["--set", "engine.embedded.count=0", "--nodes"]));
    let no_data = finish(run.begin().args(["--set", "data.train=nowhere.jsonl", "--nodes"]));
    for (output, words) in [(no_engines, "engine"), (no_data, "GR0907")] {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    }
    assert!(!run.dir().exists());
}
