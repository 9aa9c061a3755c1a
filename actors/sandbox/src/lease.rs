//! SandboxLease's ractor glue: one box, from the claim to its destruction.
//!
//! Commands and files run in tasks of their own, so a lease can be released in the middle of a command. When a lease is
//! over by expiry or loss, the actor stays to say so to its holder, until the holder releases it or is gone. A holder is
//! gone when every clone of the lease's address is dropped.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use greenroom_core::{Address, Clock, Reply, spawn_named};
use greenroom_messages::LeaseId;
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::sandbox::{SandboxFailure, SandboxLeaseMessage};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::actor::{PoolMessage, PoolReport, report};
use crate::error::SandboxError;
use crate::lease_state::{LeaseEnd, LeaseState};
use crate::patience;
use crate::provider::SandboxBox;
use crate::state::{BoxNumber, PoolEvent};

/// What a lease starts with.
pub struct LeaseArguments {
    /// Its identity.
    pub lease: LeaseId,
    /// Its box's number in the pool.
    pub number: BoxNumber,
    /// Its box, which lives as long as the lease already.
    pub sandbox: Arc<dyn SandboxBox>,
    /// How long it may be held.
    pub lifetime_ms: u64,
    /// Time.
    pub clock: Clock,
    /// Where its end is recorded.
    pub journal: Option<Address<JournalMessage>>,
    /// Who hears that the box is destroyed.
    pub pool: ActorRef<PoolMessage>,
}

/// A lease's own messages: the published ones, and what its tasks report.
pub enum LeaseMessage {
    /// From the holder.
    Protocol(SandboxLeaseMessage),
    /// The last clone of the address was dropped.
    OwnerGone,
    /// The pool is being drained.
    Close,
    /// The box ended.
    BoxEnded(SandboxError),
    /// The lifetime may be over.
    Tick,
    /// The box is destroyed, or as much of it as could be.
    Destroyed(Result<(), SandboxError>),
}

greenroom_core::local_message!(LeaseMessage);

impl From<SandboxLeaseMessage> for LeaseMessage {
    fn from(message: SandboxLeaseMessage) -> Self {
        Self::Protocol(message)
    }
}

/// The lease on one box.
#[derive(Debug, Default)]
pub struct SandboxLease;

/// The state of a running lease.
pub struct LeaseActorState {
    lease: LeaseState,
    arguments: LeaseArguments,
    /// Why the lease is over, for commands that were under way.
    over: Arc<OnceLock<SandboxError>>,
    releases: Vec<Reply<()>>,
}

impl Actor for SandboxLease {
    type Msg = LeaseMessage;
    type State = LeaseActorState;
    type Arguments = LeaseArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<LeaseMessage>,
        arguments: LeaseArguments,
    ) -> Result<LeaseActorState, ActorProcessingErr> {
        let (sandbox, watcher) = (arguments.sandbox.clone(), myself.clone());
        let watch = async move {
            let error = sandbox.ended().await;
            // A lease that is finished does not mind.
            let _ = watcher.send_message(LeaseMessage::BoxEnded(error));
        };
        drop(spawn_named(format!("{}-watch", arguments.lease), watch));
        let lease = LeaseState::new(arguments.clock.elapsed_ms(), arguments.lifetime_ms);
        let state = LeaseActorState { lease, arguments, over: Arc::default(), releases: Vec::new() };
        state.arm_tick(&myself);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<LeaseMessage>,
        message: LeaseMessage,
        state: &mut LeaseActorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LeaseMessage::Protocol(message) => state.serve(message, &myself),
            LeaseMessage::OwnerGone => state.finish(LeaseEnd::OwnerGone, &myself),
            LeaseMessage::Close => state.finish(LeaseEnd::Closed, &myself),
            LeaseMessage::BoxEnded(error) => state.finish(LeaseEnd::Lost(error), &myself),
            LeaseMessage::Tick => {
                if state.lease.expires(state.arguments.clock.elapsed_ms()) {
                    state.destroy(&myself);
                } else if state.lease.end().is_none() {
                    state.arm_tick(&myself);
                }
            }
            LeaseMessage::Destroyed(destroyed) => state.conclude(destroyed),
        }
        if state.lease.is_finished() {
            myself.stop(None);
        }
        Ok(())
    }
}

impl LeaseActorState {
    fn serve(&mut self, message: SandboxLeaseMessage, myself: &ActorRef<LeaseMessage>) {
        let sandbox = self.arguments.sandbox.clone();
        match message {
            SandboxLeaseMessage::Exec(request, reply) => {
                self.run("exec", reply, async move { sandbox.exec(request).await });
            }
            SandboxLeaseMessage::PutFiles(files, reply) => {
                self.run("put", reply, async move { sandbox.put_files(files).await });
            }
            SandboxLeaseMessage::ReadFile(path, limit_bytes, reply) => {
                self.run("read", reply, async move { sandbox.read_file(&path, limit_bytes).await });
            }
            SandboxLeaseMessage::Renew(lifetime_ms, reply) => {
                if self.lease.renew(self.arguments.clock.elapsed_ms(), lifetime_ms) {
                    self.arm_tick(myself);
                }
                self.run("renew", reply, async move { sandbox.renew(lifetime_ms).await });
            }
            SandboxLeaseMessage::Release(reply) => {
                self.releases.push(reply);
                self.finish(LeaseEnd::Released, myself);
                self.answer_releases();
            }
        }
    }

    /// Does one thing with the box in a task, unless the lease is over; answers what became of it.
    fn run<T: Send + 'static>(
        &self,
        what: &str,
        reply: Reply<Result<T, SandboxFailure>>,
        work: impl Future<Output = Result<T, SandboxError>> + Send + 'static,
    ) {
        if let Some(end) = self.lease.end() {
            // The asker may be gone.
            reply.send(Err(end.error(self.arguments.sandbox.box_id()).to_failure()));
            return;
        }
        let over = self.over.clone();
        let task = async move {
            // A command under way when the lease ended fails for the reason that the lease ended.
            let done = work.await.map_err(|error| over.get().unwrap_or(&error).to_failure());
            reply.send(done);
        };
        drop(spawn_named(format!("{}-{what}", self.arguments.lease), task));
    }

    fn finish(&mut self, end: LeaseEnd, myself: &ActorRef<LeaseMessage>) {
        if self.lease.finish(end) {
            self.destroy(myself);
        }
    }

    fn destroy(&self, myself: &ActorRef<LeaseMessage>) {
        if let Some(end) = self.lease.end() {
            // Set once: a lease ends once.
            let _ = self.over.set(end.error(self.arguments.sandbox.box_id()));
        }
        let (sandbox, myself) = (self.arguments.sandbox.clone(), myself.clone());
        let task = async move {
            let destroyed = patience::destroy(&*sandbox).await;
            let _ = myself.send_message(LeaseMessage::Destroyed(destroyed));
        };
        drop(spawn_named(format!("{}-destroy", self.arguments.lease), task));
    }

    fn conclude(&mut self, destroyed: Result<(), SandboxError>) {
        let box_id = self.arguments.sandbox.box_id();
        if let Err(error) = destroyed {
            tracing::error!(box_id, %error, "a leased sandbox is not wholly destroyed");
        }
        self.lease.destroyed();
        let reason = self.lease.end().map_or("released", LeaseEnd::reason).to_owned();
        if let Some(journal) = &self.arguments.journal {
            let event = RunEvent::LeaseEnded { lease: self.arguments.lease, reason };
            if let Err(error) = journal.cast(JournalMessage::Record(event)) {
                tracing::warn!(%error, "the end of a lease is not recorded");
            }
        }
        report(&self.arguments.pool, PoolReport::Event(PoolEvent::Destroyed(self.arguments.number)));
        self.answer_releases();
    }

    fn answer_releases(&mut self) {
        if self.lease.is_destroyed() {
            for reply in self.releases.drain(..) {
                reply.send(());
            }
        }
    }

    fn arm_tick(&self, myself: &ActorRef<LeaseMessage>) {
        let wait_ms = self.lease.ends_at_ms().saturating_sub(self.arguments.clock.elapsed_ms()).saturating_add(1);
        myself.send_after(Duration::from_millis(wait_ms), || LeaseMessage::Tick);
    }
}

/// Tells the lease when the last clone of its address is dropped.
struct Guard(ActorRef<LeaseMessage>);

impl Drop for Guard {
    fn drop(&mut self) {
        // A lease that was released has stopped already.
        let _ = self.0.send_message(LeaseMessage::OwnerGone);
    }
}

/// The address a holder gets. Dropping all its clones gives the box back.
pub(crate) fn guarded_address(lease: LeaseId, actor: ActorRef<LeaseMessage>) -> Address<SandboxLeaseMessage> {
    let guard = Guard(actor);
    Address::of_function(&lease.to_string(), move |message| {
        guard.0.send_message(LeaseMessage::Protocol(message)).map_err(|_| ())
    })
}
