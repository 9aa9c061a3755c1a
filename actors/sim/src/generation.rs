//! One turn inside a simulated engine: chunk after chunk, held by a pause, ended by an abort, killed by a restart.

use std::time::Duration;

use greenroom_engine::{ApiError, GenerateCall, Generated, LabelSpan};
use greenroom_messages::engine::FinishReason;
use tokio::time::Instant;

use crate::engine::SimulatedEngine;
use crate::policy::Saying;
use crate::weights_file::LoadedWeights;

const CALL: &str = "/generate";
/// Tokens between two looks at the engine's state.
const CHUNK: usize = 16;

/// How a request stands.
enum Standing {
    Gone,
    ToldToEnd,
    Paused,
    Generating(String, LoadedWeights),
}

/// A request in the engine's table; leaves it however its call ends.
struct InTable<'a> {
    engine: &'a SimulatedEngine,
    rid: &'a str,
    incarnation: u64,
}

impl Drop for InTable<'_> {
    fn drop(&mut self) {
        let mut machine = self.engine.machine();
        if machine.incarnation == self.incarnation {
            machine.running.remove(self.rid);
        }
    }
}

impl InTable<'_> {
    fn standing(&self) -> Standing {
        let machine = self.engine.machine();
        if machine.incarnation != self.incarnation {
            return Standing::Gone;
        }
        match (machine.running.get(self.rid), machine.weights) {
            (None, _) => Standing::Gone,
            (Some(true), _) => Standing::ToldToEnd,
            (Some(false), Some(weights)) if !machine.is_paused => Standing::Generating(machine.label.clone(), weights),
            (Some(false), _) => Standing::Paused,
        }
    }
}

/// What was said so far.
#[derive(Default)]
struct Said {
    ids: Vec<u32>,
    spans: Vec<LabelSpan>,
}

impl Said {
    fn extend(&mut self, ids: &[u32], label: &str) {
        let start = self.ids.len() as u32;
        self.ids.extend_from_slice(ids);
        let end = self.ids.len() as u32;
        match self.spans.last_mut() {
            Some(last) if last.label == label => last.end = end,
            _ => self.spans.push(LabelSpan { label: label.to_owned(), start, end }),
        }
    }
}

impl SimulatedEngine {
    /// Runs one turn; `gives_up` ends it after the first chunk.
    pub(crate) async fn run(&self, call: &GenerateCall, gives_up: bool) -> Result<Generated, ApiError> {
        let (table, skill) = self.admit(call)?;
        let saying = self.settings.policy.saying(&call.rid, skill).map_err(|reason| self.refused(CALL, reason))?;
        let limit = saying.ids.len().min(call.sampling.max_new_tokens as usize);
        let chunk_wait = Duration::from_millis(self.settings.token_ms * CHUNK as u64);
        let mut said = Said::default();
        let mut next_chunk = Instant::now() + chunk_wait;
        loop {
            // from here on no change is missed
            let changed = self.changed.notified();
            let (label, weights) = match table.standing() {
                Standing::Gone => return Err(self.lost(CALL)),
                Standing::ToldToEnd => return Ok(self.give_up(call, said)),
                Standing::Paused => {
                    changed.await;
                    next_chunk = Instant::now() + chunk_wait;
                    continue;
                }
                Standing::Generating(label, weights) => (label, weights),
            };
            tokio::select! {
                biased;
                () = changed => continue,
                () = tokio::time::sleep_until(next_chunk) => next_chunk += chunk_wait,
            }
            let from = said.ids.len();
            said.extend(&saying.ids[from..limit.min(from + CHUNK)], &label);
            self.settings.ledger.seen().generated_with.insert((label, weights.content));
            if said.ids.len() >= limit {
                return Ok(self.generated(said, finish(&saying, limit)));
            }
            if gives_up {
                return Ok(self.give_up(call, said));
            }
        }
    }

    fn admit<'a>(&'a self, call: &'a GenerateCall) -> Result<(InTable<'a>, f32), ApiError> {
        let mut machine = self.machine();
        let Some(weights) = machine.weights else { return Err(self.refused(CALL, "no weights are loaded")) };
        if machine.running.insert(call.rid.clone(), false).is_some() {
            return Err(self.refused(CALL, format!("Duplicate request ID {}", call.rid)));
        }
        let incarnation = machine.incarnation;
        drop(machine);
        Ok((InTable { engine: self, rid: &call.rid, incarnation }, weights.skill))
    }

    fn give_up(&self, call: &GenerateCall, said: Said) -> Generated {
        self.settings.policy.gave_up(&call.rid, said.ids.len());
        self.generated(said, FinishReason::Abort)
    }

    fn generated(&self, said: Said, finish: FinishReason) -> Generated {
        let tells_spans = self.settings.version == "0.5.23";
        Generated {
            logprobs: vec![-0.5; said.ids.len()],
            finish,
            weight_version: self.machine().label.clone(),
            spans: if tells_spans { said.spans } else { Vec::new() },
            cached_tokens: 0,
            output_ids: said.ids,
        }
    }
}

fn finish(saying: &Saying, limit: usize) -> FinishReason {
    if saying.ends && saying.ids.len() == limit { FinishReason::Stop } else { FinishReason::Length }
}
