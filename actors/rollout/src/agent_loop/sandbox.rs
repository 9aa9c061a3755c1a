//! A claimed sandbox, released whatever happens.
//!
//! A claim that is given up closes its reply port, so the pool takes the box back; an answer that came in the same moment
//! is released here. A held box is released when it is dropped; the normal end waits until nothing of it is left.

use std::collections::BTreeMap;

use greenroom_core::{Address, Answer, AskError, Deadline, Reply, ask};
use greenroom_messages::LeaseId;
use greenroom_messages::rollout::{InfraFailure, InfraKind};
use greenroom_messages::sandbox::{
    ClaimLease, ClaimedLease, ExecOutcome, ExecRequest, SandboxFailure, SandboxFailureKind, SandboxFile,
    SandboxLeaseMessage, SandboxPoolMessage, Shell,
};
use tokio::time::Duration;

/// How much later than the work's own time-out a question to the sandbox is given up.
const ANSWER_GRACE_MS: u64 = 30_000;
/// The wait before a pool that is not there is asked again.
const AGAIN: Duration = Duration::from_millis(250);
const MOVE_FILES_WAIT_MS: u64 = 120_000;
const RELEASE_WAIT_MS: u64 = 60_000;
const WRITING: &str = "writing files";
const READING: &str = "reading a file";

/// A failure of the sandbox.
pub(super) fn sandbox_failed(what: &str, error: impl std::fmt::Display) -> InfraFailure {
    InfraFailure { kind: InfraKind::Sandbox, message: format!("{what}: {error}") }
}

/// A box that this rollout holds.
#[derive(Debug)]
pub(super) struct HeldBox {
    address: Address<SandboxLeaseMessage>,
    pub(super) lease: LeaseId,
    pub(super) is_warm: bool,
    workdir: String,
    is_released: bool,
}

struct PendingClaim {
    answer: Answer<Result<ClaimedLease, SandboxFailure>>,
}

impl Drop for PendingClaim {
    fn drop(&mut self) {
        self.answer.close();
        if let Some(Ok(Ok(claimed))) = self.answer.try_recv() {
            drop(HeldBox::new(&claimed, None));
        }
    }
}

/// Claims a box. A pool that is not there, or ends before it has given one, may be back (or another node's may answer): it
/// is asked again while the claim's wait lasts.
pub(super) async fn claim(
    pool: &Address<SandboxPoolMessage>,
    request: ClaimLease,
) -> Result<ClaimedLease, InfraFailure> {
    let patience = Deadline::after_ms(request.wait_ms);
    loop {
        let wait_ms = patience.remaining().as_millis() as u64;
        let absent = match claim_once(pool, ClaimLease { wait_ms, ..request.clone() }).await {
            Ok(claimed) => return claimed.map_err(|failure| sandbox_failed("claim", failure)),
            Err(absent) => absent,
        };
        if patience.remaining() <= AGAIN {
            return Err(sandbox_failed("claim", absent));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Asks for a box; fails when the pool is not there to give one.
async fn claim_once(
    pool: &Address<SandboxPoolMessage>,
    request: ClaimLease,
) -> Result<Result<ClaimedLease, SandboxFailure>, String> {
    let deadline = Deadline::after_ms(request.wait_ms + ANSWER_GRACE_MS);
    let (reply, answer) = Reply::channel();
    let mut pending = PendingClaim { answer };
    pool.cast(SandboxPoolMessage::Claim(request, reply)).map_err(|gone| gone.to_string())?;
    match tokio::time::timeout_at(deadline.instant(), &mut pending.answer).await {
        Ok(Ok(Err(failure))) if failure.kind == SandboxFailureKind::Closed => Err(failure.to_string()),
        Ok(Ok(answer)) => Ok(answer),
        // what such a pool had given ends with it
        Ok(Err(_)) => Err(format!("{} dropped the question without an answer", pool.name())),
        Err(_) => Err(format!("{} did not answer in time", pool.name())),
    }
}

impl HeldBox {
    /// Holds a claimed box; commands run in `workdir`, the box's own where there is none.
    pub(super) fn new(claimed: &ClaimedLease, workdir: Option<&str>) -> Self {
        let workdir = workdir.unwrap_or(&claimed.workdir).to_owned();
        let (address, lease, is_warm) = (claimed.address.clone(), claimed.lease, claimed.warm);
        Self { address, lease, is_warm, workdir, is_released: false }
    }

    pub(super) fn workdir(&self) -> &str {
        &self.workdir
    }

    /// Writes files; relative paths start at the working directory.
    pub(super) async fn put_files(&self, files: &BTreeMap<String, String>) -> Result<(), InfraFailure> {
        let bytes = files.iter().map(|(path, text)| (path.clone(), text.clone().into_bytes()));
        match self.offer_files(bytes.collect()).await? {
            Ok(()) => Ok(()),
            Err(refusal) => Err(sandbox_failed(WRITING, refusal)),
        }
    }

    /// Writes files, or says in words why the box did not take one of them.
    pub(super) async fn offer_files(
        &self,
        files: BTreeMap<String, Vec<u8>>,
    ) -> Result<Result<(), String>, InfraFailure> {
        let absolute = |path: String| match path.starts_with('/') {
            true => path,
            false => format!("{}/{path}", self.workdir.trim_end_matches('/')),
        };
        let file = |(path, content)| SandboxFile { path: absolute(path), content, executable: false };
        let files: Vec<SandboxFile> = files.into_iter().map(file).collect();
        if files.is_empty() {
            return Ok(Ok(()));
        }
        let question = |reply| SandboxLeaseMessage::PutFiles(files, reply);
        accepted(WRITING, ask(&self.address, Deadline::after_ms(MOVE_FILES_WAIT_MS), question).await)
    }

    /// Reads a file of at most so many bytes, or says in words why the box did not give it.
    pub(super) async fn read_file(
        &self,
        path: String,
        limit_bytes: u64,
    ) -> Result<Result<Vec<u8>, String>, InfraFailure> {
        let question = |reply| SandboxLeaseMessage::ReadFile(path, limit_bytes, reply);
        accepted(READING, ask(&self.address, Deadline::after_ms(MOVE_FILES_WAIT_MS), question).await)
    }

    /// Runs one command in the working directory, or in `cwd`.
    pub(super) async fn exec(&self, request: ExecCall<'_>) -> Result<ExecOutcome, InfraFailure> {
        let deadline = Deadline::after_ms(request.timeout_ms + ANSWER_GRACE_MS);
        let cwd = request.cwd.filter(|cwd| !cwd.is_empty()).unwrap_or(&self.workdir);
        let request = ExecRequest {
            command: request.command.to_owned(),
            shell: request.shell,
            cwd: Some(cwd.to_owned()),
            env: request.env.cloned().unwrap_or_default(),
            timeout_ms: request.timeout_ms,
            output_limit_bytes: request.output_limit_bytes,
        };
        let question = |reply| SandboxLeaseMessage::Exec(request, reply);
        flatten("running a command", ask(&self.address, deadline, question).await)
    }

    /// Releases the box and waits until nothing of it is left; the error is for the record only.
    pub(super) async fn release(mut self) -> Result<(), AskError> {
        self.is_released = true;
        ask(&self.address, Deadline::after_ms(RELEASE_WAIT_MS), SandboxLeaseMessage::Release).await
    }
}

impl Drop for HeldBox {
    fn drop(&mut self) {
        if !self.is_released {
            let (reply, _) = Reply::channel();
            // A lease that is gone has nothing left to release.
            let _ = self.address.cast(SandboxLeaseMessage::Release(reply));
        }
    }
}

/// A command to be run; what is absent is the box's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExecCall<'a> {
    pub(super) command: &'a str,
    pub(super) shell: Shell,
    pub(super) cwd: Option<&'a str>,
    pub(super) env: Option<&'a BTreeMap<String, String>>,
    pub(super) timeout_ms: u64,
    pub(super) output_limit_bytes: u64,
}

/// A refusal is the box's answer; every other failure is one of infrastructure.
fn accepted<T>(
    what: &str,
    answer: Result<Result<T, SandboxFailure>, AskError>,
) -> Result<Result<T, String>, InfraFailure> {
    match answer.map_err(|error| sandbox_failed(what, error))? {
        Ok(done) => Ok(Ok(done)),
        Err(failure) if failure.kind == SandboxFailureKind::Refused => Ok(Err(failure.to_string())),
        Err(failure) => Err(sandbox_failed(what, failure)),
    }
}

fn flatten<T>(what: &str, answer: Result<Result<T, SandboxFailure>, AskError>) -> Result<T, InfraFailure> {
    answer.map_err(|error| sandbox_failed(what, error))?.map_err(|failure| sandbox_failed(what, failure))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use greenroom_messages::{BatchId, GroupId, Purpose, RolloutId};
    use tokio::time::{Duration, timeout};

    use super::*;

    fn request() -> ClaimLease {
        let group = GroupId { batch: BatchId { purpose: Purpose::Train, number: 1 }, index: 0 };
        ClaimLease { rollout: RolloutId { group, sample: 0, attempt: 0 }, lifetime_ms: 1, wait_ms: 1000 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_box_given_in_the_moment_in_which_its_claim_is_dropped_is_released() {
        let asked = Arc::new(Mutex::new(None));
        let released = Arc::new(Mutex::new(0));
        let (asked_by_pool, count) = (asked.clone(), released.clone());
        let pool = Address::of_function("pool", move |message| {
            if let SandboxPoolMessage::Claim(_, reply) = message {
                *asked_by_pool.lock().unwrap() = Some(reply);
            }
            Ok(())
        });
        let lease = Address::of_function("lease", move |message| {
            *count.lock().unwrap() += u32::from(matches!(message, SandboxLeaseMessage::Release(_)));
            Ok(())
        });
        let mut claiming = Box::pin(claim(&pool, request()));
        assert!(timeout(Duration::from_millis(1), &mut claiming).await.is_err(), "the claim waits");
        let claimed = ClaimedLease {
            lease: LeaseId(1),
            image: "py".to_owned(),
            address: lease,
            workdir: "/work".to_owned(),
            warm: false,
            waited_ms: 0,
        };
        let reply: Reply<_> = asked.lock().unwrap().take().unwrap();
        assert!(reply.send(Ok(claimed)), "the pool thinks that the box is held");
        drop(claiming);
        assert_eq!(*released.lock().unwrap(), 1);
    }
}
