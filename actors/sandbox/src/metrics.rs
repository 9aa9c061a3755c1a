//! Names of this crate's metrics, with unit and meaning.

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its unit; empty for plain counts.
    pub unit: &'static str,
    /// What it says.
    pub help: &'static str,
}

/// Every metric of sandboxes; values come with [`greenroom_messages::sandbox::SandboxPoolStatus`] and claims.
pub const METRICS: &[Metric] = &[
    Metric { name: "sandbox_warm", unit: "", help: "boxes ready to be claimed" },
    Metric { name: "sandbox_creating", unit: "", help: "boxes being made" },
    Metric { name: "sandbox_leased", unit: "", help: "boxes claimed and not yet destroyed" },
    Metric { name: "sandbox_waiting", unit: "", help: "claims that wait for a box" },
    Metric { name: "sandbox_created_total", unit: "", help: "boxes made since the start" },
    Metric { name: "sandbox_failed_total", unit: "", help: "failed creations since the start" },
    Metric { name: "sandbox_claim_wait", unit: "ms", help: "how long a claim waited for its box" },
];
