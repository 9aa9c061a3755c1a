//! A person looks at a run of six nodes, drains nodes and finds out what is wrong: `greenroom ctl` against real processes.
//!
//! The promises: every actor is seen, with where it is; a node that is drained finishes what it has and takes nothing new,
//! until that is undone; the doctor is content with a run in good health, and with no other.

#![cfg(all(feature = "torch", feature = "cluster"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use support::cluster::{QUICK, SIX, TestCluster, coins};
use support::ledger::Ledger;
use support::{text, wait_until};

/// The exit status of a node whose run was stopped.
const STOPPED: i32 = 3;
const STEPS: u64 = 1_000;

/// A cluster, and who looks at it: Ada may steer, Eve may not.
struct Seen(TestCluster);

impl Seen {
    /// Does one verb through a node that is no controller; gives its exit status, and what it printed and said.
    fn said(&self, who: &str, words: &[&str]) -> (i32, String) {
        let output = self.0.ctl(who, "trainer", words);
        (output.status.code().unwrap(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
    }

    /// Steers; it must be done.
    fn steer(&self, words: &[&str]) -> String {
        let (status, said) = self.said("ada", words);
        assert_eq!(status, 0, "{words:?}: {said}");
        said
    }

    /// A verb's JSON, whatever its exit status says.
    fn json(&self, words: &[&str]) -> Value {
        let output = self.0.ctl("eve", "trainer", &[&["-o", "json"], words].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", text(&output.stderr)))
    }

    /// Waits until the row of a table with this value in this column is as wanted.
    fn until_row(&self, verb: &str, column: &str, value: &str, holds: impl Fn(&Value) -> bool) {
        let mut last = Value::Null;
        let is_it = |row: &&Value| row[column].as_str().is_some_and(|found| found.starts_with(value));
        wait_until(&format!("{verb}: {column} {value}"), || {
            last = self.json(&[verb]);
            last.as_array().unwrap().iter().find(is_it).is_some_and(&holds)
        });
    }

    /// Waits until the status is as wanted.
    fn until_status(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        wait_until(what, || {
            let output = self.0.ctl("eve", "trainer", &["-o", "json", "status"]);
            serde_json::from_slice(&output.stdout).is_ok_and(|status| holds(&status))
        });
    }

    fn step(&self) -> u64 {
        self.0.step().unwrap()
    }

    /// Waits until a step is made that is begun from now on.
    fn goes_on(&mut self) {
        let step = self.step();
        self.0.wait_for_step(step + 2);
    }

    fn until_doctor_says(&self, wanted: i32) -> String {
        let mut last = (-1, String::new());
        wait_until(&format!("the doctor's exit status {wanted}"), || {
            last = self.said("eve", &["doctor"]);
            last.0 == wanted
        });
        last.1
    }
}

#[test]
fn a_cluster_is_looked_at_drained_and_diagnosed() {
    let cluster = TestCluster::new(SIX, &coins(STEPS, 2, 3), QUICK);
    cluster.issue("ada", "operator");
    cluster.issue("eve", "viewer");
    let mut seen = Seen(cluster);
    seen.0.start_all();
    seen.0.wait_for_step(1);

    every_node_and_every_actor_is_seen(&seen);
    a_run_in_good_health_is_well(&seen);
    who_may_only_look_drains_nothing(&seen);
    an_engines_node_is_drained_and_the_others_go_on(&mut seen);
    the_only_node_of_its_role_is_drained_and_the_run_waits_for_it(&mut seen);
    a_node_that_dies_is_found_by_the_doctor(&mut seen);
    what_is_held_stays_held_when_controller_and_manager_die(&mut seen);

    seen.steer(&["stop", "--after-step"]);
    for node in seen.0.names() {
        assert_eq!(seen.0.ended(node).code(), Some(STOPPED), "{node}: {}", seen.0.said(node));
    }
    let steered = Ledger::open(&seen.0.run_dir()).column(
        "SELECT json_extract(body, '$.what') FROM events WHERE event = 'steered' AND json_extract(body, '$.by') LIKE
         'operator ada-%' ORDER BY seq",
    );
    for what in ["drain engine-0", "undrain engine-0", "drain box", "undrain roll", "stop --after-step"] {
        assert!(steered.iter().any(|steered| steered == what), "{what} is not in {steered:?}");
    }
}

fn what_is_held_stays_held_when_controller_and_manager_die(seen: &mut Seen) {
    // no batch is under way then: nobody speaks of one to a manager that comes back
    seen.steer(&["pause", "training"]);
    seen.until_status("a whole batch that waits", |status| {
        status["phase"].as_str().is_some_and(|phase| phase.starts_with("rolling out")) && status["groups"] == 0
    });
    seen.steer(&["pause", "rollouts"]);
    for node in ["lead", "roll"] {
        seen.0.kill(node);
        seen.0.start(node);
    }
    let is_held = |status: &Value| status["rollouts_paused"] == true && status["training_paused"] == true;
    let is_there = |status: &Value| status["unanswered"].as_array().is_some_and(Vec::is_empty);
    let is_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // shells that come and go all the time keep no node from what it waits for
        for _ in 0..4 {
            scope.spawn(|| seen.until_status("others looking on", |_| is_back.load(Ordering::Relaxed)));
        }
        seen.until_status("both being held by those that came back", |status| is_held(status) && is_there(status));
        is_back.store(true, Ordering::Relaxed);
    });
    let said = seen.0.said("lead");
    let waits: Vec<&str> = said.lines().filter(|line| line.starts_with("waiting for the gang")).collect();
    assert!(waits.len() < 20 && !waits.iter().any(|line| line.contains("eve-")), "{waits:#?}");
    let words = "an operator holds training: `resume training` goes on with it";
    assert!(seen.0.said("lead").contains(words), "{}", seen.0.said("lead"));
    let step = seen.step();
    seen.steer(&["resume", "training"]);
    seen.0.wait_for_step(step + 1);
    seen.until_status("the next batch, of which nothing runs", |status| {
        status["groups"] != 0 && status["groups_finished"] == 0 && status["rollouts_running"] == 0
    });
    // longer on hold than the run may be silent; it looks every second
    seen.steer(&["set", "run.batch_silence_ms", "1s"]);
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(seen.json(&["status"])["rollouts_paused"], true, "the run goes on, and stays held");
    seen.steer(&["set", "run.batch_silence_ms", "4h"]);
    seen.steer(&["resume", "rollouts"]);
    seen.0.wait_for_step(step + 3);
}

fn every_node_and_every_actor_is_seen(seen: &Seen) {
    let status = seen.json(&["status"]);
    assert_eq!((&status["nodes_up"], &status["engines"]), (&6.into(), &2.into()), "{status:#}");
    let nodes = seen.json(&["nodes"]);
    for (name, roles) in SIX {
        let node = nodes.as_array().unwrap().iter().find(|node| node["node"] == *name).unwrap();
        assert_eq!((&node["roles"][0], &node["drained"]), (&roles[0].into(), &Value::Null), "{node:#}");
    }
    let actors = seen.json(&["ps"]);
    for (node, actor) in [
        ("lead", "conductor"),
        ("lead", "journal"),
        ("roll", "rollout manager"),
        ("trainer", "trainer"),
        ("engine-1", "engine host engine-1/"),
        ("engine-1", "engine proxy engine-1/"),
        ("box", "sandbox pool "),
    ] {
        let is_it = |row: &&Value| row["node"] == node && row["actor"].as_str().unwrap().starts_with(actor);
        assert!(actors.as_array().unwrap().iter().any(|row| is_it(&row)), "{actor} of {node} is not in {actors:#}");
    }
    // an agent's loop lives for a moment only
    seen.until_row("ps", "under", "rollout manager", |agent| {
        agent["doing"].as_str().unwrap().starts_with("turn ") && agent["for_ms"].is_u64()
    });
    let (_, tree) = seen.said("eve", &["tree"]);
    assert!(tree.contains("roll (rollout) alive") && tree.contains(" rollout manager running for "), "{tree}");

    let trained = seen.json(&["sql", "SELECT rollout FROM rollouts WHERE trained_step = 1 ORDER BY rollout LIMIT 1"]);
    let (_, story) = seen.said("eve", &["why", trained[0]["rollout"].as_str().unwrap()]);
    assert!(story.contains("came from engine-") && story.contains("trained on in step 1"), "{story}");
    let checkpoint = seen.steer(&["checkpoint"]);
    let place = seen.0.state("trainer").join("checkpoints");
    assert!(checkpoint.contains(&*place.to_string_lossy()) && checkpoint.contains("on node trainer"), "{checkpoint}");
}

fn a_run_in_good_health_is_well(seen: &Seen) {
    let findings = seen.until_doctor_says(0);
    assert!(findings.contains("weight checksums") && findings.contains("conductor, rollout manager"), "{findings}");
    // each look finds other engines at rest
    wait_until("both engines being compared", || {
        let (_, findings) = seen.said("eve", &["doctor"]);
        findings.contains("4 holders hold what was published")
    });
}

fn who_may_only_look_drains_nothing(seen: &Seen) {
    let (status, said) = seen.said("eve", &["drain", "engine-0"]);
    assert!(status == 5 && said.contains("GR0932"), "{status} {said}");
    for (node, reason) in
        [("lead", "role controller"), ("trainer", "role trainer"), ("nowhere", "there are: box, engine-0")]
    {
        let (status, said) = seen.said("ada", &["drain", node]);
        assert!(status == 1 && said.contains("GR0933") && said.contains(reason), "{node}: {status} {said}");
    }
}

fn an_engines_node_is_drained_and_the_others_go_on(seen: &mut Seen) {
    seen.steer(&["drain", "engine-0"]);
    seen.until_row("engines", "engine", "engine-0/", |engine| engine["state"] == "draining");
    seen.until_row("nodes", "node", "engine-0", |node| node["drained"] == "idle");
    seen.goes_on();
    let findings = seen.until_doctor_says(1);
    assert!(findings.contains("undrain engine-0"), "{findings}");
    seen.steer(&["undrain", "engine-0"]);
    seen.until_row("engines", "engine", "engine-0/", |engine| engine["state"] == "serving");
    seen.until_row("nodes", "node", "engine-0", |node| node["drained"].is_null());
}

fn the_only_node_of_its_role_is_drained_and_the_run_waits_for_it(seen: &mut Seen) {
    let said = seen.steer(&["drain", "box"]);
    assert!(said.contains("no other node has sandboxes of "), "{said}");
    // rollouts that run wait for a box to be graded in
    seen.until_row("nodes", "node", "box", |row| row["drained"].is_string());
    seen.steer(&["undrain", "box"]);
    seen.until_row("nodes", "node", "box", |row| row["drained"].is_null());
    seen.goes_on();

    let said = seen.steer(&["drain", "roll"]);
    assert!(said.contains("no other node rolls out"), "{said}");
    seen.until_row("nodes", "node", "roll", |row| row["drained"] == "idle");
    // nothing is under way any more that could end a step
    wait_until("the reason", || {
        seen.json(&["status"])["bottleneck"].as_str().unwrap().starts_with("the node that rolls out is drained")
    });
    let findings = seen.until_doctor_says(1);
    assert!(findings.contains("undrain roll"), "{findings}");
    seen.steer(&["undrain", "roll"]);
    seen.goes_on();
}

fn a_node_that_dies_is_found_by_the_doctor(seen: &mut Seen) {
    seen.0.kill("engine-1");
    let findings = seen.until_doctor_says(2);
    assert!(findings.contains("node engine-1"), "{findings}");
    seen.0.start("engine-1");
    seen.until_doctor_says(0);
    seen.goes_on();
}
