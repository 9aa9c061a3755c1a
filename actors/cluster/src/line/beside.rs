//! What is too large for the control channel: by the data plane where both ends have one, else by the bulk connection.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use greenroom_core::{Deadline, spawn_named};
use greenroom_dataplane::ObjectId;
use greenroom_identity::CertificateRole;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::arrivals::checksum;
use super::frame::{BulkHandle, Frame, Payload};
use super::{Next, PeerLine, State};
use crate::bulk::plane::{Place, Placed, SERVICE};
use crate::link::socket::Cutter;

/// How many fetches of one line run at a time.
const FETCHES: usize = 2;
/// What memory is counted in, bytes.
const UNIT_BYTES: u64 = 1024;

/// A message or an answer that is to leave.
pub(super) enum Outgoing {
    Inline(Vec<u8>),
    /// For the bulk connection.
    Large(Vec<u8>),
    /// In this node's store; with the checksum of all its bytes.
    Placed(Placed, u64),
}

impl Outgoing {
    /// How much of it goes on the control channel.
    pub(super) fn inline_bytes(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Large(_) | Self::Placed(..) => 0,
        }
    }
}

/// Bytes of the other end that wait to be fetched.
pub(super) struct ToFetch {
    handle: BulkHandle,
    object: ObjectId,
    address: String,
    deadline: Deadline,
}

impl PeerLine {
    /// Decides how bytes leave; those for the data plane are laid out at once, before any lock is held.
    pub(super) fn outgoing(&self, bytes: Vec<u8>) -> Result<Outgoing, String> {
        if bytes.len() <= self.limits.bulk_threshold_bytes {
            return Ok(Outgoing::Inline(bytes));
        }
        let plane = self.owner.upgrade().and_then(|owner| owner.bulk_plane());
        let Some(plane) = plane.filter(|_| self.fetches_by_data_plane()) else { return Ok(Outgoing::Large(bytes)) };
        let checksum = checksum(&bytes);
        let placed = plane.place(bytes, self.bulk_deadline());
        let placed = placed.map_err(|reason| format!("node {} (GR1214): {reason}", self.node))?;
        Ok(Outgoing::Placed(placed, checksum))
    }

    /// Whether the other end is a node with a data plane of its own, and still there.
    fn fetches_by_data_plane(&self) -> bool {
        let offers = |offered: &Vec<String>| offered.binary_search_by(|name| name.as_str().cmp(SERVICE)).is_ok();
        let state = self.lock();
        let is_node = self.certificate == Some(CertificateRole::Node) && state.ended.is_none();
        is_node && state.offered.as_ref().is_some_and(offers)
    }

    fn bulk_deadline(&self) -> Duration {
        Duration::from_millis(self.limits.bulk_deadline_ms)
    }

    /// Puts bytes on their way, and gives the frame that holds them or speaks of them; or why they cannot go.
    pub(super) fn put(
        &self,
        state: &mut State,
        outgoing: Outgoing,
        frame: impl FnOnce(Payload<'_>) -> Vec<u8>,
    ) -> Result<Vec<u8>, String> {
        let room = |state: &State, bytes: usize| {
            state.outbox.room_for(bytes).map_err(|kept| {
                format!("node {} (GR1214): {kept} bytes are under way to it, {bytes} more are too many", self.node)
            })
        };
        let id = state.last_blob + 1;
        let frame = match outgoing {
            Outgoing::Inline(bytes) => return Ok(frame(Payload::Inline(&bytes))),
            Outgoing::Large(bytes) => {
                room(state, bytes.len())?;
                let handle = BulkHandle { id, bytes: bytes.len() as u64, checksum: checksum(&bytes) };
                state.outbox.push(id, bytes);
                self.bulk_wake.notify_one();
                frame(Payload::Bulk(handle))
            }
            Outgoing::Placed(placed, checksum) => {
                room(state, placed.bytes)?;
                let handle = BulkHandle { id, bytes: placed.bytes as u64, checksum };
                let frame = frame(Payload::Placed(handle, placed.place()));
                state.outbox.push_placed(id, placed);
                frame
            }
        };
        state.last_blob = id;
        Ok(frame)
    }

    /// A connection for bulk stands; an earlier one is cut. What is not confirmed is sent again. Gives its number.
    pub(crate) fn bulk_connected(&self, cutter: Cutter) -> u64 {
        let earlier = self.bulk.lock().unwrap_or_else(PoisonError::into_inner).replace(cutter);
        if let Some(earlier) = earlier {
            earlier.cut();
        }
        let mut state = self.lock();
        state.outbox.connected();
        state.bulk_number += 1;
        let number = state.bulk_number;
        drop(state);
        self.bulk_wake.notify_one();
        number
    }

    /// What goes next over a bulk connection.
    pub(crate) fn next_chunk(&self, number: u64) -> Next {
        let mut state = self.lock();
        if state.bulk_number != number {
            return Next::Superseded;
        }
        state.outbox.next().map_or(Next::Nothing, Next::Chunk)
    }

    /// Bytes of the other end lie at its data plane: they are fetched, after those before them.
    pub(super) fn fetch(&self, handle: BulkHandle, place: Place<'_>) {
        let deadline = Deadline::after(self.bulk_deadline());
        let wanted = ToFetch { handle, object: place.object, address: place.address.to_owned(), deadline };
        let mut fetches = self.fetches.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = fetches.get_or_insert_with(|| {
            let (queue, waiting) = mpsc::unbounded_channel();
            if let Some(line) = self.myself.upgrade() {
                let stop = line.stop.clone();
                let all = async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = fetch_all(line, waiting) => {}
                    }
                };
                spawn_named(format!("bulk from {}", self.node), all);
            }
            queue
        });
        // where nobody takes it any more, the line has ended
        let _ = queue.send(wanted);
    }
}

/// Fetches one after the other, a few at a time, as far as there is room for what has arrived and cannot be given out yet.
async fn fetch_all(line: Arc<PeerLine>, mut waiting: mpsc::UnboundedReceiver<ToFetch>) {
    let units = |bytes: u64| bytes.div_ceil(UNIT_BYTES).min(u64::from(u32::MAX)) as u32;
    let room = Arc::new(Semaphore::new(units(line.limits.bulk_in_flight_bytes as u64) as usize));
    let turns = Arc::new(Semaphore::new(FETCHES));
    while let Some(wanted) = waiting.recv().await {
        // no message is larger than all the room, or it would not have been let in; semaphores that nobody closes do not fail
        let Ok(room) = room.clone().acquire_many_owned(units(wanted.handle.bytes)).await else { return };
        let Ok(turn) = turns.clone().acquire_owned().await else { return };
        let (line, stop) = (line.clone(), line.stop.clone());
        spawn_named(format!("bulk of {}", line.node()), async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = fetch_one(&line, wanted, room) => {}
            }
            drop(turn);
        });
    }
}

async fn fetch_one(line: &PeerLine, wanted: ToFetch, room: OwnedSemaphorePermit) {
    let ToFetch { handle, object, address, deadline } = wanted;
    let fetched = match line.owner.upgrade().and_then(|owner| owner.bulk_plane()) {
        Some(plane) => plane.fetch(line.node(), Place { object, address: &address }, handle.bytes, deadline).await,
        None => Err("this node has no data plane".to_owned()),
    };
    if let Err(reason) = &fetched {
        tracing::warn!(code = "GR1219", from = line.node(), address, reason, "a message's bytes have not come");
    }
    let fetched = fetched.map(Vec::from).map_err(|reason| format!("its bytes have not come (GR1219): {reason}"));
    if fetched.is_ok() {
        line.heard();
    }
    line.push(&Frame::BulkReceived { id: handle.id });
    line.has_come(handle.id, fetched, Some(room));
}
