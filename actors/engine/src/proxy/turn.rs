//! One turn at one engine: sends it, waits for the first of answer, time-out, an asker that left, and being called off;
//! answers the asker; reports how it ended. A turn always ends in one report, also when its task is thrown away.

use std::sync::Arc;

use greenroom_core::{Deadline, Reply};
use greenroom_messages::engine::{
    EngineFailure, EngineFailureKind, FinishReason, GenerateOutcome, GenerateRequest, VersionSpan,
};
use greenroom_messages::{EngineId, RunId, WeightVersion};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::effect::Report;
use crate::{AbortTarget, ApiError, EngineApi, GenerateCall, Generated};

/// A turn that was admitted.
pub(super) struct Turn {
    pub api: Arc<dyn EngineApi>,
    pub engine: EngineId,
    pub run: RunId,
    pub request: GenerateRequest,
    pub asked_at: Instant,
    pub deadline: Deadline,
    pub abort_ms: u64,
    /// The version that the engine had confirmed when the turn was admitted.
    pub version: u64,
    /// Rows of the model's embedding: a sampled token outside of them could not be trained on.
    pub vocabulary_tokens: u32,
}

type Answer = Result<GenerateOutcome, EngineFailure>;

impl Turn {
    /// Runs the turn. `called_off` gives the failure to answer with; when its sender is dropped, the proxy has ended.
    pub(super) async fn run(self, mut reply: Reply<Answer>, called_off: oneshot::Receiver<EngineFailure>) -> Report {
        let call = GenerateCall {
            rid: self.request.rid.clone(),
            input_ids: self.request.input_ids.clone(),
            sampling: self.request.sampling.clone(),
            cache_key: WeightVersion { run: self.run.clone(), number: self.version }.to_string(),
        };
        let generated = tokio::time::timeout_at(self.deadline.instant(), self.api.generate(&call, self.deadline));
        let (report, answer) = tokio::select! {
            biased;
            failure = called_off => {
                let ended = failure.is_err();
                let failure = failure.unwrap_or_else(|_| self.failure(EngineFailureKind::Lost, "its proxy ended".into()));
                reply.send(Err(failure));
                if ended {
                    self.abort().await;
                }
                return Report::Cancelled;
            }
            () = reply.abandoned() => return Report::Abandoned,
            result = generated => match result {
                Ok(result) => self.judge(result),
                Err(_) => self.judge(Err(self.timed_out())),
            },
        };
        reply.send(answer);
        report
    }

    async fn abort(&self) {
        let deadline = Deadline::after_ms(self.abort_ms);
        let target = AbortTarget::Request(self.request.rid.clone());
        if let Ok(Err(error)) = tokio::time::timeout_at(deadline.instant(), self.api.abort(&target, deadline)).await {
            tracing::debug!(%error, rid = self.request.rid, "a turn without a proxy could not be aborted");
        }
    }

    fn timed_out(&self) -> ApiError {
        let waited_ms = self.asked_at.elapsed().as_millis() as u64;
        ApiError::TimedOut { call: "/generate", url: self.engine.to_string(), waited_ms }
    }

    fn failure(&self, kind: EngineFailureKind, message: String) -> EngineFailure {
        EngineFailure { kind, message: format!("{} at {}: {message}", self.request.rid, self.engine) }
    }

    /// What an engine's answer means for the asker and for the engine.
    fn judge(&self, result: Result<Generated, ApiError>) -> (Report, Answer) {
        match result {
            Ok(generated) => match generated.output_ids.iter().find(|id| **id >= self.vocabulary_tokens) {
                Some(id) => {
                    let vocabulary = self.vocabulary_tokens;
                    let message = format!("answered with token id {id}, outside of the vocabulary of {vocabulary}");
                    (Report::Unusable(message.clone()), Err(self.failure(EngineFailureKind::Refused, message)))
                }
                None => self.accept(generated),
            },
            Err(error) => {
                let message = error.to_string();
                let (kind, report) = match error {
                    ApiError::TimedOut { .. } => (EngineFailureKind::TimedOut, Report::TimedOut),
                    ApiError::Lost { .. } | ApiError::Unreachable { .. } | ApiError::Unavailable { .. } => {
                        (EngineFailureKind::Lost, Report::Broken(message.clone()))
                    }
                    ApiError::Malformed { .. } | ApiError::Refused { status: 500.., .. } => {
                        (EngineFailureKind::Refused, Report::Unusable(message.clone()))
                    }
                    _ => (EngineFailureKind::Refused, Report::Refused),
                };
                (report, Err(self.failure(kind, message)))
            }
        }
    }

    fn accept(&self, generated: Generated) -> (Report, Answer) {
        let versions = match self.versions(&generated) {
            Ok(versions) => versions,
            Err(label) => {
                let message = format!("answered with weights {label:?}, which may not serve this turn");
                let failure = self.failure(EngineFailureKind::Lost, message.clone());
                return (Report::Untrusted(message), Err(failure));
            }
        };
        let outcome = GenerateOutcome {
            engine: self.engine.clone(),
            output_ids: generated.output_ids,
            logprobs: generated.logprobs,
            finish: generated.finish,
            versions,
            cached_tokens: generated.cached_tokens,
            elapsed_ms: self.asked_at.elapsed().as_millis() as u64,
        };
        (Report::Answered, Ok(outcome))
    }

    /// The versions of the output tokens, or the label that may not serve: of another run, or too old.
    fn versions(&self, generated: &Generated) -> Result<Vec<VersionSpan>, String> {
        let admissible = |label: &str| {
            let version = label.parse::<WeightVersion>().ok().filter(|version| version.run == self.run);
            let number = version.map(|version| version.number);
            number.filter(|number| *number >= self.request.oldest_version).ok_or_else(|| label.to_owned())
        };
        let tokens = generated.output_ids.len() as u32;
        // An abort while it was still queued has no tokens, so no weights made them.
        if tokens == 0 && generated.finish == FinishReason::Abort {
            return Ok(Vec::new());
        }
        if generated.spans.is_empty() {
            // An older server tells the last token's version only. If that is not the one the turn began with, the
            // tokens before are of unknown age: the older of the two is the honest one.
            let number = admissible(&generated.weight_version)?.min(self.version);
            return Ok(vec![VersionSpan { number: Some(number), start: 0, end: tokens }]);
        }
        let spans = generated
            .spans
            .iter()
            .map(|span| Ok(VersionSpan { number: Some(admissible(&span.label)?), start: span.start, end: span.end }));
        spans.collect()
    }
}
