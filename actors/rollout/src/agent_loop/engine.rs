//! One turn at an engine: the request, and the rest of it where an engine gave it up.
//!
//! An aborted turn (weights were replaced, the engine was paused) keeps its tokens: the loop asks for the rest with the
//! prompt and what was sampled so far, so that the turn is one reply whose version spans tell which weights made what.

use greenroom_core::{Address, Deadline, Reply, ask};
use greenroom_messages::engine::{
    EngineFailureKind, EnginePoolMessage, FinishReason, GenerateOutcome, GenerateRequest, Sampling, VersionSpan,
};
use greenroom_messages::rollout::{InfraFailure, InfraKind};
use greenroom_messages::run::RunEvent;
use greenroom_messages::{EngineId, RolloutId};
use tokio::time::Duration;

use super::EpisodeSetting;
use crate::manager::Issue;
use crate::tokens::SampledReply;

/// How often the rest of a turn is asked for.
const CONTINUATIONS: u32 = 32;
/// The wait after an abort that brought no token, so that a paused engine is not asked in a tight loop.
const EMPTY_ABORT_WAIT: Duration = Duration::from_millis(500);
/// How often a fleet that is not there is looked for.
const ABSENCE_LOOK: Duration = Duration::from_millis(200);
/// How much later than the request's own time-out the question is given up.
const ANSWER_GRACE_MS: u64 = 10_000;

/// A turn has no reply.
#[derive(Debug)]
pub(super) enum TurnFailure {
    /// The prompt leaves no room: the episode ends as truncated.
    ContextExceeded(String),
    /// An engine failed.
    Infra(InfraFailure),
}

/// A finished turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) reply: SampledReply,
    pub(super) finish: FinishReason,
    engine: EngineId,
}

/// Forgets the rollout at the fleet when the loop ends, however it ends.
#[derive(Debug)]
pub(super) struct EngineUse {
    engines: Address<EnginePoolMessage>,
    rollout: RolloutId,
}

impl EngineUse {
    pub(super) fn new(engines: Address<EnginePoolMessage>, rollout: RolloutId) -> Self {
        Self { engines, rollout }
    }
}

impl Drop for EngineUse {
    fn drop(&mut self) {
        // A fleet that is gone has nothing in flight.
        let _ = self.engines.cast(EnginePoolMessage::Release(self.rollout));
    }
}

/// Generates one turn.
pub(super) async fn generate(
    setting: &EpisodeSetting,
    issue: &Issue,
    turn: u32,
    prompt: &[u32],
) -> Result<Turn, TurnFailure> {
    let config = &setting.config;
    let room = (config.max_context_tokens as usize).saturating_sub(prompt.len());
    let mut left = (config.max_new_tokens as usize).min(room);
    if left == 0 {
        let text = format!("the prompt has {} tokens of at most {}", prompt.len(), config.max_context_tokens);
        return Err(TurnFailure::ContextExceeded(text));
    }
    let mut reply = SampledReply::default();
    let mut served_by = None;
    for continuation in 0..=CONTINUATIONS {
        let request = request(setting, issue, turn, continuation, prompt, &reply, left);
        let outcome = match (ask_fleet(setting, request).await, served_by) {
            // The prompt fitted; only the rest of the turn did not: it ends by length.
            (Err(TurnFailure::ContextExceeded(_)), Some(engine)) if !reply.ids.is_empty() => {
                return Ok(Turn { reply, finish: FinishReason::Length, engine });
            }
            (outcome, _) => outcome?,
        };
        let (new_tokens, engine, finish) = (outcome.output_ids.len(), outcome.engine.clone(), outcome.finish);
        left = left.saturating_sub(new_tokens);
        append(&mut reply, outcome);
        match finish {
            FinishReason::Abort if left > 0 => {}
            FinishReason::Abort => return Ok(Turn { reply, finish: FinishReason::Length, engine }),
            finish => return Ok(Turn { reply, finish, engine }),
        }
        served_by = Some(engine);
        if new_tokens == 0 {
            tokio::time::sleep(EMPTY_ABORT_WAIT).await;
        }
    }
    let message = format!("turn {turn} was given up by the engine {} times", CONTINUATIONS + 1);
    Err(TurnFailure::Infra(InfraFailure { kind: InfraKind::Engine, message }))
}

fn request(
    setting: &EpisodeSetting,
    issue: &Issue,
    turn: u32,
    continuation: u32,
    prompt: &[u32],
    reply: &SampledReply,
    left: usize,
) -> GenerateRequest {
    let RolloutId { group, sample, .. } = issue.rollout;
    let seed = setting.seam.seed.child(&format!("sampling.{group}-s{sample:02}"));
    let seed = seed.child_numbered("try", issue.tries_before.into());
    let seed = seed.child_numbered("turn", u64::from(turn) << 16 | u64::from(continuation));
    GenerateRequest {
        rollout: issue.rollout,
        turn,
        rid: format!("{}-t{turn:03}-c{continuation:02}", issue.rollout),
        input_ids: prompt.iter().chain(&reply.ids).copied().collect(),
        sampling: Sampling {
            temperature: issue.temperature,
            top_p: setting.config.top_p,
            top_k: setting.config.top_k,
            max_new_tokens: left as u32,
            stop: Vec::new(),
            stop_token_ids: setting.tokenizer.end_of_turn_ids().to_vec(),
            // Engines hold seeds as signed 64-bit numbers.
            seed: Some(seed.value() >> 1),
        },
        timeout_ms: setting.config.turn_timeout_ms,
        oldest_version: issue.oldest_version,
    }
}

async fn ask_fleet(setting: &EpisodeSetting, request: GenerateRequest) -> Result<GenerateOutcome, TurnFailure> {
    let failed = |message: String| TurnFailure::Infra(InfraFailure { kind: InfraKind::Engine, message });
    let deadline = Deadline::after_ms(request.timeout_ms + ANSWER_GRACE_MS);
    let rid = request.rid.clone();
    // a fleet on another node may be on its way back; what was not sent yet can wait for it
    while !setting.engines.is_bound() && deadline.remaining() > Duration::from_millis(ANSWER_GRACE_MS) {
        tokio::time::sleep(ABSENCE_LOOK).await;
    }
    let question = |reply: Reply<_>| EnginePoolMessage::Generate(request, reply);
    let answer = ask(&setting.engines, deadline, question).await.map_err(|error| {
        setting.record(RunEvent::AskFailed { asker: rid.clone(), error: error.to_string() });
        failed(error.to_string())
    })?;
    let outcome = answer.map_err(|failure| match failure.kind {
        EngineFailureKind::ContextExceeded => TurnFailure::ContextExceeded(failure.message),
        _ => failed(failure.to_string()),
    })?;
    let tokens = outcome.output_ids.len();
    let covered: u32 = outcome.versions.iter().map(|span| span.end.saturating_sub(span.start)).sum();
    let is_wrong = outcome.logprobs.len() != tokens
        || covered as usize != tokens
        || outcome.versions.iter().any(|span| span.end as usize > tokens)
        || outcome.logprobs.iter().any(|logprob| !logprob.is_finite());
    if is_wrong {
        return Err(failed(format!(
            "{} answered {rid} with {tokens} tokens, {} log-probabilities and versions for {covered}",
            outcome.engine,
            outcome.logprobs.len()
        )));
    }
    Ok(outcome)
}

fn append(reply: &mut SampledReply, outcome: GenerateOutcome) {
    let start = reply.ids.len() as u32;
    reply.ids.extend(outcome.output_ids);
    reply.logprobs.extend(outcome.logprobs);
    let moved = |span: VersionSpan| VersionSpan { start: span.start + start, end: span.end + start, ..span };
    reply.versions.extend(outcome.versions.into_iter().map(moved));
}

impl Turn {
    /// The event that tells of this turn.
    pub(super) fn event(&self, rollout: RolloutId, turn: u32, prompt_tokens: usize, generate_ms: u64) -> RunEvent {
        RunEvent::TurnFinished {
            rollout,
            turn,
            engine: self.engine.clone(),
            prompt_tokens: prompt_tokens as u32,
            new_tokens: self.reply.ids.len() as u32,
            finish: self.finish,
            version: self.reply.versions.iter().filter_map(|span| span.number).max(),
            generate_ms,
        }
    }
}
