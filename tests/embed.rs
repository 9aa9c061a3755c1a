//! Another ractor application uses greenroom: it supervises a whole run, it starts only some of the actors, it joins a
//! running cluster. Each test is written as that application would be.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]
#![cfg(all(feature = "cluster", feature = "torch"))]

mod support;

use std::time::Duration;

use greenroom::config::{self, Config, Layers};
use greenroom::core::{Address, Deadline, Faults, Seam, ask};
use greenroom::engine::{EngineConfig, EnginePool, EnginePoolArguments, http_api_factory};
use greenroom::identity::{Authority, CertificateRole, IssueRequest};
use greenroom::messages::engine::{
    EnginePoolMessage, EngineSpec, FinishReason, GenerateRequest, PauseMode, Sampling, UpdateWeights,
};
use greenroom::messages::run::{ConductorMessage, RunStatus, StepFinished, StopMode};
use greenroom::messages::{BatchId, EngineId, GroupId, Purpose, RolloutId, RunId, WeightVersion};
use greenroom::node::{NodeBuilder, NodeEnd, ROLES};
use greenroom::policy::server::{EngineServer, EngineServerConfig};
use greenroom::run::RunEnd;
use greenroom::up::{RunActor, RunArguments, RunMessage, RunPlace};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use support::{PATIENCE, Run, finish_child, text, wait_until};
use tokio::sync::mpsc;

/// The foreign application's own messages. With ractor's feature `cluster` a message type says what it is to other processes:
/// this one is nothing to them.
enum MyMessage {
    Step(StepFinished),
    End(RunEnd),
}

impl ractor::Message for MyMessage {}

impl From<StepFinished> for MyMessage {
    fn from(step: StepFinished) -> Self {
        Self::Step(step)
    }
}

impl From<RunEnd> for MyMessage {
    fn from(end: RunEnd) -> Self {
        Self::End(end)
    }
}

/// What the application's supervisor has seen.
#[derive(Debug, PartialEq)]
enum Seen {
    Step(u64, String),
    End(String),
    ChildEnded(Option<String>),
    ChildFailed(String),
}

/// The foreign application's supervisor: one of its children is a whole run.
struct MySupervisor;

struct MyState {
    seen: mpsc::UnboundedSender<Seen>,
    run: ActorRef<RunMessage>,
    _steps: greenroom::Subscribed,
}

impl Actor for MySupervisor {
    type Msg = MyMessage;
    type State = MyState;
    type Arguments = (RunArguments, mpsc::UnboundedSender<Seen>, mpsc::UnboundedSender<ActorRef<RunMessage>>);

    async fn pre_start(
        &self,
        myself: ActorRef<MyMessage>,
        (mut arguments, seen, started): Self::Arguments,
    ) -> Result<MyState, ActorProcessingErr> {
        arguments.on_end = Some(Address::adapted(&myself));
        let (run, _) = Actor::spawn_linked(None, RunActor, arguments, myself.get_cell()).await?;
        let steps = greenroom::subscribe(Address::adapted(&run), "my supervisor", Address::adapted(&myself));
        started.send(run.clone())?;
        Ok(MyState { seen, run, _steps: steps })
    }

    async fn handle(
        &self,
        _: ActorRef<MyMessage>,
        message: MyMessage,
        state: &mut MyState,
    ) -> Result<(), ActorProcessingErr> {
        state.seen.send(match message {
            MyMessage::Step(event) => Seen::Step(event.step.0, event.version.to_string()),
            MyMessage::End(RunEnd::Completed(summary)) => Seen::End(format!("completed {}", summary.steps)),
            MyMessage::End(RunEnd::Stopped(_)) => Seen::End("stopped".to_owned()),
            MyMessage::End(RunEnd::Failed(reason)) => Seen::End(reason),
        })?;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<MyMessage>,
        event: SupervisionEvent,
        state: &mut MyState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(child, _, reason) if child.get_id() == state.run.get_id() => {
                state.seen.send(Seen::ChildEnded(reason))?;
            }
            SupervisionEvent::ActorFailed(_, error) => state.seen.send(Seen::ChildFailed(error.to_string()))?,
            _ => {}
        }
        Ok(())
    }
}

/// The configuration that the run's command line names.
fn config_of(run: &Run) -> Config {
    let command = run.begin();
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let values = |option: &str| -> Vec<String> {
        words.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].clone()).collect()
    };
    let files = values("--config").into_iter().map(Into::into).collect();
    let layers = Layers { files, settings: values("--set"), ..Layers::default() };
    config::load_for_run(&layers).unwrap_or_else(|error| panic!("{error}")).config
}

async fn next(seen: &mut mpsc::UnboundedReceiver<Seen>) -> Seen {
    tokio::time::timeout(PATIENCE, seen.recv()).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_supervisor_has_a_whole_run_as_its_child() {
    let run = Run::new(&["run.steps=2", "run.groups_per_batch=2", "run.samples_per_group=3"]);
    let place = RunPlace { runs_dir: run.dir().parent().unwrap().to_owned(), name: "run".to_owned(), resume: false };
    let arguments = RunArguments::new(config_of(&run), place);
    let (seen_sender, mut seen) = mpsc::unbounded_channel();
    let (started_sender, mut started) = mpsc::unbounded_channel();
    let supervise = || (arguments.clone(), seen_sender.clone(), started_sender.clone());

    // stopped after its first step, and taken down with its child
    let (supervisor, _) = Actor::spawn(None, MySupervisor, supervise()).await.unwrap();
    let child = started.recv().await.unwrap();
    let deadline = || Deadline::after(PATIENCE);
    let status = ask(&Address::of(&child), deadline(), RunMessage::Status).await.unwrap();
    assert_eq!(status.steps, 2);
    assert_eq!(next(&mut seen).await, Seen::Step(1, "run:1".to_owned()));
    child.stop_and_wait(Some("the application goes".to_owned()), Some(PATIENCE)).await.unwrap();
    assert_eq!(next(&mut seen).await, Seen::ChildEnded(Some("the application goes".to_owned())));
    run.assert_no_sandbox_processes();
    supervisor.stop_and_wait(None, Some(PATIENCE)).await.unwrap();

    // started again it goes on, is told of the rest, and ends by itself
    let (supervisor, _) = Actor::spawn(None, MySupervisor, supervise()).await.unwrap();
    assert_eq!(next(&mut seen).await, Seen::Step(2, "run:2".to_owned()));
    // a supervisor hears of its children before its messages
    let both = [next(&mut seen).await, next(&mut seen).await];
    assert!(both.contains(&Seen::End("completed 2".to_owned())), "{both:?}");
    assert!(both.contains(&Seen::ChildEnded(Some("the run is completed".to_owned()))), "{both:?}");
    run.assert_no_sandbox_processes();
    run.assert_no_sandbox_directories();
    supervisor.stop_and_wait(None, Some(PATIENCE)).await.unwrap();

    // what cannot be started says why
    let mut wrong = supervise();
    wrong.0.config.data.train = "nowhere.jsonl".into();
    let error = Actor::spawn(None, MySupervisor, wrong).await.err().unwrap().to_string();
    assert!(error.contains("GR0907") && error.contains("nowhere.jsonl"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_application_starts_only_the_engines_pool_and_generates() {
    let model_dir = support::data().join("policy");
    let engine = EngineServer::start(EngineServerConfig::new(&model_dir)).await.unwrap();
    let shape: serde_json::Value =
        serde_json::from_slice(&std::fs::read(model_dir.join("config.json")).unwrap()).unwrap();
    let config = EngineConfig::default();
    let run = RunId::new("mine");
    let url = format!("http://{}", engine.addr);
    let arguments = EnginePoolArguments {
        specs: vec![EngineSpec { engine: EngineId::new("mine"), url, max_in_flight: 8 }],
        api: http_api_factory(&config).unwrap(),
        config,
        seam: Seam::system(0, Faults::none()),
        run: run.clone(),
        vocabulary_tokens: shape["vocab_size"].as_u64().unwrap() as u32,
        journal: Address::of_function("events", |_| Ok(())),
    };
    let (actor, ended) = Actor::spawn(None, EnginePool, arguments).await.unwrap();
    let pool: Address<EnginePoolMessage> = Address::adapted(&actor);

    // an engine serves weights that it was given a version of, never what it happened to start with
    let version = WeightVersion { run, number: 1 };
    let model_dir = model_dir.to_string_lossy().into_owned();
    let weights = UpdateWeights { version: version.clone(), model_dir, pause: PauseMode::Drain, timeout_ms: 60_000 };
    let deadline = || Deadline::after(PATIENCE);
    let updates = ask(&pool, deadline(), |reply| EnginePoolMessage::UpdateWeights(weights, reply)).await.unwrap();
    assert_eq!(updates[0].result.as_ref().unwrap().version, version);

    let batch = BatchId { purpose: Purpose::Train, number: 1 };
    let request = GenerateRequest {
        rollout: RolloutId { group: GroupId { batch, index: 0 }, sample: 0, attempt: 0 },
        turn: 0,
        rid: "mine-000001".to_owned(),
        input_ids: vec![1, 2, 3],
        sampling: Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            max_new_tokens: 8,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            seed: Some(1),
        },
        timeout_ms: 60_000,
        oldest_version: 1,
    };
    let outcome = ask(&pool, deadline(), |reply| EnginePoolMessage::Generate(request, reply)).await.unwrap().unwrap();
    assert!(!outcome.output_ids.is_empty() && outcome.output_ids.len() == outcome.logprobs.len());
    assert!(outcome.finish == FinishReason::Stop || outcome.output_ids.len() == 8);
    assert!(outcome.versions.iter().all(|span| span.number == Some(1)), "{:?}", outcome.versions);

    ask(&pool, deadline(), EnginePoolMessage::Shutdown).await.unwrap();
    actor.stop(None);
    tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap();
    engine.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_application_joins_a_cluster_and_is_told_of_steps() {
    let run = Run::new(&["run.steps=3", "run.groups_per_batch=2", "run.samples_per_group=3"]);
    let child = Run::spawn(run.begin().args(["--nodes", "controller+rollout+sandbox,trainer+engine"]));
    let nodes = run.dir().join("nodes");
    let address = nodes.join("controller/state/address");
    let wait_until = |what: &'static str, path: std::path::PathBuf| async move {
        let begun = tokio::time::Instant::now();
        while !path.exists() {
            assert!(begun.elapsed() < PATIENCE, "{what} did not happen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    wait_until("the controller's start", address.clone()).await;

    let dashboard =
        IssueRequest { name: "dashboard".to_owned(), hosts: Vec::new(), role: CertificateRole::Node, valid_days: 1 };
    let own = tempfile::tempdir().unwrap();
    let identity = Authority::open(&nodes.join("ca")).unwrap().issue(&dashboard, own.path()).unwrap();
    let guest = greenroom::Node::builder("dashboard")
        .run("run")
        .seed(&std::fs::read_to_string(&address).unwrap())
        .cookie_file(nodes.join("cookie"))
        .identity(identity)
        .join()
        .await
        .unwrap();
    let (sender, mut steps) = mpsc::unbounded_channel();
    let subscribed =
        guest.subscribe(Address::of_function("steps", move |step: StepFinished| sender.send(step).map_err(|_| ())));
    guest.run_is_led(PATIENCE).await.unwrap();
    ask(&guest.conductor(), Deadline::after_ms(60_000), ConductorMessage::Status).await.unwrap();
    for number in 1..=3 {
        let step = tokio::time::timeout(PATIENCE, steps.recv()).await.unwrap().unwrap();
        assert_eq!((step.step.0, step.version.number, step.run.to_string()), (number, number, "run".to_owned()));
        assert!((0.0..=1.0).contains(&step.reward) && (0.0..=1.0).contains(&step.pass_at_1), "{step:?}");
    }
    let outcome = tokio::time::timeout(PATIENCE, guest.ended()).await.unwrap();
    assert_eq!(outcome, "completed");
    drop(subscribed);
    guest.leave().await;
    let output = tokio::task::spawn_blocking(|| finish_child(child)).await.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    // a guest that has not left holds nobody up, and what it hears of is what the run's own files say
    assert_eq!(run.metrics().len(), 3);
    run.assert_no_sandbox_processes();
}

/// The application's actor below which a whole cluster of one node runs; it ends with the node, and the node with it.
struct MyNode;

struct MyNodeState {
    leave: mpsc::UnboundedSender<StopMode>,
    waiting: tokio::task::JoinHandle<()>,
}

enum MyNodeMessage {
    Ended(NodeEnd),
}

impl ractor::Message for MyNodeMessage {}

impl Actor for MyNode {
    type Msg = MyNodeMessage;
    type State = MyNodeState;
    type Arguments = (NodeBuilder, Config, mpsc::UnboundedSender<NodeEnd>, mpsc::UnboundedSender<RunStatus>);

    async fn pre_start(
        &self,
        myself: ActorRef<MyNodeMessage>,
        (builder, config, ends, standings): Self::Arguments,
    ) -> Result<MyNodeState, ActorProcessingErr> {
        let node = builder.start(config).await.map_err(|error| format!("{error:#}"))?;
        let mut progress = node.progress().unwrap();
        let (leave, wishes) = mpsc::unbounded_channel();
        let waiting = tokio::spawn(async move {
            let following = tokio::spawn(async move {
                while progress.changed().await.is_ok() {
                    let _ = standings.send(progress.borrow_and_update().clone());
                }
            });
            let end = node.wait(wishes).await;
            following.abort();
            let _ = ends.send(end.clone());
            let _ = myself.cast(MyNodeMessage::Ended(end));
        });
        Ok(MyNodeState { leave, waiting })
    }

    async fn handle(
        &self,
        myself: ActorRef<MyNodeMessage>,
        MyNodeMessage::Ended(end): MyNodeMessage,
        _: &mut MyNodeState,
    ) -> Result<(), ActorProcessingErr> {
        myself.stop(Some(format!("{end:?}")));
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<MyNodeMessage>, state: &mut MyNodeState) -> Result<(), ActorProcessingErr> {
        let _ = state.leave.send(StopMode::Now);
        Ok((&mut state.waiting).await?)
    }
}

/// The names of everything below a directory.
fn below(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.flat_map(|entry| [vec![entry.path()], below(&entry.path())].concat()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_application_has_a_node_with_every_role_below_it_which_leaves_nothing_behind() {
    let run = Run::new(&["run.steps=2", "run.groups_per_batch=2", "run.samples_per_group=3"]);
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let lead = IssueRequest {
        name: "lead".to_owned(),
        hosts: vec!["127.0.0.1".to_owned()],
        role: CertificateRole::Node,
        valid_days: 1,
    };
    let identity = Authority::create(&own.path().join("ca")).unwrap().issue(&lead, &own.path().join("tls")).unwrap();
    let state = own.path().join("state");
    let builder = greenroom::Node::builder("lead").run("run").identity(identity).roles(ROLES).state_dir(&state);
    let (ends, mut ended) = mpsc::unbounded_channel();
    let (standings, mut standing) = mpsc::unbounded_channel();
    let arguments = || (builder.clone(), config_of(&run), ends.clone(), standings.clone());
    let nothing_is_left = |when: &str| {
        let address = std::fs::read_to_string(state.join("address")).unwrap();
        wait_until(&format!("the end of who listens, {when}"), || std::net::TcpStream::connect(&address).is_err());
        run.assert_no_sandbox_processes();
        let boxes = below(&state.join("sandboxes"));
        assert!(boxes.is_empty(), "{when}: {boxes:?}");
        // a file that is being written when a node is dropped is written to its end
        let halves = || below(&state).into_iter().any(|path| path.extension().is_some_and(|of| of == "part"));
        wait_until(&format!("the end of what is half written, {when}"), || !halves());
    };

    // stopped with its actor after the first step
    let (actor, _) = Actor::spawn(None, MyNode, arguments()).await.unwrap();
    loop {
        let seen: RunStatus = tokio::time::timeout(PATIENCE, standing.recv()).await.unwrap().unwrap();
        if seen.step.0 >= 1 {
            break;
        }
    }
    actor.stop_and_wait(None, Some(PATIENCE)).await.unwrap();
    let end = ended.recv().await.unwrap();
    let NodeEnd::Run { over, end: Some(RunEnd::Stopped(summary)) } = end else { panic!("{end:?}") };
    assert_eq!((over.outcome.as_str(), over.status, summary.steps), ("stopped", 3, 1));
    nothing_is_left("stopped with its actor");

    // dropped by who started it: what runs below goes by itself
    let node = builder.clone().start(config_of(&run)).await.unwrap();
    let conductor = node.conductor().unwrap();
    assert!(ask(&conductor, Deadline::after(PATIENCE), ConductorMessage::Status).await.is_ok());
    drop(node);
    nothing_is_left("dropped");

    // it goes on to the end, and once more there is nothing to do
    for _ in 0..2 {
        let (_, ends_itself) = Actor::spawn(None, MyNode, arguments()).await.unwrap();
        let end = tokio::time::timeout(PATIENCE, ended.recv()).await.unwrap().unwrap();
        let NodeEnd::Run { over, end: Some(RunEnd::Completed(summary)) } = end else { panic!("{end:?}") };
        assert_eq!((over.outcome.as_str(), over.status, summary.steps), ("completed", 0, 2));
        tokio::time::timeout(PATIENCE, ends_itself).await.unwrap().unwrap();
        nothing_is_left("ended by itself");
    }
}
