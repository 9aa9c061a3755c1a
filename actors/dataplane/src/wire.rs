//! The frames of the chunk protocol, and nothing else: no sockets, no clocks.
//!
//! One side asks, the other answers, in order; several questions may be under way. A frame is eight bytes of header (magic,
//! kind, two zero bytes, length of the body in little endian) and the body. Questions have fixed lengths, so that a server
//! reads a stranger's words into 48 bytes on its stack. Answers are bounded by what was asked for. Whatever else comes is a
//! [`WireError`], and ends the connection.

use crate::ObjectId;

/// No body is longer: the largest manifest, and room above the largest chunk.
pub const MAX_FRAME_BYTES: usize = 8 << 20;
/// The header's length.
pub(crate) const HEADER_BYTES: usize = 8;
/// The longest question, header and body.
pub(crate) const MAX_REQUEST_BYTES: usize = HEADER_BYTES + CHUNK_BODY_BYTES;
const MANIFEST_BODY_BYTES: usize = 32 + 4;
const CHUNK_BODY_BYTES: usize = 32 + 4 + 4;
const MAGIC: u8 = 0xb7;

const GET_MANIFEST: u8 = 1;
const GET_CHUNK: u8 = 2;
const MANIFEST: u8 = 129;
const CHUNK: u8 = 130;
const UNKNOWN: u8 = 131;
const LATE: u8 = 132;

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The manifest of an object; waited for as long as `wait_ms`.
    Manifest {
        /// The object.
        object: ObjectId,
        /// How long the answer may take when it is not there yet, milliseconds.
        wait_ms: u32,
    },
    /// One chunk of an object; waited for as long as `wait_ms`.
    Chunk {
        /// The object.
        object: ObjectId,
        /// Which of its chunks.
        index: u32,
        /// How long the answer may take when it is not there yet, milliseconds.
        wait_ms: u32,
    },
}

/// Bytes that are no frame of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header is none.
    #[error("it does not begin like a frame")]
    Header,
    /// The kind is none that may come here.
    #[error("a frame of kind {0} does not belong here")]
    Kind(u8),
    /// The length is not the one of its kind, or above the limit.
    #[error("a frame of kind {kind} cannot be {bytes} bytes long")]
    Length {
        /// The frame's kind.
        kind: u8,
        /// Its length.
        bytes: u32,
    },
    /// The object has no such chunk.
    #[error("the object has no chunk {0}")]
    Index(u32),
}

impl Request {
    /// The question as a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(MAX_REQUEST_BYTES);
        match self {
            Self::Manifest { object, wait_ms } => {
                frame.extend_from_slice(&header(GET_MANIFEST, MANIFEST_BODY_BYTES));
                frame.extend_from_slice(&object.0);
                frame.extend_from_slice(&wait_ms.to_le_bytes());
            }
            Self::Chunk { object, index, wait_ms } => {
                frame.extend_from_slice(&header(GET_CHUNK, CHUNK_BODY_BYTES));
                frame.extend_from_slice(&object.0);
                frame.extend_from_slice(&index.to_le_bytes());
                frame.extend_from_slice(&wait_ms.to_le_bytes());
            }
        }
        frame
    }

    /// The length of the body that follows this header of a question, bytes.
    pub fn body_bytes(header: &[u8; HEADER_BYTES]) -> Result<usize, WireError> {
        let (kind, bytes) = split(header)?;
        let expected = match kind {
            GET_MANIFEST => MANIFEST_BODY_BYTES,
            GET_CHUNK => CHUNK_BODY_BYTES,
            other => return Err(WireError::Kind(other)),
        };
        if bytes as usize == expected { Ok(expected) } else { Err(WireError::Length { kind, bytes }) }
    }

    /// The question of this header and body.
    pub fn decode(header: &[u8; HEADER_BYTES], body: &[u8]) -> Result<Self, WireError> {
        let expected = Self::body_bytes(header)?;
        let (kind, bytes) = split(header)?;
        let wrong = || WireError::Length { kind, bytes };
        if body.len() != expected {
            return Err(wrong());
        }
        let (object, numbers) = body.split_first_chunk::<32>().ok_or_else(wrong)?;
        let object = ObjectId(*object);
        let numbers = numbers.as_chunks::<4>().0;
        Ok(match numbers {
            [wait_ms] => Self::Manifest { object, wait_ms: u32::from_le_bytes(*wait_ms) },
            [index, wait_ms] => {
                Self::Chunk { object, index: u32::from_le_bytes(*index), wait_ms: u32::from_le_bytes(*wait_ms) }
            }
            _ => return Err(wrong()),
        })
    }
}

/// What an answer's header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A manifest of so many bytes follows.
    Manifest(usize),
    /// A chunk of so many bytes follows.
    Chunk(usize),
    /// There is no such object, or it did not appear in time.
    Unknown,
    /// There is such an object, but the chunk did not arrive in time.
    Late,
}

impl Answer {
    pub(crate) fn header(self) -> [u8; HEADER_BYTES] {
        match self {
            Self::Manifest(bytes) => header(MANIFEST, bytes),
            Self::Chunk(bytes) => header(CHUNK, bytes),
            Self::Unknown => header(UNKNOWN, 0),
            Self::Late => header(LATE, 0),
        }
    }

    /// Reads a header; a chunk must have `chunk_bytes`, or must not come where that is `None`.
    pub(crate) fn decode(header: &[u8; HEADER_BYTES], chunk_bytes: Option<usize>) -> Result<Self, WireError> {
        let (kind, bytes) = split(header)?;
        let wrong = WireError::Length { kind, bytes };
        match (kind, chunk_bytes) {
            (MANIFEST, None) if bytes as usize <= MAX_FRAME_BYTES => Ok(Self::Manifest(bytes as usize)),
            (CHUNK, Some(expected)) if bytes as usize == expected => Ok(Self::Chunk(expected)),
            (UNKNOWN, _) if bytes == 0 => Ok(Self::Unknown),
            (LATE, Some(_)) if bytes == 0 => Ok(Self::Late),
            (MANIFEST, None) | (CHUNK | LATE, Some(_)) | (UNKNOWN, _) => Err(wrong),
            _ => Err(WireError::Kind(kind)),
        }
    }
}

fn header(kind: u8, bytes: usize) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = (bytes as u32).to_le_bytes();
    [MAGIC, kind, 0, 0, a, b, c, d]
}

fn split(header: &[u8; HEADER_BYTES]) -> Result<(u8, u32), WireError> {
    match *header {
        [MAGIC, kind, 0, 0, a, b, c, d] => Ok((kind, u32::from_le_bytes([a, b, c, d]))),
        _ => Err(WireError::Header),
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::Seed;
    use rand::Rng;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let object = ObjectId([7; 32]);
        let requests = [Request::Manifest { object, wait_ms: 5 }, Request::Chunk { object, index: 9, wait_ms: 0 }];
        for request in requests {
            let frame = request.encode();
            assert!(frame.len() <= MAX_REQUEST_BYTES);
            let (header, body) = frame.split_first_chunk().unwrap();
            assert_eq!(Request::body_bytes(header), Ok(body.len()));
            assert_eq!(Request::decode(header, body), Ok(request));
            assert!(Request::decode(header, &body[1..]).is_err());
            assert!(Answer::decode(header, None).is_err() && Answer::decode(header, Some(40)).is_err());
        }
        for (answer, expected) in [(Answer::Unknown, None), (Answer::Unknown, Some(7)), (Answer::Late, Some(7))] {
            assert_eq!(Answer::decode(&answer.header(), expected), Ok(answer));
            assert!(Request::body_bytes(&answer.header()).is_err());
        }
        assert!(Answer::decode(&Answer::Late.header(), None).is_err());
        assert_eq!(Answer::decode(&Answer::Chunk(7).header(), Some(7)), Ok(Answer::Chunk(7)));
        assert!(Answer::decode(&Answer::Chunk(8).header(), Some(7)).is_err());
        assert!(Answer::decode(&Answer::Chunk(7).header(), None).is_err());
        assert!(Answer::decode(&Answer::Manifest(MAX_FRAME_BYTES).header(), None).is_ok());
        assert!(Answer::decode(&Answer::Manifest(MAX_FRAME_BYTES + 1).header(), None).is_err());
        assert!(Answer::decode(&Answer::Manifest(9).header(), Some(9)).is_err());
    }

    #[test]
    fn random_headers_never_announce_more_than_the_limit() {
        let mut random = Seed::new(3).random();
        for _ in 0..100_000 {
            let mut header: [u8; HEADER_BYTES] = random.random();
            if random.random_ratio(3, 4) {
                (header[0], header[2], header[3]) = (MAGIC, 0, 0);
            }
            assert!(Request::body_bytes(&header).unwrap_or(0) <= CHUNK_BODY_BYTES);
            match Answer::decode(&header, None) {
                Ok(Answer::Manifest(bytes)) => assert!(bytes <= MAX_FRAME_BYTES),
                Ok(answer) => assert_eq!(answer, Answer::Unknown),
                Err(_) => {}
            }
        }
    }
}
