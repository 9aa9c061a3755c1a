//! One address over all nodes that offer sandboxes of an image: each claim goes to the node that has least to do.
//!
//! Each pool is asked every second how many claims it holds; what was sent there since counts on top, so that a burst is
//! spread, too. Equals take turns. On failure: a pool that does not answer keeps its last figure, which costs balance only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greenroom_cluster::Cluster;
use greenroom_core::{Address, Deadline, ask, spawn_named};
use greenroom_messages::sandbox::SandboxPoolMessage;

/// How often pools are asked, and how long each has for its answer.
const LOOK: Duration = Duration::from_secs(1);
const ANSWER_WAIT_MS: u64 = 2_000;

/// The address that spreads claims over whoever offers `service` at the time; nobody there is as good as not running.
pub(super) fn spread(cluster: &Cluster, service: &str) -> Address<SandboxPoolMessage> {
    let spread =
        Arc::new(Spread { cluster: cluster.clone(), service: service.to_owned(), loads: Mutex::new(Loads::default()) });
    let looking = Arc::downgrade(&spread);
    spawn_named(format!("loads of {service}"), async move {
        // whoever claims there holds the address; without it nobody does any more
        while let Some(spread) = looking.upgrade() {
            spread.look().await;
            drop(spread);
            tokio::time::sleep(LOOK).await;
        }
    });
    Address::of_function(service, move |message| {
        let node = spread.loads().least(&spread.nodes()).ok_or(())?;
        spread.pool(&node).cast(message).map_err(|_| ())
    })
}

struct Spread {
    cluster: Cluster,
    service: String,
    loads: Mutex<Loads>,
}

impl Spread {
    fn loads(&self) -> MutexGuard<'_, Loads> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool(&self, node: &str) -> Address<SandboxPoolMessage> {
        self.cluster.service(node, &self.service)
    }

    /// Who offers the service, sorted.
    fn nodes(&self) -> Vec<String> {
        let members = self.cluster.members().into_iter();
        members
            .filter(|member| member.is_up() && member.services.contains(&self.service))
            .map(|member| member.name)
            .collect()
    }

    async fn look(&self) {
        let nodes = self.nodes();
        // one alone is chosen whatever it has to do
        if nodes.len() < 2 {
            return;
        }
        let looks = nodes.into_iter().map(|node| async move {
            let sent = self.loads().sent(&node);
            let status = ask(&self.pool(&node), Deadline::after_ms(ANSWER_WAIT_MS), SandboxPoolMessage::Status).await;
            if let Ok(status) = status {
                self.loads().told(&node, status.leased + status.waiting, sent);
            }
        });
        futures::future::join_all(looks).await;
    }
}

/// How many claims each node holds, as far as is known.
#[derive(Debug, Default)]
struct Loads {
    by_node: BTreeMap<String, Load>,
    turn: usize,
}

#[derive(Debug, Default)]
struct Load {
    told: u32,
    /// Sent, and not in `told` yet.
    sent: u32,
}

impl Loads {
    /// The node with the fewest claims, to which one more is sent now.
    fn least(&mut self, nodes: &[String]) -> Option<String> {
        let first = self.turn.checked_rem(nodes.len())?;
        let in_turn = nodes[first..].iter().chain(&nodes[..first]);
        let claims = |node: &&String| self.by_node.get(*node).map_or(0, |load| load.told + load.sent);
        let node = in_turn.min_by_key(claims)?.clone();
        self.turn = self.turn.wrapping_add(1);
        self.by_node.entry(node.clone()).or_default().sent += 1;
        Some(node)
    }

    /// How many claims were sent to a node that it has not told of.
    fn sent(&self, node: &str) -> u32 {
        self.by_node.get(node).map_or(0, |load| load.sent)
    }

    /// A node holds so many claims, among them those that had been sent when it was asked.
    fn told(&mut self, node: &str, claims: u32, sent: u32) {
        let load = self.by_node.entry(node.to_owned()).or_default();
        (load.told, load.sent) = (claims, load.sent.saturating_sub(sent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_go_to_the_node_that_has_least_to_do_and_equals_take_turns() {
        let nodes: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut loads = Loads::default();
        let draw =
            |loads: &mut Loads, times: usize| -> String { (0..times).map(|_| loads.least(&nodes).unwrap()).collect() };
        assert_eq!(draw(&mut loads, 6), "abcabc");
        // a holds ten, of which two were sent from here; one more was sent while it was asked
        let sent = loads.sent("a");
        loads.by_node.get_mut("a").unwrap().sent += 1;
        loads.told("a", 10, sent);
        loads.told("b", 0, 2);
        assert_eq!((loads.by_node["a"].told, loads.sent("a"), loads.sent("b")), (10, 1, 0));
        assert_eq!(draw(&mut loads, 4), "bbcb", "b holds none and c two");
        assert_eq!(loads.least(&[]), None);
        assert_eq!(loads.least(&["a".to_owned()]).as_deref(), Some("a"), "who is alone gets all");
    }
}
