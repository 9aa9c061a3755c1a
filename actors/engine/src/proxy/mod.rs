//! EngineProxy: the one that speaks to one engine. `state` and its rules decide; `actor` and `turn` do.

mod actor;
mod admit;
#[cfg(test)]
mod admit_tests;
mod connect;
mod control;
mod effect;
mod spot_check;
mod state;
#[cfg(test)]
mod state_random_tests;
#[cfg(test)]
mod state_tests;
mod turn;
mod update;
mod verify;

pub use actor::{EngineProxy, EngineProxyArguments, EngineProxyInput};
pub use effect::{Admission, Call, CallAnswer, Effect, Input, Progress, Report, SpotVerdict};
pub use state::{EngineMachine, MachineSettings};
