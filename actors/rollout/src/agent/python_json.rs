//! Reading JSON with the error texts of Python's `json.loads` (3.11).
//!
//! Well-formed text is left to serde_json. Only for text it refuses is the place of the first error searched the way
//! CPython's scanner goes, because the model reads that sentence.

use serde_json::Value;

/// Parse `text`, or say what is wrong with it as Python does.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        Err(error) => Err(python_error(text).unwrap_or_else(|| error.to_string())),
    }
}

struct Problem {
    message: &'static str,
    position: usize,
}

struct Scanner {
    characters: Vec<char>,
    depth: usize,
}

/// Deeper than this Python raises a recursion error; such text is not worth an exact sentence.
const DEPTH_LIMIT: usize = 500;

/// Python's sentence, or `None` where Python would have accepted the text.
fn python_error(text: &str) -> Option<String> {
    if text.starts_with('\u{feff}') {
        return Some("Unexpected UTF-8 BOM (decode using utf-8-sig): line 1 column 1 (char 0)".to_owned());
    }
    let mut scanner = Scanner { characters: text.chars().collect(), depth: 0 };
    let start = scanner.skip_blanks(0);
    let problem = match scanner.value(start) {
        Ok(end) => {
            let end = scanner.skip_blanks(end);
            (end < scanner.characters.len()).then_some(Problem { message: "Extra data", position: end })?
        }
        Err(problem) => problem,
    };
    let before = &scanner.characters[..problem.position.min(scanner.characters.len())];
    let line = before.iter().filter(|character| **character == '\n').count() + 1;
    let column = match before.iter().rposition(|character| *character == '\n') {
        Some(last) => problem.position - last,
        None => problem.position + 1,
    };
    Some(format!("{}: line {line} column {column} (char {})", problem.message, problem.position))
}

impl Scanner {
    fn at(&self, position: usize) -> Option<char> {
        self.characters.get(position).copied()
    }

    fn skip_blanks(&self, mut position: usize) -> usize {
        while matches!(self.at(position), Some(' ' | '\t' | '\n' | '\r')) {
            position += 1;
        }
        position
    }

    fn value(&mut self, position: usize) -> Result<usize, Problem> {
        const EXPECTING_VALUE: &str = "Expecting value";
        self.depth += 1;
        if self.depth > DEPTH_LIMIT {
            return Err(Problem { message: "maximum recursion depth exceeded", position });
        }
        let end = match self.at(position) {
            Some('"') => self.string(position),
            Some('{') => self.object(position),
            Some('[') => self.array(position),
            _ => self.literal(position).ok_or(Problem { message: EXPECTING_VALUE, position }),
        };
        self.depth -= 1;
        end
    }

    fn literal(&self, position: usize) -> Option<usize> {
        for word in ["null", "true", "false", "NaN", "Infinity", "-Infinity"] {
            let length = word.chars().count();
            let found = self.characters.get(position..position + length);
            if found.is_some_and(|found| found.iter().copied().eq(word.chars())) {
                return Some(position + length);
            }
        }
        let mut end = position + usize::from(self.at(position) == Some('-'));
        let whole = self.digits(end);
        end = match self.at(end) {
            Some('0') => end + 1,
            _ if whole > end => whole,
            _ => return None,
        };
        if self.at(end) == Some('.') && self.digits(end + 1) > end + 1 {
            end = self.digits(end + 1);
        }
        if matches!(self.at(end), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.at(end + 1), Some('+' | '-')));
            if self.digits(end + 1 + sign) > end + 1 + sign {
                end = self.digits(end + 1 + sign);
            }
        }
        Some(end)
    }

    fn digits(&self, mut position: usize) -> usize {
        while self.at(position).is_some_and(|character| character.is_ascii_digit()) {
            position += 1;
        }
        position
    }

    fn string(&self, begin: usize) -> Result<usize, Problem> {
        let mut position = begin + 1;
        loop {
            match self.at(position) {
                None => return Err(Problem { message: "Unterminated string starting at", position: begin }),
                Some('"') => return Ok(position + 1),
                Some('\\') => position = self.escape(begin, position)?,
                Some(control) if control <= '\u{1f}' => {
                    return Err(Problem { message: "Invalid control character at", position });
                }
                Some(_) => position += 1,
            }
        }
    }

    fn escape(&self, begin: usize, backslash: usize) -> Result<usize, Problem> {
        match self.at(backslash + 1) {
            None => Err(Problem { message: "Unterminated string starting at", position: begin }),
            Some('u') => {
                let digits = self.characters.get(backslash + 2..backslash + 6).unwrap_or_default();
                if digits.len() == 4 && digits.iter().all(char::is_ascii_hexdigit) {
                    Ok(backslash + 6)
                } else {
                    Err(Problem { message: "Invalid \\uXXXX escape", position: backslash + 1 })
                }
            }
            Some('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Ok(backslash + 2),
            Some(_) => Err(Problem { message: "Invalid \\escape", position: backslash }),
        }
    }

    fn object(&mut self, begin: usize) -> Result<usize, Problem> {
        const NAME: &str = "Expecting property name enclosed in double quotes";
        let mut position = self.skip_blanks(begin + 1);
        if self.at(position) == Some('}') {
            return Ok(position + 1);
        }
        loop {
            if self.at(position) != Some('"') {
                return Err(Problem { message: NAME, position });
            }
            position = self.skip_blanks(self.string(position)?);
            if self.at(position) != Some(':') {
                return Err(Problem { message: "Expecting ':' delimiter", position });
            }
            let value = self.skip_blanks(position + 1);
            position = self.value(value)?;
            position = self.skip_blanks(position);
            match self.at(position) {
                Some('}') => return Ok(position + 1),
                Some(',') => position = self.skip_blanks(position + 1),
                _ => return Err(Problem { message: "Expecting ',' delimiter", position }),
            }
        }
    }

    fn array(&mut self, begin: usize) -> Result<usize, Problem> {
        let mut position = self.skip_blanks(begin + 1);
        if self.at(position) == Some(']') {
            return Ok(position + 1);
        }
        loop {
            position = self.value(position)?;
            position = self.skip_blanks(position);
            match self.at(position) {
                Some(']') => return Ok(position + 1),
                Some(',') => position = self.skip_blanks(position + 1),
                _ => return Err(Problem { message: "Expecting ',' delimiter", position }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_worded_and_placed_as_python_does() {
        let cases = [
            ("{not json", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
            ("", "Expecting value: line 1 column 1 (char 0)"),
            ("{\"a\" 1}", "Expecting ':' delimiter: line 1 column 6 (char 5)"),
            ("{\"a\": 1 \"b\"}", "Expecting ',' delimiter: line 1 column 9 (char 8)"),
            ("{\n \"a\": }", "Expecting value: line 2 column 7 (char 8)"),
            ("{} x", "Extra data: line 1 column 4 (char 3)"),
            ("{\"a\": \"b", "Unterminated string starting at: line 1 column 7 (char 6)"),
            ("[1, 2", "Expecting ',' delimiter: line 1 column 6 (char 5)"),
            ("{\"a\": \"x\ny\"}", "Invalid control character at: line 1 column 9 (char 8)"),
            ("{\"a\": \"\\q\"}", "Invalid \\escape: line 1 column 8 (char 7)"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), Err(expected.to_owned()), "text {text:?}");
        }
    }
}
