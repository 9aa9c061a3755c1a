//! The quickstart's content as it lies under `config/quickstart`, built into the program and checked when read.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::error::MakeError;

macro_rules! content {
    ($($path:tt)+) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/quickstart/", $($path)+))
    };
}

macro_rules! project {
    ($name:literal, $module:literal, $first:literal, $second:literal) => {
        Project {
            name: $name,
            module: $module,
            first_commit: &[
                ("README.md", content!("projects/", $name, "/README.md")),
                (".gitignore", content!("projects/", $name, "/gitignore")),
                ($module, content!("projects/", $name, "/", $module)),
                ("tests/__init__.py", content!("projects/", $name, "/tests/__init__.py")),
            ],
            tests: [
                (concat!("tests/", $first), content!("projects/", $name, "/tests/", $first)),
                (concat!("tests/", $second), content!("projects/", $name, "/tests/", $second)),
            ],
        }
    };
}

/// A small Python project.
#[derive(Clone, Copy, Debug)]
pub(super) struct Project {
    /// Its name.
    pub(super) name: &'static str,
    /// Its one module.
    pub(super) module: &'static str,
    /// Path and text of the files that its history begins with.
    pub(super) first_commit: &'static [(&'static str, &'static str)],
    /// Its test files, each of which is a commit of its own.
    pub(super) tests: [(&'static str, &'static str); 2],
}

impl Project {
    /// The module's right text.
    pub(super) fn source(&self) -> &'static str {
        self.first_commit.iter().find(|(path, _)| *path == self.module).map_or("", |(_, text)| text)
    }
}

pub(super) const PROJECTS: &[Project] = &[
    project!("graph", "graph.py", "test_edges.py", "test_walks.py"),
    project!("matrix", "matrix.py", "test_arithmetic.py", "test_form.py"),
    project!("money", "money.py", "test_amounts.py", "test_purse.py"),
    project!("queues", "queues.py", "test_queue.py", "test_tools.py"),
    project!("spans", "spans.py", "test_pairs.py", "test_single.py"),
    project!("textkit", "textkit.py", "test_lines.py", "test_words.py"),
];

/// The agent file.
pub(super) const AGENT_FILE: &str = content!("agent.yaml");
/// The chat template of the policy.
pub(super) const CHAT_TEMPLATE: &str = content!("chat_template.jinja");
/// The policy's `config.json`, without the vocabulary's size.
pub(super) const MODEL: &str = content!("model.json");

/// What an instance is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Split {
    /// Only in demonstrations.
    Sft,
    /// Trained on by reinforcement.
    Rl,
    /// Never trained on.
    Heldout,
}

/// A bug to be seeded.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bug {
    /// The project's name.
    pub(super) project: String,
    /// The file.
    pub(super) file: String,
    /// The function that the line is part of.
    pub(super) function: String,
    /// The kind of mistake.
    pub(super) family: String,
    /// What the instance is used for.
    pub(super) split: Split,
    /// The right line.
    pub(super) line: String,
    /// The wrong line.
    pub(super) bug: String,
    /// What the fix replaces, and by what.
    pub(super) fix: (String, String),
    /// What the agent is told.
    pub(super) problem_statement: String,
}

/// The files and requests of the `cmd` tasks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Commands {
    /// Name → text.
    pub(super) files: BTreeMap<String, String>,
    /// What may be asked of each file.
    pub(super) requests: Vec<Request>,
}

/// One request of the `cmd` tasks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// Its name, part of the task's id.
    pub(super) name: String,
    /// Its words, before the file's name.
    pub(super) request: String,
    /// The command that answers it from standard input.
    pub(super) command: String,
}

/// Every bug, checked against the projects.
pub(super) fn bugs() -> Result<Vec<Bug>, MakeError> {
    let mut bugs = Vec::new();
    let (mut seen, mut reports) = (BTreeSet::new(), BTreeMap::new());
    for (number, line) in (1..).zip(content!("bugs.jsonl").lines()) {
        let place = format!("bugs.jsonl:{number}");
        let bug: Bug = serde_json::from_str(line).map_err(|error| MakeError::content(&place, error))?;
        bug.check().map_err(|reason| MakeError::content(&place, reason))?;
        if !seen.insert((bug.project.clone(), bug.function.clone(), bug.bug.clone())) {
            return Err(MakeError::content(place, "is there twice"));
        }
        let first_split = *reports.entry(bug.problem_statement.clone()).or_insert(bug.split);
        if first_split != bug.split {
            return Err(MakeError::content(place, "its report is that of a bug in another split"));
        }
        bugs.push(bug);
    }
    Ok(bugs)
}

/// The `cmd` tasks' files and requests.
pub(super) fn commands() -> Result<Commands, MakeError> {
    serde_json::from_str(content!("commands.json")).map_err(|error| MakeError::content("commands.json", error))
}

impl Bug {
    /// The project.
    pub(super) fn project(&self) -> Option<&'static Project> {
        PROJECTS.iter().find(|project| project.name == self.project)
    }

    /// The module's text with the bug in it.
    pub(super) fn wrong_source(&self) -> String {
        let source = self.project().map_or("", Project::source);
        let mut lines: Vec<&str> = source.split('\n').collect();
        let (start, end) = function_lines(&lines, &self.function);
        if let Some(index) = (start..end).find(|index| lines[*index] == self.line) {
            lines[index] = &self.bug;
        }
        lines.join("\n")
    }

    fn check(&self) -> Result<(), String> {
        let project = self.project().ok_or_else(|| format!("there is no project {}", self.project))?;
        if self.file != project.module {
            return Err(format!("{} is not the module of {}", self.file, self.project));
        }
        let wrong = self.wrong_source();
        if wrong == project.source() {
            return Err(format!("{} has no line {:?}", self.function, self.line));
        }
        if replaced(&wrong, &self.function, &self.fix.0, &self.fix.1) != project.source() {
            return Err(format!("replacing {:?} by {:?} does not mend it", self.fix.0, self.fix.1));
        }
        Ok(())
    }
}

/// First line of a function and the line after its last one, by index; a function ends at the first empty line.
fn function_lines(lines: &[&str], function: &str) -> (usize, usize) {
    let head = format!("def {function}(");
    let start = lines.iter().position(|line| line.contains(&head)).unwrap_or(lines.len());
    let end = lines[start..].iter().position(|line| line.is_empty()).map_or(lines.len(), |length| start + length);
    (start, end)
}

/// What `sed -n '/def FUNCTION(/,/^$/p'` prints of a text that ends with a new line.
pub(super) fn shown(text: &str, function: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (start, end) = function_lines(&lines, function);
    lines[start..lines.len().min(end + 1)].iter().flat_map(|line| [*line, "\n"]).collect()
}

/// What `sed -i '/def FUNCTION(/,/^$/s|FROM|TO|'` makes of a text; FROM may escape a character by a backslash.
fn replaced(text: &str, function: &str, from: &str, to: &str) -> String {
    let (from, to) = (from.replace('\\', ""), to.replace('\\', ""));
    let lines: Vec<&str> = text.split('\n').collect();
    let (start, end) = function_lines(&lines, function);
    let edit = |(index, line): (usize, &&str)| match (start..end).contains(&index) {
        true => line.replacen(&from, &to, 1),
        false => (*line).to_owned(),
    };
    lines.iter().enumerate().map(edit).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_is_mended_by_its_own_fix() {
        let bugs = bugs().unwrap();
        let count = |split| bugs.iter().filter(|bug| bug.split == split).count();
        assert!(count(Split::Sft) >= 100 && count(Split::Rl) >= 12 && count(Split::Heldout) >= 12);
        let families: BTreeSet<_> = bugs.iter().map(|bug| bug.family.as_str()).collect();
        assert!(families.len() >= 6, "{families:?}");
    }

    #[test]
    fn each_function_with_a_task_is_known_from_other_bugs() {
        let bugs = bugs().unwrap();
        for bug in bugs.iter().filter(|bug| bug.split != Split::Sft) {
            let is_sibling = |other: &&Bug| other.split == Split::Sft && other.function == bug.function;
            assert!(bugs.iter().any(|other| is_sibling(&other)), "{} {}", bug.project, bug.function);
        }
    }
}
