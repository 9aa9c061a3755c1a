//! One object of a store: its manifest, and which of its chunks are here.
//!
//! A chunk is taken in only with the hash that the manifest promises, and handed out only with the checksum it was taken in
//! with (xxh3, ten times faster than the hash; after a restart the hash, once). A chunk on the disk whose bytes have changed
//! is missing from then on, and can be fetched again. Files need no sync for that: what a power cut loses is missing, too.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;
use tokio::time::Instant;
use twox_hash::XxHash3_64;

use crate::{ChunkId, DataplaneError, Manifest, ObjectId};

pub(crate) const WHOLE: &str = "data";
pub(crate) const ARRIVING: &str = "data.partial";

/// One chunk.
#[derive(Clone, Debug)]
enum Slot {
    Missing,
    Memory(Bytes),
    /// In the file; the checksum it was taken in with, unless that was before a restart.
    File(Option<u64>),
}

#[derive(Debug)]
struct State {
    slots: Vec<Slot>,
    held: u32,
    removed: bool,
}

/// Where the bytes of a file's object lie.
#[derive(Debug)]
pub(crate) struct Backing {
    pub file: File,
    pub dir: PathBuf,
}

/// What a chunk is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Here,
    Missing,
    Removed,
}

/// What was read of a chunk.
#[derive(Debug)]
pub(crate) enum Read {
    Chunk(Bytes),
    Missing,
    /// Its bytes have changed on the disk: it is missing from now on.
    Damaged,
}

/// One object; see the module's page.
#[derive(Debug)]
pub(crate) struct Entry {
    pub id: ObjectId,
    pub manifest: Manifest,
    pub encoded: Bytes,
    pub expires: Option<Instant>,
    /// Only one fetch at a time fills an object; the next one then finds nothing missing.
    pub turn: tokio::sync::Mutex<()>,
    backing: Option<Backing>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

impl Entry {
    /// An object of which nothing is here yet.
    pub(crate) fn empty(
        id: ObjectId,
        manifest: Manifest,
        encoded: Bytes,
        backing: Option<Backing>,
        expires: Option<Instant>,
    ) -> Self {
        let state = State { slots: vec![Slot::Missing; manifest.chunks.len()], held: 0, removed: false };
        let (turn, changed) = (tokio::sync::Mutex::new(()), watch::Sender::new(0));
        Self { id, manifest, encoded, expires, turn, backing, state: Mutex::new(state), changed }
    }

    /// The same object with every chunk in its file, unchecked so far.
    pub(crate) fn with_whole_file(self) -> Self {
        {
            let mut state = self.state();
            state.slots.fill(Slot::File(None));
            state.held = self.manifest.count();
        }
        self
    }

    /// The same object with these chunks, unchecked: they were hashed when the manifest was made.
    pub(crate) fn with_chunks(self, chunks: Vec<Bytes>) -> Self {
        {
            let mut state = self.state();
            state.held = chunks.len() as u32;
            state.slots = chunks.into_iter().map(Slot::Memory).collect();
        }
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes that this object may take of the store's memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        if self.backing.is_none() { self.manifest.bytes } else { 0 }
    }

    pub(crate) fn held(&self) -> u32 {
        self.state().held
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.held() == self.manifest.count()
    }

    pub(crate) fn missing(&self) -> Vec<u32> {
        let state = self.state();
        (0..).zip(&state.slots).filter(|(_, slot)| matches!(slot, Slot::Missing)).map(|(index, _)| index).collect()
    }

    /// Changes whenever a chunk arrives or the object is removed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn presence(&self, index: u32) -> Presence {
        let state = self.state();
        match state.slots.get(index as usize) {
            _ if state.removed => Presence::Removed,
            None | Some(Slot::Missing) => Presence::Missing,
            Some(_) => Presence::Here,
        }
    }

    /// A chunk that lies in memory.
    pub(crate) fn in_memory(&self, index: u32) -> Option<Bytes> {
        match self.state().slots.get(index as usize) {
            Some(Slot::Memory(bytes)) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// The finished file.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let whole = self.is_whole();
        self.backing.as_ref().filter(|_| whole).map(|backing| backing.dir.join(WHOLE))
    }

    /// Reads a chunk and checks it. Blocks.
    pub(crate) fn read(&self, index: u32) -> Result<Read, DataplaneError> {
        let slot = self.state().slots.get(index as usize).cloned();
        let check = match slot {
            None | Some(Slot::Missing) => return Ok(Read::Missing),
            Some(Slot::Memory(bytes)) => return Ok(Read::Chunk(bytes)),
            Some(Slot::File(check)) => check,
        };
        let Some(backing) = &self.backing else { return Ok(Read::Missing) };
        let mut bytes = BytesMut::zeroed(self.manifest.chunk_len(index));
        let fits = match backing.file.read_exact_at(&mut bytes, self.manifest.offset(index)) {
            Ok(()) => self.fits(index, &bytes, check),
            // a file that was cut short has lost this chunk
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(DataplaneError::file(&backing.dir, &error)),
        };
        if !fits {
            self.drop_chunk(index);
            tracing::warn!(object = %self.id, index, dir = %backing.dir.display(), "a chunk has changed on the disk");
            return Ok(Read::Damaged);
        }
        if check.is_none() {
            self.state().slots[index as usize] = Slot::File(Some(XxHash3_64::oneshot(&bytes)));
        }
        Ok(Read::Chunk(bytes.freeze()))
    }

    fn fits(&self, index: u32, bytes: &[u8], check: Option<u64>) -> bool {
        match check {
            Some(check) => XxHash3_64::oneshot(bytes) == check,
            None => ChunkId::of(bytes) == self.manifest.chunks[index as usize],
        }
    }

    fn drop_chunk(&self, index: u32) {
        let mut state = self.state();
        if !matches!(state.slots[index as usize], Slot::Missing) {
            state.slots[index as usize] = Slot::Missing;
            state.held -= 1;
        }
    }

    /// Takes a chunk in if its hash is the promised one; says whether it was. Blocks.
    pub(crate) fn accept(&self, index: u32, bytes: Bytes) -> Result<bool, DataplaneError> {
        let expected = self.manifest.chunks.get(index as usize);
        if bytes.len() != self.manifest.chunk_len(index) || expected != Some(&ChunkId::of(&bytes)) {
            return Ok(false);
        }
        let slot = match &self.backing {
            None => Slot::Memory(bytes),
            Some(backing) => {
                let written = backing.file.write_all_at(&bytes, self.manifest.offset(index));
                written.map_err(|error| DataplaneError::file(&backing.dir, &error))?;
                Slot::File(Some(XxHash3_64::oneshot(&bytes)))
            }
        };
        let whole = {
            let mut state = self.state();
            if state.removed {
                return Err(DataplaneError::Removed { object: self.id });
            }
            if matches!(state.slots[index as usize], Slot::Missing) {
                state.held += 1;
            }
            state.slots[index as usize] = slot;
            state.held == self.manifest.count()
        };
        if whole {
            self.finish()?;
        }
        self.changed.send_modify(|changes| *changes += 1);
        Ok(true)
    }

    /// Gives the finished file its name. A file that was whole before and was mended has it already.
    pub(crate) fn finish(&self) -> Result<(), DataplaneError> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let whole = backing.dir.join(WHOLE);
        match fs::rename(backing.dir.join(ARRIVING), &whole) {
            Err(error) if !whole.exists() => Err(DataplaneError::file(&whole, &error)),
            _ => Ok(()),
        }
    }

    /// Finds which chunks a file that was left unfinished does hold. Blocks for as long as hashing it takes.
    pub(crate) fn rescan(&self) -> Result<(), DataplaneError> {
        let Some(backing) = &self.backing else { return Ok(()) };
        for index in self.missing() {
            let mut bytes = vec![0; self.manifest.chunk_len(index)];
            if backing.file.read_exact_at(&mut bytes, self.manifest.offset(index)).is_err() {
                continue;
            }
            if ChunkId::of(&bytes) == self.manifest.chunks[index as usize] {
                let mut state = self.state();
                if matches!(state.slots[index as usize], Slot::Missing) {
                    state.slots[index as usize] = Slot::File(Some(XxHash3_64::oneshot(&bytes)));
                    state.held += 1;
                }
            }
        }
        if self.is_whole() { self.finish() } else { Ok(()) }
    }

    /// Tells everybody who waits or writes that the object is gone.
    pub(crate) fn mark_removed(&self) {
        self.state().removed = true;
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// All bytes of an object in memory; `None` while some are missing.
    pub(crate) fn join(&self) -> Option<Bytes> {
        let state = self.state();
        let chunk = |slot: &Slot| match slot {
            Slot::Memory(bytes) => Some(bytes.clone()),
            _ => None,
        };
        if let [only] = state.slots.as_slice() {
            return chunk(only);
        }
        let mut joined = BytesMut::with_capacity(self.manifest.bytes as usize);
        for slot in &state.slots {
            joined.extend_from_slice(&chunk(slot)?);
        }
        Some(joined.freeze())
    }
}

/// Opens the file of an object of one's own: the finished one, or else the one still arriving; says whether it is finished.
pub(crate) fn data_file(dir: &Path) -> std::io::Result<(File, bool)> {
    match File::options().read(true).write(true).open(dir.join(WHOLE)) {
        Ok(file) => Ok((file, true)),
        Err(_) => Ok((File::options().read(true).write(true).open(dir.join(ARRIVING))?, false)),
    }
}

/// The same in a directory of somebody else's.
pub(crate) fn data_file_to_read(dir: &Path) -> std::io::Result<(File, bool)> {
    match File::open(dir.join(WHOLE)) {
        Ok(file) => Ok((file, true)),
        Err(_) => Ok((File::open(dir.join(ARRIVING))?, false)),
    }
}
