//! SandboxPool and SandboxLease: warm boxes, and the local provider that makes them.
//!
//! * [`SandboxPool`] — one per image: keeps boxes warm, gives each claim a box of its own, makes one on demand when none is
//!   ready. [`SandboxLease`] — one per claimed box: commands, files, lifetime, and the box's destruction.
//! * [`Provider`] and [`SandboxBox`] — what a maker of boxes offers; the simulation has its own.
//! * [`LocalProvider`] — boxes of unprivileged namespaces on this machine, without any helper that needs root. Its helper
//!   process is [`box_init_main`], in the program `greenroom-box` or a hidden subcommand.
//!
//! Invariants: a box is never leased twice, and never reused; a failure of a sandbox is a typed [`SandboxError`], what a
//! command does is an outcome; when a lease or greenroom itself ends, no process of its box is left, and no directory
//! after the next sweep.

mod actor;
mod config;
mod error;
mod helper;
mod lease;
mod lease_state;
mod local;
pub mod metrics;
mod output;
mod patience;
mod provider;
mod state;

pub use actor::{Grant, LeaseNumbers, PoolActorState, PoolMessage, PoolReport, SandboxPool, SandboxPoolArguments};
pub use config::{
    BoxLimits, HOME_INSIDE, Isolation, LocalProviderConfig, PoolConfig, SandboxConfig, WorkTreeStore,
    check_lease_lifetime, default_guard_ms,
};
pub use error::{ERRORS, SandboxError};
pub use helper::box_init_main;
pub use lease::{LeaseActorState, LeaseArguments, LeaseMessage, SandboxLease};
pub use lease_state::{LeaseEnd, LeaseState};
pub use local::LocalProvider;
pub use output::decode_output;
pub use provider::{BoxSummary, ImageSpec, Labels, Provider, SandboxBox, SweepReport};
pub use state::{BoxNumber, ClaimNumber, PoolEffect, PoolEvent, PoolState};
