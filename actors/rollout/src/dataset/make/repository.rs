//! Real git repositories: a project's history on `main`, and for each bug a branch with two commits.
//!
//! Authors and dates are fixed, so the same content gives the same hashes on every machine. A repository is finished by
//! packing it, since every sandbox begins with a copy of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::content::Project;
use super::error::MakeError;
use super::process::git;

/// A git repository in the making.
#[derive(Debug)]
pub(super) struct Repository {
    folder: PathBuf,
    commits: u32,
}

impl Repository {
    /// Begins an empty repository.
    pub(super) fn create(folder: &Path) -> Result<Self, MakeError> {
        std::fs::create_dir_all(folder).map_err(|error| MakeError::file(folder, error))?;
        git(folder, &["init", "-q", "--template=", "-b", "main"], 0)?;
        git(folder, &["config", "gc.auto", "0"], 0)?;
        Ok(Self { folder: folder.to_owned(), commits: 0 })
    }

    /// A project with its history on `main`.
    pub(super) fn of_project(project: &Project, folder: &Path) -> Result<Self, MakeError> {
        let mut repository = Self::create(folder)?;
        for (path, text) in project.first_commit {
            repository.write(path, text)?;
        }
        repository.commit(&format!("Begin {}", project.name))?;
        for (path, text) in project.tests {
            repository.write(path, text)?;
            repository.commit(&format!("Add {path}"))?;
        }
        Ok(repository)
    }

    /// The work tree.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file of the work tree.
    pub(super) fn write(&self, path: &str, text: &str) -> Result<(), MakeError> {
        let path = self.folder.join(path);
        let parent = path.parent().unwrap_or(&self.folder);
        std::fs::create_dir_all(parent).map_err(|error| MakeError::file(parent, error))?;
        std::fs::write(&path, text).map_err(|error| MakeError::file(&path, error))
    }

    /// Commits everything.
    pub(super) fn commit(&mut self, message: &str) -> Result<(), MakeError> {
        self.git(&["add", "--force", "-A", "."])?;
        self.git(&["commit", "-q", "--no-gpg-sign", "-m", message])?;
        self.commits += 1;
        Ok(())
    }

    /// Runs git in the work tree.
    pub(super) fn git(&self, words: &[&str]) -> Result<String, MakeError> {
        git(&self.folder, words, self.commits)
    }

    /// The hash that a name stands for.
    pub(super) fn hash(&self, name: &str) -> Result<String, MakeError> {
        Ok(self.git(&["rev-parse", name])?.trim().to_owned())
    }

    /// The work tree's difference from the last commit.
    pub(super) fn difference(&self) -> Result<String, MakeError> {
        self.git(&["diff", "--no-color", "--no-ext-diff", "--no-renames", "HEAD"])
    }

    /// From `main`, commits the work tree as the bug on a new branch, then the removal of files with hidden tests; goes
    /// back to `main`.
    pub(super) fn branch(&mut self, name: &str, hidden: &BTreeSet<String>) -> Result<(), MakeError> {
        let after_main = self.commits;
        self.git(&["checkout", "-q", "-b", name])?;
        self.commit("Bug Patch")?;
        for file in hidden {
            self.git(&["rm", "-q", "--", file])?;
        }
        self.commit("Remove F2P Tests")?;
        self.git(&["checkout", "-q", "-f", "main"])?;
        self.commits = after_main;
        Ok(())
    }

    /// Packs everything into few files and leaves a clean `main`.
    pub(super) fn finish(self) -> Result<PathBuf, MakeError> {
        self.git(&["checkout", "-q", "-f", "main"])?;
        self.git(&["clean", "-q", "-f", "-d", "-x"])?;
        self.git(&["-c", "pack.threads=1", "repack", "-a", "-d", "-q"])?;
        self.git(&["pack-refs", "--all"])?;
        let logs = self.folder.join(".git/logs");
        match std::fs::remove_dir_all(&logs) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(MakeError::file(&logs, error)),
            _ => Ok(self.folder),
        }
    }
}
