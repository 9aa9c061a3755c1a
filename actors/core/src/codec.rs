//! The wire format, in one place so that it can be changed in one place.
//!
//! A frame is one format byte, the eight-byte hash of the schema's name and version, then bincode with fixed-width
//! little-endian integers. Decoding always has a limit: without one, a hostile ten-byte input makes bincode ask for
//! petabytes and the process dies. Numeric columns should be byte slabs (`serde_bytes`), which is many times faster.

use serde::Serialize;
use serde::de::DeserializeOwned;

const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 9;

/// The largest message that travels between actors; anything larger goes by the data plane.
pub const MESSAGE_LIMIT_BYTES: usize = 1 << 20;

/// The largest record read from a file of our own.
pub const FILE_LIMIT_BYTES: usize = 1 << 30;

/// Bytes could not be turned into a value, or a value into bytes (GR0004).
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not a frame of this format.
    #[error("not a {schema} frame: {reason}")]
    NotAFrame {
        /// The schema that was expected.
        schema: &'static str,
        /// What is wrong with the bytes.
        reason: String,
    },
    /// The value is larger than the limit.
    #[error("a {schema} of {bytes} bytes is over the limit of {limit_bytes}")]
    TooLarge {
        /// The schema of the value.
        schema: &'static str,
        /// The encoded size.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
}

/// A type with a name and version on the wire, for example `"trajectory/1"`. Change the version when the layout changes.
pub trait Schema {
    /// The name and version.
    const SCHEMA: &'static str;
}

fn schema_hash(schema: &str) -> [u8; 8] {
    crate::Seed::new(0).child(schema).value().to_le_bytes()
}

/// Encodes a value as a frame of at most [`FILE_LIMIT_BYTES`].
pub fn encode<T: Serialize + Schema>(value: &T) -> Result<Vec<u8>, CodecError> {
    encode_limited::<FILE_LIMIT_BYTES, T>(value)
}

/// Decodes a frame of at most [`FILE_LIMIT_BYTES`].
pub fn decode<T: DeserializeOwned + Schema>(bytes: &[u8]) -> Result<T, CodecError> {
    decode_limited::<FILE_LIMIT_BYTES, T>(bytes)
}

/// Encodes a value as a frame of at most `LIMIT` bytes.
pub fn encode_limited<const LIMIT: usize, T: Serialize + Schema>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut frame = Vec::with_capacity(256);
    frame.push(FORMAT);
    frame.extend_from_slice(&schema_hash(T::SCHEMA));
    let config = bincode::config::legacy();
    bincode::serde::encode_into_std_write(value, &mut frame, config)
        .map_err(|error| CodecError::NotAFrame { schema: T::SCHEMA, reason: error.to_string() })?;
    if frame.len() > LIMIT {
        return Err(CodecError::TooLarge { schema: T::SCHEMA, bytes: frame.len(), limit_bytes: LIMIT });
    }
    Ok(frame)
}

/// Decodes a frame of at most `LIMIT` bytes; trailing bytes are an error.
pub fn decode_limited<const LIMIT: usize, T: DeserializeOwned + Schema>(bytes: &[u8]) -> Result<T, CodecError> {
    let not_a_frame = |reason: String| CodecError::NotAFrame { schema: T::SCHEMA, reason };
    if bytes.len() > LIMIT {
        return Err(CodecError::TooLarge { schema: T::SCHEMA, bytes: bytes.len(), limit_bytes: LIMIT });
    }
    let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(not_a_frame(format!("{} bytes are fewer than a header", bytes.len())));
    };
    if header[0] != FORMAT {
        return Err(not_a_frame(format!("format byte {} instead of {FORMAT}", header[0])));
    }
    if header[1..] != schema_hash(T::SCHEMA) {
        return Err(not_a_frame("the schema's hash is another one".to_owned()));
    }
    let config = bincode::config::legacy().with_limit::<LIMIT>();
    let (value, read) =
        bincode::serde::decode_from_slice(body, config).map_err(|error| not_a_frame(error.to_string()))?;
    if read != body.len() {
        return Err(not_a_frame(format!("{} bytes follow the value", body.len() - read)));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Note {
        name: String,
        numbers: Vec<u32>,
    }
    impl Schema for Note {
        const SCHEMA: &'static str = "note/1";
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct OtherNote {
        name: String,
        numbers: Vec<u32>,
    }
    impl Schema for OtherNote {
        const SCHEMA: &'static str = "note/2";
    }

    #[test]
    fn a_frame_reads_back_and_every_damage_is_an_error() {
        let note = Note { name: "n".into(), numbers: vec![1, 2, 3] };
        let frame = encode(&note).unwrap();
        assert_eq!(decode::<Note>(&frame).unwrap(), note);
        assert!(decode::<OtherNote>(&frame).is_err(), "another version must not decode");
        for cut in 0..frame.len() {
            assert!(decode::<Note>(&frame[..cut]).is_err(), "cut at {cut}");
        }
        let mut longer = frame.clone();
        longer.push(0);
        assert!(decode::<Note>(&longer).is_err(), "a trailing byte");
        let mut hostile = frame[..HEADER_BYTES].to_vec();
        hostile.extend_from_slice(&u64::MAX.to_le_bytes());
        assert!(decode::<Note>(&hostile).is_err(), "a length of 2^64 must not be allocated");
        assert!(matches!(encode_limited::<16, _>(&note), Err(CodecError::TooLarge { .. })));
    }
}
