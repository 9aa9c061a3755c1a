//! Pages that explain error codes: what happened, and what to do about it.

/// The target of log lines whose content a person is told anyhow: a program keeps them out of what it shows that person.
pub const TOLD: &str = "greenroom_told";

/// The explanation of one stable error code, shown by `greenroom explain CODE`.
#[derive(Clone, Copy, Debug)]
pub struct ErrorPage {
    /// The code, `GR` and four digits; it never changes its meaning.
    pub code: &'static str,
    /// What happened, in one sentence.
    pub cause: &'static str,
    /// What a person can do about it.
    pub remedy: &'static str,
}

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0001",
        cause: "a message was sent to an actor that is not running",
        remedy: "look for the actor's last words in the log; its supervisor restarts it within its restart intensity",
    },
    ErrorPage {
        code: "GR0002",
        cause: "an actor did not answer a question before its deadline",
        remedy: "the message names the actor: it is busy, stopped, or cut off; the run's log and the table `events` of run.db hold what it did last",
    },
    ErrorPage {
        code: "GR0003",
        cause: "an actor ended, or gave a question up, without an answer",
        remedy: "look for the actor's last words in the log",
    },
    ErrorPage {
        code: "GR0004",
        cause: "bytes on the wire are not a message of the expected type and version, or are larger than the limit",
        remedy: "let all nodes run the same version; a corrupt file must be fetched or written again",
    },
    ErrorPage {
        code: "GR0005",
        cause: "a child actor failed more often than its restart intensity allows, so its supervisor gave up",
        remedy: "the message holds the last failure; mend its cause, then continue the run with --resume",
    },
    ErrorPage {
        code: "GR0006",
        cause: "the fault plan (GREENROOM_FAULTS) cannot be read",
        remedy: "write it as `point=action@count`, action one of fail, crash, delay:MILLISECONDS; separate several by commas",
    },
    ErrorPage {
        code: "GR0007",
        cause: "the line to another node was lost with a question on it: whether the question had its effect is not known",
        remedy: "the message names the node and why it is held for dead; what is repeatable is repeated, the rest ends as a failure of infrastructure",
    },
    ErrorPage {
        code: "GR0008",
        cause: "a message could not be written for, or read from, another node",
        remedy: "let all nodes run the same version; the message names the type",
    },
];
