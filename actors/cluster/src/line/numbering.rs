//! The numbering of a line's frames, as a pure state machine: in order, at most once, nothing lost while both ends live.
//!
//! Each frame sent gets the next number and is kept until the other end has confirmed it. A new connection begins again
//! with the first frame that is not confirmed; what arrives a second time is recognised by its number. Only so much may be
//! on the way at once (the window), and only so much may wait at all (the bounds): more is refused, never piled up.

use std::collections::VecDeque;

use super::frame::{BatchWriter, FRAME_HEADER_BYTES};

/// How much may wait, and how much may be on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Frames that are not confirmed.
    pub frames: usize,
    /// Bytes that are not confirmed.
    pub bytes: usize,
    /// Bytes handed to the connection and not confirmed.
    pub window_bytes: usize,
}

/// More would wait than may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub frames: usize,
    pub bytes: usize,
}

/// What to do with a frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receipt {
    /// It is the next one.
    Deliver,
    /// It was delivered before.
    Duplicate,
    /// Frames before it are missing: the connection is at fault and must be made anew.
    Gap,
}

/// The other end confirms what was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeverSent;

/// Both directions of one end of a line.
#[derive(Debug)]
pub(crate) struct Numbering {
    bounds: Bounds,
    /// Frames that are not confirmed; the first has the number `confirmed + 1`.
    kept: VecDeque<Vec<u8>>,
    kept_bytes: usize,
    confirmed: u64,
    /// The last frame handed to the present connection.
    sent: u64,
    sent_bytes: usize,
    /// The last frame delivered here.
    received: u64,
    /// The last one that the other end was told of.
    told: u64,
    untold_bytes: usize,
}

impl Numbering {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            kept: VecDeque::new(),
            kept_bytes: 0,
            confirmed: 0,
            sent: 0,
            sent_bytes: 0,
            received: 0,
            told: 0,
            untold_bytes: 0,
        }
    }

    /// Whether a message of so many bytes may wait, too.
    pub(crate) fn room_for(&self, bytes: usize) -> Result<(), Full> {
        let full = self.kept.len() >= self.bounds.frames || self.kept_bytes + bytes > self.bounds.bytes;
        if full { Err(Full { frames: self.kept.len(), bytes: self.kept_bytes }) } else { Ok(()) }
    }

    /// Appends a frame whatever waits: for answers and the like, which are bounded by what was asked. Says whether even
    /// that has grown beyond four times the bounds, at which point the line is past saving.
    pub(crate) fn push(&mut self, frame: Vec<u8>) -> bool {
        self.kept_bytes += frame.len();
        self.kept.push_back(frame);
        self.kept.len() > 4 * self.bounds.frames || self.kept_bytes > 4 * self.bounds.bytes
    }

    /// A new connection stands: what is not confirmed is sent again.
    pub(crate) fn connected(&mut self) {
        self.sent = self.confirmed;
        self.sent_bytes = 0;
    }

    /// Puts frames that are to be sent into a batch, up to about `limit` bytes; whether there were any.
    pub(crate) fn fill(&mut self, batch: &mut BatchWriter, limit: usize) -> bool {
        let before = self.sent;
        while let Some(frame) = self.kept.get((self.sent - self.confirmed) as usize) {
            let fits = batch.len() + FRAME_HEADER_BYTES + frame.len() <= limit || self.sent == before;
            let in_window = self.sent_bytes + frame.len() <= self.bounds.window_bytes || self.sent_bytes == 0;
            if !fits || !in_window {
                break;
            }
            self.sent += 1;
            self.sent_bytes += frame.len();
            batch.push(self.sent, frame);
        }
        self.sent > before
    }

    /// The other end has received up to `number`. Gives whether the window was opened for frames that wait.
    pub(crate) fn confirm(&mut self, number: u64) -> Result<bool, NeverSent> {
        if number > self.confirmed + self.kept.len() as u64 {
            return Err(NeverSent);
        }
        let waited = self.sent < self.confirmed + self.kept.len() as u64;
        let mut freed = false;
        while self.confirmed < number {
            let Some(frame) = self.kept.pop_front() else { break };
            self.confirmed += 1;
            self.kept_bytes -= frame.len();
            if self.confirmed <= self.sent {
                self.sent_bytes = self.sent_bytes.saturating_sub(frame.len());
            }
            freed = true;
        }
        // a confirmation over an earlier connection may overtake what is sent again
        self.sent = self.sent.max(self.confirmed);
        Ok(freed && waited)
    }

    /// A frame with this number arrived.
    pub(crate) fn receive(&mut self, number: u64, bytes: usize) -> Receipt {
        if number <= self.received {
            return Receipt::Duplicate;
        }
        if number > self.received + 1 {
            return Receipt::Gap;
        }
        self.received = number;
        self.untold_bytes += bytes;
        Receipt::Deliver
    }

    /// The number up to which all was received, about to be told.
    pub(crate) fn tell(&mut self) -> u64 {
        self.told = self.received;
        self.untold_bytes = 0;
        self.received
    }

    /// Whether the other end should be told without delay, so that it may go on.
    pub(crate) fn owes_a_word(&self) -> bool {
        let frames = (self.received - self.told) as usize;
        frames >= (self.bounds.frames / 8).clamp(1, 256) || self.untold_bytes > self.bounds.window_bytes / 8
    }

    /// Whether all that was sent is confirmed.
    pub(crate) fn is_clear(&self) -> bool {
        self.kept.is_empty()
    }

    /// Whether one frame is not confirmed, and that one is not on the way yet.
    pub(crate) fn has_one_unsent_only(&self) -> bool {
        self.kept.len() == 1 && self.sent == self.confirmed
    }

    /// How many frames and bytes wait or are on the way.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.kept.len(), self.kept_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::Batch;
    use super::*;

    const BOUNDS: Bounds = Bounds { frames: 64, bytes: 1 << 16, window_bytes: 300 };

    /// What may happen to two ends and the connection between them.
    #[derive(Clone, Debug)]
    enum Step {
        /// One end has something to say, of this size.
        Say { left: bool, bytes: usize },
        /// One end hands batches to the connection.
        Pump { left: bool },
        /// The connection delivers its next batch to one end.
        Arrive { left: bool },
        /// The connection is cut: so many batches that are under way to each end still arrive, late; then it is made anew.
        Cut { late_left: usize, late_right: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (any::<bool>(), 0..200_usize).prop_map(|(left, bytes)| Step::Say { left, bytes }),
            3 => any::<bool>().prop_map(|left| Step::Pump { left }),
            4 => any::<bool>().prop_map(|left| Step::Arrive { left }),
            1 => (0..3_usize, 0..3_usize).prop_map(|(late_left, late_right)| Step::Cut { late_left, late_right }),
        ]
    }

    struct End {
        numbering: Numbering,
        said: Vec<Vec<u8>>,
        heard: Vec<Vec<u8>>,
        /// Batches under way to this end.
        coming: VecDeque<Vec<u8>>,
    }

    impl End {
        fn new() -> Self {
            let numbering = Numbering::new(BOUNDS);
            Self { numbering, said: Vec::new(), heard: Vec::new(), coming: VecDeque::new() }
        }

        fn pump(&mut self) -> Vec<Vec<u8>> {
            let mut batches = Vec::new();
            loop {
                let mut batch = BatchWriter::new(1, self.numbering.tell());
                let some = self.numbering.fill(&mut batch, 500);
                batches.push(batch.finish());
                if !some {
                    return batches;
                }
            }
        }

        fn arrive(&mut self, bytes: &[u8]) {
            let mut batch = Batch::parse(bytes).unwrap();
            self.numbering.confirm(batch.received).unwrap();
            while let Some(frame) = batch.next() {
                let (number, frame) = frame.unwrap();
                match self.numbering.receive(number, frame.len()) {
                    Receipt::Deliver => self.heard.push(frame.to_vec()),
                    Receipt::Duplicate => {}
                    Receipt::Gap => panic!("a gap at {number}"),
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Cuts at any point, with what was under way arriving late or never: each end hears what the other said, in
        /// order and once; and once the connection holds, all of it.
        #[test]
        fn everything_is_heard_once_and_in_order(steps in prop::collection::vec(step(), 1..200)) {
            let mut ends = [End::new(), End::new()];
            let mut next = 0_u64;
            let index = |left: bool| usize::from(!left);
            for step in steps {
                match step {
                    Step::Say { left, bytes } => {
                        let end = &mut ends[index(left)];
                        if end.numbering.room_for(bytes + 8).is_ok() {
                            next += 1;
                            let mut frame = next.to_le_bytes().to_vec();
                            frame.resize(bytes + 8, 0);
                            end.said.push(frame.clone());
                            prop_assert!(!end.numbering.push(frame));
                        }
                    }
                    Step::Pump { left } => {
                        let batches = ends[index(left)].pump();
                        ends[index(!left)].coming.extend(batches);
                    }
                    Step::Arrive { left } => {
                        if let Some(batch) = ends[index(left)].coming.pop_front() {
                            ends[index(left)].arrive(&batch);
                        }
                    }
                    Step::Cut { late_left, late_right } => {
                        ends[0].coming.truncate(late_left);
                        ends[1].coming.truncate(late_right);
                        ends[0].numbering.connected();
                        ends[1].numbering.connected();
                    }
                }
            }
            for _ in 0..1000 {
                for left in [true, false] {
                    let batches = ends[index(left)].pump();
                    ends[index(!left)].coming.extend(batches);
                    while let Some(batch) = ends[index(!left)].coming.pop_front() {
                        ends[index(!left)].arrive(&batch);
                    }
                }
                if ends.iter().all(|end| end.numbering.is_clear()) {
                    break;
                }
            }
            prop_assert!(ends.iter().all(|end| end.numbering.is_clear()));
            prop_assert_eq!(&ends[0].heard, &ends[1].said);
            prop_assert_eq!(&ends[1].heard, &ends[0].said);
        }
    }

    #[test]
    fn the_window_and_the_bounds_hold() {
        let mut numbering = Numbering::new(BOUNDS);
        let mut accepted = 0;
        while numbering.room_for(100).is_ok() {
            numbering.push(vec![0; 100]);
            accepted += 1;
        }
        assert_eq!(accepted, BOUNDS.frames);
        let mut batch = BatchWriter::new(1, 0);
        assert!(numbering.fill(&mut batch, 1 << 20));
        assert_eq!(numbering.sent, 3, "300 bytes of window");
        assert_eq!(numbering.confirm(64), Ok(true));
        assert_eq!(numbering.confirm(65), Err(NeverSent));
        assert!(numbering.is_clear());
        let overgrown = (0..1000).any(|_| numbering.push(vec![0; 100]));
        assert!(overgrown, "what may not be refused has a bound as well");
    }
}
