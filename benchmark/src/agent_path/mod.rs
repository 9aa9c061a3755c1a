//! Bench `agent_path`: what the way between engine and sandbox costs when both answer at once, next to mini-swe-agent.
//!
//! Episodes of ten turns on a prompt of some 2,500 tokens that grows to some 7,000. Ours is the whole path of a run: claim, set-up,
//! turns with kept tokens, grading, release, the run database. The peer is mini-swe-agent's agent alone, or with the
//! rendering and tokenising that training needs (ours always does it), or over HTTP to the same server as ours.
//!
//! Added time of a turn: from the engine's answer to the next question of the same episode, command included.

mod instant;
pub mod script;
mod server;
pub mod world;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use self::instant::InstantEngine;
use self::script::{SUBMIT, Script, Tokenising};
use self::world::World;
use crate::measure::{machine, median, quantile};
use crate::peer::Peer;
use crate::result::{BenchResult, Goal, PeerValue, Row};

const COMMAND: &str = "cargo bench-agent-path --python PYTHON";
/// Ours and the peer take turns this often.
const ROUNDS: usize = 3;

/// Ours and one peer under the same load.
struct Setting {
    title: &'static str,
    /// What the peer's model is.
    model: &'static str,
    /// What is added to the peer's name.
    note: &'static str,
    over_http: bool,
    at_once: u32,
    /// Groups and samples per group.
    episodes: (u32, u32),
}

const SETTINGS: &[Setting] = &[
    Setting { title: "one episode", model: "instant", note: "", over_http: false, at_once: 1, episodes: (8, 4) },
    Setting { title: "64 episodes", model: "instant", note: "", over_http: false, at_once: 64, episodes: (8, 8) },
    Setting {
        title: "64 episodes, tokens wanted",
        model: "tokens",
        note: ", history rendered and tokenised each turn",
        over_http: false,
        at_once: 64,
        episodes: (8, 8),
    },
    Setting {
        title: "one episode over HTTP",
        model: "http",
        note: ", litellm",
        over_http: true,
        at_once: 1,
        episodes: (8, 4),
    },
    Setting {
        title: "64 episodes over HTTP",
        model: "http",
        note: ", litellm",
        over_http: true,
        at_once: 64,
        episodes: (8, 8),
    },
];

/// What one side did, over all rounds.
#[derive(Default)]
struct Side {
    turns_per_s: Vec<f64>,
    processor_s_per_1000_turns: Vec<f64>,
    gaps_ms: Vec<f64>,
}

impl Side {
    fn add(&mut self, turns: f64, wall_s: f64, processor_s: f64, gaps_s: &[f64]) {
        self.turns_per_s.push(turns / wall_s);
        self.processor_s_per_1000_turns.push(processor_s * 1000.0 / turns);
        self.gaps_ms.extend(gaps_s.iter().map(|gap| gap * 1000.0));
    }
}

/// Runs the bench.
pub fn run(python: &str) -> anyhow::Result<BenchResult> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let mut peer = Peer::start(python, "agent_path.py", scratch.path())?;
    let runtime = greenroom_core::runtime(greenroom_core::ACTOR_THREADS)?;
    let engine = Arc::new(InstantEngine::new(Arc::new(Script::new()?)));
    let url = runtime.block_on(server::serve(engine.clone()))?;
    let mut rows = Vec::new();
    for (number, setting) in SETTINGS.iter().enumerate() {
        eprintln!("{} …", setting.title);
        let dir = scratch.path().join(number.to_string());
        std::fs::create_dir(&dir)?;
        rows.extend(measure(setting, &runtime, &engine, &url, &mut peer, &dir)?);
    }
    Ok(BenchResult { bench: "agent_path".to_owned(), command: COMMAND.to_owned(), machine: machine(), rows })
}

/// Plays 64 episodes at a time without a peer, for a profiler.
pub fn profile(rounds: u32) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let runtime = greenroom_core::runtime(greenroom_core::ACTOR_THREADS)?;
    let engine = Arc::new(InstantEngine::new(Arc::new(Script::new()?)));
    let mut world = runtime.block_on(World::start(engine, None, 64, scratch.path()))?;
    for _ in 0..rounds {
        let played = runtime.block_on(world.play(8, 8))?;
        let turns = played.turns as f64;
        let processor_ms = played.cost.processor_s * 1000.0 / turns;
        eprintln!("{:.0} turns/s, {processor_ms:.3} ms of processor a turn", turns / played.cost.wall_s);
    }
    runtime.block_on(world.end());
    Ok(())
}

fn measure(
    setting: &Setting,
    runtime: &Runtime,
    engine: &Arc<InstantEngine>,
    url: &str,
    peer: &mut Peer,
    dir: &Path,
) -> anyhow::Result<Vec<Row>> {
    let our_url = setting.over_http.then(|| url.to_owned());
    let mut world = runtime.block_on(World::start(engine.clone(), our_url, setting.at_once, dir))?;
    let (mut ours, mut theirs) = (Side::default(), Side::default());
    let (mut turns_s, mut outputs_s) = (Vec::new(), Vec::new());
    let (groups, samples) = setting.episodes;
    // round 0 warms both sides up and does not count
    for round in 0..=ROUNDS {
        let played = runtime.block_on(world.play(groups, samples))?;
        let request = request(setting, &engine.script, url, round);
        let answer = peer.ask(&request)?;
        let measured_by_server = engine.gaps.take();
        let floor = engine.script.tokenising()?;
        if round == 0 {
            eprintln!("  longest sample: {} tokens", played.longest_sample);
            continue;
        }
        turns_s.push(floor.turn_s);
        outputs_s.push(floor.output_s);
        ours.add(played.turns as f64, played.cost.wall_s, played.cost.processor_s, &played.gaps_s);
        let number = |key: &str| answer[key].as_f64().with_context(|| format!("the peer's answer lacks {key}"));
        let own: Vec<f64> = answer["gaps_s"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let gaps = if setting.over_http { measured_by_server } else { own };
        ensure!(number("turns")? as usize == played.turns, "the peer played {} turns", answer["turns"]);
        theirs.add(number("turns")?, number("wall_s")?, number("processor_s")?, &gaps);
    }
    runtime.block_on(world.end());
    let floor = Tokenising { turn_s: median(&turns_s), output_s: median(&outputs_s) };
    Ok(rows(setting, &ours, &theirs, &format!("{}{}", peer.name, setting.note), floor))
}

fn request(setting: &Setting, script: &Script, url: &str, round: usize) -> Value {
    json!({
        "do": "play",
        "model": setting.model,
        "round": format!("{}-{round}", setting.title),
        "rollouts": setting.episodes.0 * setting.episodes.1,
        "workers": setting.at_once,
        "task": script.task,
        "replies": script.replies,
        "observation": script.observation,
        "submit": SUBMIT,
        "agent": script.agent,
        "tokenizer": script.model_dir.join("tokenizer.json"),
        "template": script.model_dir.join("chat_template.jinja"),
        "url": format!("{url}/v1"),
    })
}

fn rows(setting: &Setting, ours: &Side, theirs: &Side, peer_name: &str, floor: Tokenising) -> Vec<Row> {
    let row = |metric: &str, unit: &str, value: &dyn Fn(&Side) -> f64, goal: Goal| {
        let peer = PeerValue { value: value(theirs), name: peer_name };
        Row::new(format!("{}: {metric}", setting.title), unit, value(ours), Some(peer), goal)
    };
    let less = Goal::RatioAtMost(0.1);
    // one episode is never on two cores at once
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(setting.at_once as usize);
    let mut rows = vec![
        row("turns", "1/s", &|side| median(&side.turns_per_s), Goal::RatioAtLeast(10.0))
            .with_limit(cores as f64 / floor.turn_s),
        row("processor time of 1000 turns", "s", &|side| median(&side.processor_s_per_1000_turns), less)
            .with_limit(floor.turn_s * 1000.0),
    ];
    // With many episodes on few cores a turn mostly waits for the others, and how long depends on who is let run first:
    // Python's lock plays episodes almost one after the other, ours go on side by side. Turns a second tell the truth.
    if setting.at_once == 1 {
        let middle = row("added time of a turn, p50", "ms", &|side| median(&side.gaps_ms), less);
        rows.push(middle.with_limit(floor.output_s * 1000.0));
        rows.push(row("added time of a turn, p99", "ms", &|side| quantile(&side.gaps_ms, 0.99), less));
    }
    rows
}
