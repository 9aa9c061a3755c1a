//! What can go wrong with sandboxes, with stable codes. To the rest of the system these become [`SandboxFailure`]s.

use std::path::PathBuf;

use greenroom_core::ErrorPage;
use greenroom_messages::sandbox::{SandboxFailure, SandboxFailureKind};

/// A failure of a provider, a box or a pool. Never the fault of the command that ran: that is an outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The kernel or the container forbids what walls are made of (GR0501).
    #[error("this machine does not let greenroom make namespaces ({stage}: {detail}); {remedy}")]
    NamespacesUnavailable {
        /// The step that was refused.
        stage: String,
        /// What the kernel said.
        detail: String,
        /// What to change.
        remedy: String,
    },
    /// A box could not be made (GR0502).
    #[error("cannot make a sandbox of image {image}: {stage}: {detail}")]
    CreateFailed {
        /// The image.
        image: String,
        /// The step that failed.
        stage: String,
        /// Why.
        detail: String,
        /// Whether the next box of the image will fail in the same way: nothing is gained by trying again.
        lasting: bool,
    },
    /// A box is gone that should be there (GR0503).
    #[error("sandbox {box_id} is gone: {detail}")]
    Lost {
        /// The box.
        box_id: String,
        /// How that was noticed.
        detail: String,
    },
    /// A box lived as long as it was allowed to (GR0504).
    #[error("the lifetime of sandbox {box_id} is over")]
    Expired {
        /// The box.
        box_id: String,
    },
    /// No box became free in time (GR0505).
    #[error("no sandbox of image {image} was ready within {waited_ms} ms ({detail})")]
    ClaimTimedOut {
        /// The image.
        image: String,
        /// How long the claim waited.
        waited_ms: u64,
        /// How the pool stood, or its last failure.
        detail: String,
    },
    /// The pool or lease does not serve any more (GR0506).
    #[error("{what} is closed")]
    Closed {
        /// What was asked.
        what: String,
    },
    /// A file cannot be moved as asked (GR0507).
    #[error("cannot {action} {path} in sandbox {box_id}: {detail}")]
    Refused {
        /// The box.
        box_id: String,
        /// `write` or `read`.
        action: &'static str,
        /// The path inside the box.
        path: String,
        /// Why.
        detail: String,
    },
    /// A lease would end before its rollout may (GR0508).
    #[error(
        "a sandbox lifetime of {lease_lifetime_ms} ms is below the {needed_ms} ms that a rollout may need: guard \
         {guard_ms} + grading {grading_ms} + margin {margin_ms}; raise the lifetime or lower turns and time-outs"
    )]
    LifetimeTooShort {
        /// As configured.
        lease_lifetime_ms: u64,
        /// The sum.
        needed_ms: u64,
        /// When a rollout is given up.
        guard_ms: u64,
        /// How long grading may take.
        grading_ms: u64,
        /// What is added.
        margin_ms: u64,
    },
    /// The directory of boxes cannot be used (GR0509).
    #[error("cannot use {} for sandboxes: {detail}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        detail: String,
    },
}

impl SandboxError {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NamespacesUnavailable { .. } => "GR0501",
            Self::CreateFailed { .. } => "GR0502",
            Self::Lost { .. } => "GR0503",
            Self::Expired { .. } => "GR0504",
            Self::ClaimTimedOut { .. } => "GR0505",
            Self::Closed { .. } => "GR0506",
            Self::Refused { .. } => "GR0507",
            Self::LifetimeTooShort { .. } => "GR0508",
            Self::Directory { .. } => "GR0509",
        }
    }

    /// Whether trying again is of no use.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::NamespacesUnavailable { .. } | Self::CreateFailed { lasting: true, .. })
    }

    /// What the holder of a lease, or one who claims, is told.
    pub fn to_failure(&self) -> SandboxFailure {
        let kind = match self {
            Self::NamespacesUnavailable { .. } | Self::CreateFailed { .. } => SandboxFailureKind::CreateFailed,
            Self::Directory { .. } | Self::LifetimeTooShort { .. } => SandboxFailureKind::CreateFailed,
            Self::Lost { .. } => SandboxFailureKind::Lost,
            Self::Expired { .. } => SandboxFailureKind::Expired,
            Self::ClaimTimedOut { .. } => SandboxFailureKind::ClaimTimedOut,
            Self::Closed { .. } => SandboxFailureKind::Closed,
            Self::Refused { .. } => SandboxFailureKind::Refused,
        };
        SandboxFailure { kind, message: format!("{} ({})", self, self.code()) }
    }
}

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0501",
        cause: "the kernel or the container does not let an ordinary user make namespaces, the walls of a sandbox",
        remedy: "set what the message names (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
                 kernel.apparmor_restrict_unprivileged_userns, or the container's seccomp profile); in a container that is \
                 a wall of its own, set sandbox.local.isolation = \"none\"",
    },
    ErrorPage {
        code: "GR0502",
        cause: "a sandbox could not be made",
        remedy: "the message names the image, the step and the file: an image's directory that is missing, has files that cannot \
                 be read, or is larger than sandbox.local.limits.disk_bytes are the usual causes",
    },
    ErrorPage {
        code: "GR0503",
        cause: "a sandbox ended though nobody ended it: its first process was killed from outside, often for memory",
        remedy: "look at the kernel log for the out-of-memory killer; lower sandbox.pool.max_boxes or the boxes' limits",
    },
    ErrorPage {
        code: "GR0504",
        cause: "a sandbox reached the end of its lifetime while it was in use",
        remedy: "raise the lease lifetime, or lower the turns and time-outs of a rollout",
    },
    ErrorPage {
        code: "GR0505",
        cause: "no sandbox became free before the claim's deadline",
        remedy: "raise sandbox.pool.max_boxes or max_creating, or run fewer rollouts at once",
    },
    ErrorPage {
        code: "GR0506",
        cause: "a pool that is being drained, or a lease that was released, was asked for something",
        remedy: "nothing, at the end of a run; otherwise the holder used its lease after releasing it",
    },
    ErrorPage {
        code: "GR0507",
        cause: "a file could not be written into or read from a sandbox",
        remedy: "the message says why: a path that leads outside, not a regular file, too large, or no space",
    },
    ErrorPage {
        code: "GR0508",
        cause: "the lifetime of sandboxes is shorter than a rollout with its grading may take",
        remedy: "sandbox lifetime ≥ rollout guard + grading + margin; guard = turns × exec time-out + eval time-out + 300 s \
                 unless set",
    },
    ErrorPage {
        code: "GR0509",
        cause: "the directory below the run that holds sandboxes cannot be made, read or cleaned",
        remedy: "check its owner and mode; it must be on a file system that greenroom's user can write",
    },
];
