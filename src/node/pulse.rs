//! Whether this node's actors get to run: a task that should wake again and again, and a thread that looks whether it does.
//!
//! What holds the actors up holds heartbeats up, too; the others then take this node for dead, and nothing here would tell
//! why. The thread is none of the runtime's, so that it can tell.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use greenroom_core::spawn_named;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::up::Talk;

/// How often the task wakes within the time after which it is missed.
const BEATS: u32 = 4;
/// No shorter time is looked at: every machine holds a thread up for some milliseconds.
const LEAST: Duration = Duration::from_millis(100);

/// Looks as long as it is held.
pub(super) struct Pulse {
    _task: AbortOnDropHandle<Option<()>>,
    /// Closed when nobody looks any more.
    _looking: mpsc::Sender<()>,
}

impl Pulse {
    /// Tells when actors are held up for longer than `patience`, and how long it was when they are not any more.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn watch(patience: Duration, talk: Talk) -> std::io::Result<Self> {
        let (began, last_ms) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let patience = patience.max(LEAST);
        let pause = patience / BEATS;
        let beaten = last_ms.clone();
        let beat = async move {
            loop {
                beaten.store(began.elapsed().as_millis() as u64, Ordering::Relaxed);
                tokio::time::sleep(pause).await;
            }
        };
        let (looking, ended) = mpsc::channel::<()>();
        std::thread::Builder::new().name("pulse".to_owned()).spawn(move || {
            let mut held_up_since = None;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let last = began + Duration::from_millis(last_ms.load(Ordering::Relaxed));
                match held_up_since {
                    None if last.elapsed() > patience => {
                        held_up_since = Some(last);
                        tell(
                            &talk,
                            &format!("the actors of this node are held up for {:.1} s", last.elapsed().as_secs_f64()),
                        );
                    }
                    Some(since) if last > since => {
                        held_up_since = None;
                        tell(
                            &talk,
                            &format!("the actors of this node go on, after {:.1} s", (last - since).as_secs_f64()),
                        );
                    }
                    _ => {}
                }
            }
        })?;
        Ok(Self { _task: AbortOnDropHandle::new(spawn_named("pulse", beat)), _looking: looking })
    }
}

fn tell(talk: &Talk, what: &str) {
    tracing::warn!(code = "GR0929", "{what}");
    talk(&format!("{what} (greenroom explain GR0929)"));
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn actors_that_are_held_up_are_told_of_once_and_so_is_their_going_on() {
        const PATIENCE: Duration = Duration::from_millis(200);
        let runtime = greenroom_core::runtime(1).unwrap();
        let (told, heard) = mpsc::channel();
        let told = Mutex::new(told);
        let talk: Talk = Arc::new(move |line: &str| drop(told.lock().unwrap().send(line.to_owned())));
        let pulse = runtime.block_on(async { Pulse::watch(PATIENCE, talk) }).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let holding = {
            let _there = runtime.enter();
            spawn_named("holds up", async move { held.recv() })
        };
        let next = || heard.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(next().starts_with("the actors of this node are held up for "), "told while it lasts");
        std::thread::sleep(PATIENCE * 2);
        drop(release);
        assert!(next().starts_with("the actors of this node go on, after "), "and told once");
        runtime.block_on(holding).unwrap();
        drop(pulse);
        assert!(heard.recv_timeout(Duration::from_secs(20)).is_err(), "its thread ends with it");
    }
}
