//! What every role of a node stands on: the cluster, the run's settings, and a directory of its own.

use std::path::PathBuf;

use greenroom_cluster::Cluster;
use greenroom_core::Seam;
use greenroom_identity::Identity;

use super::NodeConfig;
use crate::config::Config;
use crate::parts::Common;
use crate::up::Talk;

/// A node that is in its cluster and knows its run.
pub(super) struct Site {
    pub(super) node: NodeConfig,
    pub(super) cluster: Cluster,
    pub(super) common: Common,
    pub(super) identity: Option<Identity>,
    pub(super) talk: Talk,
    /// The first of this node's lease numbers.
    pub(super) first_lease: u64,
}

impl Site {
    pub(super) fn config(&self) -> &Config {
        &self.common.config
    }

    pub(super) fn seam(&self) -> &Seam {
        &self.common.seam
    }

    /// A directory of this node's own.
    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.node.state_dir.join(name)
    }
}
