//! `tojson` as `transformers` defines it for chat templates: Python's `json.dumps` with `ensure_ascii=False`, keys in the
//! order given, a blank after `:` and `,`, and no HTML escapes.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value as JinjaValue};
use serde_json::Value;

/// The filter; understands `indent` and `ensure_ascii`, ignores `separators` and `sort_keys` at their defaults.
pub(super) fn tojson(value: &JinjaValue, options: &Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    options.assert_all_used()?;
    let value = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, format!("not JSON: {error}")))?;
    let mut text = String::new();
    write(&mut text, &value, indent, 0);
    Ok(if ensure_ascii { escape_non_ascii(&text) } else { text })
}

fn write(text: &mut String, value: &Value, indent: Option<usize>, depth: usize) {
    match value {
        Value::Array(items) => write_items(text, ('[', ']'), items.iter(), indent, depth, |text, item| {
            write(text, item, indent, depth + 1);
        }),
        Value::Object(members) => {
            write_items(text, ('{', '}'), members.iter(), indent, depth, |text, (key, member)| {
                text.push_str(&Value::String(key.clone()).to_string());
                text.push_str(": ");
                write(text, member, indent, depth + 1);
            })
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

fn write_items<Item>(
    text: &mut String,
    (open, close): (char, char),
    items: impl ExactSizeIterator<Item = Item>,
    indent: Option<usize>,
    depth: usize,
    mut write_item: impl FnMut(&mut String, Item),
) {
    let is_empty = items.len() == 0;
    text.push(open);
    for (place, item) in items.enumerate() {
        if place > 0 {
            text.push_str(if indent.is_some() { "," } else { ", " });
        }
        new_line(text, indent, depth + 1);
        write_item(text, item);
    }
    if !is_empty {
        new_line(text, indent, depth);
    }
    text.push(close);
}

fn new_line(text: &mut String, indent: Option<usize>, depth: usize) {
    if let Some(width) = indent {
        text.push('\n');
        text.push_str(&" ".repeat(width * depth));
    }
}

fn escape_non_ascii(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            escaped.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    escaped
}
