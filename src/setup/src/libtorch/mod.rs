//! A libtorch to build and run with: one that the user names, one that is installed, or one fetched into a cache.
//!
//! The version is the one that the crate `tch` of the workspace was made for. A folder is used only if its headers say so; what
//! the user names and does not fit is an error, what is merely found and does not fit is passed over.

mod cache;
mod fetch;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::progress::say;
use crate::python::Python;

/// The version of PyTorch that tch 0.24 was made for.
pub(crate) const VERSION: &str = "2.11.0";

/// A libtorch that fits: a folder with `include` and `lib`.
pub(crate) struct Libtorch {
    root: PathBuf,
}

impl Libtorch {
    /// The folder, for `LIBTORCH`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the shared libraries.
    pub(crate) fn lib(&self) -> PathBuf {
        self.root.join("lib")
    }

    /// Takes a folder if it holds what is needed.
    ///
    /// # Errors
    /// Why it does not fit.
    fn of(root: &Path) -> anyhow::Result<Self> {
        for needed in
            ["lib/libtorch_cpu.so", "lib/libc10.so", "lib/libtorch.so", "include/torch/csrc/api/include/torch/torch.h"]
        {
            if !root.join(needed).is_file() {
                bail!("{} has no {needed}", root.display());
            }
        }
        let found = version(root).with_context(|| format!("{} does not say its version", root.display()))?;
        if series(&found) != series(VERSION) {
            bail!("{} is PyTorch {found}; needed is {VERSION}", root.display());
        }
        Ok(Self { root: root.to_owned() })
    }
}

/// Finds a libtorch or fetches one.
///
/// # Errors
/// `LIBTORCH` is set to something that does not fit; nothing fits and nothing can be fetched.
pub(crate) fn provide() -> anyhow::Result<Libtorch> {
    if let Some(named) = std::env::var_os("LIBTORCH").filter(|named| !named.is_empty()) {
        let root = std::path::absolute(&named)?;
        let libtorch =
            Libtorch::of(&root).context("LIBTORCH is set, but does not fit: set it to another or unset it")?;
        say(&format!("libtorch: {}, as LIBTORCH says", root.display()));
        return Ok(libtorch);
    }
    if let Some(libtorch) = installed() {
        say(&format!("libtorch: the installed PyTorch in {}", libtorch.root.display()));
        return Ok(libtorch);
    }
    let root = cache::folder()?.join(format!("libtorch-{VERSION}"));
    cache::provide(&root).with_context(|| {
        format!("libtorch {VERSION} cannot be provided; an unpacked one can be named by LIBTORCH, or install torch=={VERSION}")
    })?;
    say(&format!("libtorch: {}", root.display()));
    Libtorch::of(&root)
}

/// The folder for what is fetched, shared by all clones of this user.
pub(crate) fn cache_folder() -> anyhow::Result<PathBuf> {
    cache::folder()
}

/// The PyTorch of the machine's Python, if it fits.
fn installed() -> Option<Libtorch> {
    let found = Python::find()?.output(include_str!("../python/find_torch.py"))?;
    if found.is_empty() {
        return None;
    }
    match Libtorch::of(Path::new(&found)) {
        Ok(libtorch) => Some(libtorch),
        Err(error) => {
            say(&format!("the installed PyTorch is passed over: {error:#}"));
            None
        }
    }
}

/// What the headers say: releases before 2.10 keep it in the second place.
fn version(root: &Path) -> Option<String> {
    let headers = ["include/torch/headeronly/version.h", "include/torch/csrc/api/include/torch/version.h"];
    headers.iter().find_map(|header| version_in(&std::fs::read_to_string(root.join(header)).ok()?))
}

fn version_in(header: &str) -> Option<String> {
    let number = |name: &str| {
        let line =
            header.lines().find_map(|line| line.trim().strip_prefix("#define TORCH_VERSION_")?.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    Some(format!("{}.{}.{}", number("MAJOR ")?, number("MINOR ")?, number("PATCH ")?))
}

/// Major and minor: patch releases keep the interface.
fn series(version: &str) -> Option<&str> {
    version.rsplit_once('.').map(|(series, _)| series)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "#pragma once\n/// x\n#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 1\n";

    /// A folder that looks like a libtorch of the version that the header gives.
    fn folder(header: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("lib/libtorch_cpu.so", ""),
            ("lib/libc10.so", ""),
            ("lib/libtorch.so", ""),
            ("include/torch/csrc/api/include/torch/torch.h", ""),
            ("include/torch/headeronly/version.h", header),
        ];
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn only_a_whole_libtorch_of_the_right_series_fits() {
        let why = |folder: &Path| Libtorch::of(folder).err().map(|error| error.to_string()).unwrap_or_default();
        let right = folder(HEADER);
        assert_eq!(why(right.path()), "");
        let other = folder(&HEADER.replace("11", "13"));
        assert!(why(other.path()).contains("is PyTorch 2.13.1; needed is 2.11.0"), "{}", why(other.path()));
        let silent = folder("");
        assert!(why(silent.path()).contains("does not say its version"));
        std::fs::remove_file(right.path().join("lib/libc10.so")).unwrap();
        assert!(why(right.path()).contains("has no lib/libc10.so"));
    }
}
