//! The Journal: the actor through which every other actor's events reach the run database.
//!
//! Events are dated on arrival and written in small transactions: as soon as the mailbox is empty, or every 256. If the
//! database cannot be written, the Journal fails, and with it the run: a run without a history must not go on.

use greenroom_core::Clock;
use greenroom_messages::run::{JournalMessage, RunEvent};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::broadcast;

use crate::Database;

const EVENTS_PER_TRANSACTION: usize = 256;

/// What the Journal does: take an event, or write what it has.
#[derive(Debug)]
pub enum JournalInput {
    /// A message from another actor.
    Message(JournalMessage),
    /// Its own: the mailbox ran empty.
    Flush,
}

greenroom_core::local_message!(JournalInput);

impl From<JournalMessage> for JournalInput {
    fn from(message: JournalMessage) -> Self {
        Self::Message(message)
    }
}

/// What the Journal starts with.
#[derive(Debug)]
pub struct JournalArguments {
    /// Where it writes.
    pub database: Database,
    /// Where dates come from.
    pub clock: Clock,
    /// Each event as it arrives, for displays; slow readers miss some.
    pub feed: Option<broadcast::Sender<RunEvent>>,
}

/// The actor.
#[derive(Debug, Default)]
pub struct Journal;

/// The state of a running Journal.
#[derive(Debug)]
pub struct JournalState {
    arguments: JournalArguments,
    waiting: Vec<(u64, RunEvent)>,
    flush_asked: bool,
}

impl JournalState {
    fn write(&mut self) -> Result<(), ActorProcessingErr> {
        if !self.waiting.is_empty() {
            self.arguments.database.record(&self.waiting)?;
            self.waiting.clear();
        }
        Ok(())
    }
}

impl Actor for Journal {
    type Msg = JournalInput;
    type State = JournalState;
    type Arguments = JournalArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: JournalArguments,
    ) -> Result<JournalState, ActorProcessingErr> {
        Ok(JournalState { arguments, waiting: Vec::new(), flush_asked: false })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        input: JournalInput,
        state: &mut JournalState,
    ) -> Result<(), ActorProcessingErr> {
        match input {
            JournalInput::Message(JournalMessage::Flush(reply)) => {
                state.write()?;
                reply.send(());
            }
            JournalInput::Message(JournalMessage::RecordAll(from, reply)) => {
                state.write()?;
                let date = state.arguments.clock.now_ms();
                let events = state.arguments.database.record_from(from, date)?;
                if let Some(feed) = &state.arguments.feed {
                    events.into_iter().for_each(|event| drop(feed.send(event)));
                }
                reply.send(());
            }
            JournalInput::Message(JournalMessage::Record(event)) => {
                if let Some(feed) = &state.arguments.feed {
                    // nobody listening is no trouble
                    let _ = feed.send(event.clone());
                }
                state.waiting.push((state.arguments.clock.now_ms(), event));
                if !state.flush_asked {
                    state.flush_asked = true;
                    myself.send_message(JournalInput::Flush)?;
                }
                if state.waiting.len() >= EVENTS_PER_TRANSACTION {
                    state.write()?;
                }
            }
            JournalInput::Flush => {
                state.flush_asked = false;
                state.write()?;
            }
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Self::Msg>, state: &mut JournalState) -> Result<(), ActorProcessingErr> {
        state.write()
    }
}
