//! The protocol of SandboxPool (one per image) and SandboxLease (one per claimed box).

use std::collections::BTreeMap;

use greenroom_core::{Address, Reply};
use serde::{Deserialize, Serialize};

use crate::{LeaseId, RolloutId};

/// Messages to a SandboxPool.
#[derive(Debug, Serialize, Deserialize)]
pub enum SandboxPoolMessage {
    /// From an AgentLoop: one box for one rollout, warm if there is one, else made now. Not repeatable: every success is
    /// another box. A claim that is abandoned by its asker gives the box back by itself.
    Claim(ClaimLease, Reply<Result<ClaimedLease, SandboxFailure>>),
    /// From the shell and tests: how the pool stands.
    Status(Reply<SandboxPoolStatus>),
    /// From the run's end: destroy the warm boxes, refuse further claims, answer when nothing is left.
    Drain(Reply<()>),
}

greenroom_core::local_message!(SandboxPoolMessage);

/// What is claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimLease {
    /// For whom.
    pub rollout: RolloutId,
    /// The box ends by itself after this long, whatever happens to its holder.
    pub lifetime_ms: u64,
    /// The claim fails when no box is ready within this time.
    pub wait_ms: u64,
}

/// A claimed box.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimedLease {
    /// Its identity.
    pub lease: LeaseId,
    /// The image it was made from.
    pub image: String,
    /// Its actor.
    pub address: Address<SandboxLeaseMessage>,
    /// The directory inside the box in which the task's files lie.
    pub workdir: String,
    /// Whether it was ready before it was claimed.
    pub warm: bool,
    /// How long the claim waited.
    pub waited_ms: u64,
}

/// Messages to a SandboxLease. All from the AgentLoop that holds it.
#[derive(Debug, Serialize, Deserialize)]
pub enum SandboxLeaseMessage {
    /// Run one command. Not repeatable. Asked with a deadline later than the command's own time-out.
    Exec(ExecRequest, Reply<Result<ExecOutcome, SandboxFailure>>),
    /// Write files. Repeatable.
    PutFiles(Vec<SandboxFile>, Reply<Result<(), SandboxFailure>>),
    /// Read one file of at most the given size in bytes. Repeatable.
    ReadFile(String, u64, Reply<Result<Vec<u8>, SandboxFailure>>),
    /// Let the box live this many milliseconds from now. Repeatable.
    Renew(u64, Reply<Result<(), SandboxFailure>>),
    /// Destroy the box; answers when nothing of it is left. Repeatable; also happens when the lease's holder is gone.
    Release(Reply<()>),
}

greenroom_core::local_message!(SandboxLeaseMessage);

/// The shell that runs a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shell {
    /// `/bin/sh -c`, as mini-swe-agent's local environment.
    #[default]
    Sh,
    /// `bash -c`, as the example's sandboxes and SWE-smith's test commands.
    Bash,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The command line, handed to the shell as it is.
    pub command: String,
    /// The shell.
    pub shell: Shell,
    /// The working directory inside the box; the image's workdir when absent.
    pub cwd: Option<String>,
    /// Variables laid over the box's own environment.
    pub env: BTreeMap<String, String>,
    /// The whole process tree is killed after this long.
    pub timeout_ms: u64,
    /// At most this much output is kept, its beginning and its end; the rest is counted.
    pub output_limit_bytes: u64,
}

/// What a command did. A time-out or a command that could not start is an outcome, too: the agent sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOutcome {
    /// stdout and stderr in the order written.
    #[serde(with = "serde_bytes")]
    pub output: Vec<u8>,
    /// Bytes of output that were dropped from the middle because of the limit.
    pub dropped_bytes: u64,
    /// The exit status; −n when the shell was killed by signal n; −1 together with an exception.
    pub returncode: i32,
    /// What prevented a normal end.
    pub exception: Option<ExecException>,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// What prevented a command's normal end, in the words the agent is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecException {
    /// The kind, with the name mini-swe-agent gives it: `TimeoutExpired`, `FileNotFoundError`, `OSError`, `ValueError`,
    /// `MemoryLimitExceeded`, `DiskLimitExceeded`.
    pub kind: String,
    /// The text, without the agent's lead-in.
    pub text: String,
}

/// A file to be written into a box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxFile {
    /// The path inside the box; relative ones start at the workdir. Parents are made.
    pub path: String,
    /// The content.
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
    /// Whether it may be executed.
    pub executable: bool,
}

/// Why a sandbox could not serve: always a failure of infrastructure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{kind:?}: {message}")]
pub struct SandboxFailure {
    /// The kind.
    pub kind: SandboxFailureKind,
    /// What happened, in words.
    pub message: String,
}

/// The kinds of sandbox failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SandboxFailureKind {
    /// No box was ready within the claim's wait.
    ClaimTimedOut,
    /// The provider could not make a box.
    CreateFailed,
    /// The lease's lifetime is over.
    Expired,
    /// The box is gone: its processes died from outside, or its provider lost it.
    Lost,
    /// The lease or pool has been released or drained.
    Closed,
    /// The request itself is not acceptable (a path outside the box, a file over the limit).
    Refused,
}

/// How a pool stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxPoolStatus {
    /// The image.
    pub image: String,
    /// Boxes ready to be claimed.
    pub warm: u32,
    /// Boxes being made.
    pub creating: u32,
    /// Boxes claimed and not yet destroyed.
    pub leased: u32,
    /// Claims that wait.
    pub waiting: u32,
    /// Boxes made since the start.
    pub created: u64,
    /// Failed creations since the start.
    pub failed: u64,
}
