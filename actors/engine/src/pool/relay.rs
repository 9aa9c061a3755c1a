//! One turn between the pool and a proxy: passes the question on and brings the answer back, so that the pool can count
//! what is in flight and queue again what was never sent. It ends by the turn's own time-out and a grace, whatever the
//! proxy does.

use greenroom_core::{Address, Reply, Unanswered};
use greenroom_messages::engine::{
    EngineFailure, EngineFailureKind, EngineProxyMessage, GenerateOutcome, GenerateRequest,
};
use tokio::time::{Duration, Instant};

/// How much later than the proxy the pool gives up.
const GRACE: Duration = Duration::from_secs(5);

/// The answer to one turn.
pub(super) type Answer = Result<GenerateOutcome, EngineFailure>;

/// A turn that someone waits for.
#[derive(Debug)]
pub struct PendingTurn {
    pub(super) request: GenerateRequest,
    pub(super) reply: Reply<Answer>,
    pub(super) asked_at: Instant,
    pub(super) deadline_ms: u64,
}

/// How a turn came back from a proxy.
#[derive(Debug)]
pub enum Relayed {
    /// With this answer.
    Answered(Answer),
    /// It was not sent to the engine: it may be queued again.
    NotSent(EngineFailure),
    /// It was not sent, because nobody is there: its host is gone.
    Unreachable(EngineFailure),
    /// Nobody waits for it any more.
    Abandoned,
}

/// Asks a proxy for a turn that has `timeout_ms` left.
pub(super) async fn relay(proxy: &Address<EngineProxyMessage>, pending: &mut PendingTurn, timeout_ms: u64) -> Relayed {
    let failure = |kind, message: String| EngineFailure { kind, message };
    let request = GenerateRequest { timeout_ms, ..pending.request.clone() };
    let (question, answer) = Reply::channel();
    if let Err(gone) = proxy.cast(EngineProxyMessage::Generate(request, question)) {
        return Relayed::Unreachable(failure(EngineFailureKind::NoEngine, gone.to_string()));
    }
    let limit = Instant::now().checked_add(Duration::from_millis(timeout_ms)).map(|limit| limit + GRACE);
    let out_of_time = async {
        match limit {
            Some(limit) => tokio::time::sleep_until(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        answer = answer => match answer {
            Ok(Err(failure)) if failure.kind == EngineFailureKind::NoEngine => Relayed::NotSent(failure),
            Ok(answer) => Relayed::Answered(answer),
            Err(unanswered) => {
                let message = match unanswered {
                    Unanswered::Lost(reason) => format!("{} was lost during the turn: {reason}", proxy.name()),
                    Unanswered::Dropped => format!("{} ended during the turn", proxy.name()),
                };
                Relayed::Answered(Err(failure(EngineFailureKind::Lost, message)))
            }
        },
        () = pending.reply.abandoned() => Relayed::Abandoned,
        () = out_of_time => {
            let message = format!("{} did not answer the turn", proxy.name());
            Relayed::Answered(Err(failure(EngineFailureKind::TimedOut, message)))
        }
    }
}
