//! Who passes payloads on, and who is asked first: a pure state machine.
//!
//! Receivers of one payload stand in line in the order in which they asked. Each is told of those before it, the nearest
//! first, and takes the bytes from there while they still arrive there, so that the publisher sends each payload about once
//! however many receivers there are. Nobody is told of those behind it; after so many a new line begins at the publisher.

use std::collections::BTreeMap;

use greenroom_messages::weights::{BulkHolder, BulkRelay};

/// How many stand in one line: each place adds a round trip and a chunk.
const LONGEST: usize = 16;

/// The lines of all payloads; see the module's page.
#[derive(Debug, Default)]
pub(crate) struct Relays {
    by_object: BTreeMap<String, Vec<BulkHolder>>,
}

impl Relays {
    /// Whom the asker fetches `object` from before the publisher, of those that `is_up`. It has its place from now on, and
    /// none any more for what it does not hold.
    pub(crate) fn before(
        &mut self,
        object: &str,
        asker: &BulkRelay,
        is_up: impl Fn(&BulkHolder) -> bool,
    ) -> Vec<BulkHolder> {
        let BulkRelay { holder, holds } = asker;
        for (of, line) in &mut self.by_object {
            if !holds.contains(of) {
                line.retain(|other| other.node != holder.node);
            }
        }
        self.by_object.retain(|_, line| !line.is_empty());
        let line = self.by_object.entry(object.to_owned()).or_default();
        let place = line.iter().position(|other| other.node == holder.node).unwrap_or_else(|| {
            line.push(holder.clone());
            line.len() - 1
        });
        // after a restart it may be elsewhere
        line[place] = holder.clone();
        let begin = place - place % LONGEST;
        line[begin..place].iter().rev().filter(|other| is_up(other)).cloned().collect()
    }

    /// A payload is offered no more.
    pub(crate) fn forget(&mut self, object: &str) {
        self.by_object.remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(node: &str) -> BulkHolder {
        BulkHolder { node: node.to_owned(), address: format!("{node}:1") }
    }

    fn asks(relays: &mut Relays, object: &str, node: &str, holds: &[&str]) -> String {
        let holds = holds.iter().map(ToString::to_string).collect();
        let asker = BulkRelay { holder: holder(node), holds };
        let before = relays.before(object, &asker, |other| other.node != "dead");
        before.into_iter().map(|holder| holder.node + " ").collect()
    }

    #[test]
    fn each_is_told_of_those_before_it_nearest_first_and_keeps_its_place() {
        let mut relays = Relays::default();
        assert_eq!(asks(&mut relays, "v1", "a", &[]), "");
        assert_eq!(asks(&mut relays, "v1", "b", &[]), "a ");
        assert_eq!(asks(&mut relays, "v1", "c", &[]), "b a ");
        assert_eq!(asks(&mut relays, "v1", "b", &["v1"]), "a ", "it asks again");
        assert_eq!(asks(&mut relays, "v2", "c", &["v1"]), "");
        assert_eq!(asks(&mut relays, "v2", "a", &[]), "c ");
        assert_eq!(asks(&mut relays, "v1", "d", &[]), "c b ", "a holds the first no more");
        assert_eq!(asks(&mut relays, "v1", "b", &[]), "d c ", "who has lost it stands at the end");
        relays.forget("v1");
        assert_eq!(asks(&mut relays, "v1", "e", &[]), "");
    }

    #[test]
    fn the_dead_are_not_named_and_long_lines_are_several() {
        let mut relays = Relays::default();
        for number in 0..LONGEST - 2 {
            asks(&mut relays, "v1", &number.to_string(), &[]);
        }
        assert_eq!(asks(&mut relays, "v1", "dead", &[]).split(' ').next(), Some("13"));
        assert_eq!(asks(&mut relays, "v1", "last", &[]).split(' ').next(), Some("13"));
        assert_eq!(asks(&mut relays, "v1", "first", &[]), "", "a new line begins");
        assert_eq!(asks(&mut relays, "v1", "second", &[]), "first ");
    }

    #[test]
    fn a_restarted_relay_is_found_at_its_new_address() {
        let mut relays = Relays::default();
        asks(&mut relays, "v1", "a", &[]);
        let moved = BulkHolder { node: "a".into(), address: "a:2".into() };
        relays.before("v1", &BulkRelay { holder: moved.clone(), holds: vec!["v1".into()] }, |_| true);
        let asker = BulkRelay { holder: holder("b"), holds: Vec::new() };
        assert_eq!(relays.before("v1", &asker, |_| true), [moved]);
    }
}
