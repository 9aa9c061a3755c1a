//! A directory that appears complete or not at all.
//!
//! Files are written into a hidden sibling, synced, listed with sizes and SHA-256 in `manifest.json`, and the sibling is
//! renamed (or exchanged with an older directory of that name, which is then removed). A crash leaves either the old
//! directory or the new one, and at most a hidden sibling that the next write removes. Reading checks every file of the
//! manifest before anything is used.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::TrainerError;

/// Name of the list of files.
pub const MANIFEST: &str = "manifest.json";

const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    files: Vec<ManifestFile>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestFile {
    name: String,
    bytes: u64,
    sha256: String,
}

/// Makes `dir` with what `fill` writes into the directory it is given; `fill` returns the names of its files.
///
/// # Errors
/// [`TrainerError::CheckpointIo`], and whatever `fill` returns; `dir` is then as it was.
pub fn write(dir: &Path, fill: impl FnOnce(&Path) -> Result<Vec<String>, TrainerError>) -> Result<(), TrainerError> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(io_error(dir, "a directory with a parent is needed"));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    refuse_foreign(dir)?;
    let partial = parent.join(format!(".{}.partial", name.to_string_lossy()));
    fs::create_dir_all(parent).map_err(|error| io_error(parent, error))?;
    remove(&partial)?;
    fs::create_dir(&partial).map_err(|error| io_error(&partial, error))?;

    let written = fill(&partial).and_then(|names| write_manifest(&partial, names));
    let published = written.and_then(|()| publish(&partial, dir, parent));
    if published.is_err() {
        // The error that matters is the first one; what cannot be removed now is removed by the next write.
        drop(remove(&partial));
    }
    published
}

/// Writes a small file and syncs it.
///
/// # Errors
/// [`TrainerError::CheckpointIo`].
pub fn write_file(path: &Path, content: &[u8]) -> Result<(), TrainerError> {
    let mut file = File::create(path).map_err(|error| io_error(path, error))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(|error| io_error(path, error))
}

/// Checks every file of a directory against its manifest.
///
/// # Errors
/// [`TrainerError::CheckpointDamaged`] naming the first file that is not there or not what was written,
/// [`TrainerError::CheckpointIo`] when one is there and cannot be read.
pub fn verify(dir: &Path) -> Result<(), TrainerError> {
    let path = dir.join(MANIFEST);
    let text = fs::read(&path).map_err(|error| unread(&path, &error))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| damaged(&path, error.to_string()))?;
    if manifest.format != FORMAT {
        return Err(damaged(&path, format!("format {} instead of {FORMAT}", manifest.format)));
    }
    for expected in manifest.files {
        let path = dir.join(&expected.name);
        let (bytes, sha256) = fingerprint(&path).map_err(|error| unread(&path, &error))?;
        if bytes != expected.bytes {
            return Err(damaged(&path, format!("{bytes} bytes instead of {}", expected.bytes)));
        }
        if sha256 != expected.sha256 {
            return Err(damaged(&path, "its SHA-256 is not the manifest's".to_owned()));
        }
    }
    Ok(())
}

fn write_manifest(partial: &Path, names: Vec<String>) -> Result<(), TrainerError> {
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        let path = partial.join(&name);
        let (bytes, sha256) = fingerprint(&path).map_err(|error| io_error(&path, error))?;
        files.push(ManifestFile { name, bytes, sha256 });
    }
    let path = partial.join(MANIFEST);
    let text =
        serde_json::to_vec_pretty(&Manifest { format: FORMAT, files }).map_err(|error| io_error(&path, error))?;
    write_file(&path, &text)?;
    sync_directory(partial)
}

fn publish(partial: &Path, dir: &Path, parent: &Path) -> Result<(), TrainerError> {
    if dir.exists() {
        replace(partial, dir)?;
        sync_directory(parent)?;
        return remove(partial);
    }
    fs::rename(partial, dir).map_err(|error| io_error(dir, error))?;
    sync_directory(parent)
}

/// Puts `partial` under the name of `dir`; the old directory is then `partial`.
fn replace(partial: &Path, dir: &Path) -> Result<(), TrainerError> {
    let here = rustix::fs::CWD;
    match rustix::fs::renameat_with(here, partial, here, dir, rustix::fs::RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // File systems that cannot exchange (NFS): two renames, between which the old one has only its hidden name.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            let aside = partial.with_extension("replaced");
            remove(&aside)?;
            fs::rename(dir, &aside).map_err(|error| io_error(dir, error))?;
            fs::rename(partial, dir).map_err(|error| io_error(dir, error))?;
            fs::rename(&aside, partial).map_err(|error| io_error(&aside, error))
        }
        Err(error) => Err(io_error(dir, error)),
    }
}

/// Only a directory that was written here (or an empty one) is ever replaced.
fn refuse_foreign(dir: &Path) -> Result<(), TrainerError> {
    if !dir.exists() || dir.join(MANIFEST).is_file() {
        return Ok(());
    }
    let mut entries = fs::read_dir(dir).map_err(|error| io_error(dir, error))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(io_error(dir, "it exists and is not a checkpoint; choose another name")),
    }
}

fn fingerprint(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut bytes = 0;
    let mut buffer = vec![0_u8; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            let hex = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            return Ok((bytes, hex));
        }
        digest.update(&buffer[..count]);
        bytes += count as u64;
    }
}

fn sync_directory(dir: &Path) -> Result<(), TrainerError> {
    File::open(dir).and_then(|handle| handle.sync_all()).map_err(|error| io_error(dir, error))
}

fn remove(dir: &Path) -> Result<(), TrainerError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(dir, error)),
        _ => Ok(()),
    }
}

fn io_error(path: &Path, reason: impl ToString) -> TrainerError {
    TrainerError::CheckpointIo { path: PathBuf::from(path), reason: reason.to_string() }
}

/// A file that a checkpoint must have: one that is missing was lost, one that cannot be read may be read another time.
fn unread(path: &Path, error: &std::io::Error) -> TrainerError {
    match error.kind() {
        std::io::ErrorKind::NotFound => damaged(path, "it is missing".to_owned()),
        _ => io_error(path, error),
    }
}

fn damaged(path: &Path, reason: String) -> TrainerError {
    TrainerError::CheckpointDamaged { path: PathBuf::from(path), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(dir: &Path, content: &'static str) -> Result<(), TrainerError> {
        write(dir, |partial| {
            write_file(&partial.join("a.txt"), content.as_bytes())?;
            Ok(vec!["a.txt".to_owned()])
        })
    }

    #[test]
    fn a_directory_is_replaced_whole_and_checked() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("checkpoint");
        make(&dir, "one").unwrap();
        make(&dir, "two").unwrap();
        verify(&dir).unwrap();
        assert_eq!(fs::read_to_string(dir.join("a.txt")).unwrap(), "two");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing is left beside it");

        fs::write(dir.join("a.txt"), "twp").unwrap();
        let error = verify(&dir).unwrap_err();
        assert!(error.code() == "GR0707" && error.to_string().contains("SHA-256"), "{error}");
        fs::write(dir.join("a.txt"), "tw").unwrap();
        assert!(verify(&dir).unwrap_err().to_string().contains("2 bytes instead of 3"));
        fs::remove_file(dir.join("a.txt")).unwrap();
        assert_eq!(verify(&dir).unwrap_err().code(), "GR0707");
        assert_eq!(verify(&root.path().join("never")).unwrap_err().code(), "GR0707");
    }

    #[test]
    fn a_failed_write_changes_nothing_and_foreign_directories_are_safe() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("checkpoint");
        make(&dir, "one").unwrap();
        let failed = write(&dir, |_| Err(TrainerError::batch("test", "on purpose")));
        assert_eq!(failed.unwrap_err().code(), "GR0702");
        verify(&dir).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);

        let foreign = root.path().join("home");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("letter"), "dear").unwrap();
        assert_eq!(make(&foreign, "one").unwrap_err().code(), "GR0706");
        assert_eq!(fs::read_to_string(foreign.join("letter")).unwrap(), "dear");
    }
}
