//! The scripted policy: looks, solves with the probability that its weights hold, submits; makes a mistake now and then.
//!
//! A turn's reply depends on the turn, the seed and the weights with which the turn began. A turn that an engine gave up
//! goes on where it was, at whatever engine, as a continued prompt would.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use greenroom_core::Seed;
use greenroom_tokens::Tokenizer;
use rand::Rng;

/// What is left to be said of a turn.
#[derive(Clone, Debug)]
pub(crate) struct Saying {
    /// The token ids, the end of the turn included where there is one.
    pub(crate) ids: Vec<u32>,
    /// Whether the turn ends by itself after them.
    pub(crate) ends: bool,
}

/// The policy of all engines.
#[derive(Debug)]
pub(crate) struct Policy {
    tokenizer: Arc<Tokenizer>,
    seed: Seed,
    under_way: Mutex<BTreeMap<String, Saying>>,
}

impl Policy {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, seed: Seed) -> Self {
        Self { tokenizer, seed, under_way: Mutex::default() }
    }

    /// What a request is answered with: from the beginning, or from where its turn was given up.
    pub(crate) fn saying(&self, rid: &str, skill: f32) -> Result<Saying, String> {
        let (turn, continuation) = rid.rsplit_once("-c").ok_or_else(|| format!("{rid} names no continuation"))?;
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if continuation != "00"
            && let Some(saying) = under_way.get(turn)
        {
            return Ok(saying.clone());
        }
        let saying = self.begin(turn, skill)?;
        under_way.insert(turn.to_owned(), saying.clone());
        Ok(saying)
    }

    /// So many tokens of this request's answer reached the asker, and the turn is not over.
    pub(crate) fn gave_up(&self, rid: &str, tokens: usize) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((turn, _)) = rid.rsplit_once("-c")
            && let Some(saying) = under_way.get_mut(turn)
        {
            saying.ids.drain(..tokens.min(saying.ids.len()));
        }
    }

    fn begin(&self, turn: &str, skill: f32) -> Result<Saying, String> {
        let number = turn.rsplit_once("-t").and_then(|(_, number)| number.parse::<u64>().ok());
        let number = number.ok_or_else(|| format!("{turn} names no turn"))?;
        let mut random = self.seed.child(turn).random();
        let solves = random.random_bool(f64::from(skill).clamp(0.0, 1.0));
        let (text, ends) = match random.random_range(0..40_u32) {
            0 => ("I wonder what to do next.".to_owned(), true),
            1 => (format!("THOUGHT: {}", "hm, and then again ".repeat(60)), false),
            2 => (action("loop"), true),
            _ if number == 0 => (action("look"), true),
            _ if number == 1 => (action(if solves { "solve right" } else { "solve wrong" }), true),
            _ => (action("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"), true),
        };
        let mut ids = self.tokenizer.encode(&text, false).map_err(|error| error.to_string())?;
        if ends {
            ids.extend(self.tokenizer.eos_id());
        }
        Ok(Saying { ids, ends })
    }
}

fn action(command: &str) -> String {
    format!("THOUGHT: so.\n\n```mswea_bash_command\n{command}\n```")
}
