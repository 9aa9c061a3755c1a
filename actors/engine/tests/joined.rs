//! Engines whose hosts join the fleet from elsewhere: hosts go and come back, and neither turns nor updates wait for one
//! that is gone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)] // a test's helpers may fail

mod support;

use std::sync::Mutex;
use std::time::Duration;

use greenroom_core::{Address, Deadline, Reply, ask};
use greenroom_engine::*;
use greenroom_messages::engine::*;
use support::*;
use tokio::time::Instant;

/// A host whose engine serves everything at once, at the version that it was told last.
fn host(index: usize, serving: u64) -> Address<EngineProxyMessage> {
    let spec = spec(index, 4);
    let status = EngineStatus {
        engine: spec.engine.clone(),
        url: spec.url,
        state: EngineState::Serving,
        version: Some(version(serving)),
        in_flight: 0,
        max_in_flight: 4,
        context_tokens: None,
        trouble: None,
    };
    let monitors = Mutex::new(Vec::new());
    Address::of_function(&format!("host {index}"), move |message| {
        match message {
            EngineProxyMessage::Monitor(reply) => monitors.lock().unwrap().push(reply),
            EngineProxyMessage::Status(reply) => drop(reply.send(status.clone())),
            EngineProxyMessage::UpdateWeights(wish, reply) => {
                let result = Ok(UpdateConfirmed { version: wish.version, paused_ms: 1 });
                reply.send(EngineUpdate { engine: status.engine.clone(), result });
            }
            EngineProxyMessage::Generate(_, reply) => {
                let outcome = GenerateOutcome {
                    engine: status.engine.clone(),
                    output_ids: vec![1],
                    logprobs: vec![-0.5],
                    finish: FinishReason::Stop,
                    versions: vec![VersionSpan { number: Some(1), start: 0, end: 1 }],
                    cached_tokens: 0,
                    elapsed_ms: 0,
                };
                reply.send(Ok(outcome));
            }
            _ => {}
        }
        Ok(())
    })
}

async fn join(fleet: &Fleet, index: usize, proxy: &Address<EngineProxyMessage>) {
    let question = |reply| EnginePoolMessage::Join(spec(index, 4), proxy.clone(), reply);
    ask(&fleet.pool, Deadline::after_ms(1_000), question).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_update_under_way_follows_a_host_that_comes_back_elsewhere() {
    let fleet = Fleet::start(0, 4, EngineConfig::default()).await;
    let gone = host(0, 1);
    join(&fleet, 0, &gone).await;
    gone.unbind();
    let (reply, answer) = Reply::channel();
    fleet.pool.cast(EnginePoolMessage::UpdateWeights(wish(2), reply)).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let back = Instant::now();
    join(&fleet, 0, &host(0, 1)).await;
    let updates = answer.await.unwrap();
    assert!(Quorum::of(&updates).reached(1), "{updates:?}");
    assert!(back.elapsed() < Duration::from_secs(2), "the update took {:?} more", back.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_gone_costs_one_try_and_serves_again_once_it_joins() {
    let fleet = Fleet::start(0, 4, EngineConfig::default()).await;
    let (gone, other) = (host(0, 1), host(1, 1));
    join(&fleet, 0, &gone).await;
    join(&fleet, 1, &other).await;
    fleet.until(0, EngineState::Serving, 100).await;
    fleet.until(1, EngineState::Serving, 100).await;
    gone.unbind();
    let begun = Instant::now();
    let outcome = fleet.generate(request(0, 0)).await.unwrap();
    assert_eq!(outcome.engine.as_str(), "e1");
    assert!(begun.elapsed() < Duration::from_secs(1), "the turn waited {:?} for a dead engine", begun.elapsed());
    assert_eq!(fleet.statuses().await[0].state, EngineState::Lost);
    join(&fleet, 0, &host(0, 1)).await;
    fleet.until(0, EngineState::Serving, 100).await;
}

/// Nobody asks anything of it meanwhile, and no time passes: what `status` says must be true, and turns must not find out.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_host_is_known_at_once_and_that_of_its_predecessor_is_not_its_own() {
    let fleet = Fleet::start(0, 4, EngineConfig::default()).await;
    let first = host(0, 1);
    join(&fleet, 0, &first).await;
    fleet.until(0, EngineState::Serving, 100).await;
    let begun = Instant::now();
    first.unbind();
    fleet.until(0, EngineState::Lost, 100).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "the fleet took {:?} to notice", begun.elapsed());
    let trouble = fleet.statuses().await.remove(0).trouble;
    assert_eq!(trouble.as_deref(), Some("its proxy has ended"));

    // two hosts one after the other, the first of which is only then gone
    let (second, third) = (host(0, 1), host(0, 1));
    join(&fleet, 0, &second).await;
    fleet.until(0, EngineState::Serving, 100).await;
    tokio::time::sleep(Duration::from_secs(16)).await;
    fleet.until(0, EngineState::Lost, 100).await;
    join(&fleet, 0, &third).await;
    fleet.until(0, EngineState::Serving, 100).await;
    second.unbind();
    assert!(fleet.generate(request(0, 0)).await.is_ok());
    assert_eq!(fleet.statuses().await[0].state, EngineState::Serving);
}

/// The proxy's word of its last change is lost when the way to the fleet is broken for a moment.
#[tokio::test(start_paused = true)]
async fn a_change_that_the_fleet_never_heard_of_is_found_when_the_host_joins_again() {
    let fleet = Fleet::start(0, 4, EngineConfig::default()).await;
    let engine = host(0, 1);
    join(&fleet, 0, &engine).await;
    fleet.until(0, EngineState::Serving, 100).await;
    let mut updating = fleet.statuses().await.remove(0);
    updating.state = EngineState::Updating;
    fleet.pool.cast(EnginePoolMessage::Changed(updating)).unwrap();
    fleet.until(0, EngineState::Updating, 100).await;
    // it serves again, and nothing was heard of that
    join(&fleet, 0, &engine).await;
    fleet.until(0, EngineState::Serving, 100).await;
    let turn = tokio::time::timeout(Duration::from_secs(1), fleet.generate(request(0, 0))).await;
    assert!(turn.is_ok_and(|turn| turn.is_ok()), "the engine serves and gets no turn");
}
