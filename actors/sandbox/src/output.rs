//! What a command printed: kept within a limit, and turned into text.
//!
//! The limit drops the middle, never the beginning or the end: agents and graders look there. The text rules are
//! mini-swe-agent's: UTF-8 with replacement characters, then CRLF and every lone CR become LF (progress bars become lines);
//! NUL, escape sequences and a byte-order mark stay.

/// Turns the bytes a command printed into text.
pub fn decode_output(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace("\r\n", "\n").replace('\r', "\n")
}

/// Keeps the first and the last half of `limit_bytes` of a stream of any length, read in place.
#[derive(Debug)]
pub(crate) struct BoundedOutput {
    head: Vec<u8>,
    head_length: usize,
    /// A ring: once full, new bytes overwrite the oldest.
    tail: Vec<u8>,
    tail_at: usize,
    /// How much ever went into the tail.
    tail_total: u64,
}

impl BoundedOutput {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let half = (limit_bytes / 2).max(1);
        Self { head: vec![0; half], head_length: 0, tail: Vec::new(), tail_at: 0, tail_total: 0 }
    }

    /// Where the next bytes of the stream belong; never empty.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.head_length < self.head.len() {
            return &mut self.head[self.head_length..];
        }
        if self.tail.is_empty() {
            self.tail = vec![0; self.head.len()];
        }
        &mut self.tail[self.tail_at..]
    }

    /// Says that the first `length` bytes of [`Self::space`] were filled.
    pub(crate) fn filled(&mut self, length: usize) {
        if self.head_length < self.head.len() {
            self.head_length += length;
            return;
        }
        self.tail_at = (self.tail_at + length) % self.tail.len();
        self.tail_total += length as u64;
    }

    /// How much of it is not kept.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.tail_total.saturating_sub(self.tail.len() as u64)
    }

    /// The bytes kept, with a line in the middle that says how many are missing, if any are.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        let dropped = self.dropped_bytes();
        let mut kept = std::mem::take(&mut self.head);
        kept.truncate(self.head_length);
        if dropped > 0 {
            kept.extend(format!("\n[{dropped} bytes of output were dropped here]\n").into_bytes());
            kept.extend_from_slice(&self.tail[self.tail_at..]);
            kept.extend_from_slice(&self.tail[..self.tail_at]);
        } else {
            kept.extend_from_slice(&self.tail[..self.tail_total as usize]);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(output: &mut BoundedOutput, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = output.space();
            let length = space.len().min(bytes.len()).min(3);
            space[..length].copy_from_slice(&bytes[..length]);
            output.filled(length);
            bytes = &bytes[length..];
        }
    }

    #[test]
    fn up_to_the_limit_everything_is_kept_beyond_it_the_middle_goes() {
        for total in 0..40usize {
            let bytes: Vec<u8> = (0..total as u8).map(|number| b'A' + number).collect();
            let mut output = BoundedOutput::new(20);
            push(&mut output, &bytes);
            let dropped = total.saturating_sub(20);
            assert_eq!(output.dropped_bytes(), dropped as u64);
            let mut expected = bytes[..total.min(10)].to_vec();
            if dropped > 0 {
                expected.extend(format!("\n[{dropped} bytes of output were dropped here]\n").bytes());
            }
            expected.extend(&bytes[total.min(10 + dropped)..]);
            assert_eq!(output.into_bytes(), expected, "{total} bytes");
        }
    }
}
