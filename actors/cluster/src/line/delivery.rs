//! Receiving: a batch is taken apart, and each frame does its work once.
//!
//! On failure: a message that nobody can take answers its questions with the reason; what no node sends makes the owner cut
//! the connection (frames are missing) or end the line (bytes are no frames).

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use greenroom_core::Unanswered;
use greenroom_core::wire::{Line, Target};
use tokio::sync::OwnedSemaphorePermit;

use super::arrivals::{Content, Due, Lane};
use super::frame::{Batch, BulkHandle, Frame, Outcome, Packed, Payload, SIGNAL, To};
use super::numbering::Receipt;
use super::{CALLER, Caller, DROPPED, PeerLine};

impl PeerLine {
    /// Takes a batch apart that arrived for this line.
    pub(crate) fn receive(&self, mut batch: Batch<'_>) {
        self.heard();
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        state.has_received = true;
        let confirmed = state.numbering.confirm(batch.received);
        drop(state);
        match confirmed {
            Ok(is_window_opened) if is_window_opened => self.wake.notify_one(),
            Ok(_) => {}
            Err(_) => return self.broken("it confirms what was never sent", true),
        }
        while let Some(frame) = batch.next() {
            let Ok((number, frame)) = frame else { return self.broken("it sent a batch that is cut off", true) };
            let receipt =
                if number == SIGNAL { Receipt::Deliver } else { self.lock().numbering.receive(number, frame.len()) };
            match receipt {
                Receipt::Duplicate => continue,
                Receipt::Gap => return self.broken("frames are missing on the connection", false),
                Receipt::Deliver => {}
            }
            match Frame::decode(frame) {
                Ok(frame) => self.take(frame),
                Err(malformed) => return self.broken(&malformed.to_string(), true),
            }
        }
        if self.lock().numbering.owes_a_word() {
            self.wake.notify_one();
        }
    }

    fn broken(&self, reason: &str, is_beyond_repair: bool) {
        if let Some(owner) = self.owner.upgrade() {
            owner.broken(self, reason, is_beyond_repair);
        }
    }

    fn take(&self, frame: Frame<'_>) {
        let Some(owner) = self.owner.upgrade() else { return };
        match frame {
            Frame::Message { to, packed, payload } => {
                let lane = match to {
                    To::Export(number) => Lane::Export(number),
                    To::Service(name) => Lane::Service(name.to_owned()),
                };
                self.admit(lane, packed, payload);
            }
            Frame::Answer { question, outcome: Outcome::Answered(packed, payload) } => {
                self.admit(Lane::Answer(question), packed, payload);
            }
            Frame::Answer { question, outcome: Outcome::Dropped } => {
                self.conclude(question, Err(Unanswered::Dropped));
            }
            Frame::Answer { question, outcome: Outcome::Undeliverable(reason) } => {
                self.conclude(question, Err(Unanswered::Lost(format!("node {}: {reason}", self.node))));
            }
            Frame::Abandon { question } => {
                let asked = self.lock().asked.get(&question).cloned();
                if let Some(asked) = asked {
                    asked.abandon();
                }
            }
            Frame::Release { export } => {
                let released = self.lock().exported.remove(&export);
                drop(released);
            }
            Frame::Services { names } => {
                let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
                self.lock().offered = Some(names.into_iter().collect());
                owner.offers(self);
            }
            Frame::BulkReceived { id } => {
                let confirmed = self.lock().outbox.confirm(id);
                drop(confirmed);
            }
            Frame::Leaving => owner.leaving(self),
            Frame::Heartbeat { sent_us, date_ms, echo_us, held_us } => {
                let mut state = self.lock();
                state.heartbeats.arrived(sent_us);
                let now_us = state.heartbeats.now_us();
                drop(state);
                let round_trip_us = (echo_us > 0).then(|| now_us.checked_sub(echo_us)?.checked_sub(held_us)).flatten();
                let round_trip_ms = round_trip_us.map(|us| us as f64 / 1000.0);
                let under_way_ms = round_trip_ms.map_or(0, |ms| (ms / 2.0) as i64);
                let skew_ms = (date_ms as i64).wrapping_sub(self.clock.now_ms() as i64).wrapping_add(under_way_ms);
                owner.measured(self, skew_ms, round_trip_ms);
            }
            Frame::Gossip { members } => {
                let owned = |(name, incarnation, address): (&str, u64, &str)| {
                    (name.to_owned(), incarnation, address.to_owned())
                };
                owner.gossip(members.into_iter().map(owned).collect());
            }
        }
    }

    /// A message or answer arrived: it is given out now, or waits for its bytes, or for those before it in its lane.
    fn admit(&self, lane: Lane, packed: Packed, payload: Payload<'_>) {
        match payload {
            Payload::Inline(bytes) => {
                let mut arrivals = self.lock_arrivals();
                if arrivals.must_wait(&lane) {
                    arrivals.push(lane, packed, Content::Here(bytes.to_vec()));
                    return;
                }
                drop(arrivals);
                self.give_out(&lane, &packed, Ok(bytes));
            }
            Payload::Bulk(handle) => self.expect_bytes(lane, packed, handle),
            Payload::Placed(handle, place) => {
                self.expect_bytes(lane, packed, handle);
                self.fetch(handle, place);
            }
        }
    }

    fn expect_bytes(&self, lane: Lane, packed: Packed, handle: BulkHandle) {
        if handle.bytes > self.limits.bulk_in_flight_bytes as u64 {
            return self.broken("it speaks of more bytes than may be under way", true);
        }
        self.lock_arrivals().push(lane.clone(), packed, Content::Awaited(handle));
        self.drain(&lane);
    }

    /// A blob arrived beside the control channel (`None`: once more).
    pub(crate) fn blob_arrived(&self, id: u64, blob: Option<Vec<u8>>) {
        self.heard();
        self.push(&Frame::BulkReceived { id });
        let Some(blob) = blob else { return };
        if self.lock_arrivals().held_bytes() + blob.len() > self.limits.bulk_in_flight_bytes {
            return self.broken("it sent more bytes than may be under way", true);
        }
        self.has_come(id, Ok(blob), None);
    }

    /// The bytes of a message are here, or will not come.
    pub(super) fn has_come(&self, id: u64, bytes: Result<Vec<u8>, String>, room: Option<OwnedSemaphorePermit>) {
        let lane = self.lock_arrivals().blob(id, bytes, room);
        if let Some(lane) = lane {
            self.drain(&lane);
        }
    }

    /// Gives out what a lane has ready.
    fn drain(&self, lane: &Lane) {
        if !self.lock_arrivals().begin(lane) {
            return;
        }
        loop {
            let due = self.lock_arrivals().next(lane);
            let Some(Due { packed, bytes }) = due else { return };
            self.give_out(lane, &packed, bytes.as_deref().map_err(String::as_str));
        }
    }

    fn give_out(&self, lane: &Lane, packed: &Packed, bytes: Result<&[u8], &str>) {
        match (lane, bytes) {
            (Lane::Answer(question), Ok(bytes)) => {
                if !self.conclude(*question, Ok(bytes)) {
                    self.discard(packed);
                }
            }
            (Lane::Answer(question), Err(reason)) => {
                self.conclude(*question, Err(Unanswered::Lost(format!("the answer of node {}: {reason}", self.node))));
                self.discard(packed);
            }
            (_, Err(reason)) => self.undeliverable(packed, reason),
            (Lane::Export(number), Ok(bytes)) => {
                let target = self.lock().exported.get(number).cloned();
                match target {
                    Some(target) => self.deliver(&*target, packed, bytes),
                    None => self.undeliverable(packed, "who was asked is gone"),
                }
            }
            (Lane::Service(name), Ok(bytes)) => {
                let Some(owner) = self.owner.upgrade() else { return };
                match owner.target(self, name) {
                    Ok(target) => self.deliver(&*target, packed, bytes),
                    Err(reason) => self.undeliverable(packed, &format!("{} {reason}", self.me)),
                }
            }
        }
    }

    fn deliver(&self, target: &dyn Target, packed: &Packed, bytes: &[u8]) {
        let line: Arc<dyn Line> = self.as_line();
        let before = DROPPED.replace(Some((self.id, Vec::new())));
        let caller = Caller { node: self.node.clone(), certificate: self.certificate };
        let caller_before = CALLER.replace(Some(caller));
        // a decoder or an adapter that panics must not take all other lines with it
        let delivered = catch_unwind(AssertUnwindSafe(|| target.deliver(&line, bytes)));
        CALLER.replace(caller_before);
        let dropped = DROPPED.replace(before).map(|(_, questions)| questions).unwrap_or_default();
        let delivered = delivered.unwrap_or_else(|_| Err("it panicked while the message was put together".into()));
        match delivered {
            Ok(()) => dropped.into_iter().for_each(|question| line.answer(question, None)),
            Err(reason) => {
                let reason = format!("{} at {} (GR1216): {reason}", target.name(), self.me);
                self.undeliverable(packed, &reason);
            }
        }
    }

    /// Nobody could take a message: its questions hear of it, and what it exported is let go.
    fn undeliverable(&self, packed: &Packed, reason: &str) {
        if let Some(left_out) = self.refusals.may_speak() {
            tracing::warn!(code = "GR1216", from = self.node, reason, left_out, "a message could not be delivered");
        }
        for question in &packed.questions {
            let asked = self.lock().asked.remove(question);
            drop(asked);
            self.push_undeliverable(*question, reason);
        }
        for export in &packed.exports {
            self.push(&Frame::Release { export: *export });
        }
    }

    /// An answer came for which nobody waits: what it refers to is let go.
    fn discard(&self, packed: &Packed) {
        for question in &packed.questions {
            self.push(&Frame::Answer { question: *question, outcome: Outcome::Dropped });
        }
        for export in &packed.exports {
            self.push(&Frame::Release { export: *export });
        }
    }

    /// Ends a question of ours; false when nobody waits for it.
    fn conclude(&self, question: u64, answer: Result<&[u8], Unanswered>) -> bool {
        let awaited = self.lock().awaited.remove(&question);
        let Some(awaited) = awaited else { return false };
        let line = self.as_line();
        let concluded = catch_unwind(AssertUnwindSafe(|| awaited.conclude(&line, answer)));
        if concluded.is_err() {
            tracing::error!(code = "GR1216", from = self.node, "the decoder of an answer panicked");
        }
        true
    }
}
