//! The methods of Python's `str`, `dict` and `list` that chat templates call.
//!
//! minijinja has values, not Python objects; it asks here for every method that it does not know. Strings are counted and
//! cut in characters as in Python. A method that is not in the list stays an error that names it.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Calls `method` on `value` as Python would.
pub(super) fn call(_: &State<'_, '_>, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            string_method(text, method, arguments)
        }
        ValueKind::Map => map_method(value, method, arguments),
        ValueKind::Seq => sequence_method(value, method, arguments),
        _ => Err(unknown(value.kind(), method)),
    }
}

fn unknown(kind: ValueKind, method: &str) -> Error {
    Error::new(ErrorKind::UnknownMethod, format!("{kind} has no method named {method}"))
}

fn string_method(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    Ok(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (characters,): (Option<&str>,) = from_args(arguments)?;
            let cut = |character: char| match characters {
                Some(set) => set.contains(character),
                None => is_python_space(character),
            };
            Value::from(match method {
                "strip" => text.trim_matches(cut),
                "lstrip" => text.trim_start_matches(cut),
                _ => text.trim_end_matches(cut),
            })
        }
        "split" | "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(arguments)?;
            Value::from(split(text, separator, limit.unwrap_or(-1), method == "rsplit")?)
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(arguments)?;
            let lines = text.split_inclusive('\n');
            let line_of = |line: &str| match keep_ends {
                Some(true) => line.to_owned(),
                _ => line.trim_end_matches('\n').trim_end_matches('\r').to_owned(),
            };
            Value::from(lines.map(line_of).collect::<Vec<_>>())
        }
        "startswith" | "endswith" => {
            let (affix,): (Value,) = from_args(arguments)?;
            let matches =
                |affix: &str| if method == "startswith" { text.starts_with(affix) } else { text.ends_with(affix) };
            Value::from(match affix.as_str() {
                Some(affix) => matches(affix),
                None => affix.try_iter()?.any(|affix| affix.as_str().is_some_and(matches)),
            })
        }
        "removeprefix" => Value::from(text.strip_prefix(from_args::<(&str,)>(arguments)?.0).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(from_args::<(&str,)>(arguments)?.0).unwrap_or(text)),
        "replace" => {
            let (from, to, count): (&str, &str, Option<usize>) = from_args(arguments)?;
            Value::from(count.map_or_else(|| text.replace(from, to), |count| text.replacen(from, to, count)))
        }
        "find" => {
            let (part,): (&str,) = from_args(arguments)?;
            Value::from(text.find(part).map_or(-1, |bytes| text[..bytes].chars().count() as i64))
        }
        "count" => Value::from(text.matches(from_args::<(&str,)>(arguments)?.0).count()),
        "join" => {
            let (parts,): (Value,) = from_args(arguments)?;
            let parts: Vec<String> = parts.try_iter()?.map(|part| part.to_string()).collect();
            Value::from(parts.join(text))
        }
        "upper" => Value::from(text.to_uppercase()),
        "lower" => Value::from(text.to_lowercase()),
        "title" | "capitalize" => Value::from(capitalize(text, method == "title")),
        "isdigit" => Value::from(!text.is_empty() && text.chars().all(char::is_numeric)),
        "isspace" => Value::from(!text.is_empty() && text.chars().all(is_python_space)),
        _ => return Err(unknown(ValueKind::String, method)),
    })
}

fn map_method(map: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let pair = |key: Value| map.get_item(&key).map(|item| (key, item));
    let pairs = || map.try_iter()?.map(pair).collect::<Result<Vec<_>, _>>();
    Ok(match method {
        "items" => pairs()?.into_iter().map(|(key, item)| Value::from(vec![key, item])).collect(),
        "keys" => pairs()?.into_iter().map(|(key, _)| key).collect(),
        "values" => pairs()?.into_iter().map(|(_, item)| item).collect(),
        "get" => {
            let (key, default): (Value, Option<Value>) = from_args(arguments)?;
            let found = map.get_item(&key)?;
            if found.is_undefined() { default.unwrap_or_else(|| Value::from(())) } else { found }
        }
        _ => return Err(unknown(ValueKind::Map, method)),
    })
}

fn sequence_method(sequence: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (wanted,): (Value,) = from_args(arguments)?;
    match method {
        "count" => Ok(Value::from(sequence.try_iter()?.filter(|item| *item == wanted).count())),
        "index" => sequence
            .try_iter()?
            .position(|item| item == wanted)
            .map(Value::from)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("{wanted} is not in the list"))),
        _ => Err(unknown(ValueKind::Seq, method)),
    }
}

fn split(text: &str, separator: Option<&str>, limit: i64, from_right: bool) -> Result<Vec<String>, Error> {
    let pieces = usize::try_from(limit).map_or(usize::MAX, |limit| limit.saturating_add(1));
    let owned = |parts: Vec<&str>| parts.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let Some(separator) = separator else {
        return Ok(split_white_space(text, pieces, from_right));
    };
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    if from_right {
        let mut parts = owned(text.rsplitn(pieces, separator).collect());
        parts.reverse();
        return Ok(parts);
    }
    Ok(owned(text.splitn(pieces, separator).collect()))
}

fn split_white_space(text: &str, pieces: usize, from_right: bool) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text.trim_matches(is_python_space);
    while !rest.is_empty() && parts.len() + 1 < pieces {
        let cut = if from_right { rest.rfind(is_python_space) } else { rest.find(is_python_space) };
        let Some(cut) = cut else { break };
        let blank_bytes = rest[cut..].chars().next().map_or(1, char::len_utf8);
        let (before, after) = (&rest[..cut], &rest[cut + blank_bytes..]);
        parts.push(if from_right { after } else { before }.to_owned());
        rest = if from_right { before } else { after }.trim_matches(is_python_space);
    }
    if !rest.is_empty() {
        parts.push(rest.to_owned());
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn capitalize(text: &str, every_word: bool) -> String {
    let mut capital = true;
    let mut capitalized = String::with_capacity(text.len());
    for character in text.chars() {
        if capital && character.is_alphabetic() {
            capitalized.extend(character.to_uppercase());
        } else {
            capitalized.extend(character.to_lowercase());
        }
        capital = every_word && !character.is_alphabetic();
    }
    capitalized
}

/// Python's `str.isspace`: Unicode white space and the four separators U+001C to U+001F.
fn is_python_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}
