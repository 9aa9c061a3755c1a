//! The actors of this node, as the controller's desk reaches them: how they stand, and whether they take new work.
//!
//! A node that is drained offers its pools of sandboxes no more, and its RolloutManager begins nothing; what is under way
//! ends by itself, and its engines are drained by the fleet. Where nobody else rolls out the manager stays offered, so that
//! nobody takes it for lost. A drain ends with `undrain` or with the process; of a manager, also when it fails. On failure:
//! what does not answer in time is left out.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use greenroom_cluster::Cluster;
use greenroom_core::{Address, ChildState, ChildStatus, Deadline, SupervisorMessage, ask, spawn_named};
use greenroom_messages::node::{Drained, NodeMessage};
use greenroom_messages::rollout::{LoopStatus, RolloutManagerMessage};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_messages::steer::ActorSight;
use ractor::ActorRef;

use super::{NodeConfig, desk, service};

/// How long an actor of this node has for its answer; less than the desk waits for all of them.
const OWN_WAIT_MS: u64 = 1_500;
/// What a pool's actor is called before its image.
const POOL_ACTOR: &str = "sandbox pool ";

/// What a node says of its actors, and does with them. Cheap to clone.
#[derive(Clone)]
pub(super) struct Staff(Arc<Inner>);

struct Inner {
    node: String,
    state_dir: PathBuf,
    certificate_ends_at_ms: Option<u64>,
    cluster: Cluster,
    at_work: Mutex<AtWork>,
}

/// Those that run; none before the roles have started.
#[derive(Clone, Default)]
struct AtWork {
    supervisor: Option<Address<SupervisorMessage>>,
    pools: Vec<(String, Address<SandboxPoolMessage>)>,
    rollouts: Option<Address<RolloutManagerMessage>>,
    is_drained: bool,
}

impl Staff {
    /// That of a node whose roles are still to start.
    pub(super) fn new(node: &NodeConfig, cluster: &Cluster, certificate_ends_at_ms: Option<u64>) -> Self {
        Self(Arc::new(Inner {
            node: node.cluster.node.clone(),
            state_dir: node.state_dir.clone(),
            certificate_ends_at_ms,
            cluster: cluster.clone(),
            at_work: Mutex::default(),
        }))
    }

    fn at_work(&self) -> MutexGuard<'_, AtWork> {
        self.0.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This manager rolls out.
    pub(super) fn rolls_out(&self, manager: &Address<RolloutManagerMessage>) {
        self.at_work().rollouts = Some(manager.clone());
    }

    /// The roles have started.
    pub(super) fn runs(&self, supervisor: &ActorRef<SupervisorMessage>, pools: &[Address<SandboxPoolMessage>]) {
        let offered = |pool: &Address<SandboxPoolMessage>| {
            (service::sandbox_pool(pool.name().trim_start_matches(POOL_ACTOR)), pool.clone())
        };
        let mut at_work = self.at_work();
        at_work.pools = pools.iter().map(offered).collect();
        at_work.supervisor = Some(Address::of(supervisor));
    }

    /// Answers what the desk asks; what ends the node is not for here.
    pub(super) fn answer(&self, message: NodeMessage) {
        let staff = self.clone();
        match message {
            NodeMessage::Report(log_bytes, reply) => {
                spawn_named("node-report", async move {
                    let drained = staff.drained().await;
                    let Inner { state_dir, certificate_ends_at_ms, .. } = &*staff.0;
                    desk::report(state_dir, *certificate_ends_at_ms, drained, log_bytes, reply);
                });
            }
            NodeMessage::SetDrained(drained, reply) => drop(reply.send(self.set_drained(drained))),
            NodeMessage::Actors(reply) => {
                spawn_named("node-actors", async move { reply.send(staff.actors().await) });
            }
            NodeMessage::End { .. } => {}
        }
    }

    /// Takes no new work, or takes it again. The answer says what that leaves to be wished for; empty when nothing.
    fn set_drained(&self, drained: bool) -> Result<String, String> {
        let cluster = &self.0.cluster;
        let others = |wanted: &str| {
            let members = cluster.members().into_iter();
            members
                .filter(|member| member.is_up() && member.name != self.0.node)
                .any(|member| member.services.iter().any(|offered| offered == wanted))
        };
        let mut at_work = self.at_work();
        if at_work.supervisor.is_none() {
            return Err(format!(
                "node {} has not started its roles yet: try again when `nodes` shows its services",
                self.0.node
            ));
        }
        let was_drained = std::mem::replace(&mut at_work.is_drained, drained);
        let (mut left, mut alone) = (Vec::new(), Vec::new());
        for (name, pool) in &at_work.pools {
            match (drained, was_drained) {
                (true, _) => cluster.withdraw(name),
                (false, true) => cluster.serve(name, pool),
                (false, false) => {}
            }
            if drained && !others(name) {
                alone.push(pool.name().trim_start_matches(POOL_ACTOR));
            }
        }
        if !alone.is_empty() {
            left.push(format!("no other node has sandboxes of {}: rollouts that need one wait", alone.join(", ")));
        }
        if let Some(manager) = &at_work.rollouts {
            let handed_over = drained && service::ROLLOUT_MANAGER.is_offered_elsewhere(cluster);
            if handed_over {
                service::ROLLOUT_MANAGER.withdraw(cluster);
            } else if drained {
                left.push("no other node rolls out: the run waits when what runs has ended".to_owned());
            } else if was_drained {
                service::ROLLOUT_MANAGER.at(manager, cluster);
            }
            // one that is not running at the moment begins anew, and is not drained
            let _ = manager.cast(RolloutManagerMessage::SetDrained { drained, handed_over });
        }
        tracing::info!(drained, "whether this node takes new work was changed");
        Ok(left.join("; "))
    }

    /// What is still under way, where the node is drained.
    async fn drained(&self) -> Option<Drained> {
        let AtWork { pools, rollouts, is_drained, .. } = self.at_work().clone();
        if !is_drained {
            return None;
        }
        let mut seen = Drained::default();
        for (_, pool) in &pools {
            let status = ask(pool, Deadline::after_ms(OWN_WAIT_MS), SandboxPoolMessage::Status).await;
            seen.leases += status.map_or(0, |status| status.leased + status.waiting);
        }
        if let Some(manager) = rollouts {
            let status = ask(&manager, Deadline::after_ms(OWN_WAIT_MS), RolloutManagerMessage::Status).await;
            seen.rollouts = status.map_or(0, |status| status.running);
        }
        Some(seen)
    }

    /// The actors that this node supervises, and the AgentLoops under its manager.
    async fn actors(&self) -> Vec<ActorSight> {
        let AtWork { supervisor, rollouts, .. } = self.at_work().clone();
        let Some(supervisor) = supervisor else { return Vec::new() };
        let node = &self.0.node;
        let deadline = || Deadline::after_ms(OWN_WAIT_MS);
        let children = ask(&supervisor, deadline(), SupervisorMessage::Children).await.unwrap_or_default();
        let mut seen: Vec<ActorSight> = children.into_iter().map(|child| of_child(node, child)).collect();
        if let Some(manager) = rollouts {
            let loops = ask(&manager, deadline(), RolloutManagerMessage::Loops).await.unwrap_or_default();
            seen.extend(loops.into_iter().map(|running| of_loop(node, running)));
        }
        seen
    }
}

fn of_child(node: &str, child: ChildStatus) -> ActorSight {
    let (state, since) = match child.state {
        ChildState::Starting => ("starting", ""),
        ChildState::Running => ("running", ""),
        ChildState::Restarting => ("restarting", "it failed: "),
        ChildState::Ended => ("ended", ""),
    };
    let doing = child.last_failure.map(|failure| match since {
        "" => format!("its last failure: {failure}"),
        since => format!("{since}{failure}"),
    });
    ActorSight {
        node: node.to_owned(),
        actor: child.name,
        under: "supervisor".to_owned(),
        state: state.to_owned(),
        for_ms: child.for_ms,
        restarts: Some(child.restarts),
        doing: doing.unwrap_or_default(),
    }
}

fn of_loop(node: &str, running: LoopStatus) -> ActorSight {
    let LoopStatus { rollout, task, turns, state, for_ms, age_ms } = running;
    ActorSight {
        node: node.to_owned(),
        actor: rollout.to_string(),
        under: "rollout manager".to_owned(),
        state: desk::state_name(state),
        for_ms,
        restarts: None,
        doing: format!("turn {turns} of {task}, {:.1} s old", age_ms as f64 / 1_000.0),
    }
}
