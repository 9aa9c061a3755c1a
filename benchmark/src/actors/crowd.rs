//! Ten thousand AgentLoops in one process: how fast they start, and what one takes.
//!
//! Each is the real actor of a run with its own rollout, one of a group of eight on the task of the bench `agent_path`. First
//! all wait for a sandbox, which nobody gives; then all are given one and wait for their engine's first answer, holding
//! the rendered and tokenised prompt, as most loops of a run do most of the time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use greenroom_core::{Address, Deadline, Faults, Reply, Seam};
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::sandbox::{ClaimedLease, ExecOutcome, SandboxFailure, SandboxLeaseMessage, SandboxPoolMessage};
use greenroom_messages::{BatchId, GroupId, LeaseId, Purpose, RolloutId};
use greenroom_rollout::agent::AgentFile;
use greenroom_rollout::agent_loop::{AgentLoop, AgentLoopArguments, EpisodeSetting, Progress};
use greenroom_rollout::manager::Issue;
use greenroom_rollout::{RolloutConfig, RolloutManagerArguments};
use ractor::Actor;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::agent_path::script::{Script, TURNS};
use crate::agent_path::world::{IMAGE, host, tasks};

/// Samples of a group.
const SAMPLES: u32 = 8;
const PATIENCE_MS: u64 = 100_000;

/// What arrived and is not answered.
struct Held<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Held<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Held<T> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn push(&self, one: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    }

    fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn wait_for(&self, count: usize, what: &str) -> anyhow::Result<()> {
        let deadline = Deadline::after_ms(PATIENCE_MS);
        loop {
            let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
            if held == count {
                return Ok(());
            }
            ensure!(!deadline.has_passed(), "{held} of {count} AgentLoops wait for {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Starts `count` AgentLoops.
pub async fn gather(count: usize) -> anyhow::Result<Value> {
    let (claims, questions) = (Held::new(), Held::new());
    let (claimed, asked) = (claims.clone(), questions.clone());
    let pool = Address::of_function("sandboxes", move |message| {
        if let SandboxPoolMessage::Claim(_, reply) = message {
            claimed.push(reply);
        }
        Ok(())
    });
    let engines = Address::of_function("engines", move |message| {
        if let message @ EnginePoolMessage::Generate(..) = message {
            asked.push(message);
        }
        Ok(())
    });
    let (setting, task) = setting(pool, engines)?;
    let setting = Arc::new(setting);
    let manager = Address::of_function("manager", |_| Ok(()));
    let before_kib = memory_kib()?;
    let began = Instant::now();
    let mut loops = Vec::with_capacity(count);
    for number in 0..count as u32 {
        let batch = BatchId { purpose: Purpose::Train, number: 1 };
        let group = GroupId { batch, index: number / SAMPLES };
        let rollout = RolloutId { group, sample: number % SAMPLES, attempt: 0 };
        let issue = Issue { rollout, task: task.clone(), temperature: 1.0, oldest_version: 0, tries_before: 0 };
        let progress = Progress::new(setting.seam.clock);
        let arguments = AgentLoopArguments { setting: setting.clone(), issue, progress, manager: manager.clone() };
        loops.push(Actor::spawn(None, AgentLoop, arguments).await?);
    }
    claims.wait_for(count, "a sandbox").await?;
    let spawned_s = began.elapsed().as_secs_f64();
    let claiming_kib = memory_kib()?;
    answer(claims.take());
    questions.wait_for(count, "an engine").await?;
    let asking_kib = memory_kib()?;
    let each = |kib: f64| (kib - before_kib) / count as f64;
    Ok(json!({
        "per_s": count as f64 / spawned_s,
        "claiming_kib": each(claiming_kib),
        "asking_kib": each(asking_kib),
        "prompt_tokens": prompt_tokens(&questions.take()),
    }))
}

fn prompt_tokens(questions: &[EnginePoolMessage]) -> usize {
    match questions.first() {
        Some(EnginePoolMessage::Generate(request, _)) => request.input_ids.len(),
        _ => 0,
    }
}

fn setting(
    pool: Address<SandboxPoolMessage>,
    engines: Address<EnginePoolMessage>,
) -> anyhow::Result<(EpisodeSetting, Arc<greenroom_rollout::Task>)> {
    let script = Script::new()?;
    let dataset = tasks(&script)?;
    let task = dataset.tasks().first().context("there is no task")?.clone();
    let arguments = RolloutManagerArguments {
        config: RolloutConfig { max_turns: TURNS as u32, max_new_tokens: 1024, ..RolloutConfig::default() },
        datasets: BTreeMap::from([(Purpose::Train, dataset)]),
        tokenizer: script.tokenizer.clone(),
        template: script.template.clone(),
        agent: AgentFile::from_yaml(&std::fs::read_to_string(&script.agent)?, "default.yaml")?,
        host: host(),
        engines,
        sandboxes: BTreeMap::from([(IMAGE.to_owned(), pool)]),
        conductor: Address::unbound("conductor"),
        journal: Address::of_function("journal", |_| Ok(())),
        trajectories: None,
        seam: Seam::system(1, Faults::none()),
    };
    Ok((arguments.check()?.0, task))
}

type Claim = Reply<Result<ClaimedLease, SandboxFailure>>;

/// Gives every claim a box whose commands end at once.
fn answer(claims: Vec<Claim>) {
    let address = Address::of_function("box", |message| {
        let nothing =
            ExecOutcome { output: Vec::new(), dropped_bytes: 0, returncode: 0, exception: None, elapsed_ms: 0 };
        // a loop that has ended needs no answer
        match message {
            SandboxLeaseMessage::Exec(_, reply) => drop(reply.send(Ok(nothing))),
            SandboxLeaseMessage::PutFiles(_, reply) => drop(reply.send(Ok(()))),
            SandboxLeaseMessage::ReadFile(_, _, reply) => drop(reply.send(Ok(Vec::new()))),
            SandboxLeaseMessage::Renew(_, reply) => drop(reply.send(Ok(()))),
            SandboxLeaseMessage::Release(reply) => drop(reply.send(())),
        }
        Ok(())
    });
    for (number, claim) in claims.into_iter().enumerate() {
        claim.send(Ok(ClaimedLease {
            lease: LeaseId(number as u64),
            image: IMAGE.to_owned(),
            address: address.clone(),
            workdir: "/work".to_owned(),
            warm: true,
            waited_ms: 0,
        }));
    }
}

/// The proportional set of this process, KiB: as Ray's actors are measured.
fn memory_kib() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").context("Linux tells a process's memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("smaps_rollup has no Pss")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
