//! Greenroom's end of a box's socket.
//!
//! One request at a time; a request whose asker goes away is still read to its reply, so that the stream stays in step.
//! A box that does not answer in time is lost: its helper is killed, which kills the box.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot, watch};

use super::local_box::BoxDirectory;
use crate::error::SandboxError;
use crate::helper::protocol::{BoxSetup, Reply, Request, decode_lengths, encode};

/// How long a helper may take to end after its socket was closed, before it is killed.
const END_WITHIN: Duration = Duration::from_secs(5);

/// The raw connection, before and while its task runs.
pub(crate) struct BoxClient {
    box_id: String,
    stream: UnixStream,
    helper: Child,
}

/// How a box ended, and whether its directory is gone.
#[derive(Clone, Debug)]
pub(crate) struct BoxEnd {
    pub(crate) error: SandboxError,
    pub(crate) removed: Result<(), SandboxError>,
}

/// A request on its way to the box: frame, time to wait for the reply, and where the reply goes.
pub(crate) struct Errand {
    pub(crate) request: Request,
    pub(crate) payload: Vec<u8>,
    pub(crate) wait: Duration,
    pub(crate) reply: oneshot::Sender<Result<(Reply, Vec<u8>), SandboxError>>,
}

impl BoxClient {
    pub(crate) fn new(box_id: &str, stream: std::os::unix::net::UnixStream, helper: Child) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { box_id: box_id.to_owned(), stream: UnixStream::from_std(stream)?, helper })
    }

    /// Sends the set-up; gives the box's first word.
    pub(crate) async fn start(&mut self, setup: &BoxSetup) -> io::Result<Reply> {
        self.stream.write_all(&encode(setup, &[])?).await?;
        Ok(self.receive().await?.0)
    }

    /// Serves errands until the box ends, `closing` is told, or nobody can send any more. When it tells `ended` why, the
    /// helper, every process of the box and the box's directory are gone.
    pub(crate) async fn run(
        mut self,
        mut directory: BoxDirectory,
        mut errands: mpsc::Receiver<Errand>,
        mut closing: watch::Receiver<bool>,
        ended: watch::Sender<Option<BoxEnd>>,
    ) {
        let error = tokio::select! {
            // The sender gone means the same as the word: nobody holds the box any more.
            _ = closing.wait_for(|closing| *closing) => SandboxError::Closed { what: format!("sandbox {}", self.box_id) },
            error = self.serve(&mut errands) => error,
        };
        self.abandon().await;
        let removed = directory.remove().await;
        ended.send_replace(Some(BoxEnd { error, removed }));
    }

    /// Ends the box: returns when its helper, and with it every process of the box, is gone.
    pub(crate) async fn abandon(self) {
        let Self { stream, mut helper, box_id } = self;
        drop(stream);
        if tokio::time::timeout(END_WITHIN, helper.wait()).await.is_err() {
            tracing::warn!(box_id, "a sandbox's helper had to be killed");
            if let Err(error) = helper.kill().await {
                tracing::error!(box_id, %error, "cannot kill a sandbox's helper");
            }
        }
    }

    async fn serve(&mut self, errands: &mut mpsc::Receiver<Errand>) -> SandboxError {
        loop {
            let errand = tokio::select! {
                errand = errands.recv() => errand,
                // Between requests a box has one thing to say: that it is over.
                last_words = self.receive() => return self.end_of(last_words.map(|(reply, _)| reply)),
            };
            let Some(errand) = errand else { return SandboxError::Closed { what: format!("sandbox {}", self.box_id) } };
            let answer = self.exchange(&errand).await;
            let failure = answer.as_ref().err().cloned();
            // The asker may have gone away.
            let _ = errand.reply.send(answer);
            if let Some(failure) = failure {
                return failure;
            }
        }
    }

    async fn exchange(&mut self, errand: &Errand) -> Result<(Reply, Vec<u8>), SandboxError> {
        let lost = |detail: String| SandboxError::Lost { box_id: self.box_id.clone(), detail };
        let frame = encode(&errand.request, &errand.payload).map_err(|error| lost(error.to_string()))?;
        let exchange = async {
            self.stream.write_all(&frame).await?;
            self.receive().await
        };
        match tokio::time::timeout(errand.wait, exchange).await {
            Ok(Ok((Reply::Expired, _))) => Err(SandboxError::Expired { box_id: self.box_id.clone() }),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.end_of(Err(error))),
            Err(_) => {
                let detail = format!("it did not answer within {} ms", errand.wait.as_millis());
                Err(SandboxError::Lost { box_id: self.box_id.clone(), detail })
            }
        }
    }

    fn end_of(&self, last_words: io::Result<Reply>) -> SandboxError {
        let box_id = self.box_id.clone();
        match last_words {
            Ok(Reply::Expired) => SandboxError::Expired { box_id },
            Ok(other) => SandboxError::Lost { box_id, detail: format!("it said {other:?} without being asked") },
            Err(error) => SandboxError::Lost { box_id, detail: format!("its processes ended ({error})") },
        }
    }

    /// Not safe to cancel once bytes have come; it is cancelled only between requests, when a byte means the box's end.
    async fn receive(&mut self) -> io::Result<(Reply, Vec<u8>)> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head).await?;
        let (header_length, payload_length) = decode_lengths(head)?;
        let mut header = vec![0; header_length];
        self.stream.read_exact(&mut header).await?;
        let mut payload = vec![0; payload_length];
        self.stream.read_exact(&mut payload).await?;
        Ok((serde_json::from_slice(&header)?, payload))
    }
}
