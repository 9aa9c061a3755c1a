//! The promises of the fleet, in virtual time over scripted engines: what is slow, silent, broken or restarted costs its
//! own turns at most, every question is answered in time, and weights change without a wrong token.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)] // a test's helpers may fail

mod support;

use std::time::Duration;

use greenroom_core::{Deadline, ask};
use greenroom_engine::*;
use greenroom_messages::EngineId;
use greenroom_messages::engine::*;
use greenroom_messages::run::RunEvent;
use support::*;
use tokio::time::Instant;

fn config() -> EngineConfig {
    EngineConfig::default()
}

#[tokio::test(start_paused = true)]
async fn a_fresh_engine_is_loaded_then_serves_a_turn() {
    let fleet = Fleet::serving(1, 4, config()).await;
    use EngineState::*;
    assert_eq!(fleet.moves(0), [Verifying, Syncing, Updating, Verifying, Serving]);
    let outcome = fleet.generate(request(0, 0)).await.unwrap();
    assert_eq!((outcome.output_ids, outcome.finish, outcome.cached_tokens), (vec![1, 2, 3], FinishReason::Stop, 2));
    assert_eq!(outcome.versions, [VersionSpan { number: Some(1), start: 0, end: 3 }]);
    assert_eq!(outcome.elapsed_ms, 101);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_never_answers_a_call_is_lost_in_time_and_comes_back() {
    let deadlines = config().deadlines;
    let rows = [
        ("ready", config().probe_interval_ms + deadlines.probe_ms),
        ("model_info", config().probe_interval_ms + deadlines.probe_ms),
        ("server_info", config().probe_interval_ms + deadlines.info_ms),
        ("pause", deadlines.pause_ms),
        // The update's own time-out of 60 s is shorter than the deadline of a load.
        ("load", 60_000),
        ("continue", deadlines.pause_ms),
    ];
    for (call, limit_ms) in rows {
        let fleet = Fleet::serving(1, 4, config()).await;
        let engine = &fleet.engines[0];
        engine.with(|script| {
            script.hang.insert(call);
            if call == "server_info" {
                script.label = "default".into(); // it was restarted, so it is inspected again
            }
        });
        let update = matches!(call, "pause" | "load" | "continue");
        let updating = update.then(|| {
            let (reply, answer) = greenroom_core::Reply::channel();
            fleet.pool.cast(EnginePoolMessage::UpdateWeights(wish(2), reply)).unwrap();
            answer
        });
        fleet.until(0, EngineState::Lost, limit_ms + 100).await;
        engine.with(|script| script.hang.clear());
        fleet.until(0, EngineState::Serving, 2_000).await;
        let wanted = if update { 2 } else { 1 };
        assert_eq!(fleet.statuses().await[0].version, Some(version(wanted)), "{call}");
        if let Some(answer) = updating {
            assert_eq!(answer.await.unwrap().len(), 1, "{call}: the update is answered once");
        }
        let missed = |event: &RunEvent| matches!(event, RunEvent::AskFailed { .. });
        assert!(fleet.journal.lock().unwrap().iter().any(missed), "{call}: the journal knows of the missed deadline");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_never_answered_ends_at_its_own_time_out_and_is_aborted() {
    let fleet = Fleet::serving(1, 4, config()).await;
    let engine = &fleet.engines[0];
    engine.with(|script| script.hang.insert("generate"));
    let begun = Instant::now();
    let failure = fleet.generate(request(0, 0)).await.unwrap_err();
    assert_eq!((failure.kind, begun.elapsed().as_millis()), (EngineFailureKind::TimedOut, 30_000));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!((engine.count("abort t00001-g000-s00-a00-t000"), engine.count("generate")), (1, 1));
    assert!(engine.with(|script| script.running.is_empty()), "its connection is closed");
    assert_eq!(fleet.statuses().await[0].state, EngineState::Serving, "slow is not dead");
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_reported_and_never_repeated() {
    let fleet = Fleet::serving(2, 4, config()).await;
    let (first, second) = (fleet.generate_later(request(0, 0)), fleet.generate_later(request(1, 0)));
    tokio::time::sleep(Duration::from_millis(5)).await;
    fleet.engines[0].with(|script| script.break_off.extend(["generate", "model_info"]));
    let broken = fleet.generate(request(2, 0)).await.unwrap_err();
    assert_eq!(broken.kind, EngineFailureKind::Lost);
    assert_eq!(first.await.unwrap().unwrap_err().kind, EngineFailureKind::Lost, "its neighbours there are lost too");
    assert!(second.await.unwrap().is_ok(), "the other engine is not concerned");
    assert_eq!(fleet.engines.iter().map(|engine| engine.count("generate")).sum::<usize>(), 3);
    fleet.engines[0].with(|script| script.break_off.clear());
    fleet.until(0, EngineState::Serving, 5_000).await;
}

#[tokio::test(start_paused = true)]
async fn an_asker_that_goes_away_aborts_its_turn() {
    let fleet = Fleet::serving(1, 1, config()).await;
    let engine = &fleet.engines[0];
    engine.with(|script| script.generate_ms = 20_000);
    let (flying, waiting) = (fleet.generate_later(request(0, 0)), fleet.generate_later(request(1, 0)));
    tokio::time::sleep(Duration::from_millis(5)).await;
    drop((flying, waiting));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((engine.count("abort"), engine.count("generate")), (1, 1), "the one that waited is never sent");
    assert!(engine.with(|script| script.running.is_empty()));
    engine.with(|script| script.generate_ms = 10);
    assert!(fleet.generate(request(2, 0)).await.is_ok(), "its place is free again");
}

#[tokio::test(start_paused = true)]
async fn a_released_rollout_is_answered_and_aborted_wherever_its_turn_is() {
    let fleet = Fleet::serving(1, 1, config()).await;
    let (flying, waiting) = (fleet.generate_later(request(0, 0)), fleet.generate_later(request(1, 0)));
    tokio::time::sleep(Duration::from_millis(5)).await;
    for index in [0, 1] {
        fleet.pool.cast(EnginePoolMessage::Release(rollout(index))).unwrap();
    }
    for answer in [flying, waiting] {
        assert_eq!(answer.await.unwrap().unwrap_err().kind, EngineFailureKind::Released);
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(fleet.engines[0].count("abort"), 1);
}

#[tokio::test(start_paused = true)]
async fn turns_wait_for_an_engine_until_their_own_time_out() {
    let fleet = Fleet::start(1, 4, config()).await;
    let patient = fleet.generate_later(GenerateRequest { timeout_ms: 10_000, ..request(0, 0) });
    let begun = Instant::now();
    let hasty = fleet.generate(GenerateRequest { timeout_ms: 700, ..request(1, 0) }).await.unwrap_err();
    assert_eq!((hasty.kind, begun.elapsed().as_millis()), (EngineFailureKind::NoEngine, 700));
    assert!(hasty.message.contains("e0 Syncing"), "it says how the engines stand: {hasty}");
    fleet.update(wish(1)).await;
    assert!(patient.await.unwrap().is_ok());
    let none = Fleet::start(0, 1, config()).await;
    let failure = none.generate(GenerateRequest { timeout_ms: 50, ..request(0, 0) }).await.unwrap_err();
    assert_eq!(failure.kind, EngineFailureKind::NoEngine, "also when no engine ever comes");
}

#[tokio::test(start_paused = true)]
async fn an_engine_never_has_more_in_flight_than_it_may_and_all_are_served_in_turn() {
    let fleet = Fleet::serving(2, 3, config()).await;
    let answers: Vec<_> = (0..20).map(|index| fleet.generate_later(request(index, 0))).collect();
    let duplicate = fleet.generate(request(19, 0)).await.unwrap_err();
    assert_eq!(duplicate.kind, EngineFailureKind::Refused);
    let mut finished = Vec::new();
    for answer in answers {
        finished.push(answer.await.unwrap().unwrap().elapsed_ms);
    }
    assert!(finished.is_sorted(), "first come, first served: {finished:?}");
    assert!(fleet.engines[..2].iter().all(|engine| engine.with(|script| script.peak) == 3));
    assert_eq!(fleet.engines.iter().map(|engine| engine.count("generate")).sum::<usize>(), 20);
}

#[tokio::test(start_paused = true)]
async fn the_prompt_is_checked_before_it_is_sent() {
    let fleet = Fleet::serving(1, 4, config()).await;
    let deadly = GenerateRequest { input_ids: vec![1, 100], ..request(0, 0) };
    assert_eq!(fleet.generate(deadly).await.unwrap_err().kind, EngineFailureKind::Refused);
    let long = GenerateRequest { input_ids: vec![1; 64], ..request(1, 0) };
    assert_eq!(fleet.generate(long).await.unwrap_err().kind, EngineFailureKind::ContextExceeded);
    assert_eq!(fleet.engines[0].count("generate"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_sampled_token_outside_of_the_vocabulary_is_no_answer() {
    let fleet = Fleet::serving(1, 4, config()).await;
    fleet.engines[0].with(|script| script.output_ids = [1, 100, 3]);
    let failure = fleet.generate(request(0, 0)).await.unwrap_err();
    assert_eq!(failure.kind, EngineFailureKind::Refused);
    assert!(failure.message.contains("token id 100"), "{}", failure.message);
    fleet.engines[0].with(|script| script.output_ids = [1, 99, 3]);
    assert_eq!(fleet.generate(request(0, 1)).await.unwrap().output_ids, [1, 99, 3]);
}

#[tokio::test(start_paused = true)]
async fn an_engine_restarted_behind_our_back_trains_nobody() {
    let fleet = Fleet::serving(1, 4, config()).await;
    let turn = fleet.generate_later(request(0, 0));
    tokio::time::sleep(Duration::from_millis(5)).await;
    fleet.engines[0].with(|script| script.label = "default".into());
    assert_eq!(turn.await.unwrap().unwrap_err().kind, EngineFailureKind::Lost, "tokens of other weights are no answer");
    let outcome = fleet.generate(request(0, 1)).await.unwrap();
    assert_eq!(outcome.versions[0].number, Some(1), "it was loaded again before it served");
    assert_eq!(fleet.engines[0].count("load run:1"), 2);
}

#[tokio::test(start_paused = true)]
async fn one_engine_that_fails_to_load_is_quarantined_and_the_others_go_on() {
    let fleet = Fleet::serving(3, 4, EngineConfig { load_retries: 0, ..config() }).await;
    fleet.engines[1].with(|script| script.refuse.insert("load"));
    let updates = fleet.update(wish(2)).await;
    let results: Vec<_> = updates.iter().map(|update| (update.engine.as_str(), update.result.is_ok())).collect();
    assert_eq!(results, [("e0", true), ("e1", false), ("e2", true)]);
    assert!(Quorum::of(&updates).reached(2) && !Quorum::of(&updates).reached(3));
    assert_eq!(fleet.statuses().await[1].state, EngineState::Tainted);
    for index in 0..6 {
        let outcome = fleet.generate(request(index, 0)).await.unwrap();
        assert_ne!(outcome.engine, EngineId::new("e1"));
    }
    fleet.engines[1].with(|script| script.refuse.clear());
    assert_eq!(Quorum::of(&fleet.update(wish(2)).await).confirmed, 3, "the same version again mends it");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_gone_does_not_hold_the_update_up() {
    let fleet = Fleet::serving(2, 4, config()).await;
    fleet.engines[1].with(|script| script.break_off.extend(["model_info", "pause"]));
    let begun = Instant::now();
    let updates = fleet.update(wish(2)).await;
    assert_eq!(Quorum::of(&updates), Quorum { confirmed: 1, asked: 2 });
    assert!(begun.elapsed().as_millis() as u64 <= config().lost_patience_ms + 1_000);
    fleet.engines[1].with(|script| script.break_off.clear());
    fleet.until(1, EngineState::Serving, 20_000).await;
    assert_eq!(fleet.statuses().await[1].version, Some(version(2)), "it syncs by itself when it is back");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_never_answered_holds_no_update_up_and_is_loaded_when_it_appears() {
    let engines = vec![ScriptedEngine::new(), ScriptedEngine::new()];
    engines[1].with(|script| script.hang.insert("model_info"));
    let fleet = Fleet::over(engines, 2, 4, config()).await;
    // one that missed a version is not waited for again
    for (number, patience_ms) in [(1, config().lost_patience_ms), (2, 0)] {
        let begun = Instant::now();
        let updates = fleet.update(UpdateWeights { timeout_ms: 600_000, ..wish(number) }).await;
        assert_eq!(Quorum::of(&updates), Quorum { confirmed: 1, asked: 2 });
        let waited_ms = begun.elapsed().as_millis() as u64;
        assert!(waited_ms <= patience_ms + 1_000, "version {number}: {waited_ms} ms");
        let failure = updates[1].result.clone().unwrap_err();
        assert!(failure.kind == EngineFailureKind::Lost && failure.message.contains("not answered"), "{failure}");
    }
    fleet.engines[1].with(|script| script.hang.clear());
    fleet.until(1, EngineState::Serving, 30_000).await;
    assert_eq!(fleet.statuses().await[1].version, Some(version(2)), "the newest");
}

#[tokio::test(start_paused = true)]
async fn a_fleet_of_which_nobody_answers_yet_is_waited_for() {
    let engines = vec![ScriptedEngine::new()];
    engines[0].with(|script| script.break_off.insert("model_info"));
    let fleet = Fleet::over(engines, 1, 4, config()).await;
    let (reply, answer) = greenroom_core::Reply::channel();
    fleet.pool.cast(EnginePoolMessage::UpdateWeights(UpdateWeights { timeout_ms: 600_000, ..wish(1) }, reply)).unwrap();
    tokio::time::sleep(Duration::from_secs(180)).await;
    fleet.engines[0].with(|script| script.break_off.clear());
    assert_eq!(Quorum::of(&answer.await.unwrap()), Quorum { confirmed: 1, asked: 1 }, "it only took minutes to start");
}

/// A checkpoint with one small tensor of this value.
fn checkpoint(dir: &std::path::Path, value: f32) -> String {
    let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let values = [value.to_le_bytes(), value.to_le_bytes()].concat();
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &values].concat();
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    dir.to_string_lossy().into_owned()
}

#[tokio::test(start_paused = true)]
async fn a_load_that_changed_the_label_only_is_found_by_its_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = Fleet::start(1, 4, EngineConfig { load_retries: 1, ..config() }).await;
    let to = |number: u64, value: f32| {
        let model_dir = checkpoint(&dir.path().join(number.to_string()), value);
        UpdateWeights { model_dir, ..wish(number) }
    };
    fleet.engines[0].with(|script| script.weight = Some(1.5));
    assert!(fleet.update(to(1, 1.5)).await[0].result.is_ok());
    let failure = fleet.update(to(2, 2.5)).await[0].result.clone().unwrap_err();
    assert!(failure.message.contains("value 0 of w is 1.5 at the engine and 2.5 in the file"), "{failure}");
    fleet.until(0, EngineState::Tainted, 0).await;
    assert_eq!(
        fleet.generate(GenerateRequest { timeout_ms: 50, ..request(0, 0) }).await.unwrap_err().kind,
        EngineFailureKind::NoEngine
    );
    fleet.engines[0].with(|script| script.weight = Some(2.5));
    fleet.until(0, EngineState::Serving, 5_000).await;
    assert_eq!(
        (fleet.engines[0].count("load run:2"), fleet.engines[0].count("weight_rows w")),
        (2, 3),
        "loaded in full again"
    );
}

#[tokio::test(start_paused = true)]
async fn an_engine_whose_numbers_changed_since_its_load_is_found_by_who_looks() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = Fleet::start(1, 4, config()).await;
    let engine = &fleet.engines[0];
    let look = || async {
        let look = |reply| EnginePoolMessage::Verify(1_000, reply);
        ask(&fleet.pool, Deadline::after_ms(2_000), look).await.unwrap().remove(0)
    };
    let not_compared = |verdict: EngineVerdict, reason: &str| match verdict.found {
        WeightsFound::NotCompared(why) => assert!(why.contains(reason), "{why}"),
        found => panic!("{found:?}"),
    };
    not_compared(look().await, "it is connecting");
    engine.with(|script| script.weight = Some(1.5));
    let model_dir = checkpoint(dir.path(), 1.5);
    assert!(fleet.update(UpdateWeights { model_dir, ..wish(1) }).await[0].result.is_ok());
    let verdict = look().await;
    assert_eq!((verdict.found, verdict.version), (WeightsFound::Same, Some(version(1))));
    engine.with(|script| script.weight = Some(9.0));
    match look().await.found {
        WeightsFound::Different(what) => assert!(what.contains("value 0 of w is 9 at the engine"), "{what}"),
        found => panic!("{found:?}"),
    }
    assert_eq!(fleet.statuses().await[0].state, EngineState::Serving, "who looks changes nothing");
    engine.with(|script| script.hang.insert("weight_rows"));
    not_compared(look().await, "no numbers within");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_takes_a_turn_and_makes_no_token_is_lost_before_the_turn_times_out() {
    let fleet = Fleet::serving(1, 4, config()).await;
    fleet.engines[0].with(|script| {
        script.hang.insert("generate");
        script.progress = Some("tokens 0".into());
    });
    let begun = Instant::now();
    let failure = fleet.generate(GenerateRequest { timeout_ms: 900_000, ..request(0, 0) }).await.unwrap_err();
    assert!(failure.kind == EngineFailureKind::Lost && failure.message.contains("no token for 60 s"), "{failure}");
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    fleet.engines[0].with(|script| {
        script.hang.clear();
        script.progress = None;
    });
    fleet.until(0, EngineState::Serving, 5_000).await;
    fleet.engines[0].with(|script| script.generate_ms = 300_000);
    let slow = GenerateRequest { timeout_ms: 900_000, ..request(1, 0) };
    assert!(fleet.generate(slow).await.is_ok(), "a slow turn that goes on is left alone");
}

#[tokio::test(start_paused = true)]
async fn a_rolling_update_keeps_all_but_one_engine_serving() {
    for (order, fewest) in [(UpdateOrder::Rolling, 2), (UpdateOrder::Parallel, 0)] {
        let fleet = Fleet::serving(3, 4, EngineConfig { update_order: order, ..config() }).await;
        let (reply, mut answer) = greenroom_core::Reply::channel();
        fleet.pool.cast(EnginePoolMessage::UpdateWeights(wish(2), reply)).unwrap();
        let mut serving = usize::MAX;
        while answer.try_recv().is_none() {
            let statuses = fleet.statuses().await;
            serving = serving.min(statuses.iter().filter(|one| one.state == EngineState::Serving).count());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(serving, fewest, "{order:?}");
        assert!(fleet.statuses().await.iter().all(|one| one.version == Some(version(2))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_turns_finish_and_an_abort_keeps_their_tokens() {
    for (pause, finish) in [(PauseMode::Drain, FinishReason::Stop), (PauseMode::Abort, FinishReason::Abort)] {
        let fleet = Fleet::serving(1, 4, config()).await;
        let turn = fleet.generate_later(request(0, 0));
        tokio::time::sleep(Duration::from_millis(5)).await;
        let updates = fleet.update(UpdateWeights { pause, ..wish(2) }).await;
        assert_eq!(updates[0].result.as_ref().unwrap().version, version(2));
        let outcome = turn.await.unwrap().unwrap();
        assert_eq!((outcome.finish, outcome.output_ids.len()), (finish, 3), "{pause:?}");
        assert_eq!(outcome.versions[0].number, Some(1), "it ended before the weights changed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_panics_is_started_again_and_its_engine_loaded_anew() {
    let fleet = Fleet::serving(2, 4, config()).await;
    fleet.engines.iter().for_each(|engine| engine.with(|script| script.generate_ms = 10_000));
    let (turn, other) = (fleet.generate_later(request(0, 0)), fleet.generate_later(request(1, 0)));
    tokio::time::sleep(Duration::from_millis(5)).await;
    // The proxy of e0 panics when it records that it lost its engine.
    *fleet.journal_panics.lock().unwrap() = true;
    fleet.engines[0].with(|script| script.break_off.insert("ready"));
    assert_eq!(turn.await.unwrap().unwrap_err().kind, EngineFailureKind::Lost);
    fleet.engines[0].with(|script| script.break_off.clear());
    fleet.until(0, EngineState::Serving, 5_000).await;
    assert_eq!(fleet.engines[0].count("load run:1"), 2, "nobody knows what the first proxy was in the middle of");
    assert_eq!(fleet.engines[0].count("abort"), 1, "its turn is aborted at the engine");
    assert!(other.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_panics_costs_one_call() {
    let fleet = Fleet::serving(1, 4, config()).await;
    fleet.engines[0].with(|script| script.panic.insert("generate"));
    let (reply, answer) = greenroom_core::Reply::channel();
    fleet.pool.cast(EnginePoolMessage::Generate(request(0, 0), reply)).unwrap();
    assert_eq!(answer.await.unwrap().unwrap_err().kind, EngineFailureKind::Lost);
    fleet.engines[0].with(|script| script.panic.clear());
    fleet.until(0, EngineState::Serving, 5_000).await;
}

#[tokio::test(start_paused = true)]
async fn engines_come_and_go() {
    let fleet = Fleet::serving(1, 1, config()).await;
    let add = |spec| ask(&fleet.pool, Deadline::after_ms(1_000), |reply| EnginePoolMessage::Add(spec, reply));
    for _ in 0..2 {
        add(spec(1, 1)).await.unwrap().unwrap();
    }
    assert_eq!(add(spec(1, 9)).await.unwrap().unwrap_err().kind, EngineFailureKind::Refused);
    assert_eq!(add(spec(2, 0)).await.unwrap().unwrap_err().kind, EngineFailureKind::Refused);
    fleet.until(1, EngineState::Serving, 1_000).await;
    let turn = fleet.generate_later(request(0, 0));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let remove = || {
        let question = |reply| EnginePoolMessage::Remove(EngineId::new("e0"), reply);
        ask(&fleet.pool, Deadline::after_ms(60_000), question)
    };
    remove().await.unwrap().unwrap();
    assert!(turn.await.unwrap().is_ok(), "it finished what it had");
    remove().await.unwrap().unwrap();
    let names: Vec<_> = fleet.statuses().await.into_iter().map(|status| status.engine.to_string()).collect();
    assert_eq!(names, ["e1"]);
    assert_eq!(fleet.generate(request(0, 1)).await.unwrap().engine, EngineId::new("e1"));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_answers_everybody_and_ends_every_proxy() {
    let fleet = Fleet::serving(1, 1, config()).await;
    let answers = [fleet.generate_later(request(0, 0)), fleet.generate_later(request(1, 0))];
    tokio::time::sleep(Duration::from_millis(5)).await;
    ask(&fleet.pool, Deadline::after_ms(10_000), EnginePoolMessage::Shutdown).await.unwrap();
    for answer in answers {
        assert_eq!(answer.await.unwrap().unwrap_err().kind, EngineFailureKind::Closed);
    }
    tokio::time::timeout(Duration::from_secs(1), fleet.ended).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(fleet.engines[0].count("abort"), 1);
}
