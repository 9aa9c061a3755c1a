//! Why a simulation could not be begun. What goes wrong inside of one is in its report.

/// A simulation could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("the simulation could not be set up: {what}: {reason}")]
pub struct SimError {
    /// The part.
    pub what: &'static str,
    /// What happened, in words.
    pub reason: String,
}

impl SimError {
    pub(crate) fn of(what: &'static str) -> impl Fn(String) -> Self {
        move |reason| Self { what, reason }
    }
}
