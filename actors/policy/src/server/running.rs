//! One request on its way through the generator: submitted, followed event by event, ended by its deadline.
//!
//! Dropping a [`Running`] closes its event stream, which aborts the request; so a client that goes away, a failed sibling of
//! a batch and a missed deadline all end their requests the same way.

use tokio::time::Instant;

use super::error::ApiError;
use super::progress::{Progress, Wanted};
use super::state::EngineState;
use crate::generation::{GenerationEvent, GenerationRequest, GenerationStream, GeneratorHandle};

/// A request to be submitted: what the generator is asked, and what the caller wants to see.
#[derive(Debug, Clone)]
pub struct Unit {
    /// For the generator.
    pub request: GenerationRequest,
    /// For the answer.
    pub wanted: Wanted,
    /// Tokens per chunk, when streamed.
    pub stream_interval: usize,
    /// When the HTTP request arrived.
    pub received: Instant,
}

/// A submitted request.
#[derive(Debug)]
pub struct Running {
    generator: GeneratorHandle,
    events: GenerationStream,
    deadline: Instant,
    stop_ids: Vec<u32>,
    ignore_eos: bool,
    most_tokens: usize,
    stream_interval: usize,
    reported: usize,
    /// What it has produced so far.
    pub progress: Progress,
}

impl Running {
    /// Submits a request.
    ///
    /// # Errors
    /// What the generator says, in SGLang's words; 503 when it does not answer within the request's deadline.
    pub async fn submit(state: &EngineState, unit: Unit) -> Result<Self, ApiError> {
        let deadline = unit.received + state.limits.request_deadline;
        let mut request = unit.request;
        let known = &state.facts.eos_token_ids;
        let more = state.text.end_of_turn_ids().iter().copied().filter(|id| !known.contains(id));
        request.params.stop_token_ids.extend(more);
        let mut stop_ids = request.params.stop_token_ids.clone();
        stop_ids.extend(known);
        let streamed = request.stream;
        let (rid, prompt) = (request.rid.clone(), request.input_ids.clone());
        let (ignore_eos, most_tokens) = (request.params.ignore_eos, request.params.max_new_tokens as usize);
        let events = state.ask(deadline, state.generator.submit(request)).await??;
        let progress = Progress::new(rid, prompt, unit.wanted, unit.received, streamed);
        let stream_interval = unit.stream_interval;
        let generator = state.generator.clone();
        Ok(Self {
            generator,
            events,
            deadline,
            stop_ids,
            ignore_eos,
            most_tokens,
            stream_interval,
            reported: 0,
            progress,
        })
    }

    /// Submits several, all or none.
    ///
    /// # Errors
    /// The first refusal; those that were accepted before it are aborted.
    pub async fn submit_all(state: &EngineState, units: Vec<Unit>) -> Result<Vec<Self>, ApiError> {
        let mut running = Vec::with_capacity(units.len());
        for unit in units {
            running.push(Self::submit(state, unit).await?);
        }
        Ok(running)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// 503 when the generator died, 504 at the deadline.
    pub async fn complete(&mut self, state: &EngineState) -> Result<(), ApiError> {
        while self.progress.finished.is_none() {
            self.next_event(state).await?;
        }
        Ok(())
    }

    /// Waits until there is something worth a chunk: new tokens that fill the stream interval, or the end.
    ///
    /// # Errors
    /// As [`Self::complete`].
    pub async fn advance(&mut self, state: &EngineState) -> Result<(), ApiError> {
        loop {
            self.next_event(state).await?;
            // What is already there is reported in the same chunk: chunks repeat everything, so fewer are cheaper.
            while self.progress.finished.is_none()
                && let Ok(event) = self.events.try_recv()
            {
                self.take(state, event);
            }
            let fresh = self.progress.ids.len() - self.reported;
            let full = self.reported == 0 || fresh >= self.stream_interval;
            if self.progress.finished.is_some() || (full && fresh > 0 && !self.end_is_due()) {
                self.reported = self.progress.ids.len();
                return Ok(());
            }
        }
    }

    /// Whether the last token ends the output, so that the end follows at once. A chunk before it would show the stop
    /// token in the text and then take it back.
    fn end_is_due(&self) -> bool {
        let stopped = !self.ignore_eos && self.progress.ids.last().is_some_and(|id| self.stop_ids.contains(id));
        stopped || self.progress.ids.len() >= self.most_tokens
    }

    async fn next_event(&mut self, state: &EngineState) -> Result<(), ApiError> {
        match state.ask(self.deadline, self.events.recv()).await? {
            Some(event) => {
                self.take(state, event);
                Ok(())
            }
            None => Err(crate::error::GenerationError::GeneratorStopped.into()),
        }
    }

    fn take(&mut self, state: &EngineState, event: GenerationEvent) {
        match event {
            GenerationEvent::Started { cached_tokens } => self.progress.start(cached_tokens),
            GenerationEvent::Tokens(tokens) => self.progress.extend(tokens),
            GenerationEvent::Finished(finished) => {
                self.progress.finish(*finished);
                state.metrics.request_finished(&self.progress);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.progress.finished.is_none() {
            self.events.close();
            // A paused generator sleeps; it shall see the closed stream now.
            self.generator.nudge();
        }
    }
}
