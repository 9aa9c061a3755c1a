//! A cluster of real node processes for tests: each node in a network namespace of its own where this machine lets the test
//! make one (root, `ip`, `nsenter`), else on loopback, which the test says. Whatever happens to the test, its processes are
//! killed and its namespaces removed.

#![allow(clippy::print_stdout, reason = "a test says what it could not do, and what nodes said before it failed")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use super::ledger::Ledger;
use super::{data, finish, greenroom, signal, succeed, text, wait_until};

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");
/// What another hardware address must look like to nobody.
const NOBODY: &str = "02:00:00:00:de:ad";

/// The roles of each node: what the names in these tests stand for.
pub const FIVE: &[(&str, &[&str])] = &[
    ("lead", &["controller", "rollout"]),
    ("trainer", &["trainer"]),
    ("engine-0", &["engine"]),
    ("engine-1", &["engine"]),
    ("box", &["sandbox"]),
];

/// As [`FIVE`], with who rolls out on a node of its own.
pub const SIX: &[(&str, &[&str])] = &[
    ("lead", &["controller"]),
    ("roll", &["rollout"]),
    ("trainer", &["trainer"]),
    ("engine-0", &["engine"]),
    ("engine-1", &["engine"]),
    ("box", &["sandbox"]),
];

/// Which way of a node is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// What it sends reaches nobody; it hears the others.
    Out,
    /// Both.
    Both,
}

/// A cluster that runs, or is to run.
pub struct TestCluster {
    dir: tempfile::TempDir,
    layout: &'static [(&'static str, &'static [&'static str])],
    networks: Option<Networks>,
    first_port: u16,
    children: BTreeMap<&'static str, Child>,
    marker: String,
}

impl TestCluster {
    /// Makes certificates, files and networks; nothing runs yet. `settings` is TOML over the quickstart's configuration,
    /// `of_nodes` TOML for every node's `cluster` table.
    pub fn new(layout: &'static [(&'static str, &'static [&'static str])], settings: &str, of_nodes: &str) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let marker = format!("box-of-{}", dir.path().file_name().unwrap().to_string_lossy());
        let networks = Networks::make(layout.len());
        if networks.is_none() {
            println!("NOTE: this machine makes no network namespaces for the test: the nodes share loopback");
        }
        static TURN: AtomicU16 = AtomicU16::new(0);
        let turn = TURN.fetch_add(1, Ordering::Relaxed) + (std::process::id() % 200) as u16 * 16;
        let first_port = 20_000 + turn % 4_000 * 10;
        let cluster = Self { dir, layout, networks, first_port, children: BTreeMap::new(), marker };
        cluster.write_files(settings, of_nodes);
        cluster
    }

    /// Whether each node has a network of its own, that can be cut.
    pub fn has_networks(&self) -> bool {
        self.networks.is_some()
    }

    fn write_files(&self, settings: &str, of_nodes: &str) {
        let root = self.dir.path();
        succeed(greenroom().args(["ca", "create", "--dir"]).arg(root.join("ca")));
        let cookie = format!("{}-{}", self.marker, "0123456789abcdef0123456789abcdef");
        fs::write(root.join("cookie"), cookie).unwrap();
        succeed(Command::new("chmod").arg("600").arg(root.join("cookie")));
        let boxes = format!("\n[sandbox.local]\nhelper_argv = {:?}\n", super::box_helper(&self.marker));
        fs::write(root.join("over.toml"), format!("{settings}{boxes}")).unwrap();
        let mut gang: BTreeMap<&str, usize> = BTreeMap::new();
        for role in self.layout.iter().flat_map(|(_, roles)| *roles) {
            *gang.entry(role).or_default() += 1;
        }
        let gang: String = gang.iter().map(|(role, nodes)| format!("{role} = {nodes}\n")).collect();
        for (place, (node, roles)) in self.layout.iter().enumerate() {
            let (host, port) = self.address(place);
            let (seed, seed_port) = self.address(0);
            let (second, second_port) = self.address(1);
            let state = root.join(node);
            fs::create_dir_all(&state).unwrap();
            let mut issue = greenroom();
            issue.args(["ca", "issue", "--dir"]).arg(root.join("ca")).args(["--name", node, "--host", &host]);
            succeed(issue.arg("--out").arg(state.join("tls")));
            let text = format!(
                "run = \"test\"\nconfig = [\"{REPOSITORY}/config/quickstart/quickstart.toml\", \"../over.toml\"]\n\
                 state_dir = \"state\"\ngang_wait_s = 120\ndrain_s = 60\n[gang]\n{gang}[dataplane]\n\
                 bind = \"{host}:0\"\ntransport = \"quic\"\n[cluster]\nnode = \"{node}\"\nroles = {roles:?}\n\
                 bind = \"{host}:{port}\"\nseeds = [\"{seed}:{seed_port}\", \"{second}:{second_port}\"]\n\
                 cookie_file = \"../cookie\"\n{of_nodes}\n\
                 [cluster.tls]\nca = \"tls/ca.pem\"\ncertificate = \"tls/{node}.pem\"\nkey = \"tls/{node}.key\"\n"
            );
            fs::write(state.join("node.toml"), text).unwrap();
        }
    }

    /// Puts a line before all others of a node's file.
    pub fn set(&self, node: &str, line: &str) {
        let file = self.dir.path().join(node).join("node.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{line}\n{text}")).unwrap();
    }

    fn address(&self, place: usize) -> (String, u16) {
        match &self.networks {
            Some(_) => (Networks::address(place), 4700),
            None => ("127.0.0.1".to_owned(), self.first_port + place as u16),
        }
    }

    fn place(&self, node: &str) -> usize {
        self.layout.iter().position(|(name, _)| *name == node).unwrap()
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.layout.iter().map(|(node, _)| *node).collect()
    }

    /// The directory that only this node has.
    pub fn state(&self, node: &str) -> PathBuf {
        self.dir.path().join(node).join("state")
    }

    /// The run's directory, on the node that leads it.
    pub fn run_dir(&self) -> PathBuf {
        self.state("lead").join("run")
    }

    /// The settings over the quickstart's, as a file.
    pub fn over(&self) -> PathBuf {
        self.dir.path().join("over.toml")
    }

    pub fn start(&mut self, node: &'static str) {
        self.start_with(node, "");
    }

    /// Starts a node with a plan of faults.
    pub fn start_with(&mut self, node: &'static str, faults: &str) {
        let mut command = self.command_at(node);
        let said = File::options().create(true).append(true).open(self.dir.path().join(node).join("said")).unwrap();
        command.args(["node", "--config"]).arg(self.dir.path().join(node).join("node.toml"));
        command.env_remove("GREENROOM_FAULTS");
        if !faults.is_empty() {
            command.env("GREENROOM_FAULTS", faults);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn().unwrap();
        assert!(self.children.insert(node, child).is_none(), "{node} runs already");
    }

    /// The binary, in a node's network.
    fn command_at(&self, node: &str) -> Command {
        let binary = greenroom();
        let Some(networks) = &self.networks else { return binary };
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", networks.name(self.place(node)))).arg("--");
        command.arg(binary.get_program()).env_remove("GREENROOM_LOG").env("OMP_NUM_THREADS", "1");
        command
    }

    /// Makes the certificate of a person, who may look (`viewer`) or steer (`operator`).
    pub fn issue(&self, person: &str, role: &str) {
        let root = self.dir.path();
        let mut issue = greenroom();
        issue
            .args(["ca", "issue", "--name", person, "--role", role, "--host", "127.0.0.1", "--dir"])
            .arg(root.join("ca"));
        succeed(issue.arg("--out").arg(root.join(person)));
    }

    /// Does one verb of the shell as a person, from where a node is, through that node.
    pub fn ctl(&self, person: &str, at: &str, words: &[&str]) -> Output {
        let (host, port) = self.address(self.place(at));
        let mut command = self.command_at(at);
        command.args(["ctl", "--run", "test", "--at", &format!("{host}:{port}"), "--tls-dir"]);
        command.arg(self.dir.path().join(person)).arg("--cookie-file").arg(self.dir.path().join("cookie"));
        finish(command.args(words))
    }

    pub fn start_all(&mut self) {
        self.names().into_iter().for_each(|node| self.start(node));
    }

    /// What a node has said to people so far.
    pub fn said(&self, node: &str) -> String {
        text(&fs::read(self.dir.path().join(node).join("said")).unwrap_or_default())
    }

    /// A node's log so far.
    pub fn log(&self, node: &str) -> String {
        text(&fs::read(self.state(node).join("greenroom.log")).unwrap_or_default())
    }

    /// Sends a signal to a node by its name.
    pub fn signal(&self, node: &str, name: &str) {
        signal(self.children[node].id(), name);
    }

    pub fn kill(&mut self, node: &str) {
        let mut child = self.children.remove(node).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits until a node's process ends.
    pub fn ended(&mut self, node: &str) -> ExitStatus {
        let mut child = self.children.remove(node).unwrap();
        let mut status = None;
        wait_until(&format!("the end of {node}"), || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// The last committed step, if there is one.
    pub fn step(&self) -> Option<u64> {
        let steps = Ledger::try_open(&self.run_dir()).and_then(|run| run.try_column("SELECT max(step) FROM steps"));
        steps.ok()?.first()?.parse().ok()
    }

    /// Waits until this step is committed; fails with what the nodes have said when the leader ends before.
    pub fn wait_for_step(&mut self, step: u64) {
        self.wait(&format!("step {step}"), |cluster| cluster.step() >= Some(step));
    }

    /// Waits until something holds, or the leader has ended.
    pub fn wait(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let lead = self.children.get_mut("lead").and_then(|lead| lead.try_wait().unwrap());
            let late = begun.elapsed() > Duration::from_secs(120);
            if late || lead.is_some() {
                self.show();
                panic!("{what} did not come: late {late}, the leader's end {lead:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn show(&self) {
        for node in self.names() {
            let (said, log) = (self.said(node), self.log(node));
            let last = |text: &str| text.lines().rev().take(12).map(|line| format!("\n  {line}")).collect::<String>();
            println!("== {node} said (last first):{}\n== {node} logged:{}", last(&said), last(&log));
        }
    }

    /// Waits for the end of the run: every node ends with success, the history is sound, nothing is left behind.
    pub fn finish(&mut self) {
        self.wait_for_end();
        let check = greenroom().arg("check").arg(self.run_dir()).output().unwrap();
        if !check.status.success() {
            self.show();
        }
        assert!(check.status.success(), "{}{}", text(&check.stdout), text(&check.stderr));
        self.assert_nothing_left();
    }

    /// Waits until every node has ended with success.
    pub fn wait_for_end(&mut self) {
        for node in self.names() {
            let status = self.ended(node);
            if !status.success() {
                self.show();
            }
            assert!(status.success(), "{node} ended with {status}");
        }
    }

    fn assert_nothing_left(&self) {
        let boxes = fs::read_dir(self.state("box").join("sandboxes")).into_iter().flatten().flatten();
        let left: Vec<_> = boxes.map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "sandboxes left behind: {left:?}");
        wait_until("the end of every process", || self.processes().is_empty());
    }

    /// Processes whose command line names this cluster.
    fn processes(&self) -> Vec<String> {
        let dir = self.dir.path().to_string_lossy().into_owned();
        let lines = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .map(|entry| text(&fs::read(entry.path().join("cmdline")).unwrap_or_default()).replace('\0', " "));
        lines.filter(|line| line.contains(&self.marker) || line.contains(&dir)).collect()
    }

    /// Cuts a node off, silently: nobody's kernel hears of it.
    pub fn cut(&self, node: &str, cut: Cut) {
        let networks = self.networks.as_ref().unwrap();
        let place = self.place(node);
        match cut {
            Cut::Out => networks.misdirect(place, self.layout.len(), true),
            Cut::Both => networks.plug(place, false),
        }
    }

    /// Undoes a cut.
    pub fn heal(&self, node: &str, cut: Cut) {
        let networks = self.networks.as_ref().unwrap();
        let place = self.place(node);
        match cut {
            Cut::Out => networks.misdirect(place, self.layout.len(), false),
            Cut::Both => networks.plug(place, true),
        }
    }

    /// When a node first logged a line with all of these words after `since`, counted from there.
    pub fn logged_after(&self, node: &str, words: &[&str], since_lines: usize) -> bool {
        self.log(node).lines().skip(since_lines).any(|line| words.iter().all(|word| line.contains(word)))
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            // one that has ended needs no signal
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Settings of a run of coin tosses from the policy in [`data`]: small, sync, batch-invariant.
pub fn coins(steps: u64, groups: u64, samples: u64) -> String {
    let root = data();
    format!(
        "seed = 0\n[model]\ninit_weights = false\ndir = \"policy\"\n[data]\nroot = {root:?}\ntrain = \"coins.jsonl\"\n\
         demonstrations = \"few.jsonl\"\n[warm_start]\nlearning_rate = 1e-6\n[run]\nsteps = {steps}\n\
         step_retries = 100\ngroups_per_batch = {groups}\nsamples_per_group = {samples}\n[run.evaluation]\n\
         before_and_after = false\n"
    )
}

/// Membership that notices within two seconds.
pub const QUICK: &str = "heartbeat_ms = 250\nsuspect_ms = 1000\ndead_ms = 2000\nretry_last_ms = 1000\n\
                         tcp_user_timeout_ms = 2000";

/// One network namespace per node, on a switch in a namespace of its own.
struct Networks {
    prefix: String,
    nodes: usize,
}

impl Networks {
    fn make(nodes: usize) -> Option<Self> {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let made = Self { prefix: format!("gr{}x{count}", std::process::id()), nodes };
        // a half made one is removed by its drop
        made.try_make().then_some(made)
    }

    fn try_make(&self) -> bool {
        let switch = self.switch();
        let nsenter = Command::new("nsenter").arg("--version").stdout(Stdio::null()).status();
        let begun = nsenter.is_ok_and(|status| status.success())
            && ip(&format!("netns add {switch}"))
            && ip(&format!("-n {switch} link add br0 type bridge"))
            && ip(&format!("-n {switch} link set br0 up"));
        begun && (0..self.nodes).all(|place| self.add(place))
    }

    fn add(&self, place: usize) -> bool {
        let (switch, name) = (self.switch(), self.name(place));
        ip(&format!("netns add {name}"))
            && ip(&format!("link add eth0 netns {name} type veth peer name p{place} netns {switch}"))
            && ip(&format!("-n {switch} link set p{place} master br0 up"))
            && ip(&format!("-n {name} link set lo up"))
            && ip(&format!("-n {name} addr add {}/24 dev eth0", Self::address(place)))
            && ip(&format!("-n {name} link set eth0 up"))
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.prefix)
    }

    fn name(&self, place: usize) -> String {
        format!("{}-{place}", self.prefix)
    }

    fn address(place: usize) -> String {
        format!("10.77.0.{}", 10 + place)
    }

    /// Plugs a node's cable into the switch, or pulls it there: the node's own end stays up.
    fn plug(&self, place: usize, plugged: bool) {
        let to = if plugged { "master br0" } else { "nomaster" };
        assert!(ip(&format!("-n {} link set p{place} {to}", self.switch())));
    }

    /// Has a node send to a hardware address that nobody has, or to the right ones again.
    fn misdirect(&self, place: usize, nodes: usize, wrong: bool) {
        let name = self.name(place);
        for other in (0..nodes).filter(|other| *other != place) {
            let address = Self::address(other);
            let done = match wrong {
                true => ip(&format!("-n {name} neigh replace {address} lladdr {NOBODY} dev eth0 nud permanent")),
                false => ip(&format!("-n {name} neigh del {address} dev eth0")),
            };
            assert!(done, "{address}");
        }
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in (0..self.nodes).map(|place| self.name(place)).chain([self.switch()]) {
            if Path::new("/run/netns").join(&name).exists() {
                ip(&format!("netns del {name}"));
            }
        }
    }
}

fn ip(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
