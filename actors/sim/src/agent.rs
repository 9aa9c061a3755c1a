//! What the rollouts of a simulated run are about: an agent with short prompts, and tasks that a simulated box can judge.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use greenroom_rollout::Dataset;
use greenroom_rollout::agent::AgentFile;
use greenroom_tokens::{ChatTemplate, Tokenizer};

use crate::SimError;

/// The set-up command of every task.
pub(crate) const SET_UP: &str = "prepare the task";
/// What the judging command of every task contains.
pub(crate) const GRADE: &str = "judge the task";

const AGENT: &str = r#"
agent:
  system_template: "You work in a shell."
  instance_template: "Task: {{ task }}"
  step_limit: 4
  cost_limit: 0
  max_consecutive_format_errors: 3
environment:
  timeout: 20
model:
  observation_template: "<returncode>{{ output.returncode }}</returncode>{{ output.exception_info }}{{ output.output }}"
  format_error_template: "That was not run. {{ error }}"
"#;

type Language = (Arc<Tokenizer>, Arc<ChatTemplate>);

static LANGUAGE: LazyLock<Result<Language, String>> = LazyLock::new(|| {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tokens/tiny"));
    let tokenizer = Tokenizer::from_dir(dir).map_err(|error| error.to_string())?;
    let template = ChatTemplate::from_dir(dir).map_err(|error| error.to_string())?;
    Ok((Arc::new(tokenizer), Arc::new(template)))
});

/// A small tokenizer and chat template; read once a process.
pub(crate) fn language() -> Result<Language, SimError> {
    LANGUAGE.clone().map_err(SimError::of("tokenizer"))
}

pub(crate) fn agent() -> Result<AgentFile, SimError> {
    AgentFile::from_yaml(AGENT, "the simulated agent").map_err(|error| SimError::of("agent")(error.to_string()))
}

/// So many tasks.
pub(crate) fn dataset(prefix: &str, tasks: u32) -> Result<Arc<Dataset>, SimError> {
    let row = |number: u32| {
        serde_json::json!({
            "text": format!("mend {number}"),
            "metadata": {
                "instance_id": format!("{prefix}-{number}"),
                "eval_cmd": GRADE,
                "eval_files": { "test_a.py": "assert True" },
                "files": { "a.py": "pass" },
                "setup_cmd": SET_UP,
            }
        })
        .to_string()
    };
    let rows: Vec<String> = (0..tasks).map(row).collect();
    let dataset = Dataset::parse(&rows.join("\n"), prefix).map_err(|error| SimError::of("tasks")(error.to_string()))?;
    Ok(Arc::new(dataset))
}
