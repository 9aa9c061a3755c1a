//! The cache: `libtorch-VERSION` beside the wheels it comes from.
//!
//! The folder appears whole or not at all (made aside, then renamed), under a lock, so that several set-ups may run at once. It
//! keeps a list of its files with sizes, and checksums of the libraries: a folder that does not match is made anew.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{VERSION, fetch};
use crate::progress::{Progress, say};
use crate::python::{Python, ScriptEnd};

/// The list of files. It lies in the folder itself.
const LIST: &str = "files.json";

/// The folder for everything that is fetched.
///
/// # Errors
/// No home is known.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("GREENROOM_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME").filter(|path| path.is_absolute())?.join("greenroom")))
        .or_else(|| Some(set("HOME")?.join(".cache/greenroom")))
        .context("no folder for a cache is known: set GREENROOM_CACHE")?;
    Ok(std::path::absolute(folder)?)
}

/// Sees to it that `root` is a whole libtorch.
///
/// # Errors
/// It is not there and cannot be made.
pub(crate) fn provide(root: &Path) -> anyhow::Result<()> {
    let parent = root.parent().context("the cache has no folder")?;
    std::fs::create_dir_all(parent)
        .with_context(|| format!("{} cannot be made; GREENROOM_CACHE names another folder", parent.display()))?;
    let _lock = lock(&parent.join("libtorch.lock"))?;
    match flaw(root) {
        None => return Ok(()),
        Some(flaw) if root.exists() => say(&format!("{} is damaged ({flaw}) and will be made anew", root.display())),
        Some(_) => {}
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("only for Linux on x86-64 is it known what to fetch");
    }
    let python = Python::with_pip()?;
    let compiler = c_compiler()?;
    let downloads = parent.join("downloads");
    std::fs::create_dir_all(&downloads)?;
    let wheels = fetch::wheels(&python, &downloads)?;
    make(&python, &compiler, root, &wheels)?;
    // half a gigabyte that nobody needs any more
    std::fs::remove_dir_all(&downloads).ok();
    Ok(())
}

/// Waits until no other set-up works on the cache. The lock ends with the file, also when the process is killed.
fn lock(path: &Path) -> anyhow::Result<File> {
    let file = File::create(path).with_context(|| format!("{} cannot be written", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            say("another set-up is at work on the cache; waiting for it");
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("{} cannot be locked", path.display()));
        }
    }
    Ok(file)
}

/// A compiler for the stub. The build needs one anyway; it is better to hear of a missing one before the download.
fn c_compiler() -> anyhow::Result<String> {
    for (program, debian) in [("c++", "g++"), ("cc", "gcc")] {
        if !Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()) {
            bail!("there is no working {program} on PATH: install a C++ compiler (Debian: {debian})");
        }
    }
    Ok("cc".to_owned())
}

/// Unpacks the wheels aside and puts the folder in its place.
fn make(python: &Python, compiler: &str, root: &Path, wheels: &[PathBuf]) -> anyhow::Result<()> {
    let part = root.with_extension("part");
    remove(&part)?;
    std::fs::create_dir_all(part.join("lib")).with_context(|| format!("{} cannot be made", part.display()))?;
    let mut progress = Progress::new("unpacking libtorch", 0);
    let arguments = std::iter::once(&part).chain(wheels);
    match python.script(include_str!("../python/unpack.py"), arguments, &mut progress)? {
        ScriptEnd::Done => {}
        ScriptEnd::TryAgain(why) | ScriptEnd::Failed(why) => bail!("the wheels cannot be unpacked: {why}"),
    }
    drop(progress);
    stub(compiler, &part.join("lib/libtorch.so"))?;
    // torch-sys compares this with the version it was made for
    std::fs::write(part.join("build-version"), VERSION)?;
    let list = list(&part)?;
    std::fs::write(part.join(LIST), serde_json::to_string(&list)?)?;
    remove(root)?;
    std::fs::rename(&part, root).with_context(|| format!("{} cannot be put in place", root.display()))
}

/// The linker is asked for `-ltorch`, but the real one only pulls in the CUDA half: an empty library does.
fn stub(compiler: &str, path: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(compiler);
    command.args(["-shared", "-Wl,-soname,libtorch.so", "-x", "c", "/dev/null", "-o"]).arg(path);
    let output = command.output().context("the C compiler does not start")?;
    if !output.status.success() {
        bail!("the C compiler makes no shared library: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", folder.display()))
        }
        _ => Ok(()),
    }
}

/// All files of the folder: path → size, and the checksum of each library.
fn list(root: &Path) -> anyhow::Result<Value> {
    let mut files = serde_json::Map::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            let size = path.metadata()?.len();
            let sum = if name.starts_with("lib/") {
                Some(fetch::sha256(&path, "taking libtorch's checksums")?)
            } else {
                None
            };
            files.insert(name, json!({ "bytes": size, "sha256": sum }));
        }
    }
    Ok(Value::Object(files))
}

/// What is wrong with the folder. Sizes are compared always, checksums for libraries that were written to after the list.
fn flaw(root: &Path) -> Option<String> {
    let Ok(text) = std::fs::read_to_string(root.join(LIST)) else {
        return Some("it has no list of its files".to_owned());
    };
    let Ok(Value::Object(files)) = serde_json::from_str(&text) else { return Some("its list is no JSON".to_owned()) };
    if !files.contains_key("lib/libtorch_cpu.so") {
        return Some("its list is not whole".to_owned());
    }
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let listed = changed(&root.join(LIST));
    files.iter().find_map(|(name, file)| {
        let path = root.join(name);
        match path.metadata() {
            Err(_) => return Some(format!("{name} is missing")),
            Ok(data) if Some(data.len()) != file["bytes"].as_u64() => return Some(format!("{name} has another size")),
            Ok(_) => {}
        }
        let sum = file["sha256"].as_str()?;
        if changed(&path) > listed && fetch::sha256(&path, name).ok().as_deref() != Some(sum) {
            return Some(format!("{name} has another checksum"));
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_damaged_folder_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir(root.join("lib")).unwrap();
        let library = root.join("lib/libtorch_cpu.so");
        std::fs::write(&library, "library").unwrap();
        std::fs::write(root.join("header.h"), "header").unwrap();
        assert!(flaw(root).unwrap().contains("no list"));
        let list = list(root).unwrap();
        std::fs::write(root.join(LIST), list.to_string()).unwrap();
        assert_eq!(flaw(root), None);
        // as long as before, so that only the checksum can tell
        std::fs::write(&library, "1ibrary").unwrap();
        let later = root.join(LIST).metadata().unwrap().modified().unwrap() + Duration::from_secs(2);
        File::options().write(true).open(&library).unwrap().set_modified(later).unwrap();
        assert!(flaw(root).unwrap().contains("another checksum"));
        std::fs::write(&library, "library, longer").unwrap();
        assert!(flaw(root).unwrap().contains("another size"));
        std::fs::write(&library, "library").unwrap();
        std::fs::remove_file(root.join("header.h")).unwrap();
        assert!(flaw(root).unwrap().contains("header.h is missing"));
        std::fs::write(root.join(LIST), "{}").unwrap();
        assert!(flaw(root).unwrap().contains("not whole"));
    }
}
