//! Layers of configuration, merged, checked, typed.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::environment::{EXAMPLE_VARIABLES, PREFIX, example_value};
use super::problems::{Finding, find, placed};
use super::tree::{self, Origin, Tree};
use super::typed::Given;
use super::{Config, problems};
use crate::files::{self, Limit};

/// Where configuration comes from, lowest first: defaults, files, environment, settings.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// TOML files, later ones over earlier ones.
    pub files: Vec<PathBuf>,
    /// The environment's variables.
    pub environment: Vec<(String, String)>,
    /// `key=value` texts of `--set`.
    pub settings: Vec<String>,
}

/// The configuration is wrong (GR0901): every problem, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The problems.
    pub problems: Vec<String>,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "GR0901: the configuration is wrong")?;
        self.problems.iter().try_for_each(|problem| write!(formatter, "\n  {problem}"))
    }
}

impl std::error::Error for ConfigError {}

/// A loaded configuration.
#[derive(Debug)]
pub struct Loaded {
    /// The typed tree.
    pub config: Config,
    tree: Tree,
}

/// Reads, merges and types the layers. Whether the values are enough for a run is not asked: see [`load_for_run`].
///
/// # Errors
/// GR0901 with every problem: unreadable files, unknown keys, values of the wrong kind.
pub fn load(layers: &Layers) -> Result<Loaded, ConfigError> {
    let (loaded, findings) = read(layers)?;
    if findings.is_empty() { Ok(loaded) } else { Err(wrong(findings)) }
}

/// The same for a run: also every value that a run cannot be made with, all told at once.
///
/// # Errors
/// GR0901 with every problem.
pub fn load_for_run(layers: &Layers) -> Result<Loaded, ConfigError> {
    let (loaded, mut findings) = read(layers)?;
    // what stands at a place that was wrong is a default, about which nothing needs to be said
    let is_told = |problem: &String| !findings.iter().any(|finding| finding.covers(problem));
    let more: Vec<String> = loaded.config.problems().into_iter().filter(is_told).collect();
    findings.extend(more.into_iter().map(|problem| Finding::new(placed(&loaded.tree, problem))));
    if findings.is_empty() { Ok(loaded) } else { Err(wrong(findings)) }
}

impl Loaded {
    /// What a run would refuse of these values, one line each. What is only missing, as in a file that another one completes,
    /// is not among it.
    pub fn problems(&self) -> Vec<String> {
        let missing = Config::default().problems();
        let problems = self.config.problems().into_iter().filter(|problem| !missing.contains(problem));
        problems.map(|problem| placed(&self.tree, problem)).collect()
    }
}

fn read(layers: &Layers) -> Result<(Loaded, Vec<Finding>), ConfigError> {
    let defaults = serde_json::to_value(Config::default())
        .map_err(|error| ConfigError { problems: vec![format!("the defaults cannot be written down: {error}")] })?;
    let mut tree = Tree::new(defaults);
    let mut findings = Vec::new();
    let mut put = |path: &[String], value, origin| {
        if let Err(problem) = tree.put(path, value, origin) {
            findings.push(Finding::new(problem));
        }
    };
    let mut unreadable = Vec::new();
    for file in &layers.files {
        match leaves(file) {
            Ok(leaves) => leaves.into_iter().for_each(|(path, value, line)| put(&path, value, tree::place(file, line))),
            Err(problem) => unreadable.push(Finding::new(problem)),
        }
    }
    for (name, key, value) in environment_values(&layers.environment) {
        put(&tree::path(&key), value, Origin::Environment(name));
    }
    for setting in &layers.settings {
        match setting.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                put(&tree::path(key), tree::typed(value), Origin::Setting(key.trim().to_owned()));
            }
            _ => unreadable.push(Finding::new(format!("--set {setting} must be KEY=VALUE, such as run.steps=10"))),
        }
    }
    findings.splice(0..0, unreadable);
    let config = typed(&mut tree, &mut findings);
    Ok((Loaded { config, tree }, findings))
}

fn wrong(findings: Vec<Finding>) -> ConfigError {
    ConfigError { problems: findings.into_iter().map(|finding| finding.text).collect() }
}

/// The tree as a configuration. Each wrong place is told and goes back to its default, until none is left.
fn typed(tree: &mut Tree, findings: &mut Vec<Finding>) -> Config {
    loop {
        match Config::deserialize(Given(&tree.values)) {
            Ok(config) => return config,
            Err(wrong) => {
                let (finding, place) = find(tree, wrong);
                findings.push(finding);
                if !tree.reset(&place) {
                    return Config::default();
                }
            }
        }
    }
}

fn leaves(file: &Path) -> Result<Vec<tree::Leaf>, String> {
    let text = files::read_text("the configuration", file, Limit::SMALL).map_err(|error| error.to_string())?;
    tree::leaves(&text).map_err(|(line, words)| format!("{}:{line}: {words}", file.display()))
}

/// Names, keys and values of the variables that are meant for us; greenroom's own names win over the example's.
fn environment_values(environment: &[(String, String)]) -> Vec<(String, String, Value)> {
    let example = EXAMPLE_VARIABLES.iter().filter_map(|variable| {
        let (_, text) = environment.iter().find(|(name, text)| name == variable.name && !text.is_empty())?;
        Some((variable.name.to_owned(), variable.key.to_owned(), example_value(variable, text)))
    });
    let own = environment.iter().filter_map(|(name, text)| {
        let key = name.strip_prefix(PREFIX)?.to_lowercase().replace("__", ".");
        Some((name.clone(), key, tree::typed(text)))
    });
    example.chain(own).collect()
}

impl Loaded {
    /// The configuration as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(&self.config).unwrap_or_else(|error| format!("# cannot be shown: {error}\n"))
    }

    /// Each value on a line, with where it came from.
    pub fn with_origins(&self) -> String {
        let tree = serde_json::to_value(&self.config).unwrap_or_default();
        let mut lines = Vec::new();
        self.walk(&tree, &mut Vec::new(), &mut lines);
        lines.join("\n")
    }

    fn walk(&self, value: &Value, path: &mut Vec<String>, lines: &mut Vec<String>) {
        match value {
            Value::Object(table) => {
                for (key, value) in table {
                    path.push(key.clone());
                    self.walk(value, path, lines);
                    path.pop();
                }
            }
            value => {
                let shown = if value.is_null() { "(not set)".to_owned() } else { problems::shortest(value) };
                let origin = self.tree.origin(path).map_or_else(|| "default".to_owned(), ToString::to_string);
                lines.push(format!("{} = {shown}  # {origin}", tree::key(path)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
