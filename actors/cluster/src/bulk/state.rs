//! Blobs beside the control channel, as pure state machines of both directions.
//!
//! Blobs go one after another in the order of their numbers, in chunks, over a connection of their own. The sender keeps a
//! blob until it is confirmed; a new connection begins again with the first that is not. Those that the other end fetches by
//! the data plane are only kept and counted here. Invariants: what is kept or
//! assembled never exceeds the limit; no more is allocated than arrived; a blob is given out at most once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::plane::Placed;

/// The most bytes in a chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Blob, its length, offset, length of the chunk.
pub(crate) const CHUNK_HEADER_BYTES: usize = 8 + 8 + 8 + 4;

/// A piece of a blob.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub id: u64,
    pub offset: usize,
    pub length: usize,
    pub blob: Arc<Vec<u8>>,
}

impl Chunk {
    pub(crate) fn header(&self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut header = [0; CHUNK_HEADER_BYTES];
        header[..8].copy_from_slice(&self.id.to_le_bytes());
        header[8..16].copy_from_slice(&(self.blob.len() as u64).to_le_bytes());
        header[16..24].copy_from_slice(&(self.offset as u64).to_le_bytes());
        header[24..].copy_from_slice(&(self.length as u32).to_le_bytes());
        header
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.blob[self.offset..self.offset + self.length]
    }
}

/// The header of a chunk that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub id: u64,
    pub total: u64,
    pub offset: u64,
    pub length: usize,
}

impl ChunkHeader {
    pub(crate) fn parse(header: &[u8; CHUNK_HEADER_BYTES]) -> Self {
        let number = |at: usize| header[at..at + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let length = header[24..].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        Self { id: number(0), total: number(8), offset: number(16), length }
    }
}

/// Blobs to be sent.
#[derive(Debug)]
pub(crate) struct Outbox {
    limit_bytes: usize,
    kept_bytes: usize,
    blobs: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Those at the data plane.
    placed: BTreeMap<u64, Placed>,
    /// Blob and offset at which the present connection goes on.
    at: (u64, usize),
}

impl Outbox {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, kept_bytes: 0, blobs: BTreeMap::new(), placed: BTreeMap::new(), at: (0, 0) }
    }

    /// Whether so many bytes more may be under way; if not, how many are.
    pub(crate) fn room_for(&self, bytes: usize) -> Result<(), usize> {
        let fits = self.kept_bytes + bytes <= self.limit_bytes;
        if fits { Ok(()) } else { Err(self.kept_bytes) }
    }

    /// Adds a blob; numbers must grow.
    pub(crate) fn push(&mut self, id: u64, blob: Vec<u8>) {
        self.kept_bytes += blob.len();
        self.blobs.insert(id, Arc::new(blob));
    }

    /// Keeps a blob that the other end fetches.
    pub(crate) fn push_placed(&mut self, id: u64, placed: Placed) {
        self.kept_bytes += placed.bytes;
        self.placed.insert(id, placed);
    }

    /// A new connection stands.
    pub(crate) fn connected(&mut self) {
        self.at = (0, 0);
    }

    /// What goes next.
    pub(crate) fn next(&mut self) -> Option<Chunk> {
        let (at, offset) = self.at;
        let (&id, blob) = self.blobs.range(at..).next()?;
        let offset = if id == at { offset } else { 0 };
        let length = (blob.len() - offset).min(CHUNK_BYTES);
        let ends = offset + length == blob.len();
        self.at = if ends { (id + 1, 0) } else { (id, offset + length) };
        Some(Chunk { id, offset, length, blob: blob.clone() })
    }

    /// The other end has the blob whole, or has given it up. What lay at the data plane is to be dropped.
    pub(crate) fn confirm(&mut self, id: u64) -> Option<Placed> {
        if let Some(blob) = self.blobs.remove(&id) {
            self.kept_bytes -= blob.len();
        }
        let placed = self.placed.remove(&id);
        self.kept_bytes -= placed.as_ref().map_or(0, |placed| placed.bytes);
        placed
    }

    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }
}

/// A peer sends chunks that do not fit together, or more than it may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a chunk of blob {id} does not fit: {reason}")]
pub(crate) struct Misfit {
    pub id: u64,
    pub reason: &'static str,
}

/// Blobs that arrive.
#[derive(Debug)]
pub(crate) struct Inbox {
    limit_bytes: usize,
    /// The blob that is being assembled: its number, its length, what is there.
    part: Option<(u64, usize, Vec<u8>)>,
    /// All blobs up to this one were given out.
    finished: u64,
}

impl Inbox {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, part: None, finished: 0 }
    }

    /// Whether a chunk may follow: checked before its bytes are read.
    pub(crate) fn check(&self, chunk: &ChunkHeader) -> Result<(), Misfit> {
        let misfit = |reason| Err(Misfit { id: chunk.id, reason });
        if chunk.length == 0 || chunk.length > CHUNK_BYTES {
            return misfit("its length is none of a chunk");
        }
        if chunk.total > self.limit_bytes as u64 {
            return misfit("the blob is larger than may be under way");
        }
        if chunk.offset.checked_add(chunk.length as u64).is_none_or(|end| end > chunk.total) {
            return misfit("it reaches beyond the blob");
        }
        if chunk.id == 0 {
            return misfit("blobs are counted from one");
        }
        match &self.part {
            _ if chunk.offset == 0 => Ok(()),
            Some((id, total, bytes)) if *id == chunk.id => {
                let follows = *total as u64 == chunk.total && bytes.len() as u64 == chunk.offset;
                if follows { Ok(()) } else { misfit("chunks before it are missing") }
            }
            _ => misfit("it begins in the middle"),
        }
    }

    /// A checked chunk's bytes have arrived; gives the blob when that was the last of it. A blob that was given out
    /// before is given as `None` once more, to be confirmed again.
    pub(crate) fn chunk(&mut self, chunk: &ChunkHeader, bytes: &[u8]) -> Option<(u64, Option<Vec<u8>>)> {
        if chunk.offset == 0 {
            self.part = Some((chunk.id, chunk.total as usize, Vec::new()));
        }
        let (_, total, assembled) = self.part.as_mut()?;
        assembled.extend_from_slice(bytes);
        if assembled.len() < *total {
            return None;
        }
        let (id, _, blob) = self.part.take()?;
        let first_time = id > self.finished;
        self.finished = self.finished.max(id);
        Some((id, first_time.then_some(blob)))
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::Seed;
    use rand::{Rng, RngCore};

    use super::*;

    #[test]
    fn blobs_arrive_whole_and_once_however_often_the_connection_is_cut() {
        for seed in 0..50 {
            let mut random = Seed::new(seed).random();
            let mut outbox = Outbox::new(64 << 20);
            let mut inbox = Inbox::new(64 << 20);
            let blobs: Vec<Vec<u8>> = (0..8)
                .map(|_| {
                    let mut blob = vec![0; random.random_range(1..300_000)];
                    random.fill_bytes(&mut blob);
                    blob
                })
                .collect();
            for (index, blob) in blobs.iter().enumerate() {
                outbox.push(index as u64 + 1, blob.clone());
            }
            let mut arrived = Vec::new();
            let mut unconfirmed = Vec::new();
            for _ in 0..10_000 {
                if random.random_range(0..20) == 0 {
                    outbox.connected();
                }
                if random.random_range(0..10) == 0
                    && let Some(id) = unconfirmed.pop()
                {
                    let _ = outbox.confirm(id);
                }
                let Some(chunk) = outbox.next() else {
                    unconfirmed.drain(..).for_each(|id| drop(outbox.confirm(id)));
                    if outbox.kept_bytes() == 0 {
                        break;
                    }
                    outbox.connected();
                    continue;
                };
                let header = ChunkHeader::parse(&chunk.header());
                assert_eq!(inbox.check(&header), Ok(()), "seed {seed}");
                if let Some((id, blob)) = inbox.chunk(&header, chunk.bytes()) {
                    unconfirmed.push(id);
                    arrived.extend(blob);
                }
            }
            assert_eq!(arrived, blobs, "seed {seed}");
        }
    }

    #[test]
    fn chunks_that_do_not_fit_are_refused_before_they_are_read() {
        let inbox = Inbox::new(1 << 20);
        let good = ChunkHeader { id: 1, total: 100, offset: 0, length: 100 };
        assert_eq!(inbox.check(&good), Ok(()));
        let bad = [
            ChunkHeader { id: 0, ..good },
            ChunkHeader { length: 0, ..good },
            ChunkHeader { length: CHUNK_BYTES + 1, total: 1 << 20, ..good },
            ChunkHeader { total: (1 << 20) + 1, ..good },
            ChunkHeader { total: 99, ..good },
            ChunkHeader { offset: u64::MAX, ..good },
            ChunkHeader { offset: 50, length: 50, ..good },
        ];
        for chunk in bad {
            assert!(inbox.check(&chunk).is_err(), "{chunk:?}");
        }
    }

    #[test]
    fn what_is_under_way_is_bounded() {
        let mut outbox = Outbox::new(1000);
        assert_eq!(outbox.room_for(1000), Ok(()));
        outbox.push(1, vec![0; 600]);
        assert_eq!(outbox.room_for(401), Err(600));
        assert!(outbox.confirm(1).is_none());
        assert_eq!(outbox.room_for(1000), Ok(()));
    }
}
