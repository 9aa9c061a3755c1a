//! Credentials that do not leak: the configuration names where they are, and what is read is never shown.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::EngineConfigError;

/// Where a credential comes from: `{ env = "NAME" }` or `{ file = "/path" }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SecretSource {
    /// An environment variable.
    Env(String),
    /// A file; white space at its ends is ignored.
    File(PathBuf),
}

impl fmt::Display for SecretSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(formatter, "from the environment variable {name}"),
            Self::File(path) => write!(formatter, "from the file {}", path.display()),
        }
    }
}

impl SecretSource {
    /// Reads the credential (GR0410 when it is missing or empty).
    pub fn read(&self) -> Result<Secret, EngineConfigError> {
        let failed = |message: String| EngineConfigError::Credential { source_name: self.to_string(), message };
        let text = match self {
            Self::Env(name) => std::env::var(name).map_err(|error| failed(error.to_string()))?,
            Self::File(path) => std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?,
        };
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| (0x21..0x7f).contains(&byte)) {
            return Err(failed("it is empty or holds something else than visible ASCII".into()));
        }
        Ok(Secret(text.to_owned()))
    }
}

/// A credential. Its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text as a credential.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_from_a_file_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, " hush-hush\n").unwrap();
        let source = SecretSource::File(path.clone());
        let secret = source.read().unwrap();
        assert_eq!(secret.reveal(), "hush-hush");
        assert!(!format!("{secret:?} {source:?} {source}").contains("hush-hush"));
        std::fs::write(&path, "\n").unwrap();
        let error = source.read().unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        let missing = SecretSource::Env("GREENROOM_NO_SUCH_VARIABLE".into());
        assert!(missing.read().unwrap_err().to_string().contains("GREENROOM_NO_SUCH_VARIABLE"));
    }
}
