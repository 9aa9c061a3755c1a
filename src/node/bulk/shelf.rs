//! Which objects of the store are still needed; a pure state machine.
//!
//! An object that is offered here may have been fetched here as well, where a node both publishes and receives: it goes when
//! neither is so any more.

use std::collections::BTreeSet;

use greenroom_dataplane::ObjectId;

/// How many fetched objects are kept for others: the one that is being fetched, and the one before.
const KEPT: usize = 2;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    offered: BTreeSet<ObjectId>,
    /// The newest stands last.
    fetched: Vec<ObjectId>,
}

impl Shelf {
    /// The shelf on which an earlier process left these, the newest last; and what of it is to be removed.
    pub(super) fn with(left: Vec<ObjectId>) -> (Self, Vec<ObjectId>) {
        let mut shelf = Self { offered: BTreeSet::new(), fetched: left };
        let lapsed = shelf.keep(KEPT);
        (shelf, lapsed)
    }

    pub(super) fn offer(&mut self, object: ObjectId) {
        self.offered.insert(object);
    }

    /// An object is offered no more; gives it where it is to be removed.
    pub(super) fn withdraw(&mut self, object: ObjectId) -> Option<ObjectId> {
        self.offered.remove(&object);
        (!self.fetched.contains(&object)).then_some(object)
    }

    /// Makes room for one more fetched object; gives those to be removed, and the fetched ones that stay.
    pub(super) fn make_room(&mut self) -> (Vec<ObjectId>, Vec<ObjectId>) {
        let unneeded = self.keep(KEPT - 1);
        (unneeded, self.fetched.clone())
    }

    /// An object is being fetched.
    pub(super) fn fetch(&mut self, object: ObjectId) {
        self.fetched.retain(|other| *other != object);
        self.fetched.push(object);
    }

    fn keep(&mut self, most: usize) -> Vec<ObjectId> {
        let lapsed = self.fetched.len().saturating_sub(most);
        let unneeded = self.fetched.drain(..lapsed).filter(|object| !self.offered.contains(object));
        unneeded.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(number: u8) -> ObjectId {
        ObjectId([number; 32])
    }

    #[test]
    fn the_newest_fetched_objects_stay_and_what_is_offered_stays_with_them() {
        let (mut shelf, lapsed) = Shelf::with(vec![object(1), object(2), object(3)]);
        assert_eq!(lapsed, [object(1)]);
        shelf.offer(object(2));
        assert_eq!(shelf.make_room(), (vec![], vec![object(3)]), "the second is offered");
        shelf.fetch(object(4));
        shelf.fetch(object(4));
        assert_eq!(shelf.make_room(), (vec![object(3)], vec![object(4)]));
        assert_eq!(shelf.withdraw(object(2)), Some(object(2)));
        shelf.offer(object(4));
        assert_eq!(shelf.withdraw(object(4)), None, "others fetch it from here still");
    }
}
