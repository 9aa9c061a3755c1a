//! Promise: with the same file, replies and shell the agent produces the message list mini-swe-agent produced.
//!
//! The recordings are episodes of the real agent with scripted replies. Each is played again through the state machine
//! with a real `/bin/sh`; every message, the end, the call count, the cost and the files left behind must be the same.
//! `GREENROOM_MINI_SWE_TRACES=DIR` plays the recordings of another folder instead (with `text/` and `toolcall/`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use greenroom_rollout::agent::{
    ActionProtocol, Agent, AgentDefinition, AgentTask, HostFacts, Message, NextStep, Origin, Reply, ToolCall, Uname,
};
use serde_json::Value;

use crate::{compare::differences, fixtures, json_files, read_json, shell, templates};

#[test]
fn text_episodes_are_the_recorded_ones() {
    play_all("text", "mini_textbased.yaml", ActionProtocol::Text);
}

#[test]
fn tool_call_episodes_are_the_recorded_ones() {
    play_all("toolcall", "mini.yaml", ActionProtocol::ToolCall);
}

fn play_all(kind: &str, agent_file: &str, protocol: ActionProtocol) {
    let root = std::env::var_os("GREENROOM_MINI_SWE_TRACES").map_or_else(fixtures, PathBuf::from);
    let mut templates = templates::load(agent_file);
    templates.file.model.protocol = protocol;
    // The recordings name their work folder, so two test runs on one machine take turns.
    let lock = std::fs::File::create(std::env::temp_dir().join("greenroom-golden.lock")).unwrap();
    lock.lock().unwrap();
    let mut failures = Vec::new();
    for path in json_files(&root.join(kind)) {
        let recording = read_json(&path);
        let found = Episode::new(&recording, &templates).play();
        println!("{}: {}", path.display(), if found.is_empty() { "same" } else { "DIFFERENT" });
        failures.extend(found.into_iter().map(|difference| format!("{}{difference}", recording["name"])));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

struct Episode<'a> {
    recording: &'a Value,
    templates_known: bool,
    replies: Vec<Reply>,
    environment: BTreeMap<String, String>,
    agent: Agent,
    found: Vec<String>,
}

impl<'a> Episode<'a> {
    fn new(recording: &'a Value, templates: &templates::Templates) -> Self {
        let mut file = templates.file.clone();
        let limits = &recording["agent_config"];
        file.agent.step_limit = limits["step_limit"].as_u64().unwrap();
        file.agent.cost_limit = limits["cost_limit"].as_f64().unwrap();
        file.agent.wall_time_limit_seconds = limits["wall_time_limit_seconds"].as_u64().unwrap();
        file.agent.max_consecutive_format_errors = limits["max_consecutive_format_errors"].as_u64().unwrap();
        let place = &recording["env_config"];
        file.environment.cwd = place["cwd"].as_str().unwrap().to_owned();
        file.environment.env = serde_json::from_value(place["env"].clone()).unwrap();
        file.environment.timeout_seconds = place["timeout"].as_u64().unwrap();
        let environment = file.environment.env.clone();
        prepare_folder(Path::new(&file.environment.cwd), &recording["files"]);
        let uname = |field: &str| recording["uname"][field].as_str().unwrap().to_owned();
        let host = HostFacts {
            uname: Uname {
                system: uname("system"),
                node: uname("node"),
                release: uname("release"),
                version: uname("version"),
                machine: uname("machine"),
            },
            process_environment: BTreeMap::new(),
        };
        let task = AgentTask { task: recording["task"].as_str().unwrap().to_owned(), ..AgentTask::default() };
        let definition = Arc::new(AgentDefinition::new(file).unwrap());
        Self {
            recording,
            templates_known: templates.known,
            replies: recording["responses"].as_array().unwrap().iter().map(reply).collect(),
            environment,
            agent: Agent::new(definition, task, &host, Duration::ZERO).unwrap(),
            found: Vec::new(),
        }
    }

    /// Play the episode; what differs from the recording is returned.
    fn play(mut self) -> Vec<String> {
        let started = tokio::time::Instant::now();
        let mut calls = Vec::new();
        loop {
            let now = started.elapsed();
            match self.agent.next(now) {
                NextStep::Query { call_index, messages } => {
                    calls.push(messages.iter().map(|message| message.role.as_str()).collect::<Vec<_>>());
                    let reply = self.replies[usize::try_from(call_index).unwrap()].clone();
                    self.agent.on_reply(reply).unwrap();
                }
                NextStep::Execute { command, cwd, timeout, .. } => {
                    let result = shell::execute(command, Path::new(cwd), &self.environment, timeout);
                    self.agent.on_output(result, started.elapsed()).unwrap();
                }
                NextStep::Exit(_) => break,
            }
        }
        self.compare_messages();
        self.compare_calls(&calls);
        self.compare_end(started.elapsed());
        self.compare_files();
        self.compare_origins();
        self.found
    }

    fn compare_messages(&mut self) {
        let recorded = self.recording["messages"].as_array().unwrap();
        let ours: Vec<_> = self.agent.messages().iter().map(Message::to_trajectory).collect();
        if recorded.len() != ours.len() {
            self.found.push(format!(": {} messages recorded, {} ours: {ours:#?}", recorded.len(), ours.len()));
            return;
        }
        let host_dependent = self.recording["host_dependent_messages"].as_array().unwrap();
        for (index, (recorded, ours)) in recorded.iter().zip(&ours).enumerate() {
            let mut recorded = recorded.clone();
            if host_dependent.contains(&index.into()) {
                // The text is the shell's or the kernel's; that there is such a message is still a fact.
                recorded["content"] = ours["content"].clone();
                recorded["extra"] = ours["extra"].clone();
            }
            if recorded["role"] == "tool" && !self.templates_known {
                recorded["content"] = ours["content"].clone();
            }
            let found = differences(&recorded, ours, self.templates_known);
            self.found.extend(found.into_iter().map(|difference| format!(".messages[{index}]{difference}")));
        }
    }

    fn compare_calls(&mut self, calls: &[Vec<&'static str>]) {
        let recorded: Vec<_> =
            self.recording["turns"].as_array().unwrap().iter().map(|turn| &turn["roles_sent"]).collect();
        let ours: Vec<_> = calls.iter().map(|roles| serde_json::json!(roles)).collect();
        if recorded.iter().copied().ne(&ours) {
            self.found.push(format!(".turns: recorded {recorded:?}, ours {ours:?}"));
        }
    }

    fn compare_end(&mut self, took: Duration) {
        let exit = self.agent.exit().unwrap();
        let ours = serde_json::json!({
            "exit_status": exit.status.as_str(), "submission": exit.submission,
            "n_calls": self.agent.calls(),
        });
        // A sum of prices may lose its last bit on the way through JSON.
        let recorded_cost = self.recording["cost"].as_f64().unwrap();
        if (recorded_cost - self.agent.cost()).abs() > 1e-12 {
            self.found.push(format!(".cost: recorded {recorded_cost}, ours {}", self.agent.cost()));
        }
        for (name, value) in ours.as_object().unwrap() {
            let found = differences(&self.recording[name], value, self.templates_known);
            self.found.extend(found.into_iter().map(|difference| format!(".{name}{difference}")));
        }
        let seconds = took.as_secs_f64();
        let bound = |name: &str| self.recording[name].as_f64();
        if bound("min_wall_seconds").is_some_and(|least| seconds < least)
            || bound("max_wall_seconds").is_some_and(|most| seconds > most)
        {
            self.found.push(format!(": took {seconds:.1} s"));
        }
    }

    fn compare_files(&mut self) {
        let folder = Path::new(self.recording["env_config"]["cwd"].as_str().unwrap());
        for (name, content) in self.recording["check_files"].as_object().unwrap() {
            let ours = std::fs::read_to_string(folder.join(name)).ok();
            if ours.as_deref() != content.as_str() {
                self.found.push(format!(".check_files.{name}: recorded {content}, ours {ours:?}"));
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Every reply is either one assistant message or one failed reply with one correction, and says which call it was.
    fn compare_origins(&mut self) {
        let mut placed = BTreeMap::new();
        for message in self.agent.messages() {
            if let Origin::Reply { call_index } = message.origin {
                placed.insert(call_index, message.content.clone());
            }
        }
        for failed in self.agent.failed_replies() {
            let correction = &self.agent.messages()[failed.messages_before];
            assert_eq!(correction.origin, Origin::FormatError { call_index: failed.call_index });
            placed.insert(failed.call_index, failed.reply.content.clone());
        }
        let calls = usize::try_from(self.agent.calls()).unwrap();
        let scripted: Vec<_> = self.replies[..calls].iter().map(|reply| &reply.content).collect();
        if placed.values().ne(scripted) {
            self.found.push(format!(": replies went to {placed:?}"));
        }
    }
}

fn prepare_folder(folder: &Path, files: &Value) {
    if folder.exists() {
        std::fs::remove_dir_all(folder).unwrap();
    }
    std::fs::create_dir_all(folder).unwrap();
    for (name, content) in files.as_object().unwrap() {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content.as_str().unwrap()).unwrap();
    }
}

fn reply(scripted: &Value) -> Reply {
    let content = match &scripted["content"] {
        Value::String(text) => text.clone(),
        Value::Object(encoded) => expand_runs(&encoded["runs"]),
        _ => String::new(),
    };
    let calls = scripted["tool_calls"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let tool_calls = calls.iter().map(|call| ToolCall {
        id: text(&call["id"]),
        name: text(&call["function"]["name"]),
        arguments: text(&call["function"]["arguments"]),
    });
    Reply {
        content,
        finish_reason: Some(scripted["finish_reason"].as_str().unwrap_or("stop").to_owned()),
        cost: scripted["cost"].as_f64().unwrap_or(0.0),
        tool_calls: tool_calls.collect(),
    }
}

fn expand_runs(runs: &Value) -> String {
    let expand = |run: &Value| run[0].as_str().unwrap().repeat(run[1].as_u64().unwrap().try_into().unwrap());
    runs.as_array().unwrap().iter().map(expand).collect()
}
