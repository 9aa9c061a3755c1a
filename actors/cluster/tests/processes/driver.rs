//! Starts nodes as processes, gives them commands, and ends them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use greenroom_cluster::{ClusterConfig, Member, MemberEvent, MemberState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::node::MARK;

/// The settings of a node of tests: quick, and at a port of the system's choice.
pub fn config(node: &str, seeds: &[&str]) -> ClusterConfig {
    ClusterConfig {
        node: node.into(),
        roles: vec![node.trim_end_matches(|digit: char| digit.is_ascii_digit()).into()],
        bind: "127.0.0.1:0".into(),
        seeds: seeds.iter().map(ToString::to_string).collect(),
        heartbeat_ms: 100,
        suspect_ms: 500,
        dead_ms: 2000,
        retry_first_ms: 50,
        retry_last_ms: 500,
        ..ClusterConfig::default()
    }
}

type Waiting = Arc<Mutex<BTreeMap<u64, Sender<Value>>>>;

/// A running node.
pub struct Node {
    pub name: String,
    pub address: String,
    pub incarnation: u64,
    child: Child,
    stdin: Mutex<(ChildStdin, u64)>,
    waiting: Waiting,
}

impl Node {
    pub fn start(config: &ClusterConfig) -> Self {
        Self::try_start(config, 2).unwrap()
    }

    /// Starts a node with so many threads (none: the one it begins with); the error is what it said.
    pub fn try_start(config: &ClusterConfig, workers: usize) -> Result<Self, String> {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_node", "--ignored", "--nocapture"])
            .env("GREENROOM_TEST_NODE", json!([config, workers]).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let waiting = Waiting::default();
        let (sender, hello) = channel();
        waiting.lock().unwrap().insert(0, sender);
        let (stdout, answers) = (child.stdout.take().unwrap(), waiting.clone());
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // the test harness talks on the same line before the first answer
                let Some((_, answer)) = line.split_once(MARK) else { continue };
                let mut answer: Value = serde_json::from_str(answer).unwrap();
                let sender = answers.lock().unwrap().remove(&answer["number"].as_u64().unwrap());
                if let Some(sender) = sender {
                    let _ = sender.send(if answer["answer"].is_null() { answer } else { answer["answer"].take() });
                }
            }
            answers.lock().unwrap().clear();
        });
        let stdin = Mutex::new((child.stdin.take().unwrap(), 0));
        let (name, address) = (config.node.clone(), String::new());
        let mut node = Self { name, address, incarnation: 0, child, stdin, waiting };
        let hello = hello.recv_timeout(Duration::from_secs(60)).map_err(|_| "it said nothing".to_owned())?;
        if let Some(error) = hello["error"].as_str() {
            return Err(error.to_owned());
        }
        node.address = hello["address"].as_str().unwrap().to_owned();
        node.incarnation = hello["incarnation"].as_u64().unwrap();
        Ok(node)
    }

    /// Gives a command whose answer is awaited elsewhere.
    pub fn begin(&self, command: Value) -> Receiver<Value> {
        let (sender, receiver) = channel();
        let mut stdin = self.stdin.lock().unwrap();
        stdin.1 += 1;
        self.waiting.lock().unwrap().insert(stdin.1, sender);
        let line = json!([stdin.1, command]).to_string();
        writeln!(stdin.0, "{line}").unwrap();
        receiver
    }

    /// Gives a command and awaits its answer.
    pub fn call(&self, command: Value) -> Value {
        let shown = command.to_string();
        let answer = self.begin(command).recv_timeout(Duration::from_secs(180));
        answer.unwrap_or_else(|_| panic!("{} did not answer {shown}", self.name))
    }

    /// Asks the worker of another node: `count` numbers from `first` on.
    pub fn count(&self, node: &str, count: u64, window: usize, first: u64) -> Value {
        self.call(asks(node, "count", count, window, 0, 20_000, first))
    }

    pub fn members(&self) -> BTreeMap<String, Member> {
        let members: Vec<Member> = serde_json::from_value(self.call(json!({ "do": "members" }))).unwrap();
        members.into_iter().map(|member| (member.name.clone(), member)).collect()
    }

    pub fn events(&self) -> Vec<MemberEvent> {
        serde_json::from_value(self.call(json!({ "do": "events" }))).unwrap()
    }

    /// Whether this node sees another in a state.
    pub fn sees(&self, node: &Node, state: MemberState) -> bool {
        let seen = self.members().get(&node.name).map(|member| (member.incarnation, member.state));
        seen == Some((node.incarnation, state))
    }

    /// Whether this node sees another alive, with what it serves.
    pub fn can_ask(&self, node: &Node) -> bool {
        self.sees(node, MemberState::Alive)
            && self.members().get(&node.name).is_some_and(|member| member.services.contains(&"worker".to_owned()))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command to ask.
pub fn asks(node: &str, what: &str, count: u64, window: usize, bytes: usize, deadline_ms: u64, first: u64) -> Value {
    json!({
        "do": "ask", "node": node, "what": what, "count": count, "window": window, "bytes": bytes,
        "deadline_ms": deadline_ms, "first": first,
    })
}

/// Waits until something is so, and says how long that took.
pub fn wait_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
    began.elapsed()
}

/// Waits until every node can ask every other one.
pub fn wait_for_all(nodes: &[&Node]) {
    for node in nodes {
        for other in nodes.iter().filter(|other| other.name != node.name) {
            let what = format!("{} can ask {}", node.name, other.name);
            wait_until(&what, Duration::from_secs(30), || node.can_ask(other));
        }
    }
}

/// How many asks ended so.
pub fn ended(tally: &Value, how: &str) -> u64 {
    tally["ended"][how].as_u64().unwrap_or(0)
}

/// A way to a node that can be cut.
pub struct Proxy {
    pub address: String,
    target: Arc<Mutex<String>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    /// Whether what comes is held: on the way to the target, and on the way back.
    holds: Arc<[AtomicBool; 2]>,
}

/// Hands bytes on, or holds them while that is wanted, as a network that drops packets does; nobody is told.
fn hand_on(mut from: TcpStream, mut to: TcpStream, holds: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        while holds.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

impl Proxy {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (target, streams) = (Arc::new(Mutex::new(String::new())), Arc::new(Mutex::new(Vec::new())));
        let (to, all) = (target.clone(), streams.clone());
        let holds = Arc::<[AtomicBool; 2]>::default();
        let held = holds.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let to: Result<SocketAddr, _> = to.lock().unwrap().parse();
                let Some(onward) = to.ok().and_then(|to| TcpStream::connect(to).ok()) else { continue };
                for (way, (from, to)) in [(&stream, &onward), (&onward, &stream)].into_iter().enumerate() {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let held = held.clone();
                    thread::spawn(move || hand_on(from, to, &held[way]));
                }
                all.lock().unwrap().extend([stream, onward]);
            }
        });
        Self { address, target, streams, holds }
    }

    pub fn leads_to(&self, address: &str) {
        *self.target.lock().unwrap() = address.to_owned();
    }

    /// Lets through what comes on the way to the target and on the way back, or holds it without a word.
    pub fn lets_through(&self, to: bool, back: bool) {
        self.holds[0].store(!to, Ordering::Relaxed);
        self.holds[1].store(!back, Ordering::Relaxed);
    }

    pub fn cut(&self) -> usize {
        let streams = std::mem::take(&mut *self.streams.lock().unwrap());
        streams.iter().for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
        streams.len() / 2
    }
}
