//! Finding the action in a reply.
//!
//! The pattern is written in Python's syntax in the agent file (users bring their own) and matched here by the `regex`
//! crate, whose leftmost-first rule equals Python's. White space means Python's white space: `\s` is widened by
//! U+001C–U+001F. Patterns that need look-around or back-references are refused when the file is read.

use super::error::AgentError;
use super::python_text;

/// mini-swe-agent's text-mode fence: the tag, optional blanks, a new line, the command, and a line that starts with a fence.
pub const DEFAULT_ACTION_REGEX: &str = r"```mswea_bash_command\s*\n(.*?)\n```";

/// A compiled action pattern.
#[derive(Debug, Clone)]
pub struct ActionRegex {
    regex: regex::Regex,
}

impl ActionRegex {
    /// Compile `pattern` (Python syntax; a dot matches new lines too). More than one group or a construct the engine
    /// does not have is [`AgentError::ActionRegex`].
    pub fn new(pattern: &str) -> Result<Self, AgentError> {
        let regex = regex::RegexBuilder::new(&from_python_syntax(pattern))
            .dot_matches_new_line(true)
            .build()
            .map_err(|error| AgentError::ActionRegex { detail: error.to_string() })?;
        match regex.captures_len() {
            1 | 2 => Ok(Self { regex }),
            groups => Err(AgentError::ActionRegex {
                detail: format!("has {} groups, at most one is allowed: its text is the command", groups - 1),
            }),
        }
    }

    /// Every action of `reply` in order, stripped as Python's `str.strip` does. Anything but exactly one is a format error.
    pub fn actions(&self, reply: &str) -> Vec<String> {
        let group = self.regex.captures_len() - 1;
        self.regex
            .captures_iter(reply)
            .map(|captures| captures.get(group).map_or("", |found| found.as_str()))
            .map(|action| python_text::strip(action).to_owned())
            .collect()
    }
}

/// Rewrite the places where Python's regex syntax means something else to the `regex` crate.
fn from_python_syntax(pattern: &str) -> String {
    let mut translated = String::with_capacity(pattern.len() + 16);
    let mut characters = pattern.chars().peekable();
    let mut in_class = false;
    let mut class_is_empty = false;
    while let Some(character) = characters.next() {
        let opens_class = class_is_empty;
        class_is_empty = false;
        match character {
            '\\' => match characters.next() {
                Some('s') if in_class => translated.push_str(r"\s\x1c-\x1f"),
                Some('s') => translated.push_str(r"[\s\x1c-\x1f]"),
                Some('S') => translated.push_str(r"[^\s\x1c-\x1f]"),
                Some('Z') if !in_class => translated.push_str(r"\z"),
                Some(escaped) => translated.extend(['\\', escaped]),
                None => translated.push('\\'),
            },
            '[' if in_class => translated.push_str(r"\["),
            '[' => {
                in_class = true;
                class_is_empty = true;
                translated.push('[');
                if characters.next_if_eq(&'^').is_some() {
                    translated.push('^');
                }
            }
            ']' if in_class && opens_class => translated.push_str(r"\]"),
            ']' if in_class => {
                in_class = false;
                translated.push(']');
            }
            '&' | '~' if in_class => translated.extend(['\\', character]),
            other => translated.push(other),
        }
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_patterns_keep_their_meaning() {
        let cases: &[(&str, &str, &[&str])] = &[
            (r"<do>(.*?)</do>", "<do>a\nb</do> <do>\u{1c}c</do>", &["a\nb", "c"]),
            (r"x\s*y", "x\u{1f}y xy", &["x\u{1f}y", "xy"]),
            (r"a([\s-]+)b", "a -\u{1d}-b", &["-\u{1d}-"]),
            (r"a([[&]+)b", "a[&b", &["[&"]),
            (r"a([]x]+)b", "a]xb", &["]x"]),
        ];
        for (pattern, reply, expected) in cases {
            let found = ActionRegex::new(pattern).unwrap().actions(reply);
            assert_eq!(&found, expected, "pattern {pattern}");
        }
    }

    #[test]
    fn patterns_that_cannot_be_matched_are_refused() {
        for pattern in ["(a)(b)", "(?=a)b", "(unclosed"] {
            assert!(matches!(ActionRegex::new(pattern), Err(AgentError::ActionRegex { .. })), "pattern {pattern}");
        }
    }
}
