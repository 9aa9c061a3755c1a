//! The one who is told of a run's end.

use std::sync::{Arc, Mutex, PoisonError};

use greenroom_run::RunEnd;
use tokio::sync::oneshot;

/// Tells of the end; the first call counts.
#[derive(Clone)]
pub(crate) struct End(Arc<Mutex<Option<oneshot::Sender<RunEnd>>>>);

impl End {
    /// Who tells, and who hears.
    pub(crate) fn new() -> (Self, oneshot::Receiver<RunEnd>) {
        let (sender, ended) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), ended)
    }

    /// Tells of the end, unless that was told before.
    pub(crate) fn tell(&self, end: RunEnd) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // a run that nobody waits for has nobody to tell
            let _ = sender.send(end);
        }
    }
}
