//! The run's directory: where everything of a run lies, and its lock.
//!
//! `runs/<name>/{config.toml, run.db, checkpoints/, weights/, trajectories/, metrics.jsonl, logs/, summary.json}`.
//! Files that others read are written beside their place and renamed into it, so that none is ever seen half written.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use greenroom_core::codec;
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
        let directory = Self { path: path.to_owned(), is_new, is_own };
        directory.lock()?;
        Ok(directory)
    }

    /// Takes the directory for this process. The lock is a process id: that of a process which is gone counts for nothing.
    fn lock(&self) -> Result<(), RunError> {
        let file = self.path.join("run.pid");
        if let Ok(text) = fs::read_to_string(&file) {
            let holder = text.trim().parse().ok().filter(|pid| *pid != std::process::id());
            if let Some(pid) = holder.filter(|pid| is_greenroom(*pid)) {
                return Err(RunError::InUse { path: self.path.clone(), pid });
            }
        }
        self.replace("run.pid", std::process::id().to_string().as_bytes())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run database.
    pub fn database(&self) -> PathBuf {
        self.path.join("run.db")
    }

    /// A checkpoint by its name.
    pub fn checkpoint(&self, name: &str) -> PathBuf {
        self.path.join("checkpoints").join(name)
    }

    /// Where the trainer exports a version for the publisher.
    pub fn export(&self, version: u64) -> PathBuf {
        self.path.join("weights").join("export").join(format!("{version:06}"))
    }

    /// Writes a finished group's trajectories; returns the file's name.
    pub fn write_group(&self, group: &FinishedGroup) -> Result<String, RunError> {
        let name = format!("trajectories/{}.bin", group.group);
        let bytes = codec::encode(group).map_err(|error| self.codec_error(&name, &error))?;
        self.replace(&name, &bytes)?;
        Ok(name)
    }

    /// Reads a finished group's trajectories.
    pub fn read_group(&self, name: &str) -> Result<FinishedGroup, RunError> {
        let path = self.path.join(name);
        let bytes = fs::read(&path).map_err(|error| file_error(&path, &error))?;
        codec::decode(&bytes).map_err(|error| self.codec_error(name, &error))
    }

    /// Appends one line to `metrics.jsonl`.
    pub fn append_metrics(&self, line: &impl Serialize) -> Result<(), RunError> {
        let path = self.path.join("metrics.jsonl");
        let mut text = serde_json::to_string(line).map_err(|error| file_error(&path, &error.into()))?;
        text.push('\n');
        let mut file =
            fs::OpenOptions::new().create(true).append(true).open(&path).map_err(|error| file_error(&path, &error))?;
        file.write_all(text.as_bytes()).map_err(|error| file_error(&path, &error))
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
        for name in ["run.db", "run.db-wal", "run.db-shm", "config.toml", "run.pid"] {
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
        write().map_err(|error| file_error(&path, &error))
    }

    /// Removes checkpoints that are neither in `keep` nor newer than the newest of them, and exports up to `version`.
    pub fn prune(&self, keep: &[String], version: u64) -> Result<(), RunError> {
        let newest = keep.iter().max();
        for name in names_in(&self.path.join("checkpoints"))? {
            if !keep.contains(&name) && newest.is_some_and(|newest| name < *newest) {
                remove(&self.checkpoint(&name))?;
            }
        }
        for name in names_in(&self.path.join("weights").join("export"))? {
            if name.parse::<u64>().is_ok_and(|number| number < version) {
                remove(&self.path.join("weights").join("export").join(name))?;
            }
        }
        Ok(())
    }

    fn codec_error(&self, name: &str, error: &codec::CodecError) -> RunError {
        RunError::File { path: self.path.join(name), reason: error.to_string() }
    }
}

fn is_greenroom(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| {
        let own = std::env::current_exe().ok();
        own.is_some_and(|own| own.file_name() == exe.file_name())
    })
}

fn names_in(path: &Path) -> Result<Vec<String>, RunError> {
    let Ok(entries) = fs::read_dir(path) else { return Ok(Vec::new()) };
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn remove(path: &Path) -> Result<(), RunError> {
    fs::remove_dir_all(path).map_err(|error| file_error(path, &error))
}

fn file_error(path: &Path, error: &std::io::Error) -> RunError {
    RunError::File { path: path.to_owned(), reason: error.to_string() }
}
