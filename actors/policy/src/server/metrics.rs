//! What the server counts, and `/metrics` in Prometheus' text format under SGLang's family names.
//!
//! Only families that this engine can fill honestly are shown; names, kinds and label names are those of the recorded
//! server. All names of this crate's metrics stand in this file.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::progress::Progress;
use super::state::EngineState;
use crate::generation::{FinishReason, LoadReport};

const LATENCY_BUCKETS_S: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30.0, 60.0, 300.0, 1200.0];

/// A histogram of seconds.
#[derive(Debug, Clone, Default)]
struct Histogram {
    counts: [u64; LATENCY_BUCKETS_S.len()],
    sum: f64,
    count: u64,
}

impl Histogram {
    fn observe(&mut self, seconds: f64, times: u64) {
        for (count, _) in self.counts.iter_mut().zip(LATENCY_BUCKETS_S).filter(|(_, bound)| seconds <= *bound) {
            *count += times;
        }
        self.sum += seconds * times as f64;
        self.count += times;
    }
}

#[derive(Debug, Default)]
struct Counts {
    http_requests: BTreeMap<(String, String), u64>,
    http_active: BTreeMap<(String, String), i64>,
    http_responses: BTreeMap<(String, String, u16), u64>,
    requests: u64,
    aborted: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    end_to_end_latency: Histogram,
    loads_duration: Histogram,
    weight_load: Histogram,
}

/// The server's counters.
#[derive(Debug, Default)]
pub struct Metrics {
    counts: Mutex<Counts>,
}

impl Metrics {
    /// An HTTP request arrived.
    pub fn http_began(&self, endpoint: &str, method: &str) {
        let mut counts = self.counts();
        let key = (endpoint.to_owned(), method.to_owned());
        *counts.http_requests.entry(key.clone()).or_default() += 1;
        *counts.http_active.entry(key).or_default() += 1;
    }

    /// An HTTP request is over; `status` is absent when the client went away first.
    pub fn http_ended(&self, endpoint: &str, method: &str, status: Option<u16>) {
        let mut counts = self.counts();
        *counts.http_active.entry((endpoint.to_owned(), method.to_owned())).or_default() -= 1;
        if let Some(status) = status {
            *counts.http_responses.entry((endpoint.to_owned(), method.to_owned(), status)).or_default() += 1;
        }
    }

    /// A generation ended.
    pub fn request_finished(&self, progress: &Progress) {
        let Some(finished) = &progress.finished else { return };
        let mut counts = self.counts();
        counts.requests += 1;
        counts.aborted += u64::from(matches!(finished.reason, FinishReason::Abort { .. }));
        counts.prompt_tokens += finished.prompt_tokens as u64;
        counts.cached_tokens += finished.cached_tokens as u64;
        counts.generated_tokens += progress.ids.len() as u64;
        if let Some(seconds) = progress.first_token_seconds() {
            counts.time_to_first_token.observe(seconds, 1);
        }
        if let Some((seconds, tokens)) = progress.decode_span() {
            counts.inter_token_latency.observe(seconds / tokens as f64, tokens as u64);
        }
        if let Some(seconds) = progress.total_seconds() {
            counts.end_to_end_latency.observe(seconds, 1);
        }
    }

    /// `/v1/loads` was answered in this time.
    pub fn loads_answered(&self, seconds: f64) {
        self.counts().loads_duration.observe(seconds, 1);
    }

    /// New weights were taken from disk in this time.
    pub fn weights_loaded(&self, seconds: f64) {
        self.counts().weight_load.observe(seconds, 1);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The whole text of `/metrics`.
#[must_use]
pub fn render(state: &EngineState, load: &LoadReport) -> String {
    let served = state.served().served_model_name.clone();
    let name = served.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let tokenizer = format!("engine_type=\"unified\",model_name=\"{name}\"");
    let scheduler = format!("{tokenizer},moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"");
    let with_process =
        format!("{tokenizer},moe_ep_rank=\"0\",pid=\"{}\",pp_rank=\"0\",tp_rank=\"0\"", std::process::id());
    let mut text = Exposition::default();
    scheduler_gauges(&mut text, state, load, &scheduler);
    text.single(
        "num_retracted_reqs",
        "gauge",
        "Requests waiting after a retraction.",
        &with_process,
        load.retracted as f64,
    );
    let paused = if load.paused { load.waiting } else { 0 };
    text.single("num_paused_reqs", "gauge", "Requests held by a pause.", &with_process, paused as f64);
    let counts = state.metrics.counts();
    let counters = [
        ("prompt_tokens_total", "Prompt tokens processed.", counts.prompt_tokens),
        ("generation_tokens_total", "Tokens sampled.", counts.generated_tokens),
        ("num_requests_total", "Requests that ended.", counts.requests),
        ("num_aborted_requests_total", "Requests that ended by an abort.", counts.aborted),
    ];
    for (family, help, value) in counters {
        text.single(family, "counter", help, &tokenizer, value as f64);
    }
    let cached = format!("cache_source=\"device\",{tokenizer}");
    text.single(
        "cached_tokens_total",
        "counter",
        "Prompt tokens served by the prefix cache.",
        &cached,
        counts.cached_tokens as f64,
    );
    text.single("num_retracted_requests_total", "counter", "Retractions.", &scheduler, load.total_retractions as f64);
    text.histogram(
        "time_to_first_token_seconds",
        "From arrival to the first token.",
        &tokenizer,
        &counts.time_to_first_token,
    );
    text.histogram("inter_token_latency_seconds", "Between two tokens.", &tokenizer, &counts.inter_token_latency);
    text.histogram("e2e_request_latency_seconds", "From arrival to the end.", &tokenizer, &counts.end_to_end_latency);
    text.histogram("get_loads_duration_seconds", "Time to answer /v1/loads.", &tokenizer, &counts.loads_duration);
    let disk = format!("{tokenizer},source=\"disk\"");
    text.histogram("weight_load_duration_seconds", "Time of a change of weights.", &disk, &counts.weight_load);
    http_families(&mut text, &counts);
    text.0
}

fn scheduler_gauges(text: &mut Exposition, state: &EngineState, load: &LoadReport, labels: &str) {
    let capacity = load.capacity_tokens as f64;
    let usage = if load.capacity_tokens == 0 { 0.0 } else { load.used_tokens as f64 / capacity };
    let utilization = if load.max_running == 0 { 0.0 } else { load.running as f64 / load.max_running as f64 };
    let available = load.capacity_tokens.saturating_sub(load.used_tokens + load.cached_tokens) as f64;
    let gauges = [
        ("num_running_reqs", "Requests being decoded.", load.running as f64),
        ("num_queue_reqs", "Requests waiting.", load.waiting as f64),
        ("token_usage", "Part of the token capacity in use.", usage),
        ("full_token_usage", "Part of the token capacity in use.", usage),
        ("num_used_tokens", "Tokens held for running requests.", load.used_tokens as f64),
        ("kv_used_tokens", "Tokens held for running requests.", load.used_tokens as f64),
        ("kv_available_tokens", "Free tokens.", available),
        ("kv_evictable_tokens", "Tokens held by the prefix cache only.", load.cached_tokens as f64),
        ("max_total_num_tokens", "Token capacity.", capacity),
        ("cache_hit_rate", "Part of prompt tokens served by the prefix cache.", load.cache_hit_rate),
        ("gen_throughput", "Tokens sampled a second.", load.throughput_tokens_per_s),
        ("utilization", "Part of the places for running requests in use.", utilization),
        ("new_token_ratio", "Share of wanted tokens reserved ahead.", 1.0),
        ("context_len", "Context length.", state.facts.context_length as f64),
        ("page_size", "Tokens a page.", 1.0),
        ("num_pages", "Pages.", capacity),
    ];
    for (family, help, value) in gauges {
        text.single(family, "gauge", help, labels, value);
    }
}

fn http_families(text: &mut Exposition, counts: &Counts) {
    text.head("http_requests_active", "gauge", "HTTP requests being answered.");
    for ((endpoint, method), active) in &counts.http_active {
        text.sample("http_requests_active", &format!("endpoint=\"{endpoint}\",method=\"{method}\""), *active as f64);
    }
    text.head("http_requests_total", "counter", "HTTP requests.");
    for ((endpoint, method), count) in &counts.http_requests {
        text.sample("http_requests_total", &format!("endpoint=\"{endpoint}\",method=\"{method}\""), *count as f64);
    }
    text.head("http_responses_total", "counter", "HTTP responses.");
    for ((endpoint, method, status), count) in &counts.http_responses {
        let labels = format!("endpoint=\"{endpoint}\",method=\"{method}\",status_code=\"{status}\"");
        text.sample("http_responses_total", &labels, *count as f64);
    }
}

/// Text in the making.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn head(&mut self, family: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP sglang:{family} {help}\n# TYPE sglang:{family} {kind}");
    }

    fn sample(&mut self, series: &str, labels: &str, value: f64) {
        let _ = writeln!(self.0, "sglang:{series}{{{labels}}} {value:?}");
    }

    fn single(&mut self, family: &str, kind: &str, help: &str, labels: &str, value: f64) {
        self.head(family, kind, help);
        self.sample(family, labels, value);
    }

    fn histogram(&mut self, family: &str, help: &str, labels: &str, histogram: &Histogram) {
        self.head(family, "histogram", help);
        for (bound, count) in LATENCY_BUCKETS_S.iter().zip(histogram.counts) {
            self.sample(&format!("{family}_bucket"), &format!("{labels},le=\"{bound:?}\""), count as f64);
        }
        self.sample(&format!("{family}_bucket"), &format!("{labels},le=\"+Inf\""), histogram.count as f64);
        self.sample(&format!("{family}_sum"), labels, histogram.sum);
        self.sample(&format!("{family}_count"), labels, histogram.count as f64);
    }
}
