//! A scripted world around a RolloutManager: engines and sandboxes that do as a test says, and everything they saw.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use greenroom_core::{Address, Deadline, Faults, Reply, Seam, ask};
use greenroom_messages::engine::{
    EngineFailure, EngineFailureKind, EnginePoolMessage, FinishReason, GenerateOutcome, GenerateRequest, VersionSpan,
};
use greenroom_messages::rollout::{FinishedGroup, RolloutFailure, RolloutManagerMessage, StartBatch};
use greenroom_messages::run::{ConductorMessage, JournalMessage, RunEvent};
use greenroom_messages::sandbox::{
    ClaimedLease, ExecException, ExecOutcome, SandboxFailure, SandboxFailureKind, SandboxFile, SandboxLeaseMessage,
    SandboxPoolMessage,
};
use greenroom_messages::{BatchId, EngineId, LeaseId, Purpose, RolloutId};
use greenroom_rollout::agent::{AgentFile, HostFacts, Uname};
use greenroom_rollout::grading::{RESTORED, TAKEN};
use greenroom_rollout::{Dataset, RolloutConfig, RolloutManager, RolloutManagerArguments};
use greenroom_tokens::{ChatTemplate, Tokenizer};
use ractor::Actor;
use tokio::sync::mpsc;

pub static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(Tokenizer::from_dir(&tiny()).unwrap()));
static TEMPLATE: LazyLock<Arc<ChatTemplate>> = LazyLock::new(|| Arc::new(ChatTemplate::from_dir(&tiny()).unwrap()));

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tiny() -> PathBuf {
    root().join("tests/fixtures/tokens/tiny")
}

/// What an engine does with a request.
#[derive(Clone, Debug)]
pub enum Say {
    /// This text, ended by the end-of-turn token, by weights of this version.
    Text(String, u64),
    /// This text, and no end.
    Cut(String),
    /// This text, then it gives the turn up.
    Abort(String, u64),
    /// More tokens than log-probabilities.
    Nonsense,
    Fail(EngineFailureKind),
    Hang,
    Panic,
}

/// What a sandbox does with a command.
#[derive(Clone, Debug)]
pub enum Do {
    Print(&'static str, i32),
    TimeOut,
    NotStart,
    Fail(SandboxFailureKind),
    Hang,
}

/// What a pool does with a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Claim {
    Give,
    Fail,
    Hang,
}

type Engine = Box<dyn Fn(&GenerateRequest) -> Say + Send + Sync>;
type Shell = Box<dyn Fn(RolloutId, &str) -> Do + Send + Sync>;

/// How the world behaves.
pub struct Script {
    pub engine: Engine,
    pub shell: Shell,
    pub claim: Box<dyn Fn(RolloutId) -> Claim + Send + Sync>,
    pub put_files_fail: bool,
}

pub fn command(command: &str) -> Say {
    Say::Text(format!("THOUGHT: now.\n\n```mswea_bash_command\n{command}\n```"), 0)
}

/// What is taken out of a box.
pub const CHANGE: &[u8] = b"what the agent left";

pub const SUBMIT: &str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

impl Default for Script {
    /// An agent that looks, then submits; grading succeeds.
    fn default() -> Self {
        Self {
            engine: Box::new(|request| command(if request.turn == 0 { "ls" } else { SUBMIT })),
            shell: Box::new(|_, command| match command {
                SUBMIT => Do::Print("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 0),
                _ if command.contains(TAKEN) => Do::Print("greenroom-taken: file /tmp/taken\n", 0),
                _ if command.contains(RESTORED) => Do::Print("greenroom-restored: whole\n", 0),
                _ => Do::Print("a.py\n", 0),
            }),
            claim: Box::new(|_| Claim::Give),
            put_files_fail: false,
        }
    }
}

/// What the world saw.
#[derive(Debug, Default)]
pub struct Seen {
    pub requests: Vec<GenerateRequest>,
    pub engine_releases: Vec<RolloutId>,
    pub commands: Vec<(RolloutId, String)>,
    pub files: Vec<SandboxFile>,
    pub open_leases: BTreeSet<LeaseId>,
    /// The leases of each rollout, in order.
    pub leases_of: BTreeMap<RolloutId, Vec<LeaseId>>,
    pub leases: u64,
    /// So many were held at once.
    pub most_leases: usize,
    pub events: Vec<RunEvent>,
    /// Replies that are never given; kept so that they are not dropped either.
    held: Vec<Box<dyn std::any::Any + Send>>,
}

pub struct World {
    pub address: Address<RolloutManagerMessage>,
    pub seen: Arc<Mutex<Seen>>,
    groups: mpsc::UnboundedReceiver<FinishedGroup>,
}

pub fn dataset(tasks: usize) -> Arc<Dataset> {
    let row = |n: usize| {
        format!(
            r#"{{"text": "fix {n}", "label": "task-{n}", "metadata": {{"eval_cmd": "grade {n}", "pool": "py",
            "workdir": "/work", "files": {{"a.py": "x"}}, "eval_files": {{"test_a.py": "t"}}, "setup_cmd": "prepare"}}}}"#
        )
        .replace('\n', " ")
    };
    let rows: Vec<String> = (0..tasks).map(row).collect();
    Arc::new(Dataset::parse(&rows.join("\n"), "tasks.jsonl").unwrap())
}

pub fn config() -> RolloutConfig {
    RolloutConfig { max_turns: 4, retry_backoff_ms: 1000, min_trainable: 1, ..RolloutConfig::default() }
}

pub fn arguments(config: RolloutConfig, script: Script) -> (RolloutManagerArguments, Arc<Mutex<Seen>>) {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let script = Arc::new(script);
    let agent = std::fs::read_to_string(root().join("config/agent/default.yaml")).unwrap();
    let uname = ["Linux", "node", "6.1", "#1", "x86_64"].map(str::to_owned);
    let [system, node, release, version, machine] = uname;
    let journal_seen = seen.clone();
    let arguments = RolloutManagerArguments {
        config,
        datasets: BTreeMap::from([(Purpose::Train, dataset(3))]),
        tokenizer: TOKENIZER.clone(),
        template: TEMPLATE.clone(),
        agent: AgentFile::from_yaml(&agent, "default.yaml").unwrap(),
        host: HostFacts {
            uname: Uname { system, node, release, version, machine },
            process_environment: BTreeMap::new(),
        },
        engines: engines(script.clone(), seen.clone()),
        sandboxes: BTreeMap::from([("py".to_owned(), pool(script, seen.clone()))]),
        conductor: Address::unbound("conductor"),
        journal: Address::of_function("journal", move |message| {
            match message {
                JournalMessage::Record(event) => journal_seen.lock().unwrap().events.push(event),
                JournalMessage::Flush(reply) | JournalMessage::RecordAll(_, reply) => drop(reply.send(())),
            }
            Ok(())
        }),
        trajectories: None,
        seam: Seam::simulated(7, 0, Faults::none()),
    };
    (arguments, seen)
}

pub async fn world(config: RolloutConfig, script: Script) -> World {
    let (arguments, seen) = arguments(config, script);
    start(arguments, seen).await
}

pub async fn start(arguments: RolloutManagerArguments, seen: Arc<Mutex<Seen>>) -> World {
    let (sender, groups) = mpsc::unbounded_channel();
    arguments.conductor.rebind_function(move |message| {
        let ConductorMessage::GroupFinished(group) = message else { return Ok(()) };
        sender.send(*group).map_err(|_| ())
    });
    let (manager, _) = Actor::spawn(None, RolloutManager, arguments).await.unwrap();
    World { address: Address::adapted(&manager), seen, groups }
}

pub fn batch(groups: u32, samples_per_group: u32) -> StartBatch {
    StartBatch {
        batch: BatchId { purpose: Purpose::Train, number: 1 },
        first_position: 0,
        groups,
        samples_per_group,
        temperature: 1.0,
        oldest_version: 0,
        finished_groups: Vec::new(),
        first_attempt: 0,
    }
}

impl World {
    pub async fn start_batch(&self, request: StartBatch) -> Result<(), RolloutFailure> {
        let question = |reply| RolloutManagerMessage::StartBatch(request, reply);
        ask(&self.address, Deadline::after_ms(1000), question).await.unwrap()
    }

    /// The next group, within a virtual day.
    pub async fn group(&mut self) -> FinishedGroup {
        let day = tokio::time::Duration::from_secs(86_400);
        tokio::time::timeout(day, self.groups.recv()).await.expect("a group within a day").unwrap()
    }

    /// That nothing else is reported, no rollout is left, and every sandbox and engine was released.
    pub async fn assert_quiet(&mut self) {
        tokio::time::sleep(tokio::time::Duration::from_secs(7200)).await;
        assert!(self.groups.try_recv().is_err(), "a group is reported once");
        let status = ask(&self.address, Deadline::after_ms(1000), RolloutManagerMessage::Status).await.unwrap();
        assert_eq!((status.queued, status.running, status.groups_open), (0, 0, 0));
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.open_leases, BTreeSet::new(), "every claimed sandbox was released");
        let ends = |event: &&RunEvent| matches!(event, RunEvent::RolloutEnded { .. });
        assert_eq!(seen.events.iter().filter(ends).count() as u64, status.ended);
        let asked: BTreeSet<RolloutId> = seen.requests.iter().map(|request| request.rollout).collect();
        let released: BTreeSet<RolloutId> = seen.engine_releases.iter().copied().collect();
        assert!(asked.is_subset(&released), "every rollout that generated was released at the fleet");
    }
}

fn engines(script: Arc<Script>, seen: Arc<Mutex<Seen>>) -> Address<EnginePoolMessage> {
    Address::of_function("engines", move |message| {
        match message {
            EnginePoolMessage::Generate(request, reply) => {
                seen.lock().unwrap().requests.push(request.clone());
                generate((script.engine)(&request), reply, &seen);
            }
            EnginePoolMessage::Release(rollout) => seen.lock().unwrap().engine_releases.push(rollout),
            _ => {}
        }
        Ok(())
    })
}

fn generate(say: Say, reply: Reply<Result<GenerateOutcome, EngineFailure>>, seen: &Mutex<Seen>) {
    let (text, finish, version) = match say {
        Say::Text(text, version) => (text, FinishReason::Stop, version),
        Say::Cut(text) => (text, FinishReason::Length, 0),
        Say::Abort(text, version) => (text, FinishReason::Abort, version),
        Say::Nonsense => ("nonsense".to_owned(), FinishReason::Stop, 0),
        Say::Fail(kind) => {
            reply.send(Err(EngineFailure { kind, message: "as the script says".to_owned() }));
            return;
        }
        Say::Hang => return seen.lock().unwrap().held.push(Box::new(reply)),
        Say::Panic => panic!("as the script says"),
    };
    let mut output_ids = TOKENIZER.encode(&text, false).unwrap();
    if finish == FinishReason::Stop {
        output_ids.extend(TOKENIZER.eos_id());
    }
    let tokens = output_ids.len();
    let outcome = GenerateOutcome {
        engine: EngineId::new("engine-0"),
        logprobs: vec![-0.5; tokens - usize::from(text == "nonsense")],
        finish,
        versions: vec![VersionSpan { number: Some(version), start: 0, end: tokens as u32 }],
        cached_tokens: 0,
        elapsed_ms: 1,
        output_ids,
    };
    reply.send(Ok(outcome));
}

fn pool(script: Arc<Script>, seen: Arc<Mutex<Seen>>) -> Address<SandboxPoolMessage> {
    Address::of_function("pool", move |message| {
        let SandboxPoolMessage::Claim(request, reply) = message else { return Ok(()) };
        match (script.claim)(request.rollout) {
            Claim::Fail => {
                reply.send(Err(failure(SandboxFailureKind::CreateFailed)));
            }
            Claim::Hang => seen.lock().unwrap().held.push(Box::new(reply)),
            Claim::Give => {
                let lease = {
                    let mut seen = seen.lock().unwrap();
                    seen.leases += 1;
                    let lease = LeaseId(seen.leases);
                    seen.open_leases.insert(lease);
                    seen.leases_of.entry(request.rollout).or_default().push(lease);
                    let held = seen.leases_of[&request.rollout].iter().filter(|lease| seen.open_leases.contains(lease));
                    assert_eq!(held.count(), 1, "a rollout holds one box at a time");
                    seen.most_leases = seen.most_leases.max(seen.open_leases.len());
                    lease
                };
                reply.send(Ok(ClaimedLease {
                    lease,
                    image: "py".to_owned(),
                    address: lease_address(lease, request.rollout, script.clone(), seen.clone()),
                    workdir: "/box".to_owned(),
                    warm: true,
                    waited_ms: 0,
                }));
            }
        }
        Ok(())
    })
}

fn lease_address(
    lease: LeaseId,
    rollout: RolloutId,
    script: Arc<Script>,
    seen: Arc<Mutex<Seen>>,
) -> Address<SandboxLeaseMessage> {
    Address::of_function("lease", move |message| {
        match message {
            SandboxLeaseMessage::Exec(request, reply) => {
                seen.lock().unwrap().commands.push((rollout, request.command.clone()));
                match outcome((script.shell)(rollout, &request.command)) {
                    Some(outcome) => drop(reply.send(outcome)),
                    None => seen.lock().unwrap().held.push(Box::new(reply)),
                }
            }
            SandboxLeaseMessage::PutFiles(files, reply) => {
                seen.lock().unwrap().files.extend(files);
                let failed = script.put_files_fail.then(|| failure(SandboxFailureKind::Refused));
                reply.send(failed.map_or(Ok(()), Err));
            }
            SandboxLeaseMessage::ReadFile(path, limit_bytes, reply) => {
                assert!(path == "/tmp/taken" && limit_bytes > 0);
                reply.send(Ok(CHANGE.to_vec()));
            }
            SandboxLeaseMessage::Release(reply) => {
                assert!(seen.lock().unwrap().open_leases.remove(&lease), "a lease is released once");
                reply.send(());
            }
            _ => {}
        }
        Ok(())
    })
}

fn outcome(act: Do) -> Option<Result<ExecOutcome, SandboxFailure>> {
    let (output, returncode, kind) = match act {
        Do::Print(output, returncode) => (output, returncode, None),
        Do::TimeOut => ("", -1, Some("TimeoutExpired")),
        Do::NotStart => ("", -1, Some("OSError")),
        Do::Fail(kind) => return Some(Err(failure(kind))),
        Do::Hang => return None,
    };
    Some(Ok(ExecOutcome {
        output: output.as_bytes().to_vec(),
        dropped_bytes: 0,
        returncode,
        exception: kind.map(|kind| ExecException { kind: kind.to_owned(), text: "as the script says".to_owned() }),
        elapsed_ms: 1,
    }))
}

fn failure(kind: SandboxFailureKind) -> SandboxFailure {
    SandboxFailure { kind, message: "as the script says".to_owned() }
}
