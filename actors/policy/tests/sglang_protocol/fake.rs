//! A generator that follows a script instead of a network, with the rules of the real one about queues, pauses, flushes and
//! updates; and a toy tokenizer of the recorded model's size.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom_policy::GenerationError;
use greenroom_policy::generation::{
    Command, FinishReason, Finished, GeneratedToken, GenerationEvent, GenerationRequest, GeneratorHandle, LoadReport,
    ModelInfo, PauseMode, PromptToken, StopMatch, TokenLogprob, UpdateReport, WeightExcerpt,
};
use greenroom_policy::server::{ChatPrompt, TextCodec};
use serde_json::Value;
use tokio::sync::{mpsc::UnboundedSender, oneshot};

pub const VOCABULARY: usize = 151_936;
pub const CONTEXT: usize = 4096;
pub const END_OF_TURN: u32 = 151_645;
const STEP: Duration = Duration::from_millis(4);

/// What a test can see of the generator from outside.
#[derive(Debug, Default)]
pub struct Seen {
    /// Every prompt that was submitted.
    pub prompts: Mutex<Vec<Vec<u32>>>,
    /// Requests that ended because their caller went away.
    pub abandoned: AtomicU64,
}

struct Live {
    request: GenerationRequest,
    events: UnboundedSender<GenerationEvent>,
    ids: Vec<u32>,
    retractions: u32,
    running: bool,
}

type Reply<T> = oneshot::Sender<Result<T, GenerationError>>;

struct Fake {
    live: Vec<Live>,
    paused: Option<PauseMode>,
    info: ModelInfo,
    updates: Vec<(PathBuf, Option<String>, bool, Reply<UpdateReport>)>,
    generated: u64,
    requests: u64,
    seen: Arc<Seen>,
}

/// Starts the thread.
pub fn generator(model_path: &str) -> (GeneratorHandle, Arc<Seen>) {
    let (handle, commands) = GeneratorHandle::channel();
    let seen = Arc::new(Seen::default());
    let info = ModelInfo {
        model_path: model_path.into(),
        model_type: "qwen3".into(),
        architecture: "Qwen3ForCausalLM".into(),
        vocabulary_size: VOCABULARY,
        context_length: CONTEXT,
        eos_token_ids: vec![END_OF_TURN],
        weight_version: "default".into(),
        parameters: 1000,
        batch_invariant: false,
    };
    let mut fake = Fake {
        live: Vec::new(),
        paused: None,
        info,
        updates: Vec::new(),
        generated: 0,
        requests: 0,
        seen: Arc::clone(&seen),
    };
    std::thread::spawn(move || fake.serve(&commands));
    (handle, seen)
}

impl Fake {
    fn serve(&mut self, commands: &Receiver<Command>) {
        loop {
            self.drop_abandoned();
            let busy = self.paused.is_none() && (!self.live.is_empty() || !self.updates.is_empty());
            let command = if busy {
                commands.recv_timeout(STEP)
            } else {
                commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match command {
                Ok(Command::Shutdown(reply)) => {
                    self.abort(|_| true);
                    let _ = reply.send(Ok(()));
                    return;
                }
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => self.step(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn drop_abandoned(&mut self) {
        let before = self.live.len();
        self.live.retain(|live| !live.events.is_closed());
        self.seen.abandoned.fetch_add((before - self.live.len()) as u64, Ordering::Relaxed);
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(request, events, reply) => {
                let duplicate = self.live.iter().any(|live| live.request.rid == request.rid);
                let answer = if duplicate {
                    Err(GenerationError::DuplicateRequest { rid: request.rid.clone() })
                } else {
                    self.seen.prompts.lock().unwrap().push(request.input_ids.clone());
                    self.requests += 1;
                    self.live.push(Live { request: *request, events, ids: Vec::new(), retractions: 0, running: false });
                    Ok(())
                };
                let _ = reply.send(answer);
            }
            Command::Abort(prefix, reply) => {
                let count = self.abort(|rid| prefix.as_deref().is_none_or(|prefix| rid.starts_with(prefix)));
                let _ = reply.send(Ok(count));
            }
            Command::Pause(mode, reply) => {
                self.paused = Some(mode);
                if mode == PauseMode::Abort {
                    self.abort(|_| true);
                }
                for live in self.live.iter_mut().filter(|live| live.running && mode == PauseMode::Retract) {
                    live.running = false;
                    live.retractions += 1;
                }
                let _ = reply.send(Ok(()));
            }
            Command::Resume(reply) => {
                self.paused = None;
                let _ = reply.send(Ok(()));
            }
            Command::FlushCache(reply) => {
                let running = self.live.iter().filter(|live| live.running).count();
                let waiting = self.live.len() - running;
                let busy = running > 0 || (waiting > 0 && self.paused.is_none());
                let _ = reply.send(if busy { Err(GenerationError::Busy { running, waiting }) } else { Ok(()) });
            }
            Command::UpdateWeights { directory, version, flush_cache, reply } => {
                self.updates.push((directory, version, flush_cache, reply));
                if self.paused.is_some() {
                    self.update();
                }
            }
            Command::SetVersion(version, reply) => {
                self.info.weight_version = version.into();
                let _ = reply.send(Ok(()));
            }
            Command::Loads(reply) => {
                let _ = reply.send(Ok(self.loads()));
            }
            Command::GetWeight { name, rows, reply } => {
                let known = name == "model.norm.weight";
                let values = vec![1.0; rows.min(64)];
                let excerpt = WeightExcerpt { name: name.clone(), shape: vec![values.len()], values };
                let _ = reply.send(if known { Ok(excerpt) } else { Err(GenerationError::UnknownWeight { name }) });
            }
            Command::ModelInfo(reply) => {
                let _ = reply.send(Ok(self.info.clone()));
            }
            _ => {}
        }
    }

    fn loads(&self) -> LoadReport {
        let running = self.live.iter().filter(|live| live.running).count();
        LoadReport {
            running,
            waiting: self.live.len() - running,
            capacity_tokens: 16_384,
            max_running: 2048,
            paused: self.paused.is_some(),
            total_generated_tokens: self.generated,
            total_requests: self.requests,
            ..LoadReport::default()
        }
    }

    fn abort(&mut self, chosen: impl Fn(&str) -> bool) -> usize {
        let (ended, kept): (Vec<Live>, Vec<Live>) = self.live.drain(..).partition(|live| chosen(&live.request.rid));
        self.live = kept;
        for live in &ended {
            self.finish(live, FinishReason::Abort { message: "Aborted".into() });
        }
        ended.len()
    }

    fn update(&mut self) {
        for (directory, version, flush_cache, reply) in self.updates.drain(..) {
            if !directory.join("config.json").is_file() {
                let _ = reply.send(Err(GenerationError::UpdateRefused { reason: "no config.json".into() }));
                continue;
            }
            self.info.model_path = directory;
            if let Some(version) = version {
                self.info.weight_version = version.into();
            }
            let cache_flushed = flush_cache && !self.live.iter().any(|live| live.running);
            let weight_version = Arc::clone(&self.info.weight_version);
            let _ = reply.send(Ok(UpdateReport { tensors: 1, bytes: 4, weight_version, cache_flushed }));
        }
    }

    /// One token for each running request. A pending update lets running requests finish and holds new ones.
    fn step(&mut self) {
        if !self.updates.is_empty() && !self.live.iter().any(|live| live.running) {
            self.update();
        }
        let hold = !self.updates.is_empty();
        let version = Arc::clone(&self.info.weight_version);
        let mut ended = Vec::new();
        for (position, live) in self.live.iter_mut().enumerate().filter(|(_, live)| live.running || !hold) {
            live.running = true;
            let reason = if live.request.params.max_new_tokens == 0 {
                Some(FinishReason::Length { length: 0 })
            } else {
                self.generated += 1;
                live.advance(&version)
            };
            if let Some(reason) = reason {
                ended.push((position, reason));
            }
        }
        for (position, reason) in ended.into_iter().rev() {
            let live = self.live.remove(position);
            self.finish(&live, reason);
        }
    }

    fn finish(&self, live: &Live, reason: FinishReason) {
        let prompt_logprobs = live.request.logprob_start_len.map_or(Vec::new(), |start| {
            let score = |(position, id): (usize, &u32)| PromptToken {
                id: *id,
                logprob: (position > 0).then_some(-1.5),
                top_logprobs: if position > 0 { live.top(*id) } else { Vec::new() },
                requested_logprobs: Vec::new(),
            };
            live.request.input_ids[start..].iter().enumerate().map(score).collect()
        });
        let finished = Finished {
            reason,
            prompt_tokens: live.request.input_ids.len(),
            completion_tokens: live.ids.len(),
            cached_tokens: 0,
            retractions: live.retractions,
            prompt_logprobs,
            weight_version: Arc::clone(&self.info.weight_version),
        };
        let _ = live.events.send(GenerationEvent::Finished(Box::new(finished)));
    }
}

impl Live {
    fn top(&self, id: u32) -> Vec<TokenLogprob> {
        (0..self.request.top_logprobs_num)
            .map(|rank| TokenLogprob { id: id + rank as u32, logprob: -0.5 - rank as f32 })
            .collect()
    }

    /// Samples by the script: a stop token as eleventh, when there is one; an ordinary id otherwise.
    fn advance(&mut self, version: &Arc<str>) -> Option<FinishReason> {
        let params = &self.request.params;
        let stop = params.stop_token_ids.first().filter(|_| self.ids.len() == 10 && !params.ignore_eos);
        let id = stop.copied().unwrap_or(100 + 37 * self.ids.len() as u32);
        self.ids.push(id);
        let token = GeneratedToken {
            id,
            logprob: -0.5,
            top_logprobs: self.top(id),
            requested_logprobs: self
                .request
                .token_ids_logprob
                .iter()
                .map(|id| TokenLogprob { id: *id, logprob: -9.0 })
                .collect(),
            weight_version: Arc::clone(version),
        };
        let _ = self.events.send(GenerationEvent::Tokens(vec![token]));
        let text: String = self.ids.iter().map(|id| word(*id)).collect();
        let matched = params.stop.iter().find(|stop| text.contains(stop.as_str()));
        if stop.is_some() {
            Some(FinishReason::Stop { matched: StopMatch::Token(id) })
        } else if let Some(stop) = matched {
            Some(FinishReason::Stop { matched: StopMatch::Text(stop.clone()) })
        } else {
            (self.ids.len() >= params.max_new_tokens as usize)
                .then_some(FinishReason::Length { length: self.ids.len() })
        }
    }
}

fn word(id: u32) -> String {
    if id == END_OF_TURN { "<|im_end|>".into() } else { format!(" t{id}") }
}

/// Words are tokens.
pub struct Words;

impl TextCodec for Words {
    fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, String> {
        let id = |word: &str| match word.strip_prefix('t').and_then(|number| number.parse().ok()) {
            Some(id) => id,
            None => word.bytes().fold(1000, |hash: u32, byte| (hash * 31 + u32::from(byte)) % 100_000),
        };
        Ok(text.split_whitespace().map(id).collect())
    }

    fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, String> {
        Ok(ids.iter().filter(|id| !skip_special_tokens || **id != END_OF_TURN).map(|id| word(*id)).collect())
    }

    fn render_chat(&self, prompt: &ChatPrompt<'_>) -> Result<String, String> {
        let tools = prompt.tools.map(|tools| Value::from(tools.to_vec()).to_string()).unwrap_or_default();
        let field =
            |message: &Value, name: &str| message.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let turns = prompt
            .messages
            .iter()
            .map(|message| format!(" <{}> {}", field(message, "role"), field(message, "content")));
        Ok(format!(
            "{tools}{}{}",
            turns.collect::<String>(),
            if prompt.add_generation_prompt { " <assistant>" } else { "" }
        ))
    }

    fn maximum_length(&self) -> Option<usize> {
        Some(131_072)
    }
}
