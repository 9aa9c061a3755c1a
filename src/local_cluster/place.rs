//! What the nodes of a local cluster find on disk: `nodes/` in the run's directory.
//!
//! `lock` (held by the process that runs the nodes), `layout`, `run.toml` (the run's settings, the same for all), `ca/`,
//! `cookie`, `operator/` (a certificate for a person who wants to look), and for each node `NAME/{node.toml, tls/, state/}`.
//! Keys and the cookie are their owner's alone. A run that goes on keeps all but `run.toml` and the node files.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use greenroom_cluster::ClusterConfig;
use greenroom_identity::{Authority, CertificateRole, IdentityFiles, IssueRequest};
use serde::Serialize;

use super::STOPPED;
use super::layout::{Layout, LayoutNode};
use crate::StartError;
use crate::config::Config;
use crate::node::{ADDRESS_FILE, ended};
use crate::up::{RunPlace, check_not_lost};

const COOKIE_BYTES: usize = 32;
const VALID_DAYS: u32 = 3650;
/// The name of the certificate that is made for a person.
const OPERATOR: &str = "operator";
/// How long nodes wait for each other, seconds: on a small machine each loads libtorch in turn.
const GANG_WAIT_S: u64 = 300;

/// What a node's file says; the rest is as usual.
#[derive(Serialize)]
struct NodeFile<'a> {
    run: &'a str,
    config: Vec<PathBuf>,
    state_dir: PathBuf,
    run_dir: Option<&'a PathBuf>,
    gang_wait_s: u64,
    gang: BTreeMap<String, usize>,
    cluster: ClusterConfig,
}

/// The directory of a local cluster, held by this process.
pub(super) struct ClusterPlace {
    run: String,
    run_dir: PathBuf,
    dir: PathBuf,
    layout: Layout,
    /// Whether this process made the run's directory.
    is_own: bool,
    /// Kept open: it is locked.
    _lock: File,
}

/// Whether the run there is one of several nodes.
pub(super) fn is_there(place: &RunPlace) -> bool {
    place.path().join("nodes/layout").exists()
}

impl ClusterPlace {
    /// Makes the place, or takes the one that is there.
    pub(super) fn enter(place: &RunPlace, layout: Option<Layout>, config: &Config) -> anyhow::Result<Self> {
        let run_dir = std::path::absolute(place.path())?;
        let dir = run_dir.join("nodes");
        if place.resume && !is_there(place) {
            let reason = "it was begun in one process; go on with it without --nodes".to_owned();
            return Err(StartError::NotOfNodes { path: run_dir, reason }.into());
        }
        let is_own = !run_dir.exists();
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let lock = lock(&dir)?;
        let layout_file = dir.join("layout");
        let layout = if place.resume {
            let saved = crate::files::read_text("the nodes'", &layout_file, crate::files::Limit::SMALL)?;
            let saved: Layout = saved.trim().parse()?;
            if layout.is_some_and(|wanted| wanted.nodes() != saved.nodes()) {
                let reason = format!("its nodes are {saved}; go on without another layout");
                return Err(StartError::NotOfNodes { path: run_dir, reason }.into());
            }
            saved
        } else {
            clear(&dir)?;
            layout.unwrap_or_default()
        };
        write(&layout_file, &format!("{layout}\n"))?;
        write(&dir.join("run.toml"), &toml::to_string_pretty(config)?)?;
        let entered = Self { run: place.name.clone(), run_dir, dir, layout, is_own, _lock: lock };
        entered.make_secrets()?;
        Ok(entered)
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where the logs of all nodes lie together.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The node's own file.
    pub(super) fn node_file(&self, node: &LayoutNode) -> PathBuf {
        self.dir.join(&node.name).join("node.toml")
    }

    fn state_dir(&self, node: &LayoutNode) -> PathBuf {
        self.dir.join(&node.name).join("state")
    }

    /// The address at which a node says that it listens, once it does.
    pub(super) fn address(&self, node: &LayoutNode) -> Option<String> {
        fs::read_to_string(self.state_dir(node).join(ADDRESS_FILE)).ok()
    }

    /// Whether the run has ended for a node: its controller has told it so.
    pub(super) fn has_ended(&self, node: &LayoutNode) -> bool {
        self.state_dir(node).join(ended::FILE).exists()
    }

    /// Whether the run was stopped, as its controller has told a node.
    pub(super) fn was_stopped(&self, node: &LayoutNode) -> bool {
        ended::status(&self.state_dir(node)) == Some(STOPPED)
    }

    /// Forgets an end that was true of an earlier process.
    pub(super) fn forget_end(&self, node: &LayoutNode) {
        ended::forget(&self.state_dir(node));
    }

    /// Forgets an address that was true of an earlier process.
    pub(super) fn forget_address(&self, node: &LayoutNode) {
        // one that is not there is forgotten
        let _ = fs::remove_file(self.state_dir(node).join(ADDRESS_FILE));
    }

    /// Writes the node's own file.
    pub(super) fn write_node(&self, node: &LayoutNode, bind: &str, seeds: Vec<String>) -> anyhow::Result<()> {
        let file = NodeFile {
            run: &self.run,
            config: vec![self.dir.join("run.toml")],
            state_dir: self.state_dir(node),
            run_dir: node.plays("controller").then_some(&self.run_dir),
            gang: self.layout.gang(),
            gang_wait_s: GANG_WAIT_S,
            cluster: ClusterConfig {
                node: node.name.clone(),
                roles: node.roles.clone(),
                bind: bind.to_owned(),
                seeds,
                cookie_file: Some(self.dir.join("cookie")),
                tls: Some(self.identity(&node.name, &self.dir.join(&node.name).join("tls"))),
                ..ClusterConfig::default()
            },
        };
        write(&self.node_file(node), &toml::to_string(&file)?)
    }

    /// Takes back what was made for a run that never began.
    pub(super) fn abandon(&self) {
        // one whose history is lost has begun all the same
        if self.run_dir.join("run.db").exists() || check_not_lost(&self.run_dir).is_err() {
            return;
        }
        // what was there before is somebody else's
        let made = if self.is_own { &self.run_dir } else { &self.dir };
        if let Err(error) = fs::remove_dir_all(made) {
            tracing::warn!(%error, "the begun run could not be removed");
        }
    }

    fn identity(&self, name: &str, dir: &Path) -> IdentityFiles {
        let file = |extension: &str| dir.join(format!("{name}.{extension}"));
        IdentityFiles { ca: dir.join("ca.pem"), certificate: file("pem"), key: file("key") }
    }

    /// The authority, the cookie and all certificates, as far as they are not there.
    fn make_secrets(&self) -> anyhow::Result<()> {
        let cookie = self.dir.join("cookie");
        if !cookie.exists() {
            make_cookie(&cookie).with_context(|| cookie.display().to_string())?;
        }
        let ca = self.dir.join("ca");
        let authority = if ca.join("ca.pem").exists() { Authority::open(&ca) } else { Authority::create(&ca) }?;
        let operator = (OPERATOR.to_owned(), CertificateRole::Operator, self.dir.join(OPERATOR));
        let tls = |node: &LayoutNode| (node.name.clone(), CertificateRole::Node, self.dir.join(&node.name).join("tls"));
        for (name, role, into) in self.layout.nodes().iter().map(tls).chain([operator]) {
            if self.identity(&name, &into).certificate.exists() {
                continue;
            }
            let hosts = vec!["127.0.0.1".to_owned()];
            authority.issue(&IssueRequest { name, hosts, role, valid_days: VALID_DAYS }, &into)?;
        }
        Ok(())
    }
}

/// Holds the nodes' directory: two processes must not run the same nodes.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    if file.try_lock().is_err() {
        let reason = "its nodes are run by another process".to_owned();
        return Err(StartError::NotOfNodes { path: dir.to_owned(), reason }.into());
    }
    Ok(file)
}

/// Removes what an earlier start left behind that never came to a run.
fn clear(dir: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir)?.flatten().filter(|entry| entry.file_name() != "lock") {
        let path = entry.path();
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// A secret that nobody can guess, whatever the run's seed is.
fn make_cookie(path: &Path) -> std::io::Result<()> {
    let mut bytes = [0_u8; COOKIE_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

/// Writes a file beside its place and renames it: a node that is just starting reads a whole one.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let part = path.with_extension("part");
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeConfig;

    #[test]
    fn a_node_reads_its_file_as_it_was_meant_and_secrets_stay() {
        let runs = tempfile::tempdir().unwrap();
        let place = |resume| RunPlace { runs_dir: runs.path().to_owned(), name: "mine".to_owned(), resume };
        let config = Config::default();
        let made = ClusterPlace::enter(&place(false), None, &config).unwrap();
        let held = ClusterPlace::enter(&place(false), None, &config).err().unwrap().to_string();
        assert!(held.contains("run by another process"), "{held}");
        let [controller, trainer, ..] = made.layout().nodes() else { panic!("{}", made.layout()) };
        made.write_node(controller, "127.0.0.1:0", Vec::new()).unwrap();
        made.write_node(trainer, "127.0.0.1:0", vec!["127.0.0.1:4700".to_owned()]).unwrap();
        let read = NodeConfig::load(&made.node_file(controller)).unwrap();
        assert_eq!(read.run_directory(), std::path::absolute(runs.path().join("mine")).unwrap());
        assert_eq!((read.cluster.cluster.as_str(), read.gang["engine"]), ("mine", 2));
        let tls = read.cluster.tls.unwrap();
        greenroom_identity::Identity::load(&tls).unwrap();
        let read = NodeConfig::load(&made.node_file(trainer)).unwrap();
        assert_eq!((read.run_dir, read.cluster.seeds.len()), (None, 1));

        let secrets = || (fs::read(&tls.key).unwrap(), fs::read(made.dir().join("cookie")).unwrap());
        let before = secrets();
        let dir = made.dir.clone();
        drop(made._lock);
        let again = ClusterPlace::enter(&place(true), None, &config).unwrap();
        assert_eq!((fs::read(&tls.key).unwrap(), fs::read(dir.join("cookie")).unwrap()), before);
        drop(again);
        let other = ClusterPlace::enter(&place(true), Some("1".parse().unwrap()), &config).err().unwrap();
        assert!(other.to_string().contains("engine*2"), "{other}");
    }
}
