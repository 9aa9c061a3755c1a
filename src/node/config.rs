//! What a node is told: who it is in the cluster, where it keeps its things, and which run it takes part in.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use greenroom_cluster::ClusterConfig;
use greenroom_core::ACTOR_THREADS;
use greenroom_dataplane::DataplaneConfig;
use serde::{Deserialize, Serialize};

use super::NodeError;
use crate::config::{ExternalEngine, url_problem};
use crate::up::check_name;

/// The longest that anything may be waited for, in seconds: a year.
const LONGEST_S: u64 = 365 * 24 * 3600;

/// The most that they may share.
const MOST_ACTOR_THREADS: usize = 1024;

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
    /// How many threads the node's actors share, in a process that is this node alone. One is the quickest: what takes long is
    /// done on others. An application's own runtime has as many as it was given.
    #[serde(default = "default_actor_threads")]
    pub actor_threads: usize,
    /// How long a node that is told to leave lets what is under way end, in seconds.
    #[serde(default = "default_drain_s")]
    pub drain_s: u64,
    /// Engines that run on this host already, by name; without any, the run's embedded ones are started here.
    #[serde(default)]
    pub engines: BTreeMap<String, ExternalEngine>,
}

fn default_actor_threads() -> usize {
    ACTOR_THREADS
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
        let mut problems = config.problems();
        if config.config.is_empty() {
            problems.push("config must name the run's configuration file".to_owned());
        }
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
                // to open a pipe is to wait for who writes into it; what is missing is told by who reads it
                if std::fs::metadata(&*file).is_ok_and(|metadata| !metadata.is_file()) {
                    return Err(wrong(format!("cluster.tls: {} is no regular file", file.display())));
                }
            }
        }
        config.cluster.cluster.clone_from(&config.run);
        Ok(config)
    }

    /// Whether these settings can be, wherever they come from.
    ///
    /// # Errors
    /// [`NodeError::Config`] (GR0920).
    pub(super) fn check(&self) -> Result<(), NodeError> {
        let problems = self.problems();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(NodeError::Config { path: "the node's settings".into(), reason: problems.join("; ") }),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(error) = check_name(&self.run) {
            problems.push(format!("run: {error}"));
        }
        let named = self.cluster.roles.iter().chain(self.gang.keys()).chain(&self.primary_roles);
        for role in named.filter(|role| !ROLES.contains(&role.as_str())) {
            problems.push(format!("there is no role {role:?}: the roles are {}", ROLES.join(", ")));
        }
        if self.cluster.roles.is_empty() {
            problems.push(format!("cluster.roles must name at least one of {}", ROLES.join(", ")));
        }
        if self.cluster.seeds.is_empty() && !self.plays("controller") {
            problems.push(
                "cluster.seeds must name a node to dial, HOST:PORT: only the controller can do without".to_owned(),
            );
        }
        let waits = [
            ("gang_wait_s", self.gang_wait_s, 1),
            ("drain_s", self.drain_s, 0),
            ("termination_delay_s", self.termination_delay_s, 0),
        ];
        for (key, value, least) in waits.into_iter().filter(|(_, value, least)| !(*least..=LONGEST_S).contains(value)) {
            problems.push(format!("{key} is {value}, and must be {least} to {LONGEST_S} (a year)"));
        }
        if !(1..=MOST_ACTOR_THREADS).contains(&self.actor_threads) {
            let given = self.actor_threads;
            problems.push(format!("actor_threads is {given}, and must be 1 to {MOST_ACTOR_THREADS}"));
        }
        // the name of the cluster is that of the run, which is judged above
        let cluster = ClusterConfig { cluster: "run".to_owned(), ..self.cluster.clone() };
        problems.extend(cluster.problems().into_iter().map(|problem| format!("cluster.{problem}")));
        for (name, engine) in &self.engines {
            problems.extend(url_problem(&format!("engines.{name}.url"), &engine.url));
            if engine.max_in_flight == 0 {
                problems.push(format!("engines.{name}.max_in_flight must be at least 1"));
            }
        }
        self.dataplane_problems(&mut problems);
        problems
    }

    fn dataplane_problems(&self, problems: &mut Vec<String>) {
        if let Err(error) = self.dataplane.transfer.check() {
            problems.push(format!("dataplane: {error}"));
        }
        let bind = &self.dataplane.bind;
        match (bind.parse::<SocketAddr>(), self.cluster.bind.parse::<SocketAddr>()) {
            (Err(_), _) if !bind.is_empty() => problems.push(format!("dataplane.bind {bind:?} is no IP:PORT")),
            (Ok(own), Ok(cluster)) if own.port() != 0 && own.port() == cluster.port() => {
                let (one, other) = (own.ip(), cluster.ip());
                if one == other || one.is_unspecified() || other.is_unspecified() {
                    problems.push(format!("dataplane.bind {bind} has the port of cluster.bind: give it another one"));
                }
            }
            _ => {}
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a node's file, given the lines before and in its table `cluster`, and after it.
    fn problems(top: &str, cluster: &str, after: &str) -> String {
        problems_of("gpu", top, cluster, after)
    }

    fn problems_of(node: &str, top: &str, cluster: &str, after: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node.toml");
        let run = if top.contains("run =") { "" } else { "run = \"mine\"" };
        let seeds = if cluster.contains("seeds =") { "" } else { "seeds = [\"lead:4700\"]" };
        let text = format!(
            "{run}\n{top}\nconfig = [\"run.toml\"]\nstate_dir = \"state\"\n[cluster]\nnode = \"{node}\"\n\
             roles = [\"engine\"]\n{seeds}\n{cluster}\n{after}\n"
        );
        std::fs::write(&file, text).unwrap();
        NodeConfig::load(&file).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn what_cannot_be_is_found_when_the_file_is_read() {
        assert_eq!(problems("", "", ""), "");
        assert_eq!(problems("", "bind = \"127.0.0.1:4700\"", "[dataplane]\nbind = \"127.0.0.2:4700\""), "");
        let cases = [
            (
                "gang_wait_s = 9223372036854775807",
                "",
                "",
                "gang_wait_s is 9223372036854775807, and must be 1 to 31536000",
            ),
            ("gang_wait_s = 0", "", "", "gang_wait_s is 0"),
            ("drain_s = 9223372036854775807", "", "", "drain_s is 9223372036854775807"),
            ("termination_delay_s = 31536001", "", "", "termination_delay_s is 31536001"),
            ("actor_threads = 0", "", "", "actor_threads is 0, and must be 1 to 1024"),
            ("", "dead_ms = 9000000000000000000", "", "cluster.dead_ms: 9000000000000000000 is more than"),
            ("", "handshake_ms = 9000000000000000000", "", "cluster.handshake_ms: "),
            ("", "heartbeat_ms = 0", "", "cluster.heartbeat_ms: 0 must be more than 0 and less than suspect_ms (3000)"),
            ("", "seeds = []", "", "cluster.seeds must name a node to dial"),
            ("run = \"../../etc\"", "", "", "run: \"../../etc\" cannot be a run's name"),
            ("", "", "[engines.a]\nurl = \"ftp://x\"", "engines.a.url is \"ftp://x\": write http://HOST:PORT"),
            (
                "",
                "",
                "[engines.a]\nurl = \"http://x\"\nmax_in_flight = 0",
                "engines.a.max_in_flight must be at least 1",
            ),
            ("", "", "[dataplane]\nstreams = 0", "streams"),
            ("", "", "[dataplane]\nbind = \"here\"", "dataplane.bind \"here\" is no IP:PORT"),
            ("", "bind = \"127.0.0.1:4700\"", "[dataplane]\nbind = \"0.0.0.0:4700\"", "has the port of cluster.bind"),
        ];
        for (top, cluster, after, words) in cases {
            let said = problems(top, cluster, after);
            assert!(said.contains("node.toml: ") && said.contains(words), "{words:?} in {said:?}");
        }
        let said = problems_of("a/b", "", "", "");
        assert!(said.contains("cluster.node: \"a/b\" is not 1 to ") && !said.contains("certificate"), "{said}");
    }
}
