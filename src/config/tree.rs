//! The configuration before it has types: values by key, and who gave each.
//!
//! Layers are put on one after another, leaf by leaf; a later leaf replaces an earlier one. Tables are never leaves, so that
//! two files may each set some keys of one table.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

/// Who gave a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A line of a file.
    File(PathBuf, usize),
    /// A variable of the environment.
    Environment(String),
    /// `--set` with this key.
    Setting(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(formatter, "{}:{line}", path.display()),
            Self::Environment(name) => write!(formatter, "{name}"),
            Self::Setting(key) => write!(formatter, "--set {key}"),
        }
    }
}

/// Values and origins; see the module's page.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// All values, defaults included.
    pub(super) values: Value,
    defaults: Value,
    origins: BTreeMap<Vec<String>, Origin>,
}

impl Tree {
    /// A tree of defaults.
    pub(super) fn new(defaults: Value) -> Self {
        Self { values: defaults.clone(), defaults, origins: BTreeMap::new() }
    }

    /// Puts a leaf on. A plain value where a table is known is refused, so that it does not hide the table's own keys.
    pub(super) fn put(&mut self, path: &[String], leaf: Value, origin: Origin) -> Result<(), String> {
        let is_table =
            at(&self.defaults, path).is_some_and(|known| known.as_object().is_some_and(|known| !known.is_empty()));
        if is_table && !leaf.is_object() {
            return Err(format!("{} must be a table, but is {leaf} (from {origin})", key(path)));
        }
        let mut place = &mut self.values;
        for step in path {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            let Value::Object(table) = place else { return Ok(()) };
            place = table.entry(step.clone()).or_insert(Value::Null);
        }
        match (&*place, &leaf) {
            // an empty table says that the table is there, no more
            (Value::Object(_), Value::Object(empty)) if empty.is_empty() => {}
            _ => *place = leaf,
        }
        self.origins.retain(|known, _| !known.starts_with(path) || known.as_slice() == path);
        self.origins.insert(path.to_vec(), origin);
        Ok(())
    }

    /// Takes a place back to its default, or out where there is none. False if there was nothing to take.
    pub(super) fn reset(&mut self, path: &[String]) -> bool {
        let before = self.values.clone();
        let default = at(&self.defaults, path).cloned();
        let Some((last, above)) = path.split_last() else { return false };
        let mut place = &mut self.values;
        for step in above {
            match place.get_mut(step) {
                Some(next) => place = next,
                None => return false,
            }
        }
        let Value::Object(table) = place else { return false };
        match default {
            Some(default) => drop(table.insert(last.clone(), default)),
            None => drop(table.remove(last)),
        }
        self.values != before
    }

    /// The value at a path, and the longest part of the path that leads to it: an entry of a list stands for its list.
    pub(super) fn value<'a>(&'a self, path: &'a [String]) -> (&'a [String], Option<&'a Value>) {
        let length = path.iter().position(|step| step.starts_with('[')).unwrap_or(path.len());
        (&path[..length], at(&self.values, &path[..length]))
    }

    /// Who gave the value at a path: itself, a part of it, or the table that it is in; none for a default.
    pub(super) fn origin(&self, path: &[String]) -> Option<&Origin> {
        let exact = self.origins.get(path);
        exact.or_else(|| self.origins.iter().find(|(known, _)| known.starts_with(path)).map(|(_, origin)| origin))
    }

    /// All paths that somebody gave.
    pub(super) fn given(&self) -> impl Iterator<Item = (&Vec<String>, &Origin)> {
        self.origins.iter()
    }
}

/// The value at a path.
pub(super) fn at<'a>(tree: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(tree, |place, step| place.get(step))
}

/// A path as it is written.
pub(super) fn key(path: &[String]) -> String {
    let mut text = String::new();
    for step in path {
        if !text.is_empty() && !step.starts_with('[') {
            text.push('.');
        }
        text.push_str(step);
    }
    text
}

/// A written key as a path.
pub(super) fn path(key: &str) -> Vec<String> {
    key.split('.').map(|step| step.trim().to_owned()).collect()
}

/// A leaf of a file: where it belongs, what it is, and its line.
pub(super) type Leaf = (Vec<String>, Value, usize);

/// All leaves of a TOML text; or the line and the words of what is wrong with it.
pub(super) fn leaves(text: &str) -> Result<Vec<Leaf>, (usize, String)> {
    let table = DeTable::parse(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        (line(text, start), error.message().replace('\n', " "))
    })?;
    let mut found = Vec::new();
    collect(table.get_ref(), text, &mut Vec::new(), &mut found);
    Ok(found)
}

fn collect(table: &DeTable<'_>, text: &str, path: &mut Vec<String>, found: &mut Vec<Leaf>) {
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => collect(inner, text, path, found),
            leaf => found.push((path.clone(), plain(leaf), line(text, key.span().start))),
        }
        path.pop();
    }
}

fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// A text as the value that it looks like: a TOML value where it is one, else the text itself.
pub(super) fn typed(text: &str) -> Value {
    match DeValue::parse(text) {
        Ok(value) => plain(value.get_ref()),
        Err(_) => Value::String(text.to_owned()),
    }
}

/// A TOML value without its place. What JSON cannot hold stays a text, which then is of the wrong kind wherever it stands.
fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(integer) => integer_value(integer.as_str(), integer.radix()),
        DeValue::Float(float) => float_value(float.as_str()),
        DeValue::Boolean(truth) => Value::Bool(*truth),
        DeValue::Datetime(time) => Value::String(time.to_string()),
        DeValue::Array(values) => values.iter().map(|value| plain(value.get_ref())).collect(),
        DeValue::Table(table) => {
            table.iter().map(|(key, value)| (key.get_ref().to_string(), plain(value.get_ref()))).collect()
        }
    }
}

fn integer_value(digits: &str, radix: u32) -> Value {
    match (u64::from_str_radix(digits, radix), i64::from_str_radix(digits, radix)) {
        (Ok(number), _) => number.into(),
        (_, Ok(number)) => number.into(),
        _ => float_value(digits),
    }
}

fn float_value(digits: &str) -> Value {
    let number = digits.parse::<f64>().ok().and_then(Number::from_f64);
    number.map_or_else(|| Value::String(digits.to_owned()), Value::Number)
}

/// A line of a file, for messages.
pub(super) fn place(file: &Path, line: usize) -> Origin {
    Origin::File(file.to_owned(), line)
}
