//! Events of this node on their way to the run's history, on the controller.
//!
//! Actors record and go on; a task passes events on in batches, and keeps each until the Journal says that it is written.
//! A controller that is away, restarted or out of reach misses nothing of what this process saw. Events of one process are
//! numbered, so that none is written twice. On failure: what a killed process had not passed on is lost with it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greenroom_core::{Address, Deadline, ask, spawn_named};
use greenroom_messages::run::{EventsFrom, JournalMessage, NumberedEvent, RunEvent};
use tokio::sync::Notify;

/// How many events are passed on at once.
const BATCH: usize = 256;
/// How many may wait; more are left out, and that is said.
const MOST: usize = 1 << 18;
const ANSWER_WAIT_MS: u64 = 10_000;
const AGAIN: Duration = Duration::from_millis(300);

#[derive(Default)]
struct Outbox {
    waiting: Mutex<Waiting>,
    news: Notify,
    emptied: Notify,
}

#[derive(Default)]
struct Waiting {
    /// How many events were passed on and are written.
    written: u64,
    events: VecDeque<RunEvent>,
    left_out: u64,
}

/// The address to record at; what is recorded reaches `journal` when it can.
pub(super) fn outbox(source: String, journal: Address<JournalMessage>) -> Address<JournalMessage> {
    let outbox = Arc::new(Outbox::default());
    let address = Address::of_function(journal.name(), {
        let outbox = outbox.clone();
        move |message| match message {
            JournalMessage::Record(event) => {
                outbox.push(event);
                Ok(())
            }
            JournalMessage::Flush(reply) => {
                let outbox = outbox.clone();
                spawn_named("outbox-flush", async move {
                    outbox.empty().await;
                    reply.send(());
                });
                Ok(())
            }
            // nodes record at the controller, not at each other
            JournalMessage::RecordAll(..) => Err(()),
        }
    });
    spawn_named("outbox", async move { outbox.pass_on(&source, &journal).await });
    address
}

impl Outbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: RunEvent) {
        let mut waiting = self.waiting();
        if waiting.events.len() >= MOST {
            if waiting.left_out == 0 {
                tracing::error!(events = MOST, "the controller was away for so long that events are left out");
            }
            waiting.left_out += 1;
            return;
        }
        waiting.events.push_back(event);
        drop(waiting);
        self.news.notify_one();
    }

    async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.waiting().events.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    async fn pass_on(&self, source: &str, journal: &Address<JournalMessage>) {
        loop {
            let (first, events) = {
                let waiting = self.waiting();
                let events: Vec<_> = waiting.events.iter().take(BATCH).cloned().map(NumberedEvent).collect();
                (waiting.written + 1, events)
            };
            let count = events.len();
            if count == 0 {
                self.emptied.notify_waiters();
                self.news.notified().await;
                continue;
            }
            let from = EventsFrom { source: source.to_owned(), first, events };
            let question = |reply| JournalMessage::RecordAll(from, reply);
            match ask(journal, Deadline::after_ms(ANSWER_WAIT_MS), question).await {
                Ok(()) => {
                    let mut waiting = self.waiting();
                    waiting.events.drain(..count);
                    waiting.written += count as u64;
                }
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: &str) -> RunEvent {
        RunEvent::Note { source: "test".into(), text: text.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_recorded_while_the_journal_is_away_reaches_it_later_in_order_and_once() {
        let journal = Address::unbound("journal");
        let outbox = outbox("node#1".into(), journal.clone());
        (0..600).for_each(|number| outbox.cast(JournalMessage::Record(note(&number.to_string()))).unwrap());
        let seen = Arc::new(Mutex::new((Vec::new(), 0_u32)));
        let seen_there = seen.clone();
        tokio::time::sleep(Duration::from_secs(60)).await;
        journal.rebind_function(move |message| {
            let JournalMessage::RecordAll(from, reply) = message else { return Err(()) };
            let mut seen = seen_there.lock().unwrap();
            seen.1 += 1;
            // the first is written, but nobody hears of it
            if seen.1 != 1 {
                reply.send(());
            }
            seen.0.extend((from.first..).zip(from.events.into_iter().map(|NumberedEvent(event)| event)));
            Ok(())
        });
        ask(&outbox, Deadline::after_ms(60_000), JournalMessage::Flush).await.unwrap();
        let mut seen = std::mem::take(&mut seen.lock().unwrap().0);
        assert_eq!(seen.len(), 600 + BATCH, "the first batch is passed on again with its numbers");
        seen.drain(..BATCH);
        let expected: Vec<_> = (0..600_u64).map(|number| (number + 1, note(&number.to_string()))).collect();
        assert_eq!(seen, expected);
    }
}
