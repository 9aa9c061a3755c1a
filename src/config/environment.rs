//! Variables of the environment: `GREENROOM__A__B=value`, and the names that the SkyPilot coding-agent example uses.

/// One of the example's variables: its name, the key it sets, and what its number is multiplied with.
pub(super) struct ExampleVariable {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
    pub(super) scale: i64,
}

const fn variable(name: &'static str, key: &'static str) -> ExampleVariable {
    ExampleVariable { name, key, scale: 1 }
}

const fn seconds(name: &'static str, key: &'static str) -> ExampleVariable {
    ExampleVariable { name, key, scale: 1_000 }
}

/// The example's variables that a single-machine run understands.
pub(super) const EXAMPLE_VARIABLES: &[ExampleVariable] = &[
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

/// A text as the value it looks like: a TOML value where it is one, else the text itself.
pub(super) fn typed(text: &str) -> toml::Value {
    let parsed = toml::from_str::<toml::Table>(&format!("value = {text}"));
    parsed.ok().and_then(|mut table| table.remove("value")).unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// The example's text for one of its variables as the value that our key takes.
pub(super) fn example_value(variable: &ExampleVariable, text: &str) -> toml::Value {
    match (typed(text), variable.name) {
        (toml::Value::Integer(flag), "ROLLOUT_SHUFFLE") => toml::Value::Boolean(flag != 0),
        (toml::Value::Integer(number), _) => toml::Value::Integer(number.saturating_mul(variable.scale)),
        (toml::Value::String(mode), "SLIME_MODE") => toml::Value::String(mode.trim_start_matches("train_").to_owned()),
        (value, _) => value,
    }
}

/// A table with one value at a dotted key.
pub(super) fn nested(key: &str, value: toml::Value) -> toml::Table {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let value = rest.map_or(value.clone(), |rest| toml::Value::Table(nested(rest, value)));
    toml::Table::from_iter([(first.to_owned(), value)])
}
