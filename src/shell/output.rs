//! How answers are shown: as tables for people, as JSON or YAML for programs.
//!
//! One way for all: an answer is a tree of values. In a table, names that end in `_ms` are durations, `_at_ms` times of
//! day, `_bytes` sizes; everything else is shown as it is.

use std::str::FromStr;

use greenroom_messages::steer::{Cell, Sight, SqlAnswer};
use serde_json::{Map, Value};

use super::words::{bytes_words, clock_words, duration_words};

/// The most characters of a table's cell; JSON and YAML show all.
const MOST_CELL_CHARS: usize = 2_000;

/// How an answer is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For both.
    Yaml,
}

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "table" => Ok(Self::Table),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            _ => Err(format!("-o takes table, json or yaml, not {text:?}")),
        }
    }
}

impl Output {
    /// A value in this shape.
    pub(super) fn show(self, value: &Value) -> String {
        match self {
            Self::Table => table(value),
            Self::Json => serde_json::to_string_pretty(value).unwrap_or_default(),
            Self::Yaml => serde_yaml_ng::to_string(value).unwrap_or_default().trim_end().to_owned(),
        }
    }
}

/// What was looked at, as values.
pub(super) fn value_of(sight: &Sight) -> Value {
    let value = match sight {
        Sight::Status(status) => serde_json::to_value(status),
        Sight::Nodes(rows) => serde_json::to_value(rows),
        Sight::Actors(rows) => serde_json::to_value(rows),
        Sight::Engines(rows) => serde_json::to_value(rows),
        Sight::Pools(rows) => serde_json::to_value(rows),
        Sight::Rollouts(rows) => serde_json::to_value(rows),
        Sight::Leases(rows) => serde_json::to_value(rows),
        Sight::Settings(rows) => serde_json::to_value(rows),
        Sight::Checksums(rows) => serde_json::to_value(rows),
        Sight::Names(names) => serde_json::to_value(names),
        Sight::Weights(rows) => serde_json::to_value(rows),
        Sight::Events(rows) => serde_json::to_value(rows),
        Sight::Inspect(sight) => serde_json::to_value(sight),
        Sight::Why(rows) => serde_json::to_value(rows),
        Sight::Sql(answer) => Ok(sql_value(answer)),
        Sight::Bundle(files) => serde_json::to_value(files),
    };
    let mut value = value.unwrap_or_default();
    match (sight, &mut value) {
        (Sight::Events(_), Value::Array(rows)) => rows.iter_mut().for_each(|row| parse_text(row, "body")),
        (Sight::Inspect(_), row) => parse_text(row, "state"),
        // pairs become an object: states and their counts
        (Sight::Status(status), Value::Object(fields)) => {
            let states = status.rollout_states.iter().map(|(state, count)| (state.clone(), (*count).into()));
            fields.insert("rollout_states".to_owned(), Value::Object(states.collect()));
        }
        _ => {}
    }
    value
}

/// A text that is JSON itself, as the values it holds.
fn parse_text(row: &mut Value, field: &str) {
    let parsed = row.get(field).and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    if let (Some(parsed), Some(fields)) = (parsed, row.as_object_mut()) {
        fields.insert(field.to_owned(), parsed);
    }
}

/// Rows as objects; a name that two columns have is numbered.
fn sql_value(answer: &SqlAnswer) -> Value {
    let mut names: Vec<String> = Vec::new();
    for column in &answer.columns {
        let taken = names.contains(column);
        names.push(if taken { format!("{column}_{}", names.len() + 1) } else { column.clone() });
    }
    let row = |cells: &Vec<Cell>| {
        let cells = cells.iter().map(|cell| match cell {
            Cell::Null => Value::Null,
            Cell::Integer(number) => (*number).into(),
            Cell::Real(number) => (*number).into(),
            Cell::Text(text) => text.as_str().into(),
        });
        Value::Object(names.iter().cloned().zip(cells).collect::<Map<String, Value>>())
    };
    Value::Array(answer.rows.iter().map(row).collect())
}

/// A value as a table: rows of objects with a line each, one object with a line a field.
pub(super) fn table(value: &Value) -> String {
    match value {
        Value::Array(rows) if rows.is_empty() => "none".to_owned(),
        Value::Array(rows) => {
            let mut columns: Vec<&str> = Vec::new();
            for key in rows.iter().filter_map(Value::as_object).flat_map(Map::keys) {
                if !columns.contains(&key.as_str()) {
                    columns.push(key);
                }
            }
            if columns.is_empty() {
                return rows.iter().map(|row| cell("", row)).collect::<Vec<_>>().join("\n");
            }
            let mut lines = vec![columns.iter().map(|column| header(column)).collect::<Vec<_>>()];
            lines.extend(rows.iter().map(|row| {
                columns.iter().map(|column| cell(column, row.get(*column).unwrap_or(&Value::Null))).collect()
            }));
            aligned(&lines)
        }
        Value::Object(fields) => {
            let lines: Vec<Vec<String>> =
                fields.iter().map(|(key, value)| vec![plain_name(key), cell(key, value)]).collect();
            aligned(&lines)
        }
        other => cell("", other),
    }
}

/// A value on one line.
pub(super) fn line(value: &Value) -> String {
    cell("", value)
}

/// A name without its unit, which the values show.
fn plain_name(name: &str) -> String {
    let stem = ["_at_ms", "_ms", "_bytes"].into_iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    printable(&stem.replace(['_', '\n', '\r'], " "))
}

fn header(name: &str) -> String {
    plain_name(name).to_uppercase()
}

fn cell(name: &str, value: &Value) -> String {
    let number = value.as_f64();
    match (value, number) {
        (Value::Null, _) => "-".to_owned(),
        (Value::Bool(true), _) => "yes".to_owned(),
        (Value::Bool(false), _) => "no".to_owned(),
        (_, Some(_)) if name.ends_with("at_ms") => clock_words(value.as_u64().unwrap_or(0)),
        (_, Some(number)) if name.ends_with("_ms") => duration_words(number),
        (_, Some(number)) if name.ends_with("bytes") => bytes_words(number),
        (Value::Number(number), Some(float)) if number.is_f64() => {
            let text = format!("{float:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        // a line of a table is one line
        (Value::String(text), _) => printable(&text.replace(['\n', '\r'], " ")),
        (Value::Array(items), _) => items.iter().map(|item| cell("", item)).collect::<Vec<_>>().join(","),
        (Value::Object(fields), _) => {
            let pairs = fields.iter().filter(|(key, _)| *key != "event");
            pairs.map(|(key, value)| format!("{}={}", printable(key), cell(key, value))).collect::<Vec<_>>().join(" ")
        }
        (other, _) => other.to_string(),
    }
}

/// A text of a stranger with what steers a terminal, or turns the direction of writing, escaped as Rust escapes it. Ends of
/// lines stay.
pub fn printable(text: &str) -> String {
    let steers = |character: char| {
        character.is_control() && character != '\n'
            || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if steers(character) { shown.extend(character.escape_debug()) } else { shown.push(character) }
    }
    shown
}

/// A text of at most so many characters, with an ellipsis where it was longer.
fn cut(text: &str) -> String {
    match text.char_indices().nth(MOST_CELL_CHARS) {
        None => text.to_owned(),
        Some(_) => text.chars().take(MOST_CELL_CHARS - 1).chain(['…']).collect(),
    }
}

/// Lines of cells, in columns. Cells are cut to what a person may want to read.
fn aligned(lines: &[Vec<String>]) -> String {
    let lines: Vec<Vec<String>> = lines.iter().map(|line| line.iter().map(|text| cut(text)).collect()).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |cells: &Vec<String>| {
        // widths of the formatter end at 65,535, and panic beyond
        let blanks = |text: &String, width: usize| " ".repeat(width.saturating_sub(text.chars().count()));
        let padded = cells.iter().zip(&widths).map(|(text, width)| format!("{text}{}", blanks(text, *width)));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use greenroom_messages::steer::EventSight;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_become_tables_with_units_for_people() {
        let rows = json!([
            { "engine": "eng0", "age_ms": 1500, "disk_free_bytes": 2048, "at_ms": 3_723_004, "trouble": null },
            { "engine": "engine-1", "age_ms": 3, "disk_free_bytes": 1, "at_ms": 0, "trouble": "a\nb" },
        ]);
        let expected = "ENGINE    AGE    DISK FREE  AT            TROUBLE\n\
                        eng0      1.5 s  2.0 KiB    01:02:03.004  -\n\
                        engine-1  3 ms   1 B        00:00:00.000  a b";
        assert_eq!(table(&rows), expected);
        assert_eq!(table(&json!([])), "none");
        assert_eq!(
            table(&json!({ "step": 3, "reward": 0.25, "paused": false })),
            "step    3\nreward  0.25\npaused  no"
        );
    }

    #[test]
    fn a_cell_is_cut_and_steers_no_terminal() {
        let value = json!([{ "a": "é".repeat(70_000), "b": "x" }]);
        let shown = table(&value);
        let line = shown.lines().nth(1).unwrap();
        assert_eq!(line.chars().count(), MOST_CELL_CHARS + 3);
        assert!(line.ends_with("é…  x"), "{}", line.len());
        assert!(Output::Json.show(&value).chars().count() > 70_000);
        let steering = json!([{ "a\u{1b}b": "\u{1b}[31mred\u{9b}1m\t\u{202e}left\u{2066}\nnext" }]);
        assert_eq!(table(&steering), "A\\U{1B}B\n\\u{1b}[31mred\\u{9b}1m\\t\\u{202e}left\\u{2066} next");
        assert_eq!(table(&json!({ "k": ["\u{7f}"] })), "k  \\u{7f}");
    }

    #[test]
    fn an_events_body_is_values_in_json_and_yaml() {
        let event =
            EventSight { seq: 1, at_ms: 2, event: "note".into(), body: "{\"event\":\"note\",\"text\":\"x\"}".into() };
        let value = value_of(&Sight::Events(vec![event]));
        assert_eq!(value[0]["body"]["text"], "x");
        assert!(Output::Yaml.show(&value).contains("text: x"));
        assert_eq!(serde_json::from_str::<Value>(&Output::Json.show(&value)).unwrap(), value);
    }

    #[test]
    fn an_answer_of_sql_is_rows_of_objects() {
        let answer = SqlAnswer {
            columns: vec!["n".into(), "n".into()],
            rows: vec![vec![Cell::Integer(1), Cell::Null], vec![Cell::Real(0.5), Cell::Text("x".into())]],
            more: false,
        };
        assert_eq!(value_of(&Sight::Sql(answer)), json!([{ "n": 1, "n_2": null }, { "n": 0.5, "n_2": "x" }]));
    }
}
