//! Variables of the environment: `GREENROOM__A__B=value`, and the names that the SkyPilot coding-agent example uses.

use serde_json::Value;

use super::tree::typed;

/// One of the example's variables: its name, the key it sets, and what its number is multiplied with.
#[derive(Clone, Copy, Debug)]
pub struct ExampleVariable {
    /// The variable's name.
    pub name: &'static str,
    /// The key of the configuration that it sets.
    pub key: &'static str,
    /// What a whole number is multiplied with: 1000 for seconds that become milliseconds.
    pub scale: i64,
}

const fn variable(name: &'static str, key: &'static str) -> ExampleVariable {
    ExampleVariable { name, key, scale: 1 }
}

const fn seconds(name: &'static str, key: &'static str) -> ExampleVariable {
    ExampleVariable { name, key, scale: 1_000 }
}

/// The example's variables that a single-machine run understands.
pub const EXAMPLE_VARIABLES: &[ExampleVariable] = &[
    variable("ROLLOUT_BATCH_SIZE", "run.groups_per_batch"),
    variable("N_SAMPLES_PER_PROMPT", "run.samples_per_group"),
    variable("SLIME_MODE", "run.schedule"),
    variable("WEIGHT_MODE", "weights.mode"),
    variable("SANDBOX_POOL_REPLICAS", "sandbox.pool.warm_boxes"),
    variable("ROLLOUT_SHUFFLE", "rollout.shuffle"),
    variable("ROLLOUT_MAX_CONTEXT_LEN", "rollout.max_context_tokens"),
    variable("AGENT_MAX_TURNS", "rollout.max_turns"),
    seconds("AGENT_EXEC_TIMEOUT_SEC", "rollout.exec_timeout_ms"),
    seconds("AGENT_EVAL_TIMEOUT_SEC", "rollout.eval_timeout_ms"),
    seconds("AGENT_ROLLOUT_GUARD_SEC", "rollout.guard_ms"),
    seconds("AGENT_SANDBOX_LIFETIME_SEC", "rollout.sandbox_lifetime_ms"),
];

/// The prefix of greenroom's own variables.
pub(super) const PREFIX: &str = "GREENROOM__";

/// The example's text for one of its variables as the value that our key takes.
pub(super) fn example_value(variable: &ExampleVariable, text: &str) -> Value {
    let value = typed(text);
    match (&value, value.as_i64(), variable.name) {
        (_, Some(flag), "ROLLOUT_SHUFFLE") => Value::Bool(flag != 0),
        (_, Some(number), _) => number.saturating_mul(variable.scale).into(),
        (Value::String(mode), _, "SLIME_MODE") => mode.trim_start_matches("train_").into(),
        _ => value,
    }
}
