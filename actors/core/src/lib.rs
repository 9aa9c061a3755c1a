//! What every actor family stands on, with no word of the domain in it.
//!
//! * [`Address`] — how one actor reaches another; survives the other's restart and is the seam at which links may be cut.
//! * [`ask`] and [`Reply`] — a question always has a deadline, and a dropped reply port answers by itself.
//! * [`Clock`], [`Seed`], [`Faults`], together [`Seam`] — time (real or virtual), randomness and faults come from outside.
//! * [`Supervisor`] — restarts children within a stated intensity, then gives up loudly.
//! * [`codec`] — the format of records: bincode with a limit and a schema hash.
//! * [`wire`] — how a message with its reply ports and addresses crosses to another process.
//!
//! Invariants: nothing here reads the wall clock or an unseeded generator except [`Clock::system`]; nothing here panics.

mod address;
mod ask;
mod clock;
pub mod codec;
mod deadline;
mod error;
mod fault;
mod id;
mod intensity;
mod message;
mod reply;
mod seam;
mod seed;
mod spawn;
mod supervisor;
mod threads;
pub mod wire;

#[doc(hidden)]
pub use ractor;

pub use address::{Address, Gone};
pub use ask::{AskError, ask};
pub use clock::Clock;
pub use deadline::Deadline;
pub use error::{ERRORS, ErrorPage, TOLD};
pub use fault::{Fault, FaultPlanError, Faults};
pub use intensity::{RestartDecision, RestartIntensity, RestartPolicy};
pub use reply::{Abandonment, Answer, Reply, Unanswered};
pub use seam::Seam;
pub use seed::{Random, Seed};
pub use spawn::{in_place, spawn_blocking_named, spawn_named};
pub use supervisor::{
    ChildFailure, ChildSpec, ChildStart, ChildState, ChildStatus, Supervisor, SupervisorArguments, SupervisorMessage,
    startup_cause,
};
pub use threads::{ACTOR_THREADS, Threads, runtime};
