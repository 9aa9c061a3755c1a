//! How a node that is told to leave does so: nothing new comes in, and what is under way ends or is handed back.
//!
//! Sandboxes: no pool is offered any more, and leases that are held end by themselves. Engines: the fleet sends nothing
//! more, and turns in flight end. Training: the step under way is finished and saved. Rollouts are handed back at once: the
//! Conductor asks whoever rolls out next for them. All of it has one deadline; what is left then is handed back as it would
//! be if the node had died, so a drain that fails loses time and nothing else.

use std::time::Duration;

use greenroom_core::{Address, Deadline, ask};
use greenroom_engine::EngineHostInput;
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_messages::trainer::TrainerMessage;
use tokio::time::Instant;

use super::service;
use super::site::Site;

/// How often it is looked whether something is still under way.
const LOOK: Duration = Duration::from_millis(100);
/// How long such a look may take.
const LOOK_WAIT_MS: u64 = 5_000;
/// A trainer that has had nothing to do for this long has saved what it trained: the save is asked for at once.
const IDLE: Duration = Duration::from_secs(1);

/// Why a node finishes what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// It leaves a run that goes on.
    Leaving,
    /// Its run is over: what was trained is saved.
    RunOver,
}

/// Stops what comes in, and waits until nothing is under way or the time is over.
pub(super) async fn drain(
    site: &Site,
    pools: &[Address<SandboxPoolMessage>],
    hosts: &[Address<EngineHostInput>],
    why: Drain,
    within: Duration,
) {
    let cluster = &site.cluster;
    for offered in cluster.me().services.iter().filter(|offered| service::is_admission(offered)) {
        cluster.withdraw(offered);
    }
    let deadline = Deadline::after(within);
    let engines = futures::future::join_all(hosts.iter().map(|host| leave_fleet(host, deadline)));
    let leases = futures::future::join_all(pools.iter().map(no_lease));
    let step = async {
        if site.node.plays("trainer") && why == Drain::Leaving {
            step_ended(&service::TRAINER.anywhere(cluster)).await;
        }
    };
    let all = async { tokio::join!(engines, leases, step) };
    if tokio::time::timeout_at(deadline.instant(), all).await.is_err() {
        tracing::warn!(after_s = within.as_secs(), "what is still under way is handed back");
    }
}

async fn leave_fleet(host: &Address<EngineHostInput>, deadline: Deadline) {
    let within_ms = deadline.remaining().as_millis() as u64;
    if let Err(error) = ask(host, deadline, |reply| EngineHostInput::Leave(within_ms, reply)).await {
        tracing::warn!(%error, "an engine did not leave the fleet");
    }
}

/// Waits until no box of a pool is leased or waited for.
async fn no_lease(pool: &Address<SandboxPoolMessage>) {
    while let Ok(status) = ask(pool, Deadline::after_ms(LOOK_WAIT_MS), SandboxPoolMessage::Status).await {
        if status.leased == 0 && status.waiting == 0 {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until the trainer has had nothing to do for a while.
async fn step_ended(trainer: &Address<TrainerMessage>) {
    let mut idle_since = Instant::now();
    while let Ok(status) = ask(trainer, Deadline::after_ms(LOOK_WAIT_MS), TrainerMessage::Status).await {
        if !status.activity.is_empty() {
            idle_since = Instant::now();
        } else if idle_since.elapsed() >= IDLE {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}
