//! What one request has produced so far, and the `meta_info` that reports it.
//!
//! Chunks of a stream are cumulative, so every report is made from the whole output. The keys and their order are those of
//! the recorded server; a test compares them. Times that the generator does not report are taken where the server sees
//! them: a request is taken as queued until the generator accepted it, as prefilled when its first token arrives.

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::text::{GrowingText, TextCodec};
use super::timeline::Timeline;
use crate::generation::{FinishReason, Finished, GeneratedToken, StopMatch, TokenLogprob};

/// What the caller wants to see of a request.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Logprob lists at all.
    pub logprobs: bool,
    /// Lists of the most likely tokens.
    pub top_logprobs: bool,
    /// Lists of chosen ids.
    pub requested_logprobs: bool,
    /// Token texts in the logprob triples.
    pub text_in_logprobs: bool,
    /// The prompt's ids in the answer.
    pub prompt_token_ids: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Keep the stop string or token in the text.
    pub no_stop_trim: bool,
}

/// The output of one request so far.
#[derive(Debug)]
pub struct Progress {
    /// The request id.
    pub rid: String,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// What the caller wants to see.
    pub wanted: Wanted,
    /// Sampled tokens.
    pub tokens: Vec<GeneratedToken>,
    /// Their ids.
    pub ids: Vec<u32>,
    /// The end, once it came.
    pub finished: Option<Finished>,
    cached_tokens: usize,
    received: Instant,
    accepted: Instant,
    first_token: Option<Instant>,
    ended: Option<Instant>,
    first_sent: Option<Instant>,
    streamed: bool,
    growing: GrowingText,
}

impl Progress {
    /// Of a request that arrived at `received` and was accepted by the generator now. Of an unstreamed one the generator
    /// announces tokens only at the end, so that the time of its first token is unknown.
    #[must_use]
    pub fn new(rid: String, prompt: Vec<u32>, wanted: Wanted, received: Instant, streamed: bool) -> Self {
        Self {
            rid,
            prompt,
            wanted,
            tokens: Vec::new(),
            ids: Vec::new(),
            finished: None,
            cached_tokens: 0,
            received,
            accepted: Instant::now(),
            first_token: None,
            ended: None,
            first_sent: None,
            streamed,
            growing: GrowingText::default(),
        }
    }

    /// Adds new tokens.
    pub fn extend(&mut self, tokens: Vec<GeneratedToken>) {
        self.first_token.get_or_insert_with(Instant::now);
        self.ids.extend(tokens.iter().map(|token| token.id));
        self.tokens.extend(tokens);
    }

    /// Notes how many of its prompt's tokens came from the cache.
    pub fn start(&mut self, cached_tokens: usize) {
        self.cached_tokens = cached_tokens;
    }

    /// Notes the end.
    pub fn finish(&mut self, finished: Finished) {
        self.cached_tokens = finished.cached_tokens;
        self.ended = Some(Instant::now());
        self.finished = Some(finished);
    }

    /// Seconds from arrival to the first token, if that is known.
    #[must_use]
    pub fn first_token_seconds(&self) -> Option<f64> {
        self.first_token.filter(|_| self.streamed).map(|moment| moment.duration_since(self.received).as_secs_f64())
    }

    /// Seconds from arrival to the end.
    #[must_use]
    pub fn total_seconds(&self) -> Option<f64> {
        self.ended.map(|moment| moment.duration_since(self.received).as_secs_f64())
    }

    /// Seconds from the first token (of an unstreamed request: from acceptance) to the last, and how many tokens came in it.
    #[must_use]
    pub fn decode_span(&self) -> Option<(f64, usize)> {
        let (first, ended) = (if self.streamed { self.first_token? } else { self.accepted }, self.ended?);
        (self.ids.len() > 1).then(|| (ended.duration_since(first).as_secs_f64(), self.ids.len() - 1))
    }

    /// The text so far; complete and trimmed once the request has ended.
    pub fn text(&mut self, codec: &dyn TextCodec) -> String {
        let skip = self.wanted.skip_special_tokens;
        match self.finished.as_ref().map(|finished| finished.reason.clone()) {
            None => self.growing.visible(codec, &self.ids, skip, false),
            Some(reason) => {
                let matched = match &reason {
                    FinishReason::Stop { matched } if !self.wanted.no_stop_trim => Some(matched),
                    _ => None,
                };
                let kept = match matched {
                    Some(StopMatch::Token(id)) if self.ids.last() == Some(id) => self.ids.len() - 1,
                    _ => self.ids.len(),
                };
                let mut text = codec.decode(&self.ids[..kept], skip).unwrap_or_default();
                if let Some(StopMatch::Text(stop)) = matched
                    && let Some(position) = text.find(stop.as_str())
                {
                    text.truncate(position);
                }
                text
            }
        }
    }

    /// `finish_reason` in SGLang's shape; `null` while running.
    #[must_use]
    pub fn finish_reason(&self) -> Value {
        match self.finished.as_ref().map(|finished| &finished.reason) {
            None => Value::Null,
            Some(FinishReason::Length { length }) => json!({"type": "length", "length": length}),
            Some(FinishReason::Stop { matched: StopMatch::Token(id) }) => json!({"type": "stop", "matched": id}),
            Some(FinishReason::Stop { matched: StopMatch::Text(text) }) => json!({"type": "stop", "matched": text}),
            Some(FinishReason::Abort { message }) => {
                json!({"type": "abort", "message": message, "status_code": null, "err_type": null})
            }
        }
    }

    /// Spans of output tokens with the version that produced them.
    #[must_use]
    pub fn weight_versions(&self) -> Value {
        let mut spans: Vec<(String, usize, usize)> = Vec::new();
        for (position, token) in self.tokens.iter().enumerate() {
            match spans.last_mut() {
                Some((version, _, end)) if **version == *token.weight_version => *end = position + 1,
                _ => spans.push((token.weight_version.to_string(), position, position + 1)),
            }
        }
        if spans.is_empty() {
            spans.push((self.weight_version(), 0, 0));
        }
        spans.into_iter().map(|(version, start, end)| json!({"version": version, "start": start, "end": end})).collect()
    }

    /// The version that produced the last token.
    #[must_use]
    pub fn weight_version(&self) -> String {
        let last = self.tokens.last().map(|token| &token.weight_version);
        last.or_else(|| self.finished.as_ref().map(|finished| &finished.weight_version))
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    /// The answer to `/generate`: text, ids and `meta_info`.
    pub fn answer(&mut self, codec: &dyn TextCodec, timeline: &Timeline) -> Value {
        let mut answer = Map::new();
        answer.insert("text".to_owned(), Value::from(self.text(codec)));
        answer.insert("output_ids".to_owned(), Value::from(self.ids.clone()));
        if self.wanted.prompt_token_ids {
            answer.insert("prompt_token_ids".to_owned(), Value::from(self.prompt.clone()));
        }
        answer.insert("meta_info".to_owned(), self.meta_info(codec, timeline));
        Value::Object(answer)
    }

    /// The native block of facts about the request.
    pub fn meta_info(&mut self, codec: &dyn TextCodec, timeline: &Timeline) -> Value {
        let cached = self.cached_tokens;
        let retractions = self.finished.as_ref().map_or(0, |finished| finished.retractions);
        let mut meta = Map::new();
        let mut put = |key: &str, value: Value| {
            meta.insert(key.to_owned(), value);
        };
        put("id", Value::from(self.rid.as_str()));
        put("finish_reason", self.finish_reason());
        put("prompt_tokens", Value::from(self.prompt.len()));
        put("weight_version", Value::from(self.weight_version()));
        put("num_retractions", Value::from(retractions));
        put("storage_prefetch_wait", Value::from(0.0));
        put("storage_staging_wait", Value::from(0.0));
        put("forward_entry_time", Value::from(timeline.date(self.accepted)));
        put(
            "prefill_finished_time",
            Value::from(timeline.date(self.first_token.or(self.ended).unwrap_or(self.accepted))),
        );
        put("queue_time", Value::from(self.accepted.duration_since(self.received).as_secs_f64()));
        if self.wanted.logprobs {
            self.put_logprobs(codec, &mut put);
        }
        put("reasoning_tokens", Value::from(0));
        put("completion_tokens", Value::from(self.ids.len()));
        put("cached_tokens", Value::from(cached));
        if self.finished.is_some() {
            put("weight_versions", self.weight_versions());
        }
        put("cached_tokens_details", if cached == 0 { Value::Null } else { json!({"device": cached, "host": 0}) });
        put("dp_rank", Value::Null);
        if let Some(ended) = self.ended {
            put("e2e_latency", Value::from(ended.duration_since(self.received).as_secs_f64()));
            put("request_received_ts", Value::from(timeline.date(self.received)));
            put(
                "first_token_latency",
                Value::from(self.first_token.unwrap_or(ended).duration_since(self.received).as_secs_f64()),
            );
            put("api_server_dispatch_finish_ts", Value::from(timeline.date(self.accepted)));
            put("request_finished_ts", Value::from(timeline.date(ended)));
            if let Some((seconds, tokens)) = self.decode_span() {
                put("decode_throughput", Value::from(tokens as f64 / seconds.max(1e-9)));
            }
        }
        let first = self.first_sent.is_none();
        let sent = *self.first_sent.get_or_insert_with(Instant::now);
        if self.finished.is_some() || (self.streamed && first) {
            put("response_sent_to_client_ts", Value::from(timeline.date(sent)));
        }
        Value::Object(meta)
    }

    fn put_logprobs(&self, codec: &dyn TextCodec, put: &mut impl FnMut(&str, Value)) {
        let prompt = self.finished.as_ref().map(|finished| finished.prompt_logprobs.as_slice()).unwrap_or_default();
        let triple = |logprob: Option<f32>, id: u32| triple(logprob, id, self.wanted.text_in_logprobs.then_some(codec));
        let list = |entries: &[TokenLogprob]| -> Value {
            entries.iter().map(|entry| triple(Some(entry.logprob), entry.id)).collect()
        };
        put("input_token_logprobs", prompt.iter().map(|token| triple(token.logprob, token.id)).collect());
        put("output_token_logprobs", self.tokens.iter().map(|token| triple(Some(token.logprob), token.id)).collect());
        put("output_token_logprobs_length", Value::from(self.tokens.len()));
        let of_prompt = |scored: bool, entries: &[TokenLogprob]| if scored { list(entries) } else { Value::Null };
        if self.wanted.top_logprobs {
            put(
                "input_top_logprobs",
                prompt.iter().map(|token| of_prompt(token.logprob.is_some(), &token.top_logprobs)).collect(),
            );
            put("output_top_logprobs", self.tokens.iter().map(|token| list(&token.top_logprobs)).collect());
        }
        if self.wanted.requested_logprobs {
            let rows = prompt.iter().map(|token| of_prompt(token.logprob.is_some(), &token.requested_logprobs));
            put("input_token_ids_logprobs", rows.collect());
            put("output_token_ids_logprobs", self.tokens.iter().map(|token| list(&token.requested_logprobs)).collect());
        }
    }
}

/// `[logprob, id, text]` as SGLang writes it: an f32 printed as the f64 it equals, `null` for what is unknown.
fn triple(logprob: Option<f32>, id: u32, codec: Option<&dyn TextCodec>) -> Value {
    let text = codec.map(|codec| codec.decode(&[id], false).unwrap_or_default());
    Value::Array(vec![logprob_value(logprob), Value::from(id), text.map_or(Value::Null, Value::from)])
}

/// A logprob as JSON; `null` when unknown or not finite.
#[must_use]
pub fn logprob_value(logprob: Option<f32>) -> Value {
    logprob.map_or(Value::Null, |logprob| Value::from(f64::from(logprob)))
}
