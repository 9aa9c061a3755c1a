//! A chat template, rendered as `transformers` renders it.
//!
//! `transformers` (utils/chat_template_utils.py) compiles a template in a sandboxed Jinja with `trim_blocks` and
//! `lstrip_blocks`, adds `raise_exception`, `strftime_now`, `tojson` without HTML escapes, loop controls, and the tags
//! `generation`/`endgeneration`, and gives it the special tokens of `tokenizer_config.json` as variables. The same is done
//! here with minijinja, and Python's string and mapping methods are added by hand. The template is taken from
//! `chat_template.jinja`, else from `chat_template` in `tokenizer_config.json` (a string, or a list with one named
//! `default`). On failure the error holds the template's own words and line.

mod calendar;
mod json_text;
mod python_methods;
mod python_text;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use greenroom_core::Clock;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value as JinjaValue};
use serde_json::{Map, Value};

use crate::TokensError;
use crate::model_files::{optional_json, token_text};

const NAME: &str = "chat_template";
const REMEDY: &str = "the model's directory must hold chat_template.jinja, or chat_template in tokenizer_config.json; \
                      take the directory of a chat or instruct model, or add the template";
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The chat template of a model; see the module's page.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    special_tokens: Map<String, Value>,
    source: Arc<str>,
}

impl ChatTemplate {
    /// The chat template of a model's directory. Dates (`strftime_now`) come from the system's clock.
    pub fn from_dir(dir: &Path) -> Result<Self, TokensError> {
        Self::read(dir, None)
    }

    /// The same with dates from `clock`, so that a simulated run renders the same text every time.
    pub fn from_dir_with_clock(dir: &Path, clock: Clock) -> Result<Self, TokensError> {
        Self::read(dir, Some(clock))
    }

    fn read(dir: &Path, clock: Option<Clock>) -> Result<Self, TokensError> {
        let config_path = dir.join("tokenizer_config.json");
        let config = optional_json(&config_path)?.unwrap_or(Value::Null);
        let jinja_path = dir.join("chat_template.jinja");
        let (path, source) = match std::fs::read_to_string(&jinja_path) {
            Ok(source) => (jinja_path, source),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let source = config.get("chat_template").and_then(default_template);
                let missing = || TokensError::Missing { path: jinja_path, reason: error.to_string(), remedy: REMEDY };
                (config_path, source.ok_or_else(missing)?.to_owned())
            }
            Err(error) => return Err(TokensError::damaged(&jinja_path, error)),
        };
        let special_tokens = SPECIAL_TOKENS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), token_text(config.get(*name)?)?.into())))
            .collect();
        let damaged = |error| TokensError::damaged(&path, error);
        let environment = environment(&source, clock).map_err(damaged)?;
        Ok(Self { environment: Arc::new(environment), special_tokens, source: source.into() })
    }

    /// A template given as text, with the variables that stand for special tokens.
    pub fn from_source(source: &str, special_tokens: Map<String, Value>) -> Result<Self, TokensError> {
        let environment =
            environment(source, None).map_err(|error| TokensError::Template { reason: describe(&error) })?;
        Ok(Self { environment: Arc::new(environment), special_tokens, source: source.into() })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders messages (objects with `role`, `content`, and whatever else the template reads). `add_generation_prompt`
    /// appends what comes before the assistant's next words. `tools` are JSON schemas in the form of OpenAI's API.
    pub fn render(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        tools: Option<&[Value]>,
    ) -> Result<String, TokensError> {
        self.render_with(messages, add_generation_prompt, tools, &Map::new())
    }

    /// The same with further variables, such as `enable_thinking` (`chat_template_kwargs` of the engines' chat API).
    pub fn render_with(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        tools: Option<&[Value]>,
        variables: &Map<String, Value>,
    ) -> Result<String, TokensError> {
        let mut context = self.special_tokens.clone();
        context.extend(variables.clone());
        context.insert("messages".to_owned(), messages.into());
        context.insert("tools".to_owned(), tools.map_or(Value::Null, Value::from));
        context.insert("documents".to_owned(), Value::Null);
        context.insert("add_generation_prompt".to_owned(), add_generation_prompt.into());
        let template = |error| TokensError::Template { reason: describe(&error) };
        let compiled = self.environment.get_template(NAME).map_err(template)?;
        compiled.render(JinjaValue::from_serialize(&context)).map_err(template)
    }
}

fn default_template(value: &Value) -> Option<&str> {
    if let Some(named) = value.as_array() {
        let default = named.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"));
        return default?.get("template")?.as_str();
    }
    value.as_str()
}

fn environment(source: &str, clock: Option<Clock>) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(python_text::format);
    environment.set_unknown_method_callback(python_methods::call);
    environment.add_function("raise_exception", |reason: String| -> Result<JinjaValue, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, reason))
    });
    let clock_cell = OnceLock::new();
    environment.add_function("strftime_now", move |format: String| {
        let clock = clock.unwrap_or_else(|| *clock_cell.get_or_init(Clock::system));
        calendar::strftime(&format, clock.now_ms())
    });
    environment.add_filter("tojson", |value: JinjaValue, options: Kwargs| -> Result<JinjaValue, Error> {
        json_text::tojson(&value, &options).map(JinjaValue::from_safe_string)
    });
    environment.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(environment)
}

/// `generation` marks the assistant's words for mask building in `transformers` and prints nothing itself.
fn without_generation_tags(source: &str) -> String {
    let mut text = source.to_owned();
    for (tag, stand_in) in [("generation", "if true"), ("endgeneration", "endif")] {
        for opening in ["{%", "{%-", "{%+"] {
            for closing in ["%}", "-%}"] {
                for blanks in [" ", ""] {
                    let from = format!("{opening}{blanks}{tag}{blanks}{closing}");
                    text = text.replace(&from, &format!("{opening} {stand_in} {closing}"));
                }
            }
        }
    }
    text
}

fn describe(error: &Error) -> String {
    let place = error.line().map_or_else(String::new, |line| format!(" (line {line} of the template)"));
    let detail = error.detail().map_or_else(|| error.to_string(), str::to_owned);
    format!("{detail}{place}")
}
