//! Versions of SGLang, and what each can do.
//!
//! The protocol changes with the version, so nothing is assumed of a server before its version is known. Each feature
//! below names the version that brought it and what a client must do without it.

/// A version of SGLang: the first three numbers of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SglangVersion(pub u32, pub u32, pub u32);

impl SglangVersion {
    /// Reads `0.5.23`, `0.5.10.post1`, `0.5.22rc1`; `None` when there are not three numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().trim_start_matches('v').splitn(4, '.');
        let mut number = || {
            let part = parts.next()?;
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            part.get(..digits)?.parse().ok()
        };
        Some(Self(number()?, number()?, number()?))
    }

    /// What a server of this version can do.
    pub fn features(self) -> Features {
        Features {
            // Recorded: 0.5.10.post1 answers 404 to /ready, 0.5.23 answers it while paused, without generating a token.
            ready: self >= Self(0, 5, 22),
            // Before 0.5.21 the retracted requests count as pending, the flush fails and the scheduler asserts: the
            // whole server dies (recorded on 0.5.10.post1).
            flush_after_retract: self >= Self(0, 5, 21),
            // Recorded: 0.5.10.post1 answers 500, 0.5.23 the numbers, also while it is busy or paused.
            loads: self >= Self(0, 5, 22),
            // Recorded on 0.5.23: what it cannot tell is a plain 400, and it lives on. Nothing is recorded of older ones.
            weights_by_name: self >= Self(0, 5, 23),
        }
    }
}

/// What a server can do, by its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// It answers `/ready`; otherwise `/model_info` alone tells that it lives.
    pub ready: bool,
    /// After a retracting pause a load may flush the cache; otherwise the load must not, or the server dies.
    pub flush_after_retract: bool,
    /// `/v1/loads` tells how far it is; otherwise a stalled engine is not told from a slow one.
    pub loads: bool,
    /// `/get_weights_by_name` may be asked; otherwise a load is confirmed by its label alone.
    pub weights_by_name: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let read = SglangVersion::parse;
        assert_eq!(read("0.5.10.post1"), Some(SglangVersion(0, 5, 10)));
        assert_eq!(read("v0.5.22rc1"), Some(SglangVersion(0, 5, 22)));
        assert!(read("0.5.9") < read("0.5.10"));
        for bad in ["", "0.5", "main", "0.5.x"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert!(!SglangVersion(0, 5, 10).features().flush_after_retract);
        assert!(SglangVersion(0, 5, 23).features().ready);
    }
}
