//! What is said about a wrong configuration: key, what would be right, what was given, and by whom.

use serde_json::Value;

use super::tree::{self, Tree, key};
use super::typed::{What, Wrong};

/// A line about the configuration, and the keys about which nothing more needs to be said.
pub(super) struct Finding {
    pub(super) text: String,
    keys: Vec<String>,
}

impl Finding {
    pub(super) fn new(text: String) -> Self {
        Self { text, keys: Vec::new() }
    }

    /// Whether a problem of the values only follows from this one.
    pub(super) fn covers(&self, problem: &str) -> bool {
        let is_named =
            |key: &String| problem.match_indices(key.as_str()).any(|(at, _)| is_whole(problem, at, key.len()));
        let lacks_engine = problem.starts_with(super::NO_ENGINE);
        self.keys.iter().any(|key| is_named(key) || lacks_engine && key.starts_with("engine."))
    }
}

fn is_whole(text: &str, at: usize, length: usize) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.".contains(byte);
    let bytes = text.as_bytes();
    let before = at.checked_sub(1).and_then(|before| bytes.get(before));
    !before.is_some_and(is_part)
        && !bytes.get(at + length).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// A wrong place in words, and the path that must go back to its default.
pub(super) fn find(tree: &Tree, wrong: Wrong) -> (Finding, Vec<String>) {
    let Wrong { path, what } = wrong;
    let written = key(&path);
    match what {
        What::UnknownKey { key: unknown, known } => {
            let place = [path.as_slice(), std::slice::from_ref(&unknown)].concat();
            let whole = |name: &String| if written.is_empty() { name.clone() } else { format!("{written}.{name}") };
            let near = nearest(&unknown, &known).map(&whole);
            let advice = match &near {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known here are {}", known.iter().map(whole).collect::<Vec<_>>().join(", ")),
            };
            let text = format!("unknown key {}: {advice}{}", key(&place), source(tree, &place));
            (Finding { text, keys: near.into_iter().collect() }, place)
        }
        What::MissingKey(missing) => {
            let text = format!("{written}.{missing} is missing{}", source(tree, &path));
            (Finding { text, keys: vec![written] }, path)
        }
        what => {
            let (place, value) = tree.value(&path);
            let shown = value.map(|value| innermost(value, &path[place.len()..]));
            let text = format!("{written} {}{}", demand(what, shown, &written), source(tree, place));
            (Finding { text, keys: vec![key(place)] }, place.to_vec())
        }
    }
}

/// The entry of a list that a path goes on to.
fn innermost<'a>(value: &'a Value, steps: &[String]) -> &'a Value {
    steps.iter().fold(value, |place, step| {
        let number = step.trim_matches(['[', ']']).parse::<usize>();
        number.map_or_else(|_| place.get(step), |number| place.get(number)).unwrap_or(place)
    })
}

fn demand(what: What, given: Option<&Value>, key: &str) -> String {
    // what was given where a credential's source should stand may be the credential
    let is_secret = key.contains("credentials");
    let shown = given.filter(|_| !is_secret).map_or_else(String::new, |given| format!(", but is {given}"));
    match what {
        What::Kind(expected) => format!("must be {}{shown}", kind(&expected)),
        What::Word(words) if is_secret => format!("must be a table with one of the keys {}", words.join(", ")),
        What::Word(words) => {
            let near = given.and_then(Value::as_str).and_then(|given| nearest(given, &words));
            let near = near.map_or_else(String::new, |near| format!(": did you mean \"{near}\"?"));
            let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            format!("must be one of {}{shown}{near}", words.join(", "))
        }
        What::Other(text) => format!("{text}{shown}"),
        // these have no value of their own
        What::UnknownKey { key, .. } | What::MissingKey(key) => key,
    }
}

fn source(tree: &Tree, path: &[String]) -> String {
    tree.origin(path).map_or_else(String::new, |origin| format!(" (from {origin})"))
}

/// The nearest of some names, if any is near.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    let nearness = |known: &&String| strsim::jaro_winkler(known, name);
    let found = known.iter().max_by(|one, other| nearness(one).total_cmp(&nearness(other)))?;
    (nearness(&found) > 0.75).then_some(found)
}

/// What serde calls a kind, in words.
fn kind(expected: &str) -> String {
    let range = |least: String, most: String| format!("a whole number from {least} to {most}");
    match expected {
        "u8" => range(u8::MIN.to_string(), u8::MAX.to_string()),
        "u16" => range(u16::MIN.to_string(), u16::MAX.to_string()),
        "u32" => range(u32::MIN.to_string(), u32::MAX.to_string()),
        "u64" | "usize" => "a whole number of at least 0".to_owned(),
        "i32" => range(i32::MIN.to_string(), i32::MAX.to_string()),
        "i64" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" => "a text in quotes".to_owned(),
        "path string" => "a path in quotes".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        other if other.starts_with("struct ") => "a table".to_owned(),
        other => other.to_owned(),
    }
}

/// A problem of a value, with the value and who gave it, where it begins with a key that somebody gave.
pub(super) fn placed(tree: &Tree, problem: String) -> String {
    let begins = |key: &String| problem.starts_with(key.as_str()) && is_whole(&problem, 0, key.len());
    let given = tree.given().map(|(path, origin)| (key(path), path, origin));
    let Some((_, path, origin)) = given.filter(|(key, _, _)| begins(key)).max_by_key(|(key, _, _)| key.len()) else {
        return problem;
    };
    match tree::at(&tree.values, path) {
        Some(value) if !value.is_object() && !value.is_array() && !says(&problem, &shortest(value)) => {
            format!("{problem} ({}, from {origin})", shortest(value))
        }
        _ => format!("{problem} (from {origin})"),
    }
}

/// Whether a problem tells the value already, as most do behind "is".
fn says(problem: &str, value: &str) -> bool {
    ["is ", ": "].iter().any(|before| problem.contains(&format!("{before}{value}")))
}

/// A value as a person would write it: numbers of single precision without the digits that double precision adds.
pub(super) fn shortest(value: &Value) -> String {
    let single = value.as_f64().filter(|_| value.is_f64()).map(|number| (number, number as f32));
    match single {
        Some((number, single)) if f64::from(single) == number => {
            let plain = single.to_string().parse::<f64>().ok().and_then(serde_json::Number::from_f64);
            plain.map_or_else(|| value.to_string(), |plain| plain.to_string())
        }
        _ => value.to_string(),
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
    use super::shortest;
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
            (vec!["engine.embedded.device=gpu".to_owned()], "engine.embedded.device"),
            (vec![format!("run.update_timeout_ms={endless}")], "run.update_timeout_ms"),
            (vec![format!("rollout.turn_timeout_ms={endless}")], "rollout.turn_timeout_ms"),
            (vec![format!("engine.client.deadlines.load_ms={endless}")], "engine.client.deadlines.load_ms"),
            (vec!["engine.client.probe_interval_ms=0".to_owned()], "engine.client.probe_interval_ms"),
            (vec!["sandbox.local.limits.file_size_bytes=0".to_owned()], "sandbox.local.limits.file_size_bytes"),
            (vec!["rollout.top_k=0".to_owned()], "rollout.top_k"),
        ];
        for (settings, key) in cases {
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            let problems = problems_of(&settings);
            assert!(problems.len() == 1 && problems[0].starts_with(key), "{settings:?}: {problems:?}");
        }
    }

    #[test]
    fn numbers_are_shown_as_they_were_written() {
        for (value, text) in [
            (serde_json::json!(0.004_f32), "0.004"),
            (serde_json::json!(0.1_f64), "0.1"),
            (serde_json::json!(1e-5_f32), "0.00001"),
            (serde_json::json!(1.0_f32), "1.0"),
            (serde_json::json!(3), "3"),
            (serde_json::json!(u64::MAX), "18446744073709551615"),
            (serde_json::json!("x"), "\"x\""),
        ] {
            assert_eq!(shortest(&value), text);
        }
    }
}
