//! Copies an image's source into a box's work tree.
//!
//! `std::fs::copy` asks the kernel to copy, which shares blocks where the file system can. Symbolic links are copied as
//! links and never followed; sockets, pipes and devices are left out. Modes and modification times are kept.

use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use super::mounts::Owner;

/// Copies the content of directory `from` into the existing directory `to`; everything made belongs to `owner`, when given.
pub(crate) fn copy_tree(from: &Path, to: &Path, owner: Option<Owner>) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy_entry(&entry.path(), &to.join(entry.file_name()), owner)?;
    }
    Ok(())
}

fn copy_entry(from: &Path, to: &Path, owner: Option<Owner>) -> io::Result<()> {
    let about = fs::symlink_metadata(from)?;
    if about.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
        return owner.map_or(Ok(()), |owner| lchown(to, Some(owner.user_id), Some(owner.group_id)));
    }
    if about.is_dir() {
        fs::create_dir(to)?;
        copy_tree(from, to, owner)?;
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
