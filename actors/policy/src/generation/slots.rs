//! Which slot of the arena holds which tokens, who uses it, and whose prefix can be reused.
//!
//! Invariants: `tokens` of a slot are exactly those whose keys and values are in the arena; a slot is used by at most one
//! request; a free slot keeps its tokens until it is needed (least recently used first); only requests of the same key share
//! what a slot holds.

use crate::network::KeyValueArena;

/// One slot.
#[derive(Debug, Clone, Default)]
struct Slot {
    tokens: Vec<u32>,
    key: String,
    busy: bool,
    last_used: u64,
}

impl Slot {
    /// How many of the first tokens it holds for requests of this key.
    fn shared(&self, tokens: &[u32], key: &str) -> usize {
        if self.key == key { common_prefix(&self.tokens, tokens) } else { 0 }
    }
}

/// A place given to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The slot.
    pub slot: usize,
    /// Tokens whose keys and values are already there, or will be after the copy.
    pub cached: usize,
    /// The slot to copy them from, if they are not there yet.
    pub copy_from: Option<usize>,
}

/// All slots.
#[derive(Debug)]
pub struct SlotTable {
    slots: Vec<Slot>,
    now: u64,
}

impl SlotTable {
    /// A table of empty slots.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { slots: vec![Slot::default(); count], now: 0 }
    }

    /// A table for an arena.
    #[must_use]
    pub fn of(arena: &KeyValueArena) -> Self {
        Self::new(arena.slots())
    }

    /// How many of the first tokens some slot holds for requests of this key.
    #[must_use]
    pub fn longest_prefix(&self, tokens: &[u32], key: &str) -> usize {
        self.slots.iter().map(|slot| slot.shared(tokens, key)).max().unwrap_or(0)
    }

    /// Gives a slot to a request of this key with these tokens, of which at most the first `limit` may be reused. `None`:
    /// all are busy.
    pub fn place(&mut self, tokens: &[u32], limit: usize, key: &str) -> Option<Placement> {
        let wanted = &tokens[..limit.min(tokens.len())];
        let best = self.best_source(wanted, key);
        let cached = best.map_or(0, |slot| self.slots[slot].shared(wanted, key));
        let source = best.filter(|_| cached > 0);
        let slot = self.choose_target(source, cached)?;
        self.now += 1;
        let target = &mut self.slots[slot];
        target.busy = true;
        target.last_used = self.now;
        target.tokens.clear();
        target.tokens.extend_from_slice(&wanted[..cached]);
        key.clone_into(&mut target.key);
        Some(Placement { slot, cached, copy_from: source.filter(|&source| source != slot) })
    }

    /// The slot with the longest common prefix; of equals a free one, then the lowest.
    fn best_source(&self, wanted: &[u32], key: &str) -> Option<usize> {
        let rank = |index: &usize| {
            let slot = &self.slots[*index];
            (slot.shared(wanted, key), !slot.busy, std::cmp::Reverse(*index))
        };
        (0..self.slots.len()).max_by_key(rank)
    }

    /// A free slot: the source itself if the request continues all of it (or nothing else is free), else the one that was
    /// used longest ago.
    fn choose_target(&self, source: Option<usize>, cached: usize) -> Option<usize> {
        let free_source = source.filter(|&source| !self.slots[source].busy);
        if let Some(source) = free_source
            && self.slots[source].tokens.len() == cached
        {
            return Some(source);
        }
        let others = (0..self.slots.len()).filter(|&index| !self.slots[index].busy && Some(index) != free_source);
        others.min_by_key(|&index| self.slots[index].last_used).or(free_source)
    }

    /// Notes that keys and values of more tokens are in the slot.
    pub fn extend(&mut self, slot: usize, tokens: &[u32]) {
        debug_assert!(self.slots[slot].busy, "slot {slot} grows while nobody uses it");
        self.slots[slot].tokens.extend_from_slice(tokens);
    }

    /// Frees a slot; its tokens stay reusable unless `forget`.
    pub fn release(&mut self, slot: usize, forget: bool) {
        self.now += 1;
        let released = &mut self.slots[slot];
        debug_assert!(released.busy, "slot {slot} is freed twice");
        released.busy = false;
        released.last_used = if forget { 0 } else { self.now };
        if forget {
            released.tokens.clear();
        }
    }

    /// Forgets the tokens of all free slots.
    pub fn clear_free(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.busy) {
            slot.tokens.clear();
            slot.last_used = 0;
        }
    }

    /// Tokens held by busy and by free slots.
    #[must_use]
    pub fn token_counts(&self) -> (usize, usize) {
        let count = |busy: bool| self.slots.iter().filter(|slot| slot.busy == busy).map(|slot| slot.tokens.len()).sum();
        (count(true), count(false))
    }
}

/// Length of the common beginning.
#[must_use]
pub fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(table: &mut SlotTable, tokens: &[u32]) -> usize {
        let placement = table.place(tokens, 0, "").unwrap();
        table.extend(placement.slot, tokens);
        placement.slot
    }

    #[test]
    fn a_continued_conversation_takes_its_slot_again_without_a_copy() {
        let mut table = SlotTable::new(3);
        let slot = filled(&mut table, &[1, 2, 3]);
        table.release(slot, false);
        assert_eq!(table.place(&[1, 2, 3, 4], 3, ""), Some(Placement { slot, cached: 3, copy_from: None }));
    }

    #[test]
    fn a_sibling_copies_the_prefix_from_a_busy_or_longer_slot() {
        let mut table = SlotTable::new(3);
        let busy = filled(&mut table, &[1, 2, 3]);
        let placement = table.place(&[1, 2, 9], 2, "").unwrap();
        assert_eq!((placement.cached, placement.copy_from), (2, Some(busy)));
        assert_ne!(placement.slot, busy);
        table.release(busy, false);
        let third = table.place(&[1, 7], 1, "").unwrap();
        assert_eq!(third.cached, 1);
        assert_ne!(third.slot, busy, "an empty slot is taken before a useful one");
    }

    #[test]
    fn the_last_free_slot_is_cut_to_the_common_prefix() {
        let mut table = SlotTable::new(1);
        let slot = filled(&mut table, &[1, 2, 3]);
        assert_eq!(table.place(&[1], 1, ""), None, "all busy");
        table.release(slot, false);
        assert_eq!(table.place(&[1, 2, 8], 2, ""), Some(Placement { slot, cached: 2, copy_from: None }));
        assert_eq!(table.longest_prefix(&[1, 2, 3], ""), 2);
    }

    #[test]
    fn requests_of_another_key_share_nothing() {
        let mut table = SlotTable::new(3);
        let slot = table.place(&[1, 2, 3], 0, "run:1").unwrap().slot;
        table.extend(slot, &[1, 2, 3]);
        table.release(slot, false);
        assert_eq!((table.longest_prefix(&[1, 2, 3], "run:2"), table.longest_prefix(&[1, 2, 3], "run:1")), (0, 3));
        let other = table.place(&[1, 2, 3, 4], 3, "run:2").unwrap();
        assert_eq!((other.cached, other.copy_from), (0, None));
        assert_ne!(other.slot, slot, "what others may still use is kept while there is room");
        assert_eq!(table.place(&[1, 2, 3, 4], 3, "run:1").unwrap().cached, 3);
    }

    #[test]
    fn forgotten_tokens_are_not_reused_and_the_limit_holds() {
        let mut table = SlotTable::new(2);
        let slot = filled(&mut table, &[1, 2, 3]);
        table.release(slot, true);
        assert_eq!(table.longest_prefix(&[1, 2, 3], ""), 0);
        let slot = filled(&mut table, &[5, 6, 7]);
        table.release(slot, false);
        assert_eq!(table.place(&[5, 6, 7], 2, "").unwrap().cached, 2);
        assert_eq!(table.token_counts(), (2, 3), "the longer original stays");
        table.clear_free();
        assert_eq!(table.token_counts(), (2, 0));
    }
}
