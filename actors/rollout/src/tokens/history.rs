//! The history of one rollout as token ids; see the module's page.

use std::sync::Arc;

use greenroom_messages::engine::VersionSpan;
use greenroom_messages::rollout::Sample;
use greenroom_tokens::{ChatTemplate, Tokenizer, TokensError};
use serde_json::{Map, Value};

use super::line::Line;

/// The token ids of a rollout's turns.
#[derive(Clone, Debug)]
pub struct History {
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    variables: Map<String, Value>,
    train_failed_replies: bool,
    live: Option<Live>,
    finished: Vec<Sample>,
    forks: u32,
}

/// The line that grows, with what was rendered for its last prompt.
#[derive(Clone, Debug)]
struct Live {
    line: Line,
    messages: Vec<Value>,
    /// The rendering of `messages` with the generation prompt: exactly what the line's text is before the reply.
    prompt_text: String,
    /// Length of the line's prompt without the generation prompt, where that is a boundary between tokens.
    base_tokens: Option<usize>,
    /// Length of the line's prompt.
    prompt_tokens: usize,
    reply_text: String,
    /// The end-of-turn token, where the policy sampled one.
    closing_token: Option<u32>,
}

/// A prompt to be sent to an engine. Nothing of the history changes until its reply is recorded.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The token ids.
    pub ids: Vec<u32>,
    messages: Vec<Value>,
    text: String,
    base_tokens: Option<usize>,
    step: Step,
}

/// How a prompt continues the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The first prompt, or one that does not extend what was there.
    Begin { is_fork: bool },
    /// The reply was kept and this follows it.
    Extend,
    /// The reply was dropped; this follows what was before it, which has so many tokens.
    DropReply { base_tokens: usize },
}

/// What an engine sampled for a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledReply {
    /// The ids, the end-of-turn token included when one was sampled.
    pub ids: Vec<u32>,
    /// Their log-probabilities, in nats.
    pub logprobs: Vec<f32>,
    /// Which weights made which of them.
    pub versions: Vec<VersionSpan>,
}

fn is_reply(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
}

impl Live {
    /// Whether these messages go on as if the reply had never been.
    fn was_dropped_by(&self, messages: &[Value]) -> bool {
        let new = messages.strip_prefix(self.messages.as_slice());
        new.is_some_and(|new| !new.first().is_some_and(is_reply))
    }
}

impl History {
    /// An empty history. `variables` are further variables of the chat template; `train_failed_replies` says whether
    /// dropped replies become samples.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        template: Arc<ChatTemplate>,
        variables: Map<String, Value>,
        train_failed_replies: bool,
    ) -> Self {
        Self { tokenizer, template, variables, train_failed_replies, live: None, finished: Vec::new(), forks: 0 }
    }

    /// The prompt for these messages, which are all messages of the episode so far.
    pub fn prompt(&self, messages: &[Value]) -> Result<Prompt, TokensError> {
        let text = self.render(messages, true)?;
        let continued = match &self.live {
            Some(live) => self.continuation(live, messages, &text)?,
            None => None,
        };
        let (mut ids, extension, step) = match continued {
            Some((ids, extension, step)) => (ids, extension, step),
            None => (Vec::new(), text.clone(), Step::Begin { is_fork: self.live.is_some() }),
        };
        let mut extension_ids = self.tokenizer.encode(&extension, false)?;
        if step == Step::Extend
            && let Some(live) = &self.live
            && live.closing_token.is_some_and(|closing| extension_ids.first() == Some(&closing))
        {
            // The policy sampled the token that closes its turn; the template must not write it a second time.
            extension_ids.remove(0);
        }
        ids.append(&mut extension_ids);
        let base_tokens = self.base_tokens(messages, &text, &ids)?;
        Ok(Prompt { ids, messages: messages.to_vec(), text, base_tokens, step })
    }

    /// The ids that are kept, the text to be added to them, and how; `None` when the history cannot be extended.
    fn continuation(
        &self,
        live: &Live,
        messages: &[Value],
        text: &str,
    ) -> Result<Option<(Vec<u32>, String, Step)>, TokensError> {
        let Some(new) = messages.strip_prefix(live.messages.as_slice()) else { return Ok(None) };
        if new.first().is_some_and(is_reply) {
            let is_unchanged = new[0].get("content").and_then(Value::as_str) == Some(live.reply_text.as_str());
            let after = text.strip_prefix(&live.prompt_text).and_then(|text| text.strip_prefix(&live.reply_text));
            let extension = after.filter(|_| is_unchanged && new.len() > 1);
            return Ok(extension.map(|text| (live.line.ids().to_vec(), text.to_owned(), Step::Extend)));
        }
        let Some(base_tokens) = live.base_tokens else { return Ok(None) };
        let before = self.render(&live.messages, false)?;
        let extension = text.strip_prefix(&before);
        let kept = live.line.ids()[..base_tokens].to_vec();
        Ok(extension.map(|text| (kept, text.to_owned(), Step::DropReply { base_tokens })))
    }

    /// Where in `ids` the generation prompt begins, if a token begins there.
    fn base_tokens(&self, messages: &[Value], text: &str, ids: &[u32]) -> Result<Option<usize>, TokensError> {
        let without = self.render(messages, false)?;
        let Some(generation) = text.strip_prefix(&without) else { return Ok(None) };
        let generation_ids = self.tokenizer.encode(generation, false)?;
        Ok(ids.ends_with(&generation_ids).then(|| ids.len() - generation_ids.len()))
    }

    fn render(&self, messages: &[Value], add_generation_prompt: bool) -> Result<String, TokensError> {
        self.template.render_with(messages, add_generation_prompt, None, &self.variables)
    }

    /// Records what was sampled for a prompt and gives its text, without the token that ended it.
    pub fn record(&mut self, prompt: Prompt, reply: &SampledReply) -> Result<String, TokensError> {
        debug_assert_eq!(reply.ids.len(), reply.logprobs.len(), "one log-probability for each sampled token");
        let text = self.tokenizer.decode(self.without_end(&reply.ids), true)?;
        let previous = self.live.take();
        let mut line = match (prompt.step, previous) {
            (Step::Extend, Some(live)) => live.line,
            (Step::DropReply { base_tokens }, Some(live)) => {
                self.finish_dead_branch(&live);
                live.line.cut(base_tokens)
            }
            (Step::Begin { is_fork }, Some(live)) => {
                self.forks += u32::from(is_fork);
                let trunk = if live.was_dropped_by(&prompt.messages) {
                    self.finish_dead_branch(&live);
                    live.line.cut(live.prompt_tokens)
                } else {
                    live.line
                };
                self.finished.extend(trunk.into_sample());
                Line::default()
            }
            (_, None) => Line::default(),
        };
        let kept = line.len();
        line.extend_masked(&prompt.ids[kept..]);
        let prompt_tokens = line.len();
        line.extend_sampled(&reply.ids, &reply.logprobs, &reply.versions);
        self.live = Some(Live {
            line,
            messages: prompt.messages,
            prompt_text: prompt.text,
            base_tokens: prompt.base_tokens,
            prompt_tokens,
            reply_text: text.clone(),
            closing_token: reply.ids.last().copied().filter(|last| self.ends_turn(*last)),
        });
        Ok(text)
    }

    /// The agent dropped the last reply and there is no further prompt: the reply leaves the main line.
    pub fn drop_reply(&mut self) {
        let Some(live) = self.live.take() else { return };
        self.finish_dead_branch(&live);
        let line = live.line.cut(live.prompt_tokens);
        self.live = Some(Live { line, reply_text: String::new(), closing_token: None, ..live });
    }

    /// A reply without a future: everything before it is context, already trained on in the main line.
    fn finish_dead_branch(&mut self, live: &Live) {
        let has_reply = live.line.len() > live.prompt_tokens;
        if !self.train_failed_replies || !has_reply {
            return;
        }
        let mut branch = live.line.cut(live.prompt_tokens).masked();
        branch.append_tail(&live.line, live.prompt_tokens);
        self.finished.extend(branch.into_sample());
        self.forks += 1;
    }

    fn without_end<'ids>(&self, ids: &'ids [u32]) -> &'ids [u32] {
        match ids.split_last() {
            Some((last, rest)) if self.ends_turn(*last) => rest,
            _ => ids,
        }
    }

    fn ends_turn(&self, id: u32) -> bool {
        self.tokenizer.end_of_turn_ids().contains(&id)
    }

    /// How often the history could not be extended and a new sample was begun.
    pub fn forks(&self) -> u32 {
        self.forks
    }

    /// The samples, in the order in which they were finished.
    pub fn into_samples(self) -> Vec<Sample> {
        let mut samples = self.finished;
        samples.extend(self.live.and_then(|live| live.line.into_sample()));
        samples
    }
}
