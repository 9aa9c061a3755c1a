//! What can go wrong while a run is being prepared, with a stable code each. Every text names the setting, what it led to and
//! what to do.

use std::path::{Path, PathBuf};

/// A run cannot be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Tasks need images that are not configured (GR0905).
    #[error("{text}")]
    Images {
        /// Which, and what to do.
        text: String,
    },
    /// A run's name cannot be one (GR0906).
    #[error("{name:?} cannot be a run's name: use at most 100 letters, digits and . _ -, the first a letter or digit")]
    Name {
        /// The name.
        name: String,
    },
    /// A file or directory that the configuration names cannot be used (GR0907).
    #[error("{setting} {path} cannot be read ({reason}){remedy}", path = path.display())]
    File {
        /// The setting that names it.
        setting: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What should be there.
        remedy: &'static str,
    },
    /// A directory is no model (GR0908).
    #[error("{setting} {path}: {reason}", path = path.display())]
    Model {
        /// The setting that names it.
        setting: String,
        /// The directory.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The rollouts may be longer than the model can read (GR0909).
    #[error(
        "rollout.max_context_tokens is {wanted}, but the model's max_position_embeddings is {most} ({path}): set it to at \
         most {most}",
        path = path.display()
    )]
    Context {
        /// As configured.
        wanted: u64,
        /// As the model says.
        most: u64,
        /// Where the model says so.
        path: PathBuf,
    },
    /// A run was to go on with other inputs than those it was begun with (GR0910).
    #[error(
        "the run was begun with other inputs; go on without --config and with the same data, or begin a new run with \
         --name:{}",
        differences.iter().map(|line| format!("\n  {line}")).collect::<String>()
    )]
    OtherInputs {
        /// One line for each.
        differences: Vec<String>,
    },
    /// A task needs sandboxes with walls (GR0915).
    #[error("sandbox.local.isolation is \"none\", and the task {task} {why}: it needs sandboxes with walls")]
    Walls {
        /// The first such task.
        task: String,
        /// What of it needs them.
        why: &'static str,
    },
    /// A text names no device (GR0911).
    #[error("{setting} is {text:?}: write {}", crate::config::DEVICES)]
    Device {
        /// The setting.
        setting: String,
        /// The text.
        text: String,
    },
    /// A text is no layout of nodes (GR0912).
    #[error("{text:?} is no layout of nodes: {reason}; write for example {usual}")]
    Layout {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
        /// One that works.
        usual: &'static str,
    },
    /// A node on this machine failed too often (GR0913).
    #[error("the node {node} failed more often than it is started again; the last time it {how}")]
    NodeGaveUp {
        /// Its name.
        node: String,
        /// How it ended the last time.
        how: String,
    },
    /// A run cannot go on over these nodes (GR0914).
    #[error("{path}: {reason}", path = path.display())]
    NotOfNodes {
        /// Where the run or its nodes lie.
        path: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// A directory holds what a run has made, and not its history (GR0916).
    #[error(
        "{path} holds what a run has made ({made}), and its run.db is missing or empty: give that file back with \
         run.db-wal, if there is one, or begin a new run elsewhere",
        path = path.display()
    )]
    RunLost {
        /// The directory.
        path: PathBuf,
        /// What is there.
        made: String,
    },
    /// There is no run to go on with, or to look at (GR0203).
    #[error("{path} holds no run; {others}", path = path.display())]
    NoRun {
        /// Where it was looked for.
        path: PathBuf,
        /// Which runs there are instead.
        others: String,
    },
}

impl StartError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Images { .. } => "GR0905",
            Self::Name { .. } => "GR0906",
            Self::File { .. } => "GR0907",
            Self::Model { .. } => "GR0908",
            Self::Context { .. } => "GR0909",
            Self::OtherInputs { .. } => "GR0910",
            Self::Device { .. } => "GR0911",
            Self::Layout { .. } => "GR0912",
            Self::NodeGaveUp { .. } => "GR0913",
            Self::NotOfNodes { .. } => "GR0914",
            Self::Walls { .. } => "GR0915",
            Self::RunLost { .. } => "GR0916",
            Self::NoRun { .. } => "GR0203",
        }
    }

    pub(crate) fn file(setting: &str, path: &Path, reason: String) -> Self {
        let remedy = match setting {
            "data.train" | "data.held_out" => ": give the path of a JSONL file with one task a line",
            "data.demonstrations" => ": give the path of a JSONL file with one conversation a line",
            "data.images_dir" => ": give a directory with one directory for each image",
            "agent.file" => ": give a YAML file in the shape of config/agent/default.yaml",
            _ => "",
        };
        Self::File { setting: setting.to_owned(), path: path.to_owned(), reason, remedy }
    }
}
