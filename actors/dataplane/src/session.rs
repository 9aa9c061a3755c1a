//! One conversation on the serving side: questions in, answers out, in order.
//!
//! It holds one chunk at a time and reads a stranger's words into 48 bytes. What is no frame ends it at once; who neither
//! asks nor takes an answer for too long is left. A chunk that is still arriving here is waited for, which is what makes a
//! receiver a relay.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use greenroom_core::{Deadline, spawn_blocking_named};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{timeout, timeout_at};

use crate::config::MAX_WAIT_MS;
use crate::counters::{Counters, count};
use crate::entry::{Entry, Presence, Read};
use crate::wire::{Answer, HEADER_BYTES, MAX_REQUEST_BYTES};
use crate::{DataplaneError, ObjectId, Request, ServerCounts, Store, WireError};

/// How long a connection may lie idle between questions.
const IDLE: Duration = Duration::from_secs(120);
/// A peer that takes less than this is taken for stalled, bytes a second.
const SLOWEST_BYTES_PER_S: u64 = 64 << 10;

/// Why a conversation ended otherwise than by the peer's leaving.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("{0}")]
    Malformed(#[from] WireError),
    #[error("it stalled")]
    Stalled,
    #[error("{0}")]
    Cut(#[from] std::io::Error),
    #[error("{0}")]
    Store(#[from] DataplaneError),
}

/// Answers one stream until its end, without a server around it: for other carriers, and for tests. The counts are those of
/// this conversation.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, store: &Store, stall: Duration) -> ServerCounts {
    let counters = Counters::default();
    let ended = run(stream, store, stall, &counters).await;
    note(&ended, &counters);
    counters.counts()
}

/// Counts how a conversation ended.
pub(crate) fn note(ended: &Result<(), SessionEnd>, counters: &Counters) {
    match ended {
        Err(SessionEnd::Malformed(_)) => count(&counters.malformed, 1),
        Err(SessionEnd::Stalled) => count(&counters.stalled, 1),
        _ => {}
    }
}

pub(crate) async fn run<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    store: &Store,
    stall: Duration,
    counters: &Counters,
) -> Result<(), SessionEnd> {
    // questions for the same object follow each other: it is looked up once
    let mut last: Option<Arc<Entry>> = None;
    while let Some(request) = next_request(&mut stream, stall).await? {
        match request {
            Request::Manifest { object, wait_ms } => {
                last = find(store, object, wait(wait_ms)).await?;
                let manifest = last.as_ref().map(|entry| entry.encoded.clone());
                let header = manifest.as_ref().map_or(Answer::Unknown, |bytes| Answer::Manifest(bytes.len()));
                send(&mut stream, header, manifest, stall, counters).await?;
            }
            Request::Chunk { object, index, wait_ms } => {
                let deadline = wait(wait_ms);
                if last.as_ref().is_none_or(|entry| entry.id != object) {
                    last = find(store, object, deadline).await?;
                }
                let (header, body) = match &last {
                    Some(entry) => chunk(entry, index, deadline, counters).await?,
                    None => (Answer::Unknown, None),
                };
                if header == Answer::Unknown {
                    last = None;
                }
                send(&mut stream, header, body, stall, counters).await?;
            }
        }
    }
    Ok(())
}

fn wait(wait_ms: u32) -> Deadline {
    Deadline::after_ms(wait_ms.min(MAX_WAIT_MS).into())
}

/// The next question; `None` when the peer has left between two.
async fn next_request<S: AsyncRead + Unpin>(stream: &mut S, stall: Duration) -> Result<Option<Request>, SessionEnd> {
    let mut frame = [0; MAX_REQUEST_BYTES];
    let first = timeout(IDLE, stream.read(&mut frame[..HEADER_BYTES])).await.map_err(|_| SessionEnd::Stalled)?;
    let begun = match first {
        Ok(0) => return Ok(None),
        Ok(bytes) => bytes,
        Err(error) => return Err(error.into()),
    };
    let rest = async {
        stream.read_exact(&mut frame[begun..HEADER_BYTES]).await?;
        let (header, body) = frame.split_first_chunk_mut::<HEADER_BYTES>().ok_or(WireError::Header)?;
        let bytes = Request::body_bytes(header)?;
        let body = body.get_mut(..bytes).ok_or(WireError::Header)?;
        stream.read_exact(body).await?;
        Ok(Request::decode(header, body)?)
    };
    timeout(stall, rest).await.map_err(|_| SessionEnd::Stalled)?.map(Some)
}

/// An object, waited for until it appears or the deadline passes.
async fn find(store: &Store, object: ObjectId, deadline: Deadline) -> Result<Option<Arc<Entry>>, SessionEnd> {
    let mut appearances = store.appearances();
    loop {
        if let Some(entry) = store.find_async(object).await? {
            return Ok(Some(entry));
        }
        if !matches!(timeout_at(deadline.instant(), appearances.changed()).await, Ok(Ok(()))) {
            return Ok(None);
        }
    }
}

/// A chunk, waited for until it arrives or the deadline passes.
async fn chunk(
    entry: &Arc<Entry>,
    index: u32,
    deadline: Deadline,
    counters: &Counters,
) -> Result<(Answer, Option<Bytes>), SessionEnd> {
    if index >= entry.manifest.count() {
        return Err(WireError::Index(index).into());
    }
    let mut changes = entry.changes();
    loop {
        match entry.presence(index) {
            Presence::Removed => return Ok((Answer::Unknown, None)),
            Presence::Here => match read(entry, index).await? {
                Read::Chunk(bytes) => return Ok((Answer::Chunk(bytes.len()), Some(bytes))),
                Read::Damaged => {
                    count(&counters.damaged, 1);
                    return Ok((Answer::Late, None)); // others have it; waiting here would only delay the peer
                }
                Read::Missing => {}
            },
            Presence::Missing => {}
        }
        if !matches!(timeout_at(deadline.instant(), changes.changed()).await, Ok(Ok(()))) {
            return Ok((Answer::Late, None));
        }
    }
}

async fn read(entry: &Arc<Entry>, index: u32) -> Result<Read, SessionEnd> {
    if let Some(bytes) = entry.in_memory(index) {
        return Ok(Read::Chunk(bytes));
    }
    let entry = entry.clone();
    let read = spawn_blocking_named("dataplane read", move || entry.read(index)).await.ok().flatten();
    Ok(read.unwrap_or(Err(DataplaneError::Panicked { what: "reading a chunk" }))?)
}

async fn send<S: AsyncWrite + Unpin>(
    stream: &mut S,
    header: Answer,
    body: Option<Bytes>,
    stall: Duration,
    counters: &Counters,
) -> Result<(), SessionEnd> {
    let bytes = body.as_ref().map_or(0, Bytes::len) as u64;
    let patience = stall + Duration::from_millis(bytes * 1000 / SLOWEST_BYTES_PER_S);
    let head = header.header();
    let sent = async {
        stream.write_all_buf(&mut Buf::chain(&head[..], body.unwrap_or_default())).await?;
        stream.flush().await
    };
    timeout(patience, sent).await.map_err(|_| SessionEnd::Stalled)??;
    match header {
        Answer::Chunk(_) => count(&counters.chunks, 1),
        Answer::Manifest(_) => {}
        Answer::Late | Answer::Unknown => count(&counters.absent, 1),
    }
    count(&counters.bytes, bytes);
    Ok(())
}
