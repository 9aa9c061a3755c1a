//! The settings of publishing.

use greenroom_messages::weights::WeightMode;
use serde::{Deserialize, Serialize};

/// How weights travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WeightsConfig {
    /// All of them each time, or what changed.
    pub mode: WeightMode,
    /// With `delta`: every so many versions one is published full, so that a late receiver need not walk a long chain.
    pub anchor_every: u64,
    /// zstd's level for payloads, 1 to 19.
    pub compression_level: i32,
    /// Keep this many versions with the carrier besides the newest anchor and what deltas need.
    pub keep_versions: u64,
}

impl Default for WeightsConfig {
    fn default() -> Self {
        Self { mode: WeightMode::Delta, anchor_every: 25, compression_level: 1, keep_versions: 2 }
    }
}
