//! Five nodes, each a process in a network of its own, make the same run as one process does.
//!
//! Weights travel over QUIC alone: no directory is shared. `sync` on batch-invariant engines is the same to the last bit
//! wherever its parts are, so metrics (but for times) and weights are compared whole.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]

mod support;

use std::fs;
use std::path::Path;

use support::cluster::{FIVE, TestCluster};
use support::{data, greenroom, metrics_of, succeed};

const STEPS: u64 = 2;

/// The quickstart's tasks after a short warm start: enough that some rollouts are rewarded and the policy learns.
fn settings() -> String {
    let root = data();
    let demonstrations = fs::read_to_string(root.join("sft.jsonl")).unwrap();
    let some: String = demonstrations.lines().take(1600).flat_map(|line| [line, "\n"]).collect();
    // several tests of this kind would write the same
    fs::write(root.join("some.jsonl"), some).unwrap();
    format!(
        "seed = 0\n[data]\nroot = {root:?}\ndemonstrations = \"some.jsonl\"\n[run]\nsteps = {STEPS}\n\
         [run.evaluation]\nbefore_and_after = false\n"
    )
}

fn weights(directory: &Path) -> Vec<u8> {
    fs::read(directory.join("model.safetensors")).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
}

#[test]
fn five_nodes_in_networks_of_their_own_make_the_run_that_one_process_makes() {
    let mut cluster = TestCluster::new(FIVE, &settings(), "");
    cluster.start_all();
    cluster.finish();

    let runs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/quickstart/quickstart.toml");
    let mut up = greenroom();
    up.args(["up", "--config"]).arg(quickstart).arg("--config").arg(cluster.over());
    succeed(up.args(["--name", "single", "--runs"]).arg(runs.path()));
    let single = runs.path().join("single");

    let (ours, theirs) = (metrics_of(&cluster.run_dir()), metrics_of(&single));
    assert_eq!(ours.len() as u64, STEPS);
    let learnt = ours.iter().any(|line| line["train"]["grad_norm"].as_f64() > Some(0.0));
    assert!(learnt, "the policy must learn something, or all runs are the same: {ours:?}");
    assert_eq!(ours, theirs);

    // whoever asks second for a version is sent to the first
    let passed_on = ["engine-0", "engine-1"].iter().any(|engine| cluster.log(engine).contains("chunks from engine-"));
    assert!(passed_on, "no engine's node passed weights on: {} {}", cluster.log("engine-0"), cluster.log("engine-1"));

    let last = weights(&single.join(format!("weights/export/{STEPS:06}")));
    for engine in ["engine-0", "engine-1"] {
        let received = cluster.state(engine).join(format!("weights/received/v{STEPS:06}"));
        assert!(weights(&received) == last, "{engine} holds other weights than the run in one process made");
        let log = cluster.log(engine);
        assert!(
            !cluster.state(engine).join("weights/export").exists(),
            "an engine's node has no trainer's files: {log}"
        );
    }
    assert!(
        cluster.has_networks() || !Path::new("/run/netns").exists(),
        "loopback was used though networks can be made"
    );
}
