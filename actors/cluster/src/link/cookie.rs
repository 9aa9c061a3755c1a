//! The cluster's secret, read from a file and never shown.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hmac::{Hmac, Mac};
use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::Sha256;

use crate::ClusterError;

/// The shortest secret, in bytes: 256 bits as 32 random characters have at the very most.
const SHORTEST_BYTES: usize = 32;
const LONGEST_BYTES: usize = 4096;
/// With white space around it.
const LONGEST_FILE_BYTES: u64 = 1 << 16;

/// What all nodes of a cluster know and nobody else.
pub(crate) struct Cookie(Vec<u8>);

impl fmt::Debug for Cookie {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Cookie")
    }
}

impl Cookie {
    /// Reads the secret; white space around it does not count.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, ClusterError> {
        let Some(path) = path else { return Ok(Self(Vec::new())) };
        let unusable = |reason: String| ClusterError::Cookie { path: path.to_owned(), reason };
        // looked at before it is opened: to open a pipe is to wait for who writes into it
        let metadata = std::fs::metadata(path).map_err(|error| unusable(error.to_string()))?;
        if !metadata.is_file() {
            return Err(unusable("it is no regular file".to_owned()));
        }
        if metadata.len() > LONGEST_FILE_BYTES {
            return Err(unusable(format!("it has {} bytes: it is no secret", metadata.len())));
        }
        let text = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
        let secret = text.trim_ascii();
        if !(SHORTEST_BYTES..=LONGEST_BYTES).contains(&secret.len()) {
            let have = secret.len();
            return Err(unusable(format!("it holds {have} characters, not {SHORTEST_BYTES} to {LONGEST_BYTES}")));
        }
        let mode = metadata.permissions().mode();
        if mode & 0o007 != 0 {
            return Err(unusable(format!("everybody may use it (mode {:o}): chmod 600", mode & 0o777)));
        }
        Ok(Self(secret.to_vec()))
    }

    /// A given secret, for tests.
    #[cfg(test)]
    pub(crate) fn of_secret(secret: &[u8]) -> Self {
        Self(secret.to_vec())
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.0
    }

    /// A secret made from this one for another purpose, as hexadecimal digits.
    pub(crate) fn derived(&self, purpose: &str) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(purpose.as_bytes());
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Bytes nobody can guess: nonces, and numbers of lines and connections. The one use of randomness that must not follow
/// from a seed.
pub(crate) fn unguessable<const BYTES: usize>() -> std::io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    OsRng.try_fill_bytes(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

/// A number nobody can guess; never zero.
pub(crate) fn unguessable_number() -> std::io::Result<u64> {
    unguessable().map(|bytes| u64::from_le_bytes(bytes).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_long_enough_and_not_for_everybody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cookie");
        let load = || Cookie::load(Some(&path)).map_err(|error| error.to_string());
        assert!(load().unwrap_err().contains("cookie"), "a missing file");
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        write("short\n", 0o600);
        assert!(load().unwrap_err().contains("5 characters"));
        write(&format!("{}\n", "x".repeat(32)), 0o644);
        assert!(load().unwrap_err().contains("chmod 600"));
        write(&format!(" {}\n", "x".repeat(32)), 0o440);
        assert_eq!(load().unwrap().secret(), "x".repeat(32).as_bytes());
        assert_eq!(format!("{:?}", load().unwrap()), "Cookie");
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for unfit in [&pipe, std::path::Path::new("/dev/zero"), folder.path()] {
            let refused = Cookie::load(Some(unfit)).map_err(|error| error.to_string()).unwrap_err();
            assert!(refused.contains("no regular file"), "{refused}");
        }
        assert_ne!(load().unwrap().derived("a"), load().unwrap().derived("b"));
    }
}
