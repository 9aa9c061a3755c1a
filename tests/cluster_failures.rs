//! Whatever happens to a node of a cluster, the run goes on and its history stays sound: one test for each line of the
//! README's table "When something dies". The long ones repeat the same at many random moments: `--ignored`, one at a time.
//!
//! GREENROOM_TEST_SEED repeats one draw of moments; GREENROOM_TEST_NODE=engine-0 kills only this one.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]

mod support;

use std::os::unix::process::ExitStatusExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use greenroom_core::Seed;
use support::cluster::{Cut, QUICK, SIX, TestCluster, coins};
use support::ledger::Ledger;

const GROUPS: u64 = 2;
const SAMPLES: u64 = 3;
/// The exit status of a node that left because it was told to.
const LEFT: i32 = 3;

fn seed() -> Seed {
    let seed = std::env::var("GREENROOM_TEST_SEED").map_or(1, |text| text.parse().unwrap());
    println!("GREENROOM_TEST_SEED={seed}");
    Seed::new(seed)
}

fn up_to(seed: Seed, what: &str, number: u64, most_ms: u64) -> Duration {
    Duration::from_millis(seed.child_numbered(what, number).value() % most_ms)
}

/// So many steps more than harms: a fast machine makes one in half a second, and a node needs some to come back in.
const AMPLE: u64 = 12;
/// So many steps a second a run makes at most that goes on without the node that is harmed.
const MOST_STEPS_A_SECOND: u64 = 3;

/// Enough steps for harms that each take so long and that the run goes on during.
fn steps_for(harms: usize, of_engines: usize, each: Duration) -> u64 {
    harms as u64 + AMPLE + of_engines as u64 * each.as_secs() * MOST_STEPS_A_SECOND
}

/// Six nodes that run, with at least one step made.
fn running(steps: u64, of_nodes: &str) -> TestCluster {
    let mut cluster = TestCluster::new(SIX, &coins(steps, GROUPS, SAMPLES), of_nodes);
    cluster.start_all();
    cluster.wait_for_step(1);
    cluster
}

fn finish(mut cluster: TestCluster, steps: u64) {
    // what is left may take minutes on a busy machine, but no step does
    for step in cluster.step().unwrap_or(0)..=steps {
        cluster.wait_for_step(step);
    }
    cluster.finish();
    Ledger::open(&cluster.run_dir()).assert_nothing_lost_or_trained_twice(steps, GROUPS, SAMPLES);
}

fn who_watches(node: &str) -> &'static str {
    if node == "lead" { "box" } else { "lead" }
}

/// Waits until another node holds this one for dead, and says how long that took.
fn held_for_dead(cluster: &mut TestCluster, node: &str, lines: usize, since: Instant) -> Duration {
    let name = format!("node=\"{node}\"");
    let watcher = who_watches(node);
    cluster.wait("its death being noticed", |cluster| cluster.logged_after(watcher, &["held for dead", &name], lines));
    since.elapsed()
}

/// Waits until the other node sees this one again: the run may go on without it, and harms come one at a time.
fn back(cluster: &mut TestCluster, node: &str, lines: usize) {
    let (watcher, name) = (who_watches(node), format!("node=\"{node}\""));
    cluster.wait("its return", |cluster| cluster.logged_after(watcher, &["has joined", &name], lines));
}

fn lines(cluster: &TestCluster, node: &str) -> usize {
    cluster.log(who_watches(node)).lines().count()
}

/// SIGKILL at a random moment, `kills` times; started again a moment later. Each time the run goes on.
fn survives_kills(node: &'static str, kills: u64) {
    let seed = seed().child(node);
    // up to 2.5 s and what the others need to notice, each time
    let steps = kills * 6 + AMPLE;
    let mut cluster = running(steps, QUICK);
    for kill in 0..kills {
        sleep(up_to(seed, "moment", kill, 1_500));
        assert!(cluster.step() < Some(steps), "the run ended after {kill} kills: {steps} steps are too few");
        let (step, seen, since) = (cluster.step().unwrap(), lines(&cluster, node), Instant::now());
        cluster.kill(node);
        let noticed = held_for_dead(&mut cluster, node, seen, since);
        sleep(up_to(seed, "down", kill, 1_000));
        let began = Instant::now();
        cluster.start(node);
        cluster.wait_for_step((step + 1).min(steps));
        println!(
            "{node} killed in step {}: noticed after {:.2} s, next step {:.1} s after it was started again",
            step + 1,
            noticed.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );
        back(&mut cluster, node, seen);
        if who_watches(node) == "lead" {
            let words = format!("the node {node} is back");
            cluster.wait("word of its return", |cluster| cluster.said("lead").contains(&words));
        }
    }
    finish(cluster, steps);
}

#[test]
fn an_engine_node_that_is_killed_is_done_without_and_comes_back() {
    survives_kills("engine-0", 1);
}

#[test]
fn a_sandbox_node_that_is_killed_is_waited_for() {
    survives_kills("box", 1);
}

#[test]
fn a_rollout_node_that_is_killed_is_asked_again() {
    survives_kills("roll", 1);
}

#[test]
fn a_trainer_node_that_is_killed_goes_on_from_its_checkpoint() {
    survives_kills("trainer", 1);
}

#[test]
fn a_controller_that_is_killed_goes_on_from_its_history() {
    survives_kills("lead", 1);
}

#[test]
#[ignore = "minutes"]
fn each_node_is_killed_twenty_times() {
    let only = std::env::var("GREENROOM_TEST_NODE").ok();
    for (node, _) in SIX.iter().filter(|(node, _)| only.as_ref().is_none_or(|only| only == node)) {
        survives_kills(node, 20);
    }
}

/// A process that is stopped for longer than `dead_ms` and goes on: the others did without it, its leases were returned, and
/// nothing it still sends is counted twice.
fn survives_stops(nodes: &[&'static str], of_nodes: &str, stopped_for: Duration) {
    let engines = nodes.iter().filter(|node| node.starts_with("engine")).count();
    let steps = steps_for(nodes.len(), engines, stopped_for);
    let mut cluster = running(steps, of_nodes);
    for node in nodes {
        let (step, seen, since) = (cluster.step().unwrap(), lines(&cluster, node), Instant::now());
        assert!(step < steps, "the run ended before {node} was stopped: {steps} steps are too few");
        cluster.signal(node, "STOP");
        let noticed = held_for_dead(&mut cluster, node, seen, since);
        sleep(stopped_for.saturating_sub(since.elapsed()));
        let began = Instant::now();
        cluster.signal(node, "CONT");
        cluster.wait_for_step((step + 1).min(steps));
        println!(
            "{node} stopped: noticed after {:.2} s, next step {:.1} s after it went on",
            noticed.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );
        back(&mut cluster, node, seen);
    }
    finish(cluster, steps);
}

#[test]
fn nodes_that_are_stopped_and_go_on_rejoin() {
    survives_stops(&["box", "roll"], QUICK, Duration::from_secs(3));
}

#[test]
fn a_controller_that_is_stopped_and_goes_on_leads_again() {
    survives_stops(&["lead"], QUICK, Duration::from_secs(3));
}

#[test]
#[ignore = "minutes"]
fn each_node_is_stopped_for_a_minute() {
    survives_stops(&["engine-0", "box", "roll", "trainer", "lead"], "", Duration::from_secs(60));
}

/// A node that is cut off, healed after it was held for dead.
fn survives_cuts(cuts: &[(&'static str, Cut)], of_nodes: &str, cut_for: Duration) {
    let engines = cuts.iter().filter(|(node, _)| node.starts_with("engine")).count();
    let steps = steps_for(cuts.len(), engines, cut_for);
    let mut cluster = running(steps, of_nodes);
    if !cluster.has_networks() {
        println!("SKIPPED: without networks of their own nodes cannot be cut off");
        return;
    }
    for (node, cut) in cuts {
        let (step, seen, since) = (cluster.step().unwrap(), lines(&cluster, node), Instant::now());
        assert!(step < steps, "the run ended before {node} was cut off: {steps} steps are too few");
        cluster.cut(node, *cut);
        let noticed = held_for_dead(&mut cluster, node, seen, since);
        sleep(cut_for.saturating_sub(since.elapsed()));
        let began = Instant::now();
        cluster.heal(node, *cut);
        cluster.wait_for_step((step + 1).min(steps));
        println!(
            "{node} cut off ({cut:?}): noticed after {:.2} s, next step {:.1} s after it was healed",
            noticed.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );
        back(&mut cluster, node, seen);
    }
    finish(cluster, steps);
}

#[test]
fn nodes_that_are_cut_off_one_way_or_both_and_healed_rejoin() {
    survives_cuts(&[("box", Cut::Both), ("roll", Cut::Out)], QUICK, Duration::from_secs(3));
}

#[test]
#[ignore = "minutes"]
fn each_node_is_cut_off_for_a_minute() {
    let cuts = ["engine-0", "box", "roll", "trainer", "lead"];
    let cuts: Vec<_> = cuts.into_iter().flat_map(|node| [(node, Cut::Both), (node, Cut::Out)]).collect();
    survives_cuts(&cuts, "", Duration::from_secs(60));
}

/// A process that dies in the middle of a version of the weights: nobody ever loads half of one.
fn survives_half_a_version(node: &'static str, fault: &str) {
    let steps = 3;
    let mut cluster = TestCluster::new(SIX, &coins(steps, GROUPS, SAMPLES), QUICK);
    for other in cluster.names() {
        cluster.start_with(other, if other == node { fault } else { "" });
    }
    assert_eq!(cluster.ended(node).signal(), Some(6), "{fault} did not fire");
    println!("{node} died at {fault} after step {:?}", cluster.step());
    cluster.start(node);
    finish(cluster, steps);
}

#[test]
fn a_publisher_that_dies_in_the_middle_of_a_version_publishes_it_again() {
    survives_half_a_version("trainer", "weights.publish.before_commit=crash@2");
}

#[test]
fn a_receiver_that_dies_in_the_middle_of_a_version_applies_it_again() {
    survives_half_a_version("engine-0", "weights.apply.before_commit=crash@2");
}

/// SIGTERM: a node leaves without anything failing: nothing counts as a failure of infrastructure, and others hear of it.
#[test]
fn nodes_that_are_told_to_leave_finish_or_hand_back_what_they_do() {
    let nodes = ["engine-0", "box", "trainer", "roll"];
    let steps = nodes.len() as u64 + AMPLE;
    let mut cluster = running(steps, QUICK);
    for node in nodes {
        let (step, seen, since) = (cluster.step().unwrap(), lines(&cluster, node), Instant::now());
        cluster.signal(node, "TERM");
        let status = cluster.ended(node);
        assert_eq!(status.code(), Some(LEFT), "{node}: {}", cluster.said(node));
        let left = since.elapsed();
        let log = cluster.log(node);
        assert!(!log.contains("is handed back"), "{node} did not finish within its grace: {log}");
        let name = format!("node=\"{node}\"");
        cluster.wait("word of its leaving", |cluster| cluster.logged_after("lead", &["has left", &name], seen));
        println!("{node} left after {:.2} s", left.as_secs_f64());
        cluster.start(node);
        cluster.wait_for_step((step + 1).min(steps));
    }
    cluster.finish();
    let ledger = Ledger::open(&cluster.run_dir());
    ledger.assert_nothing_lost_or_trained_twice(steps, GROUPS, SAMPLES);
    let failed = ledger.column("SELECT rollout || ': ' || detail FROM rollouts WHERE outcome = 'infra_failed'");
    assert!(failed.is_empty(), "an orderly leave fails nothing: {failed:?}");
}

/// A second SIGTERM ends a drain.
#[test]
fn a_second_wish_to_leave_does_not_wait_for_what_is_under_way() {
    let steps = 3;
    let mut cluster = running(steps, "");
    let open = "SELECT lease FROM leases WHERE ended_ms IS NULL";
    let held = |cluster: &TestCluster| {
        Ledger::try_open(&cluster.run_dir()).and_then(|ledger| ledger.try_column(open)).map_or(0, |open| open.len())
    };
    // who holds leases and does nothing more: they stay held until it is held for dead, after ten seconds
    loop {
        cluster.wait("a lease", |cluster| held(cluster) > 0);
        cluster.signal("roll", "STOP");
        sleep(Duration::from_millis(300));
        if held(&cluster) > 0 {
            break;
        }
        cluster.signal("roll", "CONT");
    }
    cluster.signal("box", "TERM");
    cluster.wait("its word", |cluster| cluster.said("box").contains("leaving: "));
    // two signals within half a second are one wish
    sleep(Duration::from_millis(700));
    let told = Instant::now();
    cluster.signal("box", "TERM");
    let status = cluster.ended("box");
    assert_eq!(status.code(), Some(LEFT), "{}", cluster.said("box"));
    assert!(told.elapsed() < Duration::from_secs(4), "it took {:?}", told.elapsed());
    cluster.signal("roll", "CONT");
    cluster.start("box");
    finish(cluster, steps);
}

/// A node that is down when the run ends, and is started again, ends as the run did: while the controller stays for it,
/// later by what it has kept, and by the word of a controller that is started again.
#[test]
fn a_node_that_comes_back_when_the_run_is_over_ends_as_the_run_did() {
    let steps = 3;
    let mut cluster = running(steps, QUICK);
    cluster.kill("engine-0");
    let over = "the run has ended: completed";
    cluster.wait("the end at the others", |cluster| cluster.said("box").contains(over));
    cluster.start("engine-0");
    cluster.wait_for_end();
    assert!(cluster.said("engine-0").contains(over), "{}", cluster.said("engine-0"));

    let since = Instant::now();
    cluster.start("engine-0");
    assert!(cluster.ended("engine-0").success(), "{}", cluster.said("engine-0"));
    println!("without a controller it ended after {:.1} s", since.elapsed().as_secs_f64());
    assert!(since.elapsed() < Duration::from_secs(60), "it waits for a controller that is gone for good");

    let committed = cluster.step();
    cluster.start_all();
    cluster.finish();
    assert_eq!(cluster.step(), committed);
    assert!(cluster.said("lead").contains("the run test is complete"), "{}", cluster.said("lead"));
}

/// Nodes that waited for a controller which comes back with other settings do not go on with theirs.
#[test]
fn a_controller_that_comes_back_with_other_settings_refuses_who_waited() {
    let (steps, more) = (8, 10);
    let mut cluster = running(steps, QUICK);
    cluster.kill("lead");
    let settings = std::fs::read_to_string(cluster.over()).unwrap();
    let others = settings.replace(&format!("steps = {steps}"), &format!("steps = {more}"));
    assert_ne!(settings, others);
    std::fs::write(cluster.over(), others).unwrap();
    cluster.start("lead");
    let waited: Vec<_> = cluster.names().into_iter().filter(|node| *node != "lead").collect();
    for node in &waited {
        assert_eq!(cluster.ended(node).code(), Some(1), "{node}: {}", cluster.said(node));
        let said = cluster.said(node);
        let words = format!("the controller's settings say steps = {more}, this node's steps = {steps}");
        assert!(said.contains("GR0923") && said.contains(&words), "{node}: {said}");
    }
    waited.into_iter().for_each(|node| cluster.start(node));
    finish(cluster, more);
}

/// A role can be made primary: the run is stopped for all when the last node that plays it leaves, not when one dies.
#[test]
fn the_last_primary_node_that_leaves_ends_the_run_for_all() {
    let steps = 40;
    let mut cluster = TestCluster::new(SIX, &coins(steps, GROUPS, SAMPLES), QUICK);
    cluster.set("lead", "primary_roles = [\"trainer\"]");
    cluster.start_all();
    cluster.wait_for_step(1);
    cluster.kill("trainer");
    cluster.wait("word of it", |cluster| cluster.said("lead").contains("the node trainer is lost: the run waits"));
    cluster.start("trainer");
    let step = cluster.step().unwrap();
    cluster.wait_for_step(step + 1);
    cluster.signal("trainer", "TERM");
    for node in ["trainer", "lead", "roll", "engine-0", "engine-1", "box"] {
        assert_eq!(cluster.ended(node).code(), Some(LEFT), "{node}: {}", cluster.said(node));
    }
    let said = cluster.said("lead");
    assert!(
        said.contains("the node trainer has left, the last with the primary role trainer: the run is stopped"),
        "{said}"
    );
    assert!(cluster.said("box").contains("the run has ended: stopped"), "{}", cluster.said("box"));
    assert!(cluster.step() < Some(steps));
}
