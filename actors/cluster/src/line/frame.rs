//! What travels on a line: frames, several of them in one batch.
//!
//! A batch is one message of the actor channel: the line's number, how far the sender has received, then frames. A numbered
//! frame is delivered once and in order; number zero marks a signal, which is worth nothing when it is late. All numbers
//! are little-endian. Invariant: reading never allocates more than the bytes at hand can fill, and never panics.

use std::fmt;

use greenroom_dataplane::ObjectId;

use crate::bulk::plane::Place;

/// The first byte of a batch.
const FORMAT: u8 = 1;
/// Number and length of a frame.
pub(crate) const FRAME_HEADER_BYTES: usize = 8 + 4;
/// The number of a frame that is a signal.
pub(crate) const SIGNAL: u64 = 0;

/// Bytes that are no batch, or no frame (GR1217).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what came is no {what}")]
pub(crate) struct Malformed {
    pub what: &'static str,
}

/// Whom a message is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum To<'a> {
    /// A target that the receiver exported as this number.
    Export(u64),
    /// A service of the receiver.
    Service(&'a str),
}

/// Bytes that travel beside the control channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkHandle {
    /// Unique among the sender's blobs on this line.
    pub id: u64,
    /// How many bytes.
    pub bytes: u64,
    /// xxh3 of the bytes.
    pub checksum: u64,
}

/// Packed bytes, or where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    Inline(&'a [u8]),
    /// They come over the bulk connection.
    Bulk(BulkHandle),
    /// They lie at the sender's data plane.
    Placed(BulkHandle, Place<'a>),
}

/// What a payload refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    /// The questions in it, whose answers the sender awaits.
    pub questions: Vec<u64>,
    /// The targets in it, exported by the sender.
    pub exports: Vec<u64>,
}

/// How a question ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    Answered(Packed, Payload<'a>),
    Dropped,
    /// Nobody could be asked; why.
    Undeliverable(&'a str),
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Message {
        to: To<'a>,
        packed: Packed,
        payload: Payload<'a>,
    },
    Answer {
        question: u64,
        outcome: Outcome<'a>,
    },
    /// The asker of this question has gone away.
    Abandon {
        question: u64,
    },
    /// Nobody holds the address of this target any more.
    Release {
        export: u64,
    },
    /// All that the sender offers.
    Services {
        names: Vec<&'a str>,
    },
    /// The bytes of this blob have arrived whole.
    BulkReceived {
        id: u64,
    },
    /// The sender ends the line of its own will.
    Leaving,
    /// Signal: the sender lives.
    Heartbeat {
        sent_us: u64,
        date_ms: u64,
        echo_us: u64,
        held_us: u64,
    },
    /// Signal: members that the sender knows to be up, as `name, incarnation, address`.
    Gossip {
        members: Vec<(&'a str, u64, &'a str)>,
    },
}

/// Writes frames.
struct Writer(Vec<u8>);

impl Writer {
    fn number(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    fn numbers(mut self, numbers: &[u64]) -> Self {
        self.0.extend_from_slice(&(numbers.len() as u32).to_le_bytes());
        numbers.iter().fold(self, |writer, number| writer.number(*number))
    }

    fn packed(self, packed: &Packed) -> Self {
        self.numbers(&packed.questions).numbers(&packed.exports)
    }

    fn handle(self, handle: &BulkHandle) -> Self {
        self.number(handle.id).number(handle.bytes).number(handle.checksum)
    }

    /// Comes last in a frame: inline bytes end where the frame ends.
    fn payload(mut self, payload: &Payload<'_>) -> Self {
        match payload {
            Payload::Inline(bytes) => {
                self.0.push(0);
                self.0.extend_from_slice(bytes);
                self
            }
            Payload::Bulk(handle) => {
                self.0.push(1);
                self.handle(handle)
            }
            Payload::Placed(handle, place) => {
                self.0.push(2);
                let mut writer = self.handle(handle);
                writer.0.extend_from_slice(&place.object.0);
                writer.text(place.address)
            }
        }
    }
}

impl Frame<'_> {
    /// The frame as bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let writer = |kind: u8, room: usize| {
            let mut bytes = Vec::with_capacity(room + 1);
            bytes.push(kind);
            Writer(bytes)
        };
        let room = |payload: &Payload<'_>| match payload {
            Payload::Inline(bytes) => bytes.len() + 64,
            Payload::Bulk(_) => 64,
            Payload::Placed(_, place) => 128 + place.address.len(),
        };
        let writer = match self {
            Self::Message { to: To::Export(number), packed, payload } => {
                writer(1, room(payload)).number(*number).packed(packed).payload(payload)
            }
            Self::Message { to: To::Service(name), packed, payload } => {
                writer(2, room(payload) + name.len()).text(name).packed(packed).payload(payload)
            }
            Self::Answer { question, outcome: Outcome::Answered(packed, payload) } => {
                writer(3, room(payload)).number(*question).packed(packed).payload(payload)
            }
            Self::Answer { question, outcome: Outcome::Dropped } => writer(4, 8).number(*question),
            Self::Answer { question, outcome: Outcome::Undeliverable(reason) } => {
                writer(5, 12 + reason.len()).number(*question).text(reason)
            }
            Self::Abandon { question } => writer(6, 8).number(*question),
            Self::Release { export } => writer(7, 8).number(*export),
            Self::Services { names } => {
                let writer = writer(8, 64).numbers(&[names.len() as u64]);
                names.iter().fold(writer, |writer, name| writer.text(name))
            }
            Self::BulkReceived { id } => writer(9, 8).number(*id),
            Self::Leaving => writer(10, 0),
            Self::Heartbeat { sent_us, date_ms, echo_us, held_us } => {
                writer(11, 32).number(*sent_us).number(*date_ms).number(*echo_us).number(*held_us)
            }
            Self::Gossip { members } => {
                let writer = writer(12, 64).numbers(&[members.len() as u64]);
                members.iter().fold(writer, |writer, (name, incarnation, address)| {
                    writer.text(name).number(*incarnation).text(address)
                })
            }
        };
        writer.0
    }

    /// Reads a frame; all bytes must belong to it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Frame<'_>, Malformed> {
        let mut reader = Reader(bytes);
        let frame = reader.frame().ok_or(Malformed { what: "frame" })?;
        if reader.0.is_empty() { Ok(frame) } else { Err(Malformed { what: "frame" }) }
    }
}

/// Reads frames; `None` when the bytes are none.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn length(&mut self) -> Option<usize> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?) as usize)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.length()?;
        std::str::from_utf8(self.take(length)?).ok()
    }

    fn numbers(&mut self) -> Option<Vec<u64>> {
        let length = self.length()?;
        // asked for only as far as the bytes reach
        let bytes = self.take(length.checked_mul(8)?)?;
        bytes.chunks_exact(8).map(|chunk| chunk.try_into().ok().map(u64::from_le_bytes)).collect()
    }

    /// The number of things that follow, of which each takes at least four bytes.
    fn count(&mut self) -> Option<usize> {
        let [count] = *self.numbers()?.first_chunk::<1>()?;
        usize::try_from(count).ok().filter(|count| *count <= self.0.len() / 4)
    }

    fn packed(&mut self) -> Option<Packed> {
        Some(Packed { questions: self.numbers()?, exports: self.numbers()? })
    }

    fn payload(&mut self) -> Option<Payload<'a>> {
        match self.byte()? {
            0 => Some(Payload::Inline(std::mem::take(&mut self.0))),
            1 => Some(Payload::Bulk(self.handle()?)),
            2 => {
                let handle = self.handle()?;
                let object = ObjectId(*self.take(32)?.first_chunk()?);
                Some(Payload::Placed(handle, Place { object, address: self.text()? }))
            }
            _ => None,
        }
    }

    fn handle(&mut self) -> Option<BulkHandle> {
        Some(BulkHandle { id: self.number()?, bytes: self.number()?, checksum: self.number()? })
    }

    fn frame(&mut self) -> Option<Frame<'a>> {
        Some(match self.byte()? {
            1 => {
                let to = To::Export(self.number()?);
                Frame::Message { to, packed: self.packed()?, payload: self.payload()? }
            }
            2 => {
                let to = To::Service(self.text()?);
                Frame::Message { to, packed: self.packed()?, payload: self.payload()? }
            }
            3 => {
                let question = self.number()?;
                Frame::Answer { question, outcome: Outcome::Answered(self.packed()?, self.payload()?) }
            }
            4 => Frame::Answer { question: self.number()?, outcome: Outcome::Dropped },
            5 => Frame::Answer { question: self.number()?, outcome: Outcome::Undeliverable(self.text()?) },
            6 => Frame::Abandon { question: self.number()? },
            7 => Frame::Release { export: self.number()? },
            8 => {
                let count = self.count()?;
                Frame::Services { names: (0..count).map(|_| self.text()).collect::<Option<_>>()? }
            }
            9 => Frame::BulkReceived { id: self.number()? },
            10 => Frame::Leaving,
            11 => Frame::Heartbeat {
                sent_us: self.number()?,
                date_ms: self.number()?,
                echo_us: self.number()?,
                held_us: self.number()?,
            },
            12 => {
                let count = self.count()?;
                let member = |reader: &mut Self| Some((reader.text()?, reader.number()?, reader.text()?));
                Frame::Gossip { members: (0..count).map(|_| member(self)).collect::<Option<_>>()? }
            }
            _ => return None,
        })
    }
}

/// A batch being put together.
#[derive(Debug)]
pub(crate) struct BatchWriter {
    bytes: Vec<u8>,
}

impl BatchWriter {
    /// A batch of a line whose sender has received frames up to `received`.
    pub(crate) fn new(line: u64, received: u64) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.push(FORMAT);
        bytes.extend_from_slice(&line.to_le_bytes());
        bytes.extend_from_slice(&received.to_le_bytes());
        Self { bytes }
    }

    pub(crate) fn push(&mut self, number: u64, frame: &[u8]) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self.bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(frame);
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// A batch that arrived.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub line: u64,
    pub received: u64,
    rest: &'a [u8],
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Batch(line {}, {} bytes)", self.line, self.rest.len())
    }
}

impl<'a> Batch<'a> {
    /// Reads the header; the frames are read one by one.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let mut parse = || {
            let known = reader.byte()? == FORMAT;
            let (line, received) = (reader.number()?, reader.number()?);
            known.then_some((line, received))
        };
        let (line, received) = parse().ok_or(Malformed { what: "batch" })?;
        Ok(Self { line, received, rest: reader.0 })
    }

    /// The next frame's number and bytes.
    pub(crate) fn next(&mut self) -> Option<Result<(u64, &'a [u8]), Malformed>> {
        if self.rest.is_empty() {
            return None;
        }
        let mut reader = Reader(self.rest);
        let mut read = || {
            let (number, length) = (reader.number()?, reader.length()?);
            Some((number, reader.take(length)?))
        };
        let read = read().ok_or(Malformed { what: "batch" });
        self.rest = if read.is_ok() { reader.0 } else { &[] };
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::Seed;
    use rand::RngCore;

    use super::*;

    fn frames() -> Vec<Frame<'static>> {
        let packed = || Packed { questions: vec![1, u64::MAX], exports: vec![7] };
        let handle = BulkHandle { id: 3, bytes: 1 << 22, checksum: 9 };
        let answer = |outcome| Frame::Answer { question: 5, outcome };
        vec![
            Frame::Message { to: To::Export(9), packed: packed(), payload: Payload::Inline(b"abc") },
            Frame::Message { to: To::Service("pool"), packed: Packed::default(), payload: Payload::Inline(b"") },
            Frame::Message { to: To::Service("pool"), packed: packed(), payload: Payload::Bulk(handle) },
            answer(Outcome::Answered(packed(), Payload::Inline(b"x"))),
            answer(Outcome::Answered(Packed::default(), Payload::Bulk(handle))),
            answer(Outcome::Dropped),
            answer(Outcome::Undeliverable("no such service")),
            Frame::Abandon { question: 1 },
            Frame::Release { export: 2 },
            Frame::Services { names: vec![] },
            Frame::Services { names: vec!["a", "bé"] },
            Frame::BulkReceived { id: 4 },
            Frame::Leaving,
            Frame::Heartbeat { sent_us: 1, date_ms: 2, echo_us: 3, held_us: 4 },
            Frame::Gossip { members: vec![("a", 1, "h:1"), ("b", 2, "")] },
        ]
    }

    #[test]
    fn every_frame_reads_back_and_every_cut_or_addition_is_an_error_or_another_frame() {
        for frame in frames() {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes).as_ref(), Ok(&frame));
            for cut in 0..bytes.len() {
                assert_ne!(Frame::decode(&bytes[..cut]).as_ref(), Ok(&frame), "{frame:?} cut at {cut}");
            }
        }
        assert_eq!(Frame::decode(&[]), Err(Malformed { what: "frame" }));
    }

    #[test]
    fn a_batch_reads_back_frame_by_frame() {
        let mut writer = BatchWriter::new(77, 5);
        let encoded: Vec<Vec<u8>> = frames().iter().map(Frame::encode).collect();
        for (number, frame) in encoded.iter().enumerate() {
            writer.push(number as u64, frame);
        }
        let bytes = writer.finish();
        let mut batch = Batch::parse(&bytes).unwrap();
        assert_eq!((batch.line, batch.received), (77, 5));
        for (number, frame) in encoded.iter().enumerate() {
            assert_eq!(batch.next(), Some(Ok((number as u64, frame.as_slice()))));
        }
        assert_eq!(batch.next(), None);
        let mut cut = Batch::parse(&bytes[..bytes.len() - 1]).unwrap();
        let read = std::iter::from_fn(|| cut.next()).last();
        assert_eq!(read, Some(Err(Malformed { what: "batch" })));
    }

    /// Garbage is an error, never a panic nor a large allocation: half of it grows from real frames, so that the reader is
    /// led deep.
    fn garbage(cases: usize, seed: u64) {
        let mut random = Seed::new(seed).random();
        let real: Vec<Vec<u8>> = frames().iter().map(Frame::encode).collect();
        for case in 0..cases {
            let mut bytes = if case % 2 == 0 {
                vec![0; (random.next_u32() % 200) as usize]
            } else {
                real[random.next_u32() as usize % real.len()].clone()
            };
            if case % 2 == 0 {
                random.fill_bytes(&mut bytes);
                if let Some(first) = bytes.first_mut() {
                    *first %= 14;
                }
            } else {
                for _ in 0..=random.next_u32() % 4 {
                    let at = random.next_u32() as usize % bytes.len();
                    bytes[at] = random.next_u32() as u8;
                }
            }
            if let Ok(frame) = Frame::decode(&bytes) {
                assert_eq!(Frame::decode(&frame.encode()), Ok(frame), "seed {seed} case {case}");
            }
            if let Ok(mut batch) = Batch::parse(&bytes) {
                while let Some(Ok(_)) = batch.next() {}
            }
        }
    }

    #[test]
    fn a_million_garbled_frames_do_no_harm() {
        garbage(1_000_000, 2);
    }
}
