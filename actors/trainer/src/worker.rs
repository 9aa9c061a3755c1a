//! The learner's thread.
//!
//! Tensor work takes seconds to minutes and must not sit on an async worker, so one named thread owns the learner and
//! takes requests one by one, in order. Each request is answered exactly once: with its result, with a typed error, or,
//! after a panic inside it, with [`TrainerError::Lost`]; the thread survives and can load a checkpoint. Dropping the
//! [`LearnerThread`] lets a running request give up at its next micro-batch, and waits a while for the thread to end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use greenroom_core::{Reply, in_place};
use greenroom_messages::trainer::{TrainReport, TrainerFailure, TrainerMessage};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::TrainerError;
use crate::learner::Learner;
use crate::progress::Progress;

/// How long a request under way may take to give up.
const END: Duration = Duration::from_secs(10);

/// Opens a learner on its thread; called once.
pub type OpenLearner = Box<dyn FnOnce(Progress) -> Result<Learner, TrainerError> + Send>;

/// The handle to a learner's thread.
#[derive(Debug)]
pub struct LearnerThread {
    /// `None` once the thread was told to end.
    requests: Option<mpsc::Sender<TrainerMessage>>,
    progress: Progress,
    /// Closed when the thread has let go of every tensor.
    ended: Mutex<mpsc::Receiver<()>>,
}

impl LearnerThread {
    /// Starts the thread; the receiver hears whether the learner could be opened.
    ///
    /// # Errors
    /// [`TrainerError::Stopped`] when the system gives no thread.
    pub fn start(open: OpenLearner) -> Result<(Self, oneshot::Receiver<Result<(), TrainerError>>), TrainerError> {
        let (requests, inbox) = mpsc::channel();
        let (opened, hear_opened) = oneshot::channel();
        let (ending, ended) = mpsc::channel::<()>();
        let progress = Progress::default();
        let thread_progress = progress.clone();
        std::thread::Builder::new()
            .name("learner".to_owned())
            .spawn(move || {
                run(open, thread_progress, opened, &inbox);
                drop(ending);
            })
            .map_err(|error| TrainerError::Stopped { reason: error.to_string() })?;
        Ok((Self { requests: Some(requests), progress, ended: Mutex::new(ended) }, hear_opened))
    }

    /// Hands a request to the thread; `Status` is answered here, at once.
    pub fn handle(&self, message: TrainerMessage) {
        if let TrainerMessage::Status(reply) = message {
            reply.send(self.progress.status());
            return;
        }
        let refused = match &self.requests {
            Some(requests) => requests.send(message).err().map(|mpsc::SendError(message)| message),
            None => Some(message),
        };
        if let Some(message) = refused {
            refuse(message, &TrainerError::Stopped { reason: "its thread has ended".to_owned() });
        }
    }
}

impl Drop for LearnerThread {
    fn drop(&mut self) {
        self.progress.stop();
        self.requests = None;
        // a process that ends while a thread works on tensors is killed by a signal
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if in_place(|| ended.recv_timeout(END)) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the learner still works on what it was asked last, {END:?} after it was told to end");
        }
    }
}

fn run(
    open: OpenLearner,
    progress: Progress,
    opened: oneshot::Sender<Result<(), TrainerError>>,
    inbox: &mpsc::Receiver<TrainerMessage>,
) {
    let learner = catch_unwind(AssertUnwindSafe(|| open(progress.clone())))
        .unwrap_or_else(|panic| Err(TrainerError::Lost { cause: panic_text(&*panic) }));
    let mut learner = match learner {
        Ok(learner) => learner,
        Err(error) => {
            drop(opened.send(Err(error)));
            return;
        }
    };
    drop(opened.send(Ok(())));
    while let Ok(message) = inbox.recv() {
        serve(&mut learner, &progress, message);
    }
}

fn serve(learner: &mut Learner, progress: &Progress, message: TrainerMessage) {
    match message {
        TrainerMessage::Train(batch, reply) => {
            answer(learner, progress, reply, |learner, _| {
                let begun = Instant::now();
                let metrics = learner.train(&batch)?;
                let elapsed_ms = begun.elapsed().as_millis() as u64;
                metrics.log(batch.step.0, elapsed_ms);
                Ok::<TrainReport, TrainerError>(metrics.report(elapsed_ms))
            });
        }
        TrainerMessage::WarmStart(request, reply) => {
            answer(learner, progress, reply, |learner, is_wanted| {
                let begun = Instant::now();
                let mut report = learner.warm_start_while(&request, is_wanted)?;
                report.elapsed_ms = begun.elapsed().as_millis() as u64;
                Ok(report)
            });
        }
        TrainerMessage::Export(request, reply) => {
            answer(learner, progress, reply, |learner, _| learner.export(&request));
        }
        TrainerMessage::Save(request, reply) => answer(learner, progress, reply, |learner, _| learner.save(&request)),
        TrainerMessage::Load(dir, reply) => {
            answer(learner, progress, reply, |learner, _| learner.load(Path::new(&dir)));
        }
        TrainerMessage::Forget(dirs) => dirs.iter().for_each(|dir| forget(Path::new(dir))),
        TrainerMessage::Status(reply) => drop(reply.send(progress.status())),
    }
}

/// Removes a checkpoint or an export. One that cannot be removed only takes up room: it is said.
fn forget(dir: &Path) {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(dir = %dir.display(), %error, "a directory that the run needs no more is not removed");
        }
        _ => {}
    }
}

/// Does one request and answers it; `work` can look whether somebody still waits for the answer.
fn answer<T>(
    learner: &mut Learner,
    progress: &Progress,
    reply: Reply<Result<T, TrainerFailure>>,
    work: impl FnOnce(&mut Learner, &dyn Fn() -> bool) -> Result<T, TrainerError>,
) {
    let result = catch_unwind(AssertUnwindSafe(|| work(learner, &|| !reply.is_abandoned()))).unwrap_or_else(|panic| {
        let cause = panic_text(&*panic);
        tracing::error!(panic = %cause, "the learner panicked");
        learner.lose(&cause);
        progress.idle(learner.step());
        Err(TrainerError::Lost { cause })
    });
    if let Err(error) = &result {
        // the asker is told, and tells of it
        tracing::warn!(target: greenroom_core::TOLD, code = error.code(), "{error}");
    }
    if !reply.send(result.map_err(|error| failure(&error))) {
        tracing::warn!("the trainer finished a request whose asker had gone");
    }
}

/// Answers a request that cannot be served.
pub(crate) fn refuse(message: TrainerMessage, error: &TrainerError) {
    let failure = failure(error);
    match message {
        TrainerMessage::Train(_, reply) => drop(reply.send(Err(failure))),
        TrainerMessage::WarmStart(_, reply) => drop(reply.send(Err(failure))),
        TrainerMessage::Export(_, reply) => drop(reply.send(Err(failure))),
        TrainerMessage::Save(_, reply) => drop(reply.send(Err(failure))),
        TrainerMessage::Load(_, reply) => drop(reply.send(Err(failure))),
        TrainerMessage::Forget(_) => {}
        TrainerMessage::Status(reply) => drop(reply),
    }
}

fn failure(error: &TrainerError) -> TrainerFailure {
    TrainerFailure { code: error.code().to_owned(), message: error.to_string() }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.and_then(|text| text.lines().next()).unwrap_or("panic without a text").to_owned()
}
