//! Files from outside: they are looked at before they are read, so that a pipe, a device or a file without end is an error
//! and not a wait.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::StartError;

/// How large a file may be, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Limit(u64);

impl Limit {
    /// What people write: configurations, templates, agents. 16 MiB.
    pub(crate) const SMALL: Self = Self(16 << 20);
    /// Tokenizers and the like. 512 MiB.
    pub(crate) const MEDIUM: Self = Self(512 << 20);
    /// Data sets, which are held in memory. 8 GiB.
    pub(crate) const LARGE: Self = Self(8 << 30);
    /// Weights, which are mapped.
    pub(crate) const NONE: Self = Self(u64::MAX);
}

/// Looks whether a path leads to a file that may be read; `setting` names who asks for it.
///
/// # Errors
/// [`StartError::File`] (GR0907).
pub(crate) fn check(setting: &str, path: &Path, limit: Limit) -> Result<Metadata, StartError> {
    let failed = |reason: String| StartError::file(setting, path, reason);
    let metadata = fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !metadata.is_file() {
        return Err(failed(format!("it is {}, and no regular file", kind(&metadata))));
    }
    if metadata.len() > limit.0 {
        return Err(failed(format!("it has {} bytes, and may have at most {}", metadata.len(), limit.0)));
    }
    Ok(metadata)
}

/// Reads a file of text; see [`check`].
///
/// # Errors
/// [`StartError::File`] (GR0907), also for one that is not UTF-8 or goes on beyond the limit.
pub(crate) fn read_text(setting: &str, path: &Path, limit: Limit) -> Result<String, StartError> {
    check(setting, path, limit)?;
    let failed = |reason: String| StartError::file(setting, path, reason);
    let mut text = String::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    // a file of the kernel's own may be longer than it says
    file.take(limit.0.saturating_add(1)).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > limit.0 {
        return Err(failed(format!("it has more than {} bytes", limit.0)));
    }
    Ok(text)
}

fn kind(metadata: &Metadata) -> &'static str {
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_fifo() {
        "a pipe"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            fs::write(dir.path().join(name), content).unwrap();
            dir.path().join(name)
        };
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let socket = dir.path().join("socket");
        let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let sparse = dir.path().join("sparse");
        File::create(&sparse).unwrap().set_len(Limit::SMALL.0 + 1).unwrap();
        let missing = dir.path().join("missing");
        let cases = [
            (dir.path(), "a directory"),
            (&pipe, "a pipe"),
            (&socket, "a socket"),
            (Path::new("/dev/zero"), "a device"),
            (&sparse, "at most 16777216"),
            (&missing, "No such file"),
            (&file("binary", b"\xff\xfe"), "UTF-8"),
        ];
        for (path, words) in cases {
            let error = read_text("agent.file", path, Limit::SMALL).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("agent.file ") && text.contains(words) && error.code() == "GR0907", "{text}");
        }
        assert_eq!(read_text("x", &file("text", b"hello"), Limit::SMALL).unwrap(), "hello");
    }
}
