//! The port through which one question is answered, once.
//!
//! The asker may be in this process or at the other end of a [`Line`](crate::wire::Line); the one asked cannot tell.
//! Invariant: a port that is dropped unanswered says so by itself; an asker that is gone is seen at the port.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{Notify, oneshot};

use crate::Deadline;

/// Why there is no answer, as the port tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The port was dropped.
    Dropped,
    /// The line broke, or question or answer could not cross it; in words.
    Lost(String),
}

/// What an asker awaits: the answer, or why there is none.
#[derive(Debug)]
pub struct Answer<T>(oneshot::Receiver<Result<T, Unanswered>>);

impl<T> Answer<T> {
    /// Gives up waiting, as the port then sees; an answer that was sent before can still be taken.
    pub fn close(&mut self) {
        self.0.close();
    }

    /// The answer, if there is one already.
    pub fn try_recv(&mut self) -> Option<Result<T, Unanswered>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(Unanswered::Dropped)),
            Err(oneshot::error::TryRecvError::Empty) => None,
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, Unanswered>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|received| received.unwrap_or(Err(Unanswered::Dropped)))
    }
}

/// The port through which one question is answered, once. Dropping it answers with [`Unanswered::Dropped`].
pub struct Reply<T> {
    // behind a lock, because a port that crosses a line is taken out while its message is written
    port: Mutex<Option<Port<T>>>,
    deadline: Option<Deadline>,
}

/// Where an answer goes.
pub(crate) enum Port<T> {
    /// To an asker in this process.
    Here(Option<oneshot::Sender<Result<T, Unanswered>>>),
    /// To an asker at the other end of a line; `None` says that the port was dropped.
    Across(Option<Box<dyn FnOnce(Option<T>) + Send>>, Arc<Abandonment>),
}

/// Whether a far asker has gone away.
#[derive(Debug, Default)]
pub struct Abandonment {
    is_abandoned: AtomicBool,
    changed: Notify,
}

impl Abandonment {
    /// The asker has gone away.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    async fn abandoned(&self) {
        let changed = self.changed.notified();
        if !self.is_abandoned() {
            changed.await;
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Reply")
    }
}

impl<T> Drop for Port<T> {
    fn drop(&mut self) {
        if let Self::Across(answer, _) = self
            && let Some(answer) = answer.take()
        {
            answer(None);
        }
    }
}

impl<T> Reply<T> {
    /// A port and the receiver of its answer, for adapters; actors use [`ask`](crate::ask).
    pub fn channel() -> (Self, Answer<T>) {
        let (port, answer) = oneshot::channel();
        (Self { port: Mutex::new(Some(Port::Here(Some(port)))), deadline: None }, Answer(answer))
    }

    /// A port and the receiver of its answer, which nobody awaits after `deadline`.
    pub fn until(deadline: Deadline) -> (Self, Answer<T>) {
        let (reply, answer) = Self::channel();
        (Self { deadline: Some(deadline), ..reply }, answer)
    }

    pub(crate) fn across(
        answer: Box<dyn FnOnce(Option<T>) + Send>,
        abandonment: Arc<Abandonment>,
        deadline: Option<Deadline>,
    ) -> Self {
        Self { port: Mutex::new(Some(Port::Across(Some(answer), abandonment))), deadline }
    }

    /// Answers. Says whether the asker was still there to hear it, as far as is known here.
    pub fn send(self, answer: T) -> bool {
        self.take().is_some_and(|port| port.answer(Ok(answer)))
    }

    /// When the asker stops waiting, where it said so.
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    /// Whether the asker has gone away (deadline passed or task ended): the work may be given up.
    pub fn is_abandoned(&self) -> bool {
        match &*self.port.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(port) => port.is_abandoned(),
            None => true,
        }
    }

    /// Waits until the asker has gone away: select against it to give work up early.
    pub async fn abandoned(&mut self) {
        match self.port.get_mut().unwrap_or_else(PoisonError::into_inner) {
            Some(Port::Here(Some(port))) => port.closed().await,
            Some(Port::Across(_, abandonment)) => abandonment.abandoned().await,
            Some(Port::Here(None)) | None => {}
        }
    }

    /// Takes the port out, to be answered from elsewhere.
    pub(crate) fn take(&self) -> Option<Port<T>> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T> Port<T> {
    /// Answers, or says why there is no answer.
    pub(crate) fn answer(mut self, answer: Result<T, Unanswered>) -> bool {
        match &mut self {
            Self::Here(port) => port.take().is_some_and(|port| port.send(answer).is_ok()),
            Self::Across(send, abandonment) => {
                if let Some(send) = send.take() {
                    send(answer.ok());
                }
                !abandonment.is_abandoned()
            }
        }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Here(port) => port.as_ref().is_none_or(oneshot::Sender::is_closed),
            Self::Across(_, abandonment) => abandonment.is_abandoned(),
        }
    }
}
