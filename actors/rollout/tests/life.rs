//! Promise: every rollout ends exactly once, in the outcome that tells what happened, and gives back all it held.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may

mod support;

use std::sync::Arc;

use greenroom_core::{Deadline, ask};
use greenroom_messages::engine::EngineFailureKind;
use greenroom_messages::rollout::{
    FinishedGroup, FinishedRollout, GroupOutcome, InfraKind, RolloutManagerMessage, RolloutOutcome, RolloutState,
    Sample,
};
use greenroom_messages::run::RunEvent;
use greenroom_messages::sandbox::SandboxFailureKind;
use greenroom_messages::{GroupId, Purpose, RolloutId};
use greenroom_rollout::grading::CHANGE_PATH;
use greenroom_rollout::{Dataset, GradeIn, RolloutConfig, RolloutError};
use support::{CHANGE, Claim, Do, SUBMIT, Say, Script, TOKENIZER, arguments, batch, command, config, start, world};

fn only(group: &FinishedGroup) -> &FinishedRollout {
    let [rollout] = group.rollouts.as_slice() else { panic!("{} rollouts", group.rollouts.len()) };
    rollout
}

fn text(sample: &Sample, mask: u8) -> String {
    let ids = sample.tokens.iter().zip(&sample.loss_mask).filter(|(_, found)| **found == mask).map(|(id, _)| *id);
    TOKENIZER.decode(&ids.collect::<Vec<_>>(), false).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_rollout_lives_from_claim_to_grade_and_is_one_sample() {
    let mut world = world(config(), Script::default()).await;
    world.start_batch(batch(1, 2)).await.unwrap();
    let group = world.group().await;
    assert_eq!(group.outcome, GroupOutcome::Trainable);
    for (sample, rollout) in (0..).zip(&group.rollouts) {
        assert_eq!(rollout.rollout, RolloutId { group: group.group, sample, attempt: 0 });
        assert_eq!((&rollout.outcome, rollout.reward), (&RolloutOutcome::Completed, Some(1.0)));
        assert_eq!((rollout.exit_status.as_str(), rollout.turns, rollout.forks), ("Submitted", 2, 0));
        assert!(rollout.lease.is_some() && rollout.warm);
        assert_eq!((rollout.timings.execs, rollout.exec_calls_ms.len()), (2, 2));
        let [trained] = rollout.samples.as_slice() else { panic!() };
        let sampled = text(trained, 1);
        assert!(sampled.contains("\nls\n") && sampled.contains(SUBMIT) && sampled.ends_with("```<|im_end|>"));
        assert!(text(trained, 0).contains("a.py") && !sampled.contains("a.py"), "observations are masked");
    }
    world.assert_quiet().await;
    let seen = world.seen.lock().unwrap();
    let first = group.rollouts[0].rollout;
    let commands: Vec<&str> =
        seen.commands.iter().filter(|(rollout, _)| *rollout == first).map(|(_, command)| command.as_str()).collect();
    let task = group.task.as_str().strip_prefix("task-").unwrap();
    let [prepare, look, submit, end, take, again, restore, clear, grade] = commands.as_slice() else {
        panic!("{commands:?}")
    };
    assert_eq!(*end, "sleep 60", "outlives its deadline of a millisecond, which ends whatever the agent left running");
    assert_eq!((*prepare, *look, *submit, *again), ("prepare", "ls", SUBMIT, "prepare"));
    assert!(take.contains("tar -cf") && restore.contains("tar -x"), "{take} {restore}");
    let leases = &seen.leases_of[&first];
    assert_eq!((leases.len(), group.rollouts[0].lease), (2, Some(leases[0])), "one to act in, one to be graded in");
    assert!(clear.contains("rm -rf -- 'test_a.py'") && grade.contains(&format!("grade {task}")), "{clear} {grade}");
    let files: Vec<&str> = seen.files.iter().map(|file| file.path.as_str()).collect();
    assert!(files.contains(&"/work/a.py") && files.contains(&"/work/test_a.py"));
    let change = seen.files.iter().find(|file| file.path == CHANGE_PATH).unwrap();
    assert_eq!(change.content, CHANGE);
    let states: Vec<RolloutState> = seen
        .events
        .iter()
        .filter_map(|event| match event {
            RunEvent::RolloutMoved { rollout, state } if *rollout == first => Some(*state),
            _ => None,
        })
        .collect();
    use RolloutState::{Claiming, Executing, Generating, Grading, SettingUp};
    assert_eq!(states, [Claiming, SettingUp, Generating, Executing, Generating, Executing, Grading]);
    let seeds: std::collections::BTreeSet<_> = seen.requests.iter().map(|request| request.sampling.seed).collect();
    assert_eq!(seeds.len(), seen.requests.len(), "every request has a seed of its own");
    assert!(seen.requests.iter().all(|request| request.rid.len() == seen.requests[0].rid.len()));
    let of_first: Vec<_> = seen.requests.iter().filter(|request| request.rollout == first).collect();
    assert!(of_first[1].input_ids.starts_with(&of_first[0].input_ids), "the second prompt extends the first");
}

#[tokio::test(start_paused = true)]
async fn hidden_tests_are_in_the_box_of_the_grading_only_and_nothing_runs_there_before_it() {
    let row = r#"{"text": "mend it", "label": "a__b.1.bug__2", "metadata": {"eval_kind": "swesmith", "test_cmd": "pytest",
        "pool": "py", "workdir": "/work", "FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": ["t.py::b"]}}"#;
    const FOUND: &str = "1111111111111111111111111111111111111111\n2222222222222222222222222222222222222222\n\
        /work\n/work/.git\n2\n";
    const WITHHELD: &str = "greenroom-commits:\n1111111111111111111111111111111111111111\n\
        2222222222222222222222222222222222222222\n/work\n/work/.git\n2\n";
    for withhold_history in [true, false] {
        let script = Script {
            shell: Box::new(|rollout, given| match given {
                _ if given.contains("commit-tree") => Do::Print(WITHHELD, 0),
                _ if given.contains("rev-list") => Do::Print(FOUND, 0),
                _ if given.contains("git apply") => Do::Print("greenroom-prepared: applied\n", 0),
                _ if given.contains("pytest") => {
                    Do::Print(">>>>> Start Test Output\nt.py::a PASSED\nt.py::b PASSED\n>>>>> End Test Output\n", 0)
                }
                _ => (Script::default().shell)(rollout, given),
            }),
            ..Script::default()
        };
        let (mut arguments, seen) = arguments(RolloutConfig { withhold_history, ..config() }, script);
        let rows = Dataset::parse(&row.replace('\n', " "), "tasks.jsonl").unwrap();
        arguments.datasets.insert(Purpose::Train, Arc::new(rows));
        let mut world = start(arguments, seen).await;
        world.start_batch(batch(1, 1)).await.unwrap();
        let group = world.group().await;
        assert_eq!((&only(&group).outcome, only(&group).reward), (&RolloutOutcome::Completed, Some(1.0)));
        world.assert_quiet().await;
        let seen = world.seen.lock().unwrap();
        let [found, look, _, _, take, found_again, prepare, test] = seen.commands.as_slice() else {
            panic!("{:?}", seen.commands)
        };
        let words = if withhold_history { "commit-tree" } else { "rev-list" };
        assert!(found.1.contains(words) && look.1 == "ls" && found_again.1.contains(words), "{:?}", seen.commands);
        assert!(!found.1.contains("\"$base\" \"$tests\"; }") || !withhold_history, "the agent's box keeps no tests");
        assert_eq!(found_again.1.contains("\"$base\" \"$tests\"; }"), withhold_history, "{}", found_again.1);
        assert!(take.1.contains("git diff --cached --binary") && prepare.1.contains("git apply"));
        assert!(test.1.contains("pytest"));
        let [change] = seen.files.as_slice() else { panic!("{:?}", seen.files) };
        assert_eq!((change.path.as_str(), change.content.as_slice()), (CHANGE_PATH, CHANGE));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_an_untouched_box_does_not_have_is_a_zero() {
    // Which box of the rollout a command runs in: set-up begins each.
    let boxes = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let broken = |words: &'static str, in_box: u32, act: Do| {
        let boxes = boxes.clone();
        boxes.store(0, std::sync::atomic::Ordering::Relaxed);
        Script {
            shell: Box::new(move |rollout, given| {
                if given == "prepare" {
                    boxes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                let is_there = boxes.load(std::sync::atomic::Ordering::Relaxed) == in_box;
                if is_there && given.contains(words) { act.clone() } else { (Script::default().shell)(rollout, given) }
            }),
            ..Script::default()
        }
    };
    let cases = [
        ("the work cannot be taken", "tar -cf", 1, Do::Print("No space left on device", 1), 2),
        ("the work is too large", "tar -cf", 1, Do::Print("greenroom-taken: too-large\n", 0), 2),
        ("the taking does not end", "tar -cf", 1, Do::TimeOut, 2),
        ("the work does not fit", "tar -x", 2, Do::Print("greenroom-restored: rejected\n", 0), 2),
        ("the restoring does not end", "tar -x", 2, Do::TimeOut, 3),
        ("hidden files have no place", "rm -rf --", 2, Do::Print("Permission denied", 1), 3),
        ("its command is not found", "grade", 2, Do::Print("sh: x: not found", 127), 3),
        ("nothing starts", "grade", 2, Do::NotStart, 3),
        ("the tests do not end", "grade", 2, Do::TimeOut, 2),
    ];
    for (name, words, in_box, act, leases) in cases {
        let mut world = world(config(), broken(words, in_box, act)).await;
        world.start_batch(batch(1, 1)).await.unwrap();
        let group = world.group().await;
        let last = only(&group);
        assert_eq!((&last.outcome, last.reward), (&RolloutOutcome::Completed, Some(0.0)), "{name}");
        world.assert_quiet().await;
        assert_eq!(world.seen.lock().unwrap().leases_of[&last.rollout].len(), leases, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_rollouts_as_there_are_boxes_do_not_wait_for_each_other() {
    let boxes = 3;
    let claims = Arc::new(std::sync::Mutex::new(0));
    let counted = claims.clone();
    let script = Script {
        claim: Box::new(move |_| {
            *counted.lock().unwrap() += 1;
            Claim::Give
        }),
        ..Script::default()
    };
    let mut world = world(RolloutConfig { max_running: boxes, ..config() }, script).await;
    world.start_batch(batch(2, 6)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(world.group().await.outcome, GroupOutcome::Trainable);
    }
    world.assert_quiet().await;
    assert_eq!(*claims.lock().unwrap(), 2 * 12, "two claims for each rollout");
    assert!(world.seen.lock().unwrap().most_leases <= boxes as usize);
}

#[tokio::test(start_paused = true)]
async fn a_command_is_graded_in_the_agents_box_where_that_is_wanted() {
    let mut world = world(RolloutConfig { grade_in: GradeIn::SameBox, ..config() }, Script::default()).await;
    world.start_batch(batch(1, 1)).await.unwrap();
    let group = world.group().await;
    assert_eq!(only(&group).reward, Some(1.0));
    world.assert_quiet().await;
    let seen = world.seen.lock().unwrap();
    assert_eq!(seen.leases, 1);
    assert!(seen.commands.iter().all(|(_, command)| !command.contains("tar ")), "{:?}", seen.commands);
}

/// One way in which infrastructure fails, and the part that is blamed.
fn failures() -> Vec<(&'static str, Script, InfraKind)> {
    let base = Script::default;
    let engine = |say: Say| Script { engine: Box::new(move |_| say.clone()), ..base() };
    let shell = |wanted: &'static str, act: Do| Script {
        shell: Box::new(
            move |_, given| {
                if given.contains(wanted) { act.clone() } else { (base().shell)(rollout(), given) }
            },
        ),
        ..base()
    };
    vec![
        ("claim fails", Script { claim: Box::new(|_| Claim::Fail), ..base() }, InfraKind::Sandbox),
        ("claim hangs", Script { claim: Box::new(|_| Claim::Hang), ..base() }, InfraKind::Sandbox),
        ("files are refused", Script { put_files_fail: true, ..base() }, InfraKind::Sandbox),
        ("set-up fails", shell("prepare", Do::Print("no such branch", 1)), InfraKind::SetUp),
        ("set-up times out", shell("prepare", Do::TimeOut), InfraKind::SetUp),
        ("box is lost at a command", shell("ls", Do::Fail(SandboxFailureKind::Lost)), InfraKind::Sandbox),
        ("box hangs at a command", shell("ls", Do::Hang), InfraKind::Sandbox),
        ("box expires in grading", shell("grade", Do::Fail(SandboxFailureKind::Expired)), InfraKind::Sandbox),
        ("grading does not start", shell("grade", Do::NotStart), InfraKind::Grading),
        ("engine is lost", engine(Say::Fail(EngineFailureKind::Lost)), InfraKind::Engine),
        ("engine refuses", engine(Say::Fail(EngineFailureKind::Refused)), InfraKind::Engine),
        ("engine hangs", engine(Say::Hang), InfraKind::Engine),
        ("engine talks nonsense", engine(Say::Nonsense), InfraKind::Engine),
        ("engine gives up for ever", engine(Say::Abort(String::new(), 0)), InfraKind::Engine),
        ("loop panics", engine(Say::Panic), InfraKind::Agent),
    ]
}

fn rollout() -> RolloutId {
    let group = GroupId { batch: batch(1, 1).batch, index: 0 };
    RolloutId { group, sample: 0, attempt: 0 }
}

#[tokio::test(start_paused = true)]
async fn every_failure_of_infrastructure_has_its_kind_is_tried_again_and_is_never_a_reward() {
    for (name, script, kind) in failures() {
        // A guard longer than every time-out within, so that the part itself is blamed.
        let config = RolloutConfig { guard_ms: Some(2_000_000), ..config() };
        let mut world = world(config, script).await;
        world.start_batch(batch(1, 1)).await.unwrap();
        let group = world.group().await;
        let last = only(&group);
        let RolloutOutcome::InfraFailed(failure) = &last.outcome else { panic!("{name}: {:?}", last.outcome) };
        assert_eq!(failure.kind, kind, "{name}: {}", failure.message);
        assert_eq!((last.reward, last.samples.len()), (None, 0), "{name}");
        // What fails in the same words again will go on to do so, where neither chance nor the agent has a part in it.
        let tries = if matches!(kind, InfraKind::SetUp | InfraKind::Grading) { 2 } else { 3 };
        assert_eq!(last.rollout.attempt + 1, tries, "{name}: so often it was tried");
        let GroupOutcome::Dropped(reason) = &group.outcome else { panic!("{name}") };
        assert!(reason.contains("0 of 1 rollouts can be trained on") && reason.contains("infra_failed"), "{reason}");
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_guard_ends_a_loop_that_is_stuck_wherever_it_is() {
    let stuck: [Script; 3] = [
        Script { claim: Box::new(|_| Claim::Hang), ..Script::default() },
        Script { engine: Box::new(|_| Say::Hang), ..Script::default() },
        Script { shell: Box::new(|_, _| Do::Hang), ..Script::default() },
    ];
    for script in stuck {
        let config = RolloutConfig { guard_ms: Some(20_000), max_attempts: 1, ..config() };
        let mut world = world(config, script).await;
        world.start_batch(batch(1, 1)).await.unwrap();
        let group = world.group().await;
        let RolloutOutcome::InfraFailed(failure) = &only(&group).outcome else { panic!() };
        assert_eq!((failure.kind, only(&group).timings.total_ms), (InfraKind::Guard, 20_000));
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_followed_by_another_under_a_new_id() {
    let script = Script {
        claim: Box::new(|rollout| if rollout.attempt == 0 && rollout.sample == 1 { Claim::Fail } else { Claim::Give }),
        ..Script::default()
    };
    let mut world = world(config(), script).await;
    world.start_batch(batch(1, 3)).await.unwrap();
    let group = world.group().await;
    let attempts: Vec<u32> = group.rollouts.iter().map(|rollout| rollout.rollout.attempt).collect();
    assert_eq!((attempts, &group.outcome), (vec![0, 1, 0], &GroupOutcome::Trainable));
    assert!(group.rollouts.iter().all(|rollout| rollout.outcome == RolloutOutcome::Completed));
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn limits_truncate_and_are_graded() {
    let base = config;
    let looks = || Script { engine: Box::new(|_| command("ls")), ..Script::default() };
    let fails = || Script { engine: Box::new(|_| Say::Text("no action".to_owned(), 0)), ..Script::default() };
    let too_long = || Script {
        engine: Box::new(|request| match request.turn {
            0 => command("ls"),
            _ => Say::Fail(EngineFailureKind::ContextExceeded),
        }),
        ..Script::default()
    };
    let small = RolloutConfig { max_context_tokens: 900, max_new_tokens: 100, ..base() };
    let cases = [
        ("step limit", base(), looks(), "LimitsExceeded", 4, 1),
        ("format errors", base(), fails(), "RepeatedFormatError", 3, 3),
        ("the engine's context", base(), too_long(), "ContextWindowExceededError", 1, 1),
        (
            "the setting's context",
            small,
            Script {
                engine: Box::new(|_| Say::Text(format!("```mswea_bash_command\n{}\n```", "x".repeat(60)), 0)),
                ..Script::default()
            },
            "ContextWindowExceededError",
            0,
            0,
        ),
    ];
    for (name, config, script, exit_status, turns, samples) in cases {
        let mut world = world(config, script).await;
        world.start_batch(batch(1, 1)).await.unwrap();
        let group = world.group().await;
        let last = only(&group);
        assert_eq!((&last.outcome, last.reward), (&RolloutOutcome::Truncated, Some(1.0)), "{name}");
        assert_eq!(last.exit_status, exit_status, "{name}");
        if turns > 0 {
            assert_eq!((last.turns, last.samples.len()), (turns, samples), "{name}");
        }
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_reply_and_an_aborted_turn_keep_their_tokens() {
    let script = Script {
        engine: Box::new(|request| match (request.turn, request.rid.ends_with("c00")) {
            (0, true) => Say::Abort("THOUGHT: hm.\n```mswea_bash_command\nec".to_owned(), 3),
            (0, false) => Say::Text("ho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```".to_owned(), 4),
            _ => Say::Cut("never".to_owned()),
        }),
        ..Script::default()
    };
    let mut world = world(config(), script).await;
    world.start_batch(batch(1, 1)).await.unwrap();
    let group = world.group().await;
    let last = only(&group);
    assert_eq!((&last.outcome, last.turns), (&RolloutOutcome::Completed, 1));
    let [sample] = last.samples.as_slice() else { panic!() };
    assert_eq!(sample.versions.iter().map(|span| span.number).collect::<Vec<_>>(), [Some(3), Some(4)]);
    assert!(text(sample, 1).contains(SUBMIT));
    world.assert_quiet().await;
    let seen = world.seen.lock().unwrap();
    let [first, rest] = seen.requests.as_slice() else { panic!() };
    assert!(rest.input_ids.starts_with(&first.input_ids) && rest.input_ids.len() > first.input_ids.len());
    assert!(rest.sampling.max_new_tokens < first.sampling.max_new_tokens);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_too_old_weights_make_a_rollout_stale() {
    for (drop_stale, expected) in [(true, RolloutOutcome::Stale), (false, RolloutOutcome::Completed)] {
        let mut world = world(RolloutConfig { drop_stale, ..config() }, Script::default()).await;
        world.start_batch(greenroom_messages::rollout::StartBatch { oldest_version: 1, ..batch(1, 1) }).await.unwrap();
        let group = world.group().await;
        assert_eq!(only(&group).outcome, expected);
        assert_eq!(only(&group).reward.is_some(), expected.is_trainable());
        world.assert_quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_what_runs_and_what_waits() {
    let script = Script { engine: Box::new(|_| Say::Hang), ..Script::default() };
    let mut world = world(RolloutConfig { max_running: 2, ..config() }, script).await;
    let asked = batch(2, 2);
    let first = GroupId { batch: asked.batch, index: 0 };
    world.start_batch(asked).await.unwrap();
    tokio::time::sleep(tokio::time::Duration::from_secs(5)).await;
    let one = RolloutId { group: first, sample: 0, attempt: 0 };
    let cancel = |rollout| {
        ask(&world.address, Deadline::after_ms(1000), move |reply| RolloutManagerMessage::CancelRollout(rollout, reply))
    };
    assert_eq!(cancel(one).await, Ok(true));
    assert_eq!(cancel(one).await, Ok(false), "it has ended");
    world.address.cast(RolloutManagerMessage::CancelBatch(first.batch)).unwrap();
    for _ in 0..2 {
        let group = world.group().await;
        assert!(matches!(&group.outcome, GroupOutcome::Dropped(reason) if reason.contains("cancelled")));
        assert!(group.rollouts.iter().all(|rollout| rollout.outcome == RolloutOutcome::Cancelled));
    }
    world.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn pause_holds_admission_and_repeating_a_batch_starts_nothing_twice() {
    let mut world = world(config(), Script::default()).await;
    world.address.cast(RolloutManagerMessage::SetPaused(true)).unwrap();
    world.start_batch(batch(2, 1)).await.unwrap();
    tokio::time::sleep(tokio::time::Duration::from_secs(100)).await;
    let status = ask(&world.address, Deadline::after_ms(1000), RolloutManagerMessage::Status).await.unwrap();
    assert_eq!((status.paused, status.queued, status.running, status.groups_open), (true, 2, 0, 2));
    world.start_batch(batch(2, 1)).await.unwrap();
    world.address.cast(RolloutManagerMessage::SetPaused(false)).unwrap();
    let groups = [world.group().await.group, world.group().await.group];
    world.assert_quiet().await;
    // Asked for again because the first was not good enough: the finished one is left alone, the other has new ids.
    let again = greenroom_messages::rollout::StartBatch { finished_groups: vec![groups[0]], ..batch(2, 1) };
    world.start_batch(again).await.unwrap();
    let group = world.group().await;
    assert_eq!((group.group, only(&group).rollout.attempt), (groups[1], 1));
    world.assert_quiet().await;
    for refused in [batch(0, 1), batch(1, 0)] {
        assert!(world.start_batch(refused).await.unwrap_err().message.contains("no rollouts"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_history() {
    let mut histories = Vec::new();
    for _ in 0..2 {
        let mut world = world(config(), Script::default()).await;
        world.start_batch(batch(3, 4)).await.unwrap();
        let groups = [world.group().await, world.group().await, world.group().await];
        let seen = world.seen.lock().unwrap();
        histories.push(format!("{groups:?} {:?} {:?}", seen.events, seen.requests));
    }
    assert!(histories[0] == histories[1]);
}

#[tokio::test]
async fn a_trajectory_file_is_kept_where_one_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let (mut arguments, seen) = arguments(config(), Script::default());
    arguments.trajectories = Some(dir.path().join("trajectories"));
    let mut world = start(arguments, seen).await;
    world.start_batch(batch(1, 1)).await.unwrap();
    let group = world.group().await;
    let path = dir.path().join(format!("trajectories/{}.traj.json", only(&group).rollout));
    let file: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(file["trajectory_format"], "mini-swe-agent-1.1");
    assert_eq!(
        (file["info"]["exit_status"].as_str(), file["info"]["model_stats"]["api_calls"].as_u64()),
        (Some("Submitted"), Some(2))
    );
    let roles: Vec<_> = file["messages"].as_array().unwrap().iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant", "exit"]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_work_is_refused_before_anything_runs() {
    let refusal = |change: fn(&mut greenroom_rollout::RolloutManagerArguments)| {
        let (mut arguments, _) = arguments(config(), Script::default());
        change(&mut arguments);
        arguments.check().unwrap_err()
    };
    let no_pool = refusal(|arguments| arguments.sandboxes.clear());
    assert!(matches!(&no_pool, RolloutError::NoPool { image, .. } if image == "py"), "{no_pool}");
    let short = refusal(|arguments| arguments.config.sandbox_lifetime_ms = Some(1));
    assert!(short.to_string().contains("set it to at least"), "{short}");
    let tools =
        refusal(|arguments| arguments.agent.model.protocol = greenroom_rollout::agent::ActionProtocol::ToolCall);
    assert_eq!(tools.code(), "GR0303");
}
