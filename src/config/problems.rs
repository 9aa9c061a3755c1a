//! Unknown keys and wrong types, all of them at once, each with the nearest right thing.

use serde_json::{Map, Value};

/// Every key of `given` that the `known` tree does not have, and every value of another kind, one line each. Where the
/// known value is an empty table or null, anything may stand.
pub(super) fn compare(known: &Value, given: &Value, at: &str, problems: &mut Vec<String>) {
    let (Value::Object(known), Value::Object(given)) = (known, given) else {
        if !same_kind(known, given) {
            problems.push(format!("{at} must be {}, but is {given}", kind(known)));
        }
        return;
    };
    if known.is_empty() {
        return;
    }
    for (key, value) in given {
        let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        match known.get(key) {
            Some(expected) => compare(expected, value, &path, problems),
            None => problems.push(unknown(known, key, &path)),
        }
    }
}

fn unknown(known: &Map<String, Value>, key: &str, path: &str) -> String {
    let nearest =
        known.keys().max_by(|one, other| strsim::jaro_winkler(one, key).total_cmp(&strsim::jaro_winkler(other, key)));
    match nearest.filter(|nearest| strsim::jaro_winkler(nearest, key) > 0.75) {
        Some(nearest) => format!("unknown key {path}: did you mean {nearest}?"),
        None => format!("unknown key {path}: known here are {}", known.keys().cloned().collect::<Vec<_>>().join(", ")),
    }
}

fn same_kind(known: &Value, given: &Value) -> bool {
    match known {
        Value::Null => true,
        Value::Bool(_) => given.is_boolean(),
        Value::Number(number) if number.is_f64() => given.is_number(),
        Value::Number(number) => given.is_i64() && (number.is_i64() && !number.is_u64() || given.as_i64() >= Some(-1)),
        Value::String(_) => given.is_string(),
        Value::Array(_) => given.is_array(),
        Value::Object(_) => given.is_object(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "anything",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a number",
        Value::Number(_) => "a whole number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}
