//! Demonstrations for the warm start: whole episodes of *other* instances than those that are trained on or held out.
//!
//! They teach how to act (one fenced command a turn, look at the code, edit, submit) and which edits exist, but not which
//! edit belongs to which symptom: each edit is drawn evenly from those known to mend some bug of the function, so most
//! demonstrations do not mend their own. That choice is what reinforcement learns from the tests' verdicts. Prompts and
//! observations are rendered by the same agent that acts in rollouts; outputs are what the commands print.

use std::sync::Arc;
use std::time::Duration;

use greenroom_core::Seed;
use rand::Rng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::command_task::CommandTask;
use super::content::{AGENT_FILE, Bug, Split, shown};
use super::error::MakeError;
use crate::agent::{
    Agent, AgentDefinition, AgentFile, AgentTask, ExecResult, HostFacts, NextStep, Reply, SUBMIT_SENTINEL, Uname,
};

/// Share of demonstrations about `cmd` tasks.
const COMMAND_SHARE: f64 = 0.25;
/// Share of those that answer the question asked.
const COMMAND_RIGHT: f64 = 0.5;
/// Share of bug demonstrations whose report says little.
const VAGUE_SHARE: f64 = 0.5;
/// Reports that say little.
const VAGUE: &[&str] = &[
    "the result is wrong",
    "a test fails",
    "it does not do what it says",
    "some answers are wrong",
    "please repair it",
    "it broke with the last change",
    "wrong for some inputs",
    "users report wrong values",
];

/// One command and what it prints.
struct Turn {
    command: String,
    output: String,
}

/// A function with at least one bug for demonstrations.
#[derive(Default)]
struct Function<'a> {
    /// Indices of those bugs.
    demonstrated: Vec<usize>,
    /// The edits that mend one of all its bugs.
    edits: Vec<&'a (String, String)>,
}

/// Draws demonstrations.
pub(super) struct Demonstrator<'a> {
    definition: Arc<AgentDefinition>,
    bugs: &'a [Bug],
    functions: Vec<Function<'a>>,
    commands: Vec<&'a CommandTask>,
}

impl<'a> Demonstrator<'a> {
    pub(super) fn new(bugs: &'a [Bug], tasks: &'a [CommandTask]) -> Result<Self, MakeError> {
        let definition = Arc::new(AgentDefinition::new(AgentFile::from_yaml(AGENT_FILE, "agent.yaml")?)?);
        let mut functions: Vec<Function<'_>> = Vec::new();
        let mut names: Vec<(&str, &str)> = Vec::new();
        for (index, bug) in bugs.iter().enumerate() {
            let name = (bug.project.as_str(), bug.function.as_str());
            let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                functions.push(Function::default());
                names.len() - 1
            });
            if bug.split == Split::Sft {
                functions[place].demonstrated.push(index);
            }
            functions[place].edits.push(&bug.fix);
        }
        functions.retain(|function| !function.demonstrated.is_empty());
        let commands = tasks.iter().filter(|task| task.split == Split::Sft).collect();
        Ok(Self { definition, bugs, functions, commands })
    }

    /// `count` demonstrations as rows `{instance_id, messages}`.
    pub(super) fn draw(&self, seed: Seed, count: u32) -> Result<Vec<Value>, MakeError> {
        let mut random = seed.child("demonstrations").random();
        (0..count)
            .map(|_| match random.random_bool(COMMAND_SHARE) {
                true => self.command(&mut random),
                false => self.bug(&mut random),
            })
            .collect()
    }

    fn command(&self, random: &mut impl Rng) -> Result<Value, MakeError> {
        let nothing = || MakeError::content("commands.json", "has nothing to demonstrate");
        let task = self.commands.choose(random).ok_or_else(nothing)?;
        let answer = match random.random_bool(COMMAND_RIGHT) {
            true => &task.command,
            false => &self.commands.choose(random).ok_or_else(nothing)?.command,
        };
        let command = format!("{answer} < {} > out.txt", task.file);
        self.episode(&task.id, &task.text, vec![Turn { command, output: String::new() }])
    }

    fn bug(&self, random: &mut impl Rng) -> Result<Value, MakeError> {
        let nothing = || MakeError::content("bugs.jsonl", "has nothing to demonstrate");
        let known = self.functions.choose(random).ok_or_else(nothing)?;
        let bug = &self.bugs[*known.demonstrated.choose(random).ok_or_else(nothing)?];
        let (from, to) = known.edits.choose(random).ok_or_else(nothing)?;
        let (function, file) = (&bug.function, &bug.file);
        let text = match random.random_bool(VAGUE_SHARE) {
            true => format!("Bug in {file}: {function}: {}", VAGUE.choose(random).copied().unwrap_or_default()),
            false => bug.problem_statement.clone(),
        };
        let look = Turn {
            command: format!("sed -n '/def {function}(/,/^$/p' {file}"),
            output: shown(&bug.wrong_source(), function),
        };
        let edit = format!("sed -i '/def {function}(/,/^$/s|{from}|{to}|' {file}");
        let name = format!("{}.{function}.{}", bug.project, bug.family);
        self.episode(&name, &text, vec![look, Turn { command: edit, output: String::new() }])
    }

    /// Plays the turns and a submission through the agent and writes down its messages.
    fn episode(&self, name: &str, task: &str, mut turns: Vec<Turn>) -> Result<Value, MakeError> {
        turns.push(Turn { command: format!("echo {SUBMIT_SENTINEL}"), output: format!("{SUBMIT_SENTINEL}\n") });
        let task = AgentTask { task: task.to_owned(), ..AgentTask::default() };
        let mut agent = Agent::new(Arc::clone(&self.definition), task, &no_host(), Duration::ZERO)?;
        for turn in turns {
            if !matches!(agent.next(Duration::ZERO), NextStep::Query { .. }) {
                return Err(MakeError::content("agent.yaml", "its step limit is too low for a demonstration"));
            }
            let content = format!("```mswea_bash_command\n{}\n```", turn.command);
            agent.on_reply(Reply {
                content,
                finish_reason: Some("stop".to_owned()),
                cost: 0.0,
                tool_calls: Vec::new(),
            })?;
            if !matches!(agent.next(Duration::ZERO), NextStep::Execute { .. }) {
                return Err(MakeError::content("agent.yaml", "does not read fenced commands"));
            }
            agent.on_output(ExecResult::finished(turn.output, 0), Duration::ZERO)?;
        }
        let messages: Vec<Value> = agent
            .messages()
            .iter()
            .filter(|message| message.role != crate::agent::Role::Exit)
            .map(|message| json!({ "role": message.role.as_str(), "content": message.content }))
            .collect();
        Ok(json!({ "instance_id": name, "messages": messages }))
    }
}

/// The quickstart's prompts name no host.
fn no_host() -> HostFacts {
    let unknown = || "unknown".to_owned();
    let uname =
        Uname { system: unknown(), node: unknown(), release: unknown(), version: unknown(), machine: unknown() };
    HostFacts { uname, process_environment: Default::default() }
}
