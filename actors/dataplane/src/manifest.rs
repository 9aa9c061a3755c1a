//! What an object is made of: its length, and the hash of each of its chunks.
//!
//! A manifest has exactly one form as bytes, and the object's id is the hash of those bytes. Reading one checks every
//! field against every other; a manifest that was read describes an object that can exist.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::DataplaneError;

/// The smallest chunk size, bytes.
pub const MIN_CHUNK_BYTES: u32 = 1 << 10;
/// The largest chunk size, bytes: what one frame carries.
pub const MAX_CHUNK_BYTES: u32 = 4 << 20;
/// The chunk size of ordinary objects: small enough for a relay to pass it on early, large enough to hash fast.
const USUAL_CHUNK_BYTES: u32 = 256 << 10;
/// Chunks grow so that there are at most this many, as far as they may grow.
const USUAL_CHUNKS: u64 = 1 << 16;
const MAX_NAME_BYTES: usize = 200;
const MAGIC: &[u8; 4] = b"GRM1";
/// Magic, length of the name, object's length, chunk size, number of chunks.
const FIXED_BYTES: usize = 4 + 2 + 8 + 4 + 4;
const HASH_BYTES: usize = 32;

macro_rules! hash_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; HASH_BYTES]);

        impl $name {
            /// The id of this content.
            pub fn of(content: &[u8]) -> Self {
                Self(*blake3::hash(content).as_bytes())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = DataplaneError;

            fn from_str(text: &str) -> Result<Self, DataplaneError> {
                let parsed = blake3::Hash::from_hex(text).map_err(|error| DataplaneError::Damaged {
                    what: format!("the id {text:?}"),
                    reason: error.to_string(),
                })?;
                Ok(Self(*parsed.as_bytes()))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hash_id!(
    /// The id of a chunk: the blake3 of its bytes.
    ChunkId
);
hash_id!(
    /// The id of an object: the blake3 of its manifest.
    ObjectId
);

/// An object's table of contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// What it is called by people; at most 200 bytes, no control characters. Part of the id, never a path.
    pub name: String,
    /// The object's length.
    pub bytes: u64,
    /// The length of each chunk but the last.
    pub chunk_bytes: u32,
    /// The chunks in their order.
    pub chunks: Vec<ChunkId>,
}

/// The chunk size for an object of this length: 256 KiB, or as much more as keeps the list of chunks short.
pub fn chunk_bytes_for(bytes: u64) -> u32 {
    let mut chunk_bytes = USUAL_CHUNK_BYTES;
    while chunk_bytes < MAX_CHUNK_BYTES && bytes.div_ceil(u64::from(chunk_bytes)) > USUAL_CHUNKS {
        chunk_bytes *= 2;
    }
    chunk_bytes
}

impl Manifest {
    /// The length of a chunk, bytes; 0 where there is no such chunk.
    pub fn chunk_len(&self, index: u32) -> usize {
        let left = self.bytes.saturating_sub(self.offset(index));
        left.min(u64::from(self.chunk_bytes)) as usize
    }

    /// Where a chunk begins in the object, bytes.
    pub fn offset(&self, index: u32) -> u64 {
        u64::from(index) * u64::from(self.chunk_bytes)
    }

    /// The number of chunks.
    pub fn count(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// The manifest as bytes.
    ///
    /// Errors: [`DataplaneError::Damaged`] when the fields contradict each other.
    pub fn encode(&self) -> Result<Vec<u8>, DataplaneError> {
        self.check()?;
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.name.len() + self.chunks.len() * HASH_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.chunk_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.count().to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        self.chunks.iter().for_each(|chunk| bytes.extend_from_slice(&chunk.0));
        Ok(bytes)
    }

    /// Reads the manifest of the object `id`, and checks that it is that one's.
    pub fn decode(bytes: &[u8], id: ObjectId) -> Result<Self, DataplaneError> {
        if ObjectId::of(bytes) != id {
            return Err(damaged("its hash is not the object's id"));
        }
        let short = || damaged("it is too short");
        let (fixed, rest) = bytes.split_at_checked(FIXED_BYTES).ok_or_else(short)?;
        if &fixed[..4] != MAGIC {
            return Err(damaged("it does not begin like one"));
        }
        // the slices have the arrays' lengths
        let number = |from: usize| u32::from_le_bytes([fixed[from], fixed[from + 1], fixed[from + 2], fixed[from + 3]]);
        let name_len = usize::from(u16::from_le_bytes([fixed[4], fixed[5]]));
        let object_bytes = u64::from(number(6)) | u64::from(number(10)) << 32;
        let (chunk_bytes, count) = (number(14), number(18) as usize);
        let (name, hashes) = rest.split_at_checked(name_len).ok_or_else(short)?;
        if hashes.len() as u64 != count as u64 * HASH_BYTES as u64 {
            return Err(damaged("its length is not that of its chunks"));
        }
        let name = std::str::from_utf8(name).map_err(|_| damaged("its name is no text"))?.to_owned();
        let chunks = hashes.as_chunks::<HASH_BYTES>().0.iter().map(|hash| ChunkId(*hash)).collect();
        let manifest = Self { name, bytes: object_bytes, chunk_bytes, chunks };
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), DataplaneError> {
        if self.name.len() > MAX_NAME_BYTES || self.name.chars().any(char::is_control) {
            return Err(damaged("its name is too long or has control characters"));
        }
        if !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&self.chunk_bytes) {
            return Err(damaged("its chunk size is out of bounds"));
        }
        if self.bytes.div_ceil(u64::from(self.chunk_bytes)) != self.chunks.len() as u64 {
            return Err(damaged("its number of chunks is not that of its length"));
        }
        let encoded_bytes = FIXED_BYTES + self.name.len() + self.chunks.len() * HASH_BYTES;
        if encoded_bytes > crate::MAX_FRAME_BYTES {
            return Err(damaged("it is larger than a frame: the object needs larger chunks"));
        }
        Ok(())
    }
}

fn damaged(reason: &str) -> DataplaneError {
    DataplaneError::Damaged { what: "a manifest".to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use greenroom_core::Seed;
    use rand::Rng;

    use super::*;

    fn manifest(bytes: u64, chunk_bytes: u32) -> Manifest {
        let chunks = (0..bytes.div_ceil(u64::from(chunk_bytes))).map(|index| ChunkId::of(&index.to_le_bytes()));
        Manifest { name: "weights v7".to_owned(), bytes, chunk_bytes, chunks: chunks.collect() }
    }

    #[test]
    fn a_manifest_survives_being_written_and_its_id_is_of_all_of_it() {
        for (bytes, chunk_bytes) in [(0, 1024), (1, 1024), (1024, 1024), (1025, 1024), (9_999_999, 4096)] {
            let manifest = manifest(bytes, chunk_bytes);
            let encoded = manifest.encode().unwrap();
            let id = ObjectId::of(&encoded);
            assert_eq!(Manifest::decode(&encoded, id).unwrap(), manifest);
            let lengths: u64 = (0..manifest.count()).map(|index| manifest.chunk_len(index) as u64).sum();
            assert_eq!(lengths, bytes);
            assert_eq!(manifest.chunk_len(manifest.count()), 0);
            assert_eq!(id.to_string().parse::<ObjectId>().unwrap(), id);
            let other = Manifest { name: "weights v8".to_owned(), ..manifest };
            assert_ne!(ObjectId::of(&other.encode().unwrap()), id);
        }
    }

    #[test]
    fn a_changed_manifest_is_refused_even_where_its_hash_fits() {
        let seed = Seed::new(11);
        let encoded = manifest(10_000, 1024).encode().unwrap();
        let mut random = seed.random();
        for case in 0..20_000 {
            let mut changed = encoded.clone();
            let at = random.random_range(0..changed.len());
            match case % 3 {
                0 => changed[at] ^= 1 << random.random_range(0..8),
                1 => changed.truncate(at),
                _ => changed[..22].fill_with(|| random.random()),
            }
            if changed == encoded {
                continue;
            }
            assert!(Manifest::decode(&changed, ObjectId::of(&encoded)).is_err());
            // with a hash that fits, it is either refused or a manifest that can exist
            if let Ok(read) = Manifest::decode(&changed, ObjectId::of(&changed)) {
                assert_eq!(read.encode().unwrap(), changed, "case {case} of seed {}", seed.value());
            }
        }
    }

    #[test]
    fn large_objects_have_larger_chunks_and_every_manifest_fits_a_frame() {
        for (bytes, expected) in [(0, 256 << 10), (16 << 30, 256 << 10), (30_000_000_000, 512 << 10)] {
            assert_eq!(chunk_bytes_for(bytes), expected);
        }
        assert_eq!(chunk_bytes_for(1 << 42), MAX_CHUNK_BYTES);
        assert!((256_u64 << 30).div_ceil(u64::from(MAX_CHUNK_BYTES)) as usize * HASH_BYTES < crate::MAX_FRAME_BYTES);
    }
}
