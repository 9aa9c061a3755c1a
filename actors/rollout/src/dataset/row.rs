//! Reading one row of the sample schema, with every problem of it at once.
//!
//! A row is `{text, label, metadata}`. What the agent is asked is `metadata.task`, else the prompt (`text` or `prompt`): a
//! text, or a conversation whose first user message counts. SWE-smith's fields are taken from `metadata` or from
//! `metadata.swesmith_inst`, where the example's loader puts them.

use std::collections::BTreeMap;

use greenroom_messages::TaskId;
use serde_json::Value;

use super::task::{Task, TaskGrading};
use crate::grading::{GradingKind, LogParser};

/// Reads one line of a file; the error is one line for each problem.
pub(super) fn read(line_text: &str, line: u64) -> Result<Task, Vec<String>> {
    let row: Value = serde_json::from_str(line_text)
        .map_err(|error| vec![format!("is not JSON ({error}): write one object a line, without line breaks")])?;
    if !row.is_object() {
        return Err(vec!["is not a JSON object: write {\"text\": …, \"label\": …, \"metadata\": {…}}".to_owned()]);
    }
    let mut reader = Reader { metadata: row.get("metadata").cloned().unwrap_or(Value::Null), problems: Vec::new() };
    if !matches!(reader.metadata, Value::Object(_) | Value::Null) {
        reader.problem("metadata is not an object: put the task's fields there");
    }
    reader.misspelt(&row);
    let id = reader.text("instance_id").or_else(|| label(&row)).unwrap_or_else(|| format!("line-{line}"));
    let prompt = reader.text("task").or_else(|| coerce_prompt(row.get("text").or_else(|| row.get("prompt"))?));
    if prompt.is_none() {
        reader.problem("has no prompt: give text, or metadata.task");
    }
    let repo = reader.text("repo").or_else(|| reader.instance_text("repo"));
    let grading = reader.grading(repo.as_deref().unwrap_or(&id));
    let task = Task {
        id: TaskId::new(id),
        prompt: prompt.unwrap_or_default(),
        image: reader.text("image").or_else(|| reader.text("pool")).unwrap_or_else(|| "default".to_owned()),
        workdir: reader.text("workdir"),
        files: reader.files("files"),
        setup_cmd: reader.text("setup_cmd"),
        repo,
        grading: grading.unwrap_or(TaskGrading::Cmd { eval_cmd: String::new(), eval_files: BTreeMap::new() }),
    };
    if task.workdir.as_deref().is_some_and(|workdir| !workdir.starts_with('/')) {
        reader.problem("metadata.workdir is not an absolute path: write it from / on");
    }
    if reader.problems.is_empty() { Ok(task) } else { Err(reader.problems) }
}

fn label(row: &Value) -> Option<String> {
    match row.get("label")? {
        Value::String(label) if !label.is_empty() => Some(label.clone()),
        Value::Number(label) => Some(label.to_string()),
        _ => None,
    }
}

/// A plain text, or the first user message of a conversation; empty texts do not count.
fn coerce_prompt(prompt: &Value) -> Option<String> {
    let text = match prompt {
        Value::String(text) => Some(text.as_str()),
        Value::Array(messages) => messages
            .iter()
            .filter(|message| message.get("role").and_then(Value::as_str) == Some("user"))
            .find_map(|message| message.get("content")?.as_str()),
        _ => None,
    };
    text.filter(|text| !text.trim().is_empty()).map(str::to_owned)
}

const ROW_KEYS: &[&str] = &["text", "prompt", "label", "metadata"];
const METADATA_KEYS: &[&str] = &[
    "instance_id",
    "task",
    "repo",
    "image",
    "pool",
    "workdir",
    "files",
    "setup_cmd",
    "eval_kind",
    "eval_cmd",
    "eval_files",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "test_cmd",
    "log_parser",
    "swesmith_inst",
    "bug_patch",
];

/// Whether one name is the other but for a slip of the fingers, or for capitals.
fn is_near(given: &str, known: &str) -> bool {
    let slips = if known.len() < 6 { 1 } else { 2 };
    strsim::osa_distance(&given.to_lowercase(), &known.to_lowercase()) <= slips
}

struct Reader {
    metadata: Value,
    problems: Vec<String>,
}

impl Reader {
    fn problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    /// A text; empty and null are the same as absent.
    fn text(&mut self, key: &str) -> Option<String> {
        match self.metadata.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.trim().is_empty() => None,
            Some(Value::String(text)) if text.contains('\0') => {
                self.problem(format!("metadata.{key} has a NUL character, which no command and no path can have"));
                None
            }
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                self.problem(format!("metadata.{key} is not text: put it in quotes"));
                None
            }
        }
    }

    /// Keys that are nearly those of the schema, where the right one is missing. Others are somebody's own.
    fn misspelt(&mut self, row: &Value) {
        let mut found = Vec::new();
        for (place, table, known) in [("", row, ROW_KEYS), ("metadata.", &self.metadata, METADATA_KEYS)] {
            let given = table.as_object().into_iter().flat_map(|table| table.keys());
            for key in given.filter(|key| !known.contains(&key.as_str())) {
                let near = known.iter().find(|known| table.get(**known).is_none() && is_near(key, known));
                found.extend(
                    near.map(|near| format!("has {place}{key}: did you mean {near}? Name it so, or otherwise")),
                );
            }
        }
        self.problems.extend(found);
    }

    fn instance_text(&self, key: &str) -> Option<String> {
        self.metadata.get("swesmith_inst")?.get(key)?.as_str().map(str::to_owned)
    }

    fn files(&mut self, key: &str) -> BTreeMap<String, String> {
        let entries = match self.metadata.get(key) {
            None | Some(Value::Null) => return BTreeMap::new(),
            Some(Value::Object(entries)) => entries.clone(),
            Some(_) => {
                self.problem(format!("metadata.{key} is not an object of paths and contents"));
                return BTreeMap::new();
            }
        };
        let mut files = BTreeMap::new();
        for (path, content) in entries {
            if path.is_empty() || path.contains('\0') || path.split('/').any(|part| part == "..") {
                self.problem(format!("metadata.{key} has the path {path:?}: keep it inside the working directory"));
            }
            match content {
                Value::String(content) => drop(files.insert(path, content)),
                _ => self.problem(format!("metadata.{key}.{path} is not text: files are given as text")),
            }
        }
        files
    }

    fn grading(&mut self, repo: &str) -> Option<TaskGrading> {
        let kind = self.text("eval_kind");
        let Some(kind) = GradingKind::from_name(kind.as_deref().unwrap_or("cmd")) else {
            self.problem(format!("eval_kind {:?} is not known: use cmd or swesmith", kind.unwrap_or_default()));
            return None;
        };
        match kind {
            GradingKind::Cmd => {
                let eval_files = self.files("eval_files");
                let eval_cmd = self.text("eval_cmd");
                if eval_cmd.is_none() {
                    self.problem("has no eval_cmd, so nothing could be graded: add the command, or drop the row");
                }
                Some(TaskGrading::Cmd { eval_cmd: eval_cmd?, eval_files })
            }
            GradingKind::SweSmith => self.swesmith(repo),
        }
    }

    fn swesmith(&mut self, repo: &str) -> Option<TaskGrading> {
        let fail_to_pass = self.tests("FAIL_TO_PASS");
        let pass_to_pass = self.tests("PASS_TO_PASS");
        if fail_to_pass.is_empty() {
            self.problem("has no FAIL_TO_PASS tests, so any answer would be right: add them, or drop the row");
        }
        let test_cmd = self.text("test_cmd").or_else(|| self.instance_text("test_cmd"));
        if test_cmd.is_none() {
            self.problem("has no test_cmd, so no test would run: add the repository's test command, or drop the row");
        }
        let parser = match self.text("log_parser").or_else(|| self.instance_text("log_parser")) {
            None => LogParser::for_repository(repo),
            Some(name) => match LogParser::from_name(&name) {
                Ok(parser) => parser,
                Err(error) => {
                    self.problem(error.to_string());
                    return None;
                }
            },
        };
        Some(TaskGrading::SweSmith { test_cmd: test_cmd?, parser, fail_to_pass, pass_to_pass })
    }

    /// A list of test names: a JSON list, or its text (as some exports write it).
    fn tests(&mut self, key: &str) -> Vec<String> {
        let instance = self.metadata.get("swesmith_inst");
        let value = self.metadata.get(key).or_else(|| instance?.get(key)).cloned().unwrap_or(Value::Null);
        let list = match &value {
            Value::Null => return Vec::new(),
            Value::String(text) => serde_json::from_str(text).unwrap_or(Value::Null),
            other => other.clone(),
        };
        match serde_json::from_value(list) {
            Ok(tests) => tests,
            Err(_) => {
                self.problem(format!("{key} is not a list of test names"));
                Vec::new()
            }
        }
    }
}
