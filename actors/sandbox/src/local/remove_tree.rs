//! Removes a box's directory, whatever its commands made of it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Removes a tree without following links, opening directories that were made unreadable. What is gone already, because
/// another sweep is at work, is fine.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let about = fs::symlink_metadata(path)?;
    if !about.is_dir() {
        return fs::remove_file(path);
    }
    if about.permissions().mode() & 0o700 != 0o700 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    for entry in fs::read_dir(path)? {
        remove_tree(&entry?.path())?;
    }
    fs::remove_dir(path)
}
