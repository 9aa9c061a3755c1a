//! One way to one peer: questions go out, answers come back in order.
//!
//! Over a network that is a stream (TLS over TCP, or one of QUIC's); for a shared directory it is the files themselves. The
//! caller keeps count of what it asked. After a failure a lane is of no further use.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::directory::DirectoryPeer;
use crate::error::PeerFailure;
use crate::wire::{Answer, HEADER_BYTES};
use crate::{Manifest, ObjectId, Request, WireError};

/// A connection in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What a peer said to a question for a chunk.
#[derive(Debug)]
pub(crate) enum Reply {
    Chunk(Bytes),
    /// It has the object, but not this chunk, not even after waiting.
    Late,
    /// It does not have the object.
    Unknown,
}

/// How fast a peer gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    least_bytes_per_s: u64,
    /// How long it is watched before it is judged.
    watch: Duration,
    since: Option<Instant>,
    bytes: u64,
}

impl Pace {
    pub(crate) fn new(least_bytes_per_s: u64, watch: Duration) -> Self {
        Self { least_bytes_per_s, watch, since: None, bytes: 0 }
    }

    /// So many bytes more came; an error if they come too slowly for a peer that is `judged`.
    fn came(&mut self, bytes: usize, judged: bool) -> Result<(), PeerFailure> {
        let now = Instant::now();
        let watched = now - *self.since.get_or_insert(now);
        self.bytes += bytes as u64;
        if watched < self.watch {
            return Ok(());
        }
        let bytes_per_s = (self.bytes as f64 / watched.as_secs_f64()) as u64;
        (self.since, self.bytes) = (Some(now), 0);
        if judged && bytes_per_s < self.least_bytes_per_s { Err(PeerFailure::Slow(bytes_per_s >> 10)) } else { Ok(()) }
    }
}

/// One way to one peer.
pub(crate) enum Lane {
    Network {
        stream: Box<dyn Stream>,
        /// How long the peer may be silent, besides the waiting that it is asked to do.
        stall: Duration,
        /// How long each question asks it to wait.
        waits: VecDeque<Duration>,
        pace: Pace,
        /// Whether it must keep the pace, as somebody else may be asked.
        judged: bool,
    },
    Directory {
        peer: DirectoryPeer,
        asked: VecDeque<Request>,
    },
}

impl Lane {
    pub(crate) fn network(stream: Box<dyn Stream>, stall: Duration, pace: Pace) -> Self {
        Self::Network { stream, stall, waits: VecDeque::new(), pace, judged: false }
    }

    /// Whether the peer is to be left when it is slow.
    pub(crate) fn judge(&mut self, is_to_be_judged: bool) {
        if let Self::Network { judged, .. } = self {
            *judged = is_to_be_judged;
        }
    }

    /// Sends a question.
    pub(crate) async fn ask(&mut self, request: Request) -> Result<(), PeerFailure> {
        match self {
            Self::Directory { asked, .. } => asked.push_back(request),
            Self::Network { stream, stall, waits, pace, .. } => {
                pace.since.get_or_insert_with(Instant::now);
                let frame = request.encode();
                let sent = timeout(*stall, async {
                    stream.write_all(&frame).await?;
                    stream.flush().await
                });
                let (Request::Manifest { wait_ms, .. } | Request::Chunk { wait_ms, .. }) = request;
                waits.push_back(Duration::from_millis(wait_ms.into()));
                sent.await.map_err(|_| stalled(*stall))?.map_err(|error| cut(&error))?;
            }
        }
        Ok(())
    }

    /// The answer to the oldest question, which was for a manifest: its bytes, unchecked; `None` when the peer has none.
    pub(crate) async fn manifest(&mut self) -> Result<Option<Bytes>, PeerFailure> {
        match self {
            Self::Directory { peer, asked } => match asked.pop_front() {
                Some(Request::Manifest { object, wait_ms }) => peer.manifest(object, wait_ms).await,
                _ => Ok(None),
            },
            Self::Network { .. } => match self.header(None).await? {
                Answer::Manifest(bytes) => self.body(bytes).await.map(Some),
                _ => Ok(None),
            },
        }
    }

    /// The answer to the oldest question, which was for this chunk; its bytes are unchecked.
    pub(crate) async fn chunk(&mut self, manifest: &Manifest, index: u32) -> Result<Reply, PeerFailure> {
        match self {
            Self::Directory { peer, asked } => match asked.pop_front() {
                Some(Request::Chunk { object, wait_ms, .. }) => peer.chunk(object, manifest, index, wait_ms).await,
                _ => Ok(Reply::Unknown),
            },
            Self::Network { .. } => match self.header(Some(manifest.chunk_len(index))).await? {
                Answer::Chunk(bytes) => self.body(bytes).await.map(Reply::Chunk),
                Answer::Late => Ok(Reply::Late),
                _ => Ok(Reply::Unknown),
            },
        }
    }

    async fn header(&mut self, chunk_bytes: Option<usize>) -> Result<Answer, PeerFailure> {
        let Self::Network { stream, stall, waits, .. } = self else {
            return Err(PeerFailure::from(WireError::Header));
        };
        let patience = *stall + waits.pop_front().unwrap_or_default();
        let mut header = [0; HEADER_BYTES];
        let read = timeout(patience, stream.read_exact(&mut header)).await;
        read.map_err(|_| stalled(patience))?.map_err(|error| cut(&error))?;
        Ok(Answer::decode(&header, chunk_bytes)?)
    }

    /// Reads a body of a length that its header was allowed to announce; a slow peer may take its time, a silent one not.
    async fn body(&mut self, bytes: usize) -> Result<Bytes, PeerFailure> {
        let Self::Network { stream, stall, pace, judged, .. } = self else { return Ok(Bytes::new()) };
        let mut body = BytesMut::with_capacity(bytes);
        let mut rest = stream.take(bytes as u64);
        while body.len() < bytes {
            let read = timeout(*stall, rest.read_buf(&mut body)).await;
            match read.map_err(|_| stalled(*stall))?.map_err(|error| cut(&error))? {
                0 => return Err(PeerFailure::Cut("it ended in the middle of an answer".to_owned())),
                came => pace.came(came, *judged)?,
            }
        }
        Ok(body.freeze())
    }
}

/// What an error of a stream means: a refusal by TLS, or a cut.
pub(crate) fn cut(error: &std::io::Error) -> PeerFailure {
    match greenroom_identity::Refusal::of_io(error) {
        Some(refusal) => PeerFailure::Refused(refusal),
        None => PeerFailure::Cut(error.to_string()),
    }
}

fn stalled(after: Duration) -> PeerFailure {
    PeerFailure::Stalled(after.as_millis() as u64)
}

/// The question for a chunk.
pub(crate) fn chunk_request(object: ObjectId, index: u32, wait_ms: u32) -> Request {
    Request::Chunk { object, index, wait_ms }
}
