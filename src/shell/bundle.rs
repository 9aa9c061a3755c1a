//! A bundle: one tar file for whoever is to find out what went wrong. The file is written anew, never over another one.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::ShellError;

/// Writes these files; gives how many bytes the bundle has.
pub(super) fn write(path: &Path, files: &[(String, String)], now_ms: u64) -> Result<u64, ShellError> {
    let failed = |error: std::io::Error| ShellError::Refused {
        reason: format!("{} cannot be written: {error}", path.display()),
    };
    // it tells much of a run and its machines, though no secrets
    let file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
        let is_there = error.kind() == std::io::ErrorKind::AlreadyExists;
        let reason = format!("{} is there already, and nothing is overwritten: give another name", path.display());
        if is_there { ShellError::Refused { reason } } else { failed(error) }
    })?;
    let mut archive = tar::Builder::new(file);
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now_ms / 1_000);
        archive.append_data(&mut header, format!("greenroom-bundle/{name}"), text.as_bytes()).map_err(failed)?;
    }
    let mut file = archive.into_inner().map_err(failed)?;
    file.flush().map_err(failed)?;
    Ok(file.metadata().map_err(failed)?.len())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_bundle_holds_its_files_and_overwrites_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bundle.tar");
        let files = [("status.json".to_owned(), "{}".to_owned()), ("logs/a.log".to_owned(), "line\n".to_owned())];
        assert!(write(&path, &files, 1_000).unwrap() > 1_024);
        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            found.push((entry.path().unwrap().display().to_string(), text));
        }
        assert_eq!(found[0], ("greenroom-bundle/status.json".to_owned(), "{}".to_owned()));
        assert_eq!(found[1].1, "line\n");
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let said = write(&path, &files, 1_000).unwrap_err().to_string();
        assert!(said.contains("is there already") && said.contains("another name"), "{said}");
    }
}
