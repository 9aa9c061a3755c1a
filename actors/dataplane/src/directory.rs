//! A peer's store in a shared directory, read as files.
//!
//! The files are another process's: whatever is read is checked by the caller against the manifest's hashes. Nobody tells
//! of changes on a shared volume, so waiting is looking again.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use greenroom_core::{Deadline, spawn_blocking_named};

use crate::entry::data_file_to_read;
use crate::error::PeerFailure;
use crate::lane::Reply;
use crate::store::object_dir;
use crate::{ChunkId, MAX_FRAME_BYTES, Manifest, ObjectId};

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A shared directory; keeps the file of the object that is being read open.
pub(crate) struct DirectoryPeer {
    dir: PathBuf,
    /// The file, and whether it is finished.
    open: Option<(Arc<File>, bool)>,
}

impl DirectoryPeer {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), open: None }
    }

    /// The bytes of a manifest, unchecked.
    pub(crate) async fn manifest(&self, id: ObjectId, wait_ms: u32) -> Result<Option<Bytes>, PeerFailure> {
        let path = object_dir(&self.dir, id).join("manifest");
        let deadline = Deadline::after_ms(wait_ms.into());
        loop {
            let path = path.clone();
            if let Some(bytes) = blocking(move || read_small(&path)).await? {
                return Ok(Some(bytes.into()));
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            tokio::time::sleep(LOOK_AGAIN.min(deadline.remaining())).await;
        }
    }

    /// One chunk. Whether it has arrived there is seen by its hash.
    pub(crate) async fn chunk(
        &mut self,
        id: ObjectId,
        manifest: &Manifest,
        index: u32,
        wait_ms: u32,
    ) -> Result<Reply, PeerFailure> {
        let deadline = Deadline::after_ms(wait_ms.into());
        loop {
            if self.open.is_none() {
                let place = object_dir(&self.dir, id);
                let open = move || Ok(data_file_to_read(&place).ok().map(|(file, whole)| (Arc::new(file), whole)));
                self.open = blocking(open).await?;
            }
            let Some((file, whole)) = self.open.clone() else { return Ok(Reply::Unknown) };
            let (bytes, offset) = (manifest.chunk_len(index), manifest.offset(index));
            let chunk = blocking(move || read_chunk(&file, bytes, offset)).await?;
            let expected = manifest.chunks.get(index as usize);
            match chunk {
                // of a finished file the caller's own check is enough; in one that is still filled, what does not fit has
                // most likely not arrived
                Some(chunk) if whole || expected == Some(&ChunkId::of(&chunk)) => return Ok(Reply::Chunk(chunk)),
                _ if deadline.has_passed() => return Ok(Reply::Late),
                _ => {}
            }
            self.open = None; // it may have been replaced
            tokio::time::sleep(LOOK_AGAIN.min(deadline.remaining())).await;
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, PeerFailure> {
    let done = spawn_blocking_named("dataplane directory", work).await.ok().flatten();
    let done = done.ok_or_else(|| PeerFailure::Cut("reading it panicked".to_owned()))?;
    done.map_err(|error| PeerFailure::Unreachable(error.to_string()))
}

fn read_small(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Ok(about) if about.len() > MAX_FRAME_BYTES as u64 => Err(std::io::Error::other("its manifest is too large")),
        Ok(_) => fs::read(path).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A chunk's bytes; `None` while the file is shorter.
fn read_chunk(file: &File, bytes: usize, offset: u64) -> std::io::Result<Option<Bytes>> {
    let mut chunk = BytesMut::zeroed(bytes);
    match file.read_exact_at(&mut chunk, offset) {
        Ok(()) => Ok(Some(chunk.freeze())),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
