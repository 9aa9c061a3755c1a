//! What an agent is before it has a task: compiled once and shared by every rollout that uses the same file.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::config::{ActionProtocol, AgentFile};
use super::error::AgentError;
use super::parse::ActionRegex;
use super::template::{TemplateSet, Variables};

/// A checked agent file with its templates and its action pattern compiled.
#[derive(Debug, Clone)]
pub struct AgentDefinition {
    pub(super) file: AgentFile,
    pub(super) templates: TemplateSet,
    pub(super) action_regex: ActionRegex,
}

/// The five facts of a host that prompts may state, as Python's `platform.uname` gives them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uname {
    /// Name of the system, such as `Linux`.
    pub system: String,
    /// Host name.
    pub node: String,
    /// Kernel release.
    pub release: String,
    /// Kernel version.
    pub version: String,
    /// Hardware name, such as `x86_64`.
    pub machine: String,
}

/// What templates may know of the place where commands run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// The host's name and system.
    pub uname: Uname,
    /// Variables of the process, visible to templates only where commands run in the process's own environment (upstream's
    /// local environment). Empty for sandboxes.
    pub process_environment: BTreeMap<String, String>,
}

/// One task for an agent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentTask {
    /// The task's text, inserted as it is.
    pub task: String,
    /// Working directory, where it differs from the agent file's.
    pub cwd: Option<String>,
    /// Further variables for templates; they win over everything else.
    pub variables: Map<String, Value>,
}

impl AgentDefinition {
    /// Compile a file's templates and pattern.
    pub fn new(file: AgentFile) -> Result<Self, AgentError> {
        let templates = TemplateSet::new(&file)?;
        let action_regex = match file.model.protocol {
            ActionProtocol::Text => ActionRegex::new(&file.model.action_regex)?,
            ActionProtocol::ToolCall => ActionRegex::new(super::parse::DEFAULT_ACTION_REGEX)?,
        };
        Ok(Self { file, templates, action_regex })
    }

    /// The file this was made of.
    pub fn file(&self) -> &AgentFile {
        &self.file
    }

    /// The variables that do not change during an episode. Order of precedence, least first: agent, environment, host,
    /// process environment, model; then the task's own, which [`super::Agent`] adds after the counters.
    pub(super) fn variables(&self, task: &AgentTask, host: &HostFacts) -> Variables {
        let mut environment = self.file.environment.clone();
        if let Some(cwd) = &task.cwd {
            environment.cwd.clone_from(cwd);
        }
        let process = host.process_environment.iter().map(|(name, value)| (name.clone(), value.as_str().into()));
        let layers = [
            self.file.agent.variables(),
            environment.variables(),
            host.uname.variables(),
            process.collect(),
            self.file.model.variables(),
        ];
        Variables::merged(layers.into_iter().chain([counters(0, 0.0, 0), task.own_variables()]))
    }
}

impl AgentTask {
    fn own_variables(&self) -> Map<String, Value> {
        let task = ("task".to_owned(), Value::from(self.task.as_str()));
        std::iter::once(task).chain(self.variables.clone()).collect()
    }

    /// Whether the task itself defines this variable.
    pub(super) fn defines(&self, name: &str) -> bool {
        name == "task" || self.variables.contains_key(name)
    }
}

impl Uname {
    fn variables(&self) -> Map<String, Value> {
        let fields = [
            ("system", &self.system),
            ("node", &self.node),
            ("release", &self.release),
            ("version", &self.version),
            ("machine", &self.machine),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value.as_str()))).collect()
    }
}

/// The variables that count: calls made, their cost, whole seconds since the start.
fn counters(calls: u64, cost: f64, elapsed_seconds: u64) -> Map<String, Value> {
    let counters =
        [("n_model_calls", json!(calls)), ("model_cost", json!(cost)), ("elapsed_seconds", json!(elapsed_seconds))];
    counters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
