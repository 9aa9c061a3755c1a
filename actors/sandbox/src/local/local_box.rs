//! One box on this machine, as pools and leases see it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::{in_place, spawn_blocking_named, spawn_named};
use greenroom_messages::sandbox::{ExecException, ExecOutcome, ExecRequest, SandboxFile, Shell};
use tokio::sync::{mpsc, oneshot, watch};

use super::client::{BoxClient, BoxEnd, Errand};
use super::remove_tree::remove_tree;
use crate::error::SandboxError;
use crate::helper::protocol::{Exec, Reply, Request, bounded_duration};
use crate::provider::SandboxBox;

/// What a box may take beyond a command's own time-out, to kill its processes and to read what they wrote.
const GRACE: Duration = Duration::from_secs(15);
/// What moving a file may take.
const FILE_WAIT: Duration = Duration::from_secs(60);

/// The directory of a box; removed when dropped, for futures that are given up half-way.
#[derive(Debug)]
pub(crate) struct BoxDirectory {
    path: Option<PathBuf>,
}

impl BoxDirectory {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path: Some(path) }
    }

    pub(crate) fn failed(&self, error: &io::Error) -> SandboxError {
        SandboxError::Directory { path: self.path.clone().unwrap_or_default(), detail: error.to_string() }
    }

    /// Removes it; repeatable.
    pub(crate) async fn remove(&mut self) -> Result<(), SandboxError> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        let removed = spawn_blocking_named("sandbox-remove", move || remove_tree(&path)).await;
        match removed {
            Ok(Some(Ok(()))) => {
                self.path = None;
                Ok(())
            }
            Ok(Some(Err(error))) => Err(self.failed(&error)),
            Ok(None) | Err(_) => Err(self.failed(&io::Error::other("the task that removed it ended early"))),
        }
    }
}

impl Drop for BoxDirectory {
    fn drop(&mut self) {
        if let Some(path) = self.path.take()
            && let Err(error) = in_place(|| remove_tree(&path))
        {
            tracing::warn!(path = %path.display(), %error, "a sandbox's directory is left for the next sweep");
        }
    }
}

/// A box: a handle to the task that owns its socket, helper and directory. Dropping it ends the box, too.
pub(crate) struct LocalBox {
    box_id: String,
    /// Where the work tree lies, where there are no walls to give it its name.
    plain_workdir: Option<String>,
    errands: mpsc::Sender<Errand>,
    closing: watch::Sender<bool>,
    ended: watch::Receiver<Option<BoxEnd>>,
}

impl LocalBox {
    pub(crate) fn new(
        box_id: String,
        plain_workdir: Option<String>,
        client: BoxClient,
        directory: BoxDirectory,
    ) -> Self {
        let (errands, inbox) = mpsc::channel(8);
        let (closing, close) = watch::channel(false);
        let (end, ended) = watch::channel(None);
        // The task ends by itself when the box does; nobody needs its handle.
        drop(spawn_named(format!("sandbox-{box_id}"), client.run(directory, inbox, close, end)));
        Self { box_id, plain_workdir, errands, closing, ended }
    }

    async fn ask(&self, request: Request, payload: Vec<u8>, wait: Duration) -> Result<(Reply, Vec<u8>), SandboxError> {
        let (reply, answer) = oneshot::channel();
        if self.errands.send(Errand { request, payload, wait, reply }).await.is_err() {
            return Err(self.end().await.error);
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.end().await.error),
        }
    }

    async fn end(&self) -> BoxEnd {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| BoxEnd { error: self.lost("its task ended"), removed: Ok(()) })
    }

    fn lost(&self, detail: impl Into<String>) -> SandboxError {
        SandboxError::Lost { box_id: self.box_id.clone(), detail: detail.into() }
    }

    fn refused(&self, action: &'static str, path: String, detail: String) -> SandboxError {
        SandboxError::Refused { box_id: self.box_id.clone(), action, path, detail }
    }
}

#[async_trait]
impl SandboxBox for LocalBox {
    fn box_id(&self) -> &str {
        &self.box_id
    }

    fn workdir(&self) -> Option<String> {
        self.plain_workdir.clone()
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecOutcome, SandboxError> {
        let shell = match request.shell {
            Shell::Sh => "/bin/sh",
            Shell::Bash => "bash",
        };
        let wait = bounded_duration(request.timeout_ms) + GRACE;
        let exec = Exec {
            shell: shell.to_owned(),
            command: request.command,
            cwd: request.cwd,
            env: request.env,
            timeout_ms: request.timeout_ms,
            output_limit_bytes: request.output_limit_bytes,
        };
        match self.ask(Request::Exec(exec), Vec::new(), wait).await? {
            (Reply::Executed(executed), output) => Ok(ExecOutcome {
                output,
                dropped_bytes: executed.dropped_bytes,
                returncode: executed.returncode,
                exception: executed.exception.map(|(kind, text)| ExecException { kind, text }),
                elapsed_ms: executed.elapsed_ms,
            }),
            (other, _) => Err(self.lost(format!("it answered {other:?} to a command"))),
        }
    }

    async fn put_files(&self, files: Vec<SandboxFile>) -> Result<(), SandboxError> {
        for file in files {
            let mode = if file.executable { 0o755 } else { 0o644 };
            let request = Request::PutFile { path: file.path, mode };
            match self.ask(request, file.content, FILE_WAIT).await? {
                (Reply::FilePut, _) => {}
                (Reply::FileFailed { path, detail }, _) => return Err(self.refused("write", path, detail)),
                (other, _) => return Err(self.lost(format!("it answered {other:?} to a file"))),
            }
        }
        Ok(())
    }

    async fn read_file(&self, path: &str, limit_bytes: u64) -> Result<Vec<u8>, SandboxError> {
        let request = Request::ReadFile { path: path.to_owned(), limit_bytes };
        match self.ask(request, Vec::new(), FILE_WAIT).await? {
            (Reply::FileRead, content) => Ok(content),
            (Reply::FileFailed { path, detail }, _) => Err(self.refused("read", path, detail)),
            (other, _) => Err(self.lost(format!("it answered {other:?} to a file's name"))),
        }
    }

    async fn renew(&self, lifetime_ms: u64) -> Result<(), SandboxError> {
        match self.ask(Request::Renew { lifetime_ms }, Vec::new(), GRACE).await? {
            (Reply::Renewed, _) => Ok(()),
            (other, _) => Err(self.lost(format!("it answered {other:?} to a renewal"))),
        }
    }

    async fn ended(&self) -> SandboxError {
        self.end().await.error
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        self.closing.send_replace(true);
        self.end().await.removed
    }
}
