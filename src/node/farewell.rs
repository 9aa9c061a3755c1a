//! The controller's last word: how the run ended, told to every node that is there and to those that come back.
//!
//! After a completed run the others have `termination_delay_s` for what is under way, and the controller stays as long for
//! nodes that are down and will be started again: until as many as the gang needs have heard it, or left before. What has
//! not ended by then is told to end now. A run that was stopped or failed ends its nodes at once: a node that comes back
//! later waits for the controller, and the run goes on. On failure: a node that hears nothing waits `gang_wait_s`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use greenroom_cluster::{Cluster, Member, MemberState};
use greenroom_messages::node::{Enlist, NodeMessage, RunOver};
use greenroom_run::RunEnd;
use tokio::time::Instant;

use super::{NodeConfig, service};

/// How long nodes may take to take themselves down after they were told to end now.
const LEAVING: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(250);

/// How a run ended, in a word and as an exit status.
pub(super) fn over(end: &RunEnd) -> RunOver {
    let (outcome, status) = match end {
        RunEnd::Completed(_) => ("completed".to_owned(), 0),
        RunEnd::Stopped(_) => ("stopped".to_owned(), 3),
        RunEnd::Failed(reason) => (format!("failed: {reason}"), 1),
    };
    RunOver { outcome, status }
}

/// The last word, once there is one, and who has heard it. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct LastWord(Arc<Inner>);

#[derive(Default)]
struct Inner {
    over: OnceLock<RunOver>,
    /// Nodes that came after the end, with their roles.
    came: Mutex<BTreeMap<String, Vec<String>>>,
}

impl LastWord {
    fn came(&self) -> MutexGuard<'_, BTreeMap<String, Vec<String>>> {
        self.0.came.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a node hears that wants to take part; `None` while the run goes on.
    pub(super) fn to(&self, enlist: &Enlist) -> Option<RunOver> {
        let over = self.0.over.get()?;
        self.came().insert(enlist.node.clone(), enlist.roles.clone());
        Some(over.clone())
    }

    /// Tells every node, until all that are there have left and those that are needed have heard, or the time is over.
    pub(super) async fn say(&self, cluster: &Cluster, node: &NodeConfig, over: &RunOver) {
        let is_final = over.status == 0;
        let delay = if is_final { Duration::from_secs(node.termination_delay_s) } else { Duration::ZERO };
        let now = Instant::now();
        let (finish_by, leave_by) = (now + delay, now + delay + LEAVING);
        // who is not there yet hears of it when it enlists
        let _ = self.0.over.set(over.clone());
        let me = &node.cluster.node;
        let mut told = None;
        loop {
            let members = cluster.members();
            let (up, gone): (Vec<&Member>, Vec<&Member>) =
                members.iter().filter(|member| member.name != *me).partition(|member| member.is_up());
            let within_ms = finish_by.saturating_duration_since(Instant::now()).as_millis() as u64;
            for member in &up {
                let word = NodeMessage::End { over: over.clone(), within_ms };
                // one that is gone needs no word
                let _ = service::node_at(cluster, &member.name).cast(word);
            }
            let there: Vec<&str> =
                up.iter().filter(|member| member.plays_a_role()).map(|member| &*member.name).collect();
            let missing = self.missing(node, &gone);
            let is_waiting = is_final && within_ms > 0 && !missing.is_empty();
            if there.is_empty() && !is_waiting {
                return;
            }
            if Instant::now() >= leave_by {
                tracing::warn!(nodes = there.join(", "), "some nodes have not left after the end of the run");
                return;
            }
            let waits_for = (there.join(", "), missing.join(", "));
            if told.as_ref() != Some(&waits_for) {
                let (there, missing) = &waits_for;
                tracing::info!(there, missing, within_ms, "the run has ended: its nodes are told");
                told = Some(waits_for);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The roles that fewer nodes play than the gang needs, of those that have heard the word or left before it.
    fn missing(&self, node: &NodeConfig, gone: &[&Member]) -> Vec<String> {
        let left = gone.iter().filter(|member| member.state == MemberState::Left);
        let mut heard: BTreeMap<String, Vec<String>> = self.came().clone();
        heard.extend(left.map(|member| (member.name.clone(), member.roles.clone())));
        heard.insert(node.cluster.node.clone(), node.cluster.roles.clone());
        let short = node.required().into_iter().filter(|(role, needed)| {
            let playing = heard.values().filter(|roles| roles.contains(role)).count();
            playing < *needed
        });
        short.map(|(role, _)| role).collect()
    }
}
