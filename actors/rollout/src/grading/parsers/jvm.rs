//! Maven surefire's plain reports and JUnit's XML.
//!
//! `<<< ERROR!` counts as passed and so does every failure in the older line shape: the lists in the rows were made so.

use super::super::grade::TestStatus;
use super::super::parser::StatusMap;
use super::{Pattern, captures, pattern};
use crate::agent::python_text::strip;

/// Maven: `[INFO] name -- Time elapsed: …`, or the older `name(class)  Time elapsed: … sec`.
pub fn maven_surefire(log: &str) -> StatusMap {
    static TAGGED: Pattern = Pattern::new(|| pattern(r"^\[(?:INFO|ERROR)\]\s+(.*?)\s+--\s+Time elapsed:\s+[\d.]+\s"));
    static OLDER: Pattern = Pattern::new(|| pattern(r"^([\w$]+)\(([\w.$]+)\)\s+Time elapsed:\s+[\d.]+\s+sec"));
    let result = |line: &str| {
        let line = strip(line);
        if !line.starts_with('[') {
            let groups = captures(&OLDER, line)?;
            return Some((format!("{}.{}", groups[2], groups[1]), TestStatus::Passed));
        }
        let failed = line.starts_with("[ERROR]") && line.ends_with("<<< FAILURE!");
        let name = captures(&TAGGED, line)?[1].to_owned();
        Some((name, if failed { TestStatus::Failed } else { TestStatus::Passed }))
    };
    log.split('\n').filter_map(result).collect()
}

/// JUnit XML: every `<testsuite>` document of the log; a test is named by its class (or its suite) and its own name.
pub fn gradle_junit_xml(log: &str) -> StatusMap {
    static DOCUMENT: Pattern = Pattern::new(|| pattern(r"(?s)<\?xml version.*?</testsuite>"));
    let documents = DOCUMENT.as_ref().into_iter().flat_map(|document| document.find_iter(log));
    documents.flat_map(|found| document_results(found.as_str())).collect()
}

fn document_results(document: &str) -> Vec<(String, TestStatus)> {
    static TAG: Pattern = Pattern::new(|| {
        pattern(
            r#"(?s)<!--.*?-->|<!\[CDATA\[.*?\]\]>|<(/?)([\w:.-]+)((?:\s+[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'))*)\s*(/?)>"#,
        )
    });
    let mut results: Vec<(String, TestStatus)> = Vec::new();
    let mut suite = String::new();
    let mut in_case = false;
    for groups in TAG.as_ref().into_iter().flat_map(|tag| tag.captures_iter(document)) {
        let group = |index: usize| groups.get(index).map_or("", |found| found.as_str());
        let (closing, closed) = (!group(1).is_empty(), !group(4).is_empty());
        match group(2) {
            "testsuite" if !closing => suite = attribute(group(3), "name").unwrap_or_default(),
            "testcase" if closing => in_case = false,
            "testcase" => {
                let class = attribute(group(3), "classname").unwrap_or_else(|| suite.clone());
                let name = attribute(group(3), "name").unwrap_or_default();
                results.push((format!("{class}.{name}"), TestStatus::Passed));
                in_case = !closed;
            }
            verdict @ ("failure" | "error" | "skipped") if in_case && !closing => {
                let status = if verdict == "skipped" { TestStatus::Skipped } else { TestStatus::Failed };
                // A failure is not undone by a later mark of the same test.
                if let Some((_, last)) = results.last_mut().filter(|(_, last)| *last != TestStatus::Failed) {
                    *last = status;
                }
            }
            _ => {}
        }
    }
    results
}

fn attribute(attributes: &str, name: &str) -> Option<String> {
    static PAIR: Pattern = Pattern::new(|| pattern(r#"([\w:.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')"#));
    let mut pairs = PAIR.as_ref()?.captures_iter(attributes);
    let found = pairs.find(|pair| pair.get(1).is_some_and(|key| key.as_str() == name))?;
    let value = found.get(2).or(found.get(3)).map_or("", |value| value.as_str());
    Some(unescape(value))
}

fn unescape(text: &str) -> String {
    static ENTITY: Pattern = Pattern::new(|| pattern(r"&(?:#(\d+)|#x([0-9a-fA-F]+)|(\w+));"));
    let Some(entity) = ENTITY.as_ref() else { return text.to_owned() };
    let replaced = entity.replace_all(text, |groups: &regex::Captures<'_>| {
        let code = |index: usize, radix| u32::from_str_radix(&groups[index], radix).ok().and_then(char::from_u32);
        let character = match (groups.get(1), groups.get(2), groups.get(3).map(|name| name.as_str())) {
            (Some(_), _, _) => code(1, 10),
            (_, Some(_), _) => code(2, 16),
            (_, _, Some("lt")) => Some('<'),
            (_, _, Some("gt")) => Some('>'),
            (_, _, Some("amp")) => Some('&'),
            (_, _, Some("quot")) => Some('"'),
            (_, _, Some("apos")) => Some('\''),
            _ => None,
        };
        character.map_or_else(|| groups[0].to_owned(), String::from)
    });
    replaced.into_owned()
}
