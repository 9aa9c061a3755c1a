//! How an episode ends, in upstream's words.

/// The end of an episode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Why it ended.
    pub status: ExitStatus,
    /// What was submitted; empty unless the status is [`ExitStatus::Submitted`].
    pub submission: String,
}

/// Why an episode ended. Only the first four are the policy's own doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitStatus {
    /// A command printed the sentinel.
    Submitted,
    /// The step or the cost limit was reached before a call.
    LimitsExceeded,
    /// The wall-time limit was reached before a call.
    TimeExceeded,
    /// Too many replies in a row had not exactly one action.
    RepeatedFormatError,
    /// A call or a template failed; the caller decides what becomes of the rollout.
    Failed {
        /// The exception's type name, such as `ContextWindowExceededError`.
        exception_type: String,
        /// Its text.
        exception: String,
    },
}

impl ExitStatus {
    /// The name a trajectory file holds.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Submitted => "Submitted",
            Self::LimitsExceeded => "LimitsExceeded",
            Self::TimeExceeded => "TimeExceeded",
            Self::RepeatedFormatError => "RepeatedFormatError",
            Self::Failed { exception_type, .. } => exception_type,
        }
    }
}
