//! A line to one other node: everything that crosses to it, from its joining until it dies, leaves or is restarted.
//!
//! A line outlives connections: what was not confirmed is sent again over the next one ([`numbering`]). It implements
//! [`Line`], so that messages with reply ports and addresses cross. Invariants: a question that left ends exactly once, at
//! the latest when the line ends; nothing waits without bound; no lock is held while foreign code runs, because dropping an
//! address or a port calls back here.

mod arrivals;
mod beside;
mod delivery;
pub(crate) mod frame;
mod numbering;
mod pump;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use greenroom_core::wire::{AwaitedAnswer, Line, Target};
use greenroom_core::{Abandonment, Clock, Unanswered};
use greenroom_identity::CertificateRole;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::bulk::plane::BulkPlane;
use crate::bulk::state::{Chunk, Inbox, Outbox};
use crate::link::socket::Cutter;
use crate::quiet::Quiet;
pub(crate) use pump::run as pump_line;

use arrivals::Arrivals;
use beside::{Outgoing, ToFetch};
use frame::{Frame, Outcome, Packed, To};
use numbering::{Bounds, Numbering};

/// The most bytes of a frame on the control channel.
pub(crate) const FRAME_LIMIT_BYTES: usize = 1 << 20;
/// The longest reason that is sent, in bytes.
const REASON_LIMIT_BYTES: usize = 2048;

/// Hands a batch to the present connection; false when that is gone.
pub(crate) type Way = Arc<dyn Fn(Vec<u8>) -> bool + Send + Sync>;

/// The node to whom a line belongs.
pub(crate) trait Owner: Send + Sync {
    /// Where messages for a service of this node go that come over this line; or why nowhere.
    fn target(&self, line: &PeerLine, service: &str) -> Result<Arc<dyn Target>, String>;
    /// The other end said what it offers; the line remembers it.
    fn offers(&self, line: &PeerLine);
    /// The other end said good-bye.
    fn leaving(&self, line: &PeerLine);
    /// The other end told of its clock, and of the way to it.
    fn measured(&self, line: &PeerLine, skew_ms: i64, round_trip_ms: Option<f64>);
    /// The other end knows these members: name, incarnation, address.
    fn gossip(&self, members: Vec<(String, u64, String)>);
    /// What to tell the other end of the members.
    fn gossip_for(&self, line: &PeerLine) -> Vec<(String, u64, String)>;
    /// This node's data plane.
    fn bulk_plane(&self) -> Option<BulkPlane> {
        None
    }
    /// The other end broke the rules: the connection must be made anew, or the line be ended.
    fn broken(&self, line: &PeerLine, reason: &str, is_beyond_repair: bool);
}

/// How much a line carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineLimits {
    pub bulk_threshold_bytes: usize,
    pub bulk_in_flight_bytes: usize,
    pub bulk_deadline_ms: u64,
    pub unacknowledged_bytes: usize,
    pub unacknowledged_messages: usize,
    pub open_questions: usize,
}

/// Our end of a line.
pub(crate) struct PeerLine {
    id: u64,
    node: String,
    incarnation: u64,
    certificate: Option<CertificateRole>,
    me: String,
    limits: LineLimits,
    clock: Clock,
    owner: Weak<dyn Owner>,
    myself: Weak<PeerLine>,
    state: Mutex<State>,
    arrivals: Mutex<Arrivals>,
    /// Held by whoever reads the bulk connection.
    pub(crate) inbox: tokio::sync::Mutex<Inbox>,
    /// The present bulk connection.
    bulk: Mutex<Option<Cutter>>,
    /// What lies at the other end's data plane and is to be fetched.
    fetches: Mutex<Option<mpsc::UnboundedSender<ToFetch>>>,
    /// Cancelled when the line ends.
    stop: CancellationToken,
    /// Something is to be sent on the control channel.
    wake: Notify,
    /// Something is to be sent beside it.
    pub(crate) bulk_wake: Notify,
    /// When the other end was last heard of, in milliseconds of the process's clock.
    heard_ms: AtomicU64,
    refusals: Quiet,
}

struct State {
    numbering: Numbering,
    outbox: Outbox,
    way: Option<(u64, Way)>,
    last_number: u64,
    last_blob: u64,
    /// The present bulk connection's.
    bulk_number: u64,
    awaited: BTreeMap<u64, Box<dyn AwaitedAnswer>>,
    asked: BTreeMap<u64, Arc<Abandonment>>,
    exported: BTreeMap<u64, Arc<dyn Target>>,
    heartbeats: pump::Heartbeats,
    has_received: bool,
    /// What the other end offers, sorted; `None` until it has said so on this line.
    offered: Option<Vec<String>>,
    ended: Option<String>,
}

thread_local! {
    /// While a message is delivered on this thread: who sent it.
    static CALLER: RefCell<Option<Caller>> = const { RefCell::new(None) };
    /// What the message being packed on this thread refers to, and the line it is packed for.
    static PACKED: RefCell<(u64, Packed)> = RefCell::default();
    /// While a message is delivered on this thread: its line, and the questions in it that were dropped meanwhile.
    static DROPPED: RefCell<Option<(u64, Vec<u64>)>> = const { RefCell::new(None) };
}

/// Who sent a message that is being delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The node.
    pub node: String,
    /// The role of its certificate; `None` without TLS.
    pub certificate: Option<CertificateRole>,
}

/// Who sent the message that is being delivered, inside the function of a served
/// [`Address::of_function`](greenroom_core::Address::of_function); `None` when it comes from this process, and in actors,
/// which take their messages later.
pub fn caller() -> Option<Caller> {
    CALLER.with_borrow(Clone::clone)
}

fn note_packed(line: u64, note: impl FnOnce(&mut Packed)) {
    PACKED.with_borrow_mut(|(of, packed)| {
        if *of != line {
            (*of, *packed) = (line, Packed::default());
        }
        note(packed);
    });
}

fn take_packed(line: u64) -> Packed {
    PACKED.with_borrow_mut(|(of, packed)| if *of == line { std::mem::take(packed) } else { Packed::default() })
}

/// What goes over a bulk connection.
pub(crate) enum Next {
    Chunk(Chunk),
    /// Nothing at present.
    Nothing,
    /// Nothing any more: another connection carries the bulk.
    Superseded,
}

/// What a line is between.
pub(crate) struct Ends {
    pub id: u64,
    pub me: String,
    pub node: String,
    pub incarnation: u64,
    /// The role of the other end's certificate.
    pub certificate: Option<CertificateRole>,
}

impl PeerLine {
    pub(crate) fn new(ends: Ends, limits: LineLimits, clock: Clock, owner: Weak<dyn Owner>) -> Arc<Self> {
        let Ends { id, me, node, incarnation, certificate } = ends;
        let bounds = Bounds {
            frames: limits.unacknowledged_messages,
            bytes: limits.unacknowledged_bytes,
            window_bytes: (4 << 20).min(limits.unacknowledged_bytes),
        };
        let state = State {
            numbering: Numbering::new(bounds),
            outbox: Outbox::new(limits.bulk_in_flight_bytes),
            way: None,
            last_number: 0,
            last_blob: 0,
            bulk_number: 0,
            awaited: BTreeMap::new(),
            asked: BTreeMap::new(),
            exported: BTreeMap::new(),
            heartbeats: pump::Heartbeats::default(),
            has_received: false,
            offered: None,
            ended: None,
        };
        Arc::new_cyclic(|myself| Self {
            id,
            node,
            incarnation,
            certificate,
            me,
            limits,
            clock,
            owner,
            myself: myself.clone(),
            state: Mutex::new(state),
            arrivals: Mutex::default(),
            bulk: Mutex::default(),
            fetches: Mutex::default(),
            stop: CancellationToken::new(),
            inbox: tokio::sync::Mutex::new(Inbox::new(limits.bulk_in_flight_bytes)),
            wake: Notify::new(),
            bulk_wake: Notify::new(),
            heard_ms: AtomicU64::new(clock.elapsed_ms()),
            refusals: Quiet::default(),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(crate) fn certificate(&self) -> Option<CertificateRole> {
        self.certificate
    }

    /// The line as those who pack see it.
    pub(crate) fn as_line(&self) -> Arc<dyn Line> {
        match self.myself.upgrade() {
            Some(line) => line,
            // it is being dropped: what is packed for it fails
            None => Arc::new(Nowhere),
        }
    }

    /// The connection that stands at present.
    pub(crate) fn connection(&self) -> Option<u64> {
        self.lock().way.as_ref().map(|(connection, _)| *connection)
    }

    pub(crate) fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    /// Whether anything has ever arrived on this line.
    pub(crate) fn has_received(&self) -> bool {
        self.lock().has_received
    }

    /// What the other end offers, sorted; `None` until it has said so on this line.
    pub(crate) fn offered(&self) -> Option<Vec<String>> {
        self.lock().offered.clone()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection stands: what is not confirmed is sent over it.
    pub(crate) fn connected(&self, connection: u64, way: Way) {
        let mut state = self.lock();
        state.way = Some((connection, way));
        state.numbering.connected();
        drop(state);
        self.heard();
        self.wake.notify_one();
    }

    /// A connection is gone; false when a later one stands already.
    pub(crate) fn disconnected(&self, connection: u64) -> bool {
        let mut state = self.lock();
        let was = state.way.as_ref().is_some_and(|(present, _)| *present == connection);
        if was {
            state.way = None;
        }
        drop(state);
        // what sends bulk looks whether it still may
        self.bulk_wake.notify_one();
        was
    }

    fn heard(&self) {
        self.heard_ms.fetch_max(self.clock.elapsed_ms(), Ordering::Relaxed);
    }

    /// Ends the line: every open question fails with the cause, who was asked learns that nobody waits, exported targets
    /// are let go, and whatever is sent from now on fails.
    pub(crate) fn end(&self, cause: &str) {
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        let reason = format!("node {} (GR1213): {cause}", self.node);
        state.ended = Some(reason.clone());
        state.way = None;
        state.numbering = Numbering::new(Bounds { frames: 0, bytes: 0, window_bytes: 0 });
        let outbox = std::mem::replace(&mut state.outbox, Outbox::new(0));
        let awaited = std::mem::take(&mut state.awaited);
        let asked = std::mem::take(&mut state.asked);
        let exported = std::mem::take(&mut state.exported);
        drop(state);
        let arrivals = std::mem::take(&mut *self.lock_arrivals());
        let line = self.as_line();
        for awaited in awaited.into_values() {
            awaited.conclude(&line, Err(Unanswered::Lost(reason.clone())));
        }
        asked.into_values().for_each(|asked| asked.abandon());
        drop((exported, arrivals, outbox));
        self.stop.cancel();
        if let Some(bulk) = self.bulk.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bulk.cut();
        }
        self.wake.notify_one();
        self.bulk_wake.notify_one();
    }

    /// Sends a packed message to a service of the other end.
    pub(crate) fn send_to_service(&self, service: &str, message: Vec<u8>) -> Result<(), ()> {
        self.send_to(To::Service(service), message)
    }

    fn send_to(&self, to: To<'_>, message: Vec<u8>) -> Result<(), ()> {
        let packed = take_packed(self.id);
        let message = self.outgoing(message);
        let mut state = self.lock();
        let sent = message.and_then(|message| self.try_send(&mut state, &to, &packed, message));
        match sent {
            Ok(()) => {
                self.go(state);
                Ok(())
            }
            Err(reason) => {
                drop(state);
                self.refuse(&to, &packed, &reason)
            }
        }
    }

    fn try_send(&self, state: &mut State, to: &To<'_>, packed: &Packed, message: Outgoing) -> Result<(), String> {
        if let Some(ended) = &state.ended {
            return Err(ended.clone());
        }
        if state.awaited.len() > self.limits.open_questions {
            let open = state.awaited.len();
            return Err(format!("node {} (GR1214): {open} questions are open there", self.node));
        }
        state.numbering.room_for(message.inline_bytes()).map_err(|full| {
            format!("node {} (GR1214): {} messages of {} bytes wait for it", self.node, full.frames, full.bytes)
        })?;
        let frame = self.put(state, message, |payload| {
            Frame::Message { to: to.clone(), packed: packed.clone(), payload }.encode()
        })?;
        if frame.len() > FRAME_LIMIT_BYTES {
            return Err(format!("node {} (GR1214): a frame of {} bytes is too large", self.node, frame.len()));
        }
        state.numbering.push(frame);
        Ok(())
    }

    /// A message is not sent. Its questions hear why; a message that asks nothing fails at its sender.
    fn refuse(&self, to: &To<'_>, packed: &Packed, reason: &str) -> Result<(), ()> {
        let mut state = self.lock();
        let has_ended = state.ended.is_some();
        let exported: Vec<_> = packed.exports.iter().filter_map(|export| state.exported.remove(export)).collect();
        let awaited: Vec<_> = packed.questions.iter().filter_map(|question| state.awaited.remove(question)).collect();
        drop(state);
        drop(exported);
        if has_ended {
            // that the node is gone was said when it went
            tracing::debug!(
                code = "GR1213",
                node = self.node,
                ?to,
                reason,
                "a message to a node that is gone was not sent"
            );
        } else if let Some(left_out) = self.refusals.may_speak() {
            tracing::warn!(code = "GR1214", node = self.node, ?to, reason, left_out, "a message was not sent");
        }
        if packed.questions.is_empty() {
            return Err(());
        }
        let line = self.as_line();
        for awaited in awaited {
            awaited.conclude(&line, Err(Unanswered::Lost(reason.to_owned())));
        }
        Ok(())
    }

    /// Sends a frame that may not be refused.
    fn push(&self, frame: &Frame<'_>) {
        let state = self.lock();
        if state.ended.is_some() {
            return;
        }
        self.push_encoded(state, frame.encode());
    }

    fn push_encoded(&self, mut state: MutexGuard<'_, State>, frame: Vec<u8>) {
        let is_overgrown = state.numbering.push(frame);
        let (frames, bytes) = state.numbering.waiting();
        self.go(state);
        if is_overgrown && let Some(owner) = self.owner.upgrade() {
            owner.broken(self, &format!("{frames} answers of {bytes} bytes wait for it"), true);
        }
    }

    /// Answers a question of the other end.
    fn push_answer(&self, question: u64, answer: Option<Vec<u8>>) {
        let packed = take_packed(self.id);
        let Some(answer) = answer else {
            return self.push(&Frame::Answer { question, outcome: Outcome::Dropped });
        };
        let outgoing = self.outgoing(answer);
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        let frame = outgoing.and_then(|answer| {
            self.put(&mut state, answer, |payload| {
                Frame::Answer { question, outcome: Outcome::Answered(packed, payload) }.encode()
            })
        });
        match frame {
            Ok(frame) => self.push_encoded(state, frame),
            Err(reason) => {
                drop(state);
                self.push_undeliverable(question, &format!("the answer was not sent: {reason}"));
            }
        }
    }

    fn push_undeliverable(&self, question: u64, reason: &str) {
        let mut end = reason.len().min(REASON_LIMIT_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.push(&Frame::Answer { question, outcome: Outcome::Undeliverable(&reason[..end]) });
    }

    /// Tells the other end what is offered here.
    pub(crate) fn push_services(&self, names: &[String]) {
        self.push(&Frame::Services { names: names.iter().map(String::as_str).collect() });
    }

    /// Says good-bye.
    pub(crate) fn push_leaving(&self) {
        self.push(&Frame::Leaving);
    }

    /// Whether the other end has confirmed everything.
    pub(crate) fn is_clear(&self) -> bool {
        let state = self.lock();
        state.ended.is_some() || state.numbering.is_clear()
    }

    /// How many messages and bytes wait for the other end, and how many questions are open there.
    pub(crate) fn waiting(&self) -> (usize, usize, usize) {
        let state = self.lock();
        let (frames, bytes) = state.numbering.waiting();
        (frames, bytes + state.outbox.kept_bytes(), state.awaited.len())
    }
}

impl Line for PeerLine {
    fn expect(&self, awaited: Box<dyn AwaitedAnswer>) -> u64 {
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        let ended = state.ended.clone();
        match ended {
            None => {
                state.awaited.insert(number, awaited);
                drop(state);
            }
            Some(reason) => {
                drop(state);
                awaited.conclude(&self.as_line(), Err(Unanswered::Lost(reason)));
            }
        }
        note_packed(self.id, |packed| packed.questions.push(number));
        number
    }

    fn asked(&self, number: u64) -> Arc<Abandonment> {
        let mut state = self.lock();
        if state.ended.is_some() {
            let nobody_waits = Arc::<Abandonment>::default();
            nobody_waits.abandon();
            return nobody_waits;
        }
        state.asked.entry(number).or_default().clone()
    }

    fn answer(&self, number: u64, answer: Option<Vec<u8>>) {
        if answer.is_none() {
            let is_deferred = DROPPED.with_borrow_mut(|dropped| match dropped {
                Some((line, questions)) if *line == self.id => {
                    questions.push(number);
                    true
                }
                _ => false,
            });
            if is_deferred {
                return;
            }
        }
        let asked = self.lock().asked.remove(&number);
        if asked.is_some() {
            self.push_answer(number, answer);
        } else {
            take_packed(self.id);
        }
    }

    fn export(&self, target: Arc<dyn Target>) -> u64 {
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        let ended = state.ended.is_some();
        // a target that is not kept is dropped without the lock
        let target = if ended { Some(target) } else { state.exported.insert(number, target) };
        drop(state);
        drop(target);
        note_packed(self.id, |packed| packed.exports.push(number));
        number
    }

    fn send(&self, number: u64, message: Vec<u8>) -> Result<(), ()> {
        self.send_to(To::Export(number), message)
    }

    fn release(&self, number: u64) {
        self.push(&Frame::Release { export: number });
    }
}

/// The line of which nothing is left.
struct Nowhere;

impl Line for Nowhere {
    fn expect(&self, awaited: Box<dyn AwaitedAnswer>) -> u64 {
        drop(awaited);
        0
    }
    fn asked(&self, _: u64) -> Arc<Abandonment> {
        Arc::default()
    }
    fn answer(&self, _: u64, _: Option<Vec<u8>>) {}
    fn export(&self, _: Arc<dyn Target>) -> u64 {
        0
    }
    fn send(&self, _: u64, _: Vec<u8>) -> Result<(), ()> {
        Err(())
    }
    fn release(&self, _: u64) {}
}
