//! Two nodes with the role controller in one run: which of them leads, and which gives way.
//!
//! Who runs the Conductor comes before who only answers nodes, that one before who has just come; among equals the earlier
//! start counts. All sides see the same members, so they agree, if not at once: a node obeys the controller that it
//! enlisted with whatever others say. A controller that was started again under its name is no other one.

use std::cmp::Reverse;
use std::time::Duration;

use greenroom_cluster::{Cluster, Dialled, Member};
use tokio::time::Instant;

use super::{NodeConfig, NodeError, service};
use crate::up::Talk;

/// How often it is looked who has come.
const LOOK: Duration = Duration::from_millis(50);

fn is_controller(member: &Member) -> bool {
    member.is_up() && member.roles.iter().any(|role| role == "controller")
}

/// Whether nodes can enlist with this member.
pub(super) fn answers(member: &Member) -> bool {
    offers(member, service::CONTROLLER.name())
}

fn offers(member: &Member, service: &str) -> bool {
    member.services.iter().any(|offered| offered == service)
}

/// The controller that leads, of all that are up.
pub(super) fn chief(members: &[Member]) -> Option<&Member> {
    let standing = |member: &Member| match (offers(member, service::CONDUCTOR.name()), answers(member)) {
        (true, _) => 2,
        (false, true) => 1,
        (false, false) => 0,
    };
    let rank = |member: &&Member| (Reverse(standing(member)), member.incarnation, member.name.clone());
    members.iter().filter(|member| is_controller(member)).min_by_key(rank)
}

/// The error of a controller that must give way, if it must.
fn superior(cluster: &Cluster) -> Option<NodeError> {
    let (members, me) = (cluster.members(), cluster.me().name);
    let chief = chief(&members).filter(|chief| chief.name != me)?;
    Some(NodeError::SecondController { node: chief.name.clone(), address: chief.address.clone() })
}

/// Lets a controller that has just come look around before it offers anything: as long as it takes to hear from the others
/// of all others, where anybody answers.
pub(super) async fn look_around(cluster: &Cluster, node: &NodeConfig) -> Result<(), NodeError> {
    let until = Instant::now() + Duration::from_millis(node.cluster.heartbeat_ms.saturating_mul(2).min(5_000));
    loop {
        if let Some(error) = superior(cluster) {
            return Err(error);
        }
        let me = cluster.me().name;
        let is_alone = !cluster.members().iter().any(|member| member.is_up() && member.name != me)
            && cluster.seeds().iter().all(|(_, dialled)| matches!(dialled, Dialled::Failed(_) | Dialled::Itself));
        if is_alone || Instant::now() >= until {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Resolves when this controller must give way; says of others that they must.
pub(super) async fn gives_way(cluster: &Cluster, talk: &Talk) -> NodeError {
    let (mut events, me) = (cluster.events(), cluster.me().name);
    let mut told = None;
    loop {
        if let Some(error) = superior(cluster) {
            return error;
        }
        let members = cluster.members();
        let other = members.iter().find(|member| is_controller(member) && member.name != me);
        if let Some(Member { name, address, .. }) = other
            && told.as_ref() != Some(name)
        {
            tracing::warn!(code = "GR0927", node = name, address, "another node with the role controller is here");
            talk(&format!(
                "the node {name} at {address} is a second controller of this run: it must give way (GR0927)"
            ));
            told = Some(name.clone());
        }
        if events.recv().await.is_none() {
            // this node has left: what it waits for otherwise ends, too
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_cluster::MemberState::{self, Alive, Dead, Suspect};

    use super::*;
    use crate::node::sample;

    fn member(name: &str, incarnation: u64, services: &[&str], state: MemberState) -> Member {
        Member {
            incarnation,
            state,
            services: services.iter().map(|service| (*service).to_owned()).collect(),
            ..sample::member(name, &["controller"])
        }
    }

    #[test]
    fn who_leads_goes_on_and_who_came_later_gives_way() {
        let leads = |name, incarnation, state| member(name, incarnation, &["conductor", "controller"], state);
        let answers = |name, incarnation| member(name, incarnation, &["controller"], Alive);
        let fresh = |name, incarnation| member(name, incarnation, &[], Alive);
        let engine = Member { roles: vec!["engine".to_owned()], ..leads("gpu", 1, Alive) };
        let cases: [(&[Member], Option<&str>); 8] = [
            (&[], None),
            (std::slice::from_ref(&engine), None),
            (&[engine.clone(), fresh("x", 9)], Some("x")),
            // whatever a clock says that is behind
            (&[leads("lead", 5, Alive), answers("x", 2)], Some("lead")),
            (&[leads("lead", 5, Suspect), leads("x", 7, Alive)], Some("lead")),
            (&[leads("lead", 5, Dead), fresh("x", 7)], Some("x")),
            (&[answers("lead", 5), fresh("x", 2)], Some("lead")),
            (&[fresh("lead", 5), fresh("x", 7)], Some("lead")),
        ];
        for (members, expected) in cases {
            let found = chief(members).map(|member| member.name.as_str());
            assert_eq!(found, expected, "{members:?}");
            let turned: Vec<Member> = members.iter().rev().cloned().collect();
            assert_eq!(chief(&turned).map(|member| member.name.as_str()), expected, "whatever their order");
        }
    }
}
