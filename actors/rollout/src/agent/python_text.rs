//! Python's ideas of white space and of lines, which the agent's rules are written in.
//!
//! Python counts U+001C–U+001F as white space where Rust and Unicode do not, and ends lines at eleven places where
//! `str::lines` ends them at one. Both differences are visible to a model, so both are kept.

/// Whether Python's `str.isspace`, `str.strip` and `\s` take `character` as white space.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Python's `str.strip()`.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Python's `str.lstrip()`.
pub(crate) fn strip_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// Python's `str.splitlines(keepends=True)`, cut after the first line: that line with its end, and the rest.
pub(crate) fn split_first_line(text: &str) -> (&str, &str) {
    let mut characters = text.char_indices().peekable();
    while let Some((index, character)) = characters.next() {
        if !is_line_end(character) {
            continue;
        }
        let mut end = index + character.len_utf8();
        if character == '\r' && characters.peek().is_some_and(|(_, following)| *following == '\n') {
            end += 1;
        }
        return text.split_at(end);
    }
    (text, "")
}

/// Python's `str.splitlines()`: lines without their ends.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (line, following) = split_first_line(rest);
        rest = following;
        // A line holds no line end but the one that closes it.
        Some(line.trim_end_matches(is_line_end))
    })
}

fn is_line_end(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_python_ends_them() {
        let text = "a\nb\rc\r\nd\u{b}e\u{c}f\u{1c}g\u{1e}h\u{85}i\u{2028}j\u{2029}k\u{1f}l\n\nm";
        let expected = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k\u{1f}l", "", "m"];
        assert_eq!(lines(text).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn strip_takes_the_four_separators_too() {
        assert_eq!(strip("\u{1c}\u{1f} a \u{a0}\u{3000}"), "a");
        assert_eq!(strip("\u{feff}a"), "\u{feff}a");
    }
}
