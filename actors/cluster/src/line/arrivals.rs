//! What arrived for somebody and waits for bytes that come beside the control channel; a pure state machine.
//!
//! Each receiver of messages is a lane, and so is each question that is answered in bulk. Within a lane order is kept: what
//! follows a message that waits for its bytes waits, too. Other lanes are not held up.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::OwnedSemaphorePermit;

use super::frame::{BulkHandle, Packed};

/// Who is waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Export(u64),
    Service(String),
    /// The answer to this question.
    Answer(u64),
}

/// Bytes that are there, or are awaited.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Here(Vec<u8>),
    Awaited(BulkHandle),
}

/// Something whose turn has come: its bytes, or why they are missing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub packed: Packed,
    pub bytes: Result<Vec<u8>, String>,
}

/// Bytes that are here before their turn, or why they will not come.
#[derive(Debug)]
struct Early {
    bytes: Result<Vec<u8>, String>,
    /// The room they take, where somebody else counts it.
    room: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Packed, Content)>,
    /// Somebody is giving out this lane at the moment.
    is_draining: bool,
}

/// All lanes in which something waits.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    lanes: BTreeMap<Lane, Queue>,
    /// Which lane waits for which blob.
    awaited: BTreeMap<u64, Lane>,
    /// Blobs that came before the frame that speaks of them, or before those before them.
    early: BTreeMap<u64, Early>,
}

impl Arrivals {
    /// Whether what comes for this lane must queue up.
    pub(crate) fn must_wait(&self, lane: &Lane) -> bool {
        !self.lanes.is_empty() && self.lanes.contains_key(lane)
    }

    /// Queues something up.
    pub(crate) fn push(&mut self, lane: Lane, packed: Packed, content: Content) {
        if let Content::Awaited(handle) = &content
            && !self.early.contains_key(&handle.id)
        {
            self.awaited.insert(handle.id, lane.clone());
        }
        self.lanes.entry(lane).or_default().waiting.push_back((packed, content));
    }

    /// A blob arrived, or will not. Gives the lane that waits for it.
    pub(crate) fn blob(
        &mut self,
        id: u64,
        bytes: Result<Vec<u8>, String>,
        room: Option<OwnedSemaphorePermit>,
    ) -> Option<Lane> {
        self.early.insert(id, Early { bytes, room });
        self.awaited.remove(&id)
    }

    /// Begins to give out a lane; false when somebody does so already, who will see all there is.
    pub(crate) fn begin(&mut self, lane: &Lane) -> bool {
        self.lanes.get_mut(lane).is_some_and(|queue| !std::mem::replace(&mut queue.is_draining, true))
    }

    /// The next of a lane that is being given out; `None` ends that.
    pub(crate) fn next(&mut self, lane: &Lane) -> Option<Due> {
        let queue = self.lanes.get_mut(lane)?;
        let ready = match queue.waiting.front() {
            Some((_, Content::Awaited(handle))) => self.early.contains_key(&handle.id),
            front => front.is_some(),
        };
        let Some((packed, content)) = ready.then(|| queue.waiting.pop_front()).flatten() else {
            queue.is_draining = false;
            if queue.waiting.is_empty() {
                self.lanes.remove(lane);
            }
            return None;
        };
        let bytes = match content {
            Content::Here(bytes) => Ok(bytes),
            Content::Awaited(handle) => match self.early.remove(&handle.id).map(|early| early.bytes) {
                Some(Ok(bytes)) if matches(&bytes, &handle) => Ok(bytes),
                Some(Err(reason)) => Err(reason),
                Some(Ok(_)) | None => Err("its bytes arrived damaged".to_owned()),
            },
        };
        Some(Due { packed, bytes })
    }

    /// How many bytes of blobs are held that nobody else counts.
    pub(crate) fn held_bytes(&self) -> usize {
        let uncounted = self.early.values().filter(|early| early.room.is_none());
        uncounted.filter_map(|early| early.bytes.as_ref().ok()).map(Vec::len).sum()
    }
}

/// The checksum by which blobs are compared.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

fn matches(bytes: &[u8], handle: &BulkHandle) -> bool {
    bytes.len() as u64 == handle.bytes && checksum(bytes) == handle.checksum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(id: u64, bytes: &[u8]) -> Content {
        Content::Awaited(BulkHandle { id, bytes: bytes.len() as u64, checksum: checksum(bytes) })
    }

    fn drain(arrivals: &mut Arrivals, lane: &Lane) -> Vec<Option<Vec<u8>>> {
        assert!(arrivals.begin(lane));
        std::iter::from_fn(|| arrivals.next(lane)).map(|due| due.bytes.ok()).collect()
    }

    fn come(arrivals: &mut Arrivals, id: u64, bytes: &[u8]) -> Option<Lane> {
        arrivals.blob(id, Ok(bytes.to_vec()), None)
    }

    #[test]
    fn a_lane_keeps_its_order_and_holds_up_no_other() {
        let (lane, other) = (Lane::Export(1), Lane::Service("s".into()));
        let mut arrivals = Arrivals::default();
        assert!(!arrivals.must_wait(&lane));
        arrivals.push(lane.clone(), Packed::default(), handle(1, b"one"));
        assert!(arrivals.must_wait(&lane) && !arrivals.must_wait(&other));
        arrivals.push(lane.clone(), Packed::default(), Content::Here(b"two".to_vec()));
        arrivals.push(lane.clone(), Packed::default(), handle(2, b"three"));
        assert_eq!(drain(&mut arrivals, &lane), []);
        assert_eq!(come(&mut arrivals, 1, b"one"), Some(lane.clone()));
        assert_eq!(drain(&mut arrivals, &lane), [Some(b"one".to_vec()), Some(b"two".to_vec())]);
        assert!(arrivals.must_wait(&lane), "the third waits for its bytes");
        assert_eq!(come(&mut arrivals, 2, b"damaged"), Some(lane.clone()));
        assert_eq!(drain(&mut arrivals, &lane), [None]);
        assert!(!arrivals.must_wait(&lane));
        assert_eq!(arrivals.held_bytes(), 0);
    }

    #[test]
    fn bytes_that_will_not_come_say_why_and_hold_up_nothing() {
        let lane = Lane::Service("s".into());
        let mut arrivals = Arrivals::default();
        arrivals.push(lane.clone(), Packed::default(), handle(1, b"one"));
        arrivals.push(lane.clone(), Packed::default(), Content::Here(b"two".to_vec()));
        assert_eq!(arrivals.blob(1, Err("nobody has them".into()), None), Some(lane.clone()));
        assert!(arrivals.begin(&lane));
        let given: Vec<_> = std::iter::from_fn(|| arrivals.next(&lane)).map(|due| due.bytes).collect();
        assert_eq!(given, [Err("nobody has them".to_owned()), Ok(b"two".to_vec())]);
    }

    #[test]
    fn a_blob_may_come_before_its_frame_and_a_lane_has_one_who_gives_out() {
        let lane = Lane::Answer(9);
        let mut arrivals = Arrivals::default();
        assert_eq!(come(&mut arrivals, 5, b"early"), None);
        arrivals.push(lane.clone(), Packed::default(), handle(5, b"early"));
        assert!(arrivals.begin(&lane));
        assert!(!arrivals.begin(&lane), "one at a time");
        arrivals.push(lane.clone(), Packed::default(), Content::Here(b"late".to_vec()));
        let given: Vec<_> = std::iter::from_fn(|| arrivals.next(&lane)).map(|due| due.bytes.unwrap()).collect();
        assert_eq!(given, [b"early".to_vec(), b"late".to_vec()]);
    }
}
