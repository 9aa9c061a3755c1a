//! A run survives the death of its process at any moment: nothing is lost, nothing is trained twice, nothing is left behind.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_core::Seed;
use support::ledger::Ledger;
use support::{Run, finish_child, greenroom, signal, succeed, text};

const STEPS: u64 = 5;
const GROUPS: u64 = 2;
const SAMPLES: u64 = 3;

fn run(settings: &[&str]) -> Run {
    run_of(STEPS, settings)
}

fn run_of(steps: u64, settings: &[&str]) -> Run {
    let (steps, groups, samples) = (
        format!("run.steps={steps}"),
        format!("run.groups_per_batch={GROUPS}"),
        format!("run.samples_per_group={SAMPLES}"),
    );
    let mut all = vec![steps.as_str(), groups.as_str(), samples.as_str()];
    all.extend(settings);
    Run::new(&all)
}

fn assert_whole(run: &Run) {
    assert_whole_of(run, STEPS);
}

fn assert_whole_of(run: &Run, steps: u64) {
    let check = succeed(greenroom().arg("check").arg(run.dir()));
    assert!(text(&check.stderr).contains(" 0 of "), "{}", text(&check.stderr));
    Ledger::open(&run.dir()).assert_nothing_lost_or_trained_twice(steps, GROUPS, SAMPLES);
    let details = "SELECT DISTINCT detail FROM rollouts WHERE outcome = 'completed' ORDER BY detail";
    let known = ["Submitted, command_failed: exit status 1", "Submitted, passed"];
    assert_eq!(Ledger::open(&run.dir()).column(details), known, "why a reward is what it is");
    assert_eq!(run.metrics().len() as u64, steps, "a line for each step, whenever the process died");
    run.assert_no_sandbox_processes();
    run.assert_no_sandbox_directories();
}

/// SIGKILL at ten moments drawn from a seed, then once more to the end. GREENROOM_TEST_SEED repeats one draw.
#[test]
fn killed_at_ten_random_moments_a_run_finishes_whole() {
    let seed = std::env::var("GREENROOM_TEST_SEED").map_or(1, |text| text.parse().unwrap());
    println!("GREENROOM_TEST_SEED={seed}");
    let draw = |what, kill| Seed::new(seed).child_numbered(what, kill).value();
    // a quick machine makes a step in a third of a second, and few of them before each kill
    let steps = 40;
    let run = run_of(steps, &[]);
    let mut phases: BTreeMap<String, u64> = BTreeMap::new();
    let mut kills = 0;
    while kills < 10 {
        let epoch = run.epoch();
        let mut child = Run::spawn(&mut run.go_on());
        // Two in ten while it still starts; the others counted from its first phase, or a slow machine would see no other.
        if draw("early", kills) % 10 >= 2 {
            let begun = format!("SELECT 1 FROM events WHERE event = 'phase_changed' AND epoch > {epoch}");
            support::wait_until("the start", || {
                let ledger = Ledger::try_open(&run.dir());
                ledger.is_ok_and(|ledger| ledger.try_column(&begun).is_ok_and(|found| !found.is_empty()))
                    || child.try_wait().unwrap().is_some()
            });
        }
        std::thread::sleep(Duration::from_millis(draw("moment", kills) % 1_500));
        if let Some(status) = child.try_wait().unwrap() {
            let output = child.wait_with_output().unwrap();
            assert!(status.success(), "after {kills} kills it ended with {status}:\n{}", text(&output.stderr));
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        let phase = Ledger::try_open(&run.dir()).map_or_else(|_| "start".to_owned(), |ledger| ledger.phase());
        println!("kill {kills}: {phase}");
        *phases.entry(phase).or_default() += 1;
        run.assert_no_sandbox_processes();
    }
    println!("{phases:?}");
    assert_eq!(kills, 10, "the run ended before it was killed ten times: make it longer");
    succeed(&mut run.resume());
    assert_whole_of(&run, steps);
}

/// The moments at which half of something is done, one after the other in one run. The visit counts from each process's
/// start.
#[test]
fn killed_between_the_halves_of_a_step_a_run_finishes_whole() {
    let undisturbed = run(&[]);
    succeed(&mut undisturbed.begin());
    let run = run(&[]);
    for fault in [
        "run.commit.before=crash@1",
        "run.commit.after=crash@1",
        "weights.publish.before_commit=crash@1",
        "weights.publish.after_commit=crash@1",
        "weights.apply.before_commit=crash@1",
        "weights.apply.after=crash@1",
        "run.commit.before=crash@1",
        "run.commit.after=crash@1",
        "weights.publish.before_commit=crash@2",
        "weights.apply.before_commit=crash@2",
    ] {
        let child = Run::spawn(run.go_on().env("GREENROOM_FAULTS", fault));
        let output = finish_child(child);
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        assert_eq!(signal, Some(6), "{fault} did not fire: {}\n{}", output.status, text(&output.stderr));
        run.assert_no_sandbox_processes();
    }
    succeed(&mut run.resume());
    assert_whole(&run);
    assert_eq!(run.metrics(), undisturbed.metrics(), "what was lost was drawn again as it was");
}

/// Crashes after the commit of this step.
fn crash_after(run: &Run, step: u64) {
    let fault = format!("run.commit.after=crash@{}", step + 1);
    let output = finish_child(Run::spawn(run.begin().env("GREENROOM_FAULTS", fault)));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6), "{}", text(&output.stderr));
}

fn weights_of(run: &Run, step: u64) -> std::path::PathBuf {
    run.dir().join(format!("checkpoints/step-{step:06}/masters.safetensors"))
}

/// Flips a bit; a second time mends it.
fn damage(file: &std::path::Path) {
    let mut content = std::fs::read(file).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(file, content).unwrap();
}

/// The newest checkpoint is damaged: the run goes on from the one before it, and makes the step after that again as it was.
/// Where no checkpoint is sound nothing is undone, and it is said what to do.
#[test]
fn a_damaged_checkpoint_costs_a_step_and_not_the_run() {
    let undisturbed = run(&[]);
    succeed(&mut undisturbed.begin());
    let run = run(&[]);
    crash_after(&run, 3);
    // the first may be forgotten already
    for step in (1..=3).filter(|step| weights_of(&run, *step).exists()) {
        damage(&weights_of(&run, step));
    }
    let output = finish_child(Run::spawn(&mut run.resume()));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let newest = weights_of(&run, 3).display().to_string();
    assert!(said.contains("GR0213") && said.contains(&newest) && said.contains("SHA-256"), "{said}");
    assert!(text(&succeed(greenroom().args(["explain", "GR0213"])).stdout).contains("weights/export"));
    assert_eq!(Ledger::open(&run.dir()).column("SELECT max(step) FROM steps"), ["3"], "nothing was undone");

    damage(&weights_of(&run, 2));
    std::fs::remove_file(weights_of(&run, 3)).unwrap();
    let said = text(&succeed(&mut run.resume()).stderr);
    let warning = said.lines().find(|line| line.starts_with("[WARN] GR0212")).unwrap_or_else(|| panic!("{said}"));
    assert!(warning.contains(&newest) && warning.contains("from step-2, and step 3 is made again"), "{warning}");
    assert_whole(&run);
    assert_eq!(run.metrics(), undisturbed.metrics(), "what was undone was made as it was");
    let hashes = |run: &Run| Ledger::open(&run.dir()).column("SELECT root_hash FROM weight_versions ORDER BY number");
    assert_eq!(hashes(&run), hashes(&undisturbed));
}

/// Several checkpoints are damaged, and the trajectories of a group: batches that were made by weights that are lost are
/// made anew, under new names, and the old ones count as never trained on.
#[test]
fn damaged_checkpoints_and_trajectories_are_made_up_for() {
    let run = run(&["run.keep_checkpoints=5", "run.schedule=async"]);
    crash_after(&run, 4);
    let was_trained = "SELECT rollout FROM rollouts WHERE trained_step >= 2 ORDER BY rollout";
    let trained = Ledger::open(&run.dir()).column(was_trained);
    for step in [2, 3, 4] {
        damage(&weights_of(&run, step));
    }
    std::fs::write(run.dir().join("trajectories/t00002-g000.bin"), "cut").unwrap();
    let said = text(&succeed(&mut run.resume()).stderr);
    assert!(said.contains("GR0212") && said.contains("from step-1, and steps 2 to 4 are made again"), "{said}");
    assert!(said.contains("trajectories/t00002-g000.bin"), "{said}");
    assert_whole(&run);
    assert_ne!(Ledger::open(&run.dir()).column(was_trained), trained, "batches of lost weights are others now");
}

/// A wish to stop within this time after another one is the same wish.
const ONE_WISH: Duration = Duration::from_millis(500);

/// SIGTERM once: after what is under way; twice: now. Both can be resumed, and leave nothing behind at once. Two signals at
/// once are one wish, as when a terminal and a parent process both pass a Ctrl-C on.
#[test]
fn told_to_stop_a_run_stops_and_can_be_resumed() {
    for (times, apart) in [(1, ONE_WISH), (2, ONE_WISH * 2), (2, Duration::ZERO)] {
        let run = run(&[]);
        let mut child = Run::spawn(&mut run.begin());
        support::wait_until("a rollout", || {
            let ledger = Ledger::try_open(&run.dir());
            ledger
                .is_ok_and(|ledger| ledger.try_column("SELECT rollout FROM turns").is_ok_and(|turns| !turns.is_empty()))
        });
        for _ in 0..times {
            // what is under way may have ended before the second wish
            if child.try_wait().unwrap().is_none() {
                signal(child.id(), "TERM");
            }
            std::thread::sleep(apart);
        }
        let output = finish_child(child);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{times} × SIGTERM: {said}");
        assert!(apart > Duration::ZERO || !said.contains("stopping now"), "two signals at once are one wish: {said}");
        assert!(said.contains("go on with --resume"), "{said}");
        assert_eq!(text(&output.stdout), "", "a stopped run has no summary to hand on");
        run.assert_no_sandbox_processes();
        run.assert_no_sandbox_directories();
        succeed(&mut run.resume());
        assert_whole(&run);
    }
}

/// A wish that comes while the run still starts is no death by a signal.
#[test]
fn told_to_stop_while_it_starts_a_run_stops_and_can_be_resumed() {
    let run = run(&["run.steps=1"]);
    let child = Run::spawn(&mut run.begin());
    support::wait_until("the run's directory", || run.dir().join("run.db").exists());
    signal(child.id(), "INT");
    let output = finish_child(child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("go on with --resume: greenroom up --runs"), "{said}");
    succeed(&mut run.resume());
    assert_eq!(run.metrics().len(), 1);
}

/// How often a phase was entered, over all processes.
fn entered(run: &Run, phase: &str) -> usize {
    let sql =
        format!("SELECT 1 FROM events WHERE event = 'phase_changed' AND json_extract(body, '$.phase') LIKE '{phase}%'");
    Ledger::try_open(&run.dir()).and_then(|ledger| ledger.try_column(&sql)).map_or(0, |found| found.len())
}

/// A warm start says how far it is, and one wish to stop ends it at its next optimizer step. Half of it is no policy, so a
/// resumed run begins it anew.
#[test]
fn told_to_stop_during_the_warm_start_a_run_stops_at_once_and_begins_it_anew() {
    let run = run(&["data.demonstrations=tosses.jsonl", "warm_start.epochs=1000"]);
    for process in 1..=2 {
        let child = Run::spawn(&mut run.go_on());
        support::wait_until("the warm start", || entered(&run, "warm start") == process);
        std::thread::sleep(Duration::from_millis(3_500));
        let told = std::time::Instant::now();
        signal(child.id(), "INT");
        let output = finish_child(child);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(told.elapsed() < Duration::from_secs(20), "it took {:?} to stop: {said}", told.elapsed());
        assert!(
            said.lines().any(|line| line.starts_with("[warm start] ") && line.contains(" % learnt of 600 ")),
            "{said}"
        );
        assert!(said.contains("--resume starts it anew"), "{said}");
        assert_eq!(Ledger::open(&run.dir()).column("SELECT step FROM steps"), Vec::<String>::new());
    }
}

/// A run whose engines cannot be reached waits for them, says so, and does not hold a wish to stop up.
#[test]
fn told_to_stop_a_run_does_not_wait_for_engines_that_are_not_there() {
    let run = run(&["engine.embedded.count=0", "engine.external.far.url=http://127.0.0.1:1"]);
    let child = Run::spawn(&mut run.begin());
    support::wait_until("the first update", || {
        let applied = "SELECT 1 FROM events WHERE event = 'weights_applied'";
        Ledger::try_open(&run.dir()).and_then(|ledger| ledger.try_column(applied)).is_ok_and(|found| !found.is_empty())
    });
    std::thread::sleep(Duration::from_secs(1));
    let told = std::time::Instant::now();
    signal(child.id(), "TERM");
    let output = finish_child(child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(told.elapsed() < Duration::from_secs(45), "it took {:?} to stop: {said}", told.elapsed());
}
