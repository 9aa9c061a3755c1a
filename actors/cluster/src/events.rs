//! Who hears of what happens to members: every subscriber, of everything, in order.
//!
//! Events are few, so a subscriber that is slow only keeps its own queue; none is ever lost.

use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::MemberEvent;

/// A subscription; dropping it ends it.
#[derive(Debug)]
pub struct MemberEvents(mpsc::UnboundedReceiver<MemberEvent>);

impl MemberEvents {
    /// The next event; `None` when the cluster has ended. Cancelling the wait loses nothing.
    pub async fn recv(&mut self) -> Option<MemberEvent> {
        self.0.recv().await
    }

    /// The next event, if there is one already.
    pub fn try_recv(&mut self) -> Option<MemberEvent> {
        self.0.try_recv().ok()
    }
}

/// The subscribers.
#[derive(Debug, Default)]
pub(crate) struct EventHub(Mutex<Vec<mpsc::UnboundedSender<MemberEvent>>>);

impl EventHub {
    pub(crate) fn subscribe(&self) -> MemberEvents {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        MemberEvents(receiver)
    }

    pub(crate) fn publish(&self, event: &MemberEvent) {
        let mut subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.retain(|subscriber| subscriber.send(event.clone()).is_ok());
    }

    /// Ends all subscriptions.
    pub(crate) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
