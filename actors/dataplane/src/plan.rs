//! Which chunk is asked of which peer next: a pure state machine.
//!
//! Peers stand in the order in which they should be asked. One that fails is left alone for a while that doubles with each
//! failure in a row, and then asked again, so that a transfer comes back to the peer it should use. One that is slow is left
//! alone for longer. Bytes that do not have their hash are asked of another peer, and who sends such bytes too often is not
//! asked any more.

use std::collections::{BTreeMap, BTreeSet};

/// How long a peer is left alone after its first failure, ms; it doubles with each further one.
const FIRST_PAUSE_MS: u64 = 200;
const LONGEST_PAUSE_MS: u64 = 5000;
/// How long a slow peer is left alone, ms; it doubles each time.
const SLOW_PAUSE_MS: u64 = 10_000;
/// A peer whose bytes were damaged this often is not asked any more.
const MAX_DAMAGED: u32 = 3;

/// What a worker should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Everything is here.
    Done,
    /// Ask this peer.
    Peer(usize),
    /// Nothing can be asked before this time, ms, unless something changes.
    Wait { until_ms: u64 },
    /// Every missing chunk is on its way: something will change.
    Idle,
    /// There is a chunk that nobody may be asked for any more.
    Hopeless,
}

/// What is known of one peer.
#[derive(Clone, Debug, Default)]
struct Peer {
    retry_at_ms: u64,
    failures_in_a_row: u32,
    /// Until when it is left alone because it was slow, and how often that was so.
    slow_until_ms: u64,
    slow_times: u32,
    damaged: u32,
    /// It will never be asked again.
    dropped: bool,
    /// What it said or did last, when that was no chunk.
    last: Option<String>,
    chunks: u64,
}

impl Peer {
    fn ready_at_ms(&self) -> u64 {
        self.retry_at_ms.max(self.slow_until_ms)
    }
}

/// The state of one fetch.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    peers: Vec<Peer>,
    missing: BTreeSet<u32>,
    asked: BTreeMap<u32, usize>,
    /// Chunks that a peer sent damaged.
    spoiled: BTreeSet<(u32, usize)>,
}

impl Plan {
    pub(crate) fn new(peers: usize, missing: impl IntoIterator<Item = u32>) -> Self {
        Self {
            peers: vec![Peer::default(); peers],
            missing: missing.into_iter().collect(),
            asked: BTreeMap::new(),
            spoiled: BTreeSet::new(),
        }
    }

    /// What to do now: the first peer in order that is not left alone and may be asked for something.
    pub(crate) fn choose(&self, now_ms: u64) -> Choice {
        if self.missing.is_empty() {
            return if self.asked.is_empty() { Choice::Done } else { Choice::Idle };
        }
        let able = |peer: &usize| !self.peers[*peer].dropped && self.next(*peer).is_some();
        let mut earliest = None;
        for peer in (0..self.peers.len()).filter(able) {
            let ready_at_ms = self.peers[peer].ready_at_ms();
            if ready_at_ms <= now_ms {
                return Choice::Peer(peer);
            }
            earliest = Some(earliest.map_or(ready_at_ms, |least: u64| least.min(ready_at_ms)));
        }
        match earliest {
            Some(until_ms) => Choice::Wait { until_ms },
            None if self.asked.is_empty() => Choice::Hopeless,
            None => Choice::Idle,
        }
    }

    fn next(&self, peer: usize) -> Option<u32> {
        self.missing.iter().copied().find(|index| !self.spoiled.contains(&(*index, peer)))
    }

    /// The next chunk to ask this peer for; it counts as asked from now on.
    pub(crate) fn take(&mut self, peer: usize) -> Option<u32> {
        let index = self.next(peer)?;
        self.missing.remove(&index);
        self.asked.insert(index, peer);
        Some(index)
    }

    /// A chunk is here.
    pub(crate) fn received(&mut self, index: u32, peer: usize) {
        self.asked.remove(&index);
        self.missing.remove(&index);
        let peer = &mut self.peers[peer];
        peer.failures_in_a_row = 0;
        peer.retry_at_ms = 0;
        peer.chunks += 1;
    }

    /// A chunk came, but not with its hash.
    pub(crate) fn damaged(&mut self, index: u32, peer: usize) {
        self.give_back(index);
        self.spoiled.insert((index, peer));
        let peer = &mut self.peers[peer];
        peer.damaged += 1;
        peer.dropped |= peer.damaged >= MAX_DAMAGED;
        peer.last = Some(format!("sent {} damaged chunks", peer.damaged));
    }

    /// A chunk that was asked for will not come.
    pub(crate) fn give_back(&mut self, index: u32) {
        if self.asked.remove(&index).is_some() {
            self.missing.insert(index);
        }
    }

    /// A peer failed, or has nothing now: it is left alone for a while, or for ever.
    pub(crate) fn failed(&mut self, peer: usize, now_ms: u64, reason: String, for_ever: bool) {
        let peer = &mut self.peers[peer];
        // several workers see the same failure at once: it counts once
        if peer.retry_at_ms <= now_ms {
            let pause_ms = FIRST_PAUSE_MS.saturating_mul(1 << peer.failures_in_a_row.min(10)).min(LONGEST_PAUSE_MS);
            peer.failures_in_a_row += 1;
            peer.retry_at_ms = now_ms + pause_ms;
        }
        peer.dropped |= for_ever;
        peer.last = Some(reason);
    }

    /// Whether somebody else than this peer may be asked now.
    pub(crate) fn has_other(&self, peer: usize, now_ms: u64) -> bool {
        let others = self.peers.iter().enumerate().filter(|(number, _)| *number != peer);
        others.into_iter().any(|(_, other)| !other.dropped && other.ready_at_ms() <= now_ms)
    }

    /// A peer is slow: others are asked for a while.
    pub(crate) fn slow(&mut self, peer: usize, now_ms: u64, reason: String) {
        let peer = &mut self.peers[peer];
        // several workers see it at once: it counts once
        if peer.slow_until_ms <= now_ms {
            peer.slow_until_ms = now_ms + (SLOW_PAUSE_MS << peer.slow_times.min(5));
            peer.slow_times += 1;
        }
        peer.last = Some(reason);
    }

    /// How many chunks each peer gave.
    pub(crate) fn chunks_by_peer(&self) -> Vec<u64> {
        self.peers.iter().map(|peer| peer.chunks).collect()
    }

    /// How many chunks came damaged.
    pub(crate) fn damaged_chunks(&self) -> u64 {
        self.peers.iter().map(|peer| u64::from(peer.damaged)).sum()
    }

    /// What each peer said or did last, where it was no chunk.
    pub(crate) fn told(&self) -> Vec<Option<String>> {
        self.peers.iter().map(|peer| peer.last.clone()).collect()
    }

    /// Whether no peer will ever be asked again.
    pub(crate) fn all_dropped(&self) -> bool {
        self.peers.iter().all(|peer| peer.dropped)
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::Seed;
    use rand::Rng;

    use super::*;

    #[test]
    fn the_first_peer_is_preferred_left_alone_after_a_failure_and_come_back_to() {
        let mut plan = Plan::new(2, 0..4);
        assert_eq!((plan.choose(0), plan.take(0)), (Choice::Peer(0), Some(0)));
        plan.failed(0, 0, "cut".into(), false);
        plan.failed(0, 0, "cut".into(), false);
        plan.give_back(0);
        assert_eq!((plan.choose(199), plan.take(1)), (Choice::Peer(1), Some(0)));
        plan.failed(1, 50, "cut".into(), false);
        plan.give_back(0);
        assert_eq!(plan.choose(199), Choice::Wait { until_ms: 200 });
        assert_eq!(plan.choose(200), Choice::Peer(0), "a pause ends");
        plan.failed(0, 200, "cut".into(), false);
        assert_eq!(plan.choose(250), Choice::Peer(1));
        assert_eq!(plan.choose(600), Choice::Peer(0), "the second pause was twice as long");
        for index in 0..4 {
            assert_eq!(plan.take(0), Some(index));
        }
        assert_eq!(plan.choose(600), Choice::Idle);
        (0..4).for_each(|index| plan.received(index, 0));
        assert_eq!((plan.choose(600), plan.chunks_by_peer()), (Choice::Done, vec![4, 0]));
    }

    #[test]
    fn a_slow_peer_is_left_alone_for_long_even_if_it_gives_something_meanwhile() {
        let mut plan = Plan::new(2, 0..4);
        assert!(plan.has_other(0, 0));
        assert_eq!(plan.take(0), Some(0));
        plan.slow(0, 0, "slow".into());
        plan.slow(0, 0, "slow".into());
        plan.received(0, 0);
        assert_eq!(plan.choose(9_999), Choice::Peer(1));
        assert!(!plan.has_other(1, 9_999), "there is nobody better to go to");
        assert_eq!(plan.choose(10_000), Choice::Peer(0));
        plan.slow(0, 10_000, "slow".into());
        assert_eq!(plan.choose(29_999), Choice::Peer(1), "the second pause is twice as long");
        plan.failed(1, 29_000, "gone".into(), true);
        assert_eq!(plan.choose(29_999), Choice::Wait { until_ms: 30_000 });
    }

    #[test]
    fn damaged_bytes_are_asked_of_another_peer_and_then_of_nobody() {
        let mut plan = Plan::new(2, 0..5);
        for _ in 0..2 {
            let index = plan.take(0).unwrap();
            plan.damaged(index, 0);
        }
        assert_eq!(plan.take(0), Some(2), "chunks 0 and 1 are not asked of it again");
        plan.damaged(2, 0);
        assert_eq!(plan.choose(0), Choice::Peer(1), "three were enough");
        assert_eq!(plan.take(1), Some(0));
        plan.damaged(0, 1);
        plan.failed(1, 0, "gone".into(), true);
        assert_eq!((plan.choose(9), plan.all_dropped(), plan.damaged_chunks()), (Choice::Hopeless, true, 4));
    }

    #[test]
    fn whatever_peers_do_a_chunk_is_never_lost_nor_asked_twice_at_once() {
        for seed in 0..300 {
            let mut random = Seed::new(seed).random();
            let (chunks, peers) = (random.random_range(1..40), random.random_range(1..5));
            let mut plan = Plan::new(peers, 0..chunks);
            let (mut here, mut under_way, mut now_ms) = (BTreeSet::new(), Vec::<(u32, usize)>::new(), 0);
            for _ in 0..20_000 {
                now_ms += random.random_range(0..300);
                match plan.choose(now_ms) {
                    Choice::Done => break,
                    Choice::Hopeless => break,
                    Choice::Peer(peer) if under_way.len() < 8 => {
                        let index = plan.take(peer).unwrap();
                        assert!(!here.contains(&index) && under_way.iter().all(|(other, _)| *other != index));
                        under_way.push((index, peer));
                    }
                    Choice::Wait { until_ms } => assert!(until_ms > now_ms),
                    Choice::Peer(_) | Choice::Idle => assert!(!under_way.is_empty()),
                }
                if under_way.is_empty() || random.random_ratio(1, 2) {
                    continue;
                }
                let (index, peer) = under_way.remove(random.random_range(0..under_way.len()));
                match random.random_range(0..20) {
                    0 => plan.damaged(index, peer),
                    1..4 => {
                        plan.failed(peer, now_ms, "cut".into(), random.random_ratio(1, 50));
                        under_way.push((index, peer));
                        let lost = under_way.extract_if(.., |(_, of)| *of == peer);
                        lost.for_each(|(index, _)| plan.give_back(index));
                    }
                    _ => {
                        plan.received(index, peer);
                        here.insert(index);
                    }
                }
            }
            match plan.choose(u64::MAX) {
                Choice::Done => assert_eq!(here.len() as u32, chunks, "seed {seed}"),
                Choice::Hopeless => assert!(plan.damaged_chunks() > 0 || plan.all_dropped(), "seed {seed}"),
                other => panic!("seed {seed} ended with {other:?}"),
            }
        }
    }
}
