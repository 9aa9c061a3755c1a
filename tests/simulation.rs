//! The promise: whatever goes wrong with engines, sandboxes, trainer and weights, a run completes or says what failed; no
//! rule of its history is broken; and every run of the simulation can be replayed from its seed.
//!
//! `GREENROOM_SIM_SEED=17 cargo test --test simulation replay -- --nocapture` plays one seed and tells its story.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // helpers of tests

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use greenroom_run::{RunEnd, ScheduleMode};
use greenroom_sim::{Misfortunes, Report, Sabotage, Scenario, World};

const SEEDS: u64 = 500;
/// Plays more seeds than that.
const SEEDS_VARIABLE: &str = "GREENROOM_SIM_SEEDS";
const SEED_VARIABLE: &str = "GREENROOM_SIM_SEED";
const HASH_VARIABLE: &str = "GREENROOM_SIM_HASH_OF";

/// Plays seeds on all cores; the reports in order of seeds.
fn play(seeds: u64, scenario: impl Fn(u64) -> Scenario + Sync) -> Vec<Report> {
    let next = AtomicU64::new(0);
    let reports = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let report = Report { events: Vec::new(), ..World::run(&scenario(seed), seed).unwrap() };
                    reports.lock().unwrap().insert(seed, report);
                }
            });
        }
    });
    reports.into_inner().unwrap().into_values().collect()
}

fn replay_command(seed: u64) -> String {
    format!("{SEED_VARIABLE}={seed} cargo test --test simulation replay -- --nocapture")
}

/// What is wrong with a run that should have completed; empty when nothing is.
fn faults(report: &Report) -> String {
    let mut faults: Vec<String> =
        report.violations.iter().map(|broken| format!("{}: {}", broken.invariant, broken.detail)).collect();
    if !report.is_completed() {
        faults.push(format!("it ended as {:?}", report.end));
    }
    faults.join("\n  ")
}

#[test]
fn five_hundred_seeds_break_no_rule_and_complete() {
    let seeds = std::env::var(SEEDS_VARIABLE).ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let reports = play(seeds, Scenario::random);
    let broken: Vec<String> = reports
        .iter()
        .filter(|report| !faults(report).is_empty())
        .map(|report| format!("seed {}: {}\n  replay: {}", report.seed, faults(report), replay_command(report.seed)))
        .collect();
    assert!(broken.is_empty(), "{} of {seeds} seeds:\n{}", broken.len(), broken.join("\n"));
    let mut met: BTreeMap<&str, u32> = BTreeMap::new();
    for (kind, count) in reports.iter().flat_map(|report| &report.misfortunes) {
        *met.entry(kind).or_default() += count;
    }
    let hashes: BTreeSet<u64> = reports.iter().map(|report| report.event_hash).collect();
    let asynchronous = (0..seeds).filter(|seed| Scenario::random(*seed).run.schedule == ScheduleMode::Async).count();
    let hours: u64 = reports.iter().map(|report| report.virtual_ms).sum::<u64>() / 3_600_000;
    let all_met: u32 = met.values().sum();
    println!("{seeds} runs, {asynchronous} of them one step ahead, {hours} virtual hours, 0 violations");
    println!("{all_met} misfortunes: {met:?}");
    assert_eq!(hashes.len() as u64, seeds, "another seed is another run");
    assert_eq!(met.len(), 20, "every kind of misfortune is met");
    assert!(asynchronous as u64 > seeds / 3, "{asynchronous} asynchronous runs");
}

#[test]
fn replay() {
    let Some(seed) = std::env::var(SEED_VARIABLE).ok().and_then(|seed| seed.parse().ok()) else { return };
    let scenario = Scenario::random(seed);
    println!("{scenario:#?}");
    let report = World::run(&scenario, seed).unwrap();
    println!("{}", report.story());
    println!("seed {seed}: {:?}, hash {:016x}", report.end, report.event_hash);
    assert_eq!(faults(&report), "");
}

/// Run by another process: tells the hash of a seed.
#[test]
fn tell_a_hash() {
    let Some(seed) = std::env::var(HASH_VARIABLE).ok().and_then(|seed| seed.parse().ok()) else { return };
    let report = World::run(&Scenario::random(seed), seed).unwrap();
    println!("hash={:016x}", report.event_hash);
}

#[test]
fn the_same_seed_gives_the_same_events_in_this_process_and_in_another() {
    let hash = |seed| World::run(&Scenario::random(seed), seed).unwrap().event_hash;
    for report in play(60, Scenario::random) {
        assert_eq!(report.event_hash, hash(report.seed), "seed {}, a second time in this process", report.seed);
    }
    for seed in [3, 11, 42] {
        let here = hash(seed);
        let mut other = Command::new(std::env::current_exe().unwrap());
        let other = other.env(HASH_VARIABLE, seed.to_string()).args(["--exact", "tell_a_hash", "--nocapture"]);
        let output = String::from_utf8(other.output().unwrap().stdout).unwrap();
        let told = output.split_once("hash=").unwrap_or_else(|| panic!("no hash in {output}")).1;
        assert_eq!(told.get(..16).unwrap(), format!("{here:016x}"), "seed {seed}, in another process");
    }
}

#[test]
#[allow(clippy::disallowed_methods)] // this compares the machine's time with the simulation's
fn an_hour_of_a_run_takes_less_than_ten_seconds_and_its_reward_rises() {
    let begun = std::time::Instant::now();
    let report = World::run(&Scenario::hour(), 1).unwrap();
    let wall = begun.elapsed();
    assert_eq!(faults(&report), "");
    let ratio = report.virtual_ms as f64 / wall.as_millis() as f64;
    let minutes = report.virtual_ms / 60_000;
    println!("{minutes} virtual minutes in {:.2} s: {ratio:.0} times as fast as life", wall.as_secs_f64());
    assert!(report.virtual_ms >= 3_600_000, "only {minutes} minutes");
    let hour = wall.mul_f64(3_600_000.0 / report.virtual_ms as f64);
    assert!(hour.as_secs_f64() < 10.0, "an hour takes {hour:?}");
    let Some(RunEnd::Completed(summary)) = report.end else { panic!("{:?}", report.end) };
    let (before, after) = (summary.eval_before.unwrap(), summary.eval_after.unwrap());
    let first_to_last = summary.pass_at_1_last.unwrap() - summary.pass_at_1_first.unwrap();
    assert!(after >= before && first_to_last > 0.0, "{summary:?}");
}

#[test]
fn engines_that_are_lost_for_good_end_the_run_with_a_named_part_and_in_time() {
    for (seed, lost_at_ms) in [(1, 0), (2, 20_000), (3, 60_000), (4, 100_000), (5, 150_000)] {
        let mut scenario = Scenario::random(seed);
        scenario.misfortunes = Misfortunes::default();
        scenario.engines_lost_at_ms = Some(lost_at_ms);
        scenario.run.steps = 50;
        (scenario.run.step_retries, scenario.run.batch_retries) = (3, 1);
        let report = World::run(&scenario, seed).unwrap();
        let Some(RunEnd::Failed(reason)) = &report.end else { panic!("seed {seed}: {:?}", report.end) };
        assert!(reason.contains("rollouts: ") || reason.contains("engine pool: "), "seed {seed}: {reason}");
        assert_eq!(report.violations, [], "seed {seed}");
        let limit_ms = lost_at_ms + 3 * scenario.run.batch_silence_ms;
        assert!(report.virtual_ms < limit_ms, "seed {seed}: {} ms, at most {limit_ms}", report.virtual_ms);
    }
}

/// Looks for the first seed that catches a broken part, and replays it.
fn catch(sabotage: Sabotage, invariants: &[&str]) {
    let scenario = |seed: u64| {
        let misfortunes = Misfortunes { sandbox: 8, probability: 0.3, ..Misfortunes::default() };
        let mut scenario = Scenario { sabotage: Some(sabotage), misfortunes, ..Scenario::random(seed) };
        scenario.rollout.max_attempts = 1;
        scenario
    };
    let is_caught = |report: &Report| {
        let by_a_rule = report.violations.iter().any(|broken| invariants.contains(&broken.invariant));
        by_a_rule || (invariants.is_empty() && !report.is_completed())
    };
    let caught = (0..20).map(|seed| World::run(&scenario(seed), seed).unwrap()).find(is_caught);
    let caught = caught.unwrap_or_else(|| panic!("{sabotage:?} is not caught by 20 seeds"));
    println!("{sabotage:?} is caught by seed {}: {}", caught.seed, faults(&caught));
    let again = World::run(&scenario(caught.seed), caught.seed).unwrap();
    assert_eq!(caught.event_hash, again.event_hash, "{sabotage:?}: the replay of seed {} differs", caught.seed);
    assert_eq!(caught.violations, again.violations);
}

#[test]
fn a_broken_part_is_caught_by_a_seed_and_replayed() {
    catch(Sabotage::BoxHandedOutTwice, &["no lease overlaps another one in the same box"]);
    catch(Sabotage::StaleWeights, &["an engine generates with the weights that its label names"]);
    catch(Sabotage::FailuresDressedAsRollouts, &["what is trained on ended as the history of events says"]);
    catch(Sabotage::BoxesLeak, &["every box is destroyed"]);
    catch(Sabotage::GroupsLost, &[]);
}
