//! The blocks of lease numbers that the controller gives out, and what becomes of the leases of nodes that are lost.
//!
//! A node gets a block when it enlists. When it enlists again its earlier process has ended, and every box of that process
//! with it: leases of the earlier block that are still open are lost. After the run's end the same holds for nodes that are
//! held for dead. A controller that was restarted knows no blocks: its database ends what earlier processes left.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use greenroom_cluster::{Cluster, MemberState};
use greenroom_messages::node::LEASE_BLOCK;
use greenroom_run::Database;

/// Who has which block.
pub(super) struct LeaseBlocks {
    database: Database,
    state: Mutex<Given>,
}

struct Given {
    next: u64,
    by_node: BTreeMap<String, u64>,
}

impl LeaseBlocks {
    /// Blocks of the run with this database, from this number on.
    pub(super) fn new(database: Database, first: u64) -> Self {
        Self { database, state: Mutex::new(Given { next: first, by_node: BTreeMap::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, Given> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first number of a new block for this node.
    pub(super) fn give(&self, node: &str) -> u64 {
        let mut state = self.state();
        let first = state.next;
        state.next += LEASE_BLOCK;
        let earlier = state.by_node.insert(node.to_owned(), first);
        drop(state);
        if let Some(earlier) = earlier {
            self.lose(node, earlier);
        }
        first
    }

    /// Ends what nodes that are held for dead have left open.
    pub(super) fn lose_the_dead(&self, cluster: &Cluster) {
        let dead = cluster.members().into_iter().filter(|member| member.state == MemberState::Dead);
        for member in dead {
            let block = self.state().by_node.get(&member.name).copied();
            if let Some(block) = block {
                self.lose(&member.name, block);
            }
        }
    }

    fn lose(&self, node: &str, first: u64) {
        match self.database.lose_leases(first..first + LEASE_BLOCK) {
            Ok(0) => {}
            Ok(leases) => tracing::info!(node, leases, "sandboxes are lost with their node"),
            Err(error) => tracing::error!(node, %error, "lost sandboxes are not noted"),
        }
    }
}
