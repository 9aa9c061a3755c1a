//! Promise: replies are parsed, submissions recognised and results shown exactly as mini-swe-agent does.
//!
//! The vectors were made by calling its functions directly, most on generated text with odd white space and line ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greenroom_rollout::agent::{
    ActionProtocol, ActionRegex, Agent, AgentDefinition, AgentFile, AgentTask, DEFAULT_ACTION_REGEX, ExecFailure,
    ExecResult, HostFacts, NextStep, Reply, ToolCall, Uname, submission,
};
use serde_json::Value;

use crate::{compare::differences, fixtures, read_json, templates};

/// Run `check` on every vector of a kind; it returns what is wrong.
fn check(kind: &str, mut check: impl FnMut(&Value) -> Vec<String>) {
    let vectors = read_json(&fixtures().join("vectors.json"));
    let vectors = vectors[kind].as_array().unwrap();
    assert!(!vectors.is_empty());
    let mut failures = Vec::new();
    for vector in vectors {
        failures.extend(check(vector).into_iter().map(|failure| format!("{vector}\n    {failure}")));
    }
    println!("{kind}: {} vectors", vectors.len());
    assert!(failures.is_empty(), "{kind}: {} of {} fail\n{}", failures.len(), vectors.len(), failures.join("\n"));
}

#[test]
fn actions_are_found_where_upstream_finds_them() {
    let pattern = ActionRegex::new(DEFAULT_ACTION_REGEX).unwrap();
    check("parse", |vector| {
        let actions = pattern.actions(vector["content"].as_str().unwrap());
        let same = match vector.get("actions") {
            Some(recorded) => *recorded == serde_json::json!(actions),
            None => vector["n_actions"] == actions.len() && actions.len() != 1,
        };
        if same { Vec::new() } else { vec![format!("found {actions:?}")] }
    });
}

#[test]
fn corrections_are_worded_as_upstream_words_them() {
    let templates = templates::load("mini_textbased.yaml");
    check("parse", |vector| {
        let Some(recorded) = vector.get("message") else { return Vec::new() };
        let mut agent = waiting_agent(&templates.file);
        let finish_reason = Some(vector["finish_reason"].as_str().unwrap_or("stop").to_owned());
        let content = vector["content"].as_str().unwrap().to_owned();
        agent.on_reply(Reply { content, finish_reason, ..Reply::default() }).unwrap();
        differences(recorded, &agent.messages()[2].content.as_str().into(), templates.known)
    });
}

#[test]
fn submissions_are_recognised_as_upstream_does() {
    check("finished", |vector| {
        let output = vector["output"].as_str().unwrap();
        let result = ExecResult::finished(output, vector["returncode"].as_i64().unwrap());
        let ours = submission(&result);
        if ours == vector["submission"].as_str() { Vec::new() } else { vec![format!("ours {ours:?}")] }
    });
}

#[test]
fn results_are_shown_as_upstream_shows_them() {
    let templates = templates::load("mini_textbased.yaml");
    check("observe_text", |vector| {
        let call = Reply { content: "```mswea_bash_command\ntrue\n```".to_owned(), ..Reply::default() };
        // Short results have no words of the package in them: they are compared with our own templates too.
        let short = vector["length"].as_u64().unwrap() < 10_000;
        observed(&templates.file, call, vector, templates.known || short)
    });
}

#[test]
fn tool_results_are_shown_as_upstream_shows_them() {
    let mut templates = templates::load("mini.yaml");
    templates.file.model.protocol = ActionProtocol::ToolCall;
    check("observe_tool", |vector| {
        let arguments = r#"{"command": "true"}"#.to_owned();
        let tool_calls = vec![ToolCall { id: "c".to_owned(), name: "bash".to_owned(), arguments }];
        observed(&templates.file, Reply { tool_calls, ..Reply::default() }, vector, templates.known)
    });
}

fn observed(file: &AgentFile, call: Reply, vector: &Value, comparable: bool) -> Vec<String> {
    let unit = vector["unit"].as_str().unwrap();
    let length = usize::try_from(vector["length"].as_u64().unwrap()).unwrap();
    let mut result = ExecResult::finished(
        unit.chars().cycle().take(length).collect::<String>(),
        vector["returncode"].as_i64().unwrap(),
    );
    if let Some(info) = vector["exception_info"].as_str().filter(|info| !info.is_empty()) {
        let prefix = ExecResult::not_started("OSError", "").exception_info();
        let exception = info.strip_prefix(&prefix).unwrap_or(info).to_owned();
        result.failure = Some(ExecFailure { exception_type: "OSError".to_owned(), exception });
    }
    let mut agent = waiting_agent(file);
    agent.on_reply(call).unwrap();
    // Vectors may have any failure text; real results always begin with the fixed words.
    let prefix = ExecResult::not_started("", "").exception_info();
    let prefixed = !vector["exception_info"].as_str().unwrap().starts_with(&prefix) && result.failure.is_some();
    agent.on_output(result, Duration::ZERO).unwrap();
    let mut content = agent.messages()[3].content.clone();
    if prefixed {
        content = content.replacen(&prefix, "", 1);
    }
    let hash = serde_json::json!({"sha256": vector["sha256"], "chars": vector["chars"], "template": "observation"});
    differences(&hash, &content.into(), comparable)
}

fn waiting_agent(file: &AgentFile) -> Agent {
    let word = || "x".to_owned();
    let uname = Uname { system: word(), node: word(), release: word(), version: word(), machine: word() };
    let host = HostFacts { uname, process_environment: BTreeMap::new() };
    let definition = Arc::new(AgentDefinition::new(file.clone()).unwrap());
    let mut agent = Agent::new(definition, AgentTask::default(), &host, Duration::ZERO).unwrap();
    assert!(matches!(agent.next(Duration::ZERO), NextStep::Query { call_index: 0, .. }));
    agent
}

#[test]
fn agent_files_that_come_with_the_package_are_accepted() {
    let folder = match templates::config_folder() {
        Ok(folder) => folder,
        Err(why) => return println!("NOTE: no agent files of mini-swe-agent are read ({why})."),
    };
    let names = [
        "default",
        "mini",
        "mini_textbased",
        "benchmarks/swebench",
        "benchmarks/swebench_backticks",
        "benchmarks/swebench_xml",
    ];
    for name in names {
        let path = folder.join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = AgentFile::from_yaml(&text, name).unwrap_or_else(|error| panic!("{error}"));
        let agent = waiting_agent(&file);
        assert_eq!(agent.messages().len(), 2, "{name}");
    }
}
