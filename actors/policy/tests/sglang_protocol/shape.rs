//! Whether two JSON values have the same shape: the same keys and the same kinds of values, all the way down.

use serde_json::Value;

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Where `ours` has another shape than `theirs`. `accept` is asked about each difference, by its path.
pub fn differences(theirs: &Value, ours: &Value, accept: &dyn Fn(&str, &Value, &Value) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    walk("", theirs, ours, accept, &mut found);
    found
}

fn walk(
    path: &str,
    theirs: &Value,
    ours: &Value,
    accept: &dyn Fn(&str, &Value, &Value) -> bool,
    found: &mut Vec<String>,
) {
    if kind(theirs) != kind(ours) {
        if !accept(path, theirs, ours) {
            found.push(format!("{path}: {} there, {} here", kind(theirs), kind(ours)));
        }
        return;
    }
    match (theirs, ours) {
        (Value::Object(_), Value::Object(_)) if accept(path, theirs, ours) => {}
        (Value::Object(theirs), Value::Object(ours)) => {
            for key in theirs.keys().filter(|key| !ours.contains_key(*key)) {
                let path = format!("{path}.{key}");
                if !accept(&path, &theirs[key], &Value::Null) {
                    found.push(format!("{path}: missing here"));
                }
            }
            for key in ours.keys().filter(|key| !theirs.contains_key(*key)) {
                let path = format!("{path}.{key}");
                if !accept(&path, &Value::Null, &ours[key]) {
                    found.push(format!("{path}: not there"));
                }
            }
            for (key, value) in ours {
                if let Some(expected) = theirs.get(key) {
                    walk(&format!("{path}.{key}"), expected, value, accept, found);
                }
            }
        }
        (Value::Array(theirs), Value::Array(ours)) => lists(path, theirs, ours, accept, found),
        _ => {}
    }
}

/// Each of our elements must look like one of theirs; lists are empty together.
fn lists(
    path: &str,
    theirs: &[Value],
    ours: &[Value],
    accept: &dyn Fn(&str, &Value, &Value) -> bool,
    found: &mut Vec<String>,
) {
    if theirs.is_empty() != ours.is_empty() {
        let (there, here) = (Value::from(theirs.to_vec()), Value::from(ours.to_vec()));
        if !accept(path, &there, &here) {
            found.push(format!("{path}: {} elements there, {} here", theirs.len(), ours.len()));
        }
        return;
    }
    // A short list is a tuple: its places have meanings.
    let tuple = theirs.len() == ours.len() && theirs.len() <= 3;
    for (position, element) in ours.iter().enumerate() {
        let place = format!("{path}[{position}]");
        let candidates = if tuple { &theirs[position..=position] } else { theirs };
        let mut least: Option<Vec<String>> = None;
        for candidate in candidates {
            let mut differences = Vec::new();
            walk(&place, candidate, element, accept, &mut differences);
            if least.as_ref().is_none_or(|least| differences.len() < least.len()) {
                least = Some(differences);
            }
        }
        found.extend(least.unwrap_or_default());
    }
}
