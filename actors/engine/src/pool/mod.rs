//! EnginePool: the fleet. `routing` decides who serves what; `members` keeps the proxies alive; `actor` connects them.

mod actor;
mod members;
mod monitor;
mod relay;
mod routing;
mod update;
mod verify;

use std::sync::Arc;

use greenroom_messages::engine::EngineSpec;

pub use actor::{EnginePool, EnginePoolArguments, EnginePoolInput};
pub use routing::{Router, RouterPlan};
pub use update::Quorum;

use crate::{EngineApi, EngineConfigError};

/// Makes the client of an engine; fails when the address cannot be used.
pub type ApiFactory = Arc<dyn Fn(&EngineSpec) -> Result<Arc<dyn EngineApi>, EngineConfigError> + Send + Sync>;
