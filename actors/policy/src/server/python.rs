//! Python's way of writing values, for error texts that quote the client's input.
//!
//! SGLang's validation errors contain `repr()` of what was sent. Clients log them and people compare them, so this server
//! writes the same text.

use serde_json::Value;

/// `repr(value)` of the Python object that this JSON decodes to.
#[must_use]
pub fn repr(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quote(text),
        Value::Array(items) => format!("[{}]", items.iter().map(repr).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let parts: Vec<String> =
                fields.iter().map(|(key, value)| format!("{}: {}", quote(key), repr(value))).collect();
            format!("{{{}}}", parts.join(", "))
        }
    }
}

/// `repr(bytes)`.
#[must_use]
pub fn repr_bytes(bytes: &[u8]) -> String {
    let delimiter = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    let mut text = format!("b{delimiter}");
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b'\'' if delimiter == '\'' => text.push_str("\\'"),
            0x20..=0x7e => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text.push(delimiter);
    text
}

/// Python's name of the type of a JSON value.
#[must_use]
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

fn quote(text: &str) -> String {
    let delimiter = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(delimiter);
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\'' if delimiter == '\'' => quoted.push_str("\\'"),
            control if control.is_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(control))),
            other => quoted.push(other),
        }
    }
    quoted.push(delimiter);
    quoted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        let cases = [
            (json!(null), "None"),
            (json!(true), "True"),
            (json!(-1.0), "-1.0"),
            (json!("it's"), "\"it's\""),
            (json!("it's \"x\""), "'it\\'s \"x\"'"),
            (json!(["a", 1]), "['a', 1]"),
            (json!({"mode": "sideways", "deep": {}}), "{'mode': 'sideways', 'deep': {}}"),
            (json!("a\nb\u{1}"), "'a\\nb\\x01'"),
        ];
        for (value, expected) in cases {
            assert_eq!(repr(&value), expected);
        }
        assert_eq!(repr_bytes(b"{\"a\":1}\n\xff"), "b'{\"a\":1}\\n\\xff'");
    }
}
