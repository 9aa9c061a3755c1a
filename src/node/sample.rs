//! What tests take for a member of a cluster.

use greenroom_cluster::{Member, MemberState};

/// A node that is up and plays these roles.
pub(crate) fn member(name: &str, roles: &[&str]) -> Member {
    Member {
        name: name.to_owned(),
        incarnation: 1,
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        address: String::new(),
        state: MemberState::Alive,
        since_ms: 0,
        services: Vec::new(),
        certificate: None,
        build: String::new(),
        clock_skew_ms: None,
        last_heard_ms: 0,
        round_trip_ms: None,
    }
}
