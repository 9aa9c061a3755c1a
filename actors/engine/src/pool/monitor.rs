//! Notices at once that a joined engine's proxy is gone, by a question that nobody answers: it ends with the proxy, or when
//! the proxy's node is held for dead.

use greenroom_core::{Address, Reply, Unanswered, spawn_named};
use greenroom_messages::EngineId;
use greenroom_messages::engine::EngineProxyMessage;
use ractor::ActorRef;

use super::actor::EnginePoolInput;

/// Tells the pool when the proxy of this presence is gone.
pub(super) fn monitor(
    proxy: Address<EngineProxyMessage>,
    engine: EngineId,
    presence: u64,
    pool: ActorRef<EnginePoolInput>,
) {
    spawn_named(format!("engine-monitor {engine}"), async move {
        let (reply, end) = Reply::channel();
        let ended = match proxy.cast(EngineProxyMessage::Monitor(reply)) {
            Ok(()) => end.await,
            Err(_) => Err(Unanswered::Dropped),
        };
        let reason = match ended {
            Err(Unanswered::Lost(reason)) => reason,
            Ok(()) | Err(Unanswered::Dropped) => "its proxy has ended".to_owned(),
        };
        // a pool that has ended loses nothing
        let _ = pool.send_message(EnginePoolInput::Gone(engine, presence, reason));
    });
}
