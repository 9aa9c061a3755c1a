//! Bringing the whole fleet to a version: all at once, or one engine after another.

use std::collections::BTreeMap;

use futures::future::join_all;
use greenroom_core::{Address, Deadline, Reply, ask};
use greenroom_messages::EngineId;
use greenroom_messages::engine::{EngineFailure, EngineFailureKind, EngineProxyMessage, EngineUpdate, UpdateWeights};

use crate::UpdateOrder;

/// How much later than the proxy the pool gives up.
const GRACE_MS: u64 = 5_000;

/// How many of a fleet took an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Engines that confirmed.
    pub confirmed: usize,
    /// Engines that were asked.
    pub asked: usize,
}

impl Quorum {
    /// Counts the answers to an update.
    pub fn of(updates: &[EngineUpdate]) -> Self {
        Self { confirmed: updates.iter().filter(|update| update.result.is_ok()).count(), asked: updates.len() }
    }

    /// Whether at least `needed` engines, and at least one, confirmed.
    pub fn reached(&self, needed: usize) -> bool {
        self.confirmed >= needed.max(1)
    }
}

/// The wait before a fleet of which nobody could be reached is asked again, in milliseconds.
const AGAIN_MS: u64 = 1_000;

/// Asks every proxy; each answers, or is answered for, within the wish's time and a grace. Engines that are `missing`
/// already are told, and waited for only if no other confirms. A fleet goes on without the engines that cannot be reached;
/// where that is all of them, they are asked again until the wish's time is over: engines that are being started take
/// minutes, and without one nothing can go on.
pub(super) async fn update_fleet(
    proxies: Vec<(EngineId, Address<EngineProxyMessage>)>,
    missing: BTreeMap<EngineId, String>,
    wish: UpdateWeights,
    order: UpdateOrder,
) -> Vec<EngineUpdate> {
    let deadline = Deadline::after_ms(wish.timeout_ms.min(u64::from(u32::MAX)));
    let (there, absent): (Vec<_>, Vec<_>) =
        proxies.iter().cloned().partition(|(engine, _)| !missing.contains_key(engine));
    if !there.is_empty() && !absent.is_empty() {
        for (_, proxy) in &absent {
            // one that is gone hears of the wish when its host joins again
            let _ = proxy.cast(EngineProxyMessage::UpdateWeights(wish.clone(), Reply::channel().0));
        }
        let mut updates = ask_all(&there, wish.clone(), order).await;
        if Quorum::of(&updates).reached(1) {
            updates.extend(missing.into_iter().map(|(engine, trouble)| lost(&engine, trouble)));
            return updates;
        }
    }
    loop {
        let timeout_ms = deadline.remaining().as_millis() as u64;
        let updates = ask_all(&proxies, UpdateWeights { timeout_ms, ..wish.clone() }, order).await;
        let out_of_reach = |update: &EngineUpdate| {
            update.result.as_ref().is_err_and(|failure| failure.kind == EngineFailureKind::Lost)
        };
        let is_over = deadline.remaining().as_millis() as u64 <= AGAIN_MS;
        if is_over || Quorum::of(&updates).reached(1) || !updates.iter().any(out_of_reach) {
            return updates;
        }
        tokio::time::sleep(std::time::Duration::from_millis(AGAIN_MS)).await;
    }
}

async fn ask_all(
    proxies: &[(EngineId, Address<EngineProxyMessage>)],
    wish: UpdateWeights,
    order: UpdateOrder,
) -> Vec<EngineUpdate> {
    let updates = proxies.iter().map(|(engine, proxy)| update_one(engine, proxy, &wish));
    match order {
        UpdateOrder::Parallel => join_all(updates).await,
        UpdateOrder::Rolling => {
            let mut results = Vec::with_capacity(proxies.len());
            for update in updates {
                results.push(update.await);
            }
            results
        }
    }
}

async fn update_one(engine: &EngineId, proxy: &Address<EngineProxyMessage>, wish: &UpdateWeights) -> EngineUpdate {
    let deadline = Deadline::after_ms(wish.timeout_ms.saturating_add(GRACE_MS).min(u64::from(u32::MAX)));
    let answer = ask(proxy, deadline, |reply| EngineProxyMessage::UpdateWeights(wish.clone(), reply)).await;
    answer.unwrap_or_else(|error| lost(engine, error.to_string()))
}

fn lost(engine: &EngineId, message: String) -> EngineUpdate {
    let failure = EngineFailure { kind: EngineFailureKind::Lost, message };
    EngineUpdate { engine: engine.clone(), result: Err(failure) }
}
