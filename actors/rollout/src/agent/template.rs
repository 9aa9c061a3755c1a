//! Rendering of the four templates with Jinja2's rules.
//!
//! Undefined variables are errors, nothing is escaped, one trailing new line of a template is dropped, values are never
//! rendered again, lengths and slices count code points. Truth values and nothing print as Python prints them. What
//! differs from Jinja2 and is not used by known templates: lists and mappings printed whole, methods of Python strings.

use std::collections::BTreeMap;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value};
use serde_json::Map;

use super::config::AgentFile;
use super::error::AgentError;
use super::json_text::html_safe_json;

/// The first message's template.
pub(crate) const SYSTEM: &str = "agent.system_template";
/// The second message's template.
pub(crate) const INSTANCE: &str = "agent.instance_template";
/// The template of a command's result.
pub(crate) const OBSERVATION: &str = "model.observation_template";
/// The template of a correction.
pub(crate) const FORMAT_ERROR: &str = "model.format_error_template";

/// The compiled templates of one agent file.
#[derive(Debug, Clone)]
pub(crate) struct TemplateSet {
    environment: Environment<'static>,
}

/// Why a template could not be rendered: the Python exception's type name, and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RenderFailure {
    pub(crate) kind: &'static str,
    pub(crate) detail: String,
}

/// Variables of a template by name. Cloning is cheap: long texts are shared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Variables {
    values: BTreeMap<String, Value>,
}

impl Variables {
    /// Merge layers: a later one wins, mappings merge member by member.
    pub(crate) fn merged(layers: impl IntoIterator<Item = Map<String, serde_json::Value>>) -> Self {
        let mut merged = Map::new();
        for layer in layers {
            merge_into(&mut merged, layer);
        }
        Self { values: merged.into_iter().map(|(name, value)| (name, Value::from_serialize(value))).collect() }
    }

    /// Define or redefine a variable.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.values.insert(name.to_owned(), value.into());
    }

    /// Whether the variable is defined.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
}

fn merge_into(target: &mut Map<String, serde_json::Value>, layer: Map<String, serde_json::Value>) {
    for (name, value) in layer {
        match (target.get_mut(&name), value) {
            (Some(serde_json::Value::Object(existing)), serde_json::Value::Object(members)) => {
                merge_into(existing, members);
            }
            (_, value) => drop(target.insert(name, value)),
        }
    }
}

impl TemplateSet {
    /// Compile the templates; the first that does not compile is [`AgentError::TemplateSyntax`].
    pub(crate) fn new(file: &AgentFile) -> Result<Self, AgentError> {
        let mut environment = jinja_environment();
        let sources = [
            (SYSTEM, &file.agent.system_template),
            (INSTANCE, &file.agent.instance_template),
            (OBSERVATION, &file.model.observation_template),
            (FORMAT_ERROR, &file.model.format_error_template),
        ];
        for (name, source) in sources {
            // Jinja2 reads every line end as a new line.
            let source = source.replace("\r\n", "\n").replace('\r', "\n");
            environment
                .add_template_owned(name, source)
                .map_err(|error| AgentError::TemplateSyntax { template: name, detail: error.to_string() })?;
        }
        Ok(Self { environment })
    }

    /// Render one template.
    pub(crate) fn render(&self, name: &'static str, variables: &Variables) -> Result<String, RenderFailure> {
        if variables.contains("self") {
            return Err(duplicate_argument("Template.render() got multiple values for argument 'self'"));
        }
        let rendered = self.environment.get_template(name).and_then(|template| template.render(&variables.values));
        rendered.map_err(|error| self.explain(name, variables, &error))
    }

    fn explain(&self, name: &'static str, variables: &Variables, error: &minijinja::Error) -> RenderFailure {
        // A filter on an undefined value is an invalid operation to minijinja and an undefined value to Jinja2.
        let undefined = error.kind() == ErrorKind::UndefinedError
            || error.detail().is_some_and(|detail| detail.contains("of type undefined"));
        if !undefined {
            let kind = match error.kind() {
                ErrorKind::InvalidOperation => "TypeError",
                _ => "TemplateRuntimeError",
            };
            return RenderFailure { kind, detail: error.to_string() };
        }
        let mut missing = match self.environment.get_template(name) {
            Ok(template) => template.undeclared_variables(false).into_iter().collect::<Vec<_>>(),
            Err(_) => Vec::new(),
        };
        missing.retain(|variable| !variables.contains(variable));
        missing.sort();
        let detail = match missing.first() {
            Some(variable) => format!("'{variable}' is undefined"),
            None => error.to_string(),
        };
        RenderFailure { kind: "UndefinedError", detail }
    }
}

/// The failure upstream has when a variable has the name of an argument of its render call.
pub(crate) fn duplicate_argument(detail: &str) -> RenderFailure {
    RenderFailure { kind: "TypeError", detail: detail.to_owned() }
}

/// A template engine set up with the rules of this module.
fn jinja_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_keep_trailing_newline(false);
    environment.set_formatter(|output, state, value| match value.kind() {
        ValueKind::Bool => output.write_str(if value.is_true() { "True" } else { "False" }).map_err(write_failure),
        ValueKind::None => output.write_str("None").map_err(write_failure),
        _ => minijinja::escape_formatter(output, state, value),
    });
    environment.add_filter("tojson", to_json);
    environment
}

fn write_failure(error: std::fmt::Error) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::WriteFailure, "the output could not be written").with_source(error)
}

fn to_json(value: Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    options.assert_all_used()?;
    let tree = serde_json::to_value(&value)
        .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(html_safe_json(&tree, indent)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(template: &str, variables: serde_json::Value) -> Result<String, RenderFailure> {
        let tree = json!({"agent": {"system_template": template, "instance_template": ""}});
        let templates = TemplateSet::new(&AgentFile::from_value(&tree, "test").unwrap()).unwrap();
        let serde_json::Value::Object(layer) = variables else { panic!() };
        templates.render(SYSTEM, &Variables::merged([layer]))
    }

    #[test]
    fn templates_follow_jinja() {
        let cases = [
            ("a\n\n", "a\n"),
            ("{{ t }}", "{{ x }} <b> & 'q'"),
            ("{{ yes }} {{ no }} {{ none }} {{ cost }}", "True False None 3.0"),
            ("{{ long | length }} {{ long[:2] }} {{ long[-2:] }}", "4 é世 👋x"),
            ("{% if none is none -%}\n  a\n{%- endif -%}\nb", "ab"),
            ("{%- if false -%} a {%- else %}  b{% endif -%}  ", "  b"),
            ("{%- set n = long | length - 1 -%}{{ n }}", "3"),
            ("{{ long | tojson }}", "\"\\u00e9\\u4e16\\ud83d\\udc4bx\""),
            ("a\r\nb\rc", "a\nb\nc"),
            ("{{ m.a }} {{ m['a'] }}", "1 1"),
        ];
        for (template, expected) in cases {
            let variables = json!({
                "t": "{{ x }} <b> & 'q'", "yes": true, "no": false, "none": null, "cost": 3.0, "long": "é世👋x", "m": {"a": 1},
            });
            assert_eq!(render(template, variables).as_deref(), Ok(expected), "template {template:?}");
        }
    }

    #[test]
    fn an_undefined_variable_is_named() {
        for template in ["{{ gone }}", "{% if gone %}a{% endif %}", "{{ gone | length }}"] {
            let failure = render(template, json!({"a": 1})).unwrap_err();
            assert_eq!(
                (failure.kind, failure.detail.as_str()),
                ("UndefinedError", "'gone' is undefined"),
                "{template}"
            );
        }
        assert_eq!(render("{{ a }}", json!({"a": 1, "self": 2})).unwrap_err().kind, "TypeError");
    }

    #[test]
    fn later_layers_win_member_by_member() {
        let layers = [json!({"a": {"x": 1, "y": 2}, "b": {"z": 1}}), json!({"a": {"y": 3}, "b": 4})];
        let layers = layers.map(|layer| match layer {
            serde_json::Value::Object(map) => map,
            _ => Map::new(),
        });
        let variables = Variables::merged(layers);
        assert_eq!(variables.values["a"].to_string(), "{\"x\": 1, \"y\": 3}");
        assert_eq!(variables.values["b"].to_string(), "4");
    }
}
