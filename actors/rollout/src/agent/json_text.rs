//! JSON as Python's `json.dumps` writes it, made safe for HTML: what Jinja's `tojson` puts into a prompt.
//!
//! Keys are sorted, separators have a blank, every non-ASCII code point is a `\u` escape (surrogate pairs beyond the
//! BMP), and `<`, `>`, `&`, `'` are escaped too. A model trained on these bytes sees the same bytes here.

use std::fmt::Write;

use serde_json::Value;

/// `value` in that form; `indent` is the width of one level, `None` is one line.
pub(crate) fn html_safe_json(value: &Value, indent: Option<usize>) -> String {
    let mut text = String::new();
    write_value(&mut text, value, indent, 0);
    text
}

fn write_value(text: &mut String, value: &Value, indent: Option<usize>, level: usize) {
    match value {
        Value::String(content) => write_string(text, content),
        Value::Array(items) => {
            let entries = items.iter().map(|item| (None, item)).collect::<Vec<_>>();
            write_entries(text, ('[', ']'), &entries, indent, level);
        }
        Value::Object(members) => {
            let mut entries = members.iter().map(|(key, member)| (Some(key.as_str()), member)).collect::<Vec<_>>();
            entries.sort_by_key(|(key, _)| *key);
            write_entries(text, ('{', '}'), &entries, indent, level);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => text.push_str(&value.to_string()),
    }
}

fn write_entries(
    text: &mut String,
    brackets: (char, char),
    entries: &[(Option<&str>, &Value)],
    indent: Option<usize>,
    level: usize,
) {
    text.push(brackets.0);
    for (index, (key, value)) in entries.iter().enumerate() {
        if index > 0 {
            text.push_str(if indent.is_some() { "," } else { ", " });
        }
        break_line(text, indent, level + 1);
        if let Some(key) = key {
            write_string(text, key);
            text.push_str(": ");
        }
        write_value(text, value, indent, level + 1);
    }
    if !entries.is_empty() {
        break_line(text, indent, level);
    }
    text.push(brackets.1);
}

fn break_line(text: &mut String, indent: Option<usize>, level: usize) {
    if let Some(width) = indent {
        text.push('\n');
        text.extend(std::iter::repeat_n(' ', width * level));
    }
}

fn write_string(text: &mut String, content: &str) {
    text.push('"');
    for character in content.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            '<' | '>' | '&' | '\'' => write_escape(text, character),
            ' '..='~' => text.push(character),
            other => write_escape(text, other),
        }
    }
    text.push('"');
}

fn write_escape(text: &mut String, character: char) {
    let mut units = [0; 2];
    for unit in character.encode_utf16(&mut units) {
        // Writing into a String cannot fail.
        let _ = write!(text, "\\u{unit:04x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_python_writes() {
        let value = serde_json::json!({"b": [1, 2.5, null, true], "a": "é😀\u{7f}<'&\">\u{1}", "c": {}, "d": []});
        let line = r#"{"a": "\u00e9\ud83d\ude00\u007f\u003c\u0027\u0026\"\u003e\u0001", "b": [1, 2.5, null, true], "c": {}, "d": []}"#;
        assert_eq!(html_safe_json(&value, None), line);
        assert_eq!(html_safe_json(&serde_json::json!([1, {"a": 2}]), Some(2)), "[\n  1,\n  {\n    \"a\": 2\n  }\n]");
    }
}
