//! SandboxPool and SandboxLease: warm boxes and the local provider

mod config;
mod error;
mod helper;
mod local;
pub mod metrics;
mod output;
mod provider;

pub use config::*;
pub use error::{ERRORS, SandboxError};
pub use helper::box_init_main;
pub use local::LocalProvider;
pub use output::decode_output;
pub use provider::{BoxSummary, ImageSpec, Labels, Provider, SandboxBox, SweepReport};
