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
mod seed;
mod spawn;
mod supervisor;
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
pub use seed::{Random, Seed};
pub use spawn::{spawn_blocking_named, spawn_named};
pub use supervisor::{
    ChildFailure, ChildSpec, ChildStart, ChildState, ChildStatus, Supervisor, SupervisorArguments, SupervisorMessage,
    startup_cause,
};

/// What every actor is given from outside: time, randomness and injected faults.
#[derive(Clone, Debug)]
pub struct Seam {
    /// Where time comes from.
    pub clock: Clock,
    /// Where randomness comes from; streams are split off by name.
    pub seed: Seed,
    /// Which fault points fire, and how.
    pub faults: Faults,
}

impl Seam {
    /// The seam of a real process: system clock, the run's seed, faults as given (usually [`Faults::none`]).
    pub fn system(seed: u64, faults: Faults) -> Self {
        Self { clock: Clock::system(), seed: Seed::new(seed), faults }
    }

    /// Runs blocking work (files, checksums) off the actors' threads; in virtual time in place, so that its end is
    /// ordered by the seed and not by the machine. `None` when the work panicked, which is also logged by `name`.
    pub async fn blocking<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.clock.is_simulated() {
            return Some(work());
        }
        spawn_blocking_named(name, work).await.ok().flatten()
    }

    /// The seam of a simulation: virtual time that starts at `epoch_ms`, a seed, faults as given.
    pub fn simulated(seed: u64, epoch_ms: u64, faults: Faults) -> Self {
        Self { clock: Clock::simulated(epoch_ms), seed: Seed::new(seed), faults }
    }
}
