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

/// A year: no wait of a run is longer, and sums of such waits stay far from the end of numbers.
const LONGEST_WAIT_MS: u64 = 365 * 24 * 3_600_000;

/// A line for every time of the tree (a key that ends with `_ms`) that is longer than a year.
pub(super) fn endless_waits(tree: &Value, at: &str, problems: &mut Vec<String>) {
    let Value::Object(tree) = tree else { return };
    for (key, value) in tree {
        let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        match value.as_u64() {
            Some(wait_ms) if key.ends_with("_ms") && wait_ms > LONGEST_WAIT_MS => {
                problems.push(format!("{path} is {wait_ms}: a wait is at most {LONGEST_WAIT_MS} (a year)"));
            }
            _ => endless_waits(value, &path, problems),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Layers, load};

    fn problems_of(settings: &[&str]) -> Vec<String> {
        let given = ["model.dir=m", "data.train=t", "engine.embedded.count=1"].iter().chain(settings);
        let settings = given.map(|setting| (*setting).to_owned()).collect();
        load(&Layers { settings, ..Layers::default() }).unwrap().config.problems()
    }

    #[test]
    fn numbers_that_nothing_can_be_done_with_are_named() {
        assert_eq!(problems_of(&[]), Vec::<String>::new());
        assert_eq!(problems_of(&["warm_start.epochs=0"]), Vec::<String>::new(), "there is no warm start");
        let endless = i64::MAX;
        let cases = [
            (vec!["data.demonstrations=d".to_owned(), "warm_start.epochs=0".to_owned()], "warm_start.epochs"),
            (vec!["engine.embedded.max_running_requests=0".to_owned()], "engine.embedded.max_running_requests"),
            (vec![format!("run.update_timeout_ms={endless}")], "run.update_timeout_ms"),
            (vec![format!("rollout.turn_timeout_ms={endless}")], "rollout.turn_timeout_ms"),
            (vec![format!("engine.client.deadlines.load_ms={endless}")], "engine.client.deadlines.load_ms"),
            (vec!["sandbox.local.limits.file_size_bytes=0".to_owned()], "sandbox.local.limits.file_size_bytes"),
        ];
        for (settings, key) in cases {
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            let problems = problems_of(&settings);
            assert!(problems.len() == 1 && problems[0].contains(key), "{settings:?}: {problems:?}");
        }
    }
}
