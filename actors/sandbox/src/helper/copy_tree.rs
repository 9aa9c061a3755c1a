//! Copies an image's source into a box's work tree.
//!
//! `std::fs::copy` asks the kernel to copy, which shares blocks where the file system can. Symbolic links are copied as
//! links and never followed; sockets, pipes and devices are left out. Modes and modification times are kept.

use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use super::mounts::Owner;

/// An error that names its file already.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NamedError(String);

/// Copies the content of directory `from` into the existing directory `to`; everything made belongs to `owner`, when given.
/// Errors name what could not be copied by its path below `from`.
pub(crate) fn copy_tree(from: &Path, to: &Path, owner: Option<Owner>) -> io::Result<()> {
    copy_content(from, Path::new(""), to, owner)
}

fn copy_content(from: &Path, below: &Path, to: &Path, owner: Option<Owner>) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let below = below.join(entry.file_name());
        copy_entry(&entry.path(), &below, &to.join(entry.file_name()), owner)?;
    }
    Ok(())
}

fn copy_entry(from: &Path, below: &Path, to: &Path, owner: Option<Owner>) -> io::Result<()> {
    copy_one(from, below, to, owner).map_err(|error| {
        match error.get_ref().is_some_and(|inner| inner.is::<NamedError>()) {
            true => error,
            false => io::Error::new(error.kind(), NamedError(format!("{}: {error}", below.display()))),
        }
    })
}

fn copy_one(from: &Path, below: &Path, to: &Path, owner: Option<Owner>) -> io::Result<()> {
    let about = fs::symlink_metadata(from)?;
    if about.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
        return owner.map_or(Ok(()), |owner| lchown(to, Some(owner.user_id), Some(owner.group_id)));
    }
    if about.is_dir() {
        fs::create_dir(to)?;
        copy_content(from, below, to, owner)?;
    } else if about.is_file() {
        fs::copy(from, to)?;
    } else {
        return Ok(());
    }
    if let Some(owner) = owner {
        chown(to, Some(owner.user_id), Some(owner.group_id))?;
    }
    if let Ok(modified) = about.modified() {
        File::open(to)?.set_times(FileTimes::new().set_modified(modified))?;
    }
    // Last, because it may make a directory read-only. The owner keeps reading and writing, and no file is set-uid.
    let owner_may = if about.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(to, fs::Permissions::from_mode((about.permissions().mode() & 0o777) | owner_may))
}
