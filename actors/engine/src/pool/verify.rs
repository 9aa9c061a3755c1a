//! Whether the engines hold the weights that they say: each proxy compares a few numbers, all at once.

use futures::future::join_all;
use greenroom_core::{Address, Deadline, Reply, ask, spawn_named};
use greenroom_messages::EngineId;
use greenroom_messages::engine::{EngineProxyMessage, EngineVerdict, WeightsFound};

/// Asks every proxy; one that gives no answer in time is told as not compared.
pub(super) fn verify_fleet(
    proxies: Vec<(EngineId, Address<EngineProxyMessage>)>,
    within_ms: u64,
    reply: Reply<Vec<EngineVerdict>>,
) {
    spawn_named("engine-verify", async move {
        let deadline = Deadline::after_ms(within_ms);
        let verdicts = proxies.into_iter().map(|(engine, proxy)| async move {
            let verdict = ask(&proxy, deadline, |reply| EngineProxyMessage::Verify(within_ms, reply)).await;
            let silent = |error: greenroom_core::AskError| WeightsFound::NotCompared(error.to_string());
            verdict.unwrap_or_else(|error| EngineVerdict { engine, version: None, found: silent(error) })
        });
        reply.send(join_all(verdicts).await);
    });
}
