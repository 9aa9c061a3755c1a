//! Who is in the cluster, as a pure state machine over what was heard and when.
//!
//! Invariants: of one name at most one incarnation is up, the newest one ever seen; what has left or died comes back only
//! by joining; each change of state gives exactly one event. Times are milliseconds of the process's clock (`now`) for
//! silence, and dates for people.

use std::collections::BTreeMap;

use crate::{Member, MemberEvent, MemberState};

/// How many members that are gone are remembered.
const REMEMBERED_GONE: usize = 1024;

/// A moment: since the process began, and as a date.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub elapsed_ms: u64,
    pub date_ms: u64,
}

/// The members known here, but for this node itself.
#[derive(Debug)]
pub(crate) struct Membership {
    suspect_ms: u64,
    dead_ms: u64,
    members: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    member: Member,
    heard_ms: u64,
}

impl Membership {
    pub(crate) fn new(suspect_ms: u64, dead_ms: u64) -> Self {
        Self { suspect_ms, dead_ms, members: BTreeMap::new() }
    }

    /// The newest incarnation ever seen of a node.
    pub(crate) fn newest(&self, node: &str) -> Option<u64> {
        self.members.get(node).map(|entry| entry.member.incarnation)
    }

    /// Whether this incarnation is up.
    pub(crate) fn is_up(&self, node: &str, incarnation: u64) -> bool {
        self.members.get(node).is_some_and(|entry| entry.member.is_up() && entry.member.incarnation == incarnation)
    }

    /// What is known of a node, whether it is up or not.
    pub(crate) fn member(&self, node: &str) -> Option<&Member> {
        self.members.get(node).map(|entry| &entry.member)
    }

    /// All members, sorted by name.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.members.values().map(|entry| entry.member.clone()).collect()
    }

    /// A node has a line to here. Gives no event when it had been up all the time. An older incarnation than the newest
    /// one is a caller's error and changes nothing.
    pub(crate) fn joined(&mut self, mut member: Member, now: Moment) -> Vec<MemberEvent> {
        let mut events = Vec::new();
        if let Some(known) = self.members.get_mut(&member.name) {
            let (newest, came) = (known.member.incarnation, member.incarnation);
            if came < newest {
                return events;
            }
            if came == newest && known.member.is_up() {
                return self.heard(&member.name, came, now);
            }
            if known.member.is_up() {
                let reason = format!("it was restarted: incarnation {came} has joined");
                events.push(died(&known.member, reason));
            }
        }
        member.state = MemberState::Alive;
        member.since_ms = now.date_ms;
        member.last_heard_ms = now.date_ms;
        events.push(MemberEvent::Joined(member.clone()));
        self.members.insert(member.name.clone(), Entry { member, heard_ms: now.elapsed_ms });
        self.forget();
        events
    }

    /// A sign of life.
    pub(crate) fn heard(&mut self, node: &str, incarnation: u64, now: Moment) -> Vec<MemberEvent> {
        let Some(entry) = self.up(node, incarnation).filter(|entry| entry.heard_ms < now.elapsed_ms) else {
            // the same sign once more is no sign
            return Vec::new();
        };
        entry.heard_ms = now.elapsed_ms;
        entry.member.last_heard_ms = entry.member.last_heard_ms.max(now.date_ms);
        if entry.member.state != MemberState::Suspect {
            return Vec::new();
        }
        entry.member.state = MemberState::Alive;
        entry.member.since_ms = now.date_ms;
        vec![MemberEvent::Recovered { node: node.to_owned(), incarnation }]
    }

    /// For so long this process stood still: that is nobody's silence.
    pub(crate) fn excuse(&mut self, stalled_ms: u64) {
        self.members.values_mut().for_each(|entry| entry.heard_ms += stalled_ms);
    }

    /// Time has passed: who was silent for too long?
    pub(crate) fn tick(&mut self, now: Moment) -> Vec<MemberEvent> {
        let mut events = Vec::new();
        for entry in self.members.values_mut() {
            let silent_ms = now.elapsed_ms.saturating_sub(entry.heard_ms);
            let member = &mut entry.member;
            if member.is_up() && silent_ms >= self.dead_ms {
                events.push(died(member, format!("it has been silent for {silent_ms} ms")));
                (member.state, member.since_ms) = (MemberState::Dead, now.date_ms);
            } else if member.state == MemberState::Alive && silent_ms >= self.suspect_ms {
                (member.state, member.since_ms) = (MemberState::Suspect, now.date_ms);
                let (node, incarnation) = (member.name.clone(), member.incarnation);
                events.push(MemberEvent::Suspect { node, incarnation });
            }
        }
        events
    }

    /// A node is known to be dead, without waiting for its silence to last.
    pub(crate) fn died(&mut self, node: &str, incarnation: u64, reason: &str, now: Moment) -> Vec<MemberEvent> {
        let Some(entry) = self.up(node, incarnation) else { return Vec::new() };
        (entry.member.state, entry.member.since_ms) = (MemberState::Dead, now.date_ms);
        vec![died(&entry.member, reason.to_owned())]
    }

    /// A node said good-bye.
    pub(crate) fn left(&mut self, node: &str, incarnation: u64, now: Moment) -> Vec<MemberEvent> {
        let Some(entry) = self.up(node, incarnation) else { return Vec::new() };
        (entry.member.state, entry.member.since_ms) = (MemberState::Left, now.date_ms);
        vec![MemberEvent::Left { node: node.to_owned(), incarnation }]
    }

    /// A node said what it offers.
    pub(crate) fn offers(&mut self, node: &str, incarnation: u64, services: Vec<String>) -> Vec<MemberEvent> {
        let Some(entry) = self.up(node, incarnation) else { return Vec::new() };
        if entry.member.services == services {
            return Vec::new();
        }
        entry.member.services.clone_from(&services);
        vec![MemberEvent::Services { node: node.to_owned(), services }]
    }

    /// What a heartbeat told of a node's clock and of the way to it.
    pub(crate) fn measured(&mut self, node: &str, incarnation: u64, skew_ms: i64, round_trip_ms: Option<f64>) {
        if let Some(entry) = self.up(node, incarnation) {
            entry.member.clock_skew_ms = Some(skew_ms);
            entry.member.round_trip_ms = round_trip_ms.or(entry.member.round_trip_ms);
        }
    }

    fn up(&mut self, node: &str, incarnation: u64) -> Option<&mut Entry> {
        self.members.get_mut(node).filter(|entry| entry.member.is_up() && entry.member.incarnation == incarnation)
    }

    /// Keeps the memory of those who are gone within bounds: who went first is forgotten first.
    fn forget(&mut self) {
        let gone = self.members.values().filter(|entry| !entry.member.is_up());
        let mut gone: Vec<(u64, String)> =
            gone.map(|entry| (entry.member.since_ms, entry.member.name.clone())).collect();
        if gone.len() > REMEMBERED_GONE {
            gone.sort();
            for (_, name) in gone.drain(..REMEMBERED_GONE / 4) {
                self.members.remove(&name);
            }
        }
    }
}

fn died(member: &Member, reason: String) -> MemberEvent {
    MemberEvent::Died { node: member.name.clone(), incarnation: member.incarnation, reason }
}

#[cfg(test)]
#[path = "membership_tests.rs"]
mod tests;
