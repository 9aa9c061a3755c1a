//! What every role of a node stands on: the cluster, the run's settings, and a directory of its own.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use greenroom_cluster::Cluster;
use greenroom_core::Seam;

use super::NodeConfig;
use super::bulk::DataPlane;
use super::pulse::Pulse;
use super::staff::Staff;
use crate::config::Config;
use crate::parts::Common;
use crate::up::Talk;

/// A node that is in its cluster and knows its run.
pub(super) struct Site {
    pub(super) node: NodeConfig,
    pub(super) cluster: Cluster,
    pub(super) common: Common,
    /// The node that this one obeys: the controller that it enlisted with.
    pub(super) controller: String,
    /// For what is too large for messages; nodes with a certificate have one.
    pub(super) data_plane: Option<Arc<DataPlane>>,
    /// Tells when this node's actors are held up.
    pub(super) _pulse: Pulse,
    pub(super) talk: Talk,
    /// What runs here, for who looks and steers.
    pub(super) staff: Staff,
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

    /// The data plane, which weights travel by.
    pub(super) fn data_plane(&self) -> anyhow::Result<&Arc<DataPlane>> {
        self.data_plane.as_ref().context("weights travel between nodes over TLS: set cluster.tls")
    }

    /// A directory of this node's own.
    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.node.state_dir.join(name)
    }
}
