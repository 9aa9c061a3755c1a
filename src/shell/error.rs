//! Why the shell cannot do as asked, with a stable code each.

use greenroom_core::ErrorPage;

/// A verb cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShellError {
    /// The words are no verb with its arguments (GR0930).
    #[error("{reason}")]
    Words {
        /// What is wrong, with what would be right.
        reason: String,
    },
    /// No desk of the run was reached (GR0931).
    #[error("no controller of run {run} was reached through {at} within {waited_s} s: {heard}")]
    NoDesk {
        /// The run.
        run: String,
        /// Where it was looked for.
        at: String,
        /// How long, seconds.
        waited_s: u64,
        /// What was seen of the cluster instead.
        heard: String,
    },
    /// Nobody listens where the run was looked for (GR0931).
    #[error(
        "{at} cannot be reached: {why}. --at (or GREENROOM_AT) must be the address of a node of run {run} that is up: its \
         state_dir holds it in the file `address`"
    )]
    Unreachable {
        /// The run.
        run: String,
        /// Where it was looked for.
        at: String,
        /// What the connection said.
        why: String,
    },
    /// The certificate lets its holder only look (GR0932).
    #[error("{reason}")]
    NeedsOperator {
        /// Who it is and what it would take.
        reason: String,
    },
    /// The desk does not do it (GR0933).
    #[error("{reason}")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// The desk gave no answer (GR0934).
    #[error("{reason}")]
    Unanswered {
        /// What became of the question.
        reason: String,
    },
    /// This certificate is no shell's (GR0935).
    #[error(
        "the certificate is that of node {name}, which a shell of that name would fence out: use an operator's or a viewer's"
    )]
    NodeCertificate {
        /// Whose it is.
        name: String,
    },
}

impl ShellError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Words { .. } => "GR0930",
            Self::NoDesk { .. } | Self::Unreachable { .. } => "GR0931",
            Self::NeedsOperator { .. } => "GR0932",
            Self::Refused { .. } => "GR0933",
            Self::Unanswered { .. } => "GR0934",
            Self::NodeCertificate { .. } => "GR0935",
        }
    }

    /// What a program that did this verb exits with.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Words { .. } => 2,
            Self::NeedsOperator { .. } => 5,
            _ => 1,
        }
    }
}

/// The pages of the shell's codes.
pub const SHELL_ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0930",
        cause: "the words are no verb of the shell, or its arguments are not what it takes",
        remedy: "`greenroom ctl help` lists the verbs, `help VERB` shows one",
    },
    ErrorPage {
        code: "GR0931",
        cause: "no controller of the run answered: nobody listens at that address, the cluster did not let the shell in, or it has no controller at present",
        remedy: "see that --at leads to a node of the run, that --run is its name, and that cookie and certificate are of its authority",
    },
    ErrorPage {
        code: "GR0932",
        cause: "steering a run needs a certificate of the role operator, and this one is another",
        remedy: "make one with `greenroom ca issue --role operator`, or ask whoever keeps the authority",
    },
    ErrorPage {
        code: "GR0933",
        cause: "the run's controller does not do as asked",
        remedy: "the message names the reason and what can be done instead",
    },
    ErrorPage {
        code: "GR0934",
        cause: "the controller gave no answer in time, or the connection to it was lost: whether a steering verb had its effect is not known",
        remedy: "look with `status` and `events`, then repeat it: every verb may be repeated",
    },
    ErrorPage {
        code: "GR0935",
        cause: "a shell was given a node's certificate, and would take that node's name in the cluster",
        remedy: "make a certificate with `greenroom ca issue --role operator` or `--role viewer`",
    },
];
