//! Which nodes are known to be gone, from whoever knows it sooner than a silent connection tells.
//!
//! What is under way with a node that goes fails at once, so that the next peer is asked, and so does what is begun while it
//! is away. On failure, such as a word that never comes: the stall timeout.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::PeerAddress;
use crate::error::PeerFailure;

/// How often a node has gone, and whether it is away now: it may be back before anybody has looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gone {
    times: u64,
    is_away: bool,
}

/// What was told of nodes, by name.
#[derive(Debug, Default)]
pub(crate) struct Presence(watch::Sender<BTreeMap<String, Gone>>);

impl Presence {
    /// A node has gone.
    pub(crate) fn gone(&self, node: &str) {
        self.0.send_modify(|nodes| {
            let gone = nodes.entry(node.to_owned()).or_default();
            (gone.times, gone.is_away) = (gone.times + 1, true);
        });
    }

    /// A node that may have gone is there.
    pub(crate) fn back(&self, node: &str) {
        self.0.send_if_modified(|nodes| nodes.get_mut(node).is_some_and(|gone| std::mem::take(&mut gone.is_away)));
    }

    /// Works with a peer for as long as it is there.
    pub(crate) async fn with<T>(
        &self,
        peer: &PeerAddress,
        work: impl Future<Output = Result<T, PeerFailure>>,
    ) -> Result<T, PeerFailure> {
        let Some(node) = &peer.node else { return work.await };
        let mut nodes = self.0.subscribe();
        let begun = nodes.borrow().get(node).copied().unwrap_or_default().times;
        let has_gone =
            |nodes: &BTreeMap<String, Gone>| nodes.get(node).is_some_and(|gone| gone.is_away || gone.times != begun);
        tokio::select! {
            biased;
            // the sender lives as long as this
            _ = nodes.wait_for(has_gone) => Err(PeerFailure::Cut("its node is gone".to_owned())),
            done = work => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn work_with_a_node_ends_when_that_goes_and_is_not_begun_while_it_is_away() {
        let (presence, peer) = (Presence::default(), PeerAddress::node("n", "h:1"));
        let cut = |result: Result<(), PeerFailure>| matches!(result, Err(PeerFailure::Cut(_)));
        let other = async {
            presence.gone("other");
            presence.gone("n");
            presence.back("n");
            Ok(())
        };
        let elsewhere = PeerAddress::at("h:2");
        // it is back before anybody looks, but what was under way with it is lost
        let (ended, told) = tokio::join!(presence.with(&peer, pending()), presence.with(&elsewhere, other));
        assert!(cut(ended) && told.is_ok());
        assert!(presence.with(&peer, ready(Ok(()))).await.is_ok());
        presence.gone("n");
        assert!(cut(presence.with(&peer, ready(Ok(()))).await));
        assert!(presence.with(&PeerAddress::at("h:1"), ready(Ok(()))).await.is_ok(), "nobody knows who that is");
        presence.back("n");
        assert!(presence.with(&peer, ready(Ok(()))).await.is_ok());
    }
}
