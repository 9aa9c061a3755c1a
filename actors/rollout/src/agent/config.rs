//! The agent file: mini-swe-agent's YAML shape, read strictly.
//!
//! A user's own mini-swe-agent file is accepted as it is: keys that steer upstream's command line, containers or API
//! client are known and kept (templates may name them) but have no effect. Any other unknown key is an error that names
//! the nearest known one, and every problem of a file is reported at once.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::AgentError;
use super::parse::DEFAULT_ACTION_REGEX;

/// Keys of each section that mini-swe-agent knows and this runtime does not act on.
const AGENT_WITHOUT_EFFECT: &[&str] = &["mode", "whitelist_actions", "confirm_exit", "agent_class"];
const ENVIRONMENT_WITHOUT_EFFECT: &[&str] = &[
    "environment_class",
    "image",
    "forward_env",
    "executable",
    "run_args",
    "container_timeout",
    "pull_timeout",
    "interpreter",
    "sandbox_build_retries",
    "global_args",
    "exec_args",
    "startup_timeout",
    "runtime_timeout",
    "deployment_timeout",
    "install_pipx",
    "modal_sandbox_kwargs",
    "wrapper_args",
    "timeout_template",
];
const MODEL_WITHOUT_EFFECT: &[&str] = &[
    "model_name",
    "model_kwargs",
    "model_class",
    "litellm_model_registry",
    "set_cache_control",
    "cost_tracking",
    "multimodal_regex",
    "provider",
];
const SECTIONS: &[&str] = &["agent", "environment", "model", "run"];

/// A whole agent file.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentFile {
    /// Prompts and limits.
    pub agent: AgentConfig,
    /// Where and how commands run.
    pub environment: EnvironmentConfig,
    /// How replies are read and results are shown.
    pub model: ModelConfig,
}

/// The `agent` section.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentConfig {
    /// Template of the first message.
    pub system_template: String,
    /// Template of the second message, which states the task.
    pub instance_template: String,
    /// Most model calls of an episode; 0 is no limit. A reply that cannot be parsed counts.
    pub step_limit: u64,
    /// The episode ends before a call once it has cost this much, in the unit replies are priced in; 0 is no limit.
    pub cost_limit: f64,
    /// The episode ends before a call once this many whole seconds have passed; 0 is no limit.
    pub wall_time_limit_seconds: u64,
    /// So many replies in a row without exactly one action end the episode; 0 is no limit.
    pub max_consecutive_format_errors: u64,
    /// Upstream's trajectory path; kept for templates, nothing is written there.
    pub output_path: Option<String>,
}

/// The `environment` section.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvironmentConfig {
    /// Working directory of commands; empty is the sandbox's own.
    pub cwd: String,
    /// Variables set for every command, over the sandbox's own.
    pub env: BTreeMap<String, String>,
    /// Seconds after which a command is killed.
    pub timeout_seconds: u64,
    /// Keys without effect here, kept because templates may name them.
    pub without_effect: Map<String, Value>,
}

/// How an action is written in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActionProtocol {
    /// One fenced block in the reply's text.
    #[default]
    Text,
    /// Calls of a tool named `bash`.
    ToolCall,
}

/// The `model` section.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Template of the message that shows a command's result; its own variable is `output`.
    pub observation_template: String,
    /// Template of the message that corrects a reply; its only variables are `error`, `actions`, `finish_reason` (and
    /// `has_tool_calls` with tool calls).
    pub format_error_template: String,
    /// Python regular expression whose group (or whole match) is the action; a dot matches new lines.
    pub action_regex: String,
    /// From `model_class`: `litellm` and `litellm_toolcall` mean tool calls, anything else and nothing mean text.
    pub protocol: ActionProtocol,
    /// Keys without effect here, kept because templates may name them.
    pub without_effect: Map<String, Value>,
}

/// Upstream's own template for results, used when a file has none.
const PLAIN_OBSERVATION: &str = "{% if output.exception_info %}<exception>{{ output.exception_info }}</exception>\n{% endif %}<returncode>{{ output.returncode }}</returncode>\n<output>\n{{ output.output }}</output>";
const PLAIN_FORMAT_ERROR: &str = "{{ error }}";

impl AgentFile {
    /// Read a file's text; `source_name` is named in errors.
    pub fn from_yaml(text: &str, source_name: &str) -> Result<Self, AgentError> {
        let unreadable = |detail: String| AgentError::Unreadable { source_name: source_name.to_owned(), detail };
        let mut tree: serde_yaml_ng::Value =
            serde_yaml_ng::from_str(text).map_err(|error| unreadable(error.to_string()))?;
        tree.apply_merge().map_err(|error| unreadable(error.to_string()))?;
        let tree = serde_json::to_value(tree).map_err(|error| unreadable(error.to_string()))?;
        Self::from_value(&tree, source_name)
    }

    /// Read a tree that came from YAML, TOML or JSON.
    pub fn from_value(tree: &Value, source_name: &str) -> Result<Self, AgentError> {
        let Value::Object(sections) = tree else {
            return Err(AgentError::Unreadable {
                source_name: source_name.to_owned(),
                detail: "is not a mapping with the sections agent, environment and model".to_owned(),
            });
        };
        let mut problems = Vec::new();
        for key in sections.keys() {
            report_unknown(key, "", &[SECTIONS], &mut problems);
        }
        let agent = read_agent(&mut Section::of(sections, "agent", &mut problems));
        let environment = read_environment(&mut Section::of(sections, "environment", &mut problems));
        let model = read_model(&mut Section::of(sections, "model", &mut problems));
        if problems.is_empty() {
            Ok(Self { agent, environment, model })
        } else {
            Err(AgentError::Invalid { source_name: source_name.to_owned(), problems })
        }
    }
}

impl AgentConfig {
    /// The section as templates see it.
    pub(crate) fn variables(&self) -> Map<String, Value> {
        object(serde_json::json!({
            "system_template": self.system_template,
            "instance_template": self.instance_template,
            "step_limit": self.step_limit,
            "cost_limit": self.cost_limit,
            "wall_time_limit_seconds": self.wall_time_limit_seconds,
            "max_consecutive_format_errors": self.max_consecutive_format_errors,
            "output_path": self.output_path,
        }))
    }
}

impl EnvironmentConfig {
    /// The section as templates see it.
    pub(crate) fn variables(&self) -> Map<String, Value> {
        let own = object(serde_json::json!({ "cwd": self.cwd, "env": self.env, "timeout": self.timeout_seconds }));
        self.without_effect.clone().into_iter().chain(own).collect()
    }
}

impl ModelConfig {
    /// The section as templates see it.
    pub(crate) fn variables(&self) -> Map<String, Value> {
        let defaults = object(serde_json::json!({
            "model_kwargs": {}, "litellm_model_registry": null, "set_cache_control": null, "cost_tracking": "default",
            "multimodal_regex": "",
        }));
        let own = object(serde_json::json!({
            "observation_template": self.observation_template,
            "format_error_template": self.format_error_template,
            "action_regex": self.action_regex,
        }));
        defaults.into_iter().chain(self.without_effect.clone()).chain(own).collect()
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn read_agent(section: &mut Section<'_>) -> AgentConfig {
    let config = AgentConfig {
        system_template: section.required_text("system_template"),
        instance_template: section.required_text("instance_template"),
        step_limit: section.whole_number("step_limit", 0),
        cost_limit: section.number("cost_limit", 3.0),
        wall_time_limit_seconds: section.whole_number("wall_time_limit_seconds", 0),
        max_consecutive_format_errors: section.whole_number("max_consecutive_format_errors", 3),
        output_path: section.text("output_path"),
    };
    section.finish(AGENT_WITHOUT_EFFECT);
    config
}

fn read_environment(section: &mut Section<'_>) -> EnvironmentConfig {
    EnvironmentConfig {
        cwd: section.text("cwd").unwrap_or_default(),
        env: section.text_map("env"),
        timeout_seconds: section.positive_whole_number("timeout", 30),
        without_effect: section.finish(ENVIRONMENT_WITHOUT_EFFECT),
    }
}

fn read_model(section: &mut Section<'_>) -> ModelConfig {
    let observation_template = section.text("observation_template").unwrap_or_else(|| PLAIN_OBSERVATION.to_owned());
    let format_error_template = section.text("format_error_template").unwrap_or_else(|| PLAIN_FORMAT_ERROR.to_owned());
    let action_regex = section.text("action_regex").unwrap_or_else(|| DEFAULT_ACTION_REGEX.to_owned());
    let without_effect = section.finish(MODEL_WITHOUT_EFFECT);
    let protocol = match without_effect.get("model_class").and_then(Value::as_str) {
        Some("litellm" | "litellm_toolcall") => ActionProtocol::ToolCall,
        _ => ActionProtocol::Text,
    };
    ModelConfig { observation_template, format_error_template, action_regex, protocol, without_effect }
}

/// Reads one section and collects what is wrong with it.
struct Section<'a> {
    name: &'static str,
    values: Map<String, Value>,
    read: Vec<&'static str>,
    problems: &'a mut Vec<String>,
}

impl<'a> Section<'a> {
    fn of(sections: &Map<String, Value>, name: &'static str, problems: &'a mut Vec<String>) -> Self {
        let values = match sections.get(name) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(values)) => values.clone(),
            Some(other) => {
                problems.push(format!("{name} must be a mapping, not {}", describe(other)));
                Map::new()
            }
        };
        Self { name, values, read: Vec::new(), problems }
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.read.push(key);
        self.values.shift_remove(key)
    }

    fn wrong(&mut self, key: &str, wanted: &str, found: &Value) {
        self.problems.push(format!("{}.{key} must be {wanted}, not {}", self.name, describe(found)));
    }

    fn text(&mut self, key: &'static str) -> Option<String> {
        match self.take(key)? {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => {
                self.wrong(key, "text", &other);
                None
            }
        }
    }

    fn required_text(&mut self, key: &'static str) -> String {
        let present = self.values.contains_key(key);
        let text = self.text(key);
        if !present {
            self.problems.push(format!("{}.{key} is missing", self.name));
        }
        text.unwrap_or_default()
    }

    fn whole_number(&mut self, key: &'static str, default: u64) -> u64 {
        let Some(found) = self.take(key) else { return default };
        let whole_float = found.as_f64().filter(|number| *number >= 0.0 && number.fract() == 0.0 && *number < 1e15);
        match found.as_u64().or(whole_float.map(|number| number as u64)) {
            Some(number) => number,
            None => {
                self.wrong(key, "a whole number, 0 or more", &found);
                default
            }
        }
    }

    fn positive_whole_number(&mut self, key: &'static str, default: u64) -> u64 {
        let number = self.whole_number(key, default);
        if number == 0 {
            self.problems.push(format!("{}.{key} must be at least 1", self.name));
        }
        number
    }

    fn number(&mut self, key: &'static str, default: f64) -> f64 {
        let Some(found) = self.take(key) else { return default };
        match found.as_f64().filter(|number| number.is_finite() && *number >= 0.0) {
            Some(number) => number,
            None => {
                self.wrong(key, "a number, 0 or more", &found);
                default
            }
        }
    }

    fn text_map(&mut self, key: &'static str) -> BTreeMap<String, String> {
        let entries = match self.take(key) {
            None | Some(Value::Null) => return BTreeMap::new(),
            Some(Value::Object(entries)) => entries,
            Some(other) => {
                self.wrong(key, "a mapping of names to text", &other);
                return BTreeMap::new();
            }
        };
        let mut texts = BTreeMap::new();
        for (name, value) in entries {
            match value {
                Value::String(text) => drop(texts.insert(name, text)),
                other => self.wrong(&format!("{key}.{name}"), "text (put it in quotes)", &other),
            }
        }
        texts
    }

    /// What is left: known keys without effect are returned, anything else is a problem.
    fn finish(&mut self, without_effect: &[&str]) -> Map<String, Value> {
        for key in self.values.keys() {
            report_unknown(key, self.name, &[&self.read, without_effect], self.problems);
        }
        std::mem::take(&mut self.values)
    }
}

fn report_unknown(key: &str, section: &str, known: &[&[&str]], problems: &mut Vec<String>) {
    let known = || known.iter().flat_map(|names| names.iter().copied());
    if known().any(|name| name == key) {
        return;
    }
    let place = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
    let nearest = known().map(|name| (strsim::damerau_levenshtein(key, name), name)).min();
    problems.push(match nearest {
        Some((distance, name)) if distance <= 3.max(key.len() / 3) => {
            format!("{place} is not known; did you mean {name}?")
        }
        _ => format!("{place} is not known"),
    });
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(truth) => format!("the truth value {truth}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) if text.chars().count() <= 40 => format!("the text {text:?}"),
        Value::String(_) => "a long text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPTS: &str = "agent: {system_template: s, instance_template: i";

    #[test]
    fn every_problem_of_a_file_is_named_at_once() {
        let text = "agent: {system_template: 1, steplimit: 3, cost_limit: x}\nenviroment: {}\n\
                    environment: {env: {PAGER: 5}, timeout: 0}\nmodel: [1]";
        let Err(AgentError::Invalid { problems, .. }) = AgentFile::from_yaml(text, "a.yaml") else { panic!() };
        let expected = [
            "enviroment is not known; did you mean environment?",
            "agent.system_template must be text, not the number 1",
            "agent.instance_template is missing",
            "agent.cost_limit must be a number, 0 or more, not the text \"x\"",
            "agent.steplimit is not known; did you mean step_limit?",
            "environment.env.PAGER must be text (put it in quotes), not the number 5",
            "environment.timeout must be at least 1",
            "model must be a mapping, not a list",
        ];
        let missing: Vec<_> = expected.iter().filter(|line| !problems.contains(&(**line).to_owned())).collect();
        assert!(missing.is_empty() && problems.len() == expected.len(), "missing {missing:?} in {problems:#?}");
    }

    #[test]
    fn upstream_defaults_hold_and_keys_without_effect_are_accepted() {
        let text = format!("{PROMPTS}, mode: confirm}}\nmodel: {{model_kwargs: {{drop_params: true}}}}\nrun: {{}}");
        let file = AgentFile::from_yaml(&text, "a.yaml").unwrap();
        assert_eq!((file.agent.cost_limit, file.agent.max_consecutive_format_errors), (3.0, 3));
        assert_eq!((file.environment.timeout_seconds, file.environment.cwd.as_str()), (30, ""));
        assert_eq!(
            (file.model.action_regex.as_str(), file.model.protocol),
            (DEFAULT_ACTION_REGEX, ActionProtocol::Text)
        );
        assert_eq!(file.model.variables()["model_kwargs"], serde_json::json!({"drop_params": true}));
        assert!(!file.agent.variables().contains_key("mode"));
    }

    #[test]
    fn a_file_that_is_not_yaml_names_the_place() {
        let error = AgentFile::from_yaml("agent: [", "a.yaml").unwrap_err();
        assert!(error.to_string().starts_with("GR0310: a.yaml: "), "{error}");
        assert!(AgentFile::from_yaml("- 1", "a.yaml").unwrap_err().to_string().contains("not a mapping"));
    }
}
