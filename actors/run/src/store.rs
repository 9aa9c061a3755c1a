//! The run's directory: where everything of a run lies, and its lock.
//!
//! `runs/<name>/{config.toml, run.db, checkpoints/, weights/, trajectories/, metrics.jsonl, logs/, summary.json}`.
//! Files that others read are written beside their place and renamed into it, so that none is ever seen half written.
//! `run.pid` names the process that works on the run and is locked by it: the kernel takes the lock away when that process
//! is gone, however it went, so that a number that was given to another process since then means nothing.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_core::{codec, in_place};
use greenroom_messages::rollout::FinishedGroup;
use serde::Serialize;

use crate::RunError;

/// The directory of one run, held by this process.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    path: PathBuf,
    /// Whether the run begins with this process.
    is_new: bool,
    /// Whether this process made the directory.
    is_own: bool,
    /// The open and locked `run.pid`.
    lock: Arc<File>,
}

impl RunDirectory {
    /// The directory of a new run; refuses one that holds a run already.
    pub fn create(path: &Path) -> Result<Self, RunError> {
        if path.join("run.db").exists() {
            return Err(RunError::RunExists { path: path.to_owned() });
        }
        Self::enter(path, true)
    }

    /// The directory of a run to be resumed; refuses one that holds none.
    pub fn resume(path: &Path) -> Result<Self, RunError> {
        if !path.join("run.db").exists() {
            return Err(RunError::NoRun { path: path.to_owned() });
        }
        Self::enter(path, false)
    }

    fn enter(path: &Path, is_new: bool) -> Result<Self, RunError> {
        let is_own = !path.exists();
        for part in ["checkpoints", "weights", "trajectories", "logs"] {
            let part = path.join(part);
            fs::create_dir_all(&part).map_err(|error| file_error(&part, &error))?;
        }
        let lock = Arc::new(lock(path)?);
        Ok(Self { path: path.to_owned(), is_new, is_own, lock })
    }

    /// Whether the run begins with this process.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Lets the directory go before the last clone is dropped; what still writes into it must have ended.
    pub fn release(&self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, path = %self.path.display(), "the run's lock is held until this process ends");
        }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run database.
    pub fn database(&self) -> PathBuf {
        self.path.join("run.db")
    }

    /// Writes a finished group's trajectories; returns the file's name.
    pub fn write_group(&self, group: &FinishedGroup) -> Result<String, RunError> {
        let name = format!("trajectories/{}.bin", group.group);
        let bytes = in_place(|| codec::encode(group)).map_err(|error| self.codec_error(&name, &error))?;
        self.replace(&name, &bytes)?;
        Ok(name)
    }

    /// Reads a finished group's trajectories.
    pub fn read_group(&self, name: &str) -> Result<FinishedGroup, RunError> {
        let path = self.path.join(name);
        in_place(|| {
            let bytes = fs::read(&path).map_err(|error| file_error(&path, &error))?;
            codec::decode(&bytes).map_err(|error| self.codec_error(name, &error))
        })
    }

    /// Appends one line to `metrics.jsonl`.
    pub fn append_metrics(&self, line: &impl Serialize) -> Result<(), RunError> {
        let path = self.path.join("metrics.jsonl");
        let mut text = serde_json::to_string(line).map_err(|error| file_error(&path, &error.into()))?;
        text.push('\n');
        let append = || fs::OpenOptions::new().create(true).append(true).open(&path)?.write_all(text.as_bytes());
        in_place(append).map_err(|error| file_error(&path, &error))
    }

    /// Writes `metrics.jsonl` anew, if it is not what these lines make.
    pub fn replace_metrics<Line: Serialize>(&self, lines: &[Line]) -> Result<(), RunError> {
        let path = self.path.join("metrics.jsonl");
        let mut text = String::new();
        for line in lines {
            text.push_str(&serde_json::to_string(line).map_err(|error| file_error(&path, &error.into()))?);
            text.push('\n');
        }
        if fs::read(&path).unwrap_or_default() == text.as_bytes() {
            return Ok(());
        }
        self.replace("metrics.jsonl", text.as_bytes())
    }

    /// Takes back a run that could not be begun, so that the next try is not told that a run is there already. Files that
    /// were there before are left alone.
    pub fn abandon(self) -> Result<(), RunError> {
        if !self.is_new {
            return Ok(());
        }
        for name in ["run.db", "run.db-wal", "run.db-shm", "config.toml", "inputs.json", "run.pid"] {
            let path = self.path.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(file_error(&path, &error)),
                _ => {}
            }
        }
        if self.is_own { remove(&self.path) } else { Ok(()) }
    }

    /// Writes a file of the run so that it is whole or absent.
    pub fn replace(&self, name: &str, content: &[u8]) -> Result<(), RunError> {
        let path = self.path.join(name);
        let beside = path.with_extension("part");
        let write = || {
            let mut file = fs::File::create(&beside)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&beside, &path)
        };
        in_place(write).map_err(|error| file_error(&path, &error))
    }

    fn codec_error(&self, name: &str, error: &codec::CodecError) -> RunError {
        RunError::File { path: self.path.join(name), reason: error.to_string() }
    }
}

/// Takes a directory for this process.
fn lock(path: &Path) -> Result<File, RunError> {
    let file = path.join("run.pid");
    let failed = |error: std::io::Error| file_error(&file, &error);
    loop {
        let mut held =
            File::options().create(true).truncate(false).read(true).write(true).open(&file).map_err(failed)?;
        match held.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // the holder may be about to write its number
                let _ = held.read_to_string(&mut text);
                return Err(RunError::InUse { path: path.to_owned(), pid: text.trim().parse().unwrap_or(0) });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // whoever abandoned the run may have removed the file between our opening and locking it
        let is_there =
            fs::metadata(&file).is_ok_and(|there| held.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
        if is_there {
            let mut write = || {
                held.set_len(0)?;
                held.rewind()?;
                held.write_all(std::process::id().to_string().as_bytes())
            };
            write().map_err(failed)?;
            return Ok(held);
        }
    }
}

fn remove(path: &Path) -> Result<(), RunError> {
    fs::remove_dir_all(path).map_err(|error| file_error(path, &error))
}

fn file_error(path: &Path, error: &std::io::Error) -> RunError {
    RunError::File { path: path.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_held_until_it_is_let_go_and_a_number_alone_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let first = RunDirectory::create(&path).unwrap();
        fs::write(first.database(), "").unwrap();
        let clone = first.clone();
        drop(first);
        let error = RunDirectory::resume(&path).unwrap_err();
        assert_eq!(error.code(), "GR0208");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(clone);
        // the number of a process that lives, and is not ours
        fs::write(path.join("run.pid"), "1").unwrap();
        let second = RunDirectory::resume(&path).unwrap();
        assert_eq!(fs::read_to_string(path.join("run.pid")).unwrap(), std::process::id().to_string());
        second.release();
        RunDirectory::resume(&path).unwrap();
    }

    #[test]
    fn what_was_begun_in_vain_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        RunDirectory::create(&path).unwrap().abandon().unwrap();
        assert!(!path.exists());
        RunDirectory::create(&path).unwrap();
    }
}
