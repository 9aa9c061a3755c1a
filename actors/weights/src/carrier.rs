//! Where published versions lie: a directory that publisher and receivers share.
//!
//! A version is a directory with `payload` and `manifest`. The manifest is renamed into place after the payload is
//! durable; a version without a manifest does not exist for anybody and is swept by the next publish.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use greenroom_messages::{RunId, WeightVersion};

use crate::files::{rename_synced, sha256, write_synced};
use crate::{Link, Manifest, WeightsError};

/// Where receivers find versions. All methods may block.
pub trait VersionSource: Send + Sync {
    /// The manifest of a committed version.
    fn manifest(&self, version: &WeightVersion) -> Result<Manifest, WeightsError>;
    /// The payload of a committed version, checked against its manifest.
    fn payload(&self, manifest: &Manifest) -> Result<Vec<u8>, WeightsError>;
    /// The committed versions of a run and what they are made of.
    fn links(&self, run: &RunId) -> Result<BTreeMap<WeightVersion, Link>, WeightsError>;
}

/// What carries versions from the publisher to receivers. All methods may block.
pub trait Carrier: VersionSource {
    /// Stores a version, payload first, manifest last. Storing a committed version again replaces it by the same.
    fn commit(&self, manifest: &Manifest, payload: &[u8]) -> Result<(), WeightsError>;
    /// Forgets a version.
    fn remove(&self, version: &WeightVersion) -> Result<(), WeightsError>;
}

/// Versions in a shared directory.
#[derive(Clone, Debug)]
pub struct DirectoryCarrier {
    dir: PathBuf,
}

impl DirectoryCarrier {
    /// A carrier in this directory, which is made if need be.
    pub fn new(dir: &Path) -> Result<Self, WeightsError> {
        fs::create_dir_all(dir).map_err(|error| WeightsError::file(dir, &error))?;
        Ok(Self { dir: dir.to_owned() })
    }

    fn place(&self, version: &WeightVersion) -> PathBuf {
        self.dir.join(format!("v{:06}", version.number))
    }

    /// The file with a version's payload.
    pub(crate) fn payload_file(&self, version: &WeightVersion) -> PathBuf {
        self.place(version).join("payload")
    }

    /// The manifest of a committed version, as it lies there.
    pub(crate) fn manifest_bytes(&self, version: &WeightVersion) -> Result<Vec<u8>, WeightsError> {
        let path = self.place(version).join("manifest");
        match fs::read(&path) {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(WeightsError::Unpublished { version: version.clone() })
            }
            Err(error) => Err(WeightsError::file(&path, &error)),
        }
    }
}

/// A payload that is what its manifest promises.
pub(crate) fn checked_payload(manifest: &Manifest, payload: Vec<u8>, place: &str) -> Result<Vec<u8>, WeightsError> {
    if payload.len() as u64 == manifest.payload_bytes && sha256(&payload) == manifest.payload_sha256 {
        return Ok(payload);
    }
    let reason = "its size or checksum is another one than its manifest promises".to_owned();
    Err(WeightsError::Damaged { what: format!("the payload of {} ({place})", manifest.version), reason })
}

impl VersionSource for DirectoryCarrier {
    fn manifest(&self, version: &WeightVersion) -> Result<Manifest, WeightsError> {
        Manifest::from_bytes(&self.manifest_bytes(version)?, version)
    }

    fn payload(&self, manifest: &Manifest) -> Result<Vec<u8>, WeightsError> {
        let path = self.payload_file(&manifest.version);
        let payload = fs::read(&path).map_err(|error| WeightsError::file(&path, &error))?;
        checked_payload(manifest, payload, &path.display().to_string())
    }

    fn links(&self, run: &RunId) -> Result<BTreeMap<WeightVersion, Link>, WeightsError> {
        let entries = fs::read_dir(&self.dir).map_err(|error| WeightsError::file(&self.dir, &error))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let numbers = names.filter_map(|name| name.strip_prefix('v')?.parse::<u64>().ok());
        let mut links = BTreeMap::new();
        for number in numbers {
            let version = WeightVersion { run: run.clone(), number };
            // a version that cannot be read is as good as none: the chain goes around it or asks for a full one
            if let Ok(manifest) = self.manifest(&version) {
                links.insert(version, Link { base: manifest.base, bytes: manifest.payload_bytes });
            }
        }
        Ok(links)
    }
}

impl Carrier for DirectoryCarrier {
    fn commit(&self, manifest: &Manifest, payload: &[u8]) -> Result<(), WeightsError> {
        let place = self.place(&manifest.version);
        let beside = place.with_extension("part");
        if beside.exists() {
            fs::remove_dir_all(&beside).map_err(|error| WeightsError::file(&beside, &error))?;
        }
        fs::create_dir_all(&beside).map_err(|error| WeightsError::file(&beside, &error))?;
        write_synced(&beside.join("payload"), payload)?;
        write_synced(&beside.join("manifest"), &manifest.to_bytes()?)?;
        rename_synced(&beside, &place)
    }

    fn remove(&self, version: &WeightVersion) -> Result<(), WeightsError> {
        let place = self.place(version);
        fs::remove_dir_all(&place).map_err(|error| WeightsError::file(&place, &error))
    }
}
