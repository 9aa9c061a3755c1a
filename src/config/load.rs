//! Layers of configuration, merged, checked, typed.

use std::path::{Path, PathBuf};

use figment::providers::{Format, Serialized, Toml};
use figment::{Figment, Source};
use serde_json::Value;

use super::Config;
use super::environment::{EXAMPLE_VARIABLES, PREFIX, example_value, nested, typed};
use super::problems::compare;

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
    figment: Figment,
}

/// Reads, merges and checks the layers.
pub fn load(layers: &Layers) -> Result<Loaded, ConfigError> {
    let mut problems = Vec::new();
    let mut figment = Figment::from(Serialized::defaults(Config::default()));
    for file in &layers.files {
        match read(file) {
            Ok(()) => figment = figment.merge(Toml::file_exact(file)),
            Err(problem) => problems.push(problem),
        }
    }
    for (name, table) in environment_tables(&layers.environment) {
        figment = figment.merge(Serialized::defaults(table).key_name(&name));
    }
    for setting in &layers.settings {
        match setting.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                let table = nested(key.trim(), typed(value));
                figment = figment.merge(Serialized::defaults(table).key_name(&format!("--set {}", key.trim())));
            }
            _ => problems.push(format!("--set {setting} must be KEY=VALUE, such as run.steps=10")),
        }
    }
    let given: Value = figment.extract().map_err(|error| wrong(vec![error.to_string()]))?;
    let known = serde_json::to_value(Config::default()).map_err(|error| wrong(vec![error.to_string()]))?;
    compare(&known, &given, "", &mut problems);
    if !problems.is_empty() {
        return Err(wrong(problems));
    }
    let typed: Result<Config, figment::Error> = figment.extract();
    let config = typed.map_err(|errors| wrong(errors.into_iter().map(|error| error.to_string()).collect()))?;
    Ok(Loaded { config, figment })
}

fn wrong(problems: Vec<String>) -> ConfigError {
    ConfigError { problems }
}

/// Whether a file can be read and is TOML; figment's own message would not show the line.
fn read(file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parsed: Result<toml::Table, _> = toml::from_str(&text);
    parsed.map(drop).map_err(|error| {
        let at = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("{}:{at}: {}", file.display(), error.message().replace('\n', " "))
    })
}

fn environment_tables(environment: &[(String, String)]) -> Vec<(String, toml::Table)> {
    let example = EXAMPLE_VARIABLES.iter().filter_map(|variable| {
        let (_, text) = environment.iter().find(|(name, text)| name == variable.name && !text.is_empty())?;
        Some((variable.name.to_owned(), nested(variable.key, example_value(variable, text))))
    });
    let own = environment.iter().filter_map(|(name, text)| {
        let key = name.strip_prefix(PREFIX)?.to_lowercase().replace("__", ".");
        Some((name.clone(), nested(&key, typed(text))))
    });
    example.chain(own).collect()
}

/// Gives a provider the name by which `--origin` shows it.
trait KeyName: Sized {
    fn key_name(self, name: &str) -> Named;
}

impl KeyName for Serialized<toml::Table> {
    fn key_name(self, name: &str) -> Named {
        Named { provider: self, name: name.to_owned() }
    }
}

struct Named {
    provider: Serialized<toml::Table>,
    name: String,
}

impl figment::Provider for Named {
    fn metadata(&self) -> figment::Metadata {
        figment::Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<figment::value::Map<figment::Profile, figment::value::Dict>, figment::Error> {
        self.provider.data()
    }
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
        self.walk(&tree, "", &mut lines);
        lines.join("\n")
    }

    fn walk(&self, value: &Value, at: &str, lines: &mut Vec<String>) {
        if let Value::Object(table) = value {
            for (key, value) in table {
                self.walk(value, &if at.is_empty() { key.clone() } else { format!("{at}.{key}") }, lines);
            }
            return;
        }
        let metadata = self.figment.find_metadata(at);
        let origin = metadata.map_or("default".to_owned(), |metadata| match &metadata.source {
            Some(Source::File(path)) => path.display().to_string(),
            _ if metadata.name.starts_with("--set")
                || metadata.name.chars().all(|c| c.is_uppercase() || "_0123456789".contains(c)) =>
            {
                metadata.name.to_string()
            }
            _ => "default".to_owned(),
        });
        if !value.is_null() {
            lines.push(format!("{at} = {value}  # {origin}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(toml: &str, environment: &[(&str, &str)], settings: &[&str]) -> (tempfile::TempDir, Layers) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.toml");
        std::fs::write(&file, toml).unwrap();
        let environment = environment.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        (dir, Layers { files: vec![file], environment, settings })
    }

    #[test]
    fn later_layers_win_and_say_where_they_come_from() {
        let environment = [
            ("GREENROOM__RUN__STEPS", "7"),
            ("AGENT_EXEC_TIMEOUT_SEC", "45"),
            ("SLIME_MODE", "async"),
            ("PATH", "/bin"),
        ];
        let (_dir, layers) =
            layers("seed = 3\n[run]\nsteps = 5\ngroups_per_batch = 4", &environment, &["run.temperature=0.7"]);
        let loaded = load(&layers).unwrap();
        let config = &loaded.config;
        assert_eq!((config.seed, config.run.steps, config.run.groups_per_batch), (3, 7, 4));
        assert_eq!(config.rollout.exec_timeout_ms, 45_000);
        assert_eq!(config.run.schedule, greenroom_run::ScheduleMode::Async);
        assert!((config.run.temperature - 0.7).abs() < 1e-6);
        let origins = loaded.with_origins();
        for line in ["run.steps = 7  # GREENROOM__RUN__STEPS", "run.samples_per_group = 8  # default"] {
            assert!(origins.contains(line), "{line} is missing in:\n{origins}");
        }
        assert!(
            origins.lines().any(|line| line.starts_with("run.groups_per_batch = 4  # ") && line.ends_with("run.toml"))
        );
        assert!(
            origins
                .lines()
                .any(|line| line.starts_with("run.temperature") && line.ends_with("# --set run.temperature"))
        );
    }

    #[test]
    fn every_problem_is_told_at_once_with_the_nearest_right_key() {
        let toml =
            "sed = 1\n[run]\nstepz = 5\nsteps = \"many\"\n[rollout]\nmax_turns = 2.5\n[trainer.optimizer]\nbeta3 = 1.0";
        let (_dir, layers) = layers(toml, &[], &["nonsense", "run.evaluation.held_otu=true"]);
        let error = load(&layers).unwrap_err();
        for words in [
            "unknown key sed: did you mean seed?",
            "unknown key run.stepz: did you mean steps?",
            "run.steps must be a whole number, but is \"many\"",
            "rollout.max_turns must be a whole number, but is 2.5",
            "--set nonsense must be KEY=VALUE",
            "unknown key run.evaluation.held_otu: did you mean held_out?",
        ] {
            assert!(error.problems.iter().any(|problem| problem.contains(words)), "{words} is missing in {error}");
        }
    }

    #[test]
    fn a_file_that_is_no_toml_is_named_with_its_line() {
        let (_dir, layers) = layers("seed = 1\n[run\nsteps = 2\n", &[], &[]);
        let error = load(&layers).unwrap_err();
        assert!(error.problems[0].contains("run.toml:2:"), "{error}");
        let missing = Layers { files: vec!["/nowhere/run.toml".into()], ..Layers::default() };
        assert!(load(&missing).unwrap_err().problems[0].contains("/nowhere/run.toml"));
    }
}
