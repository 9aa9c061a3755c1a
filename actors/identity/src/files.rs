//! Reading and writing PEM files: never over an existing one, keys for their owner alone.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::IdentityError;

/// No certificate or key is larger; a file that is was named by mistake.
const MAX_FILE_BYTES: u64 = 1 << 20;
const ANYBODY: u32 = 0o644;
const OWNER_ONLY: u32 = 0o600;

/// Reads a text file of a plausible size.
pub(crate) fn read(path: &Path) -> Result<String, IdentityError> {
    let read = || {
        let file = File::open(path)?;
        if file.metadata()?.len() > MAX_FILE_BYTES {
            return Ok(None);
        }
        std::io::read_to_string(file).map(Some)
    };
    let text = read().map_err(|error| IdentityError::file(path, &error))?;
    text.ok_or_else(|| IdentityError::unusable(path, format!("it is larger than {MAX_FILE_BYTES} bytes")))
}

/// The certificates of a PEM file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let text = read(path)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = parsed.map_err(|error| IdentityError::unusable(path, error))?;
    if found.is_empty() { Err(IdentityError::unusable(path, "it holds no certificate")) } else { Ok(found) }
}

/// The private key of a PEM file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, IdentityError> {
    let text = read(path)?;
    // the parser's own words never hold the key
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| IdentityError::unusable(path, error))
}

/// Writes a certificate into a new file.
pub(crate) fn write_certificate(path: &Path, text: &str) -> Result<(), IdentityError> {
    write_new(path, text, ANYBODY)
}

/// Writes a key into a new file that only its owner may read.
pub(crate) fn write_key(path: &Path, text: &str) -> Result<(), IdentityError> {
    write_new(path, text, OWNER_ONLY)
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), IdentityError> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| IdentityError::file(path, &error))
}

/// Refuses when one of these files exists.
pub(crate) fn check_new(paths: &[&Path]) -> Result<(), IdentityError> {
    match paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        Some(path) => Err(IdentityError::Exists { path: (*path).to_owned() }),
        None => Ok(()),
    }
}
