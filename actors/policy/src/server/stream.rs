//! Server-sent events: chunks of `/generate` and the frame that all streams share.
//!
//! A stream is `data: {json}` events and ends with `data: [DONE]`. An error after the headers is an event, followed by the
//! end. When the client goes away the body is dropped, with it the requests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures::stream::{self, BoxStream, Stream, StreamExt};
use serde_json::Value;

use super::error::ApiError;
use super::running::Running;
use super::state::EngineState;

/// Turns what a request has produced into events.
pub trait Chunks: Send + 'static {
    /// Events for the state after an advance; called once more when the request has ended.
    fn events(&mut self, state: &EngineState, running: &mut Running) -> Vec<Value>;
}

/// The events of one request, then nothing.
fn follow(state: Arc<EngineState>, running: Running, chunks: impl Chunks) -> BoxStream<'static, Value> {
    let start = (state, Some(running), chunks, VecDeque::new());
    stream::unfold(start, |(state, mut running, mut chunks, mut pending)| async move {
        loop {
            if let Some(event) = pending.pop_front() {
                return Some((event, (state, running, chunks, pending)));
            }
            let mut current = running.take()?;
            match current.advance(&state).await {
                Ok(()) => {
                    pending.extend(chunks.events(&state, &mut current));
                    running = current.progress.finished.is_none().then_some(current);
                }
                Err(error) => pending.push_back(error.stream_event()),
            }
        }
    })
    .boxed()
}

/// The events of several requests as they come, then those of `last`.
pub fn merged<C: Chunks>(
    state: &Arc<EngineState>,
    requests: Vec<(Running, C)>,
    last: impl Stream<Item = Value> + Send + 'static,
) -> Response {
    let streams = requests.into_iter().map(|(running, chunks)| follow(Arc::clone(state), running, chunks));
    response(stream::select_all(streams).chain(last))
}

/// A stream that only tells of an error.
#[must_use]
pub fn failed(error: &ApiError) -> Response {
    let event = error.stream_event();
    response(stream::once(async move { event }))
}

/// Cumulative chunks of `/generate`; batched ones carry their index.
#[must_use]
pub fn generate(state: Arc<EngineState>, running: Vec<Running>, is_batch: bool) -> Response {
    let indexed =
        running.into_iter().enumerate().map(|(index, one)| (one, GenerateChunks { index: is_batch.then_some(index) }));
    merged(&state, indexed.collect(), stream::empty())
}

struct GenerateChunks {
    index: Option<usize>,
}

impl Chunks for GenerateChunks {
    fn events(&mut self, state: &EngineState, running: &mut Running) -> Vec<Value> {
        let mut answer = running.progress.answer(state.text.as_ref(), &state.timeline);
        if let (Some(index), Some(fields)) = (self.index, answer.as_object_mut()) {
            fields.insert("index".to_owned(), Value::from(index));
        }
        vec![answer]
    }
}

fn response(events: impl Stream<Item = Value> + Send + 'static) -> Response {
    let frames = events.map(|event| format!("data: {event}\n\n"));
    let done = stream::once(async { "data: [DONE]\n\n".to_owned() });
    let bytes = frames.chain(done).map(|frame| Ok::<Bytes, Infallible>(Bytes::from(frame)));
    let mut response = Response::new(Body::from_stream(bytes));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    response
}
