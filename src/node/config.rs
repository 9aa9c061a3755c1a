//! What a node is told: who it is in the cluster, where it keeps its things, and which run it takes part in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use greenroom_cluster::ClusterConfig;
use greenroom_dataplane::DataplaneConfig;
use serde::{Deserialize, Serialize};

use super::NodeError;
use crate::config::ExternalEngine;

/// The roles that a node may play in a run.
pub const ROLES: [&str; 5] = ["controller", "rollout", "engine", "trainer", "sandbox"];

/// The settings of one node, one TOML file. The settings of the run are files of their own, the same on every node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The run's name.
    pub run: String,
    /// The run's configuration files, in order; relative ones lie beside this file.
    pub config: Vec<PathBuf>,
    /// The directory in which this node keeps what is its own; made if need be. Relative ones lie beside this file.
    pub state_dir: PathBuf,
    /// The run's directory, where this node is the controller; `run` in `state_dir` where it is not given. Relative ones lie
    /// beside this file.
    #[serde(default)]
    pub run_dir: Option<PathBuf>,
    /// Itself among the nodes.
    pub cluster: ClusterConfig,
    /// Bulk bytes on their way to and from this node.
    #[serde(default)]
    pub dataplane: NodeDataplane,
    /// How many nodes of each role must be there before the run starts; one of each where this is empty.
    #[serde(default)]
    pub gang: BTreeMap<String, usize>,
    /// How long the controller waits for them, and the others for the controller, in seconds.
    #[serde(default = "default_gang_wait_s")]
    pub gang_wait_s: u64,
    /// The roles whose nodes' own end is the run's for all, where no other node plays them; the controller is always one. The
    /// run goes on without others that leave, or waits for them.
    #[serde(default = "default_primary_roles")]
    pub primary_roles: Vec<String>,
    /// How long the others may take for what is under way after the run was completed, before they are told to stop now, in
    /// seconds; and how long the controller stays for nodes that are to come back. A run that was stopped or failed ends
    /// them at once.
    #[serde(default = "default_termination_delay_s")]
    pub termination_delay_s: u64,
    /// How long a node that is told to leave lets what is under way end, in seconds.
    #[serde(default = "default_drain_s")]
    pub drain_s: u64,
    /// Engines that run on this host already, by name; without any, the run's embedded ones are started here.
    #[serde(default)]
    pub engines: BTreeMap<String, ExternalEngine>,
}

fn default_drain_s() -> u64 {
    30
}

fn default_termination_delay_s() -> u64 {
    30
}

fn default_primary_roles() -> Vec<String> {
    vec!["controller".to_owned()]
}

fn default_gang_wait_s() -> u64 {
    600
}

/// Where this node's data plane listens, and how it sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeDataplane {
    /// `IP:PORT`, one number for TCP and UDP; port 0 takes a free one. Empty: a free port beside `cluster.bind`.
    pub bind: String,
    /// The host name or address at which other nodes reach it; empty for that of `bind`, or else of the cluster's address.
    pub advertise_host: String,
    /// How bytes travel.
    #[serde(flatten)]
    pub transfer: DataplaneConfig,
}

impl NodeConfig {
    /// Reads a node's file; relative paths in it are made whole.
    ///
    /// # Errors
    /// [`NodeError::Config`] names the file, what is wrong and where.
    pub fn load(path: &Path) -> Result<Self, NodeError> {
        let wrong = |reason: String| NodeError::Config { path: path.to_owned(), reason };
        let text = crate::files::read_text("--config", path, crate::files::Limit::SMALL)
            .map_err(|error| wrong(error.to_string()))?;
        let mut config: Self = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(wrong(problems.join("; ")));
        }
        let beside = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
        let beside = beside.parent().unwrap_or(Path::new("/"));
        let directories = [&mut config.state_dir].into_iter().chain(&mut config.run_dir);
        for file in config.config.iter_mut().chain(directories).chain(&mut config.cluster.cookie_file) {
            *file = beside.join(&*file);
        }
        if let Some(tls) = &mut config.cluster.tls {
            for file in [&mut tls.ca, &mut tls.certificate, &mut tls.key] {
                *file = beside.join(&*file);
            }
        }
        config.cluster.cluster.clone_from(&config.run);
        Ok(config)
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.config.is_empty() {
            problems.push("config must name the run's configuration file".to_owned());
        }
        let named = self.cluster.roles.iter().chain(self.gang.keys()).chain(&self.primary_roles);
        for role in named.filter(|role| !ROLES.contains(&role.as_str())) {
            problems.push(format!("there is no role {role:?}: the roles are {}", ROLES.join(", ")));
        }
        if self.cluster.roles.is_empty() {
            problems.push(format!("cluster.roles must name at least one of {}", ROLES.join(", ")));
        }
        if self.gang_wait_s == 0 {
            problems.push("gang_wait_s must be at least 1".to_owned());
        }
        problems
    }

    /// Whether this node plays a role.
    pub fn plays(&self, role: &str) -> bool {
        self.cluster.roles.iter().any(|played| played == role)
    }

    /// Whether the end of the last node that plays this role is the run's.
    pub fn is_primary(&self, role: &str) -> bool {
        role == "controller" || self.primary_roles.iter().any(|primary| primary == role)
    }

    /// Where the run lies, if this node is the controller.
    pub fn run_directory(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(|| self.state_dir.join("run"))
    }

    /// The roles that must be there, with how many nodes each.
    pub fn required(&self) -> Vec<(String, usize)> {
        match self.gang.is_empty() {
            true => ROLES.iter().map(|role| ((*role).to_owned(), 1)).collect(),
            false => self.gang.iter().map(|(role, nodes)| (role.clone(), *nodes)).collect(),
        }
    }
}
