//! Moving files in and out of the box, from inside it.
//!
//! Paths are resolved within the box's own file tree, so a link planted by a command leads nowhere else. Magic links
//! (/proc/…/fd) are not followed, /proc is not written or read, and what is not a regular file is refused. Writing replaces
//! the entry itself, by renaming: a link in its place is replaced, not followed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, fstatfs, mkdirat, openat, openat2, renameat,
    unlinkat,
};
use rustix::io::Errno;

use super::protocol::BoxSetup;
use crate::config::Isolation;

const PROC_SUPER_MAGIC: u64 = 0x9fa0;
const TEMPORARY: &str = ".greenroom-put";

/// Where paths are resolved, and what may be followed.
pub(crate) struct BoxFiles {
    base: PathBuf,
    workdir: PathBuf,
    resolve: ResolveFlags,
}

impl BoxFiles {
    pub(crate) fn new(setup: &BoxSetup) -> Self {
        match setup.isolation {
            Isolation::Namespaces => Self {
                base: PathBuf::from("/"),
                workdir: setup.workdir.clone(),
                resolve: ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
            },
            // Without walls the tree's own directory is the only fence: no link may leave it.
            Isolation::None => Self {
                base: setup.box_dir.join("work"),
                workdir: setup.workdir.clone(),
                resolve: ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
            },
        }
    }

    /// Writes a file with its parent directories; `mode` holds the permission bits.
    pub(crate) fn put(&self, path: &str, mode: u32, content: &[u8]) -> Result<(), String> {
        let base = self.open_base()?;
        let relative = self.relative(path)?;
        let name = relative.file_name().ok_or("it names a directory")?;
        let parent = relative.parent().unwrap_or(Path::new(""));
        let directory = self.make_parents(&base, parent)?;
        refuse_proc(&directory)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Left behind by an attempt that was cut short.
        let _ = unlinkat(&directory, TEMPORARY, AtFlags::empty());
        let created = openat(&directory, TEMPORARY, flags, Mode::from_raw_mode(0o600)).map_err(text)?;
        let written = write_all(created, mode, content)
            .and_then(|()| renameat(&directory, TEMPORARY, &directory, name).map_err(text));
        if written.is_err() {
            let _ = unlinkat(&directory, TEMPORARY, AtFlags::empty());
        }
        written
    }

    /// Reads a regular file of at most `limit_bytes`.
    pub(crate) fn read(&self, path: &str, limit_bytes: u64) -> Result<Vec<u8>, String> {
        let base = self.open_base()?;
        let relative = self.relative(path)?;
        // Non-blocking, so that opening a pipe returns and can be refused.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = openat2(&base, &relative, flags, Mode::empty(), self.resolve).map_err(text)?;
        refuse_proc(&opened)?;
        let about = fstat(&opened).map_err(text)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err("it is not a regular file".to_owned());
        }
        let mut content = Vec::new();
        let read = File::from(opened).take(limit_bytes + 1).read_to_end(&mut content);
        read.map_err(|error| error.to_string())?;
        if content.len() as u64 > limit_bytes {
            return Err(format!("it is longer than the limit of {limit_bytes} bytes"));
        }
        Ok(content)
    }

    fn open_base(&self) -> Result<OwnedFd, String> {
        openat(CWD, &self.base, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(text)
    }

    /// The path below the base: relative ones count from the work tree.
    fn relative(&self, path: &str) -> Result<PathBuf, String> {
        if path.is_empty() || path.contains('\0') {
            return Err("it is not a path".to_owned());
        }
        let full = self.workdir.join(path);
        let outside = || format!("without isolation only files below {} can be moved", self.workdir.display());
        let below = match self.base.as_os_str() == "/" {
            true => full.strip_prefix("/").map_err(|_| "it is not a path".to_owned())?,
            false => full.strip_prefix(&self.workdir).map_err(|_| outside())?,
        };
        Ok(below.to_owned())
    }

    fn make_parents(&self, base: &OwnedFd, parent: &Path) -> Result<OwnedFd, String> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut so_far = PathBuf::from(".");
        for part in parent.components() {
            so_far.push(part);
            match openat2(base, &so_far, flags, Mode::empty(), self.resolve) {
                Ok(_) => {}
                Err(Errno::NOENT) => mkdirat(base, &so_far, Mode::from_raw_mode(0o755)).map_err(text)?,
                Err(errno) => return Err(text(errno)),
            }
        }
        openat2(base, &so_far, flags, Mode::empty(), self.resolve).map_err(text)
    }
}

fn write_all(created: OwnedFd, mode: u32, content: &[u8]) -> Result<(), String> {
    let mut file = File::from(created);
    file.write_all(content).map_err(|error| error.to_string())?;
    fchmod(&file, Mode::from_raw_mode(mode & 0o777)).map_err(text)
}

fn refuse_proc(opened: &OwnedFd) -> Result<(), String> {
    let about = fstatfs(opened).map_err(text)?;
    if about.f_type as u64 == PROC_SUPER_MAGIC {
        return Err("it leads into /proc".to_owned());
    }
    Ok(())
}

fn text(errno: Errno) -> String {
    nix::errno::Errno::from_raw(errno.raw_os_error()).desc().to_owned()
}
