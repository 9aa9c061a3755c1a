//! SandboxPool's ractor glue: messages become events of [`PoolState`], its effects become tasks and leases.
//!
//! Everything slow (making, checking, destroying boxes) runs in tasks that report back by message, so a pool always
//! answers at once. Lease actors are linked to their pool: when a pool fails, its leases end and with them their boxes;
//! its supervisor starts a fresh one, and holders see their lease gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greenroom_core::{Address, Clock, Reply, Seam, spawn_named};
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::sandbox::{ClaimLease, ClaimedLease, SandboxFailure, SandboxPoolMessage};
use greenroom_messages::{LeaseId, RolloutId};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::task::AbortHandle;

use crate::config::PoolConfig;
use crate::error::SandboxError;
use crate::lease::{LeaseArguments, LeaseMessage, SandboxLease, guarded_address};
use crate::patience;
use crate::provider::{ImageSpec, Labels, Provider, SandboxBox};
use crate::state::{BoxNumber, ClaimNumber, PoolEffect, PoolEvent, PoolState};

/// Numbers the leases of all pools of a run. A resumed run starts above the highest number in its database.
#[derive(Clone, Debug)]
pub struct LeaseNumbers(Arc<AtomicU64>);

impl LeaseNumbers {
    /// Numbers from `first` on.
    pub fn starting_at(first: u64) -> Self {
        Self(Arc::new(AtomicU64::new(first)))
    }

    fn next(&self) -> LeaseId {
        LeaseId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a pool starts with.
#[derive(Clone)]
pub struct SandboxPoolArguments {
    /// What its boxes are made from.
    pub image: ImageSpec,
    /// Its habits.
    pub config: PoolConfig,
    /// Who makes its boxes; shared by the pools of a run.
    pub provider: Arc<dyn Provider>,
    /// Labels of its boxes, such as the run.
    pub labels: Labels,
    /// Time, randomness and faults.
    pub seam: Seam,
    /// Where claims and ends of leases are recorded; none in tests that have no run.
    pub journal: Option<Address<JournalMessage>>,
    /// Where lease numbers come from; shared by the pools of a run.
    pub lease_numbers: LeaseNumbers,
}

/// A pool's own messages: the published ones, and what its tasks and leases report.
pub enum PoolMessage {
    /// From other actors.
    Protocol(SandboxPoolMessage),
    /// From the pool's own tasks.
    Report(PoolReport),
}

greenroom_core::local_message!(PoolMessage);

/// What a task or a lease of the pool reports.
pub enum PoolReport {
    /// Something happened.
    Event(PoolEvent),
    /// A box was made.
    Created(BoxNumber, Arc<dyn SandboxBox>),
    /// A box that was granted was looked at.
    Checked(Grant, Result<(), SandboxError>),
}

/// A grant under way.
#[derive(Clone, Debug)]
pub struct Grant {
    number: BoxNumber,
    claim: ClaimNumber,
    lease: LeaseId,
    warm: bool,
    waited_ms: u64,
}

impl From<SandboxPoolMessage> for PoolMessage {
    fn from(message: SandboxPoolMessage) -> Self {
        Self::Protocol(message)
    }
}

/// The pool of one image.
#[derive(Debug, Default)]
pub struct SandboxPool;

type ClaimReply = Reply<Result<ClaimedLease, SandboxFailure>>;

struct OpenClaim {
    rollout: RolloutId,
    lifetime_ms: u64,
    reply: ClaimReply,
}

/// The state of a running pool.
pub struct PoolActorState {
    pool: PoolState,
    arguments: SandboxPoolArguments,
    clock: Clock,
    boxes: BTreeMap<BoxNumber, Arc<dyn SandboxBox>>,
    leases: BTreeMap<BoxNumber, ActorRef<LeaseMessage>>,
    /// Creations under way; ending one drops what it has made so far.
    creations: BTreeMap<BoxNumber, AbortHandle>,
    claims: BTreeMap<ClaimNumber, OpenClaim>,
    next_claim: ClaimNumber,
    drains: Vec<Reply<()>>,
    /// When the next tick is already on its way.
    tick_at_ms: Option<u64>,
}

impl Actor for SandboxPool {
    type Msg = PoolMessage;
    type State = PoolActorState;
    type Arguments = SandboxPoolArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<PoolMessage>,
        arguments: SandboxPoolArguments,
    ) -> Result<PoolActorState, ActorProcessingErr> {
        myself.send_message(event(PoolEvent::Tick))?;
        Ok(PoolActorState {
            pool: PoolState::new(&arguments.image.name, arguments.config.clone()),
            clock: arguments.seam.clock,
            arguments,
            boxes: BTreeMap::new(),
            leases: BTreeMap::new(),
            creations: BTreeMap::new(),
            claims: BTreeMap::new(),
            next_claim: 0,
            drains: Vec::new(),
            tick_at_ms: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<PoolMessage>,
        message: PoolMessage,
        state: &mut PoolActorState,
    ) -> Result<(), ActorProcessingErr> {
        state.forget_abandoned_claims(&myself).await?;
        match message {
            PoolMessage::Protocol(SandboxPoolMessage::Status(reply)) => drop(reply.send(state.pool.status())),
            PoolMessage::Protocol(SandboxPoolMessage::Claim(claim, reply)) => {
                let event = state.open_claim(claim, reply);
                state.step(event, &myself).await?;
            }
            PoolMessage::Protocol(SandboxPoolMessage::Drain(reply)) => {
                state.drains.push(reply);
                // Each comes back as a failed creation, or as a box that was ready in the same moment.
                state.creations.values().for_each(AbortHandle::abort);
                state.step(PoolEvent::Drain, &myself).await?;
            }
            PoolMessage::Report(PoolReport::Event(event)) => {
                if let PoolEvent::Destroyed(number) = event {
                    state.boxes.remove(&number);
                    state.leases.remove(&number);
                }
                if let PoolEvent::CreateFailed(number, error) = &event {
                    state.creations.remove(number);
                    // Ended by the drain itself: nobody misses that box.
                    if !state.pool.is_draining() {
                        let image = &state.arguments.image.name;
                        tracing::warn!(image, %error, code = error.code(), "cannot make a sandbox");
                    }
                }
                if event == PoolEvent::Tick {
                    state.tick_at_ms = None;
                }
                state.step(event, &myself).await?;
            }
            PoolMessage::Report(PoolReport::Created(number, sandbox)) => {
                watch_end(number, sandbox.clone(), &myself);
                state.creations.remove(&number);
                state.boxes.insert(number, sandbox);
                state.step(PoolEvent::Created(number), &myself).await?;
            }
            PoolMessage::Report(PoolReport::Checked(grant, checked)) => {
                let event = state.conclude(grant, checked, &myself).await?;
                state.step(event, &myself).await?;
            }
        }
        state.arm_tick(&myself);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<PoolMessage>,
        supervision: SupervisionEvent,
        state: &mut PoolActorState,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(cell, error) = supervision {
            let failed = state.leases.iter().find(|(_, lease)| lease.get_id() == cell.get_id());
            if let Some(number) = failed.map(|(number, _)| *number) {
                tracing::error!(%error, "a lease failed; its box is destroyed");
                state.destroy(number, &myself);
            }
        }
        Ok(())
    }
}

impl PoolActorState {
    fn open_claim(&mut self, claim: ClaimLease, reply: ClaimReply) -> PoolEvent {
        let number = self.next_claim;
        self.next_claim += 1;
        self.claims.insert(number, OpenClaim { rollout: claim.rollout, lifetime_ms: claim.lifetime_ms, reply });
        PoolEvent::Claimed { claim: number, wait_ms: claim.wait_ms }
    }

    async fn forget_abandoned_claims(&mut self, myself: &ActorRef<PoolMessage>) -> Result<(), ActorProcessingErr> {
        let abandoned = self.claims.iter().filter(|(_, claim)| claim.reply.is_abandoned());
        let abandoned: Vec<ClaimNumber> = abandoned.map(|(number, _)| *number).collect();
        for claim in abandoned {
            // A granted claim stays open until its box was looked at; its lease then ends at once.
            self.step(PoolEvent::ClaimAbandoned(claim), myself).await?;
        }
        Ok(())
    }

    async fn step(&mut self, event: PoolEvent, myself: &ActorRef<PoolMessage>) -> Result<(), ActorProcessingErr> {
        let now_ms = self.clock.elapsed_ms();
        let abandoned = match event {
            PoolEvent::ClaimAbandoned(claim) => Some(claim),
            _ => None,
        };
        let numbers = self.arguments.lease_numbers.clone();
        let effects = self.pool.step(event, now_ms, &mut || numbers.next());
        if let Some(claim) = abandoned
            && !self.pool.is_granted(claim)
        {
            self.claims.remove(&claim);
        }
        for effect in effects {
            self.carry_out(effect, myself);
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: PoolEffect, myself: &ActorRef<PoolMessage>) {
        match effect {
            PoolEffect::Create(number) => self.create(number, myself),
            PoolEffect::Grant { number, claim, lease, warm, waited_ms } => {
                self.check(Grant { number, claim, lease, warm, waited_ms }, myself);
            }
            PoolEffect::Refuse(claim, error) => {
                if let Some(claim) = self.claims.remove(&claim) {
                    // The asker may be gone.
                    claim.reply.send(Err(error.to_failure()));
                }
            }
            PoolEffect::Destroy(number) => self.destroy(number, myself),
            PoolEffect::CloseLease(number) => {
                if let Some(lease) = self.leases.get(&number) {
                    // A lease that is gone already reports its box destroyed.
                    let _ = lease.send_message(LeaseMessage::Close);
                }
            }
            PoolEffect::Drained => {
                for reply in self.drains.drain(..) {
                    reply.send(());
                }
            }
        }
    }

    fn create(&mut self, number: BoxNumber, myself: &ActorRef<PoolMessage>) {
        let arguments = self.arguments.clone();
        let image = arguments.image.name.clone();
        let made = spawn_named(format!("sandbox-create-{number}"), async move {
            let lifetime_ms = arguments.config.warm_lifetime_ms;
            let SandboxPoolArguments { provider, image, labels, config, .. } = &arguments;
            patience::create(&**provider, image, labels, lifetime_ms, config.create_timeout_ms).await
        });
        self.creations.insert(number, made.abort_handle());
        let myself = myself.clone();
        let reporter = async move {
            let made = match made.await {
                Ok(Some(made)) => made,
                Ok(None) | Err(_) => {
                    let (stage, detail) = ("provider".to_owned(), "its task ended early".to_owned());
                    Err(SandboxError::CreateFailed { image: image.clone(), stage, detail, lasting: false })
                }
            };
            report(
                &myself,
                match made {
                    Ok(sandbox) => PoolReport::Created(number, Arc::from(sandbox)),
                    Err(error) => PoolReport::Event(PoolEvent::CreateFailed(number, error)),
                },
            );
        };
        drop(spawn_named(format!("sandbox-created-{number}"), reporter));
    }

    /// Gives a box its claim's lifetime, which also shows that it lives.
    fn check(&self, grant: Grant, myself: &ActorRef<PoolMessage>) {
        let sandbox = self.boxes.get(&grant.number).cloned();
        let lifetime_ms = self.claims.get(&grant.claim).map_or(0, |claim| claim.lifetime_ms);
        let myself = myself.clone();
        let task = async move {
            let checked = match sandbox {
                Some(sandbox) => sandbox.renew(lifetime_ms).await,
                None => Err(SandboxError::Closed { what: "the box".to_owned() }),
            };
            report(&myself, PoolReport::Checked(grant, checked));
        };
        drop(spawn_named("sandbox-check", task));
    }

    /// Turns a checked box into a lease, or destroys it.
    async fn conclude(
        &mut self,
        grant: Grant,
        checked: Result<(), SandboxError>,
        myself: &ActorRef<PoolMessage>,
    ) -> Result<PoolEvent, ActorProcessingErr> {
        let Some(sandbox) = self.boxes.get(&grant.number).cloned() else {
            return Ok(PoolEvent::GrantFailed(grant.number));
        };
        if let Err(error) = checked {
            tracing::warn!(box_id = sandbox.box_id(), %error, "a warm sandbox had ended; the claim gets another");
            self.destroy(grant.number, myself);
            return Ok(PoolEvent::GrantFailed(grant.number));
        }
        let Some(claim) = self.claims.remove(&grant.claim) else {
            self.destroy(grant.number, myself);
            return Ok(PoolEvent::GrantFailed(grant.number));
        };
        let box_id = sandbox.box_id().to_owned();
        let workdir = sandbox.workdir().unwrap_or_else(|| self.arguments.image.workdir.display().to_string());
        let arguments = LeaseArguments {
            lease: grant.lease,
            number: grant.number,
            sandbox,
            lifetime_ms: claim.lifetime_ms,
            clock: self.clock,
            journal: self.arguments.journal.clone(),
            pool: myself.clone(),
        };
        let (lease, _) = Actor::spawn_linked(None, SandboxLease, arguments, myself.get_cell()).await?;
        self.leases.insert(grant.number, lease.clone());
        self.record(RunEvent::LeaseClaimed {
            lease: grant.lease,
            rollout: claim.rollout,
            image: self.arguments.image.name.clone(),
            sandbox: box_id,
            warm: grant.warm,
            waited_ms: grant.waited_ms,
        });
        // When the asker is gone the address is dropped here, and its guard gives the box back.
        claim.reply.send(Ok(ClaimedLease {
            lease: grant.lease,
            image: self.arguments.image.name.clone(),
            address: guarded_address(grant.lease, lease),
            workdir,
            warm: grant.warm,
            waited_ms: grant.waited_ms,
        }));
        Ok(PoolEvent::GrantAccepted(grant.number))
    }

    fn destroy(&self, number: BoxNumber, myself: &ActorRef<PoolMessage>) {
        let (sandbox, myself) = (self.boxes.get(&number).cloned(), myself.clone());
        let task = async move {
            if let Some(sandbox) = sandbox
                && let Err(error) = patience::destroy(&*sandbox).await
            {
                tracing::error!(box_id = sandbox.box_id(), %error, "a sandbox is not wholly destroyed");
            }
            report(&myself, PoolReport::Event(PoolEvent::Destroyed(number)));
        };
        drop(spawn_named(format!("sandbox-destroy-{number}"), task));
    }

    fn record(&self, event: RunEvent) {
        if let Some(journal) = &self.arguments.journal
            && let Err(error) = journal.cast(JournalMessage::Record(event))
        {
            tracing::warn!(%error, "a lease is not recorded");
        }
    }

    fn arm_tick(&mut self, myself: &ActorRef<PoolMessage>) {
        let Some(wake_ms) = self.pool.next_wake_ms() else { return };
        if self.tick_at_ms.is_some_and(|armed_ms| armed_ms <= wake_ms) {
            return;
        }
        self.tick_at_ms = Some(wake_ms);
        // One more, because the clock shows whole milliseconds: an early tick would only be armed again.
        let wait_ms = wake_ms.saturating_sub(self.clock.elapsed_ms()).saturating_add(1);
        myself.send_after(Duration::from_millis(wait_ms), || event(PoolEvent::Tick));
    }
}

/// Tells the pool when a box ends by itself; the pool does not mind hearing of boxes it destroyed.
fn watch_end(number: BoxNumber, sandbox: Arc<dyn SandboxBox>, myself: &ActorRef<PoolMessage>) {
    let myself = myself.clone();
    let task = async move {
        sandbox.ended().await;
        report(&myself, PoolReport::Event(PoolEvent::WarmEnded(number)));
    };
    drop(spawn_named(format!("sandbox-watch-{number}"), task));
}

fn event(event: PoolEvent) -> PoolMessage {
    PoolMessage::Report(PoolReport::Event(event))
}

/// A pool that is gone needs no reports: its boxes end with it.
pub(crate) fn report(pool: &ActorRef<PoolMessage>, report: PoolReport) {
    let _ = pool.send_message(PoolMessage::Report(report));
}
