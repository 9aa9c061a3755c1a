//! Control calls as the machine wants them, made through the engine's API: one call here may be several exchanges.
//!
//! Every call ends by its deadline. What an engine cannot tell (its progress, its numbers) is an answer of that kind, not a
//! failure: only a call that the engine owes an answer puts it in doubt.

use greenroom_core::{Deadline, Seam};

use super::effect::{Call, CallAnswer, Progress, SpotVerdict};
use super::spot_check;
use crate::{ApiError, EngineApi};

/// The endpoint by which people know a call.
pub(super) fn call_name(call: &Call) -> &'static str {
    match call {
        Call::Reach | Call::Confirm => "/model_info",
        Call::Inspect => "/server_info",
        Call::Probe { .. } => "/ready",
        Call::Pause(_) => "/pause_generation",
        Call::Load(_) => "/update_weights_from_disk",
        Call::SpotCheck { .. } => "/get_weights_by_name",
        Call::Resume => "/continue_generation",
    }
}

/// Makes a call and gives its answer by the deadline.
pub(super) async fn make_call(
    api: &dyn EngineApi,
    seam: &Seam,
    call: &Call,
    deadline: Deadline,
) -> Result<CallAnswer, ApiError> {
    match call {
        Call::Reach | Call::Confirm => Ok(CallAnswer::Model(api.model_info(deadline).await?)),
        Call::Inspect => Ok(CallAnswer::Inspected(api.server_info(deadline).await?, api.model_info(deadline).await?)),
        Call::Probe { ready, progress } => {
            let ready = match *ready {
                false => true,
                true => match api.ready(deadline).await {
                    Err(ApiError::Missing { .. }) => true,
                    answer => answer?,
                },
            };
            let model = api.model_info(deadline).await?;
            let progress = if *progress { ask_progress(api, deadline).await } else { Progress::Unknown };
            Ok(CallAnswer::Probed(ready, model, progress))
        }
        Call::Pause(mode) => api.pause(*mode, deadline).await.map(|()| CallAnswer::Done),
        Call::Load(load) => api.update_weights_from_disk(load, deadline).await.map(|()| CallAnswer::Done),
        Call::SpotCheck { model_dir, turn, answer_ms } => {
            let verdict = check_numbers(api, seam, model_dir, *turn, *answer_ms).await;
            Ok(CallAnswer::SpotChecked(verdict))
        }
        Call::Resume => api.continue_generation(deadline).await.map(|()| CallAnswer::Done),
    }
}

/// A busy scheduler answers late, so silence here is no loss yet: half of the probe's time is enough to see that.
async fn ask_progress(api: &dyn EngineApi, deadline: Deadline) -> Progress {
    let half = Deadline::after(deadline.remaining() / 2);
    match tokio::time::timeout_at(half.instant(), api.progress(half)).await {
        Ok(Ok(Some(at))) => Progress::At(at),
        Ok(Ok(None)) => Progress::Unknown,
        Ok(Err(error)) => Progress::Failing(error.to_string()),
        Err(_) => Progress::Failing("it did not tell how far it is".to_owned()),
    }
}

async fn check_numbers(api: &dyn EngineApi, seam: &Seam, model_dir: &str, turn: u64, answer_ms: u64) -> SpotVerdict {
    let dir = std::path::PathBuf::from(model_dir);
    let read = seam.blocking("engine-spot-check", move || spot_check::excerpts(&dir, turn)).await;
    let excerpts = match read.unwrap_or_else(|| Err("reading the checkpoint failed; see the log".to_owned())) {
        Ok(excerpts) => excerpts,
        Err(reason) => return SpotVerdict::Unable(reason),
    };
    let deadline = Deadline::after_ms(answer_ms);
    for excerpt in excerpts {
        let asked = api.weight_rows(&excerpt.name, excerpt.rows, deadline);
        let answered = match tokio::time::timeout_at(deadline.instant(), asked).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => return SpotVerdict::Unable(error.to_string()),
            // If it is dead, the next call finds out; some engine may only not answer this while it is paused.
            Err(_) => return SpotVerdict::Unable(format!("it told no numbers within {answer_ms} ms")),
        };
        if let Err(what) = spot_check::compare(&excerpt, &answered) {
            return SpotVerdict::Different(what);
        }
    }
    SpotVerdict::Same
}
