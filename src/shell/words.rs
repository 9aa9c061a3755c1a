//! Lines into words, and words into durations.

/// The words of a line: separated by blanks, with quotes around what holds blanks.
///
/// # Errors
/// A quote that is not closed.
pub fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    if let Some(open) = quote {
        return Err(format!("a quote {open} is not closed"));
    }
    words.extend(word);
    Ok(words)
}

/// A duration such as `90`, `90s`, `5m`, `2h`, in milliseconds.
pub(crate) fn duration_ms(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let factor = match text.get(digits.len()..)? {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// A duration for people, from milliseconds.
pub(super) fn duration_words(ms: f64) -> String {
    let magnitude = ms.abs();
    if magnitude < 10.0 && ms.fract() != 0.0 {
        format!("{ms:.2} ms")
    } else if magnitude < 1_000.0 {
        format!("{ms:.0} ms")
    } else if magnitude < 120_000.0 {
        format!("{:.1} s", ms / 1_000.0)
    } else if magnitude < 7_200_000.0 {
        format!("{:.0} min", ms / 60_000.0)
    } else {
        format!("{:.1} h", ms / 3_600_000.0)
    }
}

/// A number of bytes for people.
pub(super) fn bytes_words(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// The time of a date, milliseconds since 1970, as it is in UTC.
pub(super) fn clock_words(at_ms: u64) -> String {
    let (seconds, ms) = (at_ms / 1_000, at_ms % 1_000);
    let (hours, minutes) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{ms:03}", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_words_and_numbers_become_words() {
        assert_eq!(split(" sql  \"SELECT 'a b'\" x'y z' ''").unwrap(), ["sql", "SELECT 'a b'", "xy z", ""]);
        assert_eq!(split("").unwrap(), Vec::<String>::new());
        assert!(split("say 'it").unwrap_err().contains("not closed"));
        for (text, ms) in [("90", Some(90_000)), ("250ms", Some(250)), ("5m", Some(300_000)), ("2h", Some(7_200_000))] {
            assert_eq!(duration_ms(text), ms, "{text}");
        }
        for bad in ["", "m", "5x", "-1", "1.5s", "99999999999999999999"] {
            assert_eq!(duration_ms(bad), None, "{bad}");
        }
        let said = [0.25, 12.0, 1_500.0, 180_000.0, 9_000_000.0].map(duration_words);
        assert_eq!(said, ["0.25 ms", "12 ms", "1.5 s", "3 min", "2.5 h"]);
        assert_eq!([512.0, 2048.0, 3.5 * 1024.0 * 1024.0].map(bytes_words), ["512 B", "2.0 KiB", "3.5 MiB"]);
        assert_eq!(clock_words(86_400_000 + 3_723_004), "01:02:03.004");
    }
}
