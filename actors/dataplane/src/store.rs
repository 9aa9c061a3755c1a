//! A store of objects: in a directory, in memory, or both.
//!
//! ```text
//! DIR/objects/ID/manifest        written beside its place and renamed
//! DIR/objects/ID/data.partial    while chunks arrive, each at its offset
//! DIR/objects/ID/data            once all of them are there
//! ```
//!
//! Objects leave a directory only by [`Store::remove`], and memory also when they expire. An unfinished file is taken up
//! again after a restart: its chunks are known by their hashes. All methods that are not `async` may block on the disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use greenroom_core::spawn_blocking_named;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::entry::{ARRIVING, Backing, Entry, Read, data_file};
use crate::{
    ChunkId, DataplaneError, MAX_CHUNK_BYTES, MAX_FRAME_BYTES, MIN_CHUNK_BYTES, Manifest, ObjectId, chunk_bytes_for,
};

/// A store's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// How many bytes may lie in memory at a time.
    pub memory_limit_bytes: u64,
    /// The size of chunks of objects made here, bytes; `None` chooses by the object's length ([`chunk_bytes_for`]).
    pub chunk_bytes: Option<u32>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { memory_limit_bytes: 1 << 30, chunk_bytes: None }
    }
}

/// How much of an object is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its length, bytes.
    pub bytes: u64,
    /// How many of its chunks are here.
    pub held: u32,
    /// How many it has.
    pub chunks: u32,
}

impl Holding {
    /// Whether all of it is here.
    pub fn is_whole(&self) -> bool {
        self.held == self.chunks
    }
}

#[derive(Debug)]
struct Inner {
    dir: Option<PathBuf>,
    config: StoreConfig,
    objects: Mutex<BTreeMap<ObjectId, Arc<Entry>>>,
    appeared: watch::Sender<u64>,
    /// Held while an object's files are laid out: two fetches may begin the same one at once.
    laying_out: Mutex<()>,
}

/// Objects by their ids. Cheap to clone; all clones are the same store.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

/// Where an arriving object is laid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the directory, if the store has one.
    Usual,
    /// In memory.
    Memory,
}

impl Store {
    /// A store in this directory, which is made if need be.
    pub fn open(dir: &Path, config: StoreConfig) -> Result<Self, DataplaneError> {
        let objects = objects_dir(dir);
        fs::create_dir_all(&objects).map_err(|error| DataplaneError::file(&objects, &error))?;
        Self::new(Some(dir.to_owned()), config)
    }

    /// A store that lies in memory only.
    pub fn in_memory(config: StoreConfig) -> Result<Self, DataplaneError> {
        Self::new(None, config)
    }

    fn new(dir: Option<PathBuf>, config: StoreConfig) -> Result<Self, DataplaneError> {
        if config.chunk_bytes.is_some_and(|bytes| !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&bytes)) {
            let reason = format!("must be {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}");
            return Err(DataplaneError::Config { key: "chunk_bytes", reason });
        }
        let inner = Inner {
            dir,
            config,
            objects: Mutex::default(),
            appeared: watch::Sender::new(0),
            laying_out: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Its directory.
    pub fn dir(&self) -> Option<&Path> {
        self.inner.dir.as_deref()
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<ObjectId, Arc<Entry>>> {
        self.inner.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chunk_bytes(&self, bytes: u64) -> u32 {
        self.inner.config.chunk_bytes.unwrap_or_else(|| chunk_bytes_for(bytes))
    }

    /// What lies in the directory, oldest first; copies that an earlier process did not finish are removed. For a directory
    /// that is this process's own, before anything is put there.
    pub fn take_stock(&self) -> Result<Vec<ObjectId>, DataplaneError> {
        let Some(dir) = &self.inner.dir else { return Ok(Vec::new()) };
        let objects = objects_dir(dir);
        let mut stock = Vec::new();
        for entry in fs::read_dir(&objects).map_err(|error| DataplaneError::file(&objects, &error))?.flatten() {
            let name = entry.file_name();
            match name.to_string_lossy().parse::<ObjectId>() {
                Ok(id) => stock.push((entry.metadata().and_then(|about| about.modified()).ok(), id)),
                Err(_) => {
                    let path = entry.path();
                    fs::remove_dir_all(&path).map_err(|error| DataplaneError::file(&path, &error))?;
                }
            }
        }
        stock.sort_unstable();
        Ok(stock.into_iter().map(|(_, id)| id).collect())
    }

    /// Copies a file into the store; from then on it can be fetched. The same name and content give the same id.
    pub fn put_file(&self, name: &str, path: &Path) -> Result<ObjectId, DataplaneError> {
        let in_file = |error: &std::io::Error| DataplaneError::file(path, error);
        let mut source = File::open(path).map_err(|error| in_file(&error))?;
        let bytes = source.metadata().map_err(|error| in_file(&error))?.len();
        let mut manifest =
            Manifest { name: name.to_owned(), bytes, chunk_bytes: self.chunk_bytes(bytes), chunks: Vec::new() };
        let Some(dir) = &self.inner.dir else {
            let mut content = Vec::new();
            source.read_to_end(&mut content).map_err(|error| in_file(&error))?;
            return self.put_bytes(name, content.into(), Duration::MAX);
        };
        // the id is known only at the end: the copy is made beside and renamed
        let beside = objects_dir(dir).join(format!(".{}-{:p}", std::process::id(), &manifest));
        fs::create_dir_all(&beside).map_err(|error| DataplaneError::file(&beside, &error))?;
        let copied = copy_chunks(&mut source, &beside.join(ARRIVING), &mut manifest);
        let put = copied.map_err(|error| in_file(&error)).and_then(|()| self.adopt(dir, &beside, manifest));
        if put.is_err() {
            let _ = fs::remove_dir_all(&beside); // the first error is the one to tell of
        }
        put
    }

    /// Gives a finished copy its place.
    fn adopt(&self, dir: &Path, beside: &Path, manifest: Manifest) -> Result<ObjectId, DataplaneError> {
        let encoded = manifest.encode()?;
        let id = ObjectId::of(&encoded);
        let place = object_dir(dir, id);
        let in_place = |error: &std::io::Error| DataplaneError::file(&place, error);
        fs::write(beside.join("manifest"), &encoded).map_err(|error| in_place(&error))?;
        fs::rename(beside.join(ARRIVING), beside.join(crate::entry::WHOLE)).map_err(|error| in_place(&error))?;
        if self.find(id)?.is_some_and(|entry| entry.is_whole()) {
            let _ = fs::remove_dir_all(beside); // it is here already; the copy is only in the way
            return Ok(id);
        }
        self.remove(id)?;
        fs::rename(beside, &place).map_err(|error| in_place(&error))?;
        self.find(id)?;
        Ok(id)
    }

    /// Keeps bytes in memory for as long as `keep_for`; from then on they can be fetched.
    ///
    /// Errors: [`DataplaneError::MemoryFull`] when they do not fit beside what is there.
    pub fn put_bytes(&self, name: &str, bytes: Bytes, keep_for: Duration) -> Result<ObjectId, DataplaneError> {
        let chunk_bytes = self.chunk_bytes(bytes.len() as u64);
        let step = chunk_bytes as usize;
        let starts = (0..bytes.len()).step_by(step);
        let chunks: Vec<Bytes> = starts.map(|start| bytes.slice(start..bytes.len().min(start + step))).collect();
        let ids = chunks.iter().map(|chunk| ChunkId::of(chunk)).collect();
        let manifest = Manifest { name: name.to_owned(), bytes: bytes.len() as u64, chunk_bytes, chunks: ids };
        let encoded = Bytes::from(manifest.encode()?);
        let id = ObjectId::of(&encoded);
        let expires = Instant::now().checked_add(keep_for);
        let entry = Entry::empty(id, manifest, encoded, None, expires).with_chunks(chunks);
        self.insert(entry, true)?;
        Ok(id)
    }

    /// Lays an object among the others. With `replace` it takes the place of one with the same id.
    fn insert(&self, entry: Entry, replace: bool) -> Result<Arc<Entry>, DataplaneError> {
        let now = Instant::now();
        let mut objects = self.objects();
        objects.retain(|_, held| held.expires.is_none_or(|expires| expires > now));
        if let Some(held) = objects.get(&entry.id).filter(|held| !replace || held.expires.is_none()) {
            return Ok(held.clone());
        }
        let others = objects.iter().filter(|(id, _)| **id != entry.id);
        let held_bytes: u64 = others.map(|(_, held)| held.memory_bytes()).sum();
        let (bytes, limit_bytes) = (entry.memory_bytes(), self.inner.config.memory_limit_bytes);
        if bytes > 0 && held_bytes.saturating_add(bytes) > limit_bytes {
            return Err(DataplaneError::MemoryFull { bytes, held_bytes, limit_bytes });
        }
        let entry = Arc::new(entry);
        objects.insert(entry.id, entry.clone());
        drop(objects);
        self.inner.appeared.send_modify(|count| *count += 1);
        Ok(entry)
    }

    /// Makes room for an object that is about to arrive; one that is here already is gone on with.
    pub(crate) fn begin(&self, manifest: Manifest, place: Place) -> Result<Arc<Entry>, DataplaneError> {
        let encoded = Bytes::from(manifest.encode()?);
        let id = ObjectId::of(&encoded);
        let _laying_out = self.inner.laying_out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = self.known(id) {
            return Ok(entry);
        }
        let backing = match &self.inner.dir {
            Some(dir) if place == Place::Usual => Some(begin_file(&object_dir(dir, id), &manifest, &encoded)?),
            _ => None,
        };
        let entry = Entry::empty(id, manifest, encoded, backing, None);
        if entry.manifest.count() == 0 {
            entry.finish()?;
        }
        self.insert(entry, false)
    }

    /// An object that is known in this process.
    pub(crate) fn known(&self, id: ObjectId) -> Option<Arc<Entry>> {
        let entry = self.objects().get(&id).cloned()?;
        if entry.expires.is_some_and(|expires| expires <= Instant::now()) {
            self.objects().remove(&id);
            entry.mark_removed();
            return None;
        }
        Some(entry)
    }

    /// An object, also if only the directory knows of it. Blocks.
    pub(crate) fn find(&self, id: ObjectId) -> Result<Option<Arc<Entry>>, DataplaneError> {
        if let Some(entry) = self.known(id) {
            return Ok(Some(entry));
        }
        let Some(dir) = &self.inner.dir else { return Ok(None) };
        let place = object_dir(dir, id);
        let Ok(encoded) = fs::read(place.join("manifest")) else { return Ok(None) };
        let Ok(manifest) = Manifest::decode(&encoded, id) else {
            tracing::warn!(object = %id, "the stored manifest is damaged; the object counts as missing");
            return Ok(None);
        };
        let Ok((file, whole)) = data_file(&place) else { return Ok(None) };
        let entry = Entry::empty(id, manifest, encoded.into(), Some(Backing { file, dir: place }), None);
        let entry = if whole { entry.with_whole_file() } else { entry };
        if !whole {
            entry.rescan()?;
        }
        self.insert(entry, false).map(Some)
    }

    /// The same, off the actors' threads.
    pub(crate) async fn find_async(&self, id: ObjectId) -> Result<Option<Arc<Entry>>, DataplaneError> {
        if let Some(entry) = self.known(id) {
            return Ok(Some(entry));
        }
        if self.inner.dir.is_none() {
            return Ok(None);
        }
        let store = self.clone();
        let found = spawn_blocking_named("dataplane find", move || store.find(id)).await;
        found.ok().flatten().unwrap_or(Err(DataplaneError::Panicked { what: "looking for an object" }))
    }

    /// How many bytes lie in memory, or have their room there.
    pub fn memory_bytes(&self) -> u64 {
        self.objects().values().map(|held| held.memory_bytes()).sum()
    }

    /// Changes whenever an object appears.
    pub(crate) fn appearances(&self) -> watch::Receiver<u64> {
        self.inner.appeared.subscribe()
    }

    /// How much of an object is here; `None` when nothing is known of it.
    pub fn holding(&self, id: ObjectId) -> Result<Option<Holding>, DataplaneError> {
        let holding = |entry: Arc<Entry>| {
            let manifest = &entry.manifest;
            Holding { bytes: manifest.bytes, held: entry.held(), chunks: manifest.count() }
        };
        Ok(self.find(id)?.map(holding))
    }

    /// The manifest of an object.
    pub fn manifest(&self, id: ObjectId) -> Result<Option<Manifest>, DataplaneError> {
        Ok(self.find(id)?.map(|entry| entry.manifest.clone()))
    }

    /// The file of an object that is whole and lies in the directory. Its bytes were checked when they arrived; use
    /// [`Store::read`] to have them checked again.
    pub fn path(&self, id: ObjectId) -> Result<Option<PathBuf>, DataplaneError> {
        Ok(self.find(id)?.and_then(|entry| entry.path()))
    }

    /// All bytes of an object that is whole, each chunk checked while it is read.
    ///
    /// Errors: [`DataplaneError::Damaged`] names a chunk whose bytes have changed; fetching the object again mends it.
    pub fn read(&self, id: ObjectId) -> Result<Option<Bytes>, DataplaneError> {
        let Some(entry) = self.find(id)?.filter(|entry| entry.is_whole()) else { return Ok(None) };
        if let Some(bytes) = entry.join() {
            return Ok(Some(bytes));
        }
        let mut joined = Vec::with_capacity(entry.manifest.bytes as usize);
        for index in 0..entry.manifest.count() {
            match entry.read(index)? {
                Read::Chunk(bytes) => joined.extend_from_slice(&bytes),
                Read::Missing | Read::Damaged => {
                    let reason = "its bytes have changed on the disk; fetch the object again".to_owned();
                    return Err(DataplaneError::Damaged { what: format!("chunk {index} of {id}"), reason });
                }
            }
        }
        Ok(Some(joined.into()))
    }

    /// Forgets an object and deletes its files; whoever is fetching or serving it hears of it. Unknown ids are no error.
    pub fn remove(&self, id: ObjectId) -> Result<(), DataplaneError> {
        if let Some(entry) = self.objects().remove(&id) {
            entry.mark_removed();
        }
        let Some(dir) = &self.inner.dir else { return Ok(()) };
        let place = object_dir(dir, id);
        match fs::remove_dir_all(&place) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(DataplaneError::file(&place, &error)),
            _ => Ok(()),
        }
    }
}

pub(crate) fn objects_dir(dir: &Path) -> PathBuf {
    dir.join("objects")
}

pub(crate) fn object_dir(dir: &Path, id: ObjectId) -> PathBuf {
    objects_dir(dir).join(id.to_string())
}

/// Lays out the files of an object that is about to arrive, or opens those that are there.
fn begin_file(place: &Path, manifest: &Manifest, encoded: &[u8]) -> Result<Backing, DataplaneError> {
    let begin = || {
        fs::create_dir_all(place)?;
        // another process may do the same on a shared volume
        let beside = place.join(format!("manifest.{}", std::process::id()));
        fs::write(&beside, encoded)?;
        fs::rename(beside, place.join("manifest"))?;
        if let Ok((file, _)) = data_file(place) {
            return Ok(file);
        }
        let file = File::options().read(true).write(true).create(true).truncate(false).open(place.join(ARRIVING))?;
        // sparse: a long object takes no room before its bytes arrive
        file.set_len(manifest.bytes)?;
        Ok(file)
    };
    let file = begin().map_err(|error: std::io::Error| DataplaneError::file(place, &error))?;
    Ok(Backing { file, dir: place.to_owned() })
}

/// Copies a file chunk by chunk and writes down their hashes.
fn copy_chunks(source: &mut File, to: &Path, manifest: &mut Manifest) -> std::io::Result<()> {
    let target = File::options().write(true).create_new(true).open(to)?;
    let mut buffer = vec![0; manifest.chunk_bytes as usize];
    let mut offset = 0;
    while offset < manifest.bytes {
        let part = (manifest.bytes - offset).min(u64::from(manifest.chunk_bytes)) as usize;
        source.read_exact(&mut buffer[..part])?;
        target.write_all_at(&buffer[..part], offset)?;
        manifest.chunks.push(ChunkId::of(&buffer[..part]));
        if manifest.chunks.len() * 32 > MAX_FRAME_BYTES {
            return Err(std::io::Error::other("it is too long for chunks of this size"));
        }
        offset += part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use greenroom_core::Seed;
    use rand::Rng;

    use super::*;

    fn content(bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        Seed::new(5).random().fill(content.as_mut_slice());
        content
    }

    fn store(dir: &Path) -> Store {
        Store::open(dir, StoreConfig { chunk_bytes: Some(1024), memory_limit_bytes: 10_000 }).unwrap()
    }

    #[tokio::test]
    async fn a_file_is_the_same_object_wherever_it_is_put_and_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        for bytes in [0, 1, 1024, 5000] {
            let content = content(bytes);
            fs::write(&file, &content).unwrap();
            let (one, two) = (store(&dir.path().join("one")), store(&dir.path().join("two")));
            let id = one.put_file("f", &file).unwrap();
            assert_eq!(two.put_file("f", &file).unwrap(), id);
            assert_eq!(one.put_file("f", &file).unwrap(), id, "putting again changes nothing");
            assert_ne!(two.put_file("g", &file).unwrap(), id, "the name is part of the object");
            let reopened = store(&dir.path().join("one"));
            assert!(reopened.holding(id).unwrap().unwrap().is_whole());
            assert_eq!(reopened.read(id).unwrap().unwrap(), content);
            assert_eq!(fs::read(reopened.path(id).unwrap().unwrap()).unwrap(), content);
            reopened.remove(id).unwrap();
            reopened.remove(id).unwrap();
            assert_eq!(reopened.read(id).unwrap(), None);
            assert!(store(&dir.path().join("one")).holding(id).unwrap().is_none());
        }
        let left = fs::read_dir(dir.path().join("one/objects")).unwrap().count();
        assert_eq!(left, 0, "nothing half made is left");
    }

    #[tokio::test]
    async fn a_byte_that_changed_on_the_disk_is_never_handed_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, content(5000)).unwrap();
        let id = store(dir.path()).put_file("f", &file).unwrap();
        for reopen in [false, true] {
            let store = store(dir.path());
            if !reopen {
                store.read(id).unwrap().unwrap(); // now the fast checksums are known
            }
            let path = object_dir(dir.path(), id).join("data");
            let mut bytes = fs::read(&path).unwrap();
            bytes[2100] ^= 4;
            fs::write(&path, &bytes).unwrap();
            let error = store.read(id).unwrap_err();
            assert!(error.code() == "GR1102" && error.to_string().contains("chunk 2 of"), "{error}");
            assert_eq!(store.holding(id).unwrap().unwrap().held, 4, "that chunk is missing now, the others are not");
            bytes[2100] ^= 4;
            fs::write(&path, &bytes).unwrap();
        }
    }

    #[tokio::test]
    async fn an_unfinished_object_is_taken_up_again_by_its_hashes() {
        let dir = tempfile::tempdir().unwrap();
        let source = Store::in_memory(StoreConfig { chunk_bytes: Some(1024), ..StoreConfig::default() }).unwrap();
        let content = Bytes::from(content(5000));
        let id = source.put_bytes("b", content.clone(), Duration::from_secs(9)).unwrap();
        let manifest = source.manifest(id).unwrap().unwrap();
        let entry = store(dir.path()).begin(manifest, Place::Usual).unwrap();
        for index in [1, 4] {
            let start = index as usize * 1024;
            let chunk = content.slice(start..content.len().min(start + 1024));
            assert!(!entry.accept(index - 1, chunk.clone()).unwrap(), "another chunk's bytes are not taken");
            assert!(entry.accept(index, chunk).unwrap());
        }
        let reopened = store(dir.path());
        assert_eq!(reopened.holding(id).unwrap().unwrap(), Holding { bytes: 5000, held: 2, chunks: 5 });
        assert_eq!((reopened.read(id).unwrap(), reopened.path(id).unwrap()), (None, None));
        let entry = reopened.find(id).unwrap().unwrap();
        assert_eq!(entry.missing(), [0, 2, 3]);
        for index in entry.missing() {
            let start = index as usize * 1024;
            entry.accept(index, content.slice(start..start + 1024)).unwrap();
        }
        assert_eq!(reopened.read(id).unwrap().unwrap(), content);
        assert_eq!(store(dir.path()).read(id).unwrap().unwrap(), content);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_has_a_limit_and_what_expired_makes_room() {
        let store = Store::in_memory(StoreConfig { chunk_bytes: Some(1024), memory_limit_bytes: 10_000 }).unwrap();
        let put = |fill: u8, bytes: usize| store.put_bytes("b", vec![fill; bytes].into(), Duration::from_secs(10));
        let first = put(1, 6000).unwrap();
        assert_eq!(put(1, 6000).unwrap(), first, "the same again needs no more room");
        let full = DataplaneError::MemoryFull { bytes: 5000, held_bytes: 6000, limit_bytes: 10_000 };
        assert_eq!(put(2, 5000), Err(full));
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(store.read(first).unwrap(), None, "it has expired");
        let second = put(2, 5000).unwrap();
        assert_eq!(store.read(second).unwrap().unwrap(), vec![2; 5000]);
    }
}
