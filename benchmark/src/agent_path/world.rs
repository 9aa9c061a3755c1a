//! The real actors of the agent path around an instant engine and instant sandboxes.
//!
//! RolloutManager and its AgentLoops, EnginePool and EngineProxy, SandboxPool and its SandboxLeases, and the Journal on a
//! database file: as in a run, without supervisors, because nothing here fails. A rollout that does not end as the script
//! says is an error: a wrong path would be quick.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use greenroom_core::{Address, Deadline, Faults, Seam, ask};
use greenroom_engine::{ApiFactory, EngineApi, EngineConfig, EnginePool, EnginePoolArguments, http_api_factory};
use greenroom_messages::engine::{EnginePoolMessage, EngineSpec, PauseMode, UpdateWeights};
use greenroom_messages::rollout::{FinishedGroup, FinishedRollout, RolloutManagerMessage, RolloutOutcome, StartBatch};
use greenroom_messages::run::{ConductorMessage, JournalMessage};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_messages::{BatchId, EngineId, Purpose, RunId, WeightVersion};
use greenroom_rollout::agent::{AgentFile, HostFacts, Uname};
use greenroom_rollout::{Dataset, RolloutConfig, RolloutManager, RolloutManagerArguments};
use greenroom_run::{Database, Journal, JournalArguments};
use greenroom_sandbox::{ImageSpec, LeaseNumbers, PoolConfig, SandboxPool, SandboxPoolArguments};
use ractor::{Actor, ActorCell};
use tokio::sync::mpsc;

use super::instant::{InstantEngine, InstantProvider};
use super::script::{Script, TURNS};
use crate::measure::{Cost, Stopwatch};

/// The image of all tasks.
pub const IMAGE: &str = "default";
/// Far more than any batch of the bench takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// The actors of one variant.
pub struct World {
    engine: Arc<InstantEngine>,
    manager: Address<RolloutManagerMessage>,
    groups: mpsc::UnboundedReceiver<FinishedGroup>,
    cells: Vec<ActorCell>,
    batches: u64,
}

/// What one batch took.
#[derive(Clone, Debug)]
pub struct Played {
    /// Time, processor time.
    pub cost: Cost,
    /// Turns played.
    pub turns: usize,
    /// Times between answer and next question, seconds.
    pub gaps_s: Vec<f64>,
    /// Tokens of the longest sample.
    pub longest_sample: usize,
}

impl World {
    /// Starts the actors: at most `at_once` rollouts at a time; the engine over HTTP at `url`, or in the process.
    pub async fn start(
        engine: Arc<InstantEngine>,
        url: Option<String>,
        at_once: u32,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let (run, seam) = (RunId::new("bench"), Seam::system(1, Faults::none()));
        let mut cells = Vec::new();
        let database = Database::open(&dir.join(format!("{}-{at_once}.db", url.is_some())), &run, 1, "", seam.clock)?;
        let arguments = JournalArguments { database, clock: seam.clock, feed: None };
        let (journal, _) = Actor::spawn(None, Journal, arguments).await?;
        cells.push(journal.get_cell());
        let journal: Address<JournalMessage> = Address::adapted(&journal);

        let arguments = engine_arguments(&engine, url, at_once, &run, &seam, &journal)?;
        let (engines, _) = Actor::spawn(None, EnginePool, arguments).await?;
        cells.push(engines.get_cell());
        let engines: Address<EnginePoolMessage> = Address::adapted(&engines);
        let wish = UpdateWeights {
            version: WeightVersion { run: run.clone(), number: 0 },
            model_dir: "/instant".to_owned(),
            pause: PauseMode::Drain,
            timeout_ms: 20_000,
        };
        let question = |reply| EnginePoolMessage::UpdateWeights(wish, reply);
        let updates = ask(&engines, Deadline::after_ms(30_000), question).await?;
        ensure!(updates.iter().all(|update| update.result.is_ok()), "the engine does not serve: {updates:?}");

        let arguments = SandboxPoolArguments {
            image: ImageSpec::new(IMAGE, None),
            config: PoolConfig {
                warm_boxes: at_once,
                max_boxes: at_once * 2,
                max_creating: at_once,
                ..PoolConfig::default()
            },
            provider: Arc::new(InstantProvider::new(&engine.script.observation)),
            labels: BTreeMap::new(),
            seam: seam.clone(),
            journal: Some(journal.clone()),
            lease_numbers: LeaseNumbers::starting_at(1),
        };
        let (sandboxes, _) = Actor::spawn(None, SandboxPool, arguments).await?;
        cells.push(sandboxes.get_cell());

        let (sender, groups) = mpsc::unbounded_channel();
        let arguments = RolloutManagerArguments {
            config: RolloutConfig {
                max_turns: TURNS as u32,
                max_running: at_once,
                max_new_tokens: 1024,
                ..RolloutConfig::default()
            },
            datasets: BTreeMap::from([(Purpose::Train, tasks(&engine.script)?)]),
            tokenizer: engine.script.tokenizer.clone(),
            template: engine.script.template.clone(),
            agent: AgentFile::from_yaml(&std::fs::read_to_string(&engine.script.agent)?, "default.yaml")?,
            host: host(),
            engines,
            sandboxes: BTreeMap::from([(IMAGE.to_owned(), Address::<SandboxPoolMessage>::adapted(&sandboxes))]),
            conductor: Address::of_function("conductor", move |message| match message {
                ConductorMessage::GroupFinished(group) => sender.send(*group).map_err(|_| ()),
                _ => Ok(()),
            }),
            journal,
            trajectories: None,
            seam,
        };
        let (manager, _) = Actor::spawn(None, RolloutManager, arguments).await?;
        cells.push(manager.get_cell());
        Ok(Self { engine, manager: Address::adapted(&manager), groups, cells, batches: 0 })
    }

    /// Plays `groups` × `samples` episodes to their ends.
    pub async fn play(&mut self, groups: u32, samples: u32) -> anyhow::Result<Played> {
        self.batches += 1;
        let request = StartBatch {
            batch: BatchId { purpose: Purpose::Train, number: self.batches },
            first_position: 0,
            groups,
            samples_per_group: samples,
            temperature: 1.0,
            oldest_version: 0,
            finished_groups: Vec::new(),
            first_attempt: 0,
        };
        self.engine.gaps.take();
        let stopwatch = Stopwatch::start();
        let question = |reply| RolloutManagerMessage::StartBatch(request, reply);
        ask(&self.manager, Deadline::after_ms(10_000), question).await??;
        let mut finished = Vec::new();
        for _ in 0..groups {
            let group = tokio::time::timeout(PATIENCE, self.groups.recv()).await.context("a group takes too long")?;
            finished.push(group.context("the RolloutManager has ended")?);
        }
        let cost = stopwatch.cost();
        let rollouts: Vec<&FinishedRollout> = finished.iter().flat_map(|group| &group.rollouts).collect();
        for rollout in &rollouts {
            check(rollout, &self.engine.script)?;
        }
        let longest = rollouts.iter().flat_map(|rollout| &rollout.samples).map(|sample| sample.tokens.len()).max();
        Ok(Played {
            cost,
            turns: rollouts.iter().map(|rollout| rollout.turns as usize).sum(),
            gaps_s: self.engine.gaps.take(),
            longest_sample: longest.unwrap_or_default(),
        })
    }

    /// Ends the actors.
    pub async fn end(self) {
        for cell in self.cells.into_iter().rev() {
            // an actor that does not end within its time is ended with the runtime
            let _ = cell.stop_and_wait(None, Some(Duration::from_secs(5))).await;
        }
    }
}

fn engine_arguments(
    engine: &Arc<InstantEngine>,
    url: Option<String>,
    at_once: u32,
    run: &RunId,
    seam: &Seam,
    journal: &Address<JournalMessage>,
) -> anyhow::Result<EnginePoolArguments> {
    let config = EngineConfig::default();
    let api: ApiFactory = match &url {
        Some(_) => http_api_factory(&config)?,
        None => {
            let engine = engine.clone();
            Arc::new(move |_| Ok(engine.clone() as Arc<dyn EngineApi>))
        }
    };
    let url = url.unwrap_or_else(|| "http://instant".to_owned());
    Ok(EnginePoolArguments {
        specs: vec![EngineSpec { engine: EngineId::new("instant"), url, max_in_flight: at_once }],
        api,
        config,
        seam: seam.clone(),
        run: run.clone(),
        vocabulary_tokens: engine.script.tokenizer.vocabulary_size(),
        journal: journal.clone(),
    })
}

/// A few tasks, all the script's.
pub fn tasks(script: &Script) -> anyhow::Result<Arc<Dataset>> {
    let row = |number: u32| {
        serde_json::json!({
            "text": script.task,
            "metadata": { "instance_id": format!("task-{number}"), "eval_cmd": "true" },
        })
        .to_string()
    };
    let rows: Vec<String> = (0..8).map(row).collect();
    Ok(Arc::new(Dataset::parse(&rows.join("\n"), "bench")?))
}

/// A host as any.
pub fn host() -> HostFacts {
    let [system, node, release, version, machine] = ["Linux", "node", "6", "#1", "x86_64"].map(str::to_owned);
    HostFacts { uname: Uname { system, node, release, version, machine }, process_environment: BTreeMap::new() }
}

/// The rollout went all the way, and its tokens were kept: one sample, trained exactly where the policy sampled.
fn check(rollout: &FinishedRollout, script: &Script) -> anyhow::Result<()> {
    let sampled: usize = script.reply_ids.iter().map(Vec::len).sum();
    let is_whole = rollout.outcome == RolloutOutcome::Completed
        && rollout.turns as usize == TURNS
        && rollout.samples.len() == 1
        && rollout.samples.iter().flat_map(|sample| &sample.loss_mask).filter(|mask| **mask == 1).count() == sampled;
    ensure!(
        is_whole,
        "rollout {} ended as {:?} after {} turns with {} samples",
        rollout.rollout,
        rollout.outcome,
        rollout.turns,
        rollout.samples.len()
    );
    Ok(())
}
