//! What every episode of the bench says and sees: the same for ours and for the peer.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use greenroom_tokens::{ChatTemplate, Tokenizer};

use crate::measure::{Stopwatch, median};
use crate::result::home;

/// Model calls of an episode; the last one submits.
pub const TURNS: usize = 10;
/// Tokens of the task's text; the agent's own instructions come on top.
const TASK_TOKENS: usize = 2000;
/// What each command prints.
const OBSERVATION_BYTES: usize = 800;
/// The command that ends an episode.
pub const SUBMIT: &str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

/// The course of each episode.
#[derive(Clone, Debug)]
pub struct Script {
    /// The tokenizer that counts.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template.
    pub template: Arc<ChatTemplate>,
    /// Where those two are.
    pub model_dir: PathBuf,
    /// The agent's file.
    pub agent: PathBuf,
    /// The task.
    pub task: String,
    /// One reply a turn.
    pub replies: Vec<String>,
    /// The same as token ids, with the token that ends a turn.
    pub reply_ids: Vec<Vec<u32>>,
    /// What a command prints.
    pub observation: String,
}

impl Script {
    /// Reads tokenizer and template and makes the texts.
    pub fn new() -> anyhow::Result<Self> {
        let root = home().join("..");
        let model_dir = root.join("tests/fixtures/tokens/tiny");
        let tokenizer = Tokenizer::from_dir(&model_dir)?;
        let template = ChatTemplate::from_dir(&model_dir)?;
        let end = tokenizer.eos_id().context("the tokenizer has no token that ends a turn")?;
        let mut task = String::new();
        while tokenizer.encode(&task, false)?.len() < TASK_TOKENS {
            let number = task.len();
            task.push_str(&format!(
                "Function f{number} returns the wrong value for {number}; the others rely on it.\n"
            ));
        }
        let mut observation = String::new();
        while observation.len() < OBSERVATION_BYTES {
            let line = observation.len();
            observation.push_str(&format!("{line:4}  def f{line}(value): return value + {line}\n"));
        }
        let reply = |turn: usize| {
            let command = match turn + 1 {
                TURNS => SUBMIT.to_owned(),
                _ => format!("sed -n '{turn}0,{turn}9p' functions.py && python -m unittest -q tests.test_{turn}"),
            };
            format!(
                "THOUGHT: step {turn}: look at the lines that matter and run their test before changing them.\n\n```mswea_bash_command\n{command}\n```"
            )
        };
        let replies: Vec<String> = (0..TURNS).map(reply).collect();
        let mut reply_ids = Vec::new();
        for reply in &replies {
            let mut ids = tokenizer.encode(reply, false)?;
            ids.push(end);
            reply_ids.push(ids);
        }
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            template: Arc::new(template),
            agent: root.join("config/agent/default.yaml"),
            model_dir,
            task,
            replies,
            reply_ids,
            observation,
        })
    }

    /// What tokenising alone costs: the task once and each command's output once, on one thread. Gives the processor
    /// time of a turn, and how long a single output takes, in seconds.
    pub fn tokenising(&self) -> anyhow::Result<Tokenising> {
        const TIMES: usize = 5;
        let mut outputs_s = Vec::new();
        let all = Stopwatch::start();
        for _ in 0..TIMES {
            self.tokenizer.encode(&self.task, false)?;
            for _ in 1..TURNS {
                let one = Stopwatch::start();
                self.tokenizer.encode(&self.observation, false)?;
                outputs_s.push(one.cost().wall_s);
            }
        }
        let turn_s = all.cost().processor_s / (TIMES * TURNS) as f64;
        Ok(Tokenising { turn_s, output_s: median(&outputs_s) })
    }
}

/// The cost of tokenising alone, seconds.
#[derive(Clone, Copy, Debug)]
pub struct Tokenising {
    /// Processor time of a turn.
    pub turn_s: f64,
    /// Wall time of one command's output.
    pub output_s: f64,
}
