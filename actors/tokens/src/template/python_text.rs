//! Values printed as Python prints them: `None`, and lists and mappings with the `repr` of what they hold.

use minijinja::value::ValueKind;
use minijinja::{Error, Output, State, Value};

/// Prints what `{{ value }}` prints in Python's Jinja.
pub(super) fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::None) {
        let mut text = String::new();
        write_repr(&mut text, value)?;
        return out.write_str(&text).map_err(Error::from);
    }
    minijinja::escape_formatter(out, state, value)
}

fn write_repr(text: &mut String, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => text.push_str("None"),
        ValueKind::String => write_string(text, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            text.push('[');
            for (place, item) in value.try_iter()?.enumerate() {
                text.push_str(if place > 0 { ", " } else { "" });
                write_repr(text, &item)?;
            }
            text.push(']');
        }
        ValueKind::Map => {
            text.push('{');
            for (place, key) in value.try_iter()?.enumerate() {
                text.push_str(if place > 0 { ", " } else { "" });
                write_repr(text, &key)?;
                text.push_str(": ");
                write_repr(text, &value.get_item(&key)?)?;
            }
            text.push('}');
        }
        _ => text.push_str(&value.to_string()),
    }
    Ok(())
}

fn write_string(text: &mut String, content: &str) {
    let quote = if content.contains('\'') && !content.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for character in content.chars() {
        match character {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            character if character == quote => text.extend(['\\', character]),
            character if character.is_ascii_control() => text.push_str(&format!("\\x{:02x}", character as u32)),
            character => text.push(character),
        }
    }
    text.push(quote);
}
