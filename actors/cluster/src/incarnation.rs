//! Which start of a node this is: a number that grows from start to start, whatever its clock does.
//!
//! It is made of the date, so that a node that has lost its disk is still later than before, and it is more than the last
//! one that was written down, so that a clock that was set back does not have a node fenced by its own past. On failure: a
//! record that cannot be read is as good as none, and that is logged; one that cannot be written ends the start.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// How many bits below the date chance decides: two starts within a millisecond differ all the same.
const CHANCE_BITS: u32 = 16;

/// The number of this start; where there is a record it is written there before anybody hears of it.
pub(crate) fn next(record: Option<&Path>, now_ms: u64, chance: u64) -> io::Result<u64> {
    let by_date = now_ms << CHANCE_BITS | chance & ((1 << CHANCE_BITS) - 1);
    let Some(record) = record else { return Ok(by_date) };
    let incarnation = match last(record)? {
        Some(last) if last >= by_date => {
            let ahead_ms = (last >> CHANCE_BITS).saturating_sub(now_ms);
            tracing::warn!(last, ahead_ms, "the last start of this node was later than now: its clock was set back");
            last.saturating_add(1)
        }
        _ => by_date,
    };
    write(record, incarnation)?;
    Ok(incarnation)
}

fn last(record: &Path) -> io::Result<Option<u64>> {
    let text = match fs::read(record) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let number = text.trim().parse().ok();
    if number.is_none() {
        tracing::warn!(record = %record.display(), "it holds no number: the clock alone says which start this is");
    }
    Ok(number)
}

/// Beside its place first: a record is whole or the one before, also when the machine stops.
fn write(record: &Path, incarnation: u64) -> io::Result<()> {
    if let Some(dir) = record.parent() {
        fs::create_dir_all(dir)?;
    }
    let part = record.with_extension("part");
    let mut file = File::create(&part)?;
    file.write_all(incarnation.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(&part, record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_start_is_a_larger_number_also_when_the_clock_was_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("state/incarnation");
        let start = |now_ms, chance| next(Some(&record), now_ms, chance).unwrap();
        let first = start(1_000_000, 7);
        assert_eq!(first, 1_000_000 << 16 | 7);
        // within the same millisecond, an hour earlier, and later again
        let (second, third, fourth) = (start(1_000_000, 3), start(1_000, 9), start(2_000_000, 1));
        assert_eq!((second, third), (first + 1, first + 2));
        assert_eq!(fourth, 2_000_000 << 16 | 1);
        assert!(next(None, 1_000, 9).unwrap() < fourth, "without a record only the clock counts");
    }

    #[test]
    fn a_record_that_cannot_be_read_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("incarnation");
        for torn in ["", "12x", "-1"] {
            fs::write(&record, torn).unwrap();
            assert_eq!(next(Some(&record), 5, 0).unwrap(), 5 << 16, "{torn:?}");
        }
        assert!(next(Some(dir.path()), 5, 0).is_err(), "a directory is no record");
    }
}
