//! What goes into and comes out of the state machine of one engine: plain data, no tasks, no clock.

use greenroom_messages::RolloutId;
use greenroom_messages::engine::{EngineFailure, EngineStatus, GenerateRequest, UpdateConfirmed, UpdateWeights};

use crate::{ApiError, LoadWeights, ModelInfo, ServerInfo, ServerPause};

/// What happens to an engine's proxy.
#[derive(Clone, Debug)]
pub enum Input {
    /// The proxy begins.
    Start,
    /// Time has passed: whatever is due is done.
    Tick,
    /// A control call ended. Answers to tickets other than the last are ignored.
    Called(u64, Result<CallAnswer, ApiError>),
    /// Someone wants a turn.
    Generate(Admission),
    /// A turn that was sent has ended.
    Finished(String, Report),
    /// A rollout gives up what it has in flight.
    Release(RolloutId),
    /// The fleet is to have these weights; the number names the one who waits for the answer.
    Update(u64, UpdateWeights),
    /// Stop admitting.
    Drain,
    /// Admit again.
    Undrain,
}

/// What must be known of a turn to decide on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Its id at the engine.
    pub rid: String,
    /// Its rollout.
    pub rollout: RolloutId,
    /// The prompt's length in tokens.
    pub prompt_tokens: u64,
    /// The largest token id of the prompt.
    pub largest_id: Option<u32>,
    /// How many new tokens are wanted.
    pub max_new_tokens: u32,
    /// Weights older than this may not serve it.
    pub oldest_version: u64,
}

impl Admission {
    /// What the machine must know of a request.
    pub fn of(request: &GenerateRequest) -> Self {
        Self {
            rid: request.rid.clone(),
            rollout: request.rollout,
            prompt_tokens: request.input_ids.len() as u64,
            largest_id: request.input_ids.iter().copied().max(),
            max_new_tokens: request.sampling.max_new_tokens,
            oldest_version: request.oldest_version,
        }
    }
}

/// How a turn that was sent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// With an answer that can be used, an abort included.
    Answered,
    /// With a refusal of this one request.
    Refused,
    /// With what no sound engine answers: no JSON, tokens that the model does not have, a failure inside of it.
    Unusable(String),
    /// Its own time-out passed.
    TimedOut,
    /// Its asker went away.
    Abandoned,
    /// The machine itself had ended it.
    Cancelled,
    /// The connection broke, or was never made: the engine is in doubt.
    Broken(String),
    /// The answer came from weights that may not serve: the engine was restarted or loaded by someone else.
    Untrusted(String),
}

/// A control call; one is under way at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Is anybody there?
    Reach,
    /// Version, limits and weight label.
    Inspect,
    /// Does it still live, with the same weights? `/ready` is asked too where it exists.
    Probe {
        /// Whether the server has `/ready`.
        ready: bool,
        /// Whether to ask how far it is.
        progress: bool,
    },
    /// Stop generating.
    Pause(ServerPause),
    /// Replace the weights.
    Load(LoadWeights),
    /// Which weights does it have now?
    Confirm,
    /// Are its weights those of the file that it was told to load?
    SpotCheck {
        /// The directory, as seen from the engine's host.
        model_dir: String,
        /// Which tensors to look at: others for each version.
        turn: u64,
        /// How long an answer may take, in milliseconds.
        answer_ms: u64,
    },
    /// Go on generating.
    Resume,
}

/// How far an engine is, as far as it can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It was not asked, or cannot tell.
    Unknown,
    /// In words that change whenever it goes on.
    At(String),
    /// It should have told and did not: why.
    Failing(String),
}

/// What a spot check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpotVerdict {
    /// The same numbers.
    Same,
    /// Other numbers: what differs.
    Different(String),
    /// Nothing could be compared: why.
    Unable(String),
}

/// The answer to a control call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallAnswer {
    /// To [`Call::Pause`], [`Call::Load`], [`Call::Resume`].
    Done,
    /// To [`Call::Reach`] and [`Call::Confirm`].
    Model(ModelInfo),
    /// To [`Call::Inspect`].
    Inspected(ServerInfo, ModelInfo),
    /// To [`Call::Probe`]: whether it is ready, its weights, and how far it is.
    Probed(bool, ModelInfo, Progress),
    /// To [`Call::SpotCheck`].
    SpotChecked(SpotVerdict),
}

/// What the proxy must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Make this call within so many milliseconds; a call still under way is given up.
    Call {
        /// Comes back with the answer.
        ticket: u64,
        /// The call.
        call: Call,
        /// How long it may take.
        within_ms: u64,
    },
    /// Send the admitted turn with this many new tokens at the most.
    Send {
        /// The turn.
        rid: String,
        /// Clamped to the context.
        max_new_tokens: u32,
        /// The number of the weights that the engine has confirmed.
        version: u64,
    },
    /// Answer a turn that was not sent.
    Reject {
        /// The turn.
        rid: String,
        /// Why.
        failure: EngineFailure,
    },
    /// Ask the engine to end this turn; its answer still counts.
    Abort(String),
    /// Answer a turn that was sent, and hang up.
    Fail {
        /// The turn.
        rid: String,
        /// Why.
        failure: EngineFailure,
    },
    /// Answer one who waits for an update.
    UpdateEnded {
        /// Who waits.
        waiter: u64,
        /// How it went.
        result: Result<UpdateConfirmed, EngineFailure>,
    },
    /// Answer those who wait for the drain.
    Drained,
    /// The state, the version or the trouble changed: tell the fleet and the journal.
    Moved(EngineStatus),
    /// It may have more turns at once than before: tell the fleet.
    HasRoom(EngineStatus),
    /// Tell the journal that a question had no answer.
    AskFailed(String),
    /// Tell the journal what a person should know.
    Note(String),
}
