//! Taking actors down at the end of a run or of a node: each step with a deadline, and what is not done in time is said.

use std::time::Duration;

use greenroom_core::{Address, Deadline, SupervisorMessage, ask};
use greenroom_messages::sandbox::SandboxPoolMessage;
use ractor::ActorRef;

/// How long each step may take.
pub(crate) const LAST_WORDS_MS: u64 = 30_000;

/// Destroys the boxes of these pools.
pub(crate) async fn drain_pools(pools: impl IntoIterator<Item = &Address<SandboxPoolMessage>>) {
    for pool in pools {
        if let Err(error) = ask(pool, Deadline::after_ms(LAST_WORDS_MS), SandboxPoolMessage::Drain).await {
            tracing::warn!(pool = pool.name(), %error, "sandboxes were not destroyed in time; the next start sweeps them");
        }
    }
}

/// Stops a supervisor and its actors.
pub(crate) async fn stop_actors(supervisor: &ActorRef<SupervisorMessage>, reason: &str) {
    let wait = Some(Duration::from_millis(LAST_WORDS_MS));
    if let Err(error) = supervisor.stop_and_wait(Some(reason.to_owned()), wait).await {
        tracing::warn!(%error, "some actors did not end in time");
    }
}

/// Ends the engines of this process.
#[cfg(feature = "torch")]
pub(crate) async fn shut_down_engines(engines: Vec<greenroom_policy::server::RunningEngine>) {
    for engine in engines {
        if let Err(error) = engine.shutdown().await {
            tracing::warn!(%error, "an embedded engine did not shut down cleanly");
        }
    }
}
