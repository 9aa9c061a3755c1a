//! Sending: what waits goes out in batches as far as the window allows, and a heartbeat at each beat.
//!
//! Heartbeats do not queue behind what waits here; what is on the way before them is at most the window.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::frame::{BatchWriter, Frame, SIGNAL};
use super::{PeerLine, State};

/// The most bytes of a batch that is not one frame alone.
const BATCH_BYTES: usize = 256 << 10;
/// With every so many heartbeats goes the list of members.
const BEATS_PER_GOSSIP: u64 = 5;

/// What is remembered from heartbeat to heartbeat.
#[derive(Debug, Default)]
pub(super) struct Heartbeats {
    beats: u64,
    /// When ours began, as the origin of its microseconds.
    origin: Option<Instant>,
    /// The last one that arrived: its time at the other end, and when it arrived here.
    last: Option<(u64, Instant)>,
}

impl Heartbeats {
    pub(super) fn now_us(&mut self) -> u64 {
        let origin = *self.origin.get_or_insert_with(Instant::now);
        // never 0, which says "none"
        origin.elapsed().as_micros() as u64 + 1
    }

    pub(super) fn arrived(&mut self, sent_us: u64) {
        self.last = Some((sent_us, Instant::now()));
    }
}

/// Sends what the line has to send until it ends.
pub(crate) async fn run(line: Arc<PeerLine>, heartbeat: Duration) {
    let mut beat = interval(heartbeat);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sweep = interval(heartbeat.min(Duration::from_millis(250)));
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !line.has_ended() {
        tokio::select! {
            biased;
            _ = beat.tick() => line.beat(),
            () = line.wake.notified() => line.pump(),
            _ = sweep.tick() => line.tell_abandoned(),
        }
    }
}

impl PeerLine {
    /// A frame was appended: it goes at once where it is the only one that is not confirmed, which spares a lone question and
    /// its answer a task each; else the pump sends it together with others.
    pub(super) fn go(&self, mut state: MutexGuard<'_, State>) {
        if !state.numbering.has_one_unsent_only() {
            drop(state);
            self.wake.notify_one();
            return;
        }
        let Some((connection, way)) = state.way.clone() else { return };
        let mut batch = BatchWriter::new(self.id, state.numbering.tell());
        state.numbering.fill(&mut batch, BATCH_BYTES);
        // under the lock: what is appended next must not overtake it
        let is_handed_over = way(batch.finish());
        drop(state);
        if !is_handed_over {
            self.disconnected(connection);
        }
    }

    /// Hands waiting frames to the connection.
    pub(super) fn pump(&self) {
        loop {
            let mut state = self.lock();
            let Some((connection, way)) = state.way.clone() else { return };
            let owes_a_word = state.numbering.owes_a_word();
            let mut batch = BatchWriter::new(self.id, state.numbering.tell());
            let has_frames = state.numbering.fill(&mut batch, BATCH_BYTES);
            drop(state);
            if !has_frames && !owes_a_word {
                return;
            }
            if !way(batch.finish()) {
                self.disconnected(connection);
                return;
            }
        }
    }

    /// Says that this end lives, and what it knows of others.
    fn beat(&self) {
        let mut state = self.lock();
        let Some((connection, way)) = state.way.clone() else { return };
        let heartbeats = &mut state.heartbeats;
        heartbeats.beats += 1;
        let tells_members = heartbeats.beats % BEATS_PER_GOSSIP == 1;
        let sent_us = heartbeats.now_us();
        let (echo_us, held_us) =
            heartbeats.last.map_or((0, 0), |(sent_us, at)| (sent_us, at.elapsed().as_micros() as u64));
        let mut batch = BatchWriter::new(self.id, state.numbering.tell());
        drop(state);
        let date_ms = self.clock.now_ms();
        batch.push(SIGNAL, &Frame::Heartbeat { sent_us, date_ms, echo_us, held_us }.encode());
        if tells_members && let Some(owner) = self.owner.upgrade() {
            let known = owner.gossip_for(self);
            let members = known.iter().map(|(name, incarnation, address)| (&**name, *incarnation, &**address));
            batch.push(SIGNAL, &Frame::Gossip { members: members.collect() }.encode());
        }
        if !way(batch.finish()) {
            self.disconnected(connection);
        }
        // a lost wake-up must not hold frames back for longer than a beat
        self.pump();
    }

    /// Tells the other end which of our questions nobody awaits any more.
    pub(super) fn tell_abandoned(&self) {
        let mut state = self.lock();
        let gone = state.awaited.iter().filter(|(_, awaited)| awaited.is_abandoned());
        let numbers: Vec<u64> = gone.map(|(number, _)| *number).collect();
        let abandoned: Vec<_> = numbers.iter().filter_map(|number| state.awaited.remove(number)).collect();
        drop(state);
        drop(abandoned);
        for question in numbers {
            self.push(&Frame::Abandon { question });
        }
    }
}
