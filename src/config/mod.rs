//! The configuration: one typed tree.
//!
//! Defaults < TOML file(s) in the order given < environment < `--set a.b=value`. Unknown keys are errors with the nearest
//! known one, all problems are reported at once, and `greenroom config show --origin` says where each value came from.
//! Relative paths are relative to `data.root` where it is set, else to the current directory. Secrets are named by their
//! source and never stand in the tree.

mod environment;
mod load;
mod problems;
mod tree;
mod typed;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use greenroom_engine::EngineConfig;
use greenroom_rollout::{GradeIn, RolloutConfig};
use greenroom_run::RunConfig;
use greenroom_sandbox::{Isolation, SandboxConfig};
use greenroom_weights::WeightsConfig;
use serde::{Deserialize, Serialize};

pub use environment::{EXAMPLE_VARIABLES, ExampleVariable};
pub use load::{ConfigError, Layers, Loaded, load, load_for_run};

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The seed of everything random in the run.
    pub seed: u64,
    /// The policy at the start.
    pub model: ModelConfig,
    /// Tasks, demonstrations, images.
    pub data: DataConfig,
    /// The agent.
    pub agent: AgentSection,
    /// The warm start by supervised learning; without demonstrations there is none.
    pub warm_start: WarmStartSection,
    /// The schedule.
    pub run: RunConfig,
    /// Rollouts.
    pub rollout: RolloutConfig,
    /// Sandboxes.
    pub sandbox: SandboxConfig,
    /// Engines.
    pub engine: EngineSection,
    /// Weights on their way.
    pub weights: WeightsConfig,
    /// The trainer.
    #[cfg(feature = "torch")]
    pub trainer: greenroom_trainer::TrainerConfig,
    /// The trainer; this build has none (feature `torch`), so its settings are kept and not read.
    #[cfg(not(feature = "torch"))]
    pub trainer: BTreeMap<String, serde_json::Value>,
}

/// The policy at the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// A Hugging Face directory: configuration, tokenizer, chat template and, unless `init` is set, weights.
    pub dir: PathBuf,
    /// Make the weights anew, at random from the seed, in the shape that `config.json` states; `dir` then needs none.
    pub init_weights: bool,
}

/// Tasks, demonstrations, images.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// What relative paths below `data`, `model` and `agent` are relative to.
    pub root: Option<PathBuf>,
    /// The training tasks, JSONL in the example's sample schema.
    pub train: PathBuf,
    /// Tasks that are only measured.
    pub held_out: Option<PathBuf>,
    /// Demonstrations for the warm start: JSONL with `messages` each.
    pub demonstrations: Option<PathBuf>,
    /// The sandboxes' images by name: the `pool` that a task names.
    pub images: BTreeMap<String, ImageConfig>,
    /// A directory whose sub-directories are images too, each under its name.
    pub images_dir: Option<PathBuf>,
}

/// One image of the local sandbox provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageConfig {
    /// The directory that each box gets its own copy of; none for an empty one.
    pub source_dir: Option<PathBuf>,
    /// Where it lies inside the box.
    pub workdir: Option<PathBuf>,
    /// Variables of every command.
    pub env: BTreeMap<String, String>,
}

/// The agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentSection {
    /// A file in the shape of mini-swe-agent's YAML; none for the built-in wording.
    pub file: Option<PathBuf>,
}

/// The warm start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmStartSection {
    /// Passes over the demonstrations.
    pub epochs: u32,
    /// Tokens per optimizer step.
    pub tokens_per_step: u32,
    /// Peak learning rate.
    pub learning_rate: f32,
}

impl Default for WarmStartSection {
    fn default() -> Self {
        Self { epochs: 2, tokens_per_step: 8_192, learning_rate: 1e-5 }
    }
}

/// Engines: those that greenroom starts itself, and those that run already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSection {
    /// Engines inside this process, on libtorch.
    pub embedded: EmbeddedEngines,
    /// SGLang engines, by name.
    pub external: BTreeMap<String, ExternalEngine>,
    /// How engines are spoken to.
    pub client: EngineConfig,
}

/// Engines inside this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddedEngines {
    /// How many; 0 for none.
    pub count: u32,
    /// Most requests decoded together, each.
    pub max_running_requests: u32,
    /// What a request yields does not depend on its neighbours: slower, and a run repeats exactly.
    pub batch_invariant: bool,
    /// `cpu`, `cuda:N`, or `auto`.
    pub device: String,
    /// Threads of tensor operations.
    pub threads: u32,
}

impl Default for EmbeddedEngines {
    fn default() -> Self {
        Self { count: 0, max_running_requests: 64, batch_invariant: false, device: "cpu".to_owned(), threads: 1 }
    }
}

/// A running SGLang engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalEngine {
    /// Its base address.
    pub url: String,
    /// Most requests in flight at it.
    #[serde(default = "default_in_flight")]
    pub max_in_flight: u32,
}

fn default_in_flight() -> u32 {
    256
}

/// What is said when there is nothing to generate with.
const NO_ENGINE: &str = "a run needs an engine";

impl Config {
    /// A path of the configuration, made whole.
    pub fn path(&self, path: &Path) -> PathBuf {
        match &self.data.root {
            Some(root) if path.is_relative() => root.join(path),
            _ => path.to_owned(),
        }
    }

    /// The same configuration for whoever reads it from another directory: relative paths are below an absolute
    /// `data.root`, or absolute.
    ///
    /// # Errors
    /// The current directory is gone.
    pub fn with_absolute_paths(mut self) -> std::io::Result<Self> {
        use greenroom_engine::SecretSource;
        self.data.root = Some(match &self.data.root {
            Some(root) => std::path::absolute(root)?,
            None => std::env::current_dir()?,
        });
        let credentials = &mut self.engine.client.credentials;
        for source in [&mut credentials.api_key, &mut credentials.admin_key] {
            if let Some(SecretSource::File(file)) = source {
                *file = std::path::absolute(&*file)?;
            }
        }
        #[cfg(feature = "torch")]
        if let Some(reference) = &mut self.trainer.reference_dir {
            *reference = std::path::absolute(&*reference)?;
        }
        Ok(self)
    }

    /// Everything that is wrong with the values, one line each; a line about one key begins with it.
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.run.problems().iter().map(ToString::to_string).collect();
        problems.extend(self.rollout.problems().into_iter().map(|problem| format!("rollout.{problem}")));
        problems.extend(self.sandbox.problems());
        problems.extend(self.engine.client.problems().into_iter().map(client_problem));
        let urls = self.engine.external.iter();
        problems
            .extend(urls.filter_map(|(name, engine)| url_problem(&format!("engine.external.{name}.url"), &engine.url)));
        let mut require = |holds: bool, text: &str| {
            if !holds {
                problems.push(text.to_owned());
            }
        };
        require(!self.model.dir.as_os_str().is_empty(), "model.dir must name a Hugging Face directory");
        require(!self.data.train.as_os_str().is_empty(), "data.train must name a JSONL file of tasks");
        let engines = self.engine.embedded.count as usize + self.engine.external.len();
        require(
            engines > 0,
            &format!("{NO_ENGINE}: set engine.embedded.count, or name SGLang servers under engine.external.NAME.url"),
        );
        let enough = self.run.batch_silence_ms > self.rollout.longest_sample_ms();
        require(
            enough,
            &format!(
                "run.batch_silence_ms is {}, but one sample may take {} with its re-issues: set it above that",
                self.run.batch_silence_ms,
                self.rollout.longest_sample_ms()
            ),
        );
        #[cfg(feature = "torch")]
        {
            let (context, batch) = (self.rollout.max_context_tokens as usize, self.trainer.tokens_per_micro_batch);
            if context > batch {
                problems.push(format!(
                    "trainer.tokens_per_micro_batch is {batch}, but one rollout may have {context} tokens \
                     (rollout.max_context_tokens): set it to at least that"
                ));
            }
        }
        #[cfg(feature = "torch")]
        problems.extend(self.trainer.problems().into_iter().map(trainer_problem));
        problems.extend(self.capacity_problems());
        if self.run.steps == 0 && self.data.demonstrations.is_none() && !self.run.evaluation.before_and_after {
            problems.push(
                "run.steps is 0, and there is neither a warm start (data.demonstrations) nor a measurement \
                 (run.evaluation.before_and_after): nothing would be done"
                    .to_owned(),
            );
        }
        if self.sandbox.local.isolation == Isolation::None && self.rollout.grade_in == GradeIn::FreshBox {
            problems.push(
                "sandbox.local.isolation is \"none\": boxes without walls share /tmp and see each other's files, so that there is \
                 no untouched one to grade in: set rollout.grade_in = \"same-box\" too, or give the boxes walls"
                    .to_owned(),
            );
        }
        let tree = serde_json::to_value(self).unwrap_or_default();
        problems::endless_waits(&tree, "", &mut problems);
        problems
    }

    /// Numbers of the configuration's own sections that nothing could be done with.
    fn capacity_problems(&self) -> Vec<String> {
        let (start, embedded) = (&self.warm_start, &self.engine.embedded);
        let is_warm = self.data.demonstrations.is_some();
        let serves = embedded.count > 0;
        let mut wrong = vec![
            (
                embedded.count > 64,
                "engine.embedded.count must be at most 64: each is an engine of its own in this process",
            ),
            (
                is_warm && start.epochs == 0,
                "warm_start.epochs must be at least 1; for none, leave data.demonstrations out",
            ),
            (is_warm && start.tokens_per_step == 0, "warm_start.tokens_per_step must be at least 1"),
            (
                is_warm && !(start.learning_rate > 0.0 && start.learning_rate.is_finite()),
                "warm_start.learning_rate must be above 0",
            ),
            (serves && embedded.max_running_requests == 0, "engine.embedded.max_running_requests must be at least 1"),
            (serves && embedded.threads == 0, "engine.embedded.threads must be at least 1"),
        ];
        let device = format!("engine.embedded.device is {:?}: write {DEVICES}", embedded.device);
        wrong.push((serves && !is_device(&embedded.device), &device));
        let idle = self.engine.external.values().any(|engine| engine.max_in_flight == 0);
        wrong.push((idle, "engine.external.NAME.max_in_flight must be at least 1"));
        wrong.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, text)| text.to_owned()).collect()
    }
}

/// How devices are written.
pub(crate) const DEVICES: &str = "cpu, cuda:N (such as cuda:0) or auto";

/// Whether a text names a device; whether it is there is another question.
pub(crate) fn is_device(text: &str) -> bool {
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    matches!(text, "cpu" | "auto") || text.strip_prefix("cuda:").is_some_and(is_number)
}

/// What is wrong with an engine's address, if anything is. One that may hold a secret is not repeated.
pub(crate) fn url_problem(key: &str, url: &str) -> Option<String> {
    let problem = greenroom_engine::EngineConfig::url_problem(url)?;
    let shown = if url.contains(['@', '?', '#']) { String::new() } else { format!(" is {url:?}") };
    Some(format!("{key}{shown}: {problem}"))
}

fn client_problem(problem: greenroom_engine::EngineConfigError) -> String {
    match problem {
        greenroom_engine::EngineConfigError::Value { setting, value, message } => {
            format!("engine.client.{setting} is {value}: {message}")
        }
        other => format!("engine.client: {other}"),
    }
}

#[cfg(feature = "torch")]
fn trainer_problem(problem: greenroom_trainer::TrainerError) -> String {
    match problem {
        greenroom_trainer::TrainerError::InvalidConfig { field, reason } => format!("trainer.{field}: {reason}"),
        other => format!("trainer: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_devices_are_told_from_what_are_none() {
        for good in ["http://h", "http://10.0.0.1:30000", "https://engine.example:443/v1", "http://[::1]:30000"] {
            assert_eq!(url_problem("url", good), None);
        }
        let bad = [
            "",
            "nonsense",
            "http://",
            "http://:80",
            "h:80",
            "http://h:99999",
            "http://h:x",
            "http://h:0",
            "http://a b",
            "ftp://h",
        ];
        for bad in bad {
            assert_eq!(url_problem("url", bad), Some(format!("url is {bad:?}: write http://HOST:PORT")));
        }
        for secret in ["http://me:secret@h:1", "http://h:1?key=secret", "http://h:1/#secret", "ftp://me:secret@h"] {
            let problem = url_problem("url", secret).unwrap();
            assert!(problem.starts_with("url: ") && problem.contains("http://HOST:PORT"), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
        assert!(["cpu", "auto", "cuda:0", "cuda:17"].into_iter().all(is_device));
        assert!(!["gpu", "cuda", "cuda:", "cuda:x", "CPU", ""].into_iter().any(is_device));
    }

    #[test]
    fn a_saved_configuration_means_the_same_from_everywhere() {
        let here = std::env::current_dir().unwrap();
        let config = Config::default().with_absolute_paths().unwrap();
        assert_eq!(config.data.root.as_deref(), Some(here.as_path()));
        let mut config = Config::default();
        config.data.root = Some("data".into());
        config.engine.client.credentials.api_key = Some(greenroom_engine::SecretSource::File("key".into()));
        let config = config.with_absolute_paths().unwrap();
        assert_eq!(config.path(Path::new("rl.jsonl")), here.join("data/rl.jsonl"));
        assert_eq!(
            config.engine.client.credentials.api_key,
            Some(greenroom_engine::SecretSource::File(here.join("key")))
        );
    }
}
