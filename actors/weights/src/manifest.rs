//! The manifest of a version: what it consists of, and the checksum of every part.

use greenroom_messages::WeightVersion;
use greenroom_messages::weights::WeightMode;
use serde::{Deserialize, Serialize};

use crate::WeightsError;
use crate::codec::Encoding;
use crate::files::{root_hash, sha256};

/// One tensor of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// Its dtype as safetensors writes it.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Where its bytes begin in its file.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
    /// The checksum of its new bytes (xxh3, 128 bits).
    pub hash: String,
    /// How it is written in the payload.
    pub encoding: Encoding,
    /// Where its encoded bytes begin in the payload.
    pub payload_offset: u64,
    /// How many encoded bytes.
    pub payload_bytes: u64,
}

/// One safetensors file of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: usize,
    /// Its header's place in the payload: offset and size.
    pub header: (u64, u64),
    /// Its tensors.
    pub tensors: Vec<TensorEntry>,
}

/// One other file of a version: small, always written whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherEntry {
    /// Its name.
    pub name: String,
    /// Its place in the payload: offset and size.
    pub place: (u64, u64),
}

/// The manifest; its presence is the version's commit marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The layout's number.
    pub format: u32,
    /// The version.
    pub version: WeightVersion,
    /// How it is written.
    pub mode: WeightMode,
    /// What a delta is against.
    pub base: Option<WeightVersion>,
    /// The payload's size.
    pub payload_bytes: u64,
    /// The payload's checksum (SHA-256).
    pub payload_sha256: String,
    /// The safetensors files.
    pub files: Vec<FileEntry>,
    /// The other files.
    pub others: Vec<OtherEntry>,
    /// The checksum of all tensors.
    pub root_hash: String,
}

/// The layout that this crate writes and reads.
pub(crate) const FORMAT: u32 = 1;

impl Manifest {
    /// The manifest as bytes: a line with the checksum of the rest, then JSON.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, WeightsError> {
        let json = serde_json::to_vec(self).map_err(|error| self.damaged(error.to_string()))?;
        Ok([sha256(&json).as_bytes(), b"\n", &json].concat())
    }

    /// Reads a manifest and checks it against itself.
    pub(crate) fn from_bytes(bytes: &[u8], version: &WeightVersion) -> Result<Self, WeightsError> {
        let damaged = |reason: &str| WeightsError::Damaged {
            what: format!("the manifest of {version}"),
            reason: reason.to_owned(),
        };
        let split = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| damaged("it has one line only"))?;
        let (checksum, json) = (&bytes[..split], &bytes[split + 1..]);
        if checksum != sha256(json).as_bytes() {
            return Err(damaged("its checksum is another one"));
        }
        let manifest: Self = serde_json::from_slice(json).map_err(|error| damaged(&error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(damaged(&format!(
                "its format is {}, this version of greenroom reads {FORMAT}",
                manifest.format
            )));
        }
        if manifest.version != *version || manifest.root_hash != manifest.computed_root_hash() {
            return Err(damaged("it belongs to another version"));
        }
        Ok(manifest)
    }

    /// The checksum of all tensors, from their checksums.
    pub(crate) fn computed_root_hash(&self) -> String {
        let tensors = self.files.iter().flat_map(|file| &file.tensors);
        root_hash(
            tensors.map(|tensor| {
                (tensor.name.as_str(), tensor.dtype.as_str(), tensor.shape.as_slice(), tensor.hash.as_str())
            }),
        )
    }

    fn damaged(&self, reason: String) -> WeightsError {
        WeightsError::Damaged { what: format!("the manifest of {}", self.version), reason }
    }
}

/// A dtype's width in bytes; sub-byte and unknown types are handled byte by byte.
pub(crate) fn width_of(dtype: &str) -> usize {
    match dtype {
        "BF16" | "F16" | "I16" | "U16" => 2,
        "F32" | "I32" | "U32" => 4,
        "F64" | "I64" | "U64" => 8,
        _ => 1,
    }
}
