//! The box's file tree: read-only system, own /tmp, /dev, /proc, work tree and home; nothing else of the host.
//!
//! The tree is built under /tmp of a private mount namespace, which hides whatever /tmp held; so everything from the host
//! is opened first and bound through /proc/self/fd. [`build`] runs either as root before it gives root up, or as the
//! root of the new user namespace; [`enter`] runs in the box's first process and leaves the host's tree for good.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_remount, unmount};

use super::SetupFailure;
use super::copy_tree::copy_tree;
use super::namespaces::INSIDE_ID;
use super::protocol::BoxSetup;
use crate::config::{HOME_INSIDE, WorkTreeStore};

const STAGE: &str = "/tmp";
const ROOT: &str = "/tmp/root";
const STORE: &str = "/tmp/store";

/// Who owns the box's files on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) user_id: u32,
    pub(crate) group_id: u32,
}

/// Builds the tree; `owner` is who shall own the writable parts, when that is not ourselves.
pub(crate) fn build(setup: &BoxSetup, owner: Option<Owner>) -> Result<(), SetupFailure> {
    let source = setup.source_dir.as_deref().map(open_path).transpose()?;
    let store = match setup.work_tree_store {
        WorkTreeStore::Disk => Some(open_path(&setup.box_dir)?),
        WorkTreeStore::Memory => None,
    };
    let system = setup.read_only_paths.iter().filter_map(|path| SystemPath::open(path).transpose());
    let system: Vec<SystemPath> = system.collect::<Result<_, _>>()?;
    let nodes: Vec<(&str, OwnedFd)> = DEVICES
        .iter()
        .map(|name| Ok((*name, open_path(&Path::new("/dev").join(name))?)))
        .collect::<Result<_, SetupFailure>>()?;

    mount_tmpfs(STAGE, 4 << 20, 0o755)?;
    make_dir(ROOT)?;
    make_dir(STORE)?;
    match &store {
        Some(directory) => bind(&descriptor_path(directory), Path::new(STORE))?,
        None => mount_tmpfs(STORE, setup.limits.disk_bytes, 0o755)?,
    }
    fill_store(source.as_ref(), owner)?;
    // before the paths of the host, some of which may lie below it
    make_dir(in_root("/tmp"))?;
    mount_tmpfs(in_root("/tmp"), setup.limits.tmp_bytes, 0o1777)?;
    for path in &system {
        path.place()?;
    }
    place_identity()?;
    place_devices(&nodes, setup.limits.tmp_bytes)?;
    make_dir(in_root("/proc"))?;
    for (inside, part) in [(setup.workdir.as_path(), "work"), (Path::new(HOME_INSIDE), "home")] {
        make_dir(in_root(inside))?;
        bind(&Path::new(STORE).join(part), &in_root(inside))?;
    }
    Ok(())
}

/// Mounts what belongs to the box's own namespaces, makes the tree the root, and drops the host's.
pub(crate) fn enter() -> Result<(), SetupFailure> {
    // A mount inherited from another user namespace is locked and cannot become the root; a fresh bind of it can.
    mount_bind_recursive(ROOT, ROOT).map_err(SetupFailure::at("root"))?;
    let fresh = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", in_root("/proc").as_path(), "proc", fresh, None::<&CStr>).map_err(|errno| SetupFailure {
        stage: "proc",
        detail: format!("cannot mount /proc in the box: {errno} (containers that mask parts of /proc forbid this)"),
        namespaces_refused: true,
        lasting: false,
    })?;
    // Pseudo-terminals are a convenience: a kernel that refuses them still makes a good box.
    let options = c"newinstance,ptmxmode=0666,mode=620";
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let _ = mount("devpts", in_root("/dev/pts").as_path(), "devpts", flags, Some(options));
    let failed = SetupFailure::at("root");
    rustix::process::chdir(ROOT).map_err(&failed)?;
    rustix::process::pivot_root(".", ".").map_err(&failed)?;
    unmount(".", UnmountFlags::DETACH).map_err(&failed)?;
    rustix::process::chdir("/").map_err(&failed)?;
    for fixed in ["/", "/dev"] {
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(fixed, flags, c"").map_err(&failed)?;
    }
    Ok(())
}

const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// One path of the host that the box sees, read-only.
enum SystemPath {
    Link { path: PathBuf, target: PathBuf },
    Directory { path: PathBuf, opened: OwnedFd },
    File { path: PathBuf, opened: OwnedFd },
}

impl SystemPath {
    /// None when the host has no such path.
    fn open(path: &Path) -> Result<Option<Self>, SetupFailure> {
        let Ok(about) = fs::symlink_metadata(path) else { return Ok(None) };
        let path_owned = path.to_owned();
        if about.is_symlink() {
            let target = fs::read_link(path).map_err(SetupFailure::io("system", path.display().to_string()))?;
            return Ok(Some(Self::Link { path: path_owned, target }));
        }
        let opened = open_path(path)?;
        Ok(Some(if about.is_dir() {
            Self::Directory { path: path_owned, opened }
        } else {
            Self::File { path: path_owned, opened }
        }))
    }

    fn place(&self) -> Result<(), SetupFailure> {
        match self {
            Self::Link { path, target } => {
                let place = in_root(path);
                if let Some(parent) = place.parent() {
                    make_dir(parent)?;
                }
                symlink(target, &place).map_err(SetupFailure::io("system", path.display().to_string()))
            }
            Self::Directory { path, opened } => {
                make_dir(in_root(path))?;
                bind_read_only(&descriptor_path(opened), &in_root(path))
            }
            Self::File { path, opened } => {
                make_file(&in_root(path), "")?;
                bind_read_only(&descriptor_path(opened), &in_root(path))
            }
        }
    }
}

fn fill_store(source: Option<&OwnedFd>, owner: Option<Owner>) -> Result<(), SetupFailure> {
    for part in ["work", "home"] {
        let path = Path::new(STORE).join(part);
        make_dir(&path)?;
        if let Some(owner) = owner {
            chown(&path, Some(owner.user_id), Some(owner.group_id)).map_err(SetupFailure::io("work tree", part))?;
        }
    }
    let Some(source) = source else { return Ok(()) };
    copy_tree(&descriptor_path(source), &Path::new(STORE).join("work"), owner).map_err(|error| {
        let is_full = error.kind() == std::io::ErrorKind::StorageFull;
        let what = if is_full { "copying the image, which is larger than disk_bytes" } else { "copying the image" };
        SetupFailure::io("work tree", what)(error)
    })
}

/// The box's user has a name and a home; the host's accounts, name servers and host names stay hidden.
fn place_identity() -> Result<(), SetupFailure> {
    let hidden = in_root("/.identity");
    make_dir(&hidden)?;
    let passwd = format!(
        "root:x:0:0:root:/root:/bin/sh\nagent:x:{INSIDE_ID}:{INSIDE_ID}:agent:{HOME_INSIDE}:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    );
    let files = [
        ("passwd", passwd),
        ("group", format!("root:x:0:\nagent:x:{INSIDE_ID}:\nnogroup:x:65534:\n")),
        ("hosts", "127.0.0.1 localhost greenroom-box\n::1 localhost\n".to_owned()),
        ("hostname", "greenroom-box\n".to_owned()),
        ("resolv.conf", "# a box has no network\n".to_owned()),
    ];
    for (name, content) in files {
        let target = in_root("/etc").join(name);
        let Ok(about) = fs::symlink_metadata(&target) else { continue };
        if about.is_file() {
            let own = hidden.join(name);
            make_file(&own, &content)?;
            bind_read_only(&own, &target)?;
        }
    }
    Ok(())
}

fn place_devices(nodes: &[(&str, OwnedFd)], shared_memory_bytes: u64) -> Result<(), SetupFailure> {
    let device_dir = in_root("/dev");
    make_dir(&device_dir)?;
    mount_tmpfs(&device_dir, 1 << 20, 0o755)?;
    for (name, opened) in nodes {
        let place = device_dir.join(name);
        make_file(&place, "")?;
        bind(&descriptor_path(opened), &place)?;
    }
    let links = [("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1")];
    for (name, target) in links.into_iter().chain([("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")]) {
        symlink(target, device_dir.join(name)).map_err(SetupFailure::io("devices", name))?;
    }
    make_dir(device_dir.join("pts"))?;
    make_dir(device_dir.join("shm"))?;
    mount_tmpfs(device_dir.join("shm"), shared_memory_bytes, 0o1777)
}

fn in_root(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    Path::new(ROOT).join(path.strip_prefix("/").unwrap_or(path))
}

fn open_path(path: &Path) -> Result<OwnedFd, SetupFailure> {
    openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| SetupFailure::io("paths", path.display().to_string())(errno.into()))
}

fn descriptor_path(opened: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

/// Makes a directory with its parents, readable by the box's user.
fn make_dir(path: impl AsRef<Path>) -> Result<(), SetupFailure> {
    let path = path.as_ref();
    fs::create_dir_all(path).map_err(SetupFailure::io("tree", path.display().to_string()))
}

fn make_file(path: &Path, content: &str) -> Result<(), SetupFailure> {
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    let failed = || SetupFailure::io("tree", path.display().to_string());
    fs::write(path, content).map_err(failed())?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(failed())
}

fn mount_tmpfs(target: impl AsRef<Path>, bytes: u64, mode: u32) -> Result<(), SetupFailure> {
    let target = target.as_ref();
    // Each inode costs the kernel about a kilobyte that `size` does not count.
    let inodes = bytes / 4096 + 4096;
    let options = CString::new(format!("size={bytes},nr_inodes={inodes},mode={mode:o}")).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", target, "tmpfs", flags, Some(options.as_c_str()))
        .map_err(|errno| SetupFailure::io("tmpfs", target.display().to_string())(errno.into()))
}

fn bind(from: &Path, to: &Path) -> Result<(), SetupFailure> {
    mount_bind(from, to)
        .map_err(|errno| SetupFailure::io("bind", format!("{} → {}", from.display(), to.display()))(errno.into()))
}

/// Binds a tree with all that is mounted below it, every mount of it read-only.
fn bind_read_only(from: &Path, to: &Path) -> Result<(), SetupFailure> {
    let failed =
        |errno: rustix::io::Errno| SetupFailure::io("bind", format!("{} read-only", to.display()))(errno.into());
    mount_bind_recursive(from, to).map_err(failed)?;
    let table = fs::read_to_string("/proc/self/mountinfo").map_err(SetupFailure::io("bind", "/proc/self/mountinfo"))?;
    for (point, options) in table.lines().filter_map(mount_of_line).filter(|(point, _)| point.starts_with(to)) {
        let mut flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        // What another user namespace locked must be said again, or the kernel refuses.
        if options.split(',').any(|option| option == "noexec") {
            flags |= MountFlags::NOEXEC;
        }
        mount_remount(&point, flags, c"").map_err(failed)?;
    }
    Ok(())
}

/// Mount point and options of a line of mountinfo, where blanks in paths are written in octal.
fn mount_of_line(line: &str) -> Option<(PathBuf, String)> {
    let mut fields = line.split(' ').skip(4);
    let (point, options) = (fields.next()?, fields.next()?);
    let point = point.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    Some((PathBuf::from(point), options.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read_with_its_escapes() {
        let line = r"36 35 98:0 /mnt1 /mnt\0402 rw,noexec,relatime master:1 - ext3 /dev/root rw,errors=continue";
        let (point, options) = mount_of_line(line).unwrap();
        assert_eq!((point, options.as_str()), (PathBuf::from("/mnt 2"), "rw,noexec,relatime"));
    }
}
