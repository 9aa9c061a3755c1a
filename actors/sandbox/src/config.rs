//! What a person may set about sandboxes. Every field has a default, so an empty table is a valid configuration.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::SandboxError;

/// The box's HOME, seen from inside.
pub const HOME_INSIDE: &str = "/home/agent";

/// Everything about sandboxes: table `[sandbox]` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// How many boxes are kept, and for how long.
    pub pool: PoolConfig,
    /// Boxes on this machine.
    pub local: LocalProviderConfig,
}

/// One pool's habits: table `[sandbox.pool]`. The same for each image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Boxes kept ready for claims; 0 makes every claim create its box on demand.
    pub warm_boxes: u32,
    /// Boxes that exist at once, warm, being made and leased together; claims beyond it wait.
    pub max_boxes: u32,
    /// Boxes being made at once.
    pub max_creating: u32,
    /// A warm box older than this is replaced, milliseconds; leased boxes have the lifetime of their lease.
    pub warm_lifetime_ms: u64,
    /// A box that takes longer to make counts as a failed creation, milliseconds; above the provider's own limit.
    pub create_timeout_ms: u64,
    /// First wait after a failed creation, milliseconds; doubles up to `backoff_max_ms`.
    pub backoff_first_ms: u64,
    /// Longest wait between attempts to create, milliseconds.
    pub backoff_max_ms: u64,
    /// Failed creations in a row after which waiting claims are told so instead of waiting for their deadline.
    pub failures_before_claims_fail: u32,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            warm_boxes: 4,
            max_boxes: 64,
            max_creating: 4,
            warm_lifetime_ms: 3_600_000,
            create_timeout_ms: 120_000,
            backoff_first_ms: 500,
            backoff_max_ms: 30_000,
            failures_before_claims_fail: 3,
        }
    }
}

/// What stands between a box and the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Own user, mount, process, network, IPC and host-name namespaces. Needs no root.
    #[default]
    Namespaces,
    /// Process groups and rlimits only: a command can read and write what greenroom's user can, and reach the network.
    /// Never chosen by itself; for containers that forbid namespaces and are a wall of their own.
    None,
}

/// Where a box keeps its work tree and home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkTreeStore {
    /// A file system in memory: exact size limit, gone with the box. Counts as memory of the machine while it is used.
    #[default]
    Memory,
    /// The box's directory below the run directory: for large images. The size limit is watched, not exact.
    Disk,
}

/// Boxes made on this machine: table `[sandbox.local]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalProviderConfig {
    /// Walls of a box.
    pub isolation: Isolation,
    /// Program and arguments of the helper; empty means: `greenroom-box` beside this program when it is there, else this
    /// program with the argument `box-init`. A small helper starts faster.
    pub helper_argv: Vec<String>,
    /// Paths of the host that a box sees, read-only; those that do not exist are left out. Add what tasks need, such as a
    /// Python environment under /opt.
    pub read_only_paths: Vec<PathBuf>,
    /// Where work trees are kept.
    pub work_tree_store: WorkTreeStore,
    /// Limits of each box.
    pub limits: BoxLimits,
    /// The host user that boxes run as when greenroom runs as root; never 0.
    pub box_user_id: u32,
    /// Longest time to make a box, copying included, milliseconds.
    pub create_timeout_ms: u64,
}

impl Default for LocalProviderConfig {
    fn default() -> Self {
        let system = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"];
        Self {
            isolation: Isolation::Namespaces,
            helper_argv: Vec::new(),
            read_only_paths: system.iter().map(PathBuf::from).collect(),
            work_tree_store: WorkTreeStore::Memory,
            limits: BoxLimits::default(),
            box_user_id: 65_534,
            create_timeout_ms: 60_000,
        }
    }
}

/// Limits of one box: table `[sandbox.local.limits]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BoxLimits {
    /// Memory of all processes together; also the private memory of each one.
    pub memory_bytes: u64,
    /// Processes and threads at once.
    pub processes: u64,
    /// Open files of one process.
    pub open_files: u64,
    /// Size of one file.
    pub file_size_bytes: u64,
    /// Work tree and home together.
    pub disk_bytes: u64,
    /// The box's /tmp, and again its /dev/shm.
    pub tmp_bytes: u64,
    /// Output of one command that is kept; beyond it the middle is dropped.
    pub output_bytes: u64,
}

impl Default for BoxLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 2 << 30,
            processes: 256,
            open_files: 4096,
            file_size_bytes: 512 << 20,
            disk_bytes: 1 << 30,
            tmp_bytes: 256 << 20,
            output_bytes: 1 << 20,
        }
    }
}

impl SandboxConfig {
    /// Everything that is wrong with it, each as one line that names the key and the remedy.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut require = |holds: bool, text: &str| {
            if !holds {
                problems.push(text.to_owned());
            }
        };
        let (pool, limits) = (&self.pool, &self.local.limits);
        require(pool.max_boxes > 0, "sandbox.pool.max_boxes must be at least 1");
        require(pool.max_creating > 0, "sandbox.pool.max_creating must be at least 1");
        require(pool.warm_boxes <= pool.max_boxes, "sandbox.pool.warm_boxes must not exceed max_boxes");
        require(
            pool.create_timeout_ms > self.local.create_timeout_ms,
            "sandbox.pool.create_timeout_ms must be above sandbox.local.create_timeout_ms",
        );
        require(pool.backoff_first_ms > 0, "sandbox.pool.backoff_first_ms must be at least 1");
        require(
            pool.backoff_first_ms <= pool.backoff_max_ms,
            "sandbox.pool.backoff_max_ms must not be below backoff_first_ms",
        );
        require(self.local.box_user_id != 0, "sandbox.local.box_user_id must not be 0: boxes never run as root");
        require(
            limits.memory_bytes >= 32 << 20,
            "sandbox.local.limits.memory_bytes must be at least 33554432 (32 MiB)",
        );
        require(limits.processes >= 4, "sandbox.local.limits.processes must be at least 4");
        require(limits.open_files >= 32, "sandbox.local.limits.open_files must be at least 32");
        require(
            limits.file_size_bytes >= 1 << 20,
            "sandbox.local.limits.file_size_bytes must be at least 1048576 (1 MiB)",
        );
        require(limits.disk_bytes >= 1 << 20, "sandbox.local.limits.disk_bytes must be at least 1048576 (1 MiB)");
        require(limits.tmp_bytes >= 1 << 20, "sandbox.local.limits.tmp_bytes must be at least 1048576 (1 MiB)");
        let output_fits = (1024..=256 << 20).contains(&limits.output_bytes);
        require(output_fits, "sandbox.local.limits.output_bytes must be between 1024 and 268435456 (256 MiB)");
        let absolute = self.local.read_only_paths.iter().all(|path| path.is_absolute());
        require(absolute, "sandbox.local.read_only_paths must be absolute");
        problems
    }
}

/// Checks the lease arithmetic: a lease must outlive the longest rollout, its grading and a margin.
///
/// `guard_ms`: when the rollout is given up; unset it is turns × exec timeout + eval timeout + 300 s. All milliseconds.
pub fn check_lease_lifetime(
    lease_lifetime_ms: u64,
    guard_ms: u64,
    grading_ms: u64,
    margin_ms: u64,
) -> Result<(), SandboxError> {
    let needed_ms = guard_ms.saturating_add(grading_ms).saturating_add(margin_ms);
    if lease_lifetime_ms >= needed_ms {
        return Ok(());
    }
    Err(SandboxError::LifetimeTooShort { lease_lifetime_ms, needed_ms, guard_ms, grading_ms, margin_ms })
}

/// The rollout guard when none is set: turns × exec timeout + eval timeout + 300 s, in milliseconds.
pub fn default_guard_ms(turns: u64, exec_timeout_ms: u64, eval_timeout_ms: u64) -> u64 {
    turns.saturating_mul(exec_timeout_ms).saturating_add(eval_timeout_ms).saturating_add(300_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound_and_an_unknown_key_is_an_error() {
        assert_eq!(SandboxConfig::default().problems(), Vec::<String>::new());
        assert_eq!(serde_json::from_str::<SandboxConfig>("{}").unwrap(), SandboxConfig::default());
        let error = serde_json::from_str::<SandboxConfig>(r#"{"pool":{"warm":1}}"#).unwrap_err().to_string();
        assert!(error.contains("warm"), "{error}");
    }

    #[test]
    fn each_bad_number_is_named() {
        let mut config = SandboxConfig::default();
        config.pool.warm_boxes = 100;
        config.local.box_user_id = 0;
        config.local.limits.processes = 1;
        let problems = config.problems();
        assert_eq!(problems.len(), 3, "{problems:?}");
    }

    #[test]
    fn a_lease_must_outlive_guard_grading_and_margin() {
        let guard_ms = default_guard_ms(10, 60_000, 600_000);
        assert_eq!(guard_ms, 1_500_000);
        assert!(check_lease_lifetime(1_800_000, guard_ms, 200_000, 100_000).is_ok());
        assert!(check_lease_lifetime(1_799_999, guard_ms, 200_000, 100_000).is_err());
    }
}
